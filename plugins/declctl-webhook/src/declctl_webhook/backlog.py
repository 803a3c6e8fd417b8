"""The events that wait: which may be sent now, in which batches. The spool keeps them; this orders them.

Events of one key are delivered in order: a key with an event under way, or waiting for its next attempt,
gives no other one. Events of different keys do not wait for each other.
"""

import errno
import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from declctl_webhook.settings import SpoolSettings, WhenFull
from declctl_webhook.spool import Entry, Recovery, Spool


@dataclass(slots=True, eq=False)
class Batch:
    """Events of one request. Its keys give no other events until it is released."""

    entries: Sequence[Entry]
    rest: Sequence[Entry] = ()  # of the same, only, key; they are sent after `entries`
    attempts: int = 0  # that have failed
    due: float = 0.0  # on the monotonic clock: not before
    keys: frozenset[str] = field(default_factory=frozenset[str])

    def __post_init__(self) -> None:
        self.keys = frozenset(entry.key for entry in self.entries)

    def split(self) -> "list[Batch]":
        """Two batches with half of the keys each; for one key, a batch whose `rest` is the second half."""
        if len(self.keys) > 1:
            first = frozenset(sorted(self.keys)[: len(self.keys) // 2])
            halves = (
                [entry for entry in self.entries if (entry.key in first) is wanted]
                for wanted in (True, False)
            )
            return [Batch(half) for half in halves]
        middle = (len(self.entries) + 1) // 2
        return [Batch(self.entries[:middle], rest=(*self.entries[middle:], *self.rest))]


class Backlog:
    """The events of a spool that are not delivered. Any thread may use it.

    `monotonic` and `now` are the clock. `changed` is called, in the thread of the caller, after an event
    was added.
    """

    def __init__(
        self,
        settings: SpoolSettings,
        *,
        monotonic: Callable[[], float],
        now: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._lock = threading.Lock()  # for all fields
        self._spool = Spool(settings, now=now)
        self._monotonic = monotonic
        self.changed = changed
        self._is_open = False
        self._queues: dict[str, deque[Entry]] = {}  # by key, the oldest first; none is empty
        self._queue_bytes: dict[str, int] = {}  # by the same keys
        self._busy: set[str] = set()  # keys of batches that are not released
        # The first event of each key that is not busy, by sequence number. An item may be outdated: it is
        # true if its key is not busy, and its number is that of the first event of the key.
        self._heads: list[tuple[int, str]] = []
        self._added: dict[int, float] = {}  # by sequence number: when it was added, on the monotonic clock
        self._ready_events = 0  # of keys that are not busy
        self._ready_bytes = 0
        self.dropped = 0  # events that were dropped because the spool was full
        self._count = 0  # events that are neither acknowledged nor dropped

    def open(self) -> Recovery:
        """Take the spool; its events wait at once. Blocks. Raises SettingsError, as `Spool.open` does."""
        with self._lock:
            recovery = self._spool.open()
            self._is_open = True
            for entry in recovery.entries:
                self._put(entry, float("-inf"))
            return recovery

    def close(self) -> None:
        """Give the spool back."""
        with self._lock:
            self._is_open = False
            self._spool.close()

    def configure(self, settings: SpoolSettings) -> None:
        """Use other limits from now on."""
        with self._lock:
            self._spool.configure(settings)

    def __len__(self) -> int:
        """The events that are not delivered, those under way too."""
        return self._count

    @property
    def disk_bytes(self) -> int:
        """The size of the spool on disk."""
        with self._lock:
            return self._spool.disk_bytes

    @property
    def faults(self) -> tuple[int, str]:
        """How many files of the spool could not be written or removed, and the last reason."""
        return self._spool.faults, self._spool.last_fault

    @property
    def oldest(self) -> float | None:
        """The Unix time of the oldest event that no batch has; None without one."""
        with self._lock:
            return min((queue[0].spooled_at for queue in self._queues.values()), default=None)

    def add(self, key: str, body: bytes, *, when_full: WhenFull | None = None) -> bool:
        """Add an event; False if it was dropped. Blocks for one write to disk.

        Raises SpoolFull, EventTooLarge and OSError, as `Spool.append` does.
        """
        with self._lock:
            if not self._is_open:
                raise OSError(errno.EBADF, "the spool is closed")
            entry, dropped = self._spool.append(key, body, when_full=when_full)
            for old in dropped:
                self._drop(old)
            self.dropped += len(dropped) + (entry is None)
            if entry is not None:
                self._put(entry, self._monotonic())
        if entry is not None:
            self.changed()
        return entry is not None

    def take(self, most: int, most_bytes: int) -> Batch | None:
        """The oldest events that may be sent, as a batch; None if there are none.

        It has at most `most` events and `most_bytes` bytes, and one event at least.
        """
        with self._lock:
            taken: list[Entry] = []
            size = 0
            while len(taken) < most and (key := self._head()) is not None:
                queue = self._queues[key]
                if taken and size + queue[0].size > most_bytes:
                    break
                entry = self._pop(key)
                size += entry.size
                taken.append(entry)
            batch = Batch(taken) if taken else None
            for key in batch.keys if batch is not None else ():
                self._busy.add(key)
                self._ready_events -= len(self._queues.get(key, ()))
                self._ready_bytes -= self._queue_bytes.get(key, 0)
            return batch

    def ripe_in(self, most: int, most_bytes: int, age: float) -> float | None:
        """The seconds until a batch should be taken: it is full, or its oldest event has waited for `age`.

        None if there is no event that may be sent.
        """
        with self._lock:
            key = self._head()
            if key is None:
                return None
            if self._ready_events >= most or self._ready_bytes >= most_bytes:
                return 0.0
            return max(0.0, self._added[self._queues[key][0].sequence] + age - self._monotonic())

    def read(self, entry: Entry) -> bytes:
        """The body of an event. Blocks. Raises Damaged and OSError."""
        with self._lock:
            return self._spool.read(entry)

    def live(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those of some entries that were not dropped meanwhile."""
        with self._lock:
            return [entry for entry in entries if self._spool.has(entry)]

    def acknowledge(self, entries: Iterable[Entry]) -> None:
        """Forget events of a batch: they are delivered, or have another end. Blocks."""
        with self._lock:
            gone = [entry for entry in entries if self._spool.has(entry)]
            self._spool.acknowledge(gone)
            self._count -= len(gone)

    def release(self, batch: Batch) -> None:
        """End a batch: the next events of its keys may be sent."""
        with self._lock:
            for key in batch.keys:
                self._busy.discard(key)
                queue = self._queues.get(key)
                if queue is not None:
                    heapq.heappush(self._heads, (queue[0].sequence, key))
                    self._ready_events += len(queue)
                    self._ready_bytes += self._queue_bytes[key]

    def _put(self, entry: Entry, at: float) -> None:
        key = entry.key
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._queue_bytes[key] = 0
            if key not in self._busy:
                heapq.heappush(self._heads, (entry.sequence, key))
        queue.append(entry)
        self._queue_bytes[key] += entry.size
        self._added[entry.sequence] = at
        self._count += 1
        if key not in self._busy:
            self._ready_events += 1
            self._ready_bytes += entry.size

    def _head(self) -> str | None:
        """The key of the oldest event that may be sent."""
        while self._heads:
            sequence, key = self._heads[0]
            queue = self._queues.get(key)
            if queue is not None and key not in self._busy and queue[0].sequence == sequence:
                return key
            heapq.heappop(self._heads)
        return None

    def _pop(self, key: str) -> Entry:
        """Take the first event of a key that is not busy."""
        entry = self._queues[key][0]
        self._remove_first(key)
        return entry

    def _remove_first(self, key: str) -> None:
        queue = self._queues[key]
        entry = queue.popleft()
        del self._added[entry.sequence]
        self._queue_bytes[key] -= entry.size
        if key not in self._busy:
            self._ready_events -= 1
            self._ready_bytes -= entry.size
        if not queue:
            del self._queues[key], self._queue_bytes[key]
        elif key not in self._busy:
            heapq.heappush(self._heads, (queue[0].sequence, key))

    def _drop(self, entry: Entry) -> None:
        """Forget an event that the spool has dropped. One of a batch is left out when the batch is sent."""
        self._count -= 1
        queue = self._queues.get(entry.key)
        # The spool drops the oldest events, so those of a key come in their order.
        if queue is not None and queue[0] is entry:
            self._remove_first(entry.key)
