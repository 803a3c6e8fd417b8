"""SharedIndexInformer and its handlers: joining, leaving, syncing, and the end."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from declctl.errors import CacheError
from declctl.informer import (
    DeletedFinalStateUnknown,
    Indexer,
    Registration,
    ResourceEventHandlerFuncs,
    field_index,
    namespace_index,
)
from declctl.objects import Notification, ObjectView
from tests.rooms.informer.shapes import Recorder, made, pod, rest, running

SOON = 10.0  # seconds after which a test that waits for another thread gives up
KINDS = pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "loop"])


class Diary:
    """An asynchronous handler that writes down what it is called with."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        self.lines.append(f"{'initial' if is_in_initial_list else 'added'} {obj.name} {obj.resource_version}")

    async def on_update(self, old: ObjectView, new: ObjectView) -> None: ...

    async def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None: ...


class Held:
    """A handler whose calls begin, and end when they are let go; in a thread or on the loop."""

    def __init__(self, *, asynchronous: bool) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.names: list[str] = []
        self.is_async = asynchronous

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        return self._async(obj) if self.is_async else self._call(obj)

    def on_update(self, old: ObjectView, new: ObjectView) -> None: ...

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None: ...

    def _call(self, obj: ObjectView) -> None:
        self.begun.set()
        assert self.go.wait(SOON)
        self.names.append(obj.name)

    async def _async(self, obj: ObjectView) -> None:
        self.begun.set()
        while not self.go.is_set():
            await asyncio.sleep(0)
        self.names.append(obj.name)

    async def until_begun(self) -> None:
        while not self.begun.is_set():
            await asyncio.sleep(0)


def workers() -> list[str]:
    """The threads and tasks that call handlers of this module."""
    names = [t.name for t in threading.enumerate()] + [t.get_name() for t in asyncio.all_tasks()]
    return [name for name in names if name.startswith("listener") and "test_informer_handlers" in name]


@pytest.mark.client_go(192, "HasSynced (handler)", "Handler registration", "Late joiner", "isInInitialList")
async def test_handlers_join_before_and_while_it_runs():
    """Each has synced when it is through with its own initial adds; live events then reach both."""
    source, informer, clock = made()
    source.add(pod("a"))
    early, late = Diary(), Diary()
    first = informer.add_event_handler(early)
    opened: list[str] = []
    first.synced.on_open(lambda: opened.append("first"))
    assert (first.has_synced, first.why_not_synced()) == (False, "the cache has not synced")
    async with running(informer, clock):
        assert (first.has_synced, first.why_not_synced()) == (True, "")
        second = informer.add_event_handler(late)
        why = "1 changes of the first sync are not dealt with"
        assert (second.has_synced, second.why_not_synced()) == (False, why)
        await rest(clock)
        assert (second.has_synced, second.why_not_synced()) == (True, "")
        source.add(pod("b"))
        await rest(clock)
    assert opened == ["first"]
    assert early.lines == late.lines == ["initial a 1", "added b 2"]


@pytest.mark.client_go(183, 184, 185, 186, 191, "Handler registration", "RemoveEventHandler")
@pytest.mark.client_go("ShutDownEventHandler")
async def test_a_removed_handler_hears_nothing_more():
    """Its registration is gone at once, and what happens then is for the others.

    One handler may be registered twice: each registration hears all by itself, and one of them can go. What
    is not here, or was removed already, can be removed without harm.
    """
    source, informer, clock = made()
    foreign = made()[1].add_event_handler(Diary())
    diary, other, twice = Diary(), Diary(), Diary()
    source.add(pod("a"))
    async with running(informer, clock):
        gone = informer.add_event_handler(diary)
        informer.add_event_handler(other)
        note = ResourceEventHandlerFuncs(add=lambda obj, initial: twice.lines.append(obj.name))
        first, second = informer.add_event_handler(note), informer.add_event_handler(note)
        await asyncio.wait_for(asyncio.gather(first.synced.wait(), second.synced.wait()), SOON)
        await rest(clock)
        informer.remove_event_handler(foreign)
        await informer.shutdown_event_handler(foreign)
        assert (len(informer.processor), foreign.removed) == (4, False)
        for left in (3, 3):
            informer.remove_event_handler(gone)
            assert len(informer.processor) == left
            await informer.shutdown_event_handler(gone)
        first.remove()
        source.add(pod("b"))
        await rest(clock)
        while not second.listener.queue.idle:
            await asyncio.sleep(0)
        assert (gone.removed, gone.why_not_synced(), first.removed, second.removed) == (True, "", True, False)
    assert diary.lines == ["initial a 1"]
    assert other.lines == ["initial a 1", "added b 2"]
    assert twice.lines == ["a", "a", "b"]


