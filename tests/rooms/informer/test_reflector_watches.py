"""Watches: where they begin, how they end, and what follows."""

import asyncio
import logging

import pytest

from declctl.errors import MalformedAnswer, Unreachable
from declctl.objects import EventType, WatchEvent
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import pod, record


@pytest.mark.client_go(120, 155, "Normal watch close", "Very short watch")
@pytest.mark.client_go("Bookmarks", "`ResourceVersionUpdater`")
async def test_an_ordinary_end_is_followed_by_a_watch_from_the_last_version():
    """No list, no wait, no error (client-go 155); a short watch that brought one event is none.

    Bookmarks move the version and nothing else: the next watch begins where one said (client-go 121).
    """
    async with bench() as b:
        b.source.add(pod("c"))
        await b.advance(5)
        b.source.cut()
        await b.settle()
        assert b.versions() == ["", "3"]
        b.source.add(pod("d"))
        await b.settle()
        b.source.cut()
        await b.settle()
        assert b.versions() == ["", "3", "4"]
        assert [w.send_initial_events for w in b.source.watches()] == [True, False, False]
        b.source.advance()
        b.source.bookmark()
        await b.advance(5)
        assert b.reflector.last_sync_resource_version == b.store.last_store_sync_resource_version == "5"
        assert b.figures.events["BOOKMARK"] == 1
        b.source.cut()
        await b.settle()
        assert b.versions()[-1] == "5"
        assert (b.figures.failures, b.figures.error) == (0, None)


async def test_a_silent_watch_is_closed_and_resumed_without_a_list(caplog):
    """A connection that died without a word is noticed after the idle timeout (pitfall 1).

    The log says so, and does not fill up where a server sends no bookmarks: ever more seldom.
    """
    caplog.set_level(logging.INFO, "declctl.informer")
    async with bench(idle_timeout=90.0) as b:
        await b.advance(89)
        assert b.figures.watches == 1
        await b.advance(1)
        assert b.versions() == ["", "2"]
        assert (b.figures.idle_closes, b.figures.lists, b.figures.failures) == (1, 1, 0)
        assert b.source.open_watches == 1
        await b.advance(90 * 8)
        assert b.figures.idle_closes == 9
    told = [message.rpartition("(")[2] for message in caplog.messages if "said nothing" in message]
    assert told == [f"{times} times so far)" for times in (1, 2, 4, 8)]


@pytest.mark.parametrize("sign", ["event", "bookmark"])
async def test_a_quiet_watch_that_gives_a_sign_lives_on(sign):
    """A resource where little happens is not taken for a dead connection."""
    async with bench(idle_timeout=90.0) as b:
        for n in range(5):
            await b.advance(80)
            b.source.bookmark() if sign == "bookmark" else b.source.add(pod(f"p{n}"))
            await b.settle()
        assert b.figures.watches == 1


@pytest.mark.client_go(121, "LastSyncResourceVersion", "RV tracking")
async def test_a_watch_is_followed_event_by_event():
    """A delete, a change, a new object: each is stored, and the version is that of the last one.

    Versions are opaque: nothing is compared but equality. It is readable from any thread.
    """
    async with bench(objects=("foo", "bar")) as b:
        b.source.replay(EventType.ADDED, {"kind": "Secret", "metadata": {"name": "s"}})
        b.source.replay(EventType.DELETED, pod("foo", uid="uid-1", resourceVersion="44"))
        b.source.replay(EventType.MODIFIED, pod("bar", uid="uid-2", resourceVersion="zebra"))
        b.source.replay(EventType.ADDED, pod("baz", uid="uid-3", resourceVersion="32"))
        await b.settle()
        versions = {r.key: r.resource_version for r in b.store.list()}
        assert versions == {"demo/bar": "zebra", "demo/baz": "32"}
        assert await asyncio.to_thread(lambda: b.reflector.last_sync_resource_version) == "32"
        assert b.figures.skipped == 1


@pytest.mark.client_go(114)
@pytest.mark.parametrize(
    "fault", [Unreachable("reset"), EXPIRED, MalformedAnswer("half a line"), KeyError("bug")]
)
async def test_a_watch_that_fails_is_closed(fault):
    """Its connection is not left to the garbage collector."""
    async with bench() as b:
        closed = []

        async def watch(options, *, known=None, _watch=b.source.watch):
            try:
                yield ()
                raise fault
            finally:
                closed.append(options)

        b.source.watch = watch
        b.source.cut()
        await b.settle()
        assert len(closed) >= 1
        assert b.figures.state == "BackingOff"


