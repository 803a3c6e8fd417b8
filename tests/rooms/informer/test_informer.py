"""SharedIndexInformer: what a listener hears of a source, and what stands in the cache meanwhile."""

from typing import Any

import pytest

from declctl.decoding import Projection
from declctl.errors import Forbidden, NotFound, NotSynced
from declctl.informer import FakeControllerSource
from declctl.objects import ChangeReason, Delta, DeltaType, EventType, KubeObject, ObjectView
from tests.rooms.informer.shapes import Informed, Recorder, informed, made, pod, record, rest

QUEUES = pytest.mark.parametrize("queue", ["RealFIFO", "DeltaFIFO"])


@pytest.mark.client_go(171, "isInInitialList", "Core guarantee")
@QUEUES
async def test_a_listener_hears_what_is_there_and_then_what_happens(queue):
    """The first list comes as initial adds, then each change with its reason (client-go 171)."""
    async with informed("a", queue=queue) as i:
        i.source.add(pod("b"))
        i.source.modify(pod("a"))
        i.source.delete("demo/b")
        await i.rest()
    told = {(str(n.type), n.key, n.initial, str(n.reason)) for n in i.listener.told}
    assert told == {
        ("Added", "demo/a", True, "Initial"),
        ("Added", "demo/b", False, "Watch"),
        ("Modified", "demo/a", False, "Watch"),
        ("Deleted", "demo/b", False, "Watch"),
    }
    assert i.listener.faults == []
    assert all(n.received_at == i.clock.now().timestamp() for n in i.listener.told)


@pytest.mark.client_go("HasSynced (informer)")
@pytest.mark.parametrize("names", [(), ("a",)])
@QUEUES
async def test_cache_and_listener_have_synced_with_the_first_list(queue, names):
    """Not before, and also where there is nothing, as soon as the server has said so (client-go 29, 192)."""
    i = Informed(*names, queue=queue)
    registration = i.informer.add_listener(Recorder())
    i.source.silent = True
    before = (i.informer.has_synced, registration.has_synced)
    async with i.runs():
        after = (i.informer.has_synced, registration.has_synced, registration.synced.is_open)
    assert (before, after) == ((False, False), (True, True, True))


@pytest.mark.client_go(171, "isInInitialList", "Tombstones", "410 while watching")
@pytest.mark.client_go("An expired version", "A delete that is missed across 410")
@QUEUES
async def test_a_missed_change_is_found_and_a_missed_delete_is_a_tombstone(queue):
    """After a gap only what differs is told, each kind of difference in its form (client-go 17, 179)."""
    async with informed("same", "changed", "gone", queue=queue) as i:
        i.listener.clear()
        i.source.cut()
        i.source.modify(pod("changed"))
        i.source.delete("demo/gone")
        i.source.add(pod("new"))
        i.source.compact()
        await i.clock.advance(5)
        figures = i.informer.statistics()
    assert sorted(i.listener.lines()) == ["Added demo/new", "Deleted demo/gone", "Modified demo/changed"]
    assert {n.reason for n in i.listener.told} == {ChangeReason.RELIST}
    tombstones = [n for n in i.listener.told if n.final_state_unknown]
    assert [(n.key, n.record.resource_version) for n in tombstones] == [("demo/gone", "3")]
    assert (figures.relists, figures.objects) == (1, 3)


@pytest.mark.client_go(305, "Unchanged-RV suppression")
@QUEUES
async def test_what_comes_again_unchanged_tells_nobody(queue):
    """The same version of an object again is no change; the store keeps the record that it has."""
    async with informed("a", queue=queue) as i:
        i.listener.clear()
        held = i.informer.indexer.get_by_key("demo/a")
        i.source.replay(EventType.MODIFIED, i.source.objects["demo/a"])
        i.source.replay(EventType.ADDED, i.source.objects["demo/a"])
        await i.rest()
        assert i.informer.indexer.get_by_key("demo/a") is held
    assert i.listener.told == []


async def test_what_the_transform_drops_goes_out_of_scope():
    """An object that no longer passes the transform is a delete that says so, with its last state here."""

    def only_mine(obj: KubeObject) -> KubeObject | None:
        return obj if obj["spec"].get("nodeName") == "mine" else None

    projection = Projection(api_version="v1", kind="Pod", transform=only_mine)
    i = Informed(source=FakeControllerSource(projection=projection))
    i.source.add(pod("a", node="mine"))
    i.source.add(pod("b", node="other"))
    async with i.runs():
        i.source.modify(pod("a", node="other"))
        i.source.modify(pod("b", node="other"))
        i.source.modify(pod("a", node="mine"))
        await i.rest()
    assert i.listener.lines() == ["Added demo/a", "Deleted demo/a", "Added demo/a"]
    gone = i.listener.told[1]
    assert gone.reason is ChangeReason.OUT_OF_SCOPE
    assert not gone.final_state_unknown
    assert ObjectView(gone.record)["spec"] == {"nodeName": "mine"}


@pytest.mark.client_go("Late joiner", "isInInitialList")
@QUEUES
async def test_a_late_joiner_hears_the_cache_and_then_the_rest(queue):
    """Who comes late hears each object once, and misses nothing after that (client-go 192, 202)."""
    late, live_only = Recorder(), Recorder()
    async with informed("a", queue=queue) as i:
        first = i.informer.add_listener(late)
        second = i.informer.add_listener(live_only, initial=False)
        synced = (first.has_synced, second.has_synced)
        i.source.modify(pod("a"))
        i.source.add(pod("b"))
        await i.rest()
        i.informer.resync_now(late)  # what a single listener asks for, the others do not hear
        await i.rest()
    assert synced == (True, True)
    resyncs = ["Resync demo/a", "Resync demo/b"]
    assert late.lines() == ["Added demo/a", "Modified demo/a", "Added demo/b", *resyncs]
    assert [n.initial for n in late.told] == [True, False, False, False, False]
    assert live_only.lines() == ["Modified demo/a", "Added demo/b"]


