"""RetryWatcher: a watch that survives its connection."""

import asyncio
import contextlib

import pytest

from declctl import errors
from declctl.decoding import Projection
from declctl.informer.watches import RetryWatcher
from declctl.objects import EventType, WatchEvent
from tests.rooms.informer.shapes import pod, record, rest

GONE = errors.Expired(410, "Expired", "too old resource version")


class Reader:
    """Reads a watcher in a task of its own; `lines` are what came, as `ADDED a`."""

    def __init__(self, watcher: RetryWatcher) -> None:
        self.lines: list[str] = []
        self.task = asyncio.create_task(self._read(watcher))

    async def _read(self, watcher: RetryWatcher) -> None:
        async for event in watcher:
            self.lines.append(f"{event.type} {event.obj.name}")


@contextlib.asynccontextmanager
async def reading(source, clock, version="1"):
    async with RetryWatcher(source, version, clock=clock) as watcher:
        reader = Reader(watcher)
        await rest(clock)
        yield watcher, reader
        reader.task.cancel()
        await asyncio.wait([reader.task])


@pytest.mark.client_go("Retry watcher / informer watcher")
@pytest.mark.parametrize("version", ["", "0"])
def test_a_version_that_can_not_be_resumed_from_is_refused(source, version):
    """Whoever begins anywhere could not be promised each event once."""
    with pytest.raises(errors.UsageError, match="version"):
        RetryWatcher(source, version)


@pytest.mark.client_go(223, "Retry watcher / informer watcher")
@pytest.mark.parametrize("closed", [1, 2, 4])
async def test_every_event_comes_once_however_often_the_watch_is_closed(source, clock, closed):
    """The next watch goes on from the last event; versions in between, of other objects, don't matter."""
    async with reading(source, clock) as (watcher, reader):
        for number in range(closed):
            source.add(pod(f"p{number}"))
            source.advance()
            await rest(clock)
            source.cut()
            source.modify(pod(f"p{number}"))
            await clock.advance(1)
        await rest(clock)
        lines, version = (reader.lines, watcher.resource_version)
    assert lines == [f"{what} p{number}" for number in range(closed) for what in ("ADDED", "MODIFIED")]
    assert version == source.resource_version
    assert len(source.watches()) == closed + 1
    assert source.lists() == []


@pytest.mark.client_go(223)
async def test_it_begins_after_its_version(source, clock):
    """From a version long ago everything since is told, and nothing of before."""
    for name in ("a", "b", "c"):
        source.advance()
        source.add(pod(name))
    source.delete("demo/b")
    async with reading(source, clock, version="3") as (_, reader):
        assert reader.lines == ["ADDED b", "ADDED c", "DELETED b"]


@pytest.mark.client_go("Retry watcher / informer watcher")
async def test_between_two_watches_lies_a_second(source, clock):
    """A server that closes every watch at once is asked once a second, not in a circle.

    An hour of outage costs about a hundred questions, half a minute apart.
    """
    source.slams = True
    async with reading(source, clock):
        await clock.advance(0.9)
        assert len(source.watches()) == 1
        await clock.advance(0.2)
        assert len(source.watches()) == 2
    source.calm()
    source.requests.clear()
    source.fail_next(errors.Unreachable("connection refused"), times=1000)
    async with reading(source, clock):
        await clock.advance(3600)
    assert 100 < len(source.watches()) < 150


@pytest.mark.client_go(219)
@pytest.mark.parametrize(
    "fault",
    [
        GONE,
        errors.Unreachable("connection refused"),
        errors.ServerError(500, "InternalError", "etcd is away"),
        errors.TooManyRequests(429, "TooManyRequests", "slow down", retry_after=2.0),
        None,  # an empty watch, which is not even opened
    ],
    ids=lambda fault: type(fault).__name__,
)
async def test_a_watch_that_can_not_be_opened_is_tried_again(source, clock, fault, caplog):
    """The watch is opened later, from where it was, and the reader sees nothing of the fault."""
    if fault is None:
        watches = [_nothing, _nothing]
        source.watch = lambda options, _watch=source.watch: watches.pop()() if watches else _watch(options)
    else:
        source.fail_next(fault, times=3)
    async with reading(source, clock) as (_, reader):
        await clock.advance(20)
        source.add(pod("late"))
        await rest(clock)
        assert (reader.lines, reader.task.done()) == (["ADDED late"], False)
    assert {watch.resource_version for watch in source.watches()} == {"1"}
    assert fault is None or str(fault) in caplog.text


async def _nothing():
    for batch in ():
        yield batch


