"""Watches: where they begin, how they end, and what follows."""

import asyncio
import logging

import pytest

from declctl.errors import (
    MalformedAnswer,
    Unreachable,
)
from declctl.objects import EventType, WatchEvent
from tests.rooms.informer.reflecting import EXPIRED, Bench, bench
from tests.rooms.informer.shapes import Recorder, made, pod, record, rest, running


@pytest.mark.client_go(155, "Normal watch close")
def test_an_ordinary_end_is_followed_by_a_watch_from_the_last_version():
    """No list, no wait, no error (client-go 155)."""

    async def scenario():
        async with bench() as b:
            b.source.add(pod("c"))
            await b.advance(5)
            b.source.cut()
            await b.settle()
            assert b.versions() == ["", "3"]
            assert not b.source.watches()[-1].send_initial_events
            assert (b.figures.failures, b.figures.error) == (0, None)

    asyncio.run(scenario())


@pytest.mark.client_go("Bookmarks", "`ResourceVersionUpdater`")
def test_bookmarks_move_the_version_and_nothing_else():
    """The next watch begins where the bookmark said (client-go 121)."""

    async def scenario():
        async with bench() as b:
            b.source.advance()
            b.source.bookmark()
            await b.advance(5)
            assert b.reflector.last_sync_resource_version == "3"
            assert b.store.last_store_sync_resource_version == "3"
            assert b.figures.events["BOOKMARK"] == 1
            b.source.cut()
            await b.settle()
            assert b.versions()[-1] == "3"

    asyncio.run(scenario())


def test_a_silent_watch_is_closed_and_resumed_without_a_list():
    """A connection that died without a word is noticed after the idle timeout (pitfall 1)."""

    async def scenario():
        async with bench(idle_timeout=90.0) as b:
            await b.advance(89)
            assert b.figures.watches == 1
            await b.advance(1)
            assert b.versions() == ["", "2"]
            assert (b.figures.idle_closes, b.figures.lists, b.figures.failures) == (1, 1, 0)
            assert b.source.open_watches == 1

    asyncio.run(scenario())


def test_silent_watches_are_spoken_of_the_more_seldom_the_longer_it_lasts(caplog):
    """The log says that a watch fell silent, and does not fill up where a server sends no bookmarks."""
    caplog.set_level(logging.INFO, "declctl.informer")

    async def scenario():
        async with bench(idle_timeout=90.0) as b:
            await b.advance(90 * 9)
            assert b.figures.idle_closes == 9

    asyncio.run(scenario())
    assert [message.rpartition("(")[2] for message in caplog.messages if "said nothing" in message] == [
        f"{times} times so far)" for times in (1, 2, 4, 8)
    ]


@pytest.mark.parametrize("sign", ["event", "bookmark"])
def test_a_quiet_watch_that_gives_a_sign_lives_on(sign):
    """A resource where little happens is not taken for a dead connection."""

    async def scenario():
        async with bench(idle_timeout=90.0) as b:
            for n in range(5):
                await b.advance(80)
                b.source.bookmark() if sign == "bookmark" else b.source.add(pod(f"p{n}"))
                await b.settle()
            assert b.figures.watches == 1

    asyncio.run(scenario())


def test_what_happened_during_an_interruption_is_told_by_the_watch():
    """Nothing is lost between two watches."""

    async def scenario():
        async with bench() as b:
            b.source.cut(Unreachable("reset"))
            await b.settle()
            b.source.delete("demo/a")
            b.source.add(pod("c"))
            await b.advance(1)
            assert b.names == ["b", "c"]

    asyncio.run(scenario())


@pytest.mark.client_go("410 while watching")
def test_an_expired_watch_asks_for_everything_and_finds_what_was_missed():
    """What was deleted meanwhile is gone from the cache (client-go 135, 179)."""

    async def scenario():
        async with bench() as b:
            b.source.add(pod("c"))
            await b.settle()
            b.source.cut(Unreachable("reset"))
            await b.settle()
            b.source.delete("demo/a")
            b.source.compact()
            await b.advance(1)
            assert b.names == ["b", "c"]
            assert b.figures.relists == 1
            assert b.figures.error is None

    asyncio.run(scenario())


