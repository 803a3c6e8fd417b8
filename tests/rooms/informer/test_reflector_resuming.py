"""A reflector that begins with the objects of an earlier process."""

import contextlib

import pytest

from declctl.errors import Forbidden, NotFound, ServerError, Unreachable
from tests.rooms.informer.reflecting import EXPIRED, Bench, bench
from tests.rooms.informer.shapes import pod


async def _kept(b):
    """What a first process has kept: its records, and their version."""
    await b.begin()
    await b.stop()
    records, version = b.store.list(), b.reflector.last_sync_resource_version
    b.source.requests.clear()
    return records, version


@contextlib.asynccontextmanager
async def _resumed(b, kept, *, seconds=1.0):
    """The reflector of the next process, with a store of its own, over the same server."""
    again = Bench()
    again.source, again.reflector.source = b.source, b.source
    again.reflector.begin_with(*kept)
    try:
        await again.begin()
        await again.advance(seconds)
        yield again
    finally:
        await again.stop()


CHANGES = {
    "nothing": lambda source: None,
    "a change": lambda source: source.modify(pod("a", node="n")),
    "all kinds": lambda source: [
        source.modify(pod("a", node="n")),
        source.delete("demo/b"),
        source.add(pod("c")),
        source.delete("demo/c"),
        source.add(pod("d")),
    ],
    "other resources": lambda source: [source.advance() for _ in range(3)],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_kept_objects_are_brought_to_the_state_of_now(change):
    """Without a LIST of them, by the watch that goes on; the store receives them once, and complete."""
    async with bench(begin=False) as b:
        kept = await _kept(b)
        CHANGES[change](b.source)
        async with _resumed(b, kept) as again:
            assert again.agrees()
            figures = again.figures
            assert (figures.lists, figures.watches, figures.resumes, figures.state) == (0, 1, 1, "Watching")
            assert [request.limit for request in b.source.lists()] == [1]  # for the version of now
            b.source.add(pod("after"))
            await again.settle()
            assert again.agrees()
            assert again.faults == []


@pytest.mark.parametrize(
    ("fault", "resumes"),
    [
        (Unreachable("no route"), 1),
        (Forbidden(403, "Forbidden", "no"), 1),
        (ServerError(500, "InternalError", "no"), 1),
        (NotFound(404, "NotFound", "no such kind"), 0),
    ],
)
async def test_a_fault_is_waited_for_and_kept_objects_are_used_where_that_helps(fault, resumes):
    """A server that is away at the start costs no LIST."""
    async with bench(begin=False) as b:
        kept = await _kept(b)
        b.source.delete("demo/b")
        b.source.fail_next(fault)
        async with _resumed(b, kept) as again:
            await again.advance(60)
            assert again.agrees()
            assert (again.figures.resumes, len(again.faults)) == (resumes, 1)


async def test_a_compacted_version_is_listed():
    """The server has no history to go on from: one LIST, without a wait."""
    async with bench(begin=False, streams=False) as b:
        kept = await _kept(b)
        b.source.delete("demo/b")
        b.source.compact()
        async with _resumed(b, kept, seconds=0.5) as again:
            assert again.agrees()
            assert (again.figures.lists, again.figures.resumes) == (1, 0)


async def test_kept_objects_without_a_proof_are_not_used():
    """The version can't be read, and the newest kept object is gone: it may be another cluster."""
    async with bench(begin=False) as b:
        kept = await _kept(b)
        b.source.delete("demo/b")
        b.source.fail_next(EXPIRED, verb="list")  # the LIST at the kept version; a watch from it is possible
        async with _resumed(b, kept) as again:
            assert again.agrees()
            assert (again.figures.resumes, again.faults) == (0, [])


async def test_objects_of_another_history_are_never_used():
    """The server was put back to a backup, or it is another one: all is listed."""
    async with bench(begin=False) as b:
        backup = b.source.save()
        b.source.add(pod("lost"))
        kept = await _kept(b)
        b.source.restore(backup)
        b.source.modify(pod("a", node="n"))
        async with _resumed(b, kept, seconds=10) as again:
            assert again.agrees()
            assert again.figures.resumes == 0


async def test_a_busy_resource_does_not_hold_up_the_start():
    """Changes that come after the start are none of the past: no moment of silence is waited for."""
    async with bench(begin=False) as b:
        kept = await _kept(b)
        b.source.advance()
        async with _resumed(b, kept, seconds=0) as again:
            assert not len(again.store)  # what the other resource's change has brought is not known yet
            for number in range(5):
                b.source.modify(pod("a", node=f"n{number}"))
                await again.advance(0.05)
            assert again.agrees()
