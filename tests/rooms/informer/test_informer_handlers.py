"""SharedIndexInformer and its handlers: joining, leaving, syncing, and the end."""

import asyncio
import gc
import random
import threading
import weakref
from collections import Counter
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

    def __init__(self, *, bad: str = "") -> None:
        self.lines: list[str] = []
        self.state: dict[str, str] = {}
        self._bad = bad

    async def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        self.lines.append(f"{'initial' if is_in_initial_list else 'added'} {obj.name} {obj.resource_version}")
        if obj.name.startswith(self._bad or "-"):
            raise ValueError(obj.name)
        assert obj.name not in self.state, "added twice"
        self.state[obj.name] = obj.resource_version

    async def on_update(self, old: ObjectView, new: ObjectView) -> None:
        self.lines.append(f"updated {new.name} {new.resource_version}")
        assert self.state[new.name] == old.resource_version, "something was missed"
        self.state[new.name] = new.resource_version

    async def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None:
        self.lines.append(f"deleted {obj.name}")
        del self.state[obj.name]


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


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario(), SOON))


def workers() -> list[str]:
    """The threads and tasks that call handlers of this module."""
    names = [t.name for t in threading.enumerate()] + [t.get_name() for t in asyncio.all_tasks()]
    return [name for name in names if name.startswith("listener") and "test_informer_handlers" in name]


@pytest.mark.client_go(192, "HasSynced (handler)", "Handler registration", "Late joiner", "isInInitialList")
def test_handlers_join_before_and_while_it_runs():
    """Each has synced when it is through with its own initial adds; live events then reach both."""
    source, informer, clock = made()
    source.add(pod("a"))
    early, late = Diary(), Diary()

    async def scenario():
        first = informer.add_event_handler(early)
        opened: list[str] = []
        first.synced.on_open(lambda: opened.append("first"))
        seen = [(first.has_synced, first.why_not_synced())]
        async with running(informer, clock):
            seen.append((first.has_synced, first.why_not_synced()))
            second = informer.add_event_handler(late)
            seen.append((second.has_synced, second.why_not_synced()))
            await rest(clock)
            seen.append((second.has_synced, second.why_not_synced()))
            source.add(pod("b"))
            await rest(clock)
        return seen, opened

    seen, opened = run(scenario)
    assert seen == [
        (False, "the cache has not synced"),
        (True, ""),
        (False, "1 changes of the first sync are not dealt with"),
        (True, ""),
    ]
    assert opened == ["first"]
    assert early.lines == late.lines == ["initial a 1", "added b 2"]


@pytest.mark.client_go(202, "Late joiner", "Core guarantee")
@pytest.mark.parametrize("queue", ["RealFIFO", "DeltaFIFO"])
def test_who_joins_in_the_middle_of_a_churn_misses_nothing_and_hears_nothing_twice(queue):
    """1,200 objects, of which many change while the joiner is told of them in slices."""
    source, informer, clock = made(queue=queue)
    rng = random.Random(7)
    alive = {f"p{number}" for number in range(1200)}
    for name in sorted(alive):
        source.add(pod(name))
    late, listener = Diary(), Recorder()

    async def scenario():
        async with running(informer, clock):
            registration = informer.add_event_handler(late)
            informer.add_listener(listener)
            for step in range(600):
                name = f"p{rng.randrange(1300)}"
                if name not in alive:
                    alive.add(name)
                    source.add(pod(name))
                elif rng.random() < 0.4:
                    alive.remove(name)
                    source.delete(f"demo/{name}")
                else:
                    source.modify(pod(name))
                if step % 50 == 0:
                    await asyncio.sleep(0)
            await asyncio.wait_for(registration.synced.wait(), SOON)
            while informer.last_sync_resource_version != source.resource_version:
                await asyncio.sleep(0)
            while not registration.listener.queue.idle:
                await asyncio.sleep(0)
            await rest(clock)
            return registration.listener.statistics()

    figures = run(scenario)
    assert figures.failed == 0, "every update was told from the state that was told before"
    assert listener.faults == []
    held = {record.object_key.name: record.resource_version for record in informer.indexer.list()}
    assert late.state == held
    assert held == {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in source.objects.values()}
    assert max(Counter(line for line in late.lines if line.startswith("initial")).values()) == 1


