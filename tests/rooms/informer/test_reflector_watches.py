"""Watches: where they begin, how they end, and what follows."""

import asyncio
from itertools import pairwise

import pytest

from declctl.errors import (
    Conflict,
    Forbidden,
    MalformedAnswer,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from declctl.informer import ExponentialBackoff, ReflectorOptions
from declctl.objects import EventType
from tests.rooms.informer.reflecting import EXPIRED, Bench, bench
from tests.rooms.informer.shapes import Recorder, made, pod, rest, running


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


@pytest.mark.client_go(120, "Very short watch")
def test_a_watch_that_ends_at_once_is_waited_for():
    """A server that slams the door is not asked in a circle (client-go 120)."""

    async def scenario():
        async with bench() as b:
            await b.advance(5)
            for _ in range(3):
                b.source.cut()
                await b.settle()
                b.source.cut()
                await b.settle()
                assert b.figures.state == "BackingOff"
                await b.advance(30)
            assert "brought nothing new" in str(b.faults[0])
            assert b.figures.relists == 0

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


@pytest.mark.parametrize(
    "fault",
    [
        Unreachable("connection refused"),
        TooManyRequests(429, "TooManyRequests", "slow down"),
        ServerError(503, "ServiceUnavailable", "not now"),
        Forbidden(403, "Forbidden", "pods is forbidden"),
    ],
)
@pytest.mark.client_go(125, 128, "Connection refused / 429 at watch")
def test_a_refused_watch_is_asked_for_again_from_the_same_version(fault):
    """A recovering server is not met by lists (client-go 125, 128)."""

    async def scenario():
        async with bench() as b:
            await b.advance(5)
            b.source.fail_next(fault, times=4)
            b.source.cut()
            await b.settle()
            assert b.figures.state == "BackingOff"
            b.source.add(pod("c"))
            await b.advance(60)
            assert b.names == ["a", "b", "c"]
            assert b.versions() == ["", "2", "2", "2", "2", "2"]
            assert b.source.lists() == []
            assert (b.figures.failures, b.figures.error) == (4, None)
            assert b.faults == [fault] * 4

    asyncio.run(scenario())


@pytest.mark.client_go("429 inside the stream")
def test_too_many_requests_inside_the_stream_is_the_same():
    """An ERROR event with 429 is waited out, then the watch goes on (client-go 127)."""

    async def scenario():
        async with bench() as b:
            b.source.cut(TooManyRequests(429, "TooManyRequests", "", retry_after=7.0))
            await b.advance(6)
            assert b.figures.watches == 1
            await b.advance(1)
            assert b.versions() == ["", "2"]

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


@pytest.mark.client_go(127, "429 inside the stream")
def test_too_many_requests_twice_is_two_waits():
    """Once as an answer, once as an event: the watch goes on from its version."""

    async def scenario():
        async with bench() as b:
            await b.advance(5)
            fault = TooManyRequests(429, "TooManyRequests", "")
            b.source.fail_next(fault)
            b.source.cut(fault)
            await b.advance(10)
            assert (b.figures.back_offs, b.figures.waited) == (2, pytest.approx(0.8 + 1.6))
            assert b.versions() == ["", "2", "2"]
            assert b.figures.rounds == 1

    asyncio.run(scenario())


@pytest.mark.client_go(128)
def test_too_many_requests_is_never_answered_by_a_list():
    """Four times: one LIST, five WATCHes."""

    async def scenario():
        async with bench(watch_list=False, begin=False) as b:
            b.source.fail_next(TooManyRequests(429, "TooManyRequests", ""), times=4)
            await b.begin()
            await b.advance(30)
            assert (len(b.source.lists()), len(b.source.watches())) == (1, 5)

    asyncio.run(scenario())


@pytest.mark.client_go(125)
def test_refused_connections_are_tried_with_growing_waits():
    """The moments of the watches show it."""

    async def scenario():
        async with bench(watch_list=False, begin=False) as b:
            moments = []

            def watch(options, *, known=None, _watch=b.source.watch):
                moments.append(b.clock.monotonic())
                return _watch(options)

            b.source.watch = watch
            b.source.fail_next(Unreachable("connection refused"), times=5)
            await b.begin()
            await b.advance(60)
            waits = [later - earlier for earlier, later in pairwise(moments)]
            assert waits == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8])
            assert len(b.source.lists()) == 1

    asyncio.run(scenario())


