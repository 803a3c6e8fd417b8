"""`mode: Reconcile`: a handler is called for keys, and reads the newest state."""

import pytest

from declctl.testing import until
from tests.behaviour.conftest import definition

CODE = """
from declctl import Requeue, Terminal

def keys(request, ctx):
    assert request.causes[0].resource, request
    if request.name == "bad" and request.attempt < 3:
        raise ValueError("not yet")
    if request.name == "final":
        raise Terminal("another attempt would fail, too")
    if request.name == "again":
        times = ctx.memo["times"] = ctx.memo.get("times", 0) + 1
        return Requeue(after=0.01) if times < 3 else None

async def waits(request, ctx):
    assert request.obj is None or request.obj.name == request.name
"""


def _run(rig):
    rest = "mode: Reconcile, retry: {initialBackoff: 10ms, maxBackoff: 20ms}"
    rig.handler("keys", rest=rest)
    rig.handler("waits", rest="mode: Reconcile")
    return rig.run(CODE)


@pytest.mark.client_go("Sources")
def test_each_changed_object_is_reconciled(rig, config_map) -> None:
    """By a `def` and by an `async def`, each once for one change, and once more when it is gone."""
    runs = _run(rig)
    for number in range(5):
        runs.sandbox.create(config_map(f"m{number}"))
    until("all are reconciled", lambda: runs.handler("keys").succeeded >= 5)
    until("all are reconciled", lambda: runs.handler("waits").succeeded >= 5)
    runs.wait_idle()
    assert runs.handler("keys").failed == runs.handler("waits").failed == 0


@pytest.mark.client_go(313, "Reconcile result")
def test_after_terminal_a_key_waits_for_its_next_change(rig, config_map) -> None:
    """It counts as failed, and is not retried. Its count tells it from failures that may pass.

    A key comes again as often as the reconciler returns Requeue: three times.
    """
    runs = _run(rig)
    for name in ("final", "bad", "again"):
        runs.sandbox.create(config_map(name))
    until("it is given up", lambda: runs.handler("keys").failed == 1)
    until("the others are retried, or come again", lambda: runs.handler("keys").succeeded == 1 + 3)
    runs.wait_idle()
    figures = runs.handler("keys")
    assert (figures.failed, figures.retried, figures.terminal_failures) == (1, 2, 1)


def test_keys_that_fail_together_do_not_all_come_back_together(rig, config_map) -> None:
    """Each back-off is up to a tenth shorter than the manifest says, and never longer."""
    rig.handler("fails", rest="mode: Reconcile, retry: {initialBackoff: 1h, maxBackoff: 1h}")
    runs = rig.run("def fails(request):\n    raise ValueError('no')\n")
    for number in range(20):
        runs.sandbox.create(config_map(f"m{number}"))
    until("all have failed", lambda: runs.handler("fails").retried >= 20)
    waits = [line.fields["retry_in"] for line in runs.log.lines if "retry_in" in line.fields]
    assert all(3240.0 <= wait <= 3600.0 for wait in waits)
    assert len(set(waits)) > 1


MAPPED = """
from blackboard import tell as note

def keys(request):
    note("key", request.key, sorted({cause.resource for cause in request.causes}))

def of_pod(obj):
    if obj.name.startswith("odd"):
        raise ValueError("no such app")
    return ["default/a", f"default/{obj.name}"]
"""


def pod(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}}


POD_MAPPING = "{resourceRef: {name: pods}, mapTo: {entryPoint: 'handlers:of_pod'}}"


def degraded(runs) -> str:
    """The message of the condition Degraded for changes without keys; empty while it is another one."""
    found = {condition.type: condition for condition in runs.status().conditions}.get("Degraded")
    return found.message if found is not None and found.reason == "KeysUnknown" else ""


