"""Loops in threads of their own, clocks, latches, and functions that somebody else wrote."""

import asyncio
import functools
import gc
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from declctl.kit import Latch, LoopCalls, LoopThread, ManualClock, SystemClock, yield_interpreter
from declctl.kit.callbacks import frames_of_threads, must_propagate, plain, refuse_async
from declctl.kit.garbage import without_collections


def test_a_loop_has_a_thread_and_ends_what_still_runs():
    """Handlers never run on the thread that reads watches, and one that waits for ever keeps no process.

    Until then it runs, though nobody keeps its future, and no task refers to what it waits for. A call for a
    loop that has ended is dropped: whoever asks learns that nothing will happen.
    """
    thread = LoopThread("declctl-test").start()
    started, called, ended = threading.Event(), threading.Event(), []

    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(threading.current_thread().name)

    thread.submit(forever())
    assert started.wait(30)
    thread.submit(asyncio.sleep(0)).result(30)  # by now it waits
    gc.collect()
    assert ended == []
    assert thread.call_soon(called.set)
    assert called.wait(30)
    assert thread.stop()
    assert ended == ["declctl-test"]
    assert thread.loop.is_closed()
    called.clear()
    assert not thread.call_soon(called.set)
    thread.look()
    assert thread.stop()
    assert not called.is_set()


def test_no_collection_begins_while_frames_are_read(monkeypatch):
    """CPython 3.11 holds a lock then, which threads need that a collection lets run."""
    monkeypatch.setattr("sys._current_frames", lambda: {0: gc.isenabled()})
    with without_collections():
        assert (frames_of_threads()[0], gc.isenabled()) == (False, False)
    assert gc.isenabled()


async def test_calls_of_one_turn_share_a_wake_up(monkeypatch):
    """They are made in their order, and those of a call in the next turn; a closed loop is told."""
    loop, made, wakes = asyncio.get_running_loop(), [], []
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda call: (wakes.append(call), wake(call)))
    calls = LoopCalls.of(loop)
    assert LoopCalls.of(loop) is calls
    for number in range(3):
        calls.call(lambda n=number: (made.append(n), calls.call(lambda: made.append(n + 3))))
    assert (made, len(wakes)) == ([], 1)
    await asyncio.sleep(0)
    assert (made, len(wakes)) == ([0, 1, 2], 2)
    await asyncio.sleep(0)
    assert made == list(range(6))
    (closed := asyncio.new_event_loop()).close()
    with pytest.raises(RuntimeError):
        LoopCalls(closed).call(made.clear)


def test_loop_that_is_stuck_is_reported_and_not_waited_for():
    """A coroutine that never yields costs its timeout and no more."""
    thread = LoopThread("declctl-test").start()
    release, entered = threading.Event(), threading.Event()

    async def stuck() -> None:
        entered.set()
        release.wait(30.0)

    thread.submit(stuck())
    assert entered.wait(30)
    assert not thread.stop(timeout=0.01)
    release.set()
    assert thread.stop()


def test_a_thread_that_computes_lets_others_run() -> None:
    """Another thread that waits for the interpreter has it between two slices of the work."""
    done = threading.Event()
    threading.Thread(target=done.set).start()
    while not done.is_set():
        yield_interpreter()


async def test_sleepers_wake_in_the_order_of_their_moments():
    """A test that moves the clock sees timers fire as they would in real life, also those begun meanwhile."""
    clock, woken, ticks = ManualClock(), [], []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic() - start))

    async def ticker() -> None:
        while True:
            await clock.sleep(1.0)
            ticks.append(clock.monotonic())

    start = clock.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for seconds in (3.0, 1.0, 2.0, 9.0):
            tasks.create_task(sleeper(seconds))
        await clock.advance(2.5)
        assert woken == [(1.0, 1.0), (2.0, 2.0)]
        assert clock.next_wake == 0.5
        assert clock.monotonic() - start == 2.5
        await clock.advance(10.0)
    assert [seconds for seconds, _ in woken] == [1.0, 2.0, 3.0, 9.0]
    assert clock.next_wake is None
    ticking = asyncio.create_task(ticker())
    await clock.advance(5.0)
    assert ticks == [start + 12.5 + number for number in (1, 2, 3, 4, 5)]
    ticking.cancel()
    await clock.settle()
    assert clock.next_wake is None, "one that was given up wakes nobody"
    await clock.advance(2.0)
    assert ticking.cancelled()
    for zero in (clock.sleep(0.0), SystemClock().sleep(-1.0)):  # it does not wait for the clock to move
        await asyncio.wait_for(zero, 30)