@pytest.mark.client_go(115, 117, 119, 122)
@pytest.mark.parametrize(
    ("when", "watches"), [("before the start", 0), ("while it is open", 1), ("after an event", 1)]
)
async def test_stopping_is_no_failure(when, watches):
    """Nothing is asked then, or the watch is closed; and no fault is told."""
    async with bench(begin=False) as b:
        b.task = asyncio.create_task(b.reflector.run())
        if watches:
            await b.settle()
            assert b.source.open_watches == 1
        if when == "after an event":
            b.source.add(pod("c"))
            await b.advance(0.01)
        await b.stop()
        await b.settle()
        assert b.task.cancelled()
        assert (b.source.open_watches, len(b.source.requests)) == (0, watches)
        assert (b.faults, b.figures.failures, b.figures.error) == ([], 0, None)


@pytest.mark.client_go(139, "Watch")
@pytest.mark.parametrize(
    ("option", "jitter", "asked"),
    [*((300, 0.0, 300), (300, 0.5, 450), (300, 0.999, 600)), (1000, 0.9999, 2000), (5, 0.0, 300)],
)
async def test_a_watch_is_asked_to_end_within_its_double_time(option, jitter, asked):
    """At a random moment, so that not all come back together; never sooner than after five minutes."""
    async with bench(jitter=jitter, min_watch_timeout=option) as b:
        assert [w.timeout_seconds for w in b.source.watches()] == [asked]


@pytest.mark.client_go("RV tracking")
@pytest.mark.parametrize("last", ["foreign", "foreign after a bookmark"])
async def test_a_read_that_ends_with_an_object_without_a_version_is_told_once(last):
    """The next watch begins after the last version of the read, not before all of it."""
    async with bench(streams=False, watch_list=False) as b:
        asked: list[str | None] = []
        added = WatchEvent(EventType.ADDED, record("c", 7))
        bookmark = WatchEvent(EventType.BOOKMARK, None, "9")
        foreign = WatchEvent(EventType.SKIPPED, None, decode_warning="it is of another kind")

        async def watch(options, *, known=None):
            asked.append(options.resource_version)
            yield [added, foreign] if last == "foreign" else [added, bookmark, foreign]
            await b.clock.sleep(10)

        b.source.watch = watch
        b.source.cut()
        await b.advance(5)
        version = "7" if last == "foreign" else "9"
        assert b.reflector.last_sync_resource_version == version
        assert b.store.last_store_sync_resource_version == version
        await b.advance(10)
        assert asked == ["2", version]


@pytest.mark.parametrize("streams", [True, False], ids=["streaming list", "LIST"])
async def test_a_list_that_is_requested_is_made_at_once_and_is_the_most_recent_state(streams):
    """The watch ends without a fault and without a wait; asked for twice, there is one list.

    One that is made already is that one. It may be older than the request: whoever needs a newer one asks
    again.
    """
    async with bench(streams=streams, begin=False) as b:
        b.reflector.request_relist()
        await b.begin()
        assert (b.figures.lists, b.figures.relists) == (1, 0)
        b.source.advance()  # what the watch is not told of: another version, and nothing in its scope
        requested = b.figures.relists_requested
        b.reflector.request_relist()
        b.reflector.request_relist()
        await b.settle()
        figures = b.figures
        assert (figures.lists, figures.relists, figures.relists_requested) == (2, 1, requested + 1)
        assert (figures.failures, figures.back_offs, figures.error, b.faults) == (0, 0, None, [])
        assert b.store.last_store_sync_resource_version == "3"
        asked = b.versions("list")[-1] if not streams else b.versions()[-1]
        assert not asked
        b.source.add(pod("c"))
        await b.advance(5)
        assert b.names == ["a", "b", "c"]
        b.reflector.request_relist()
        await b.settle()
        assert b.figures.relists_requested == requested + 2


async def test_a_list_that_is_requested_waits_for_the_end_of_a_back_off():
    """A server that fails is not asked sooner because somebody wants to know."""
    async with bench() as b:
        b.source.cut(Unreachable("gone"))
        await b.settle()
        lists, watches = b.figures.lists, b.figures.watches
        b.reflector.request_relist()
        await b.settle()
        assert (b.figures.lists, b.figures.watches) == (lists, watches)
        await b.advance(60)
        await b.advance(60)
        assert b.figures.lists == lists + 1
        assert b.agrees()
