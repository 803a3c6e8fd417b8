"""SharedIndexInformer: what a listener hears of a source, and what stands in the cache meanwhile."""

import asyncio
from collections.abc import Sequence

import pytest

from declctl.decoding import Projection
from declctl.errors import CacheError, Forbidden, NotFound, NotSynced, Unreachable
from declctl.informer import FakeControllerSource, ResourceEventHandlerFuncs, SharedIndexInformer, field_index
from declctl.informer.queues.real_fifo import Replacement
from declctl.kit import ManualClock
from declctl.objects import (
    ChangeReason,
    Delta,
    DeltaType,
    EventType,
    FieldPath,
    KubeObject,
    Notification,
    ObjectView,
)
from tests.rooms.informer.shapes import Recorder, made, pod, record, recreate_unseen, rest, running

QUEUES = pytest.mark.parametrize("queue", ["RealFIFO", "DeltaFIFO"])


@pytest.mark.client_go(171, "isInInitialList", "Core guarantee")
@QUEUES
def test_a_listener_hears_what_is_there_and_then_what_happens(queue):
    """The first list comes as initial adds, then each change with its reason (client-go 171)."""
    source, informer, clock = made(queue=queue)
    listener = Recorder()
    informer.add_listener(listener)
    source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            source.add(pod("b"))
            source.modify(pod("a"))
            source.delete("demo/b")
            await rest(clock)

    asyncio.run(scenario())
    told = {(str(n.type), n.key, n.initial, str(n.reason)) for n in listener.told}
    assert told == {
        ("Added", "demo/a", True, "Initial"),
        ("Added", "demo/b", False, "Watch"),
        ("Modified", "demo/a", False, "Watch"),
        ("Deleted", "demo/b", False, "Watch"),
    }
    assert listener.faults == []
    assert all(n.received_at == clock.now().timestamp() for n in listener.told)


@pytest.mark.client_go(172, "Core guarantee")
@QUEUES
def test_the_cache_is_ahead_of_the_listener(queue):
    """When a listener hears of a change, store and indexes have it already (client-go 172)."""
    seen: list[tuple[str, str, list[str]]] = []

    class Looking:
        def add_all(self, notifications: Sequence[Notification]) -> None:
            for n in notifications:
                held = informer.indexer.get_by_key(n.key)
                nodes = [r.key for r in informer.indexer.by_index("node", "n2")]
                seen.append((str(n.type), held.resource_version if held else "", nodes))

    source, informer, clock = made(queue=queue, indexers={"node": field_index("spec.nodeName")})
    informer.add_listener(Looking())

    async def scenario():
        async with running(informer, clock):
            source.add(pod("a", node="n1"))
            await rest(clock)
            source.modify(pod("a", node="n2"))
            await rest(clock)
            source.delete("demo/a")
            await rest(clock)

    asyncio.run(scenario())
    assert seen == [("Added", "1", []), ("Modified", "2", ["demo/a"]), ("Deleted", "", [])]


@pytest.mark.client_go("HasSynced (informer)")
@QUEUES
def test_an_empty_list_is_a_synced_cache(queue):
    """Where there is nothing, the cache has synced as soon as the server has said so (client-go 29)."""
    _, informer, clock = made(queue=queue)

    async def scenario():
        before = informer.has_synced
        async with running(informer, clock):
            return before, informer.has_synced

    assert asyncio.run(scenario()) == (False, True)


@pytest.mark.client_go("Delete+recreate gap")
@QUEUES
def test_an_object_that_was_made_anew_is_two_changes(queue):
    """Deleted and created again while the watch was away: a tombstone and an add, not an update."""
    source, informer, clock = made(queue=queue)
    listener = Recorder()
    informer.add_listener(listener)
    source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            listener.clear()
            await recreate_unseen(source, clock)

    asyncio.run(scenario())
    assert listener.lines() == ["Deleted demo/a", "Added demo/a"]
    gone, come = listener.told
    assert gone.final_state_unknown
    assert gone.record.uid != come.record.uid
    assert not come.initial
    assert gone.reason == come.reason == ChangeReason.RELIST