class Abuse:
    """Joins and removals at random, and a churn of objects."""

    def __init__(self, seed: int, queue: str) -> None:
        self.source, self.informer, self.clock = made(queue=queue)
        self.rng = random.Random(seed)
        self.registered: dict[Registration, Recorder] = {}
        self.gone: list[tuple[Recorder, int]] = []
        self.alive: set[str] = set()

    async def join_and_leave(self, times: int) -> None:
        for _ in range(times):
            if self.registered and self.rng.random() < 0.45:
                registration = self.rng.choice(list(self.registered))
                recorder = self.registered.pop(registration)
                self.informer.remove_event_handler(registration)
                self.gone.append((recorder, len(recorder.told)))
            else:
                recorder = Recorder()
                self.registered[self.informer.add_listener(recorder)] = recorder
            for _ in range(self.rng.randrange(20)):
                await asyncio.sleep(0)

    async def churn(self, events: int) -> None:
        names = [f"p{number}" for number in range(60)]
        for number in range(events):
            name = self.rng.choice(names)
            if f"demo/{name}" not in self.alive:
                self.alive.add(f"demo/{name}")
                self.source.add(pod(name))
            elif self.rng.random() < 0.4:
                self.alive.discard(f"demo/{name}")
                self.source.delete(f"demo/{name}")
            else:
                self.source.modify(pod(name))
            if number % 20 == 0:
                await asyncio.sleep(0)

    async def scenario(self) -> None:
        async with running(self.informer, self.clock):
            await asyncio.gather(self.churn(10_000), *(self.join_and_leave(50) for _ in range(4)))
            while self.informer.last_sync_resource_version != self.source.resource_version:
                await asyncio.sleep(0)
            await rest(self.clock)


@pytest.mark.client_go(187)
@pytest.mark.parametrize("queue", ["RealFIFO", "DeltaFIFO"])
def test_handlers_that_come_and_go_at_random_harm_nobody(queue):
    """Joins and removals at random during 10,000 events, then a stop: who stays has the full state."""
    abuse = Abuse(11, queue)
    asyncio.run(abuse.scenario())
    with pytest.raises(CacheError, match="stopped"):
        abuse.informer.add_listener(Recorder())
    held = {record.key: record.resource_version for record in abuse.informer.indexer.list()}
    assert len(abuse.registered) > 10
    assert len(abuse.gone) > 50
    for recorder in abuse.registered.values():
        assert recorder.faults == []
        assert {key: record.resource_version for key, record in recorder.folded.items()} == held
    assert all(len(recorder.told) == then for recorder, then in abuse.gone), "who left hears nothing more"


@pytest.mark.client_go(191, 183, "RemoveEventHandler")
def test_a_removed_handler_hears_nothing_more():
    """Its registration is gone at once, and what happens then is for the others."""
    source, informer, clock = made()
    diary, other = Diary(), Diary()
    source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            registration = informer.add_event_handler(diary)
            informer.add_event_handler(other)
            await rest(clock)
            counts = [len(informer.processor)]
            informer.remove_event_handler(registration)
            counts.append(len(informer.processor))
            source.add(pod("b"))
            await rest(clock)
            return counts, registration.removed, registration.why_not_synced()

    assert run(scenario) == ([2, 1], True, "")
    assert diary.lines == ["initial a 1"]
    assert other.lines == ["initial a 1", "added b 2"]


@pytest.mark.client_go(184, 186, "RemoveEventHandler", "ShutDownEventHandler")
def test_what_is_not_here_can_be_removed_without_harm():
    """A registration of another informer stays where it is, one that was removed stays removed."""
    _, informer, _ = made()
    _, other, _ = made()

    async def scenario():
        mine, foreign = informer.add_event_handler(Diary()), other.add_event_handler(Diary())
        informer.remove_event_handler(foreign)
        await informer.shutdown_event_handler(foreign)
        before = (len(informer.processor), len(other.processor), foreign.removed)
        for _ in range(2):
            informer.remove_event_handler(mine)
            await informer.shutdown_event_handler(mine)
        return before, len(informer.processor)

    assert run(scenario) == ((1, 1, False), 0)


