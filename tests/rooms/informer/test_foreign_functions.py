"""Functions that users give to the machinery: none is silently true, and none ends it silently."""

import asyncio
import logging
from typing import Any

import pytest

from declctl.decoding import Projection
from declctl.errors import CacheError
from declctl.informer import (
    Config,
    Controller,
    ExpirationCache,
    FakeControllerSource,
    ListPager,
    RealFIFO,
    Reflector,
    ResourceEventHandlerFuncs,
    SharedIndexInformer,
    SharedInformerFactory,
    new_informer,
)
from declctl.informer.queues.namespaced_fifo import NamespacedFIFO
from declctl.informer.reflector.namespaces import NamespaceReflectors
from declctl.informer.stores.caches import FakeExpirationPolicy
from declctl.informer.watches import (
    RetryWatcher,
    informer_watcher,
    until,
    until_with_sync,
    until_without_retry,
)
from declctl.kit import ManualClock
from declctl.objects import ListOptions, ListPage
from tests.rooms.informer.reflecting import bench
from tests.rooms.informer.shapes import made, pod, record, rest, running


async def yes(*_: Any) -> bool:
    """It counts as true, whatever it would say."""
    return False


def hidden(*_: Any) -> Any:
    """What can't be seen to be asynchronous before it is called."""
    return yes()


class Expiring:
    async def is_expired(self, entry: Any) -> bool:
        return False


async def page(_: ListOptions) -> ListPage:
    return ListPage([record("a")], "1", None, None)


def reflected(on_fault: Any) -> Reflector:
    return Reflector(FakeControllerSource(), RealFIFO(), clock=ManualClock(), on_fault=on_fault)


def reflected_by_namespace(on_fault: Any) -> NamespaceReflectors:
    return NamespaceReflectors(
        Any, NamespacedFIFO(), clock=ManualClock(), known=Any, count_in=Any, options=Any, on_fault=on_fault
    )


class Client:
    def source(self, gvk: Any, *, projection: Projection, **_: Any) -> FakeControllerSource:
        return FakeControllerSource(projection=projection)

    async def find_resource(self, name: str) -> Any: ...


GIVEN = {
    "condition 1": lambda: asyncio.run(until("1", FakeControllerSource(), yes, timeout=1)),
    "condition 2": lambda: asyncio.run(until_with_sync(FakeControllerSource(), None, lambda _: True, yes)),
    "the precondition": lambda: asyncio.run(until_with_sync(FakeControllerSource(), yes, timeout=1)),
    "each_list_item": lambda: asyncio.run(ListPager(page).each_list_item(ListOptions(), yes)),
    "is_expired": lambda: ExpirationCache(Expiring(), clock=ManualClock()),
    "the transform": lambda: made()[1].set_transform(yes),
    "the transform ": lambda: Projection(api_version="v1", kind="Pod", transform=yes),
    "the transform  ": lambda: SharedInformerFactory(Client(), transform=yes).informer("v1", "Pod"),
    "the watch error handler": lambda: made()[1].set_watch_error_handler(yes),
    "on_fault": lambda: reflected(yes),
    "on_fault ": lambda: reflected_by_namespace(yes),
    "should_resync": lambda: Controller(
        Config(queue=RealFIFO(), source=FakeControllerSource(), process=lambda _: None, should_resync=yes)
    ),
    "the function of the index 'x'": lambda: SharedIndexInformer(
        FakeControllerSource(), name="pods", indexers={"x": yes}
    ),
}


@pytest.mark.parametrize("role", GIVEN)
def test_an_asynchronous_function_is_refused_by_its_role(role):
    """Nobody awaits it there: a condition would be met at once, an expiration never happen."""
    with pytest.raises(TypeError, match=f"{role.strip()}.* it cannot be awaited: write `def`"):
        GIVEN[role]()


@pytest.mark.filterwarnings("error")
def test_what_returns_a_coroutine_is_refused_when_it_is_called():
    """A lambda around an `async def` is one of those."""
    source = FakeControllerSource()
    source.add(pod("a"))

    async def events() -> Any:
        async with informer_watcher(source) as watcher:
            return await until_without_retry(watcher, hidden)

    expiring = ExpirationCache(FakeExpirationPolicy(hidden), clock=ManualClock())
    expiring.add(record("a"))
    for called in (
        lambda: asyncio.run(events()),
        lambda: asyncio.run(until_with_sync(source, hidden, timeout=5)),
        lambda: asyncio.run(ListPager(page).each_list_item(ListOptions(), hidden)),
        lambda: expiring.get_by_key("demo/a"),
    ):
        with pytest.raises(TypeError, match="returned a coroutine, which has done nothing yet"):
            called()