@pytest.mark.client_go(171, "isInInitialList", "Tombstones")
@QUEUES
def test_a_missed_change_is_found_and_a_missed_delete_is_a_tombstone(queue):
    """After a gap only what differs is told, each kind of difference in its form (client-go 17, 179)."""
    source, informer, clock = made(queue=queue)
    listener = Recorder()
    informer.add_listener(listener)
    for name in ("same", "changed", "gone"):
        source.add(pod(name))

    async def scenario():
        async with running(informer, clock):
            listener.clear()
            source.cut()
            source.modify(pod("changed"))
            source.delete("demo/gone")
            source.add(pod("new"))
            source.compact()
            await clock.advance(5)
            return informer.statistics()

    figures = asyncio.run(scenario())
    assert sorted(listener.lines()) == ["Added demo/new", "Deleted demo/gone", "Modified demo/changed"]
    assert {n.reason for n in listener.told} == {ChangeReason.RELIST}
    tombstones = [n for n in listener.told if n.final_state_unknown]
    assert [(n.key, n.record.resource_version) for n in tombstones] == [("demo/gone", "3")]
    assert (figures.relists, figures.objects) == (1, 3)


@pytest.mark.client_go(305, "Unchanged-RV suppression")
@QUEUES
def test_what_comes_again_unchanged_tells_nobody(queue):
    """The same version of an object again is no change; the store keeps the record that it has."""
    source, informer, clock = made(queue=queue)
    listener = Recorder()
    informer.add_listener(listener)
    stored = source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            listener.clear()
            held = informer.indexer.get_by_key("demo/a")
            source.replay(EventType.MODIFIED, stored)
            source.replay(EventType.ADDED, stored)
            await rest(clock)
            return informer.indexer.get_by_key("demo/a") is held

    assert asyncio.run(scenario())
    assert listener.told == []


def test_a_delete_of_the_unknown_tells_nobody():
    """A server that deletes what was never seen is believed and not passed on."""
    source, informer, clock = made()
    listener = Recorder()
    informer.add_listener(listener)

    async def scenario():
        async with running(informer, clock):
            metadata = {"uid": "never", "resourceVersion": "7"}
            source.replay(EventType.DELETED, pod("never-seen", **metadata))
            source.add(pod("a"))
            await rest(clock)

    asyncio.run(scenario())
    assert listener.lines() == ["Added demo/a"]


def test_a_change_of_the_unknown_is_an_add():
    """An update of what was never seen is told as an add, which is what it is to the listener."""
    source, informer, clock = made()
    listener = Recorder()
    informer.add_listener(listener)

    async def scenario():
        async with running(informer, clock):
            source.replay(EventType.MODIFIED, pod("a", uid="u", resourceVersion="7"))
            await rest(clock)

    asyncio.run(scenario())
    assert listener.lines() == ["Added demo/a"]


def test_a_second_add_is_an_update_or_another_object():
    """The server says `added` again: with the same uid that is an update, with another one two changes."""
    source, informer, clock = made()
    listener = Recorder()
    informer.add_listener(listener)

    async def scenario():
        async with running(informer, clock):
            for uid, version in (("one", "5"), ("one", "6"), ("two", "7")):
                source.replay(EventType.ADDED, pod("a", uid=uid, resourceVersion=version))
            await rest(clock)

    asyncio.run(scenario())
    assert listener.lines() == ["Added demo/a", "Modified demo/a", "Deleted demo/a", "Added demo/a"]
    assert listener.faults == []


def test_what_the_transform_drops_goes_out_of_scope():
    """An object that no longer passes the transform is a delete that says so, with its last state here."""

    def only_mine(obj: KubeObject) -> KubeObject | None:
        return obj if obj["spec"].get("nodeName") == "mine" else None

    source = FakeControllerSource(projection=Projection(api_version="v1", kind="Pod", transform=only_mine))
    _, informer, clock = made(source)
    listener = Recorder()
    informer.add_listener(listener)
    source.add(pod("a", node="mine"))
    source.add(pod("b", node="other"))

    async def scenario():
        async with running(informer, clock):
            source.modify(pod("a", node="other"))
            source.modify(pod("b", node="other"))
            source.modify(pod("a", node="mine"))
            await rest(clock)

    asyncio.run(scenario())
    assert listener.lines() == ["Added demo/a", "Deleted demo/a", "Added demo/a"]
    gone = listener.told[1]
    assert gone.reason is ChangeReason.OUT_OF_SCOPE
    assert not gone.final_state_unknown
    assert ObjectView(gone.record)["spec"] == {"nodeName": "mine"}


