"""Streaming lists that do not work: what is asked for instead, and for how long."""

import logging

import pytest

from declctl.errors import ServerError, TooManyRequests, Unreachable
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import pod


@pytest.mark.client_go(150, "WatchList fallback")
async def test_a_server_that_does_not_stream_is_not_asked_again():
    async with bench(streams=False) as b:
        b.source.compact()
        b.source.advance()
        b.source.cut(EXPIRED)
        await b.advance(2)
        assert [r.send_initial_events for r in b.source.watches()] == [True, False, False]
        assert b.figures.relists == 1


@pytest.mark.client_go("WatchList fallback")
async def test_a_stream_without_an_end_is_given_up_for_a_list(caplog):
    """A proxy that swallows the end bookmark does not keep the cache empty for ever (pitfall 12).

    Whoever waits for a cache reads why, every 10 s, and what is done about it; `status` counts it.
    """
    caplog.set_level(logging.INFO, "declctl.informer")

    def given_up():
        return [message for message in caplog.messages if "it is listed in pages" in message][-1]

    silent = "Pod: the streaming list said nothing, not even a bookmark, for 30 s; it is listed in pages"
    async with bench(begin=False) as b:
        b.source.ends_initial_events = False
        await b.begin()
        await b.advance(29)
        assert caplog.messages == [
            f"Pod: the streaming list is not complete after {n} s (2 objects so far, nothing for {n} s)"
            for n in (10, 20)
        ]
        assert b.names == []
        await b.advance(1)
        assert (b.names, len(b.source.lists())) == (["a", "b"], 1)
        assert (b.figures.streams_given_up, given_up()) == (1, f"{silent} this time")
        b.source.cut(EXPIRED)
        await b.advance(31)
        assert (b.figures.streams_given_up, given_up()) == (2, f"{silent} from now on")


@pytest.mark.client_go("WatchList fallback", "An end bookmark that never comes")
async def test_a_stream_that_never_ends_is_given_up_for_a_list():
    """Also when it keeps talking."""
    async with bench(begin=False) as b:
        b.source.ends_initial_events = False
        await b.begin()
        for n in range(6):
            b.source.add(pod(f"p{n}"))
            await b.advance(20)
        assert len(b.source.lists()) == 1
        assert len(b.names) == 8


@pytest.mark.client_go(149, "An initial stream that is cut before its end")
@pytest.mark.parametrize("how", ["it ends early", "500"])
async def test_a_server_that_does_not_stream_lists_well_is_listed(how):
    """At once where a stream ended; 500 is waited out, and then the old way is tried (client-go 149)."""
    async with bench(begin=False) as b:
        if how == "500":
            b.source.fail_next(ServerError(500, "InternalError", "no"), times=1)
        b.source.ends_initial_events = how == "500"
        await b.begin()
        b.source.cut()
        await b.settle()
        assert (b.names, b.figures.failures) == (([], 1) if how == "500" else (["a", "b"], 0))
        await b.advance(1)
        assert b.names == ["a", "b"]
        assert len(b.source.lists()) == 1


@pytest.mark.client_go(153, "WatchList fallback")
@pytest.mark.parametrize(
    "fault", [TooManyRequests(429, "TooManyRequests", ""), Unreachable("connection refused")]
)
async def test_a_busy_server_is_asked_for_the_stream_again(fault):
    """Not for a list, which would cost it more."""
    async with bench(begin=False) as b:
        b.source.fail_next(fault, times=2)
        await b.begin()
        await b.advance(5)
        assert b.names == ["a", "b"]
        assert [w.send_initial_events for w in b.source.watches()] == [True] * 3
        assert (b.source.lists(), b.figures.back_offs) == ([], 2)


@pytest.mark.client_go("WatchList fallback")
async def test_a_stream_at_a_useless_version_asks_for_the_most_recent():
    """At once, and by a stream."""
    async with bench() as b:
        await b.advance(5)
        b.source.fail_next(EXPIRED)
        b.source.cut(EXPIRED)
        await b.advance(1)
        assert b.versions() == ["", "2", ""]
        assert all(w.send_initial_events for w in b.source.watches())
        assert b.source.lists() == []


@pytest.mark.client_go("WatchList fallback")
async def test_streams_are_given_up_after_two_without_an_end():
    """One may be an accident; a stream that was complete in between begins the count anew."""
    async with bench(begin=False) as b:

        async def relist(*, ends):
            b.source.ends_initial_events = ends
            b.source.add(pod(f"at-{b.source.resource_version}"))
            await b.settle()
            b.source.cut(EXPIRED)
            await b.advance(31)
            assert b.agrees()
            asked = [w.send_initial_events for w in b.source.watches()]
            b.source.requests.clear()
            return asked

        b.source.ends_initial_events = False
        await b.begin()
        await b.advance(31)
        b.source.requests.clear()
        assert await relist(ends=True) == [True]
        assert await relist(ends=False) == [True, False]
        assert await relist(ends=False) == [True, False]
        assert await relist(ends=True) == [False]
        assert b.figures.failures == 0


@pytest.mark.client_go(156)
@pytest.mark.parametrize("streams", [True, False])
async def test_the_store_is_kept_until_everything_is_there_again(streams):
    """An expired watch leaves the cache as it was, however long the next list takes."""
    async with bench(streams=streams) as b:
        await b.advance(5)
        b.source.fail_next(EXPIRED)
        b.source.fail_next(Unreachable("no"), verb="watch" if streams else "list", times=3)
        b.source.delete("demo/a")
        b.source.add(pod("c"))
        b.source.compact()
        await b.settle()
        b.source.cut()
        kept = b.names
        await b.advance(3)
        assert b.names == kept
        await b.advance(30)
        assert b.agrees()
