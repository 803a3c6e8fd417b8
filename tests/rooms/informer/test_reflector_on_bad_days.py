"""Faults: how they are told, waited for and gone around."""

import logging

import pytest

from declctl.errors import Forbidden, MalformedAnswer, NotFound, ServerError, Unreachable
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import pod


@pytest.mark.client_go(138, "Type description / name")
@pytest.mark.parametrize(
    ("fault", "soon", "failures"),
    [
        (NotFound(404, "NotFound", "the server has no Widget"), 10, range(27, 34)),
        (Forbidden(403, "Forbidden", "pods is forbidden"), 30, range(10, 21)),
    ],
    ids=["missing", "forbidden"],
)
async def test_what_can_not_be_had_is_told_and_starts_soon_after_it_can(fault, soon, failures):
    """Status says it in the words of the source; a kind is found in ten seconds, a right in thirty."""
    async with bench(begin=False) as b:
        b.source.fail_next(fault, times=1000)
        await b.begin()
        await b.advance(300)
        assert b.figures.error == f"Pod: {fault}"
        assert b.figures.error_since == 1000.0
        assert (b.figures.missing, b.figures.forbidden) == (soon == 10, soon == 30)
        assert b.figures.failures in failures
        b.source.calm()
        await b.advance(soon)
        assert b.names == ["a", "b"]
        assert (b.figures.missing, b.figures.forbidden, b.figures.error) == (False, False, None)


@pytest.mark.parametrize("progress", [False, True])
async def test_a_broken_line_is_asked_for_again_then_gone_around(progress):
    """Once may be chance; twice at the same version is a poison line, and a list goes around it.

    After progress it is chance again: every version has its own second chance.
    """
    async with bench() as b:
        await b.advance(5)
        for n in range(4 if progress else 2):
            if progress:
                b.source.add(pod(f"p{n}"))
                await b.settle()
            b.source.cut(MalformedAnswer("half a line"))
            await b.advance(40 if progress else 2)
        if progress:
            assert (b.figures.relists, b.figures.failures) == (0, 4)
        else:
            assert b.versions() == ["", "2", "2"]
            assert b.source.watches()[-1].send_initial_events
            assert b.figures.relists == 1


async def test_a_bug_in_a_source_does_not_end_it():
    """What nobody expected is counted, told and waited for."""
    async with bench(begin=False) as b:
        b.source.fail_next(ZeroDivisionError("a bug"), times=1)
        b.source.fail_next(KeyError("another"), verb="list", times=1)
        await b.begin()
        assert "a bug" in b.figures.error
        await b.advance(60)
        assert b.names == ["a", "b"]
        assert b.figures.failures == 2


async def test_a_fault_is_logged_once_and_its_end_too(caplog):
    """An error that lasts does not fill the log (pitfall 14)."""
    with caplog.at_level(logging.INFO, logger="declctl.informer"):
        async with bench() as b:
            await b.advance(5)
            b.source.fail_next(Unreachable("connection refused"), times=5)
            b.source.cut()
            await b.advance(60)
            assert b.figures.error is None
    assert [record.message for record in caplog.records] == ["Pod: connection refused", "Pod: works again"]


@pytest.mark.client_go("Watch error handler")
async def test_an_on_fault_that_raises_is_no_fault_of_the_reflector(caplog):
    """User code does not stop the line (client-go 180)."""
    async with bench() as b:
        b.reflector.on_fault = lambda fault: 1 / 0
        b.source.cut(Unreachable("reset"))
        await b.advance(2)
        assert b.figures.state == "Watching"
    assert "on_fault raised" in caplog.text


@pytest.mark.client_go(129, "500 inside the stream")
async def test_a_version_at_which_the_server_keeps_failing_is_gone_around():
    """Where every watch from a version is answered 500, a list finds what was missed after some tries."""
    async with bench() as b:
        b.source.fail_next(ServerError(500, "InternalError", "compacted"), times=6)
        b.source.cut()
        b.source.add(pod("c"))
        await b.advance(120)
        names, figures = (b.names, b.figures)
    assert names == ["a", "b", "c"]
    assert figures.relists == 1
    assert figures.error is None


async def test_a_quiet_watch_that_opens_ends_an_error():
    """A healthy resource where nothing happens does not look broken: an open watch is proof enough."""
    async with bench() as b:
        b.source.cut(Unreachable("reset"))
        await b.settle()
        assert b.figures.error == "Pod: reset"
        await b.advance(1)
        assert b.figures.error is None
        assert b.figures.events.get("BOOKMARK", 0) == 0


@pytest.mark.client_go("Reflector metrics")
async def test_a_reflector_tells_what_it_did():
    """Figures for every kind of thing that happens, at any moment."""
    async with bench(streams=False, objects="abc", page_size=2) as b:
        b.source.add(pod("d"))
        for _ in range(2):
            b.source.modify(pod("a"))
        b.source.delete("demo/b")
        await b.advance(5)
        b.source.cut(Unreachable("reset"))
        await b.settle()
        during = b.figures
        await b.advance(100)
        b.source.cut(EXPIRED)
        await b.advance(1)
        after = b.figures
    assert (during.state, during.error, during.error_since) == ("BackingOff", "Pod: reset", 1005.0)
    assert (during.failures, during.back_offs, during.waited) == (1, 1, 0.8)
    assert (after.state, after.error, after.error_since) == ("Watching", None, None)
    assert (after.rounds, after.lists, after.relists, after.streams) == (2, 2, 1, 0)
    assert (after.pages, after.items_listed) == (4, 3)
    assert after.watches == 5  # a stream that was refused, two of either list, and one that fell silent
    assert (after.idle_closes, after.skipped, after.kept_raw, after.last_decode_warning) == (1, 0, 0, None)
    assert after.events == {"ADDED": 1, "MODIFIED": 2, "DELETED": 1}
    assert (during.last_event_at, after.last_event_at, after.resource_version) == (1000.0, 1105.0, "7")