@pytest.mark.client_go("Late joiner", "isInInitialList")
@QUEUES
def test_a_late_joiner_hears_the_cache_and_then_the_rest(queue):
    """Who comes late hears each object once, and misses nothing after that (client-go 192, 202)."""
    source, informer, clock = made(queue=queue)
    source.add(pod("a"))
    late, live_only = Recorder(), Recorder()

    async def scenario():
        async with running(informer, clock):
            first = informer.add_listener(late)
            second = informer.add_listener(live_only, initial=False)
            synced = (first.has_synced, second.has_synced)
            source.modify(pod("a"))
            source.add(pod("b"))
            await rest(clock)
            return synced

    assert asyncio.run(scenario()) == (True, True)
    assert late.lines() == ["Added demo/a", "Modified demo/a", "Added demo/b"]
    assert [n.initial for n in late.told] == [True, False, False]
    assert live_only.lines() == ["Modified demo/a", "Added demo/b"]


@pytest.mark.client_go(202, "Late joiner")
@pytest.mark.parametrize("accompanied", [False, True])
@pytest.mark.parametrize("steps", range(4))
def test_who_joins_in_the_middle_of_a_first_list_hears_each_object_once(steps, accompanied):
    """Whether others listened meanwhile or not: what nobody was told of, the cache has (client-go 202)."""
    _, informer, clock = made(indexers={"node": field_index("spec.nodeName")})
    records = [record(f"p{n}", node=f"n{n % 3}") for n in range(1700)]
    first, late = Recorder(), Recorder()

    async def scenario():
        if accompanied:
            informer.add_listener(first)
        work = informer.process(Replacement(records, "9", True))
        for _ in range(steps):
            next(work)
        informer.add_listener(late)
        for _ in work:
            await asyncio.sleep(0)
        await rest(clock)
        for _ in informer.process([Delta(DeltaType.UPDATED, "demo/p5", record("p5", 7))]):
            pass

    asyncio.run(scenario())
    everything = sorted([*(f"Added {each.key}" for each in records), "Modified demo/p5"])
    assert sorted(late.lines()) == everything
    assert sorted(first.lines()) == (everything if accompanied else [])
    assert late.faults == first.faults == []
    assert informer.statistics().processor.distributed == len(everything)
    assert len(informer.get_lister(require_sync=False).by_index("node", "n1")) == 567


@pytest.mark.client_go("HasSynced (informer)")
def test_a_registration_from_before_the_first_list_syncs_with_it():
    """A listener that waits for the first list has synced when the cache has, not before (client-go 192)."""
    source, informer, clock = made()
    source.add(pod("a"))

    async def scenario():
        registration = informer.add_listener(Recorder())
        source.silent = True
        before = registration.has_synced
        async with running(informer, clock):
            return before, registration.has_synced, registration.synced.is_open

    assert asyncio.run(scenario()) == (False, True, True)


@pytest.mark.client_go("Resync per handler")
@QUEUES
def test_a_resync_replays_the_cache_to_whom_it_is_due(queue):
    """A resync tells the cache again to those that asked, and asks the server nothing (client-go 63)."""
    source, informer, clock = made(queue=queue, resync_period=10)
    by_default, often, never = Recorder(), Recorder(), Recorder()
    informer.add_listener(by_default)
    informer.add_listener(often, resync_period=5)
    informer.add_listener(never, resync_period=0)
    source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            await clock.advance(16)
            return len(source.requests)

    assert asyncio.run(scenario()) == 1
    assert by_default.lines() == ["Added demo/a", "Resync demo/a"]
    assert often.lines() == ["Added demo/a"] + ["Resync demo/a"] * 3
    assert never.lines() == ["Added demo/a"]
    assert {n.reason for n in often.told[1:]} == {ChangeReason.RESYNC}


def test_a_resync_on_demand_is_for_one_listener():
    """What a single listener asks for the others do not hear."""
    source, informer, clock = made()
    one, other = Recorder(), Recorder()
    informer.add_listener(one)
    informer.add_listener(other)
    source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            informer.resync_now(one)
            await rest(clock)

    asyncio.run(scenario())
    assert one.lines() == ["Added demo/a", "Resync demo/a"]
    assert other.lines() == ["Added demo/a"]


@pytest.mark.client_go(191, "Per-handler sequencing")
def test_a_handler_of_the_library_is_told_in_its_own_thread():
    """A handler hears the cache, its registration says when it is through, and removing it ends it."""
    source, informer, clock = made()
    source.add(pod("a"))
    added: list[tuple[str, bool]] = []
    handler = ResourceEventHandlerFuncs(add=lambda obj, initial: added.append((obj.name, initial)))

    async def scenario():
        async with running(informer, clock):
            registration = informer.add_event_handler(handler)
            await asyncio.wait_for(registration.synced.wait(), 5)
            informer.remove_event_handler(registration)
            source.add(pod("b"))
            await rest(clock)
            return registration.has_synced, len(informer.processor)

    assert asyncio.run(scenario()) == (True, 0)
    assert added == [("a", True)]


