"""Handlers that write: what they apply, their status, and writes of `ctx.client` and `ctx.sync_client`.

`declctl why` leads from a field to the call that has written it.
"""

import pytest

from declctl.testing import until

DECLARED = """
def tell(obj, ctx):
    if obj.name == "a":
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}, "data": {"of": "a"}}
        ctx.sync.apply(made)
"""


def test_an_edit_of_applies_takes_effect_at_the_reload(rig, config_map, sandbox) -> None:
    """A kind that is not declared is refused and retried; the manifest that declares it lets it through."""
    retry = "retry: {initialBackoff: 10ms, maxBackoff: 20ms}"
    rig.handler("tell", rest=f"applies: [{{apiVersion: v1, kind: Secret}}], {retry}")
    controller = rig.run(DECLARED, objects=[config_map("a")])
    until("it is refused", lambda: controller.handler("tell").retried)
    assert "add {apiVersion: v1, kind: ConfigMap} to its `applies`" in controller.handler("tell").last_error
    assert sandbox.ledger.count("patch") == 0
    rig.handlers.clear()
    manager = "fieldManager: declctl/behaviour/former"
    rig.handler("tell", rest=f"applies: [{{apiVersion: v1, kind: ConfigMap}}], {manager}, {retry}")
    rig.write()
    assert [str(step) for step in controller.reload().steps] == ["~handler tell (applies, fieldManager)"]
    until("it is written", lambda: controller.handler("tell").succeeded)
    (made,) = [each for each in sandbox.objects("ConfigMap") if each["metadata"]["name"] == "made"]
    assert made["metadata"]["managedFields"][0]["manager"] == "declctl/behaviour/former"


METADATA_ONLY = """
async def tell(obj, ctx):
    ready = {"type": "Ready", "status": "True", "reason": "Seen"}
    await ctx.patch_status(conditions=[ready])
"""


def test_a_status_of_metadata_alone_keeps_the_conditions_of_others(rig, sandbox) -> None:
    """The cache has no status, so it is read from the server before it is written."""
    others = {"type": "Other", "status": "True", "reason": "X", "message": "", "lastTransitionTime": None}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"conditions": [others]},
    }
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod, cache: {mode: MetadataOnly}}")
    rig.handler("tell", resource="pods")
    controller = rig.run(METADATA_ONLY, objects=[pod])
    controller.wait_idle()
    assert controller.handler("tell").failed == 0
    (found,) = sandbox.objects("Pod")
    assert [each["type"] for each in found["status"]["conditions"]] == ["Other", "Ready"]


CHILD = """
async def keep(request, ctx):
    if request.name == "owner":
        await ctx.apply_set([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child"}}])
"""


@pytest.mark.parametrize("dropped", ["metadata.annotations", "data"])
def test_annotations_that_the_cache_lacks_are_read_before_a_set_is_applied(
    dropped, rig, config_map, sandbox
) -> None:
    """They name the kinds of children of former processes; otherwise nothing is read."""
    transform = f"transform: {{dropFields: [{dropped}]}}"
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap, {transform}}}"]
    rig.handler("keep", rest="mode: Reconcile, applies: [{apiVersion: v1, kind: ConfigMap}]")
    controller = rig.run(CHILD, objects=[config_map("owner")])
    controller.wait_idle()
    reads = [each.name for each in sandbox.ledger.requests("get", resource="configmaps")]
    assert ("owner" in reads) is (dropped != "data")


def test_a_reload_that_removes_a_handler_says_that_its_children_stay(rig, config_map) -> None:
    """Nothing is deleted, and the log says how to find what has no handler any more."""
    rig.handler("keys")
    rig.handler("apply", entry="handlers:keys", rest="applies: [{apiVersion: v1, kind: ConfigMap}]")
    controller = rig.run("def keys(obj): pass\n", objects=[config_map("a")])
    rig.handlers = rig.handlers[:1]
    rig.apply()
    (line,) = [line for line in controller.log.events("warning") if "stay" in line]
    assert line.startswith("fields in v1 ConfigMap that apply has applied stay with the field manager")
    assert "`kubectl get ConfigMap --all-namespaces -l applyset.kubernetes.io/part-of" in line


# By whom a field was written, and by which client


MADE = """
async def tell(obj, ctx):
    if obj.name == "a":
        await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}, "data": DATA})
"""


def test_a_field_leads_to_the_generation_that_wrote_it(rig, config_map, sandbox) -> None:
    """An edit adds a field. The field that was there before still leads to the code that has written it."""
    rig.handler("tell", rest="replay: OnCodeChange")
    controller = rig.run(MADE + 'DATA = {"const": "1"}', objects=[config_map("a")])

    def applied(count: int) -> bool:
        return sum(total.count for total in controller.status().writes if total.verb == "apply") == count

    until("it is written", lambda: applied(1))
    rig.write(MADE + 'DATA = {"const": "1", "extra": "2"}')
    controller.reload()
    until("it is written again", lambda: applied(2))

    def generation(field: str) -> tuple[int, bool]:
        found = controller.on_machinery(controller.runtime.why("configmaps", "default/made", field), 10)
        (owned,) = found.fields
        return owned.write.generation, owned.exact

    assert generation("data.const") == (1, True)
    assert generation("data.extra") == (2, True)


CLIENTS = """
import asyncio
import declctl
from blackboard import tell as note
def body(name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
"""
ASYNC = (
    CLIENTS
    + """
async def tell(obj, ctx):
    from kubernetes.aio.client import CoreV1Api
    if obj.name == "a":
        await CoreV1Api(ctx.client).create_namespaced_config_map("default", body("made"))
"""
)
SYNC = (
    CLIENTS
    + """
def tell(obj, ctx):
    from kubernetes.client import CoreV1Api
    if obj.name == "a":
        CoreV1Api(ctx.sync_client).create_namespaced_config_map("default", body("made"))
"""
)
TASK_AND_THREAD = (
    CLIENTS
    + """
async def tell(obj, ctx):
    from kubernetes.client import CoreV1Api
    def write():
        CoreV1Api(ctx.sync_client).create_namespaced_config_map("default", body("made"))
    if obj.name == "a":
        await asyncio.create_task(asyncio.to_thread(write))
"""
)


@pytest.mark.parametrize("code", [ASYNC, SYNC, TASK_AND_THREAD], ids=["async", "sync", "task-and-thread"])
def test_a_write_by_an_official_client_is_counted_for_its_handler(rig, config_map, sandbox, code) -> None:
    """`declctl status` and the metrics show what a handler writes, whichever client it takes.

    `declctl why` names the handler, its generation, and what the call was for.
    """
    rig.handler("tell")
    controller = rig.run(code)
    sandbox.create(config_map("a"))
    until("it is counted", lambda: controller.status().writes)
    controller.wait_idle()
    (total,) = controller.status().writes
    assert (total.handler, total.verb, total.result, total.count) == ("tell", "create", "succeeded", 1)
    found = controller.on_machinery(controller.runtime.why("configmaps", "default/made"), 10)
    (write,) = found.writes
    assert (write.verb, write.handler, write.generation, write.called_for) == (
        "create", "tell", 1, "default/a",
    )  # fmt: skip
    assert write.causes == ("Added maps default/a (Watch)",)