@pytest.mark.client_go(185, "Handler registration")
def test_one_handler_may_be_registered_twice():
    """Each registration hears all by itself, and one of them can go."""
    source, informer, clock = made()
    names: list[str] = []

    async def note(obj: ObjectView, initial: bool) -> None:
        names.append(obj.name)

    async def scenario():
        handler = ResourceEventHandlerFuncs(add=note)
        async with running(informer, clock):
            first, second = informer.add_event_handler(handler), informer.add_event_handler(handler)
            source.add(pod("a"))
            await rest(clock)
            first.remove()
            source.add(pod("b"))
            await rest(clock)
            return first.removed, second.removed

    assert run(scenario) == (True, False)
    assert names == ["a", "a", "b"]


@pytest.mark.client_go(196, 201, "RemoveEventHandler", "ShutDownEventHandler")
@KINDS
def test_removing_waits_for_nothing_and_shutting_down_for_the_call(asynchronous):
    """`remove` returns while the call goes on; `shutdown` when it is over and the worker gone."""
    source, informer, clock = made()
    handler = Held(asynchronous=asynchronous)
    for name in ("a", "b", "c"):
        source.add(pod(name))

    async def scenario():
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
            return during, waits, workers(), informer.statistics().processor.dropped

    assert run(scenario) == ([], True, [], 2)
    assert handler.names == ["a"], "the call that ran was completed, what was pending was dropped"


@pytest.mark.client_go("ShutDownEventHandler")
@KINDS
def test_a_handler_that_waits_for_its_own_end_is_told_so(asynchronous):
    """Where client-go waits for ever there is an error that says what to do, and the handler is removed."""
    source, informer, clock = made()
    source.add(pod("a"))
    faults: list[str] = []

    async def scenario():
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
            return registrations[0].removed

    assert run(scenario)
    assert faults == ["guard can't wait for its own end: remove it, which waits for nothing"]


@pytest.mark.client_go("ShutDownEventHandler")
def test_a_handler_may_begin_its_own_end_without_waiting_for_it():
    """What it starts and does not wait for ends it as soon as the call is over."""
    source, informer, clock = made()
    source.add(pod("a"))

    async def scenario():
        registrations: list[Registration] = []
        tasks: list[asyncio.Task[None]] = []

        async def begin(obj: ObjectView, initial: bool) -> None:
            tasks.append(asyncio.create_task(registrations[0].shutdown()))

        async with running(informer, clock):
            registrations.append(informer.add_event_handler(ResourceEventHandlerFuncs(add=begin)))
            await rest(clock)
            await tasks[0]
            return workers()

    assert run(scenario) == []


@pytest.mark.client_go(193, "Stop order")
@KINDS
def test_no_worker_is_left_whenever_a_handler_joined(asynchronous):
    """Before the run, during it, or at an informer that never runs: at the end nobody works."""
    source, informer, clock = made()
    _, never_run, _ = made()
    source.add(pod("a"))

    def handler() -> Held:
        held = Held(asynchronous=asynchronous)
        held.go.set()
        return held

    async def scenario():
        never_run.add_event_handler(handler())
        informer.add_event_handler(handler())
        async with running(informer, clock):
            informer.add_event_handler(handler())
            await rest(clock)
        return workers()

    assert run(scenario) == []


@pytest.mark.client_go("Stop order", 201)
@KINDS
def test_a_stop_waits_for_the_calls_that_run_and_drops_what_is_pending(asynchronous):
    """The call under way is completed before `run` returns; of what waits nothing is called."""
    source, informer, clock = made()
    handler = Held(asynchronous=asynchronous)
    for name in ("a", "b", "c"):
        source.add(pod(name))

    async def scenario():
        registration = informer.add_event_handler(handler)
        task = asyncio.create_task(informer.run())
        await handler.until_begun()
        task.cancel()
        await clock.settle()
        waits = not task.done()
        handler.go.set()
        await asyncio.wait([task])
        return waits, workers(), registration.listener.statistics().dropped

    assert run(scenario) == (True, [], 2)
    assert handler.names == ["a"]