@pytest.mark.client_go("Run twice", "Add after stop")
def test_it_runs_once_and_nobody_joins_it_after_its_end():
    """An informer that was started can't be started again, and one that has ended says so."""
    _, informer, clock = made()

    async def scenario():
        async with running(informer, clock):
            with pytest.raises(CacheError, match="pods"):
                await informer.run()
            return informer.is_stopped

    assert asyncio.run(scenario()) is False
    assert informer.is_stopped
    with pytest.raises(CacheError, match="stopped"):
        informer.add_listener(Recorder())


@pytest.mark.client_go(193)
def test_stopping_leaves_nothing_behind():
    """When the informer ends, its watch is closed and no task is left (client-go 193)."""
    source, informer, clock = made()
    informer.add_listener(Recorder(), resync_period=5)

    async def scenario():
        async with running(informer, clock):
            informer.add_event_handler(ResourceEventHandlerFuncs())
            open_then = source.open_watches
        await clock.settle()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        return open_then, source.open_watches, left

    assert asyncio.run(scenario()) == (1, 0, set())


@pytest.mark.client_go(93, 98, "AddIndexers late")
def test_an_index_can_be_added_to_a_running_informer():
    """A new index is complete at once, and follows what happens; removed, it is unknown (client-go 93)."""
    source, informer, clock = made()
    source.add(pod("a", node="n1"))

    async def scenario():
        async with running(informer, clock):
            informer.add_indexers({"name": lambda obj: [obj.name]})
            before = informer.lister.by_index("name", "a")
            source.add(pod("b"))
            await rest(clock)
            after = informer.lister.index_values("name")
            informer.remove_indexers(["name"])
            return [v.name for v in before], sorted(after), informer.lister.index_names()

    assert asyncio.run(scenario()) == (["a"], ["a", "b"], [])


@pytest.mark.client_go("Informer identity / metrics")
def test_statistics_say_how_it_is():
    """Status shows what is cached, what came, and what is wrong with an index."""

    def faulty(obj: ObjectView) -> list[str]:
        return [obj["spec"]["nodeName"].upper(), obj["nothing"]]

    source, informer, clock = made(indexers={"faulty": faulty})
    source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            source.modify(pod("a", node="n2"))
            source.bookmark()
            await clock.advance(3)
            return informer.statistics()

    figures = asyncio.run(scenario())
    assert (figures.synced, figures.state, figures.objects, figures.error) == (True, "Watching", 1, None)
    assert figures.bytes == sum(len(record.frame) for record in informer.indexer.list())
    assert (figures.lists, figures.watches, figures.relists) == (1, 1, 0)
    assert figures.resource_version == informer.last_sync_resource_version == "2"
    assert figures.events == {"MODIFIED": 1, "BOOKMARK": 1}
    assert figures.last_event_age == 3.0
    faults, last = figures.index_faults["faulty"]
    assert faults == 2
    assert "KeyError" in str(last)


def test_statistics_say_that_a_kind_is_missing_and_start_it_when_it_comes():
    """A kind that the server does not have is named, and is watched soon after it appears."""
    source, informer, clock = made()
    missing = NotFound(404, "NotFound", "the server could not find the requested resource")
    source.fail_next(missing, times=8)
    source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            before = informer.statistics()
            await clock.advance(80)
            return before, informer.statistics()

    before, after = asyncio.run(scenario())
    assert before.missing
    assert not before.synced
    assert "could not find" in str(before.error)
    assert (after.missing, after.error, after.synced, after.objects) == (False, None, True, 1)


def test_a_projection_can_be_exchanged_while_it_runs():
    """A reload that indexes another path decodes it from then on, finds all, and nobody hears of it."""
    source, informer, clock = made()
    listener = Recorder()
    informer.add_listener(listener)
    source.add(pod("a", node="n1"))

    async def scenario():
        async with running(informer, clock):
            listener.clear()
            path = FieldPath.parse("spec.hostname")
            informer.source.projection = Projection(api_version="v1", kind="Pod", paths=[path])
            informer.add_indexers(
                {"node": field_index("spec.nodeName"), "host": field_index("spec.hostname")}
            )
            source.add(pod("b", node="n1"))
            await rest(clock)
            source.cut(Unreachable("reset"))
            source.compact()
            await clock.advance(5)
            return sorted(r.key for r in informer.indexer.by_index("node", "n1"))

    assert asyncio.run(scenario()) == ["demo/a", "demo/b"]
    assert listener.lines() == ["Added demo/b"]