@pytest.mark.client_go(304)
def test_a_mapping_that_raises_is_shown_and_loses_no_change(rig, sandbox, config_map) -> None:
    """Other objects lead to their keys; the failures are counted, and a mended function gets the changes."""
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod}")
    rest = f"mode: Reconcile, retry: {{initialBackoff: 1h, maxBackoff: 1h}}, watches: [{POD_MAPPING}]"
    rig.handler("keys", rest=rest)
    objects = [config_map("a"), *(pod(name) for name in ("b", "odd-1", "odd-2", "z"))]
    runs = rig.run(MAPPED, objects=objects)
    keys = lambda: sorted({row[1] for row in rig.told("key")})  # noqa: E731
    until("all others lead to their keys", lambda: keys() == ["default/a", "default/b", "default/z"])
    sandbox.create(pod("y"))
    until("a later one leads to its key", lambda: ("key", "default/y", ["pods"]) in rig.told("key"))
    sandbox.delete("Pod", "odd-2")
    until("its deletion has failed, too", lambda: runs.handler("keys").retried == 3)
    figures = runs.handler("keys")
    assert (figures.unmapped, figures.queued, figures.failed) == (2, 2, 0)
    assert figures.last_error_type == "ValueError"
    assert "pods default/odd-2: the mapping handlers:of_pod raised ValueError" in figures.last_error
    until("the condition shows it", lambda: "keys: 2 changes are not mapped to keys yet" in degraded(runs))
    lines = [line for line in runs.log.lines if "a filter or mapping has failed" in line.event]
    assert len(lines) == 1
    assert "pods default/odd-1" in lines[0].event
    assert "of_pod" in lines[0].fields["traceback"]
    rig.apply(MAPPED.replace("raise ValueError", "str"))
    until("the changes lead to their keys", lambda: {"default/odd-1", "default/odd-2"} <= set(keys()))
    runs.wait_idle()
    until("the condition is over", lambda: not degraded(runs))


FALTERING = """
from blackboard import tell as note

asked = {}

def keys(request):
    note("key", request.key)

def falters(obj):
    asked[obj.name] = asked.get(obj.name, 0) + 1
    if asked[obj.name] < 3 and obj.name != "a":
        raise RuntimeError("not now")
    return True

def of_pod(obj):
    return ["default/b"] if falters(obj) else None
"""


@pytest.mark.parametrize(
    ("rest", "made"),
    [("filter: {entryPoint: 'handlers:falters'}", "map"), (f"watches: [{POD_MAPPING}]", "pod")],
    ids=["filter", "mapping"],
)
def test_a_filter_or_mapping_that_fails_for_a_while_is_asked_again(
    rest, made, rig, sandbox, config_map
) -> None:
    """With the back-off of the handler, until it leads to the key: nobody has to change the object again."""
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod}")
    rig.handler("keys", rest=f"mode: Reconcile, retry: {{initialBackoff: 5ms, maxBackoff: 5ms}}, {rest}")
    runs = rig.run(FALTERING, objects=[config_map("a")])
    sandbox.create(config_map("b") if made == "map" else pod("p"))
    until("it leads to its key", lambda: ("key", "default/b") in rig.told("key"))
    runs.wait_idle()
    assert (runs.handler("keys").retried, runs.handler("keys").failed) == (2, 0)


def test_a_mapping_that_fails_as_often_as_the_manifest_allows_is_given_up(rig, sandbox, config_map) -> None:
    """As a call is: it counts as failed, and the handler waits for the next change of the object."""
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod}")
    retry = "retry: {initialBackoff: 5ms, maxBackoff: 5ms, maxAttempts: 2}"
    rig.handler("keys", rest=f"mode: Reconcile, {retry}, watches: [{POD_MAPPING}]")
    runs = rig.run(FALTERING, objects=[config_map("a")])
    sandbox.create(pod("p"))
    until("it is given up", lambda: runs.handler("keys").failed == 1)
    runs.wait_idle()
    assert (runs.handler("keys").retried, runs.handler("keys").unmapped) == (1, 0)
    (told,) = [event for event in runs.log.events("error") if event.endswith("given up")]
    assert "a filter or mapping has failed on pods default/p" in told
    sandbox.patch("Pod", "p", {"metadata": {"labels": {"x": "y"}}})
    until("its next change leads to a key", lambda: ("key", "default/b") in rig.told("key"))


LISTED = """
from blackboard import tell as note

def keys(request):
    note("key", request.key)

def of_pod(obj):
    return ["a/b/c", 7, "", "default/good"]
"""


