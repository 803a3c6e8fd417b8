"""Waiting until caches and handlers have synced (client-go's wait.go, WaitForCacheSync and synctrack).

A waiting task does not poll: latches wake it. The log and the result name each cache that has not synced,
with the reason.

The trackers are for code that processes the first sync outside of a handler: in a work queue, in threads, or
in batches. `ProcessorListener` uses epochs of its queue instead, which also count merged changes correctly.
"""

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import msgspec

from declctl.errors import CacheError, NotSynced
from declctl.kit import Clock, Latch, SystemClock, set_within

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

_FIRST_WORD = 10.0  # seconds until the first log line about a wait, as in client-go
_LONGEST_SILENCE = 320.0  # seconds between two log lines; the interval doubles until then
_log = logging.getLogger("declctl.informer")

Why = Callable[[str], str]


class Waitable(Protocol):
    """An informer, or a handler's registration, whose sync can be waited for."""

    @property
    def name(self) -> str:
        """The name in logs and results."""
        ...

    @property
    def synced(self) -> Latch:
        """Opens with the sync."""
        ...

    @property
    def ended(self) -> Latch:
        """Opens at the end, after which no sync comes any longer."""
        ...

    def why_not_synced(self) -> str:
        """Why there is no sync yet; empty for no reason."""
        ...