@pytest.mark.client_go(196, 201, "HasSynced (handler)", "RemoveEventHandler", "ShutDownEventHandler")
@KINDS
async def test_removing_waits_for_nothing_and_shutting_down_for_the_call(asynchronous):
    """`remove` returns while the call goes on; `shutdown` when it is over and the worker gone.

    It has not synced then: whoever acts once it has synced would act on a part of what there is.
    """
    source, informer, clock = made()
    handler = Held(asynchronous=asynchronous)
    for name in ("a", "b", "c"):
        source.add(pod(name))
    async with running(informer, clock):
        registration = informer.add_event_handler(handler)
        await handler.until_begun()
        assert len(workers()) == 1
        informer.remove_event_handler(registration)
        during = list(handler.names)
        ending = asyncio.create_task(registration.shutdown())
        await clock.settle()
        waits = not ending.done()
        handler.go.set()
        await ending
        assert (during, waits, workers(), informer.statistics().processor.dropped) == ([], True, [], 2)
        await rest(clock)
        assert (registration.has_synced, registration.why_not_synced()) == (False, "it was removed")
    assert handler.names == ["a"], "the call that ran was completed, what was pending was dropped"


@pytest.mark.client_go("ShutDownEventHandler")
@KINDS
async def test_a_handler_that_waits_for_its_own_end_is_told_so(asynchronous):
    """Where client-go waits for ever there is an error that says what to do, and the handler is removed."""
    source, informer, clock = made()
    source.add(pod("a"))
    faults: list[str] = []
    loop = asyncio.get_running_loop()
    registrations: list[Registration] = []

    def shut_down(obj: ObjectView, initial: bool) -> None:
        ending = asyncio.run_coroutine_threadsafe(registrations[0].shutdown(), loop)
        try:
            ending.result(SOON)
        except CacheError as fault:
            faults.append(str(fault))

    async def shut_down_async(obj: ObjectView, initial: bool) -> None:
        try:
            await asyncio.create_task(registrations[0].shutdown())
        except CacheError as fault:
            faults.append(str(fault))

    async with running(informer, clock):
        add = shut_down_async if asynchronous else shut_down
        handler = ResourceEventHandlerFuncs(add=add)
        registrations.append(informer.add_event_handler(handler, name="guard"))
        while not faults:
            await asyncio.sleep(0)
        await registrations[0].shutdown()
        assert registrations[0].removed
    assert faults == ["guard can't wait for its own end: remove it, which waits for nothing"]


@pytest.mark.client_go("ShutDownEventHandler")
async def test_a_handler_may_begin_its_own_end_without_waiting_for_it():
    """What it starts and does not wait for ends it as soon as the call is over."""
    source, informer, clock = made()
    source.add(pod("a"))
    registrations: list[Registration] = []
    tasks: list[asyncio.Task[None]] = []

    async def begin(obj: ObjectView, initial: bool) -> None:
        tasks.append(asyncio.create_task(registrations[0].shutdown()))

    async with running(informer, clock):
        registrations.append(informer.add_event_handler(ResourceEventHandlerFuncs(add=begin)))
        await rest(clock)
        await tasks[0]
        assert workers() == []


@pytest.mark.client_go(193, "Stop order")
@KINDS
async def test_nothing_is_left_whenever_a_handler_joined(asynchronous):
    """Before the run, during it, or at an informer that never runs: nobody works, and no watch is open.

    The watch is closed before the listeners, and they before the informer: nothing is told to a listener that
    was closed, for there is nobody left who could tell.
    """
    source, informer, clock = made()
    _, never_run, _ = made()
    source.add(pod("a"))

    def handler() -> Held:
        held = Held(asynchronous=asynchronous)
        held.go.set()
        return held

    order: list[tuple[str, int]] = []
    never_run.add_event_handler(handler())
    registration = informer.add_event_handler(handler())
    registration.ended.on_open(lambda: order.append(("listener", source.open_watches)))
    informer.ended.on_open(lambda: order.append(("informer", len(informer.processor))))
    informer.add_listener(Recorder(), resync_period=5)
    async with running(informer, clock):
        informer.add_event_handler(handler())
        await rest(clock)
        assert source.open_watches == 1
    assert workers() == []
    await clock.settle()
    assert (source.open_watches, asyncio.all_tasks()) == (0, {asyncio.current_task()})
    assert order == [("listener", 0), ("informer", 0)]