def test_a_value_that_is_no_key_hides_no_other_and_is_shown(rig, sandbox, config_map) -> None:
    """The good keys of a list are due; the log names the others with the object."""
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod}")
    rig.handler("keys", rest=f"mode: Reconcile, watches: [{POD_MAPPING}]")
    runs = rig.run(LISTED, objects=[config_map("a"), pod("p"), pod("q")])
    until("the good key is due", lambda: ("key", "default/good") in rig.told("key"))
    runs.wait_idle()
    assert runs.handler("keys").no_keys == 4
    (figures,) = [each for each in runs.status().document()["handlers"] if each["name"] == "keys"]
    assert figures["mode"] == "Reconcile"
    watch = {"resource": "pods", "mapTo": "entryPoint (handlers:of_pod)"}
    counts = {"led": 2, "keys": 2, "ledNowhere": 0, "noKeys": 4}
    assert figures["watches"] == [{**watch, **counts}]
    rig.apply(LISTED.replace('["a/b/c", 7, "", "default/good"]', "None"))
    sandbox.patch("Pod", "p", {"metadata": {"labels": {"x": "y"}}})
    runs.wait_idle()
    (found,) = runs.handler("keys").watches
    assert (found.led, found.led_nowhere) == (2, 1)
    (told,) = [event for event in runs.log.events("warning") if "no key" in event]
    assert "pods default/p" in told
    assert "'a/b/c' and a value of type int are no keys" in told


ENDS = """
import asyncio
from blackboard import tell as note
from declctl import Requeue

class Odd(float):
    def __le__(self, other):
        raise RuntimeError("not comparable")

def plain(request):
    note("plain", request.name, request.attempt)
    if request.name == "bad" and request.attempt == 1:
        {ends}
    return Requeue(after=Odd(3600.0)) if request.name == "odd" else None

async def awaits(request):
    note("awaits", request.name, request.attempt)
    await asyncio.sleep(0)
    if request.name == "bad" and request.attempt == 1:
        {ends}
    return Requeue(after=Odd(3600.0)) if request.name == "odd" else None
"""


@pytest.mark.client_go(316, 317, "Controller")
@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ('raise RecursionError("mine")', ["RecursionError", "mine"]),
        ('raise SystemExit("mine")', ["SystemExit", "mine"]),
        ('raise KeyboardInterrupt("mine")', ["KeyboardInterrupt", "mine"]),
        ('raise asyncio.CancelledError("mine")', ["CancelledError", "mine"]),
        ('raise TimeoutError("mine")', ["TimeoutError", "mine"]),
        ("return Requeue(after=10**400)", ["Requeue(after=…)"]),
        ('return Requeue(after=float("nan"))', ["Requeue(after=…)"]),
    ],
)
def test_however_a_reconciler_ends_it_is_a_failure_of_that_key(ends, told, rig, config_map) -> None:
    """An exception, or a time that no clock can reach: it is counted with its name and tried again.

    Neither the process nor another key notices.
    """
    rest = "mode: Reconcile, timeout: 20s, retry: {initialBackoff: 10ms, maxBackoff: 20ms}"
    for name in ("plain", "awaits"):
        rig.handler(name, rest=rest)
    runs = rig.run(ENDS.format(ends=ends), objects=[config_map(name) for name in ("bad", "good", "odd")])
    runs.wait_idle()
    calls = [("bad", 1), ("bad", 2), ("good", 1), ("odd", 1)]
    for name in ("plain", "awaits"):
        assert sorted(rig.told(name)) == [(name, *call) for call in calls]
        figures = runs.handler(name)
        assert (figures.retried, figures.succeeded, figures.failed, figures.zombies) == (1, 3, 0, 0)
        assert figures.running == 0
        assert [words for words in told if words not in (figures.last_error or "")] == []
    assert runs.stop() == 0


ORDERED = """
from blackboard import tell as note, wait

def keys(request):
    note("key", request.name)
    wait("call")
"""


