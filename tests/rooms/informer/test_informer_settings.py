"""SharedIndexInformer: resyncs by period, transforms, the handler of faults, and what another uid is."""

import threading
from typing import Any

import pytest

from declctl.errors import CacheError, Unreachable
from declctl.informer import (
    DeletedFinalStateUnknown,
    FakeControllerSource,
    ResourceEventHandlerFuncs,
    SharedIndexInformer,
    field_index,
)
from declctl.kit import ManualClock
from declctl.objects import ChangeReason, KubeObject, ObjectView
from tests.rooms.informer.shapes import (
    Recorder,
    fresh_projection,
    informed,
    made,
    pod,
    recreate_unseen,
    rest,
    running,
)

QUEUES = pytest.mark.parametrize("queue", ["RealFIFO", "DeltaFIFO"])
HALF_A_DAY = 12 * 3600.0


def resyncs(recorder: Recorder) -> list[str]:
    return [line for line in recorder.lines() if line.startswith("Resync")]


@pytest.mark.client_go(116, 174, 175, "Resync per handler", "Resync timer")
@QUEUES
@pytest.mark.parametrize("late_start", [0.0, 1.0])
async def test_each_listener_is_replayed_at_its_own_period(queue, late_start):
    """Never, every 2 s, every 3 s, or at the default of 1 s; also when it starts later than they came.

    The cache is told again; the server is asked nothing (client-go 63).
    """
    source, informer, clock = made(queue=queue, resync_period=1.0)
    recorders = {period: Recorder() for period in (None, 0, 2, 3)}
    source.add(pod("a"))
    seen: list[tuple[float, list[int | None]]] = []
    for period, recorder in recorders.items():
        informer.add_listener(recorder, resync_period=period)
    clock.set(late_start)
    async with running(informer, clock):
        while clock.monotonic() < 1006.0:
            for recorder in recorders.values():
                recorder.clear()
            await clock.advance(1.0)
            heard = [period for period, recorder in recorders.items() if resyncs(recorder)]
            seen.append((clock.monotonic() - 1000.0, heard))
            assert {n.reason for r in recorders.values() for n in r.told} <= {ChangeReason.RESYNC}
        assert len(source.requests) == 1
    expected = [(1.0, []), (2.0, [2]), (3.0, [3]), (4.0, [2]), (5.0, []), (6.0, [2, 3])]
    assert seen == [(at, [None, *periods]) for at, periods in expected[int(late_start) :]]


@pytest.mark.client_go(176, 177, "Resync per handler")
async def test_periods_do_not_bend_each_other():
    """Everybody has the period asked for, before the start and after it; below a second it is a second."""
    _, informer, clock = made(resync_period=HALF_A_DAY)
    asked = (None, 0.0, 60.0, 55.0, 5.0)
    registrations = [informer.add_listener(Recorder(), resync_period=period) for period in asked]
    async with running(informer, clock):
        registrations += [informer.add_listener(Recorder(), resync_period=p) for p in (1.0, 0.2)]
        periods = [registration.period for registration in registrations]
    assert periods == [HALF_A_DAY, 0.0, 60.0, 55.0, 5.0, 1.0, 1.0]


@pytest.mark.client_go("Resync per handler")
async def test_nobody_wakes_up_before_a_resync_is_due():
    """It sleeps until the first of them; who comes with a shorter period is in time all the same."""
    source, informer, clock = made()
    slow, quick = Recorder(), Recorder()
    source.add(pod("a"))
    async with running(informer, clock):
        source.silent = True
        informer.add_listener(slow, resync_period=80.0)
        await clock.settle()
        first = clock.next_wake
        registration = informer.add_listener(quick, resync_period=50.0)
        await clock.settle()
        second = clock.next_wake
        registration.retime(3.0)
        await clock.advance(7.0)
        assert (first, second) == (80.0, 50.0)
    assert len(resyncs(quick)) == 2
    assert resyncs(slow) == []


@pytest.mark.client_go("Resync per handler")
async def test_resyncs_that_overtake_each_other_reach_both():
    """A second one is due while the first still waits in the queue: nobody's is lost."""
    source, informer, clock = made()
    one, other, none = Recorder(), Recorder(), Recorder()
    source.add(pod("a"))
    async with running(informer, clock):
        for recorder, period in ((one, 2.0), (other, 3.0), (none, 0.0)):
            informer.add_listener(recorder, resync_period=period)
        clock.set(2.0)
        assert informer.processor.due()
        clock.set(1.0)
        assert informer.processor.due()
        informer.controller.queue.resync()
        informer.controller.queue.resync()
        await rest(clock)
    assert (len(resyncs(one)), len(resyncs(other)), len(resyncs(none))) == (1, 1, 0)


