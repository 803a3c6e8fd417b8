"""The reflector against a source that does what API servers do, on a good day and on others."""

import asyncio
import contextlib
import logging

import pytest

from declctl.errors import (
    Expired,
    Forbidden,
    InvalidRequest,
    MalformedAnswer,
    NotFound,
    ServerError,
    TooLargeResourceVersion,
    TooManyRequests,
    Unreachable,
)
from declctl.informer import FakeControllerSource, Indexer, Reflector, ReflectorOptions
from declctl.kit import ManualClock
from declctl.objects import EventType
from tests.rooms.informer.shapes import fresh_projection, pod, rest

EXPIRED = Expired(410, "Expired", "too old resource version")


class Bench:
    """A source, a reflector that feeds a store, and a clock."""

    def __init__(self, **more):
        self.clock = ManualClock()
        self.source = FakeControllerSource(projection=fresh_projection())
        self.store = Indexer()
        self.faults = []
        self.reflector = Reflector(
            self.source,
            self.store,
            clock=self.clock,
            known=self.store.get_by_key,
            on_fault=self.faults.append,
            options=ReflectorOptions(**more),
        )

    @property
    def figures(self):
        return self.reflector.statistics()

    @property
    def names(self):
        return sorted(key.removeprefix("demo/") for key in self.store.list_keys())

    def versions(self, verb="watch"):
        """The resource versions asked for, in order."""
        return [
            r.resource_version for r in (self.source.watches() if verb == "watch" else self.source.lists())
        ]

    async def advance(self, seconds):
        await self.clock.advance(seconds)
        await rest(self.clock)

    async def settle(self):
        await rest(self.clock)


@contextlib.asynccontextmanager
async def bench(*, streams=True, objects=("a", "b"), begin=True, **more):
    made = Bench(**more)
    made.source.streams = streams
    for name in objects:
        made.source.add(pod(name))
    task = asyncio.create_task(made.reflector.run()) if begin else None
    await made.settle()
    try:
        yield made
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            assert made.source.open_watches == 0


def test_one_stream_brings_everything_and_goes_on_as_a_watch():
    """A server that streams lists is asked once: no LIST, one WATCH (client-go 123)."""

    async def scenario():
        async with bench() as b:
            b.source.add(pod("c"))
            await b.settle()
            assert b.names == ["a", "b", "c"]
            assert b.source.lists() == []
            [watch] = b.source.watches()
            assert watch.send_initial_events
            assert 300 <= watch.timeout_seconds <= 600
            assert (b.figures.state, b.figures.lists, b.figures.watches, b.figures.relists) == (
                "Watching",
                1,
                1,
                0,
            )

    asyncio.run(scenario())


def test_a_server_that_does_not_stream_is_listed_in_pages():
    """The first LIST is at any version; the watch begins at the version of the list (client-go 123, 131)."""

    async def scenario():
        async with bench(streams=False, objects=[f"p{n}" for n in range(10)], page_size=4) as b:
            assert len(b.names) == 10
            assert [r.limit for r in b.source.lists()] == [4, 4, 4]
            assert b.versions("list") == ["0", None, None]
            assert [bool(r.continue_token) for r in b.source.lists()] == [False, True, True]
            assert b.versions()[-1] == "10"
            assert (b.figures.lists, b.figures.pages, b.figures.items_listed) == (1, 3, 10)
            assert b.figures.error is None

    asyncio.run(scenario())


def test_a_server_that_does_not_stream_is_not_asked_again():
    """It is remembered (client-go 148)."""

    async def scenario():
        async with bench(streams=False) as b:
            b.source.compact()
            b.source.advance()
            b.source.cut(EXPIRED)
            await b.advance(2)
            assert [r.send_initial_events for r in b.source.watches()] == [True, False, False]
            assert b.figures.relists == 1

    asyncio.run(scenario())


