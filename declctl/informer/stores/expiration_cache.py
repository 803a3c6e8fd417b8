"""ExpirationCache: records that are forgotten when they are old (client-go's expiration_cache.go)."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from declctl.kit import Clock
from declctl.kit.callbacks import plain, refuse_async
from declctl.objects import Record


@dataclass(frozen=True, slots=True)
class TimestampedEntry:
    """A record, and when it was put there (seconds on the cache's clock)."""

    record: Record
    timestamp: float


class ExpirationPolicy(Protocol):
    """Decides what is too old."""

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether the entry is to be forgotten."""
        ...


class TTLPolicy:
    """Entries live for `ttl` seconds, the last of them included; without a positive `ttl`, for ever."""

    def __init__(self, ttl: float, clock: Clock) -> None:
        self._ttl = ttl
        self._clock = clock

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether it is older than that (client-go 102)."""
        return self._ttl > 0 and self._clock.monotonic() - entry.timestamp > self._ttl


class ExpirationCache:
    """Records by key, each with the time of its last write.

    What has expired is forgotten when it is asked for, not before: until then `list_keys` and
    `len` count it. Used from any thread.
    """

    def __init__(self, policy: ExpirationPolicy, *, clock: Clock) -> None:
        refuse_async(policy.is_expired, "is_expired of an expiration policy")
        self._policy = policy
        self._clock = clock
        self._entries: dict[str, TimestampedEntry] = {}
        # Between the look at an entry and its removal nobody may put a new one there (client-go 100).
        self._lock = threading.RLock()

    @classmethod
    def with_ttl(cls, ttl: float, *, clock: Clock) -> "ExpirationCache":
        """A cache whose entries live for `ttl` seconds (client-go's NewTTLStore)."""
        return cls(TTLPolicy(ttl, clock), clock=clock)

    def add(self, record: Record) -> None:
        """Put a record; its time begins anew."""
        with self._lock:
            self._entries[record.key] = TimestampedEntry(record, self._clock.monotonic())

    update = add

    def delete(self, record: Record) -> None:
        """Take a record out; nothing happens if it isn't there."""
        with self._lock:
            self._entries.pop(record.key, None)

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:  # noqa: ARG002 - the contract
        """Hold these records and no others; the time of each begins anew."""
        now = self._clock.monotonic()
        entries = {record.key: TimestampedEntry(record, now) for record in records}
        with self._lock:
            self._entries = entries

    def resync(self) -> None:
        """Nothing: what is stored is in sync with itself."""

    def get(self, record: Record) -> Record | None:
        """What is stored under the key of a record and has not expired; None if nothing is."""
        return self.get_by_key(record.key)

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if it isn't there or has expired (client-go 99)."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if plain(self._policy.is_expired(entry), "is_expired of an expiration policy"):
                del self._entries[key]
                return None
            return entry.record

    def list(self) -> list[Record]:
        """Every record that has not expired (client-go 101)."""
        with self._lock:
            keys = tuple(self._entries)
            return [record for key in keys if (record := self.get_by_key(key)) is not None]

    def list_keys(self) -> Sequence[str]:
        """Every key, those of expired records too."""
        return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True, slots=True)
class FakeExpirationPolicy:
    """For tests: everything expires except what `retains` accepts (client-go's FakeExpirationPolicy)."""

    retains: Callable[[Record], bool]

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether it isn't retained."""
        return not plain(self.retains(entry.record), "`retains` of a FakeExpirationPolicy")
