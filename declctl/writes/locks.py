"""Locks by key."""

import asyncio
from collections.abc import Hashable
from weakref import WeakValueDictionary


class KeyLocks:
    """One lock for each key, for tasks of one loop. A lock lives while a task holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: Hashable) -> asyncio.Lock:
        """The lock of a key, for `async with`."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