@pytest.mark.client_go(121)
def test_a_watch_is_followed_event_by_event():
    """A delete, a change, a new object: each is stored, and the version is that of the last one."""

    async def scenario():
        async with bench(objects=("foo", "bar")) as b:
            b.source.replay(EventType.ADDED, {"kind": "Secret", "metadata": {"name": "s"}})
            b.source.replay(EventType.DELETED, pod("foo", uid="uid-1", resourceVersion="44"))
            b.source.replay(EventType.MODIFIED, pod("bar", uid="uid-2", resourceVersion="55"))
            b.source.replay(EventType.ADDED, pod("baz", uid="uid-3", resourceVersion="32"))
            await b.settle()
            assert {r.key: r.resource_version for r in b.store.list()} == {"demo/bar": "55", "demo/baz": "32"}
            assert b.reflector.last_sync_resource_version == "32"
            assert b.figures.skipped == 1

    asyncio.run(scenario())


@pytest.mark.client_go("LastSyncResourceVersion")
def test_the_version_is_readable_from_any_thread():
    """It is a string that is replaced, never one that is half written."""

    async def scenario():
        async with bench() as b:
            b.source.add(pod("c"))
            await b.settle()
            assert await asyncio.to_thread(lambda: b.reflector.last_sync_resource_version) == "3"

    asyncio.run(scenario())


@pytest.mark.client_go("RV tracking")
def test_the_version_is_the_last_in_arrival_order():
    """Versions are opaque: nothing is compared but equality (client-go 121)."""

    async def scenario():
        async with bench() as b:
            b.source.replay(EventType.MODIFIED, pod("a", uid="uid-1", resourceVersion="zebra"))
            b.source.replay(EventType.MODIFIED, pod("b", uid="uid-2", resourceVersion="aardvark"))
            await b.settle()
            assert b.reflector.last_sync_resource_version == "aardvark"

    asyncio.run(scenario())


@pytest.mark.client_go(115, 119)
def test_stopping_closes_the_watch():
    """Whatever it was doing (client-go 114, 115, 119)."""

    async def scenario():
        b = Bench()
        task = asyncio.create_task(b.reflector.run())
        await b.settle()
        assert b.source.open_watches == 1
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert b.source.open_watches == 0

    asyncio.run(scenario())


@pytest.mark.client_go(114)
@pytest.mark.parametrize(
    "fault", [Unreachable("reset"), EXPIRED, MalformedAnswer("half a line"), KeyError("bug")]
)
def test_a_watch_that_fails_is_closed(fault):
    """Its connection is not left to the garbage collector."""

    async def scenario():
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

    asyncio.run(scenario())


@pytest.mark.client_go(117)
def test_who_is_stopped_before_the_start_asks_nothing():
    """Neither a list nor a watch."""

    async def scenario():
        async with bench(begin=False) as b:
            b.task = asyncio.create_task(b.reflector.run())
            await b.stop()
            await b.settle()
            assert b.source.requests == []
            assert b.faults == []

    asyncio.run(scenario())


@pytest.mark.client_go(119, 122)
@pytest.mark.parametrize("before", [True, False])
def test_stopping_is_no_failure(before):
    """Whether the watch has been opened or has told something already: it is closed, and no fault is told."""

    async def scenario():
        async with bench() as b:
            if not before:
                b.source.add(pod("c"))
                await b.advance(0.01)
            await b.stop()
            assert b.task.cancelled()
            assert b.source.open_watches == 0
            assert (b.faults, b.figures.failures, b.figures.error) == ([], 0, None)

    asyncio.run(scenario())


