"""The end of a process: its time, the signals that begin it, and what a fault before it means."""

import asyncio
import signal
from typing import Any

import pytest

from declctl.kit import ManualClock
from declctl.runtime.ending import GracePeriod, SignalHandlers, termination_seconds
from declctl.runtime.runtime import until_done
from declctl.runtime.watchdog import LOOK_SECONDS


async def test_a_fault_while_it_is_waited_for_rest_is_raised(log) -> None:
    """`run --once` must not end with exit status 0 because nobody could see whether all was done."""

    class Observer:
        async def at_rest(self) -> None:
            raise LookupError("no figures")

        def failed_handlers(self) -> str:
            return ""

    observer: Any = Observer()
    with pytest.raises(LookupError, match="no figures"):
        await until_done(observer, asyncio.Event(), timeout=20.0, log=log)


@pytest.mark.parametrize(
    ("seconds", "for_calls", "pod"), [(28.0, 25.0, 30), (120.5, 117.5, 123), (2.0, 1.0, 4)]
)
def test_calls_have_all_of_the_grace_period_but_what_follows_them(seconds, for_calls, pod):
    """A kubelet kills two seconds after it; the process, which looks once a second, ends before that."""
    clock = ManualClock()
    grace = GracePeriod(seconds, clock=clock)
    assert (grace.left(), grace.left_for_calls()) == (seconds, for_calls)
    assert termination_seconds(seconds) == pod
    clock.set(seconds)
    assert (grace.left(), grace.left_for_calls(), grace.is_missed) == (0.0, 0.0, False)
    clock.set(pod - seconds - LOOK_SECONDS)
    assert grace.is_missed


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(second):
    """As the log says after the first one."""
    asked: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(SystemExit) as ended,
        SignalHandlers(stop=lambda: asked.append("stop"), hangup=lambda: None),
    ):
        signal.raise_signal(signal.SIGTERM)
        assert asked == ["stop"]
        signal.raise_signal(second)
    assert ended.value.code == 128 + second
    assert asked == ["stop"]
    assert signal.getsignal(signal.SIGTERM) is before
