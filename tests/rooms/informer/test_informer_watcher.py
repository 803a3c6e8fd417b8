"""InformerWatcher: an informer that is read as a watch."""

import asyncio
import contextlib

import pytest

from declctl.informer import FakeControllerSource, SharedIndexInformer, field_index
from declctl.informer.watches import InformerWatcher, informer_watcher
from declctl.objects import EventType
from tests.rooms.informer.shapes import pod, rest, running


@pytest.fixture
def source() -> FakeControllerSource:
    source = FakeControllerSource()
    source.add(pod("a", node="node-1"))
    source.add(pod("b"))
    return source


@contextlib.asynccontextmanager
async def watching(source, clock, **more):
    async with informer_watcher(source, clock=clock, **more) as watcher:
        await rest(clock)
        yield watcher


async def read(watcher, count):
    """So many events, as `ADDED a`."""
    events = [await asyncio.wait_for(anext(watcher), 30) for _ in range(count)]
    return [f"{event.type} {event.obj.name}" for event in events]


@pytest.mark.client_go(225, 226, "Retry watcher / informer watcher")
async def test_what_is_there_comes_first_then_what_happens(source, clock):
    """Read like a watch, in the order of the server, also between objects; its cache can be asked, too."""
    async with watching(source, clock, indexers={"node": field_index("spec.nodeName")}) as watcher:
        assert [obj.name for obj in watcher.lister.by_index("node", "node-1")] == ["a"]
        source.add(pod("c"))
        source.modify(pod("a", labels={"app": "web"}))
        source.delete("demo/b")
        source.modify(pod("c", labels={"app": "web"}))
        await rest(clock)
        events = ["ADDED a", "ADDED b", "ADDED c", "MODIFIED a", "DELETED b", "MODIFIED c"]
        assert await read(watcher, 6) == events


@pytest.mark.client_go(226)
async def test_a_missed_delete_comes_with_the_last_known_object(source, clock):
    """The watch expired while the pod was deleted: the list does not have it, the event has all of it."""
    async with watching(source, clock) as watcher:
        await read(watcher, 2)
        source.silent = True
        source.delete("demo/a")
        source.compact()
        source.silent = False
        source.cut()
        await clock.advance(60)
        event = await asyncio.wait_for(anext(watcher), 5)
        assert (event.type, event.obj.name) == (EventType.DELETED, "a")
        assert event.obj["spec"] == {"nodeName": "node-1"}


@pytest.mark.client_go(225)
async def test_it_ends_with_events_that_nobody_reads(source, clock):
    """Stopped with much pending, nothing is left: no task, no open watch, nothing to be read."""
    before = asyncio.all_tasks()
    async with watching(source, clock) as watcher:
        for number in range(100):
            source.add(pod(f"p{number}"))
        await rest(clock)
        first = await read(watcher, 1)
        await watcher.stop()
        await watcher.stop()
        left = [event async for event in watcher]
    await rest(clock)
    assert (first, left, asyncio.all_tasks() - before) == (["ADDED a"], [], set())
    assert source.open_watches == 0


async def test_stopping_ends_whoever_waits_for_an_event(source, clock):
    """The reader's loop ends as if there were no more events."""
    async with watching(source, clock) as watcher:
        reader = asyncio.create_task(_all(watcher))
        await rest(clock)
        await watcher.stop()
        assert (await asyncio.wait_for(reader, 5)) == ["a", "b"]


async def _all(watcher):
    return [event.obj.name async for event in watcher]


async def test_a_shared_informer_can_be_watched_and_goes_on(source, clock):
    """Watching what somebody else runs costs no list, and ending the watch ends nothing else."""
    informer = SharedIndexInformer(source, name="pods", clock=clock)
    async with running(informer, clock):
        async with InformerWatcher(informer, clock=clock) as watcher:
            await rest(clock)
            seen = await read(watcher, 2)
        await rest(clock)
        assert seen == ["ADDED a", "ADDED b"]
        assert (informer.is_stopped, source.open_watches, len(informer.processor)) == (False, 1, 0)


async def test_it_ends_when_the_informer_ends(source, clock):
    """Nobody waits for events of a shared informer that was stopped."""
    informer = SharedIndexInformer(source, name="pods", clock=clock)
    async with running(informer, clock):
        watcher = await InformerWatcher(informer, clock=clock).__aenter__()
        reader = asyncio.create_task(_all(watcher))
        await rest(clock)
    assert (await asyncio.wait_for(reader, 5)) == ["a", "b"]


async def test_what_ends_the_informer_is_raised_to_the_reader(source, clock):
    """A fault of the machinery is not taken for the end of events."""

    def broken(notifications):
        raise ZeroDivisionError("as nothing in the machinery may do")

    with pytest.raises(ZeroDivisionError, match="nothing in the machinery"):
        async with watching(source, clock) as watcher:
            await read(watcher, 2)
            watcher.informer.processor.distribute = broken
            source.add(pod("c"))
            await asyncio.wait_for(anext(watcher), 5)
