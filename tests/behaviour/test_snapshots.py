"""`includeSnapshotsFrom`: what a call reads is of one moment, and it is there."""

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.behaviour.conftest import secret

SECRETS = "- {name: secrets, apiVersion: v1, kind: Secret}"
INCLUDES = "includeSnapshotsFrom: [secrets]"
# Reads a snapshot and a lister before and after the test has changed the cluster.
READS_TWICE = """
from blackboard import tell as note, wait

def _seen(reader):
    return sorted((each.name, each.labels.get("at")) for each in reader.list())

def twice(obj, ctx):
    secrets = ctx.snapshots["secrets"]
    note("snapshot", _seen(secrets))
    note("lister", _seen(ctx.listers["secrets"]))
    wait("changed")
    note("snapshot", _seen(secrets))
    note("by key", secrets.get("default/a").labels["at"], "default/b" in secrets, len(secrets))
    note("iterated", sorted(each.name for each in secrets))
    early = [each.name for each in secrets.by_index("byTime", "early")]
    note("by index", early, secrets.index_values("byTime"))
    note("lister", _seen(ctx.listers["secrets"]))

async def later(obj, ctx):
    note("async", _seen(ctx.snapshots["secrets"]))

def keyed(request, ctx):
    note("reconciled", request.name, _seen(ctx.snapshots["secrets"]))

def on_schedule(schedule, ctx):
    note("scheduled", _seen(ctx.snapshots["secrets"]))
"""


@pytest.fixture
def reading(rig):
    """Secrets with an index, beside the ConfigMaps."""
    rig.resources.append(f"{SECRETS[:-1]}, indexers: [{{name: byTime, fieldPath: metadata.labels.at}}]}}")
    return rig


def test_a_call_reads_one_moment_however_the_cache_goes_on(reading, config_map) -> None:
    """By list, by key, by index and by iteration; a lister beside it has the newest state."""
    reading.handler("twice", rest=INCLUDES)
    runs = reading.run(READS_TWICE, objects=[secret("a", at="early"), config_map("m")])
    until("the call has begun", lambda: len(reading.told("lister")) == 1)
    store = runs.sandbox
    store.patch("Secret", "a", {"metadata": {"labels": {"at": "late"}}}, namespace="default")
    store.create(secret("b", at="late"))
    until("the cache goes on", lambda: len(runs.lister("secrets")) == 2)
    reading.board.open_gate("changed")
    runs.wait_idle()
    early, late = [("a", "early")], [("a", "late"), ("b", "late")]
    assert reading.told("snapshot") == [("snapshot", early)] * 2
    assert reading.told("lister") == [("lister", early), ("lister", late)]
    assert reading.told("by key") == [("by key", "early", False, 1)]
    assert reading.told("iterated") == [("iterated", ["a"])]
    assert reading.told("by index") == [("by index", ["a"], ["early"])]


def test_handlers_of_every_mode_and_schedules_include_snapshots(reading, config_map) -> None:
    """`def` and `async def`, changes, keys and times."""
    reading.handler("later", rest=INCLUDES)
    reading.handler("keyed", rest=f"mode: Reconcile, {INCLUDES}")
    reading.more = '  schedules: [{name: tick, every: 1s, entryPoint: "handlers:on_schedule", '
    reading.more += f"{INCLUDES}}}]\n"
    reading.run(READS_TWICE, objects=[secret("a", at="early"), config_map("m")])
    until("all were called", lambda: all(reading.told(each) for each in ("async", "reconciled", "scheduled")))
    seen = [("a", "early")]
    assert reading.told("async") == [("async", seen)]
    assert reading.told("reconciled") == [("reconciled", "m", seen)]
    assert reading.told("scheduled")[0] == ("scheduled", seen)


