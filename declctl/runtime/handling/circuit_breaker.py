"""The circuit breaker of a plugin: a plugin that fails again and again is not called for a while.

    Closed ── failures in a row ──▶ Open ── back-off is over ──▶ HalfOpen (one call on trial)
      ▲                              ▲                              │
      └────────── success ───────────┼──────────────────────────────┤
                                     └── failure: a longer back-off ┘

A plugin with `onError: Disable` has one, for all of its handlers. While it is not closed, changes and keys
wait in their queues: nothing is dropped, and a wait is not an attempt.
"""

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from declctl.kit import Clock
from declctl.kit.backoff import Backoff
from declctl.runtime.log import Log

LONGEST_LOOK = 10.0  # seconds after which a change asks again while the trial of another one is under way
_OTHERS_FIRST = 1.0  # seconds that the object of the last trial leaves to others


class BreakerState(StrEnum):
    """Whether a plugin is called."""

    CLOSED = "Closed"  # it is
    OPEN = "Open"  # it is not, until the back-off is over
    HALF_OPEN = "HalfOpen"  # one call is under way, which decides


class BreakerPolicy(NamedTuple):
    """When a breaker opens, and for how long."""

    failures: int  # failed calls in a row, not all for one object
    backoff: Backoff  # of the trials


class BreakerStatus(msgspec.Struct):
    """A breaker at one moment."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0  # failed calls since the last success
    opened: int = 0  # how often it has gone from Closed to Open
    trials: int = 0  # calls on trial
    next_trial_seconds: float | None = None  # until the next one may begin; None unless it is Open
    last_error: str | None = None  # of the last failed call, while it is not closed


class CircuitBreaker:
    """The breaker of one plugin. Its methods may be called by any thread.

    A worker calls `enter` before a call of the plugin. If the call may be made, it calls exactly one of
    `succeeded`, `failed` and `left` after it, or when the call is not waited for any longer.
    """

    def __init__(self, plugin: str, policy: BreakerPolicy, *, clock: Clock, log: Log) -> None:
        self.plugin = plugin
        self.policy = policy
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()  # guards all below
        self._present = BreakerStatus()
        self._failed: set[str] = set()  # the subjects of the failed calls in a row, while it is closed
        self._round = 0  # trials that have failed since it opened
        self._due = 0.0  # monotonic time of the next trial
        self._tried = ""  # the subject of the last trial
        self._others_wait = False  # another subject has asked since that trial began, and was refused
        self._waiting: set[Callable[[], None]] = set()  # called when it closes

    def enter(self, subject: str, wake: Callable[[], None]) -> float:
        """Ask for a call: 0 if it may be made, else the seconds after which to ask again.

        `subject` names the handler and its object. `wake` is called, once, if the breaker closes before that.
        """
        with self._lock:
            if self._present.state is BreakerState.CLOSED:
                return 0.0
            self._others_wait = self._others_wait or subject != self._tried
            left = self._due - self._clock.monotonic()
            if self._present.state is BreakerState.OPEN and left <= 0.0:
                # Otherwise, an object that always fails could be each trial, and would keep the breaker open.
                if subject != self._tried or not self._others_wait:
                    self._present.state = BreakerState.HALF_OPEN
                    self._present.trials += 1
                    self._tried, self._others_wait = subject, False
                    return 0.0
                left, self._others_wait = _OTHERS_FIRST, False
            self._waiting.add(wake)
            return LONGEST_LOOK if self._present.state is BreakerState.HALF_OPEN else left

    def succeeded(self, subject: str) -> None:
        """A call has succeeded: the breaker closes, unless it is open and the call was not its trial."""
        with self._lock:
            present = self._present
            if present.state is BreakerState.CLOSED:
                present.failures = 0
                self._failed.clear()
                return
            if not self._is_trial(subject):
                return  # a call that began before the breaker opened
            self._present = BreakerStatus(opened=present.opened, trials=present.trials)
            self._tried = ""
            waiting, self._waiting = self._waiting, set()
        self._log.info(
            f"plugin {self.plugin} is called again: the call for {subject}, on trial, has succeeded",
            plugin=self.plugin,
        )
        for wake in waiting:
            wake()

    def failed(self, subject: str, what: str) -> None:
        """A call has failed with the error `what`: it may open the breaker, or keep it open for longer."""
        with self._lock:
            present = self._present
            present.failures += 1
            if present.state is BreakerState.CLOSED:
                self._failed.add(subject)
                if present.failures < self.policy.failures or len(self._failed) < 2:
                    return
                present.opened += 1
                self._round = 0
                self._failed.clear()
                begun = f"after {present.failures} failed calls in a row, the last for {subject}"
            elif self._is_trial(subject):
                self._round += 1
                begun = f"the call for {subject}, on trial, has failed"
            else:
                return  # a call that began before the breaker opened
            seconds = self.policy.backoff.delay(self._round + 1)
            present.state, present.last_error = BreakerState.OPEN, what
            self._due = self._clock.monotonic() + seconds
        self._log.warning(
            f"plugin {self.plugin} is suspended (onError: Disable), {begun}: {what}; its handlers wait, and "
            f"one call is tried in {seconds:.3g} s",
            plugin=self.plugin,
            retry_in=round(seconds, 3),
        )

    def left(self, subject: str) -> None:
        """A call gives no verdict, as one that waits for a cache: another call may be the trial."""
        with self._lock:
            if self._is_trial(subject):
                self._present.state, self._due, self._tried = BreakerState.OPEN, self._clock.monotonic(), ""

    def status(self) -> BreakerStatus:
        """The figures of this moment."""
        with self._lock:
            left = round(max(0.0, self._due - self._clock.monotonic()), 1)
            is_open = self._present.state is BreakerState.OPEN
            return replace(self._present, next_trial_seconds=left if is_open else None)

    def _is_trial(self, subject: str) -> bool:
        """Whether the call for a subject is the one that decides. Under the lock."""
        return self._present.state is BreakerState.HALF_OPEN and subject == self._tried


class CircuitBreakers:
    """The breakers of all plugins. Used on the machinery loop.

    A breaker lives as long as a binding has it: a generation with the same plugin, of the same version and
    config, goes on with the breaker of the one before. Another config begins with a closed one.
    """

    def __init__(self, *, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._breakers: WeakValueDictionary[tuple[str, str, BreakerPolicy], CircuitBreaker] = (
            WeakValueDictionary()
        )

    def of(self, plugin: str, stamp: str, policy: BreakerPolicy) -> CircuitBreaker:
        """The breaker of a plugin. `stamp` tells its versions and configs apart."""
        breaker = CircuitBreaker(plugin, policy, clock=self._clock, log=self._log)
        return self._breakers.setdefault((plugin, stamp, policy), breaker)