@pytest.mark.client_go("Stop order", 201)
@KINDS
async def test_a_stop_waits_for_the_calls_that_run_and_drops_what_is_pending(asynchronous):
    """The call under way is completed before `run` returns; of what waits nothing is called."""
    source, informer, clock = made()
    handler = Held(asynchronous=asynchronous)
    for name in ("a", "b", "c"):
        source.add(pod(name))
    registration = informer.add_event_handler(handler)
    task = asyncio.create_task(informer.run())
    await handler.until_begun()
    task.cancel()
    await clock.settle()
    waits = not task.done()
    handler.go.set()
    await asyncio.wait([task])
    assert (waits, workers(), registration.listener.statistics().dropped) == (True, [], 2)
    assert handler.names == ["a"]


@pytest.mark.client_go("Stop order")
async def test_a_handler_that_hangs_does_not_hang_the_stop(caplog):
    """After ten seconds it is named and left: an async call is cancelled, a thread left to itself."""
    source, informer, clock = made()
    stuck = Held(asynchronous=False)
    cancelled: list[str] = []
    source.add(pod("a"))

    async def hang(obj: ObjectView, initial: bool) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(obj.name)

    informer.add_event_handler(stuck, name="stuck in a thread")
    informer.add_event_handler(ResourceEventHandlerFuncs(add=hang), name="stuck on the loop")
    task = asyncio.create_task(informer.run())
    await stuck.until_begun()
    task.cancel()
    await clock.advance(9.9)
    before = task.done()
    await clock.advance(0.2)
    await asyncio.wait([task])
    await clock.settle()
    stuck.go.set()
    assert (before, list(cancelled)) == (False, ["a"])
    told = [line for line in caplog.messages if "has not returned 10 s after the stop" in line]
    assert [("in a thread" in line, "on the loop" in line) for line in told] == [(True, False), (False, True)]
    gc.collect()  # asyncio logs a fault that nobody has read when it is collected
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.client_go(200, "Per-handler sequencing", "Per-handler buffer", "Core guarantee")
async def test_a_slow_handler_delays_neither_the_cache_nor_others_and_never_overlaps_with_itself():
    """While one is in its first call, the cache and another handler are up to date."""
    source, informer, clock = made()
    slow, quick = Held(asynchronous=False), Diary()
    async with running(informer, clock):
        registration = informer.add_event_handler(slow, name="slow")
        informer.add_event_handler(quick, name="quick")
        for number in range(1000):
            source.add(pod(f"p{number}"))
        await slow.until_begun()
        while len(quick.lines) < 1000:
            await asyncio.sleep(0)
        figures = informer.statistics().processor.handlers["slow"]
        cached = len(informer.indexer)
        slow.go.set()
        while not registration.listener.queue.idle:
            await asyncio.sleep(0)
        assert (cached, figures.delivered, figures.waiting) == (1000, 1, 999)
    assert slow.names == [f"p{number}" for number in range(1000)]


@pytest.mark.client_go(312, 336, "Run twice", "Add after stop")
async def test_after_its_end_nobody_joins_and_whoever_is_there_may_leave():
    """It can't be run again either, nor twice at once; `is_stopped` says so."""
    _, informer, clock = made()
    registration = informer.add_event_handler(Diary())
    async with running(informer, clock):
        with pytest.raises(CacheError, match=r"pods.*started already"):
            await informer.run()
        assert informer.is_stopped is False
    for add in (informer.add_event_handler, informer.add_listener):
        with pytest.raises(CacheError, match="has stopped"):
            add(Diary())
    with pytest.raises(CacheError, match="started already"):
        await informer.run()
    informer.remove_event_handler(registration)
    await registration.shutdown()
    assert (informer.is_stopped, informer.why_not_synced()) == (True, "")