@pytest.mark.client_go(179, "Unchanged-RV suppression", "Resync per handler")
@QUEUES
async def test_after_a_disruption_only_who_is_due_hears_of_what_has_not_changed(queue):
    """pod2 changed and pod3 came while the watch was away; pod1 is told to nobody but a resync."""
    source, informer, clock = made(queue=queue)
    never, due = Recorder(), Recorder()
    source.add(pod("pod1"))
    source.add(pod("pod2"))
    async with running(informer, clock):
        informer.add_listener(never, resync_period=0)
        informer.add_listener(due, resync_period=4)
        never.clear()
        due.clear()
        source.cut()
        source.modify(pod("pod2"))
        source.add(pod("pod3"))
        source.compact()
        await clock.advance(4.5)
    assert sorted(never.lines()) == ["Added demo/pod3", "Modified demo/pod2"]
    assert set(due.lines()) - set(never.lines()) == {f"Resync demo/pod{n}" for n in (1, 2, 3)}
    assert set(never.lines()) < set(due.lines())


class Transforming:
    """A transform that marks an object, refuses one that is marked, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, obj: KubeObject) -> KubeObject:
        self.calls += 1
        labels = obj["metadata"].setdefault("labels", {})
        if "transformed" in labels:
            raise ValueError("it was transformed already")
        labels["transformed"] = "yes"
        return obj


@pytest.mark.client_go(167, "Transform")
@QUEUES
async def test_everybody_sees_the_transformed_object_and_nothing_else(queue):
    """The store, adds, both sides of an update, and a delete."""
    source, informer, clock = made(queue=queue)
    informer.set_transform(Transforming())
    seen: list[tuple[str, Any]] = []
    source.add(pod("a"))

    async def add(obj: ObjectView, initial: bool) -> None:
        seen.append(("add", obj.labels))

    async def update(old: ObjectView, new: ObjectView) -> None:
        seen.append(("update", (old.labels, new.labels)))

    async def delete(obj: ObjectView | DeletedFinalStateUnknown) -> None:
        seen.append(("delete", obj.obj.labels if isinstance(obj, DeletedFinalStateUnknown) else obj.labels))

    informer.add_event_handler(ResourceEventHandlerFuncs(add=add, update=update, delete=delete))
    async with running(informer, clock):
        stored = [view.labels for view in informer.lister.list()]
        source.modify(pod("a"))
        await rest(clock)
        source.delete("demo/a")
        await rest(clock)
    marked = {"transformed": "yes"}
    assert stored == [marked]
    assert seen == [("add", marked), ("update", (marked, marked)), ("delete", marked)]


@pytest.mark.client_go(143, 168, "Transform")
@QUEUES
@pytest.mark.parametrize("streams", [True, False])
async def test_a_transform_runs_once_for_each_object_and_not_for_a_resync(queue, streams):
    """Many resyncs, a relist that brings nothing new, and readers in another thread meanwhile.

    Where client-go transforms again what it replaces, a transform need not be idempotent here.
    """
    source, informer, clock = made(queue=queue)
    source.streams = streams
    transform = Transforming()
    informer.set_transform(transform)
    for number in range(5):
        source.add(pod(f"p{number}"))
    unmarked: list[str] = []
    stop = threading.Event()

    lister = informer.get_lister(require_sync=False)

    def read() -> None:
        while not stop.is_set():
            unmarked.extend(v.name for v in lister.list() if "transformed" not in v.labels)

    listener = Recorder()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        informer.add_listener(listener, resync_period=1.0)
        async with running(informer, clock):
            await clock.advance(20.0)
            first = transform.calls
            source.cut()
            source.compact()
            await clock.advance(5.0)
    finally:
        stop.set()
        reader.join()
    assert (first, transform.calls, len(resyncs(listener))) == (5, 5, 125)
    assert unmarked == []


@pytest.mark.client_go(182, "Transform")
async def test_a_transform_is_set_before_the_start_or_not_at_all():
    """What it makes of an object is what is held, told and indexed, and it comes too late afterwards.

    It takes the place of the source's own, and what is projected stays. The key stays the server's: by it a
    delete finds the object.
    """

    def rename(obj: KubeObject) -> KubeObject:
        spec = {"nodeName": obj["spec"]["nodeName"].upper()}
        return {"metadata": {"name": f"{obj['metadata']['name']}-renamed"}, "spec": spec}

    projection = fresh_projection().with_transform(lambda obj: None)
    source, informer, clock = made(
        FakeControllerSource(projection=projection), indexers={"node": field_index("spec.nodeName")}
    )
    informer.set_transform(rename)
    listener = Recorder()
    informer.add_listener(listener)
    source.add(pod("a", node="n1"))
    async with running(informer, clock):
        with pytest.raises(CacheError, match="pods was started already: another transform"):
            informer.set_transform(rename)
        [held] = informer.lister.by_index("node", "N1")
        assert [r.values for r in informer.indexer.list()] == [("N1",)]
        source.delete("demo/a")
        await rest(clock)
        assert (str(held.key), held["metadata"]["name"]) == ("demo/a", "a-renamed")
    assert ObjectView(listener.told[0].record)["metadata"]["name"] == "a-renamed"
    assert listener.lines() == ["Added demo/a", "Deleted demo/a"]


@pytest.mark.client_go(173)
async def test_a_transform_may_take_the_metadata_away():
    """The informer works all the same, and its version goes on: what names an object is kept beside it."""
    source, informer, clock = made()
    informer.set_transform(lambda obj: {"spec": obj["spec"]})
    source.add(pod("a"))
    async with running(informer, clock):
        assert informer.indexer.last_store_sync_resource_version == "1"
        source.modify(pod("a"))
        await rest(clock)
        assert informer.indexer.last_store_sync_resource_version == "2"
        source.cut()
        source.advance()
        source.compact()
        await clock.advance(5)
        assert informer.indexer.last_store_sync_resource_version == "3"
        held = [view.to_dict() for view in informer.lister.list()]
    assert held == [{"apiVersion": "v1", "kind": "Pod", "spec": {}}]


@pytest.mark.client_go(180, "Watch error handler of an informer")
@pytest.mark.parametrize("verb", ["watch", "list"])
@pytest.mark.parametrize("is_set", [True, False], ids=["set before the start", "given"])
async def test_the_watch_error_handler_receives_that_very_error(verb, is_set):
    """Given with the informer or set before its start; afterwards it is too late."""
    given: list[Exception] = []
    faults: list[Exception] = []
    source, clock = FakeControllerSource(), ManualClock()
    source.streams = verb == "watch"
    informer = SharedIndexInformer(source, name="pods", clock=clock, on_fault=given.append)
    if is_set:
        informer.set_watch_error_handler(faults.append)
    refused = Unreachable("connection refused")
    source.fail_next(refused, verb=verb)
    async with running(informer, clock):
        await clock.advance(5)
        with pytest.raises(CacheError, match="another watch error handler comes too late"):
            informer.set_watch_error_handler(None)
        assert informer.has_synced
    told, untold = (faults, given) if is_set else (given, faults)
    assert [fault is refused for fault in told if not str(fault).startswith("sendInitial")] == [True]
    assert untold == []


@pytest.mark.client_go("Delete+recreate gap")
@QUEUES
@pytest.mark.parametrize(
    ("uid_change", "told"),
    [("recreate", ["Deleted demo/a", "Added demo/a"]), ("update", ["Modified demo/a"])],
)
async def test_an_object_that_was_made_anew_is_two_changes_or_as_in_client_go_one(queue, uid_change, told):
    """Made again while the watch was away: a tombstone and an add, if one does not ask for an update."""
    async with informed("a", queue=queue, uid_change=uid_change) as i:
        i.listener.clear()
        await recreate_unseen(i.source, i.clock)
    assert i.listener.lines() == told
    first, last = i.listener.told[0], i.listener.told[-1]
    assert last.record.uid == "uid-3"
    assert last.old is None or last.old.uid == "uid-1"
    assert not last.initial
    assert first.reason == last.reason == ChangeReason.RELIST
    assert uid_change == "update" or (first.final_state_unknown and first.record.uid == "uid-1")


@pytest.mark.client_go(169)
@pytest.mark.parametrize("failing", ["", "b", "abc"])
async def test_an_index_that_fails_on_some_of_a_batch_keeps_nobody_from_hearing_all_of_it(failing):
    """A store's writes can't fail halfway: all are stored and told in order, and the fault is counted."""

    def picky(obj: ObjectView) -> list[str]:
        if obj.name in failing:
            raise ValueError(obj.name)
        return [obj.name]

    async with informed(indexers={"picky": picky}) as i:
        for name in ("a", "b", "c"):
            i.source.add(pod(name))
        await i.rest()
        figures = i.informer.statistics()
    assert i.listener.lines() == ["Added demo/a", "Added demo/b", "Added demo/c"]
    assert figures.index_faults.get("picky", (0, None))[0] == len(failing)
    assert sorted(i.informer.lister.index_values("picky")) == sorted({"a", "b", "c"} - set(failing))
