"""Finalizers: added before the first reconcile, removed after `declctl_finalize`, and only our own."""

import threading

import pytest

from declctl.runtime.reconciling import stray_finalizers
from declctl.runtime.runtime import RunOptions, Runtime
from declctl.sandbox.faults import Match
from declctl.testing import until
from declctl.transport import Client

NAME = "example.dev/cleanup"
ASYNC = """
from blackboard import tell as note
import declctl
from declctl import Requeue, Terminal

async def keys(request, ctx):
    found = request.obj and list(request.obj["metadata"].get("finalizers") or ())
    note("reconcile", str(request.key), found)

@declctl.hookimpl
async def declctl_finalize(request, ctx):
    times = ctx.memo["times"] = ctx.memo.get("times", 0) + 1
    note("finalize", str(request.key), times)
    what = request.obj.get("data", {}).get("what")
    if what == "raise" and times < 3:
        raise ValueError("not yet")
    if what == "requeue" and times < 3:
        return Requeue(after=0.01)
    if what == "terminal":
        raise Terminal("another attempt would fail, too")
"""
SYNC = ASYNC.replace("async def", "def")
RETRY = "retry: {initialBackoff: 10ms, maxBackoff: 20ms}"
REST = f"mode: Reconcile, finalizer: {NAME}, {RETRY}"


def finalizers(sandbox, name, namespace="default"):
    """Those of a ConfigMap; None if it is gone."""
    for obj in sandbox.objects("ConfigMap", namespace):
        if obj["metadata"]["name"] == name:
            return obj["metadata"].get("finalizers") or []
    return None


def _run(rig, code=ASYNC, rest=REST, **more):
    rig.handler("keys", rest=rest)
    return rig.run(code, **more)


@pytest.mark.parametrize("code", [ASYNC, SYNC], ids=["async", "sync"])
def test_an_object_is_reconciled_when_it_has_the_finalizer(rig, config_map, sandbox, code) -> None:
    """Never before; when it is deleted, it is finalized, not reconciled, and it goes."""
    runs = _run(rig, code, objects=[config_map("there")])
    sandbox.create(config_map("new"))
    until("both are reconciled", lambda: len(rig.told("reconcile")) >= 2)
    runs.wait_idle()
    # A second call is no fault: the cache may show the finalizer before the handler is told of the change.
    assert {row[1] for row in rig.told("reconcile")} == {"default/new", "default/there"}
    assert [row for row in rig.told("reconcile") if row[2] != [NAME]] == []
    sandbox.delete("ConfigMap", "new")
    until("it is gone", lambda: finalizers(sandbox, "new") is None)
    until("its end is reconciled", lambda: rig.told("reconcile", "default/new", None))
    assert rig.told("finalize") == [("finalize", "default/new", 1)]
    assert finalizers(sandbox, "there") == [NAME]
    runs.wait_idle()
    assert runs.handler("keys").failed == 0
    assert sandbox.ledger.count("patch", resource="configmaps") == 3


def test_finalizers_of_others_stay(rig, config_map, sandbox) -> None:
    """Ours is added to the list and taken out of it; the object goes when the others have ended, too."""
    obj = config_map("shared")
    obj["metadata"]["finalizers"] = ["other.dev/first"]
    runs = _run(rig, objects=[obj])
    until("it has both", lambda: finalizers(sandbox, "shared") == ["other.dev/first", NAME])
    until("it is reconciled", lambda: rig.told("reconcile"))
    sandbox.patch(
        "ConfigMap", "shared", {"metadata": {"finalizers": ["other.dev/first", NAME, "other.dev/2"]}}
    )
    sandbox.delete("ConfigMap", "shared")
    until("ours is gone", lambda: finalizers(sandbox, "shared") == ["other.dev/first", "other.dev/2"])
    runs.wait_idle()
    assert len(rig.told("finalize")) == 1
    calls = len(rig.told("reconcile"))
    sandbox.patch("ConfigMap", "shared", {"data": {"more": "1"}})
    runs.wait_idle()
    assert len(rig.told("reconcile")) == calls, "an object that is being deleted is not reconciled"
    assert finalizers(sandbox, "shared") == ["other.dev/first", "other.dev/2"]