def test_nothing_is_stored_before_everything_is_there():
    """A stream that has not said that it is complete leaves the cache empty (client-go 147)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            assert b.names == []
            assert b.figures.items_listed == 2
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


@pytest.mark.parametrize("silent_for", [30, 45])
def test_a_stream_without_an_end_is_given_up_for_a_list(silent_for):
    """A proxy that swallows the end bookmark does not keep the cache empty for ever (pitfall 12)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            await b.advance(silent_for)
            assert b.names == ["a", "b"]
            assert len(b.source.lists()) == 1
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_stream_that_never_ends_is_given_up_for_a_list():
    """Also when it keeps talking."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            for n in range(6):
                b.source.add(pod(f"p{n}"))
                await b.advance(20)
            assert len(b.source.lists()) == 1
            assert len(b.names) == 8
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_stream_that_ends_early_becomes_a_list_at_once():
    """Without a wait: such a server does not stream lists."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            b.source.cut()
            await b.settle()
            assert b.names == ["a", "b"]
            assert b.figures.failures == 0
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_changes_during_a_stream_are_part_of_it():
    """What is modified or deleted before the end is stored as it is then (client-go 152)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            b.source.modify(pod("a", node="n1"))
            b.source.delete("demo/b")
            await b.settle()
            assert b.figures.items_listed == 1
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


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


def test_a_relist_keeps_records_that_have_not_changed():
    """A relist does not hold everything twice."""

    async def scenario():
        async with bench() as b:
            before = b.store.get_by_key("demo/a")
            b.source.cut(EXPIRED)
            await b.advance(1)
            assert b.figures.relists == 1
            assert b.store.get_by_key("demo/a") is before

    asyncio.run(scenario())


def test_a_list_that_expires_is_made_at_the_most_recent_version():
    """First none older than what was seen, then whatever there is (client-go 134, 135)."""

    async def scenario():
        async with bench(streams=False) as b:
            b.source.fail_next(EXPIRED, verb="list")
            b.source.cut(EXPIRED)
            await b.advance(1)
            lists = b.source.lists()
            assert [r.resource_version for r in lists] == ["0", "2", None]
            assert [r.resource_version_match for r in lists] == [None, "NotOlderThan", None]
            assert b.figures.relists == 1

    asyncio.run(scenario())


def test_a_version_that_is_too_large_is_dropped():
    """After a restore of etcd the old version means nothing (client-go 137, pitfall 5)."""

    async def scenario():
        async with bench(streams=False) as b:
            b.source.cut(TooLargeResourceVersion(504, "Timeout", "Too large resource version"))
            await b.advance(1)
            assert b.versions("list") == ["0", None]

    asyncio.run(scenario())


def test_pages_that_expire_are_followed_by_one_whole_list():
    """At the version asked for, without a limit (client-go 136)."""

    async def scenario():
        async with bench(streams=False, begin=False, objects="abcdef", page_size=2) as b:
            b.source.fail_next(EXPIRED, verb="list")
            real = b.source._faults["list"]
            fault = real.pop()

            async def second_page_fails(options, *, known, _list=b.source.list):
                if options.continue_token and len(b.source.lists()) == 1:
                    b.source.requests.append(options)
                    raise fault
                return await _list(options, known=known)

            b.source.list = second_page_fails
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            assert [(r.resource_version, r.limit) for r in b.source.lists()] == [
                ("0", 2),
                (None, 2),
                ("0", None),
            ]
            assert len(b.names) == 6
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_missing_kind_is_told_and_starts_soon_after_it_appears():
    """Status says what is missing; the kind is found within ten seconds (pitfall 13)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.fail_next(NotFound(404, "NotFound", "the server has no Widget"), times=30)
            task = asyncio.create_task(b.reflector.run())
            await b.advance(120)
            assert b.figures.missing
            assert b.figures.error == "Pod: 404 NotFound: the server has no Widget"
            assert b.figures.error_since == 1000.0
            b.source._faults["watch"].clear()
            await b.advance(10)
            assert b.names == ["a", "b"]
            assert not b.figures.missing
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_forbidden_resource_says_so_and_is_tried_again():
    """At most thirty seconds after it is allowed, it works (pitfall 13)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.fail_next(Forbidden(403, "Forbidden", "pods is forbidden"), times=1000)
            task = asyncio.create_task(b.reflector.run())
            await b.advance(300)
            assert b.figures.forbidden
            assert "403 Forbidden" in b.figures.error
            assert 10 <= b.figures.failures <= 20
            b.source._faults["watch"].clear()
            await b.advance(30)
            assert b.names == ["a", "b"]
            assert (b.figures.forbidden, b.figures.error) == (False, None)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_broken_line_is_asked_for_again_then_gone_around():
    """Once may be chance; twice at the same version is a poison line, and a list goes around it."""

    async def scenario():
        async with bench() as b:
            await b.advance(5)
            for _ in range(2):
                b.source.cut(MalformedAnswer("half a line"))
                await b.advance(2)
            assert b.versions() == ["", "2", "2"]
            assert b.source.watches()[-1].send_initial_events
            assert b.figures.relists == 1

    asyncio.run(scenario())


def test_a_broken_line_after_progress_is_chance_again():
    """Every version has its own second chance."""

    async def scenario():
        async with bench() as b:
            for n in range(4):
                b.source.add(pod(f"p{n}"))
                await b.settle()
                b.source.cut(MalformedAnswer("half a line"))
                await b.advance(40)
            assert b.figures.relists == 0
            assert b.figures.failures == 4

    asyncio.run(scenario())


def test_a_bug_in_a_source_does_not_end_it():
    """What nobody expected is counted, told and waited for."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.fail_next(ZeroDivisionError("a bug"), times=1)
            b.source.fail_next(KeyError("another"), verb="list", times=1)
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            assert "a bug" in b.figures.error
            await b.advance(60)
            assert b.names == ["a", "b"]
            assert b.figures.failures == 2
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_server_that_fails_on_streams_is_listed():
    """500 on a streaming list is waited out, and then the old way is tried (client-go 149)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.fail_next(ServerError(500, "InternalError", "no"), times=1)
            task = asyncio.create_task(b.reflector.run())
            await b.advance(1)
            assert b.names == ["a", "b"]
            assert len(b.source.lists()) == 1
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_list_that_hangs_is_given_up():
    """No question to a server is open for ever."""

    async def scenario():
        async with bench(streams=False, begin=False) as b:
            hanging = asyncio.Event()

            async def hangs(options, *, known, _list=b.source.list):
                b.source.list = _list
                await hanging.wait()

            b.source.list = hangs
            task = asyncio.create_task(b.reflector.run())
            await b.advance(122)
            assert b.names == ["a", "b"]
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_list_without_an_end_is_no_list():
    """The same continue token twice would go on for ever."""

    async def scenario():
        async with bench(streams=False, begin=False, objects="abc", page_size=1) as b:
            b.source.fail_next(InvalidRequest(422, "Invalid", ""), times=1)

            async def endless(options, *, known, _list=b.source.list):
                page = await _list(options, known=known)
                b.source._pages["again"] = ([pod("x", resourceVersion="1"), pod("y", resourceVersion="1")], 1)
                return type(page)(page.records, page.resource_version, "again", None)

            b.source.list = endless
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            assert "same continue token" in b.figures.error
            assert len(b.source.lists()) == 2
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_list_without_a_version_cannot_be_watched():
    """It is told, not taken for the version "0"."""

    async def scenario():
        async with bench(streams=False, begin=False) as b:

            async def versionless(options, *, known, _list=b.source.list):
                page = await _list(options, known=known)
                return type(page)(page.records, "", "", None)

            b.source.list = versionless
            task = asyncio.create_task(b.reflector.run())
            await b.settle()
            assert "no resource version" in b.figures.error
            assert b.names == []
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(scenario())


def test_a_fault_is_logged_once_and_its_end_too(caplog):
    """An error that lasts does not fill the log (pitfall 14)."""

    async def scenario():
        async with bench() as b:
            await b.advance(5)
            b.source.fail_next(Unreachable("connection refused"), times=5)
            b.source.cut()
            await b.advance(60)
            assert b.figures.error is None

    with caplog.at_level(logging.INFO, logger="declctl.informer"):
        asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["Pod: connection refused", "Pod: works again"]


def test_a_quiet_watch_that_opens_ends_an_error():
    """A healthy resource where nothing happens does not look broken: an open watch is proof enough."""

    async def scenario():
        async with bench() as b:
            b.source.cut(Unreachable("reset"))
            await b.settle()
            assert b.figures.error == "Pod: reset"
            await b.advance(1)
            assert b.figures.error is None
            assert b.figures.events.get("BOOKMARK", 0) == 0

    asyncio.run(scenario())


def test_an_on_fault_that_raises_is_no_fault_of_the_reflector(caplog):
    """User code does not stop the line (client-go 180)."""

    async def scenario():
        async with bench() as b:
            b.reflector.on_fault = lambda fault: 1 / 0
            b.source.cut(Unreachable("reset"))
            await b.advance(2)
            assert b.figures.state == "Watching"

    asyncio.run(scenario())
    assert "on_fault raised" in caplog.text


def test_events_are_counted_by_type():
    """Status tells how much of what a resource brings."""

    async def scenario():
        async with bench(objects=()) as b:
            b.source.add(pod("a"))
            b.source.modify(pod("a"))
            b.source.modify(pod("a"))
            b.source.delete("demo/a")
            await b.settle()
            assert b.figures.events == {"ADDED": 1, "MODIFIED": 2, "DELETED": 1}
            assert b.figures.last_event_at == 1000.0

    asyncio.run(scenario())


def test_the_version_is_the_last_in_arrival_order():
    """Versions are opaque: nothing is compared but equality (client-go 121)."""

    async def scenario():
        async with bench() as b:
            b.source.replay(EventType.MODIFIED, pod("a", uid="uid-1", resourceVersion="zebra"))
            b.source.replay(EventType.MODIFIED, pod("b", uid="uid-2", resourceVersion="aardvark"))
            await b.settle()
            assert b.reflector.last_sync_resource_version == "aardvark"

    asyncio.run(scenario())


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


def test_a_version_at_which_the_server_keeps_failing_is_gone_around():
    """Where every watch from a version is answered 500, a list finds what was missed after some tries."""

    async def scenario():
        async with bench() as b:
            b.source.fail_next(ServerError(500, "InternalError", "compacted"), times=6)
            b.source.cut()
            b.source.add(pod("c"))
            await b.advance(120)
            return b.names, b.figures

    names, figures = asyncio.run(scenario())
    assert names == ["a", "b", "c"]
    assert figures.relists == 1
    assert figures.error is None
