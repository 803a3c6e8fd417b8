"""User code in threads of its own: awaited, bounded, and never waited for at the end."""

import asyncio
import contextlib
import threading

import pytest

from declctl.hooks.calls import Implementation
from declctl.kit import LoopThread
from declctl.runtime.reloading.generation import Lifecycle
from declctl.runtime.threads import AbandonedCall, UserCall, abandoned_calls, in_thread
from declctl.testing import until


def test_what_a_call_returns_or_raises_comes_back() -> None:
    """A result is a result, and even SystemExit is only an exception for who awaits."""

    def leaves() -> None:
        raise SystemExit(3)

    async def scenario() -> int:
        with pytest.raises(SystemExit):
            await in_thread(leaves, name="t")
        return await in_thread(lambda: 5, name="t")

    assert asyncio.run(scenario()) == 5


def test_stop_iteration_is_heard_of_too() -> None:
    """No future takes it: `next` of something empty must not keep anybody waiting for ever."""

    async def scenario() -> None:
        async with asyncio.timeout(20):
            await in_thread(lambda: next(iter(())), name="t", what="the import")

    with pytest.raises(RuntimeError, match="the import raised StopIteration") as raised:
        asyncio.run(scenario())
    assert isinstance(raised.value.__cause__, StopIteration)


def test_a_call_that_never_returns_is_left_behind_as_a_daemon() -> None:
    """A hook hangs: whoever waits goes on, and the process can end."""
    gate, threads = threading.Event(), []

    def hangs() -> None:
        threads.append(threading.current_thread())
        gate.wait(30)

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await in_thread(hangs, name="t")

    asyncio.run(scenario())
    assert threads[0].daemon
    gate.set()
    threads[0].join(10)


@pytest.mark.client_go(334)
def test_life_cycle_hooks_are_called_in_order_whoever_fails(log) -> None:
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

    async def scenario():
        lifecycle = Lifecycle(log)
        return await lifecycle.call_each(hooks, lambda _: {}, loop=LoopThread("unused"), timeout=0.5)

    failed = asyncio.run(scenario())
    gate.set()
    assert called == ["first", "last"]
    assert [failure.plugin for failure in failed] == ["bad", "stuck"]
    assert "ValueError: no" in str(failed[0])
    assert len(log.events("error")) == 2


def test_what_is_left_behind_is_known_until_it_returns() -> None:
    """What was called, and the line of user code that its thread is at; a call that is awaited is none."""
    gate, asked = threading.Event(), threading.Event()

    def hangs() -> None:
        asked.set()
        gate.wait(30)

    def here() -> list[AbandonedCall]:
        return [call for call in abandoned_calls() if call.place.startswith(f"{__file__}:")]

    async def scenario() -> None:
        waiting = asyncio.ensure_future(in_thread(hangs, name="t", what="the index byNode"))
        await asyncio.to_thread(asked.wait, 10)
        assert not here()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
    (call,) = here()
    assert call.name == "the index byNode"
    assert call.place.endswith(" in hangs")
    gate.set()
    until("it has returned", lambda: not here())


def test_what_nobody_waits_for_any_longer_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends while the system is slow to start the thread: user code is not called unseen."""
    asked, gate, started, called = threading.Event(), threading.Event(), [], []
    start = threading.Thread.start

    def slow_start(thread: threading.Thread) -> None:
        if thread.name == "slow":
            asked.set()
            gate.wait(30)
            started.append(thread)
        start(thread)

    async def scenario() -> None:
        waiting = asyncio.ensure_future(in_thread(lambda: called.append(1), name="slow", what="the index"))
        await asyncio.to_thread(asked.wait, 10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        await in_thread(lambda: None, name="next")  # it is started after the slow one

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    asyncio.run(scenario())
    (thread,) = started
    thread.join(10)
    assert called == []
    assert not [call for call in abandoned_calls() if call.name == "the index"]


def test_a_foreign_call_that_is_given_up_ends_after_the_object_at_hand() -> None:
    """Its fault names the object and the line; the objects after it are not touched any more."""
    gate, touched, ended = threading.Event(), [], threading.Event()

    def ask(call: UserCall) -> None:
        for each in call.objects(["a", "b", "c"], str):
            touched.append(each)
            if each == "b":
                gate.wait(10)
        ended.set()

    async def main() -> str:
        call = UserCall(name="test", what="the filter of notify")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await call.run(lambda: ask(call))
        gate.set()
        return call.fault("took longer than 0.05 s")

    fault = asyncio.run(main())
    assert ended.wait(10)
    assert touched == ["a", "b"]
    assert "the filter of notify took longer than 0.05 s; it was asked about b last, at " in fault