def test_an_object_that_is_being_deleted_never_gets_it(rig, config_map, sandbox) -> None:
    """It is held by another finalizer: it is neither reconciled nor finalized."""
    obj = config_map("going")
    obj["metadata"]["finalizers"] = ["other.dev/first"]
    sandbox.create(obj)
    sandbox.delete("ConfigMap", "going")
    runs = _run(rig)
    runs.wait_idle()
    assert finalizers(sandbox, "going") == ["other.dev/first"]
    assert rig.told("reconcile") == rig.told("finalize") == []
    assert sandbox.ledger.count("patch") == 0


@pytest.mark.parametrize("what", ["raise", "requeue"])
def test_finalizing_is_tried_until_it_succeeds(rig, config_map, sandbox, what) -> None:
    """Whatever `retry` and `onFailure` say: an object that was given up would be stuck for ever."""
    rest = f"mode: Reconcile, finalizer: {NAME}, onFailure: Ignore, {RETRY[:-1]}, maxAttempts: 1}}"
    runs = _run(rig, rest=rest, objects=[config_map("m", what=what)])
    until("it is reconciled", lambda: rig.told("reconcile"))
    sandbox.delete("ConfigMap", "m")
    until("it is gone", lambda: finalizers(sandbox, "m") is None)
    assert [row[2] for row in rig.told("finalize")] == [1, 2, 3]
    assert runs.handler("keys").failed == 0


SEVERAL = """
import declctl
from blackboard import tell as note

@declctl.hookimpl
def declctl_reconcile(request): ...

@declctl.hookimpl
def declctl_finalize(request, ctx):
    times = ctx.memo["times"] = ctx.memo.get("times", 0) + 1
    note("asked", times)
    return declctl.Requeue(after=0.01) if times < 4 else None

@declctl.hookimpl(specname="declctl_finalize", trylast=True)
def other(request, ctx):
    if ctx.memo["times"] < 3:
        raise ValueError("not yet")
"""


def test_each_attempt_calls_all_hooks(rig, config_map, sandbox) -> None:
    """One that has asked for more time is asked again, whatever another raises: the object stays for it."""
    rig.handler("keys", entry="handlers", rest=REST)
    runs = rig.run(SEVERAL, objects=[config_map("there")])
    until("it has the finalizer", lambda: finalizers(sandbox, "there") == [NAME])
    runs.wait_idle()
    sandbox.delete("ConfigMap", "there", "default")
    until("it is gone", lambda: finalizers(sandbox, "there") is None)
    assert [times for _, times in rig.told("asked")] == [1, 2, 3, 4]


def test_terminal_waits_for_the_next_change(rig, config_map, sandbox) -> None:
    """The object stays, and is finalized again when it changes."""
    runs = _run(rig, objects=[config_map("m", what="terminal")])
    until("it is reconciled", lambda: rig.told("reconcile"))
    sandbox.delete("ConfigMap", "m")
    until("it is given up", lambda: runs.handler("keys").failed == 1)
    runs.wait_idle()
    assert finalizers(sandbox, "m") == [NAME]
    sandbox.patch("ConfigMap", "m", {"data": {"what": "ok"}})
    until("it is gone", lambda: finalizers(sandbox, "m") is None)
    assert [row[2] for row in rig.told("finalize")] == [1, 2]


@pytest.mark.parametrize("code", [409, 500])
def test_refused_writes_are_repeated(rig, config_map, sandbox, code) -> None:
    """A removal that fails does not call the hook again; nothing is stuck."""
    runs = _run(rig, code=SYNC)
    sandbox.faults.refuse(code, Match("patch", "configmaps"), times=7)
    sandbox.create(config_map("m"))
    until("it is reconciled", lambda: rig.told("reconcile"))
    sandbox.faults.refuse(code, Match("patch", "configmaps"), times=7)
    sandbox.delete("ConfigMap", "m")
    until("it is gone", lambda: finalizers(sandbox, "m") is None)
    runs.wait_idle()
    assert rig.told("finalize") == [("finalize", "default/m", 1)]
    retries = runs.status().write_retries["conflict"]
    assert retries >= 10 if code == 409 else retries == 0