@pytest.mark.client_go("Handler names", "Informer identity / metrics")
async def test_figures_of_handlers_go_by_their_names_and_end_with_them():
    """Given or derived names, told apart by a number; there is no registry in which they could stay."""
    source, informer, clock = made()
    source.add(pod("a"))
    async with running(informer, clock):
        for name in ("mine", "mine", None):
            registration = informer.add_event_handler(Diary(), name=name)
        await rest(clock)
        before = informer.statistics().processor
        registration.remove()
        after = informer.statistics().processor
    mine, again, derived = before.handlers
    assert (mine, again) == ("mine", "mine (2)")
    assert derived.endswith("Diary")
    assert before.handlers["mine"].delivered == 1
    assert (before.listeners, after.listeners) == (3, 2)
    assert list(after.handlers) == ["mine", "mine (2)"]


async def test_a_listener_that_leaves_while_it_hears_the_cache_has_not_synced():
    """It was given a slice of the cache, not all of it, and hears no more (client-go 191)."""
    source, informer, clock = made()
    for number in range(1200):
        source.add(pod(f"p{number}"))
    async with running(informer, clock):
        listener = Recorder()
        registration = informer.add_listener(listener)
        joining, told = registration.is_joining, len(listener.told)
        registration.remove()
        await rest(clock)
        assert (joining, registration.received_initial.is_open) == (True, False)
        assert len(listener.told) == told < 1200


@pytest.mark.client_go(193)
async def test_handlers_that_leave_before_the_first_sync_are_let_go():
    """A server that refuses for hours, and handlers that come and go meanwhile, do not fill the memory."""
    _, informer, clock = made()
    handlers = [Diary() for _ in range(3)]
    gone = [weakref.ref(handler) for handler in handlers]
    registrations = [informer.add_event_handler(handler) for handler in handlers]
    early = [registration.has_synced for registration in registrations]
    while registrations:
        registrations.pop().remove()
    handlers.clear()
    await rest(clock)
    gc.collect()
    assert (early, [each() for each in gone], workers()) == ([False] * 3, [None] * 3, [])


@pytest.mark.client_go("RemoveEventHandler")
async def test_a_listener_that_another_removes_in_the_same_distribution_hears_nothing_more():
    """Removing is at once, also from within: whoever removed it may have freed what it needs."""
    source, informer, clock = made()
    second = Recorder()
    registrations: list[Registration] = []

    class First:
        def add_all(self, notifications: Sequence[Notification]) -> None:
            registrations[1].remove()

    async with running(informer, clock):
        registrations += [informer.add_listener(First()), informer.add_listener(second)]
        source.add(pod("a"))
        await rest(clock)
    assert second.lines() == []


@pytest.mark.client_go("Registering from anywhere")
async def test_a_handler_in_a_thread_may_add_and_remove_handlers_and_indexes():
    """A `def` handler is called in a thread of its own: what it asks for is done on the informer's loop."""
    source, informer, clock = made()
    source.add(pod("a", node="n1"))
    done = threading.Event()
    late = Diary()
    faults: list[BaseException] = []

    def add(obj: ObjectView, initial: bool) -> None:
        try:
            gone = informer.add_event_handler(Diary())
            kept = informer.add_event_handler(late, name="late")
            informer.add_indexers({"byNode": field_index("spec.nodeName")})
            kept.retime(60)
            gone.remove()
            informer.remove_event_handler(gone)
            assert gone.removed
            assert [view.name for view in informer.lister.by_index("byNode", "n1")] == ["a"]
            informer.remove_indexers(["byNode"])
            with pytest.raises(CacheError, match="exists already"):
                informer.add_indexers({"x": namespace_index()})
        except BaseException as fault:  # it would be logged, and the test go on
            faults.append(fault)
        done.set()

    async with running(informer, clock):
        informer.add_indexers({"x": namespace_index()})
        informer.add_event_handler(ResourceEventHandlerFuncs(add=add))
        await asyncio.to_thread(done.wait, SOON)
        await rest(clock)
        assert len(informer.processor) == 2
    assert faults == []
    assert late.lines == ["initial a 1"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("spec.nodeName", r"field_index\('spec.nodeName'\)"),
        (7, r"a int, not a function.*field_index\("),
        (Diary().on_add, "asynchronous|await"),
    ],
)
def test_an_index_that_is_no_plain_function_is_refused(index, message):
    """It would be there, and stay empty."""
    _, informer, _ = made()
    for refused in (
        lambda: informer.add_indexers({"byNode": index}),
        lambda: made(indexers={"byNode": index}),
        lambda: informer.build_index("byNode", index),
        lambda: informer.indexer.add_indexers({"byNode": index}),
        lambda: Indexer({"byNode": index}),
    ):
        with pytest.raises(TypeError, match=message):
            refused()
    assert informer.lister.index_names() == []
