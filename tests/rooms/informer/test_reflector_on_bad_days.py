"""Faults: how they are told, waited for and gone around."""

import asyncio
import logging

import pytest

from declctl.errors import (
    Forbidden,
    MalformedAnswer,
    NotFound,
    ServerError,
    Unreachable,
)
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import pod


def test_a_missing_kind_is_told_and_starts_soon_after_it_appears():
    """Status says what is missing; the kind is found within ten seconds (pitfall 13)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.fail_next(NotFound(404, "NotFound", "the server has no Widget"), times=30)
            await b.begin()
            await b.advance(120)
            assert b.figures.missing
            assert b.figures.error == "Pod: 404 NotFound: the server has no Widget"
            assert b.figures.error_since == 1000.0
            b.source.calm()
            await b.advance(10)
            assert b.names == ["a", "b"]
            assert not b.figures.missing

    asyncio.run(scenario())


def test_a_forbidden_resource_says_so_and_is_tried_again():
    """At most thirty seconds after it is allowed, it works (pitfall 13)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.fail_next(Forbidden(403, "Forbidden", "pods is forbidden"), times=1000)
            await b.begin()
            await b.advance(300)
            assert b.figures.forbidden
            assert "403 Forbidden" in b.figures.error
            assert 10 <= b.figures.failures <= 20
            b.source.calm()
            await b.advance(30)
            assert b.names == ["a", "b"]
            assert (b.figures.forbidden, b.figures.error) == (False, None)

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
            await b.begin()
            assert "a bug" in b.figures.error
            await b.advance(60)
            assert b.names == ["a", "b"]
            assert b.figures.failures == 2

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


@pytest.mark.client_go("Watch error handler")
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


@pytest.mark.client_go(129, "500 inside the stream")
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


@pytest.mark.client_go("Reflector metrics")
def test_a_reflector_tells_what_it_did():
    """Figures for every kind of thing that happens, at any moment."""

    async def scenario():
        async with bench(streams=False, objects="abc", page_size=2) as b:
            b.source.add(pod("d"))
            b.source.modify(pod("a"))
            b.source.delete("demo/b")
            await b.advance(5)
            b.source.cut(Unreachable("reset"))
            await b.settle()
            during = b.figures
            await b.advance(100)
            b.source.cut(EXPIRED)
            await b.advance(1)
            return during, b.figures

    during, after = asyncio.run(scenario())
    assert (during.state, during.error, during.error_since) == ("BackingOff", "Pod: reset", 1005.0)
    assert (during.failures, during.back_offs, during.waited) == (1, 1, 0.8)
    assert (after.state, after.error, after.error_since) == ("Watching", None, None)
    assert (after.rounds, after.lists, after.relists, after.streams) == (2, 2, 1, 0)
    assert (after.pages, after.items_listed) == (4, 3)
    assert after.watches == 5  # a stream that was refused, two of either list, and one that fell silent
    assert (after.idle_closes, after.skipped, after.kept_raw, after.last_decode_warning) == (1, 0, 0, None)
    assert after.events == {"ADDED": 1, "MODIFIED": 1, "DELETED": 1}
    assert (after.resource_version, after.last_event_at) == ("6", 1105.0)


@pytest.mark.client_go(138, "Type description / name")
def test_faults_name_what_is_listed():
    """In the words of the source, so that nobody has to look for the caller's line."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.fail_next(Unreachable("connection refused"))
            await b.begin()
            return b.figures.error

    assert asyncio.run(scenario()) == "Pod: connection refused"