def test_a_filter_keeps_no_object_from_its_end(rig, config_map, sandbox) -> None:
    """Neither do `events` nor `initialSync: Skip`: the deletion changes nothing that the filter looks at."""
    rest = f"{REST}, filter: {{changedPaths: [data]}}, events: [Added]"
    _run(rig, rest=rest)
    sandbox.create(config_map("m"))
    until("it is reconciled with its finalizer", lambda: rig.told("reconcile", "default/m", [NAME]))
    sandbox.delete("ConfigMap", "m")
    until("it is gone", lambda: finalizers(sandbox, "m") is None)
    assert len(rig.told("finalize")) == 1


def test_an_object_that_was_deleted_meanwhile_is_finalized_after_a_start(rig, config_map, sandbox) -> None:
    """The process ended between the deletion and the removal: the next one calls the hook."""
    obj = config_map("m")
    obj["metadata"]["finalizers"] = [NAME]
    sandbox.create(obj)
    sandbox.delete("ConfigMap", "m")
    _run(rig, rest=f"{REST}, initialSync: Skip")
    until("it is gone", lambda: finalizers(sandbox, "m") is None)
    assert rig.told("finalize") == [("finalize", "default/m", 1)]
    assert rig.told("reconcile", "default/m", [NAME]) == []


LABELLED = "- {name: maps, apiVersion: v1, kind: ConfigMap, labelSelector: app=web}"


def labelled(config_map, name, namespace="default", **labels):
    """A ConfigMap with labels."""
    obj = config_map(name, namespace)
    obj["metadata"]["labels"] = labels
    return obj


def test_an_object_that_leaves_the_selector_is_finalized(rig, config_map, sandbox) -> None:
    """It is not reconciled any more, not as an object that is gone either; when it is deleted, it goes."""
    rig.resources = [LABELLED]
    runs = _run(rig, objects=[labelled(config_map, "m", app="web"), labelled(config_map, "other", app="db")])
    until("it is reconciled", lambda: rig.told("reconcile", "default/m", [NAME]))
    runs.wait_idle()
    sandbox.patch("ConfigMap", "m", {"metadata": {"labels": {"app": "db"}}})
    until("it is known to have left", lambda: runs.handler("keys").leftovers == 1)
    assert runs.resource("maps").objects == 0
    sandbox.patch("ConfigMap", "m", {"data": {"more": "1"}})
    runs.wait_idle()
    assert rig.told("reconcile") == [("reconcile", "default/m", [NAME])], "it lives, and is not gone"
    sandbox.delete("ConfigMap", "m")
    until("it is gone", lambda: finalizers(sandbox, "m") is None)
    until("it is counted", lambda: runs.handler("keys").finalized == 1)
    assert rig.told("finalize") == [("finalize", "default/m", 1)]
    until("its end is reconciled", lambda: rig.told("reconcile", "default/m", None))
    assert len(rig.told("reconcile")) == 2
    assert finalizers(sandbox, "other") == []


class _Behind:
    """A cache of leftovers that still has each object as it was when it was deleted."""

    name, count = "behind", 0

    def __init__(self, informer) -> None:
        self.records = {}
        informer.add_listener(self)

    def add_all(self, notifications) -> None:
        for change in notifications:
            if change.record.read()["metadata"].get("deletionTimestamp") and change.type != "Deleted":
                self.records[change.key] = change.record

    def get(self, key):
        return self.records.get(key)

    def is_undecided(self, key) -> bool:
        return False

    def object_left(self, notification) -> None:
        pytest.fail("it was released by the handler itself")


def test_a_cache_of_leftovers_that_lags_finalizes_nothing_again(rig, config_map, sandbox) -> None:
    """What leads to the key of an object that is gone is no reason to finalize what that cache still has."""
    rig.resources = [LABELLED]
    runs = _run(rig, objects=[labelled(config_map, "m", app="web")])
    until("it is reconciled", lambda: rig.told("reconcile"))
    runs.wait_idle()
    slot = runs.runtime.parts.slots.get("keys")
    (managed,) = slot.binding.own_informers

    async def fall_behind() -> None:
        slot.leftovers = _Behind(managed.informer)

    runs.on_machinery(fall_behind(), 30)
    sandbox.delete("ConfigMap", "m")
    until("its end is reconciled", lambda: rig.told("reconcile", "default/m", None))
    runs.wait_idle()
    assert rig.told("finalize") == [("finalize", "default/m", 1)]