@pytest.mark.client_go("Informer identity / metrics")
async def test_statistics_say_how_it_is():
    """What is cached, what came, was processed and told, and what is wrong with an index."""

    def faulty(obj: ObjectView) -> list[str]:
        return [obj["spec"]["nodeName"].upper(), obj["nothing"]]

    async with informed("a", indexers={"faulty": faulty}) as i:
        i.source.modify(pod("a", node="n2"))
        i.source.bookmark()
        await i.clock.advance(3)
        figures = i.informer.statistics()
        size = sum(len(each.frame) for each in i.informer.indexer.list())
        version = i.informer.last_sync_resource_version
    assert (figures.name, figures.synced, figures.state, figures.error) == ("pods", True, "Watching", None)
    assert (figures.objects, figures.bytes, figures.last_event_age) == (1, size, 3.0)
    assert (figures.lists, figures.watches, figures.relists, figures.reflector.lists) == (1, 1, 0, 1)
    assert figures.resource_version == version == "2", "as it is, not cut to fit a float"
    assert figures.events == figures.reflector.events == {"MODIFIED": 1, "BOOKMARK": 1}
    assert (figures.controller.queued, figures.controller.entries) == (0, 2)
    processor = figures.processor
    assert (processor.listeners, processor.distributed, processor.faults) == (1, 2, 0)
    faults, last = figures.index_faults["faulty"]
    assert faults == 2
    assert "KeyError" in str(last)


def happen(informer, delta):
    for _ in informer.process([delta]):
        raise AssertionError("one change is one step")


@pytest.mark.guarantee("G18")
@pytest.mark.client_go("Late joiner")
async def test_who_joins_later_hears_the_cache_as_it_is_then():
    """Nothing is told at once; what changes until its turn comes is told once, as it is then."""
    _, informer, clock = made()
    late = Recorder()
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
    assert late.lines() == ["Added demo/a", "Added demo/c", "Modified demo/c"]
    assert [n.record.resource_version for n in late.told] == ["3", "5", "6"]
    assert late.faults == []


async def test_who_waits_for_a_cache_is_called_when_it_has_advanced():
    """With the keys that have changed; for a bookmark and a list without; once more when it has stopped."""
    async with informed("a") as i:
        calls: list[tuple[Any, ...]] = []

        def observe(*what: Any) -> None:
            calls.append((*what, i.informer.version_in(None), i.informer.is_stopped))

        i.informer.observe(observe)
        i.source.add(pod("b"))
        await i.rest()
        version = i.source.resource_version
        assert calls == [(["demo/b"], version, False)]
        i.source.advance()
        i.source.bookmark()
        await i.rest()
        assert calls[1:] == [(None, i.source.resource_version, False)]
        i.informer.request_relist()
        await i.rest()
        relisted = len(calls)
        assert relisted > 2
    assert calls[relisted:] == [(None, i.source.resource_version, True)]


@QUEUES
async def test_an_informer_that_is_held_takes_in_nothing(queue):
    """Neither cache nor listeners see what the server tells; afterwards nothing is missing."""
    async with informed("a", queue=queue) as i:
        with i.informer.paused(), i.informer.paused():
            i.source.add(pod("b"))
            await i.rest()
            assert (i.listener.lines(), list(i.informer.indexer.known())) == (["Added demo/a"], ["demo/a"])
        assert i.listener.lines() == ["Added demo/a"]  # whoever held it still sees the world as it was
        await i.rest()
    assert i.listener.lines() == ["Added demo/a", "Added demo/b"]
    assert list(i.informer.indexer.known()) == ["demo/a", "demo/b"]


@QUEUES
@pytest.mark.parametrize(
    ("fault", "word"),
    [(Forbidden(403, "Forbidden", "no"), "forbidden"), (NotFound(404, "NotFound", "no"), "missing")],
)
async def test_a_cache_is_read_once_it_has_synced_and_from_then_on(queue, fault, word):
    """Before the first list a read raises and says why; through an outage it gives what is known.

    Statistics say whether a resource is forbidden or missing; it is watched soon after it can be.
    """

    def refuse() -> None:
        for verb in ("list", "watch"):
            i.source.fail_next(fault, verb=verb, times=1000)

    i = Informed("a", queue=queue)
    lister, unchecked = i.informer.lister, i.informer.get_lister(require_sync=False)
    with pytest.raises(NotSynced, match="it was not started"):
        lister.get("demo/a")
    assert unchecked.get("demo/a") is None
    refuse()
    async with i.runs():
        with pytest.raises(NotSynced, match=str(fault)):
            lister.list()
        before = i.informer.statistics()
        i.source.calm()
        await i.clock.advance(120.0)
        after = i.informer.statistics()
        assert [view.name for view in lister.list()] == ["a"]
        i.source.cut()
        i.source.compact()
        refuse()
        await i.clock.advance(120.0)
        outage = i.informer.statistics()
        assert [view.name for view in lister.list()] == ["a"]
    assert [view.name for view in lister.list()] == ["a"]
    assert str(fault) in str(before.error)
    assert (after.error, after.objects) == (None, 1)
    states = [(each.forbidden, each.missing, each.synced) for each in (before, after, outage)]
    refused = (word == "forbidden", word == "missing")
    assert states == [(*refused, False), (False, False, True), (*refused, True)]
