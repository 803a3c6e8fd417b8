"""The parts of the end of a process, which happens within `lifecycle.gracePeriod` after SIGTERM.

    calls finish ─ Events are posted ─ the lease is given back ─ hooks: shutdown, teardown ─ caches close

`runtime.py` puts them in this order. Without an election, hooks come before the Events, as they may record
some. With one, a slow hook must not keep another process from leading; the hook's own writes are refused.
"""

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from declctl.kit import Clock
from declctl.runtime.handling.slots import Slots
from declctl.runtime.log import Log
from declctl.runtime.reloading.generation import RuntimeServices, lifecycle_context
from declctl.runtime.scheduling.schedules import Schedules

if TYPE_CHECKING:  # for an annotation alone
    from declctl.runtime.reloading.reload import Reloader

AFTER_CALLS_SECONDS = 3.0  # of the grace period, for what comes after calls that take all of their time
OVERTIME_SECONDS = 0.5  # from the end of the grace period to an end without what still runs
KUBELET_SECONDS = 2  # from the end of the grace period to SIGKILL


def termination_seconds(grace_period: float) -> int:
    """The `terminationGracePeriodSeconds` of a pod with this grace period."""
    return math.ceil(grace_period) + KUBELET_SECONDS


class GracePeriod:
    """The time until the process has to have ended, from the moment at which this object is made."""

    def __init__(self, seconds: float, *, clock: Clock) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock.monotonic() + seconds

    def left(self) -> float:
        """The seconds that are left."""
        return max(0.0, self._end - self._clock.monotonic())

    def left_for_calls(self) -> float:
        """The seconds that are left for running calls. Of a short time, what follows them has half."""
        return max(0.0, self.left() - min(AFTER_CALLS_SECONDS, self.seconds / 2))

    @property
    def is_missed(self) -> bool:
        """Whether the process has to end now, without what still runs."""
        return self._clock.monotonic() > self._end + OVERTIME_SECONDS


def end_process_after(seconds: float, status: int, log: Log) -> None:
    """End this process after so many seconds, unless it has ended by itself. Returns at once.

    At its end Python waits for threads that are no daemons and for `atexit` functions, and does so for ever.
    The log names the threads.
    """

    def end() -> None:
        time.sleep(seconds)
        names = sorted(
            each.name
            for each in threading.enumerate()
            if not each.daemon and each is not threading.main_thread()
        )
        what = f"threads that are no daemons run on ({', '.join(names)})" if names else "its end goes on"
        log.error(f"{what}: ending without it")
        os._exit(status)

    threading.Thread(target=end, name="declctl-end", daemon=True).start()


class SignalHandlers:
    """Handles signals inside a `with` block: SIGTERM and Ctrl-C stop, SIGHUP reloads.

    A second SIGTERM or Ctrl-C ends the process at once. The handlers from before are put back at the end.
    Does nothing outside of the main thread, where Python allows no signal handlers.
    """

    def __init__(self, *, stop: Callable[[], None], hangup: Callable[[], Any]) -> None:
        self._stop = stop
        self._hangup = hangup
        self._asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._on_stop)
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: self._hangup())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_stop(self, number: int, _: object) -> None:
        self._asked += 1
        if self._asked > 1:
            raise SystemExit(128 + number)
        self._stop()


async def end_calls(
    slots: Slots, schedules: Schedules, grace: GracePeriod, *, has_election: bool, log: Log
) -> None:
    """Call nothing any more, wait for running calls, and tell what was not waited for.

    `has_election`: what was dropped is the next leader's, not the next start's.
    """
    seconds = grace.left_for_calls()
    (running, waited), scheduled = await asyncio.gather(slots.stop(seconds), schedules.stop(seconds))
    if running := [*running, *scheduled]:
        log.warning(f"not waited for any longer: {', '.join(running)}")
    if waited:
        each = ", ".join(f"{name} {number:,}" for name, number in waited.items())
        total = sum(waited.values())
        changes = "1 change that waited is" if total == 1 else f"{total:,} changes that waited are"
        what = "leader" if has_election else "start"
        log.warning(
            f"{changes} dropped: {each}; the next {what} delivers every existing object again, but not "
            "which ones were deleted",
            dropped=total,
        )


async def call_last_hooks(reloader: "Reloader", services: RuntimeServices, grace: GracePeriod) -> None:
    """Call the `declctl_shutdown` hooks, and tear down every generation."""
    generation = reloader.active
    if generation is None:
        return
    await reloader.lifecycle.call_each(
        generation.loaded_code.lifecycle("declctl_shutdown"),
        lambda i: {"ctx": lifecycle_context(i.plugin, generation, reloader.memo(i.plugin), services)},
        loop=generation.loop,
        timeout=grace.left,
    )
    await reloader.close(timeout=grace.left)
