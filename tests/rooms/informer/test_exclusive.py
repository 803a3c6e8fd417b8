"""An informer for one user: a cache and a handler, without sharing."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from declctl.errors import NotSynced
from declctl.informer import (
    Controller,
    DeletedFinalStateUnknown,
    FakeControllerSource,
    Lister,
    ResourceEventHandlerFuncs,
    field_index,
    new_informer,
)
from declctl.kit import ManualClock
from declctl.objects import ObjectView
from tests.rooms.informer.shapes import fresh_projection, pod, rest

QUEUES = pytest.mark.parametrize("queue", ["RealFIFO", "DeltaFIFO"])
Gone = ObjectView | DeletedFinalStateUnknown


def last_state(obj: Gone) -> ObjectView:
    return obj.obj if isinstance(obj, DeletedFinalStateUnknown) else obj


class Bench:
    """An exclusive informer, its source and its clock; `lines` is for what a handler writes down."""

    def __init__(self, handler: Any = None, **more: Any) -> None:
        self.clock = ManualClock()
        self.source = FakeControllerSource(projection=fresh_projection())
        self.lines: list[str] = []
        self.lister: Lister
        self.controller: Controller
        self.lister, self.controller = new_informer(
            self.source, handler or self.diary(), clock=self.clock, **more
        )

    def diary(self) -> ResourceEventHandlerFuncs:
        return ResourceEventHandlerFuncs(
            add=lambda obj, initial: self.note("initial" if initial else "added", obj),
            update=lambda old, new: self.note(f"{old.resource_version} to", new),
            delete=lambda obj: self.note("deleted", last_state(obj)),
        )

    def note(self, what: str, obj: ObjectView) -> None:
        self.lines.append(f"{what} {obj.name} {obj.resource_version}")

    @contextlib.asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.controller.run())
        await rest(self.clock)
        yield
        await rest(self.clock)
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.client_go("Low-level controller")
@QUEUES
async def test_a_cache_and_a_handler_without_sharing(queue):
    """First what is there, then what happens; the lister has it, with its indexes."""
    bench = Bench(queue=queue, indexers={"node": field_index("spec.nodeName")})
    bench.source.add(pod("a", node="n1"))
    async with bench.runs():
        assert bench.controller.has_synced
        bench.source.add(pod("b", node="n1"))
        bench.source.modify(pod("a", node="n2"))
        await rest(bench.clock)
        assert [view.name for view in bench.lister.by_index("node", "n1")] == ["b"]
        bench.source.delete("demo/a")
    assert Counter(bench.lines) == Counter(["initial a 1", "added b 2", "1 to a 3", "deleted a 4"])
    assert bench.controller.last_sync_resource_version == "4"


@pytest.mark.client_go(172)
async def test_the_cache_stands_where_the_handler_is():
    """However many changes come at once: when it is told of one, the next is not in the cache yet."""
    seen: list[tuple[str, Sequence[str]]] = []

    def look(what: str) -> None:
        seen.append((what, [f"{view.name} {view.resource_version}" for view in bench.lister.list()]))

    bench = Bench(
        ResourceEventHandlerFuncs(
            add=lambda obj, initial: look("add"),
            update=lambda old, new: look("update"),
            delete=lambda obj: look("delete"),
        )
    )
    async with bench.runs():
        bench.source.add(pod("a"))
        bench.source.modify(pod("a"))
        bench.source.delete("demo/a")
    assert seen == [("add", ["a 1"]), ("update", ["a 2"]), ("delete", [])]


@pytest.mark.client_go(166, "Low-level controller", "Handler panics")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_handler_that_raises_ends_the_run(asynchronous):
    """Its own exception comes out of `run`; the watch and the queue are closed."""
    seen: list[str] = []

    def add(obj: ObjectView, initial: bool) -> None:
        seen.append(obj.name)
        raise ZeroDivisionError(obj.name)

    async def add_async(obj: ObjectView, initial: bool) -> None:
        await asyncio.sleep(0)
        add(obj, initial)

    bench = Bench(ResourceEventHandlerFuncs(add=add_async if asynchronous else add))
    bench.source.add(pod("a"))
    bench.source.add(pod("b"))
    with pytest.raises(ZeroDivisionError, match="a"):
        asyncio.run(bench.controller.run())
    assert seen == ["a"]
    assert (bench.source.open_watches, bench.controller.has_synced) == (0, False)


@pytest.mark.client_go("Low-level controller")
async def test_an_asynchronous_handler_is_awaited_before_the_next_change():
    """One at a time, and `has_synced` only when it is through with the first list."""
    states: list[tuple[str, bool]] = []

    async def add(obj: ObjectView, initial: bool) -> None:
        states.append((f"begin {obj.name}", bench.controller.has_synced))
        await asyncio.sleep(0)
        states.append((f"end {obj.name}", bench.controller.has_synced))

    bench = Bench(ResourceEventHandlerFuncs(add=add))
    bench.source.add(pod("a"))
    bench.source.add(pod("b"))
    async with bench.runs():
        bench.source.add(pod("c"))
    calls = [(name, name == "c") for name in "abc"]
    assert states == [(f"{what} {name}", synced) for name, synced in calls for what in ("begin", "end")]


@pytest.mark.client_go(171, "isInInitialList")
@QUEUES
async def test_only_the_first_list_is_initial(queue):
    """After the watch was lost and everything listed again, what is new is not initial.

    The cache is told again every period, without a question to the server.
    """
    bench = Bench(queue=queue, resync_period=10)
    bench.source.add(pod("a"))
    async with bench.runs():
        bench.source.cut()
        bench.source.delete("demo/a")
        bench.source.add(pod("b"))
        bench.source.compact()
        await bench.clock.advance(5)
        asked = len(bench.source.requests)
        await bench.clock.advance(20)
        assert len(bench.source.requests) == asked
    assert sorted(bench.lines) == ["3 to b 3", "3 to b 3", "added b 3", "deleted a 1", "initial a 1"]


async def test_a_cache_without_sharing_is_not_taken_for_an_empty_one():
    """Reads raise until the handler is through with the first list, unless that was not wanted."""
    checked, unchecked = Bench(), Bench(require_sync=False)
    for bench in (checked, unchecked):
        bench.source.add(pod("a"))
    with pytest.raises(NotSynced, match="has not synced"):
        checked.lister.list()
    assert unchecked.lister.list() == []
    async with checked.runs():
        assert [view.name for view in checked.lister.list()] == ["a"]
