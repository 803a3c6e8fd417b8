"""Trackers of the first sync, and values that are computed when they are asked for.

They are client-go's tools/cache/synctrack, for code that processes the first sync outside of a handler: in a
work queue, in threads, in batches. Our own listeners count by epochs of their queue instead, which also take
account of changes that were merged.
"""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from declctl.errors import CacheError
from declctl.kit import Latch

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


class _Tracker(ABC):
    """What both trackers have. `synced` opens once, when the upstream has synced and no work is left.

    Any thread may call. `synced` is for a loop: pass it as `loop` if other threads say that work is
    finished. Once synced it stays so, whatever starts later.
    """

    def __init__(self, name: str = "", *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.synced = Latch(name)
        self._loop = loop
        self._lock = threading.Lock()
        self._upstream = self._synced = False

    @property
    def has_synced(self) -> bool:
        """Whether the upstream has synced and what was started has been finished."""
        return self._synced

    def upstream_has_synced(self) -> None:
        """All work of the first sync was started; what is left is to finish it."""
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any longer
                self._loop.call_soon_threadsafe(self.synced.open)


class AsyncTracker(_Tracker, Generic[Key]):
    """Tracks work by its key, finished in any order (client-go's AsyncTracker)."""

    def __init__(self, name: str = "", *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(name, loop=loop)
        self._keys: set[Key] = set()

    def start(self, key: Key) -> None:
        """Work on a key begins; call it before the work can be finished."""
        with self._lock:
            self._keys.add(key)

    def finished(self, key: Key) -> None:
        """The work on a key is done, well or badly; what was not started is ignored."""
        with self._lock:
            self._keys.discard(key)
        self._look()

    def _works(self) -> bool:
        return bool(self._keys)


class SingleFileTracker(_Tracker):
    """Tracks work that is finished in the order in which it was started: it only counts.

    (client-go's SingleFileTracker.)
    """

    def __init__(self, name: str = "", *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(name, loop=loop)
        self._count = 0

    def start(self) -> None:
        """One piece of work begins."""
        with self._lock:
            self._count += 1

    def finished(self) -> None:
        """One piece of work is done; raises CacheError if none was under way."""
        with self._lock:
            if not self._count:
                raise CacheError(f"{self.synced.name or 'a tracker'}: more work was finished than started")
            self._count -= 1
        self._look()

    def _works(self) -> bool:
        return self._count > 0


class Lazy(Generic[T]):
    """A value that is computed when it is asked for, once after each `notify` (client-go's Lazy).

    Any thread may call. `get` never gives what was computed from before the caller's own `notify`.
    Whoever asks while it is being computed waits for that one computation; a `notify` meanwhile
    starts a new one beside it. What `evaluate` raises goes to the caller and is not kept: the next
    `get` tries again.
    """

    def __init__(self, evaluate: Callable[[], T]) -> None:
        self._evaluate = evaluate
        self._entry = _Entry(evaluate)

    def notify(self) -> None:
        """Something has changed: the next `get` computes anew."""
        self._entry = _Entry(self._evaluate)  # one that computes now keeps its own entry, which nobody sees

    def get(self) -> T:
        """The value."""
        return self._entry.get()


class _Entry(Generic[T]):
    """One computation, and its result."""

    def __init__(self, evaluate: Callable[[], T]) -> None:
        self._evaluate = evaluate
        self._lock = threading.Lock()
        self._found: tuple[T] | None = None

    def get(self) -> T:
        if self._found is None:
            with self._lock:
                if self._found is None:
                    self._found = (self._evaluate(),)
        return self._found[0]
