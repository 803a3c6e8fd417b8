"""Until: waiting for something to happen to objects."""

import asyncio

import pytest

from declctl.errors import DeclctlError, TimedOut, WatchEnded
from declctl.informer.watches import ObjectEvent, until, until_with_sync, until_without_retry
from declctl.objects import EventType, ObjectView
from tests.rooms.informer.shapes import pod, record, rest


def added(event):
    return event.type is EventType.ADDED


def modified(event):
    return event.type is EventType.MODIFIED


def deleted(event):
    return event.type is EventType.DELETED


async def happening(*kinds):
    for version, kind in enumerate(kinds, 1):
        yield ObjectEvent(kind, ObjectView(record(version=version)))


@pytest.mark.client_go(227, "Retry watcher / informer watcher")
async def test_conditions_are_met_in_order_each_by_a_later_event(source, clock):
    """Added twice is two events: one event never meets two conditions.

    What happened before its turn does not count; without conditions there is nothing to wait for, as in
    client-go.
    """
    events = [EventType.DELETED, EventType.ADDED, EventType.MODIFIED, EventType.ADDED, EventType.DELETED]
    event = await until_without_retry(happening(*events), added, added, deleted)
    assert (event.type, event.obj.resource_version) == (EventType.DELETED, "5")
    with pytest.raises(WatchEnded, match="condition 2 of 2"):
        await until_without_retry(happening(EventType.DELETED, EventType.ADDED), added, deleted)
    assert await until("1", source, clock=clock) is None
    assert await until_with_sync(source, None, clock=clock) is None


@pytest.mark.client_go(227)
async def test_a_stream_that_ends_a_time_limit_and_a_condition_that_fails_are_told_apart(source, clock):
    """Each of the three is an error of its own, and says how far it came."""

    def fails(event):
        raise ZeroDivisionError("the condition's own")

    with pytest.raises(WatchEnded, match="condition 1 of 1 was not met"):
        await until_without_retry(happening(), added)
    with pytest.raises(ZeroDivisionError, match="the condition's own"):
        await until_without_retry(happening(EventType.ADDED), fails)
    waiting = asyncio.create_task(until("1", source, added, modified, timeout=5, clock=clock))
    await rest(clock)
    source.add(pod("web"))
    await clock.advance(4.9)
    assert not waiting.done()
    await clock.advance(0.2)
    with pytest.raises(TimedOut, match="condition 2 of 2 was not met within 5 s") as told:
        await waiting
    assert isinstance(told.value, TimeoutError)
    assert isinstance(told.value, DeclctlError)
    assert source.open_watches == 0


@pytest.mark.client_go(227)
async def test_until_goes_on_across_closed_watches(source, clock):
    """A server that ends the watch in between is no reason to fail."""
    waiting = asyncio.create_task(until("1", source, added, deleted, timeout=60, clock=clock))
    await rest(clock)
    source.add(pod("web"))
    await rest(clock)
    source.cut()
    source.delete("demo/web")
    await clock.advance(2)
    event = await waiting
    assert (event.type, event.obj.name) == (EventType.DELETED, "web")
    assert source.open_watches == 0


@pytest.mark.client_go(227)
async def test_a_precondition_looks_at_the_synced_cache(source, clock):
    """If it holds already there is nothing to wait for; if not, it is the conditions' turn.

    Without one nothing waits for the sync: what is there counts as added, and may meet the condition.
    """
    event = await until_with_sync(source, None, added, timeout=5, clock=clock)
    assert (event.type, event.obj.name, source.open_watches) == (EventType.ADDED, "first", 0)
    seen = []

    def there(lister):
        seen.append([obj.name for obj in lister.list()])
        return "first" in seen[-1]

    assert await until_with_sync(source, there, deleted, timeout=5, clock=clock) is None
    assert seen == [["first"]]
    empty = lambda lister: not lister.list()  # noqa: E731
    waiting = asyncio.create_task(until_with_sync(source, empty, deleted, timeout=5, clock=clock))
    await rest(clock)
    source.delete("demo/first")
    await rest(clock)
    assert (await waiting).obj.name == "first"


async def test_a_cache_that_does_not_sync_says_why(source, clock):
    """The time limit holds for the sync too, and one reads what the server said."""
    source.streams = False
    source.fail_next(OSError("etcd is away"), verb="list", times=100)
    with pytest.raises(TimedOut, match=r"had not synced \(.*etcd is away\) within 5 s"):
        asked = until_with_sync(source, lambda lister: True, added, timeout=5, clock=clock)
        waiting = asyncio.create_task(asked)
        await clock.advance(6)
        await waiting


async def test_whoever_is_cancelled_leaves_nothing_behind(source, clock):
    """A program that ends while it waits closes its watch."""
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(until("1", source, deleted, timeout=5, clock=clock))
    await rest(clock)
    waiting.cancel()
    await asyncio.wait([waiting])
    await rest(clock)
    assert (waiting.cancelled(), asyncio.all_tasks() - before, source.open_watches) == (True, set(), 0)