async def test_a_source_that_raises_cancelled_error_does_not_end_the_informer():
    """Something that it awaits was cancelled: the cache would stand still for ever, without a word."""
    async with bench(streams=False, begin=False, watch_list=False) as b:
        faults = iter([asyncio.CancelledError(), None])

        async def listed(options, *, known, _list=b.source.list):
            if (fault := next(faults, None)) is not None:
                raise fault
            return await _list(options, known=known)

        b.source.list = listed
        await b.begin()
        assert "the source raised CancelledError" in b.figures.error
        await b.advance(5)
        assert (b.names, b.figures.error) == (["a", "b"], None)


async def test_a_source_that_raises_cancelled_error_does_not_end_a_retry_watcher():
    """Whoever reads it would end as if somebody had cancelled it; the watch is tried again."""
    source, clock = FakeControllerSource(), ManualClock()
    source.add(pod("a"))
    watch, faults = source.watch, iter([asyncio.CancelledError()])

    async def watched(options: Any, *, known: Any = None) -> Any:
        if (fault := next(faults, None)) is not None:
            raise fault
        async for batch in watch(options, known=known):
            yield batch

    source.watch = watched
    async with RetryWatcher(source, "1", clock=clock) as events:
        reading = asyncio.create_task(anext(events))
        await clock.advance(5)
        source.add(pod("b"))
        await clock.advance(5)
        assert (await reading).obj.name == "b"


@pytest.mark.client_go("Watch error handler")
@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, hidden])
async def test_a_watch_error_handler_that_raises_is_logged_and_ends_nothing(raised, caplog):
    """The reflector goes on listing."""
    source, informer, clock = made()
    source.add(pod("a"))
    source.fail_next(OSError("away"), verb="watch")

    def handler(_: Exception) -> Any:
        if raised is hidden:
            return hidden()
        raise raised

    with caplog.at_level(logging.ERROR):
        informer.set_watch_error_handler(handler)
        async with running(informer, clock):
            await clock.advance(60)
            assert informer.has_synced
    assert "on_fault raised" in caplog.text


async def test_an_exclusive_informer_whose_handler_raises_cancelled_error_says_so():
    """`run` ends with a fault, not as if somebody had cancelled it."""
    source, clock = FakeControllerSource(), ManualClock()
    source.add(pod("a"))

    async def add(*_: Any) -> None:
        raise asyncio.CancelledError

    _, controller = new_informer(source, ResourceEventHandlerFuncs(add=add), clock=clock, name="pods")
    task = asyncio.create_task(controller.run())
    await rest(clock)
    fault = task.exception()
    assert isinstance(fault, CacheError)
    assert str(fault) == "pods: the process function raised CancelledError"


class Broken(Exception):
    """An exception whose text can't be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("raised", [Broken, SystemExit, asyncio.CancelledError, KeyError])
@pytest.mark.parametrize("role", ["index", "transform"])
async def test_whatever_an_index_function_or_a_transform_raises_ends_no_informer(raised, role):
    """The object is left out of the index, or of the cache; other objects are not concerned."""

    def fails_for_a(obj: Any) -> Any:
        if obj["metadata"]["name"] == "a":
            raise raised
        return ["x"] if role == "index" else obj

    source, informer, clock = made(indexers={"x": fails_for_a} if role == "index" else {})
    if role == "transform":
        informer.set_transform(fails_for_a)
    source.add(pod("a"))
    source.add(pod("b"))
    async with running(informer, clock):
        names, figures = ([obj.name for obj in informer.lister.list()], informer.statistics())
    assert "b" in names
    if role == "index":
        times, fault = figures.index_faults["x"]
        assert (names, times) == (["a", "b"], 1)
        assert raised.__name__ in fault
    else:
        assert names == ["b"]


async def test_a_fault_whose_text_can_not_be_shown_does_not_end_the_reflector():
    """It is told by its type, and the next attempt succeeds."""
    source, informer, clock = made()
    source.add(pod("a"))
    source.fail_next(Broken(), verb="list")
    async with running(informer, clock):
        await clock.advance(60)
        assert informer.has_synced
