"""Loops in threads of their own."""

import asyncio
import threading

from declctl.kit import LoopThread, yield_interpreter


def test_coroutines_run_on_the_loops_own_thread():
    """Handlers never run on the thread that reads watches."""
    thread = LoopThread("declctl-test").start()

    async def where() -> str:
        return threading.current_thread().name

    assert thread.submit(where()).result(5.0) == "declctl-test"
    assert thread.stop()


def test_stopping_cancels_what_still_runs():
    """A handler that waits for ever does not keep the process from ending."""
    thread = LoopThread("declctl-test").start()
    ended = []

    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    started = threading.Event()
    thread.submit(forever())
    assert started.wait(5.0)
    assert thread.stop()
    assert ended == ["cancelled"]
    assert thread.loop.is_closed()


def test_loop_that_is_stuck_is_reported_and_not_waited_for():
    """A coroutine that never yields costs its timeout and no more."""
    thread = LoopThread("declctl-test").start()
    release, entered = threading.Event(), threading.Event()

    async def stuck() -> None:
        entered.set()
        release.wait(30.0)

    thread.submit(stuck())
    assert entered.wait(5.0)
    assert not thread.stop(timeout=0.01)
    release.set()
    assert thread.stop()


def test_a_call_for_a_loop_that_has_ended_is_dropped():
    """Whoever asks a loop for something as it ends learns that nothing will happen, and does not fail."""
    thread = LoopThread("declctl-test").start()
    called = threading.Event()
    assert thread.call_soon(called.set)
    assert called.wait(5.0)
    assert thread.stop()
    called.clear()
    assert not thread.call_soon(called.set)
    thread.look()
    assert thread.stop()
    assert not called.is_set()


def test_a_thread_that_computes_lets_others_run() -> None:
    """Another thread that waits for the interpreter has it between two slices of the work."""
    others, done = [], threading.Event()

    def wait() -> None:
        others.append(1)
        done.set()

    threading.Thread(target=wait).start()
    while not done.is_set():
        yield_interpreter()
    assert others == [1]