@pytest.mark.client_go("Stop order")
def test_a_handler_that_hangs_does_not_hang_the_stop(caplog):
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

    async def scenario():
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
        return before, list(cancelled)

    assert run(scenario) == (False, ["a"])
    told = [line for line in caplog.messages if "has not returned 10 s after the stop" in line]
    assert [("in a thread" in line, "on the loop" in line) for line in told] == [(True, False), (False, True)]


@pytest.mark.client_go("Stop order")
def test_the_watch_is_closed_before_the_listeners_and_they_before_the_informer():
    """Nothing is told to a listener that was closed, for there is nobody left who could tell."""
    source, informer, clock = made()
    order: list[tuple[str, int]] = []

    async def scenario():
        registration = informer.add_event_handler(Diary())
        registration.ended.on_open(lambda: order.append(("listener", source.open_watches)))
        informer.ended.on_open(lambda: order.append(("informer", len(informer.processor))))
        async with running(informer, clock):
            source.add(pod("a"))

    run(scenario)
    assert order == [("listener", 0), ("informer", 0)]


@pytest.mark.client_go(195, "Handler panics", "HasSynced (handler)")
def test_handlers_that_raise_are_called_once_for_each_object_and_have_synced(caplog):
    """Two that raise on each of five initial objects: five calls each, no pause, and both have synced."""
    source, informer, clock = made()
    diaries = [Diary(bad="p"), Diary(bad="p")]
    for number in range(5):
        source.add(pod(f"p{number}"))

    async def scenario():
        registrations = [informer.add_event_handler(diary) for diary in diaries]
        async with running(informer, clock):
            source.add(pod("good"))
            await rest(clock)
            return [(r.has_synced, r.listener.statistics().failed) for r in registrations]

    assert run(scenario) == [(True, 5), (True, 5)]
    for diary in diaries:
        assert diary.lines == [*(f"initial p{n} {n + 1}" for n in range(5)), "added good 6"]
    assert clock.monotonic() == 1000.0


@pytest.mark.client_go("Per-handler sequencing", "Core guarantee")
def test_a_slow_handler_delays_neither_the_cache_nor_others_and_never_overlaps_with_itself():
    """While one is in its first call, the cache and another handler are up to date."""
    source, informer, clock = made()
    slow, quick = Held(asynchronous=False), Diary()

    async def scenario():
        async with running(informer, clock):
            registration = informer.add_event_handler(slow, name="slow")
            informer.add_event_handler(quick, name="quick")
            for number in range(100):
                source.add(pod(f"p{number}"))
            await slow.until_begun()
            while len(quick.lines) < 100:
                await asyncio.sleep(0)
            figures = informer.statistics().processor.handlers["slow"]
            cached = len(informer.indexer)
            slow.go.set()
            while not registration.listener.queue.idle:
                await asyncio.sleep(0)
            return cached, figures.delivered, figures.waiting

    assert run(scenario) == (100, 1, 99)
    assert slow.names == [f"p{number}" for number in range(100)]


@pytest.mark.client_go(312, 336, "Run twice", "Add after stop")
def test_after_its_end_nobody_joins_and_whoever_is_there_may_leave():
    """It can't be run again either; `is_stopped` says so."""
    _, informer, clock = made()

    async def scenario():
        registration = informer.add_event_handler(Diary())
        async with running(informer, clock):
            with pytest.raises(CacheError, match="started already"):
                await informer.run()
        with pytest.raises(CacheError, match="has stopped"):
            informer.add_event_handler(Diary())
        with pytest.raises(CacheError, match="started already"):
            await informer.run()
        informer.remove_event_handler(registration)
        await registration.shutdown()
        return informer.is_stopped, informer.why_not_synced()

    assert run(scenario) == (True, "")


@pytest.mark.client_go("Handler names", "Informer identity / metrics")
def test_figures_of_handlers_go_by_their_names_and_end_with_them():
    """Given or derived names, told apart by a number; there is no registry in which they could stay."""
    source, informer, clock = made()
    source.add(pod("a"))

    async def scenario():
        async with running(informer, clock):
            for name in ("mine", "mine", None):
                registration = informer.add_event_handler(Diary(), name=name)
            await rest(clock)
            before = informer.statistics().processor
            registration.remove()
            return before, informer.statistics().processor

    before, after = run(scenario)
    mine, again, derived = before.handlers
    assert (mine, again) == ("mine", "mine (2)")
    assert derived.endswith("Diary")
    assert before.handlers["mine"].delivered == 1
    assert (before.listeners, after.listeners) == (3, 2)
    assert list(after.handlers) == ["mine", "mine (2)"]