@pytest.mark.client_go(120, "Very short watch")
def test_a_short_watch_that_brought_something_is_none():
    """One event is enough: the next watch begins at once."""

    async def scenario():
        async with bench() as b:
            await b.advance(5)
            b.source.cut()
            await b.settle()
            b.source.add(pod("c"))
            await b.settle()
            b.source.cut()
            await b.settle()
            assert b.versions() == ["", "2", "3"]
            assert b.figures.failures == 0

    asyncio.run(scenario())


@pytest.mark.client_go(139, "Watch")
@pytest.mark.parametrize(
    ("option", "jitter", "asked"),
    [
        (300, 0.0, 300),
        (300, 0.5, 450),
        (300, 0.999, 600),
        (1000, 0.9999, 2000),
        (5, 0.0, 300),
    ],
)
def test_a_watch_is_asked_to_end_within_its_double_time(option, jitter, asked):
    """At a random moment, so that not all come back together; never sooner than after five minutes."""

    async def scenario():
        async with bench(jitter=jitter, min_watch_timeout=option) as b:
            assert [w.timeout_seconds for w in b.source.watches()] == [asked]

    asyncio.run(scenario())


@pytest.mark.client_go("Resync timer", 116)
@pytest.mark.parametrize(("period", "resyncs"), [(0.0, 0), (1.0, 10), (5.0, 2)])
def test_a_resync_comes_from_the_cache_and_asks_the_server_nothing(period, resyncs):
    """After each period, to whoever asked for it; never without one."""

    async def scenario():
        source, informer, clock = made()
        source.add(pod("a"))
        listener = Recorder()
        informer.add_listener(listener, resync_period=period)
        async with running(informer, clock):
            for _ in range(10):
                await clock.advance(1.0)
                await rest(clock)
            assert len(source.requests) == 1
        return listener.lines().count("Resync demo/a")

    assert asyncio.run(scenario()) == resyncs


@pytest.mark.client_go("RV tracking")
@pytest.mark.parametrize("last", ["foreign", "foreign after a bookmark"])
def test_a_read_that_ends_with_an_object_without_a_version_is_told_once(last):
    """The next watch begins after the last version of the read, not before all of it."""

    async def scenario():
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

    asyncio.run(scenario())


@pytest.mark.parametrize("streams", [True, False], ids=["streaming list", "LIST"])
def test_a_list_that_is_requested_is_made_at_once_and_is_the_most_recent_state(streams):
    """The watch ends without a fault and without a wait; asked for twice, there is one list."""

    async def scenario():
        async with bench(streams=streams) as b:
            b.source.advance()  # what the watch is not told of: another version, and nothing in its scope
            lists = b.figures.lists
            b.reflector.request_relist()
            b.reflector.request_relist()
            await b.settle()
            assert (b.figures.lists, b.figures.relists_requested) == (lists + 1, 1)
            assert (b.figures.failures, b.figures.back_offs, b.figures.error, b.faults) == (0, 0, None, [])
            assert b.store.last_store_sync_resource_version == "3"
            asked = b.versions("list")[-1] if not streams else b.versions()[-1]
            assert not asked
            b.source.add(pod("c"))
            await b.advance(5)
            assert b.names == ["a", "b", "c"]
            b.reflector.request_relist()
            await b.settle()
            assert b.figures.relists_requested == 2

    asyncio.run(scenario())


def test_a_list_that_is_requested_waits_for_the_end_of_a_back_off():
    """A server that fails is not asked sooner because somebody wants to know."""

    async def scenario():
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

    asyncio.run(scenario())


def test_a_list_that_is_requested_while_one_is_made_is_that_one():
    """It may be older than the request: whoever needs a newer one asks again."""

    async def scenario():
        async with bench(begin=False) as b:
            b.reflector.request_relist()
            await b.begin()
            assert (b.figures.lists, b.figures.relists) == (1, 0)
            b.reflector.request_relist()
            await b.settle()
            assert (b.figures.lists, b.figures.relists) == (2, 1)

    asyncio.run(scenario())
