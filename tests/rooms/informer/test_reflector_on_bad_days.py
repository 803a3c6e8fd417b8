"""Faults: how they are told, waited for and gone around."""

import logging

import pytest

from declctl.errors import Forbidden, MalformedAnswer, NotFound, Unreachable
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


async def test_a_broken_line_has_its_second_chance_at_every_version():
    """Once may be chance; only twice at the same version is a poison line, which a list goes around."""
    async with bench() as b:
        await b.advance(5)
        for n in range(4):
            b.source.add(pod(f"p{n}"))
            await b.settle()
            b.source.cut(MalformedAnswer("half a line"))
            await b.advance(40)
        assert (b.figures.relists, b.figures.failures) == (0, 4)


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