def test_an_object_that_leaves_has_its_state_beside_a_snapshot_of_its_resource(
    rig, config_map, sandbox
) -> None:
    """The snapshot has it no more; the request has."""
    rig.resources = [LABELLED]
    mine = labelled(config_map, "mine", app="web")
    mine["data"]["what"] = "is known"
    code = "from blackboard import tell as note\nimport declctl\n"
    code += "def keys(request): pass\n"
    code += "@declctl.hookimpl\ndef declctl_finalize(request, ctx):\n"
    code += "    note('finalize', request.obj['data']['what'], request.key in ctx.snapshots['maps'])\n"
    runs = _run(rig, code, f"{REST}, includeSnapshotsFrom: [maps]", objects=[mine])
    until("it has the finalizer", lambda: finalizers(sandbox, "mine") == [NAME])
    sandbox.patch("ConfigMap", "mine", {"metadata": {"labels": {"app": "db"}}})
    until("it is known to have left", lambda: runs.handler("keys").leftovers == 1)
    sandbox.delete("ConfigMap", "mine", "default")
    until("it is gone", lambda: finalizers(sandbox, "mine") is None)
    assert rig.told() == [("finalize", "is known", False)]


def test_what_had_left_before_the_start_is_finalized(rig, config_map, sandbox) -> None:
    """Some objects are in no namespace of this manifest, and one of them is deleted already."""
    sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-b"}})
    for name in ("deleted", "kept"):
        obj = config_map(name, "team-b")
        obj["metadata"]["finalizers"] = [NAME]
        sandbox.create(obj)
    sandbox.delete("ConfigMap", "deleted", namespace="team-b")
    rig.more = "  namespaces: [default]\n"
    _run(rig)
    until("the deleted one is gone", lambda: finalizers(sandbox, "deleted", "team-b") is None)
    sandbox.delete("ConfigMap", "kept", namespace="team-b")
    until("the other one is gone", lambda: finalizers(sandbox, "kept", "team-b") is None)
    assert sorted(rig.told("finalize")) == [("finalize", "team-b/deleted", 1), ("finalize", "team-b/kept", 1)]
    assert rig.told("reconcile", "team-b/kept", [NAME]) == []


def test_a_scope_that_nothing_can_leave_costs_no_list(rig, config_map, asked) -> None:
    """The cache is filled by its watch, and nothing is listed to find objects outside of the scope."""
    runs = _run(rig, objects=[config_map("m")])
    until("it is reconciled", lambda: rig.told("reconcile"))
    runs.wait_idle()
    assert asked("configmaps") == (0, 1)


def test_a_namespace_that_the_selector_does_not_match_any_more(rig, config_map, sandbox) -> None:
    """Its objects are finalized when they are deleted."""
    labels = {"team": "web"}
    metadata = {"name": "team-b", "labels": labels}
    sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    rig.more = "  namespaces: {labelSelector: {matchLabels: {team: web}}}\n"
    runs = _run(rig, objects=[config_map("m", "team-b")])
    until("it is reconciled", lambda: rig.told("reconcile", "team-b/m", [NAME]))
    runs.wait_idle()
    sandbox.patch("Namespace", "team-b", {"metadata": {"labels": {"team": None}}}, namespace=None)
    until("it has left", lambda: runs.resource("maps").objects == 0)
    sandbox.delete("ConfigMap", "m", namespace="team-b")
    until("it is gone", lambda: finalizers(sandbox, "m", "team-b") is None)
    assert rig.told("finalize") == [("finalize", "team-b/m", 1)]