def test_a_fault_is_told_to_whom_asked_for_it():
    """Whoever passes `on_fault` hears of each fault of the watch (client-go 180)."""
    faults: list[Exception] = []
    source, clock = FakeControllerSource(), ManualClock()
    informer = SharedIndexInformer(source, name="pods", clock=clock, on_fault=faults.append)
    refused = Unreachable("connection refused")
    source.fail_next(refused)

    async def scenario():
        async with running(informer, clock):
            await clock.advance(5)

    asyncio.run(scenario())
    assert faults == [refused]


def happen(informer, delta):
    """Something comes out of the queue."""
    for _ in informer.process([delta]):
        raise AssertionError("one change is one step")


@pytest.mark.guarantee("G18")
@pytest.mark.client_go("Late joiner")
def test_who_joins_later_hears_the_cache_as_it_is_then():
    """Nothing is told at once; what changes until its turn comes is told once, as it is then."""
    _, informer, clock = made()
    late = Recorder()

    async def scenario():
        happen(informer, Delta(DeltaType.ADDED, "demo/a", record("a", 1)))
        happen(informer, Delta(DeltaType.ADDED, "demo/b", record("b", 2)))
        registration = informer.add_listener(late, deferred=True)
        happen(informer, Delta(DeltaType.UPDATED, "demo/a", record("a", 3)))
        happen(informer, Delta(DeltaType.DELETED, "demo/b", record("b", 4)))
        happen(informer, Delta(DeltaType.ADDED, "demo/c", record("c", 5)))
        assert registration.is_joining
        assert late.told == []
        await rest(clock)
        assert not registration.is_joining
        happen(informer, Delta(DeltaType.UPDATED, "demo/c", record("c", 6)))

    asyncio.run(scenario())
    assert late.lines() == ["Added demo/a", "Added demo/c", "Modified demo/c"]
    assert [n.record.resource_version for n in late.told] == ["3", "5", "6"]
    assert late.faults == []


@QUEUES
def test_an_informer_that_is_held_takes_in_nothing(queue):
    """Neither cache nor listeners see what the server tells; afterwards nothing is missing."""
    source, informer, clock = made(queue=queue)
    source.add(pod("a"))
    listener = Recorder()

    async def scenario():
        informer.add_listener(listener)
        async with running(informer, clock):
            with informer.paused(), informer.paused():
                source.add(pod("b"))
                await rest(clock)
                before = listener.lines(), list(informer.indexer.known())
            at_once = listener.lines()
            await rest(clock)
            return before, at_once

    before, at_once = asyncio.run(scenario())
    assert before == (["Added demo/a"], ["demo/a"])
    assert at_once == ["Added demo/a"]  # whoever held it still sees the world as it was
    assert listener.lines() == ["Added demo/a", "Added demo/b"]
    assert list(informer.indexer.known()) == ["demo/a", "demo/b"]


def forbid(source: FakeControllerSource) -> None:
    for verb in ("list", "watch"):
        source.fail_next(Forbidden(403, "Forbidden", "pods is forbidden"), verb=verb, times=1000)


@QUEUES
def test_a_cache_is_read_once_it_has_synced_and_from_then_on(queue):
    """Before the first list a read raises and says why; through an outage it gives what is known."""
    source, informer, clock = made(queue=queue)
    source.add(pod("a"))
    lister, unchecked = informer.lister, informer.get_lister(require_sync=False)
    with pytest.raises(NotSynced, match="it was not started"):
        lister.get("demo/a")
    assert unchecked.get("demo/a") is None

    async def scenario():
        forbid(source)
        async with running(informer, clock):
            with pytest.raises(NotSynced, match="pods is forbidden"):
                lister.list()
            source.calm()
            await clock.advance(120.0)
            assert [view.name for view in lister.list()] == ["a"]
            source.cut()
            source.compact()
            forbid(source)
            await clock.advance(120.0)
            assert informer.statistics().forbidden
            assert [view.name for view in lister.list()] == ["a"]
        assert [view.name for view in lister.list()] == ["a"]

    asyncio.run(scenario())