@pytest.mark.client_go(220, "Retry watcher / informer watcher")
async def test_a_version_that_is_too_old_ends_it_with_the_error(source, clock):
    """What was missed can't be told any more: the reader learns that once, after what came before."""
    async with RetryWatcher(source, "1", clock=clock) as watcher:
        reader = Reader(watcher)
        await rest(clock)
        source.add(pod("last"))
        await rest(clock)
        source.cut(GONE)
        await rest(clock)
        with pytest.raises(errors.Expired, match="too old"):
            await reader.task
        again = [event async for event in watcher]
        await clock.advance(100)
        assert (reader.lines, again, watcher.is_stopped) == (["ADDED last"], [], True)
    assert len(source.watches()) == 1
    assert source.open_watches == 0


@pytest.mark.client_go(221, "Retry watcher / informer watcher")
@pytest.mark.parametrize(
    "fault", [errors.Forbidden(403, "Forbidden", "no"), errors.Unauthorized(401, "Unauthorized", "who?")]
)
async def test_who_may_not_watch_is_told_so(source, clock, fault):
    """It ends with the error, instead of asking for ever."""
    source.fail_next(fault, times=100)
    async with RetryWatcher(source, "1", clock=clock) as watcher:
        with pytest.raises(type(fault)):
            await anext(watcher)
        assert [event async for event in watcher] == []
    assert len(source.watches()) == 1


@pytest.mark.client_go(224)
@pytest.mark.parametrize("read", [0, 1])
async def test_it_stops_with_events_that_nobody_reads(source, clock, read):
    """Stopped by somebody else, nothing is left: no task, no open watch, nothing to be read."""
    for name in ("a", "b", "c"):
        source.add(pod(name))
    before = asyncio.all_tasks()
    watcher = RetryWatcher(source, "1", clock=clock)
    for _ in range(read):
        await anext(watcher)
    await watcher.stop()
    await watcher.stop()
    left = [event async for event in watcher]
    await rest(clock)
    assert (left, asyncio.all_tasks() - before) == ([], set())
    assert source.open_watches == 0


@pytest.mark.client_go(224)
@pytest.mark.parametrize("refused", [False, True], ids=["waiting for an event", "waiting for the next watch"])
async def test_stopping_ends_whoever_waits(source, clock, refused):
    """The reader's loop ends as if there were no more events, also in the middle of a back-off."""
    if refused:
        source.fail_next(errors.Unreachable("connection refused"))
    watcher = RetryWatcher(source, "1", clock=clock)
    reader = Reader(watcher)
    await rest(clock)
    assert source.open_watches == (not refused)
    await watcher.stop()
    await reader.task
    assert (reader.lines, source.open_watches) == ([], 0)


async def test_a_reader_that_gives_up_misses_nothing(source, clock):
    """A read with a time limit that was cancelled loses no event: the next one goes on from there."""
    async with RetryWatcher(source, "1", clock=clock) as watcher:
        impatient = asyncio.create_task(anext(watcher))
        await rest(clock)
        impatient.cancel()
        await asyncio.wait([impatient])
        closed = source.open_watches
        source.add(pod("late"))
        patient = asyncio.create_task(anext(watcher))
        await clock.advance(2)
        event = await patient
        assert (impatient.cancelled(), closed, f"{event.type} {event.obj.name}") == (True, 0, "ADDED late")


async def test_a_silent_watch_is_opened_anew(source, clock):
    """A connection that is dead without a word is noticed; what happened meanwhile is told.

    Bookmarks move it on and are not told, so that a quiet resource does not fall behind until it expires.
    """
    async with reading(source, clock) as (watcher, reader):
        source.advance()
        source.bookmark()
        await rest(clock)
        assert (watcher.resource_version, reader.lines) == (source.resource_version, [])
        source.silent = True
        source.add(pod("unheard"))
        await clock.advance(89)
        assert len(source.watches()) == 1
        source.silent = False
        await clock.advance(3)
        assert (len(source.watches()), reader.lines) == (2, ["ADDED unheard"])


async def test_an_event_without_a_version_ends_it(clock):
    """It could not be resumed after that: better an error than events that come twice."""

    class Versionless:
        projection = Projection(api_version="v1", kind="Pod")
        description = "pods"

        async def watch(self, options):
            yield [WatchEvent(EventType.ADDED, record(version=""))]

    async with RetryWatcher(Versionless(), "1", clock=clock) as watcher:
        with pytest.raises(errors.MalformedAnswer, match="no version"):
            await anext(watcher)
        assert watcher.is_stopped