def test_a_finalizer_that_disappears_refuses_the_edit_until_objects_are_released(
    rig, config_map, sandbox
) -> None:
    """Those that are released do not get it again; new ones do, as nothing would finalize them otherwise."""
    runs = _run(rig, objects=[config_map("a"), config_map("b")])
    until("both are reconciled", lambda: len(rig.told("reconcile")) == 2)
    runs.wait_idle()
    rig.handlers.clear()
    rig.handler("keys", rest=f"mode: Reconcile, {RETRY}")
    rig.write()
    refused = runs.reload()
    assert (str(refused.result), refused.reason) == ("Refused", "FinalizersLeft")
    assert f"the finalizer {NAME} of the handler keys is not in the manifest any more" in refused.message
    assert "2 objects have it (default/a, default/b)" in refused.message
    sandbox.create(config_map("new"))
    until("it is protected", lambda: rig.told("reconcile", "default/new", [NAME]))
    sandbox.delete("ConfigMap", "new")
    until("it is finalized", lambda: rig.told("finalize", "default/new"))
    for name in ("a", "b"):
        sandbox.patch("ConfigMap", name, {"metadata": {"finalizers": None}})
    runs.wait_idle()
    assert finalizers(sandbox, "a") == finalizers(sandbox, "b") == []
    assert str(runs.reload().result) == "Applied"
    calls = len(rig.told("reconcile"))
    sandbox.patch("ConfigMap", "a", {"data": {"more": "1"}})
    until("it is reconciled without one", lambda: len(rig.told("reconcile")) > calls)
    assert rig.told("reconcile")[-1] == ("reconcile", "default/a", [])