def test_dates_are_aware_and_deadlines_never_go_back():
    """What people read is in UTC; a test knows it beforehand."""
    manual, system = ManualClock(jitter=0.25), SystemClock()
    assert manual.now() == datetime(2026, 1, 1, tzinfo=UTC)
    manual.set(90.0)
    assert manual.now() - datetime(2026, 1, 1, tzinfo=UTC) == timedelta(seconds=90)
    assert manual.random() == 0.25
    before = system.monotonic()
    assert system.monotonic() >= before
    assert system.now().utcoffset() == timedelta(0)
    assert 0.0 <= system.random() < 1.0


def test_a_latch_calls_each_once_and_nobody_comes_too_late():
    """Who asks before hears when it opens, who asks later hears at once (HasSyncedChecker)."""
    latch, calls = Latch("synced"), []

    def forgotten() -> None:
        calls.append("forgotten")

    latch.on_open(lambda: (calls.append("early"), latch.open()))
    latch.on_open(lambda: latch.forget(forgotten))
    latch.on_open(forgotten)
    assert (latch.is_open, calls) == (False, [])
    latch.open()
    latch.open()
    latch.on_open(lambda: calls.append("late"))
    assert (latch.is_open, calls) == (True, ["early", "late"])
    with pytest.raises(TypeError, match=r"latch\.is_open.*synced"):  # `if latch:` would always be true
        bool(latch)


async def test_waiters_go_on_when_it_opens_and_later_ones_do_not_wait():
    """`wait_for_cache_sync` returns for everybody."""
    latch = Latch()
    tasks = [asyncio.create_task(latch.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert not tasks[1].done()
    latch.open()
    await asyncio.gather(tasks[1], tasks[2])
    await latch.wait()
    assert tasks[0].cancelled()


def test_a_callback_that_raises_harms_nobody(caplog):
    """What waits for `synced` beside it is still woken, and the informer that opens it goes on."""
    latch, calls = Latch("synced of pods"), []

    async def later() -> None:
        calls.append("never")

    def cancelled() -> None:
        raise asyncio.CancelledError

    for callback in (lambda: 1 / 0, later, cancelled, lambda: calls.append("after")):
        latch.on_open(callback)
    latch.open()
    assert (latch.is_open, calls) == (True, ["after"])
    assert "a callback of the latch synced of pods raised" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "TypeError: a callback of a latch returned a coroutine" in caplog.text


async def coroutine() -> bool:
    return False


async def events() -> Any:
    yield 1


class Callable:
    async def __call__(self) -> bool:
        return False


async def test_an_asynchronous_function_is_refused_where_nobody_awaits():
    """Where it is given, or by what it returns, which would count as true; with what to write instead."""
    for function in (coroutine, events, Callable(), functools.partial(coroutine)):
        with pytest.raises(TypeError, match="the filter is called where it cannot be awaited: write `def`"):
            refuse_async(function, "the filter")
    for function in (print, lambda: None, Callable, functools.partial(print), None):
        refuse_async(function, "the filter")
    future = asyncio.get_running_loop().create_future()
    for result in (coroutine(), events(), future, (n for n in ())):
        with pytest.raises(TypeError, match=r"the filter returned a .*nothing yet"):
            plain(result, "the filter")
    for result in (None, True, False, 0, "", "text", [1]):
        assert plain(result, "the filter") is result


class Odd(BaseException):
    """What test tools and other frameworks derive from."""


def test_only_what_is_meant_for_us_is_let_through():
    """A cancellation of our own task, a person's Ctrl-C, and the end of a coroutine that is closed."""
    in_a_thread: list[bool] = []

    async def scenario() -> tuple[list[bool], bool]:
        task = asyncio.current_task()
        assert task is not None
        stray = [must_propagate(e) for e in (asyncio.CancelledError(), SystemExit(), Odd(), GeneratorExit())]
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            own = must_propagate(error)
            task.uncancel()
        return stray, own

    assert asyncio.run(scenario()) == ([False] * 4, True)
    assert must_propagate(KeyboardInterrupt())
    assert must_propagate(GeneratorExit())
    thread = threading.Thread(target=lambda: in_a_thread.append(must_propagate(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert in_a_thread == [False]
    assert not must_propagate(asyncio.CancelledError())