@pytest.mark.client_go(305, "Handlers")
@pytest.mark.parametrize("added_by", ["first sync", "replay"])
def test_a_change_goes_before_keys_of_which_nothing_has_changed(added_by, rig, sandbox, config_map) -> None:
    """A restart, or new code, queues all objects: one that changes does not wait."""
    rig.handler("keys", rest="mode: Reconcile")
    objects = [config_map(f"m{number}") for number in range(10)]
    if added_by == "replay":
        rig.board.open_gate("call")
    runs = rig.run(ORDERED, objects=objects)
    if added_by == "replay":
        until("the first sync is over", lambda: len(rig.told("key")) == 10)
        rig.board.gates["call"].clear()
        rig.board.told.clear()
        rig.apply(ORDERED + "# edited\n")
    until("a call runs, and all others wait", lambda: rig.told("key") and runs.handler("keys").queued == 9)
    sandbox.patch("ConfigMap", "m9", {"data": {"x": "y"}})
    until("the change is queued", lambda: runs.handler("keys").merged == 1)
    rig.board.open_gate("call")
    until("all are called", lambda: len(rig.told("key")) >= 10)
    assert rig.told("key")[1] == ("key", "m9")


GONE = """
from blackboard import tell as note

def keys(request):
    note("key", request.key, request.obj is not None)
"""


def test_a_mapping_leads_to_nothing_outside_of_the_namespaces(rig, sandbox, config_map) -> None:
    """An object of another namespace is there: no reconciler is told that it is gone. An edit adds it."""

    def referring(name: str, to: str) -> dict:
        found = pod(name)
        found["metadata"]["annotations"] = {"map": to}
        return found

    rig.resources = [
        "- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [default]}",
        "- {name: pods, apiVersion: v1, kind: Pod}",
    ]
    rig.handler(
        "keys", rest="mode: Reconcile, watches: [{resourceRef: {name: pods}, mapTo: {annotation: map}}]"
    )
    objects = [config_map("a"), config_map("a", "other"), referring("p", "other/a"), referring("q", "a")]
    runs = rig.run(GONE, objects=objects)
    runs.wait_idle()
    assert set(rig.told("key")) == {("key", "default/a", True)}
    rig.resources[0] = "- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [default, other]}"
    rig.apply()
    runs.wait_idle()
    sandbox.patch("Pod", "p", {"metadata": {"labels": {"x": "y"}}})
    runs.wait_idle()
    assert set(rig.told("key")) == {("key", "default/a", True), ("key", "other/a", True)}


def test_a_kind_that_is_installed_later_gets_the_changes_that_came_before_it(
    rig, sandbox, config_map
) -> None:
    """Until its scope is known, a name is no key: no reconciler is called for an object that can't exist."""
    rig.resources.append("- {name: tenants, apiVersion: example.dev/v1, kind: Tenant}")
    watches = "watches: [{resourceRef: {name: maps}, mapTo: {label: tenant}}]"
    rig.handler("keys", resource="tenants", rest=f"mode: Reconcile, {watches}")
    labelled = config_map("m")
    labelled["metadata"]["labels"] = {"tenant": "acme"}
    runs = rig.run(GONE, objects=[labelled])
    until("its change waits", lambda: runs.handler("keys").unmapped == 1)
    assert (runs.handler("keys").failed, rig.told("key"), degraded(runs)) == (0, [], "")
    sandbox.create(definition("tenants", "Tenant", "v1", scope="Cluster"))
    sandbox.create({"apiVersion": "example.dev/v1", "kind": "Tenant", "metadata": {"name": "acme"}})
    until("it leads to its key", lambda: ("key", "acme", True) in rig.told("key"), timeout=30.0)
    runs.wait_idle()
    assert runs.handler("keys").unmapped == 0
    sandbox.patch("ConfigMap", "m", {"data": {"x": "y"}})
    runs.wait_idle()
    assert set(rig.told("key")) == {("key", "acme", True)}


def test_a_reconciler_may_leave_out_what_is_there_at_the_start(rig, config_map) -> None:
    """`initialSync: Skip`, also after an edit: only what changes later is reconciled."""
    rig.handler("waits", rest="mode: Reconcile, initialSync: Skip")
    runs = rig.run(CODE, objects=[config_map("there")])
    runs.sandbox.create(config_map("new"))
    until("the new one is reconciled", lambda: runs.handler("waits").succeeded >= 1)
    runs.wait_idle()
    assert runs.handler("waits").succeeded == 1