def test_a_start_tells_of_finalizers_that_its_manifest_lacks(rig, config_map, sandbox, monkeypatch) -> None:
    """Known by what earlier processes have left in the cluster; the server is asked until it has answered."""
    monkeypatch.setattr(stray_finalizers, "LOOK_SECONDS", 0.05)
    one, both = config_map("a"), config_map("both")
    both["metadata"]["finalizers"] = ["kubernetes.io/x", "other.dev/first"]
    owned = {"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {}}}
    for obj in (one, both):  # the sandbox follows the managers of an object that has one
        obj["metadata"]["managedFields"] = [{**owned, "fieldsType": "FieldsV1"}]
    runs = _run(rig, objects=[one, both])
    until("both are reconciled", lambda: len(rig.told("reconcile")) >= 2)
    assert runs.stop() == 0
    rig.handlers.clear()
    rig.handler("keys", rest=f"mode: Reconcile, {RETRY}")
    lists = sandbox.ledger.count("list")
    sandbox.faults.refuse(500, Match("list", "configmaps"), times=2)
    runs = rig.run(ASYNC)
    until("it is told", lambda: runs.condition("Degraded").reason == "FinalizersLeft")
    assert runs.condition("Degraded").message == (
        f"2 objects have the finalizer {NAME} of the handler keys (ConfigMap default/a, default/both), which "
        "is not in the manifest: nothing removes it when they are deleted; declare it again, or release them "
        "(`declctl finalizers release MANIFEST`)"
    )
    sandbox.delete("ConfigMap", "a")
    sandbox.patch("ConfigMap", "a", {"metadata": {"finalizers": None}})
    until("the other is told", lambda: "1 object has" in runs.condition("Degraded").message)
    sandbox.patch("ConfigMap", "both", {"metadata": {"finalizers": ["other.dev/first"]}})
    until("none is told", lambda: runs.condition("Degraded").reason == "AsExpected")
    assert sandbox.ledger.count("list") - lists == 2 + 2, "twice in vain, and once for each of two names"
    assert runs.log.find("is one of this controller is not known")


def test_an_edit_that_is_taken_back_adds_it_again(rig, config_map, sandbox) -> None:
    """The refusal has no effect any more when the files are those that run."""
    runs = _run(rig, objects=[config_map("a")])
    until("it is reconciled", lambda: rig.told("reconcile"))
    runs.wait_idle()
    handlers = list(rig.handlers)
    rig.handlers.clear()
    rig.write()
    assert runs.reload().reason == "FinalizersLeft"
    sandbox.patch("ConfigMap", "a", {"metadata": {"finalizers": None}})
    until("it is reconciled without one", lambda: rig.told("reconcile", "default/a", []))
    rig.handlers = handlers
    rig.write()
    assert str(runs.reload().result) == "Unchanged"
    until("it gets one", lambda: finalizers(sandbox, "a") == [NAME])


def test_a_new_finalizer_goes_to_all_objects(rig, config_map, sandbox) -> None:
    """An edit adds it: each object is called once, and has it then."""
    rig.handler("keys", rest="mode: Reconcile")
    rig.run(ASYNC, objects=[config_map("a"), config_map("b")])
    until("both are reconciled", lambda: len(rig.told("reconcile")) == 2)
    rig.handlers.clear()
    rig.handler("keys", rest=REST)
    rig.apply()
    until("both have it", lambda: finalizers(sandbox, "a") == finalizers(sandbox, "b") == [NAME])
    until("both are reconciled with it", lambda: len(rig.told("reconcile", "default/b", [NAME])) == 1)


def test_an_edit_while_an_object_is_finalized(rig, config_map, sandbox) -> None:
    """The running call ends with the old code; one that has failed goes on with the new one."""
    slow = SYNC.replace(
        'note("finalize", str(request.key), times)',
        'note("finalize", str(request.key), times)\n'
        "    import blackboard\n"
        '    assert blackboard.wait("edited")\n'
        '    if request.name == "fails": raise ValueError("not with this code")',
    )
    rig.handler("keys", rest=f"{REST}, queue: {{concurrency: 2}}")
    rig.run(slow, objects=[config_map("slow"), config_map("fails")])
    until("both are reconciled", lambda: len({row[1] for row in rig.told("reconcile")}) == 2)
    for name in ("slow", "fails"):
        sandbox.delete("ConfigMap", name)
    until("both are being finalized", lambda: len(rig.told("finalize")) == 2)
    rig.apply(SYNC + "\n# an edit\n")
    rig.board.open_gate("edited")
    until("both are gone", lambda: finalizers(sandbox, "slow") is finalizers(sandbox, "fails") is None)


def test_a_dry_run_stores_no_finalizer(rig, config_map, sandbox) -> None:
    """The server checks the write, and the object is reconciled at once; a deleted one stays."""
    deleted = config_map("deleted")
    deleted["metadata"]["finalizers"] = [NAME]
    sandbox.create(config_map("m"))
    sandbox.create(deleted)
    sandbox.delete("ConfigMap", "deleted")
    rig.handler("keys", rest=REST)
    options = RunOptions(manifest=str(rig.write(ASYNC)), watch=False, dry_run=True)
    runtime = Runtime(options, connect=lambda: Client.from_kubeconfig_dict(sandbox.kubeconfig()))
    thread = threading.Thread(target=runtime.run)
    thread.start()
    try:
        until("it is reconciled", lambda: rig.told("reconcile", "default/m", []))
        until("the other one is finalized", lambda: rig.told("finalize", "default/deleted"))
        written = {("patch", "dry_run"): 2}
        totals = lambda: {(each.verb, each.result): each.count for each in runtime.status().writes}  # noqa: E731
        until("both writes were checked", lambda: totals() == written)
        assert finalizers(sandbox, "m") == []
        assert finalizers(sandbox, "deleted") == [NAME]
    finally:
        runtime.stop()
        thread.join()


def test_a_process_that_ends_between_the_hook_and_the_removal(rig, config_map, sandbox) -> None:
    """The next one calls the hook again, and removes the finalizer."""
    runs = _run(rig, objects=[config_map("m")])
    until("it is reconciled", lambda: rig.told("reconcile"))
    runs.wait_idle()
    sandbox.faults.refuse(500, Match("patch", "configmaps"))
    sandbox.delete("ConfigMap", "m")
    until("the removal has failed", lambda: runs.handler("keys").retried)
    runs.stop()
    assert finalizers(sandbox, "m") == [NAME]
    assert len(rig.told("finalize")) == 1
    sandbox.faults.clear()
    rig.run(ASYNC)
    until("it is gone", lambda: finalizers(sandbox, "m") is None)
    assert [row[:2] for row in rig.told("finalize")] == [("finalize", "default/m")] * 2