class SyncResult(msgspec.Struct, frozen=True):
    """The outcome of a wait; true if all have synced (client-go's SyncResult)."""

    synced: Mapping[str, bool]  # by name
    reasons: Mapping[str, str] = msgspec.field(
        default_factory=dict[str, str]
    )  # of those that have not synced
    cause: Exception | None = None  # why the wait ended early; None if all have synced

    def __bool__(self) -> bool:
        return all(self.synced.values())

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of those that have not synced, sorted."""
        return tuple(sorted(name for name, synced in self.synced.items() if not synced))

    def as_error(self) -> NotSynced | None:
        """An error that names those that have not synced, with reasons; None if all have synced."""
        if not self.missing:
            return None
        error = NotSynced("; ".join(_sentence(name, self.reasons.get(name, "")) for name in self.missing))
        error.__cause__ = self.cause
        return error


def _no_reason(_: str) -> str:
    return ""


async def wait_for(
    waiting: Mapping[str, Latch],
    *,
    clock: Clock,
    why: Why = _no_reason,
    timeout: float | None = None,
    ended: Mapping[str, Latch] = MappingProxyType({}),
) -> SyncResult:
    """Wait until every latch is open (client-go's WaitFor).

    - `waiting`: the latches by name. Without any it returns at once.
    - `why`: the reason for which the latch of a name is not open, for the log and the result.
    - `timeout`: seconds of the clock, None for no limit.
    - `ended`: latches by the same names. If one of them opens first, its namesake will never open, and the
      wait ends.

    Returns the result and does not raise for a latch that is not open. After 10 s, and then at growing
    intervals, the log names the latches that are not open. Used on the loop of the latches.
    """
    changed = asyncio.Event()
    latches = [*waiting.values(), *(latch for name, latch in ended.items() if name in waiting)]
    for latch in latches:
        latch.on_open(changed.set)
    try:
        cause = await _all_open(waiting, ended, changed, clock=clock, why=why, timeout=timeout)
    finally:
        for latch in latches:
            latch.forget(changed.set)
    synced = {name: latch.is_open for name, latch in waiting.items()}
    reasons = {name: reason for name, done in synced.items() if not done and (reason := why(name))}
    return SyncResult(synced, reasons, cause)


async def _all_open(
    waiting: Mapping[str, Latch],
    ended: Mapping[str, Latch],
    changed: asyncio.Event,
    *,
    clock: Clock,
    why: Why,
    timeout: float | None,
) -> Exception | None:
    """Return None when all latches are open, else the reason for an early end."""
    began = clock.monotonic()
    deadline = float("inf") if timeout is None else began + timeout
    interval, next_word = _FIRST_WORD, began + _FIRST_WORD
    while missing := sorted(name for name, latch in waiting.items() if not latch.is_open):
        if over := [name for name in missing if name in ended and ended[name].is_open]:
            return NotSynced(f"ended before it had synced: {', '.join(over)}")
        now = clock.monotonic()
        if now >= deadline:
            return TimeoutError(f"waited for {timeout:g} s")
        if now >= next_word:
            sentences = "; ".join(_sentence(name, why(name)) for name in missing)
            _log.warning("waiting for %.0f s until they have synced: %s", now - began, sentences)
            interval = min(2 * interval, _LONGEST_SILENCE)
            next_word = now + interval
        # Until a latch opens, the timeout, or the next log line.
        await set_within(changed, min(next_word, deadline) - clock.monotonic(), clock=clock)
        changed.clear()
    return None


async def wait_for_cache_sync(
    *waited: Waitable | Latch, timeout: float | None = None, clock: Clock | None = None
) -> SyncResult:
    """Wait until informers, registrations or latches have synced (client-go's WaitForCacheSync).

    - `timeout`: seconds, None for no limit.
    - `clock`: the system's by default.

    Returns a result that is true if all have synced, and that names the others with their reasons. Of several
    with one name, the second is called `name (2)`. It ends early when an informer or a registration ends
    before it has synced. On their loop.
    """
    named: dict[str, Waitable | Latch] = {}
    for one in waited:
        name, number = one.name, 2
        while name in named and named[name] is not one:
            name, number = f"{one.name} ({number})", number + 1
        named[name] = one
    waitables = {name: one for name, one in named.items() if not isinstance(one, Latch)}
    return await wait_for(
        {name: one if isinstance(one, Latch) else one.synced for name, one in named.items()},
        clock=clock or SystemClock(),
        why=lambda name: waitables[name].why_not_synced() if name in waitables else "",
        timeout=timeout,
        ended={name: one.ended for name, one in waitables.items()},
    )


def _sentence(name: str, reason: str) -> str:
    return f"{name} has not synced ({reason})" if reason else f"{name} has not synced"


class _Tracker(ABC):
    """The common part of both trackers. All methods may be called from any thread.

    `synced` opens when the upstream has synced and all work that was started is finished; it stays open. It
    belongs to one loop: pass that as `loop` if other threads finish work.
    """

    def __init__(self, name: str = "", *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.synced = Latch(name)
        self._loop = loop
        self._lock = threading.Lock()
        self._upstream = False  # all work of the first sync was started
        self._synced = False  # `synced` opens; written under the lock

    @property
    def has_synced(self) -> bool:
        """Whether the upstream has synced and all work was finished."""
        return self._synced

    def upstream_has_synced(self) -> None:
        """Note that all work of the first sync was started."""
        with self._lock:
            self._upstream = True
        self._look()

    @abstractmethod
    def _works(self) -> bool:
        """Whether work that was started is not finished. Called under the lock."""

    def _look(self) -> None:
        with self._lock:
            if self._synced or not self._upstream or self._works():
                return
            self._synced = True
        if self._loop is None:
            self.synced.open()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits any longer
                self._loop.call_soon_threadsafe(self.synced.open)


class AsyncTracker(_Tracker, Generic[Key]):
    """Tracks work by its key, finished in any order (client-go's AsyncTracker)."""

    def __init__(self, name: str = "", *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(name, loop=loop)
        self._keys: set[Key] = set()

    def start(self, key: Key) -> None:
        """Note that work on a key begins. Call it before `finished` of that key can be called."""
        with self._lock:
            self._keys.add(key)

    def finished(self, key: Key) -> None:
        """Note that the work on a key has ended, with success or not; no effect for an unknown key."""
        with self._lock:
            self._keys.discard(key)
        self._look()

    def _works(self) -> bool:
        return bool(self._keys)


class SingleFileTracker(_Tracker):
    """Tracks work that is finished in the order in which it was started (client-go's SingleFileTracker).

    It counts, and keeps no keys.
    """

    def __init__(self, name: str = "", *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(name, loop=loop)
        self._count = 0

    def start(self) -> None:
        """Note that one piece of work begins."""
        with self._lock:
            self._count += 1

    def finished(self) -> None:
        """Note that one piece of work has ended; raises CacheError if none was under way."""
        with self._lock:
            if not self._count:
                raise CacheError(f"{self.synced.name or 'a tracker'}: more work was finished than started")
            self._count -= 1
        self._look()

    def _works(self) -> bool:
        return self._count > 0


class Lazy(Generic[T]):
    """A value that is computed by the first `get` after each `notify` (client-go's Lazy). From any thread.

    `get` never returns a value whose computation began before the caller's own `notify`. Threads that call
    `get` during a computation wait for it; after a further `notify`, a new computation starts beside it. An
    exception of `evaluate` is raised and not kept: the next `get` computes again.
    """

    def __init__(self, evaluate: Callable[[], T]) -> None:
        self._evaluate = evaluate
        self._computation = _Computation(evaluate)

    def notify(self) -> None:
        """Let the next `get` compute the value anew."""
        # A computation under way keeps its own entry, whose result no later `get` returns.
        self._computation = _Computation(self._evaluate)

    def get(self) -> T:
        """The value."""
        return self._computation.get()


class _Computation(Generic[T]):
    """One computation and its result."""

    def __init__(self, evaluate: Callable[[], T]) -> None:
        self._evaluate = evaluate
        self._lock = threading.Lock()
        self._found: tuple[T] | None = None

    def get(self) -> T:
        if self._found is None:
            with self._lock:
                # Another thread may have computed it while this one waited for the lock.
                if self._found is None:
                    self._found = (self._evaluate(),)
        return self._found[0]