@pytest.mark.client_go(126, "Custom backoff")
def test_a_schedule_of_ones_own_is_waited_by():
    """Through the options, which an informer and a factory take as well."""

    async def scenario():
        own = {"backoff": lambda clock: ExponentialBackoff(clock, first=0.01, longest=0.1)}
        async with bench(watch_list=False, begin=False, **own) as b:
            b.source.fail_next(Unreachable("no"), times=5)
            await b.begin()
            await b.advance(0.24)
            assert b.figures.state == "BackingOff"
            await b.advance(0.02)
            assert b.figures.state == "Watching"
            assert b.figures.waited == pytest.approx(0.25)

    asyncio.run(scenario())


@pytest.mark.client_go("Custom backoff")
def test_an_informer_takes_the_schedule_too():
    """What client-go's informers can't be told."""
    options = ReflectorOptions(backoff=lambda clock: ExponentialBackoff(clock, first=0.01, longest=0.1))

    async def scenario():
        source, informer, clock = made(options=options)
        source.fail_next(Unreachable("no"), times=5)
        async with running(informer, clock):
            await clock.advance(0.26)
            return informer.has_synced

    assert asyncio.run(scenario())


@pytest.mark.client_go("Run loop")
def test_stopping_is_obeyed_while_it_waits():
    """A wait of half a minute is not waited for."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.fail_next(Unreachable("no"))
            await b.begin()
            assert b.figures.state == "BackingOff"
            await b.stop()
            assert b.task.cancelled()

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


@pytest.mark.client_go(129, 146, "500 inside the stream")
def test_internal_errors_are_waited_out_before_a_list():
    """Five times at one version, in half a minute; a version that moves on, or ten minutes, begin anew."""

    async def scenario():
        async with bench() as b:
            fault = ServerError(500, "InternalError", "etcd is busy")
            for _ in range(5):
                b.source.cut(fault)
                await b.advance(61)
            assert (b.figures.relists, b.figures.back_offs) == (0, 5)
            b.source.add(pod("c"))
            await b.settle()
            for _ in range(5):
                b.source.cut(fault)
                await b.advance(61)
            await b.advance(600)
            for _ in range(5):
                b.source.cut(fault)
                await b.advance(61)
            assert (b.figures.relists, b.figures.back_offs) == (0, 15)
            b.source.cut(fault)
            await b.advance(61)
            assert b.figures.relists == 1

    asyncio.run(scenario())


@pytest.mark.client_go(142)
def test_a_corrupt_object_that_was_deleted_by_force_leaves_the_store():
    """The server can't tell of it in a watch; a list shows that it is gone."""

    async def scenario():
        async with bench() as b:
            b.source.cut(Unreachable("reset"))
            await b.settle()
            b.source.delete("demo/a")
            b.source.fail_next(ServerError(500, "StoreReadError", "a can't be decrypted"))
            await b.advance(4)
            assert b.names == ["b"]
            assert b.figures.relists == 1

    asyncio.run(scenario())


@pytest.mark.client_go("Watch error handler", "Other watch errors")
def test_faults_are_given_to_whoever_wants_them():
    """Each that is waited for, as it is; what needs no wait is none."""

    async def scenario():
        async with bench() as b:
            conflict = Conflict(409, "Conflict", "what is this")
            b.source.cut(conflict)
            await b.advance(1)
            b.source.cut(EXPIRED)
            await b.advance(2)
            assert b.faults == [conflict, EXPIRED]
            assert b.figures.relists == 2
            b.source.add(pod("c"))
            await b.settle()
            b.source.cut(EXPIRED)
            await b.advance(1)
            assert len(b.faults) == 2

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
