"""User code in threads: awaited, bounded, never waited for at the end; and what blocks the machinery."""

import asyncio
import contextlib
import threading

import pytest

from declctl.hooks.calls import Implementation
from declctl.kit import LoopThread
from declctl.runtime.caching.managed_informer import StagedTransform
from declctl.runtime.reloading.generation import Lifecycle
from declctl.runtime.threads import AbandonedCall, UserCall, abandoned_calls, in_thread
from declctl.runtime.watchdog import Watchdog
from declctl.testing import until


async def test_what_a_call_returns_or_raises_comes_back() -> None:
    """Even SystemExit is only an exception, and StopIteration keeps nobody waiting for ever."""

    def leaves() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await in_thread(leaves, name="t")
    assert (await in_thread(lambda: 5, name="t")) == 5
    with pytest.raises(RuntimeError, match="the import raised StopIteration") as raised:
        async with asyncio.timeout(20):
            await in_thread(lambda: next(iter(())), name="t", what="the import")
    assert isinstance(raised.value.__cause__, StopIteration)


async def test_a_call_that_never_returns_is_left_behind_and_known_until_it_does() -> None:
    """A daemon, so that the process can end; with the line of user code that it is at."""
    gate, asked, threads = threading.Event(), threading.Event(), []

    def hangs() -> None:
        threads.append(threading.current_thread())
        asked.set()
        gate.wait(30)

    def here() -> list[AbandonedCall]:
        return [call for call in abandoned_calls() if call.place.startswith(f"{__file__}:")]

    waiting = asyncio.ensure_future(in_thread(hangs, name="t", what="the index byNode"))
    await asyncio.to_thread(asked.wait, 10)
    assert not here()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    (call,) = here()
    assert call.name == "the index byNode"
    assert call.place.endswith(" in hangs")
    assert threads[0].daemon
    gate.set()
    until("it has returned", lambda: not here())


@pytest.mark.client_go(334)
async def test_life_cycle_hooks_are_called_in_order_whoever_fails(log) -> None:
    """One hook raises, one hangs: the others are called all the same, and both are told."""
    called, gate = [], threading.Event()

    def hook(name, body):
        return Implementation("declctl_teardown", name, body, (), is_async=False)

    def raises() -> None:
        raise ValueError("no")

    hooks = [
        hook("first", lambda: called.append("first")),
        hook("bad", raises),
        hook("stuck", lambda: gate.wait(30)),
        hook("last", lambda: called.append("last")),
    ]
    lifecycle = Lifecycle(log)
    failed = await lifecycle.call_each(hooks, lambda _: {}, loop=LoopThread("unused"), timeout=lambda: 0.5)
    gate.set()
    assert called == ["first", "last"]
    assert [failure.plugin for failure in failed] == ["bad", "stuck"]
    assert "ValueError: no" in str(failed[0])
    assert len(log.events("error")) == 2


async def test_a_life_cycle_hook_that_is_given_up_does_not_run_beside_its_undoing(log) -> None:
    """The end of a thread is waited for, as it can't be stopped; an `async def` is cancelled."""
    begun, gate, ended = threading.Event(), threading.Event(), []

    def prepare() -> None:
        begun.set()
        gate.wait(30)
        ended.append("def")

    async def prepare_async() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("async def")

    loop, lifecycle = LoopThread("hooks").start(), Lifecycle(log)
    for function, is_async in ((prepare, False), (prepare_async, True)):
        begun.clear()
        hook = Implementation("declctl_prepare", "p", function, (), is_async=is_async)
        call = asyncio.ensure_future(lifecycle.call(hook, {}, loop=loop, timeout=60.0))
        await asyncio.to_thread(begun.wait, 30)
        call.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert call.done() is is_async
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await call
    until("both have ended", lambda: ended == ["def", "async def"])
    assert loop.stop()