def test_a_key_that_a_change_of_a_snapshot_leads_to_sees_that_change(reading, config_map) -> None:
    """A snapshot is taken when the call begins: it has at least what led to the call."""
    mapped = "{resourceRef: {name: secrets}, mapTo: {label: for}}"
    reading.handler("keyed", rest=f"mode: Reconcile, watches: [{mapped}], {INCLUDES}")
    runs = reading.run(READS_TWICE, objects=[config_map("m")])
    runs.wait_idle()
    for number in range(20):
        runs.sandbox.create(secret(f"s{number}", at=str(number), **{"for": "m"}))
    until("the last one is seen", lambda: len(reading.told()[-1][2]) == 20)
    runs.wait_idle()
    # The key was reconciled once for each, or for several together; never with fewer than before.
    sizes = [len(seen) for _, _, seen in reading.told("reconciled")]
    assert sizes == sorted(sizes)


def test_a_reconciler_that_includes_its_own_resource_has_one_view_of_it(rig, config_map) -> None:
    """`request.obj` is the object of the snapshot."""
    rig.handler("own", rest="mode: Reconcile, includeSnapshotsFrom: [maps]")
    runs = rig.run(
        "from blackboard import tell as note\n"
        "def own(request, ctx):\n"
        "    mine = ctx.snapshots['maps'].get(request.key)\n"
        "    note('same', mine == request.obj)\n",
        objects=[config_map("m")],
    )
    for number in range(10):
        runs.sandbox.patch("ConfigMap", "m", {"data": {"n": str(number)}}, namespace="default")
    runs.sandbox.delete("ConfigMap", "m", "default")
    until("it is gone", lambda: not len(runs.lister("maps")))
    runs.wait_idle()
    assert set(rig.told()) == {("same", True)}


def test_a_name_that_is_not_included_is_named(reading, config_map) -> None:
    """With what is: the handler's list in the manifest has to grow."""
    reading.handler("wrong", rest=f"{INCLUDES}, retry: {{maxAttempts: 1}}")
    runs = reading.run("def wrong(obj, ctx): ctx.snapshots['maps']\n", objects=[config_map("m")])
    until("it has failed", lambda: runs.handler("wrong").failed == 1)
    assert "name it in includeSnapshotsFrom, which has: secrets" in runs.handler("wrong").last_error


def test_a_reload_may_add_and_remove_a_snapshot(reading, config_map) -> None:
    """An edit of the list takes effect at the next call, and the plan says so."""
    reading.handler("later")
    code = READS_TWICE.replace('_seen(ctx.snapshots["secrets"])', "sorted(ctx.snapshots)")
    runs = reading.run(code, objects=[secret("a", at="early"), config_map("m")])
    runs.wait_idle()
    reading.handlers = []
    reading.handler("later", rest=INCLUDES)
    reading.write()
    assert "~handler later (includeSnapshotsFrom)" in runs.reload().line
    runs.sandbox.create(config_map("n"))
    until("it is called", lambda: len(reading.told()) == 2)
    assert reading.told() == [("async", []), ("async", ["secrets"])]


@pytest.mark.thorough
def test_a_snapshot_is_never_a_mixture_of_two_lists(reading, config_map) -> None:
    """A list is put into the cache in slices. The first one leads to a key, whose call waits for the last."""
    mapped = "{resourceRef: {name: secrets}, mapTo: {label: for}}"
    reading.handler("total", rest=f"mode: Reconcile, watches: [{mapped}], {INCLUDES}")
    many = [secret(f"s{number:04}", at="0", **{"for": "m"}) for number in range(2000)]
    runs = reading.run(
        "from blackboard import tell as note\n"
        "def total(request, ctx): note({each.labels['at'] for each in ctx.snapshots['secrets']})\n",
        objects=[config_map("m"), *many],
    )
    runs.wait_idle(60.0)
    sandbox, faults = runs.sandbox, runs.sandbox.faults
    # The watch is lost, everything changes, and the history is forgotten: only a list shows what has changed.
    faults.refuse(503, Match(resource="secrets"))
    faults.cut_watches()
    for each in many:
        sandbox.patch("Secret", each["metadata"]["name"], {"metadata": {"labels": {"at": "1"}}})
    faults.compact()
    faults.clear()
    until("the new list is seen", lambda: reading.told()[-1] == ({"1"},), timeout=60.0)
    runs.wait_idle(60.0)
    assert runs.resource("secrets").relist_differences.modified == len(many)
    assert [seen for (seen,) in reading.told() if len(seen) != 1] == []
