"""A reconciler reads what it has written, although the watch lags."""

import pytest

from declctl.testing import until

# Counts the children of its key in the cache, and creates another one while there are fewer than two. The
# name of a child is new each time: a stale read makes a duplicate.
COUNTS = """
import uuid
from blackboard import tell as note

def child(request):
    metadata = {"name": f"{request.name}-{uuid.uuid4().hex[:8]}", "labels": {"of": request.name}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"a": "b"}}

def missing(request, ctx):
    children = [each for each in ctx.listers["secrets"].list() if each.labels.get("of") == request.name]
    note("counted", request.name, len(children))
    return len(children) < 2

async def counts(request, ctx):
    if request.obj is not None and missing(request, ctx):
        await ctx.apply(child(request))

def blocks(request, ctx):
    if request.obj is not None and missing(request, ctx):
        ctx.sync.apply(child(request))
"""
PRUNES = """
from blackboard import tell as note

async def prunes(request, ctx):
    if request.obj is None:
        return
    wanted = int(request.obj["data"]["children"])
    there = [each.name for each in ctx.listers["secrets"].list() if each.name.startswith("child-")]
    note("read", wanted, len(there))
    names = [f"child-{number}" for number in range(wanted)]
    done = await ctx.apply_set(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"a": "b"}}
        for name in names
    )
    note("pruned", len(done.pruned))
"""
SECRETS = "- {name: secrets, apiVersion: v1, kind: Secret}"
OWNED = "watches: [{resourceRef: {name: secrets}, mapTo: {label: of}}]"


@pytest.mark.parametrize("queue", ["concurrency: 4", "name: shared, concurrency: 2"])
@pytest.mark.parametrize("entry", ["counts", "blocks"])
def test_a_lagging_watch_makes_no_duplicates(rig, config_map, sandbox, entry, queue) -> None:
    """The watch of the children is held back, and the key comes again and again: it has two children then."""
    rig.resources.append(SECRETS)
    rig.handler(entry, rest=f"mode: Reconcile, queue: {{{queue}}}, {OWNED}")
    controller = rig.run(COUNTS)
    sandbox.faults.silence("secrets")
    sandbox.create(config_map("a"))
    until("the first child is there", lambda: sandbox.objects("Secret"))
    for number in range(3):  # its own watch goes on
        sandbox.update(config_map("a", n=str(number)))
    until("the key waits", lambda: controller.handler(entry).cache_waits >= 1)
    sandbox.create(config_map("b"))  # another key of the handler waits, too: it might read the same list
    until("the other key waits", lambda: controller.handler(entry).cache_waits >= 2)
    assert rig.told("counted") == [("counted", "a", 0)]
    sandbox.faults.speak()
    until("all are made", lambda: len(sandbox.objects("Secret")) >= 4)
    controller.wait_idle()
    owners = [each["metadata"]["labels"]["of"] for each in sandbox.objects("Secret")]
    assert sorted(owners) == ["a", "a", "b", "b"]
    for key in ("a", "b"):
        assert [row[2] for row in rig.told("counted", key)][:3] == [0, 1, 2]
    assert controller.handler(entry).failed == 0


def test_a_deleted_child_is_not_read_again(rig, config_map, sandbox) -> None:
    """The delete returned before the watch told of it: the key waits until the cache has lost the child."""
    rig.resources.append(SECRETS)
    rig.handler("prunes", rest="mode: Reconcile")
    controller = rig.run(PRUNES, objects=[config_map("parent", children="2")])
    until("both are there", lambda: len(sandbox.objects("Secret")) == 2)
    controller.wait_idle()
    sandbox.faults.silence("secrets")
    sandbox.update(config_map("parent", children="0"))
    until("both are deleted", lambda: rig.told("pruned", 2))
    waits = controller.handler("prunes").cache_waits
    sandbox.update(config_map("parent", children="0", more="x"))
    until("the key waits", lambda: controller.handler("prunes").cache_waits > waits)
    sandbox.faults.speak()
    controller.wait_idle()
    assert rig.told("read")[-1] == ("read", 0, 0)


@pytest.fixture
def waiting(rig, config_map, sandbox):
    """A controller whose key waits for its first child, as the watch of the children is held back."""
    rig.resources.append(SECRETS)
    rig.handler("counts", rest=f"mode: Reconcile, {OWNED}")
    controller = rig.run(COUNTS)
    sandbox.faults.silence("secrets")
    sandbox.create(config_map("a"))
    until("the first child is there", lambda: sandbox.objects("Secret"))
    sandbox.update(config_map("a", n="1"))
    until("the key waits", lambda: controller.handler("counts").cache_waits)
    return controller


def test_a_reload_while_a_key_waits_changes_only_the_code(rig, waiting, sandbox) -> None:
    """The status counts the wait. The new code is called with the key, and reads what the old has written."""
    (handler,) = waiting.status().document()["handlers"]
    assert (handler["cacheWaits"], handler["cacheLags"], handler["queued"]) == (1, 0, 1)
    rig.apply(COUNTS.replace('note("counted"', 'note("counted anew"'))
    assert not rig.told("counted anew")
    sandbox.faults.speak()
    until("both are there", lambda: len(sandbox.objects("Secret")) == 2)
    waiting.wait_idle()
    assert rig.told("counted") == [("counted", "a", 0)]
    assert [row[2] for row in rig.told("counted anew")][:2] == [1, 2]


def test_a_handler_that_goes_while_its_key_waits_leaves_nothing(rig, waiting, sandbox) -> None:
    """The key is dropped and counted; the controller goes on."""
    rig.handlers.clear()
    rig.reload_policy = rig.reload_policy.replace("drainTimeout: 5s", "drainTimeout: 100ms")
    rig.apply()
    sandbox.faults.speak()
    waiting.wait_idle()
    assert len(sandbox.objects("Secret")) == 1