async def test_what_nobody_waits_for_any_longer_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends while the system is slow to start the thread: user code is not called unseen."""
    asked, gate, started, called = threading.Event(), threading.Event(), [], []
    start = threading.Thread.start

    def slow_start(thread: threading.Thread) -> None:
        if thread.name == "slow":
            asked.set()
            gate.wait(30)
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    waiting = asyncio.ensure_future(in_thread(lambda: called.append(1), name="slow", what="the index"))
    await asyncio.to_thread(asked.wait, 10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    await in_thread(lambda: None, name="next")  # it is started after the slow one
    (thread,) = started
    thread.join(10)
    assert called == []
    assert not [call for call in abandoned_calls() if call.name == "the index"]


async def test_a_foreign_call_that_is_given_up_ends_after_the_object_at_hand() -> None:
    """Its fault names the object and the line; the objects after it are not touched any more."""
    gate, touched, ended = threading.Event(), [], threading.Event()

    def ask(call: UserCall) -> None:
        for each in call.objects(["a", "b", "c"], str):
            touched.append(each)
            if each == "b":
                gate.wait(10)
        ended.set()

    call = UserCall(name="test", what="the filter of notify")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await call.run(lambda: ask(call))
    gate.set()
    fault = call.fault("took longer than 0.05 s")
    assert ended.wait(10)
    assert touched == ["a", "b"]
    assert "the filter of notify took longer than 0.05 s; it was asked about b last, at " in fault


def _staged() -> StagedTransform:
    return StagedTransform(lambda obj: obj, what="the transform of pods")


async def test_a_staged_turn_that_never_began_does_not_end_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread was left, or the list is begun anew at that moment: the next turn comes."""
    staged = _staged()
    await in_thread(lambda: None, name="t")  # the thread that starts others runs
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await staged.run(lambda: 1)
    assert not staged.is_running
    async with asyncio.timeout(20):
        assert await staged.run(lambda: 2) == 2
    done: list[int] = []
    staged = _staged()
    first = asyncio.ensure_future(staged.run(lambda: done.append(1)))
    await asyncio.sleep(0)  # it has the turn, and asks for a thread, which may have begun by chance
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    async with asyncio.timeout(20):
        await staged.run(lambda: done.append(2))
    assert done[-1] == 2


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_what_blocks_the_machinery_is_named_once_and_its_end_is_told(log) -> None:
    """The line of user code, how often, and for how long; a loop that answers late is not blocked."""
    machinery = LoopThread("declctl-machinery").start()
    watchdog = Watchdog(machinery, log)
    gate, asked = threading.Event(), threading.Event()

    def index_function() -> None:
        asked.set()
        gate.wait(30)

    for _ in range(20):
        watchdog.look()
        answered = threading.Event()
        machinery.loop.call_soon_threadsafe(answered.set)
        assert answered.wait(20)
    assert (watchdog.status.blocked, log.events("error"), log.events("warning")) == (0, [], [])
    machinery.loop.call_soon_threadsafe(index_function)
    assert asked.wait(20)
    for _ in range(5):
        watchdog.look()
    assert (watchdog.seconds, log.events("error")) == (0.0, [])
    for _ in range(3):
        watchdog.look()
    (told,) = log.events("error")
    assert told.startswith(f"the machinery has been blocked for 5 s at {__file__}:")
    assert " in index_function" in told
    assert (watchdog.status.blocked, watchdog.status.last_seconds) == (1, 7.0)
    gate.set()
    until("it goes on", lambda: (watchdog.look(), not watchdog.seconds)[1])
    assert "goes on: it was blocked for" in log.events("warning")[0]
    assert watchdog.status.last_place.endswith(" in index_function")
    assert machinery.stop()


def test_what_blocked_it_the_last_time_is_not_blamed_for_the_next(log) -> None:
    """Nothing of anybody's code can be seen: then no line is named, and not that of the time before."""
    machinery = LoopThread("declctl-machinery").start()
    watchdog = Watchdog(machinery, log)
    gates = [threading.Event(), threading.Event()]

    def index_function() -> None:
        gates[0].wait(30)

    for gate, blocks in zip(gates, (index_function, gates[1].wait), strict=True):
        machinery.loop.call_soon_threadsafe(blocks)
        until("it is blocked", lambda: (watchdog.look(), watchdog.seconds)[1])
        gate.set()
        until("it goes on", lambda: (watchdog.look(), not watchdog.seconds)[1])
    assert (watchdog.status.blocked, watchdog.status.last_place) == (2, "")
    assert [" at " in told.partition(":")[0] for told in log.events("error")] == [True, False]
    assert machinery.stop()