@pytest.mark.client_go("HasSynced (handler)")
@KINDS
def test_a_handler_that_is_removed_half_way_has_not_synced(asynchronous):
    """Whoever acts once it has synced would act on a part of what there is."""
    source, informer, clock = made()
    handler = Held(asynchronous=asynchronous)
    for name in ("a", "b", "c"):
        source.add(pod(name))

    async def scenario():
        async with running(informer, clock):
            registration = informer.add_event_handler(handler)
            await handler.until_begun()
            registration.remove()
            handler.go.set()
            await registration.shutdown()
            await rest(clock)
            return registration.has_synced, registration.why_not_synced()

    assert run(scenario) == (False, "it was removed")
    assert handler.names == ["a"]


def test_a_listener_that_leaves_while_it_hears_the_cache_has_not_synced():
    """It was given a slice of the cache, not all of it."""
    source, informer, clock = made()
    for number in range(1200):
        source.add(pod(f"p{number}"))

    async def scenario():
        async with running(informer, clock):
            registration = informer.add_listener(Recorder())
            joining = registration.is_joining
            registration.remove()
            await rest(clock)
            return joining, registration.received_initial.is_open

    assert run(scenario) == (True, False)


@pytest.mark.client_go(193)
def test_handlers_that_leave_before_the_first_sync_are_let_go():
    """A server that refuses for hours, and handlers that come and go meanwhile, do not fill the memory."""
    _, informer, clock = made()

    async def scenario():
        handlers = [Diary() for _ in range(3)]
        gone = [weakref.ref(handler) for handler in handlers]
        registrations = [informer.add_event_handler(handler) for handler in handlers]
        early = [registration.has_synced for registration in registrations]
        while registrations:
            registrations.pop().remove()
        handlers.clear()
        await rest(clock)
        gc.collect()
        return early, [each() for each in gone], workers()

    assert run(scenario) == ([False] * 3, [None] * 3, [])


@pytest.mark.client_go("RemoveEventHandler")
def test_a_listener_that_another_removes_in_the_same_distribution_hears_nothing_more():
    """Removing is at once, also from within: whoever removed it may have freed what it needs."""
    source, informer, clock = made()
    second = Recorder()

    class First:
        def add_all(self, notifications: Sequence[Notification]) -> None:
            registrations[1].remove()

    async def scenario():
        async with running(informer, clock):
            registrations.append(informer.add_listener(First()))
            registrations.append(informer.add_listener(second))
            source.add(pod("a"))
            await rest(clock)

    registrations: list[Registration] = []
    run(scenario)
    assert second.lines() == []


@pytest.mark.client_go(330, "Registering from anywhere")
@KINDS
def test_handlers_and_indexes_may_be_registered_before_the_loop_runs(asynchronous):
    """As Go programs do: everything is wired in main, then it runs; one is removed again before."""
    source, informer, clock = made()
    source.add(pod("a", node="n1"))
    handler = Held(asynchronous=asynchronous)
    handler.go.set()
    registration = informer.add_event_handler(handler)
    other = informer.add_event_handler(Held(asynchronous=asynchronous))
    informer.add_indexers({"byNode": field_index("spec.nodeName")})
    other.remove()

    async def scenario():
        async with running(informer, clock):
            await registration.synced.wait()
            source.add(pod("b"))
            while handler.names != ["a", "b"]:
                await asyncio.sleep(0)
            return other.has_synced, [view.name for view in informer.lister.by_index("byNode", "n1")]

    assert run(scenario) == (False, ["a"])


@pytest.mark.client_go("Registering from anywhere")
def test_a_handler_in_a_thread_may_add_and_remove_handlers_and_indexes():
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

    async def scenario():
        async with running(informer, clock):
            informer.add_indexers({"x": namespace_index()})
            informer.add_event_handler(ResourceEventHandlerFuncs(add=add))
            await asyncio.to_thread(done.wait, SOON)
            await rest(clock)
            return len(informer.processor)

    assert run(scenario) == 2
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
