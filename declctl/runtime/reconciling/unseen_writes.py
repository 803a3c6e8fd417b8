"""Reads follow writes: what a reconciler has written, and what the caches do not have yet.

A write returns before the watch brings it. A reconciler that reads the cache in between misses it: it counts
too few children, and creates another one. So the version of each write is kept until the caches of its kind
have it. Until then, the key that wrote is not reconciled again. Other keys of the handler wait as well, for a
shorter time. A write of the reconciled object itself, such as its status, holds back its own key only.

A cache tells when it has advanced, and then the keys whose writes it has are released. No key is looked at
before: however many are held back, each step costs O(log n). Only a list or a bookmark looks at all writes
that its cache lacks.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from declctl.informer.informer import OnApplied, SharedIndexInformer
from declctl.kit import Clock
from declctl.kit.key_queue import QueueItem
from declctl.objects import NO_ORDER, FieldSelector, LabelSelector, version_order
from declctl.objects.resource import namespace_of
from declctl.runtime.handling.write_loops import WriteLoops
from declctl.workqueue import Admission, Reasons
from declctl.writes import WriteOrigin, WriteVerb, Written

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.caching.managed_informer import ManagedInformer

# For which a key waits for its own writes. An idle watch is closed before, by the default of `idleTimeout`.
OWN_SECONDS = 120.0
OTHERS_SECONDS = 10.0  # after the write, for which other keys wait for it
_SILENCE = 60.0  # seconds between two log lines about caches that lag


@dataclass(slots=True, eq=False)
class UnseenWrite:
    """A write that a cache did not have when the server answered."""

    cache: SharedIndexInformer
    key: str  # of the object
    uid: str
    version: str  # that the write returned; empty for the delete of an object that goes at once
    deletes: bool
    selected: bool  # whether the cache will have the object
    writer: str  # the key that was reconciled
    since: float  # monotonic seconds
    number: int = 0  # of all writes of the handler, in the order in which they were noted

    def is_seen(self) -> bool:
        """Whether the cache has the write, or a newer state. From any thread."""
        cache = self.cache
        # Reads of an unsynced cache raise NotSynced, so that no key need wait for it: it might never sync.
        # Its first list is newer than the write, unless the server was answering it already.
        if cache.is_stopped or not cache.has_synced:
            return True
        if (version := cache.version_in(namespace_of(self.key))) is None:
            return True
        stored = cache.indexer.get_by_key(self.key)
        if stored is None:
            if not self.selected:
                return True
        elif self.deletes and stored.uid != self.uid:  # another object has the name by now
            return True
        # The store has all events up to its version; a bookmark moves it, too.
        versions = version, "" if stored is None else stored.resource_version
        return bool(self.version) and max(map(version_order, versions)) >= version_order(self.version)

    def __str__(self) -> str:
        what = "the delete" if self.deletes else f"version {self.version}"
        return f"{what} of {self.key} ({self.cache.name})"


@dataclass(slots=True)
class _HeldKey:
    """A key that is held back. It waits for its own writes, then for those of others, then for its time."""

    last: int  # the number of the last write that it waits for: later ones do not hold it back
    counts: bool  # towards `others`
    until: float  # monotonic seconds
    awaits_own: bool = True


class _Awaited(NamedTuple):
    """What one cache lacks."""

    call: OnApplied
    writes: dict[str, list[UnseenWrite]]  # by key of the object, the longest awaited first; none is empty


class UnseenWrites:
    """The unseen writes of one reconciler: the gate of its queue (`workqueue.Gate`). From any thread.

    It also holds a key back while it feeds itself, and skips one that is due because of its own writes alone
    (`write_loops`), or of which `is_undecided` says that it will be due once more is known of its object.
    `wake` is called when a cache releases a key. `report` takes a message about a cache that lags.
    """

    def __init__(
        self,
        handler: str,
        *,
        clock: Clock,
        report: Callable[[str], None],
        wake: Callable[[], None] = lambda: None,
        is_undecided: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._handler = handler
        self._is_undecided = is_undecided
        self._now = clock.monotonic
        self._report = report
        self._wake = wake
        # Those of the process, if the slot belongs to one.
        self.loops = WriteLoops(clock=clock, report=report)
        self.own_writes = 0  # times that a key was due because of its own writes alone, and was not taken
        self._lock = threading.Lock()  # guards all of the following
        self._turns = itertools.count()
        self._last = 0  # the number of the last write
        # By number: writes that are younger than OTHERS_SECONDS; the others; those that other keys wait for.
        self._young: OrderedDict[int, UnseenWrite] = OrderedDict()
        self._old: OrderedDict[int, UnseenWrite] = OrderedDict()
        self._shared: OrderedDict[int, UnseenWrite] = OrderedDict()
        self._own: dict[str, OrderedDict[int, UnseenWrite]] = {}  # by writer; none is empty
        self._awaited: dict[SharedIndexInformer, _Awaited] = {}  # by cache that lacks a write
        self._held: dict[str, _HeldKey] = {}  # by key
        self._await_others: list[tuple[int, int, str]] = []  # a heap: `last`, the turn, and the key
        self._await_time: list[tuple[float, str]] = []  # a heap: `until`, which may have passed, and the key
        self._silent_until = float("-inf")  # monotonic seconds: no log line before this
        self.others = 0  # held keys that neither wait for their own writes nor loop
        self.held_back = 0  # calls that have waited for caches
        self.lagging = 0  # writes that a cache did not have after OTHERS_SECONDS

    def note(
        self,
        written: Written,
        origin: WriteOrigin,
        caches: "Iterable[ManagedInformer]",
        *,
        own_kind: tuple[str, str] | None,
    ) -> None:
        """Keep a write that the server has stored, for each cache that may have its object.

        `own_kind` is the group and kind that the reconciler reconciles. On the machinery loop, on which the
        caches change.
        """
        kind = (written.kind.group, written.kind.kind)
        is_own = (kind, str(written.key)) == (own_kind, origin.key)
        for each in caches:
            if each.identity.group_kind != kind:
                continue
            write = self._unseen(written, origin, each)
            if write is None or write.is_seen():
                continue
            with self._lock:
                self._expire()
                self._last += 1
                write.number = self._last
                self._young[write.number] = write
                self._own.setdefault(origin.key, OrderedDict())[write.number] = write
                if not is_own:
                    self._shared[write.number] = write
                cache = write.cache
                if (awaited := self._awaited.get(cache)) is None:
                    awaited = self._awaited[cache] = _Awaited(partial(self._applied, cache), {})
                    cache.observe(awaited.call)
                awaited.writes.setdefault(write.key, []).append(write)

    def judge(self, item: QueueItem[Reasons]) -> Admission:
        """What becomes of a key whose turn has come. A key that is held is so until `take_released`."""
        # A retry and a Requeue have no versions: they are held as others, and never skipped.
        key, versions = item.key, item.value.versions
        if versions and self.loops.is_own(self._handler, key, versions):
            self.own_writes += 1
            return Admission.SKIP
        if self._is_undecided(key):
            return Admission.SKIP
        delay = self.loops.delay(self._handler, key)
        if not (self._young or self._old or delay > 0):
            return Admission.CALL
        with self._lock:
            now = self._expire()
            own = key in self._own
            if not (own or self._shared or delay > 0):
                return Admission.CALL
            self.held_back += bool(own or self._shared)
            held = self._held[key] = _HeldKey(self._last, not (own or delay > 0), now + delay)
            self.others += held.counts
            self._look(key, held)
            return Admission.HOLD

    def begins(self, item: QueueItem[Reasons]) -> None:
        """Notice that a worker gets a key."""
        self.loops.begin(self._handler, item.key, item.value.versions)

    def take_released(self) -> str | None:
        """A key that need not wait any longer, which is not held from now on; None if there is none."""
        if not self._held:
            return None
        with self._lock:
            now = self._expire()
            if not self._is_released(now):
                return None
            key = heappop(self._await_time)[1]
            self.others -= self._held.pop(key).counts
            return key

    def next_due(self) -> float | None:
        """Seconds until `take_released` has to be called, unless a cache wakes before; None without keys."""
        if not self._held:
            return None
        with self._lock:
            now = self._expire()
            moments = [until for until, _ in self._await_time[:1]]
            moments += [each.since + OTHERS_SECONDS for each in islice(self._young.values(), 1)]
            moments += [each.since + OWN_SECONDS for each in islice(self._old.values(), 1)]
            return max(0.0, min(moments) - now)

    def held(self) -> Sequence[tuple[str, float]]:
        """The keys that are held back, each with the monotonic time before which it is not released."""
        with self._lock:
            return [(key, held.until) for key, held in self._held.items()]

    def end_delays(self) -> None:
        """Release the keys that loop from their delays; those that wait for caches go on waiting."""
        with self._lock:
            now = self._now()
            for held in self._held.values():
                held.until = min(held.until, now)
            self._await_time = [(min(until, now), key) for until, key in self._await_time]
            heapify(self._await_time)

    def forget(self, key: str) -> None:
        """Hold a key back no longer, and release it never: it has left the queue."""
        with self._lock:
            if (held := self._held.pop(key, None)) is not None:
                self.others -= held.counts
                self._await_others = [each for each in self._await_others if each[2] != key]
                self._await_time = [each for each in self._await_time if each[1] != key]
                heapify(self._await_others)
                heapify(self._await_time)

    def clear(self) -> None:
        """Hold no key back any longer."""
        with self._lock:
            for waiting in (self._held, self._await_others, self._await_time):
                waiting.clear()
            self.others = 0

    def __len__(self) -> int:
        """The number of keys that are held back."""
        return len(self._held)

    # The methods below, but for `_applied`, are called under the lock.

    def _look(self, key: str, held: _HeldKey) -> None:
        """Let a held key wait for the next thing that it has to wait for."""
        if (own := self._own.get(key)) is not None and next(iter(own)) <= held.last:
            return
        held.awaits_own = False
        if self._shared and next(iter(self._shared)) <= held.last:
            heappush(self._await_others, (held.last, next(self._turns), key))
        else:
            heappush(self._await_time, (held.until, key))

    def _is_released(self, now: float) -> bool:
        """Whether a key of `_held` waits for nothing any longer."""
        return bool(self._await_time) and self._await_time[0][0] <= now

    def _applied(self, cache: SharedIndexInformer, keys: Sequence[str] | None) -> None:
        """End the writes that a cache has now (`OnApplied`). On the machinery loop."""
        with self._lock:
            if (awaited := self._awaited.get(cache)) is None:
                return
            writes = awaited.writes
            for key in tuple(writes) if keys is None else keys:
                self._end_seen(writes.get(key, ()))
            # A change of another object shows all versions before it: the oldest writes are over, too.
            while writes and self._end_seen(next(iter(writes.values()))):
                pass
            wakes = self._is_released(self._expire())
        if wakes:
            self._wake()

    def _end_seen(self, writes: Iterable[UnseenWrite]) -> bool:
        """End those of the writes that their cache has; returns whether there was one."""
        seen = [write for write in writes if write.is_seen()]
        for write in seen:
            self._end(write)
        return bool(seen)

    def _end(self, write: UnseenWrite) -> None:
        """Let no key wait for a write any longer."""
        for known in (self._young, self._old, self._shared):
            known.pop(write.number, None)
        own = self._own[write.writer]
        del own[write.number]
        if not own:
            del self._own[write.writer]
        held = self._held.get(write.writer)
        if held is not None and held.awaits_own:
            self._look(write.writer, held)
        call, writes = self._awaited[write.cache]
        writes[write.key].remove(write)
        if not writes[write.key]:
            del writes[write.key]
        if not writes:
            del self._awaited[write.cache]
            write.cache.unobserve(call)

    def _expire(self) -> float:
        """End the writes for which keys have waited for long enough; returns the monotonic time.

        Then let the keys go on whose writes of others are all over.
        """
        now = self._now()
        while self._young and now - (write := next(iter(self._young.values()))).since >= OTHERS_SECONDS:
            self._old[write.number] = self._young.pop(write.number)
            self._shared.pop(write.number, None)
            self.lagging += 1
            if now >= self._silent_until:
                self._silent_until = now + _SILENCE
                self._report(
                    f"a cache lags: it has lacked {write} for {now - write.since:.0f} s. {write.writer} "
                    f"waits for its own writes up to {OWN_SECONDS:.0f} s; other keys do not wait any longer, "
                    "and may read an older state"
                )
        while self._old and now - (write := next(iter(self._old.values()))).since >= OWN_SECONDS:
            self._end(write)
        first = next(iter(self._shared), self._last + 1)
        while self._await_others and self._await_others[0][0] < first:
            key = heappop(self._await_others)[2]
            self._look(key, self._held[key])
        return now

    def _unseen(self, written: Written, origin: WriteOrigin, cache: "ManagedInformer") -> UnseenWrite | None:
        watch, metadata = cache.identity.watch, written.obj.get("metadata") or {}
        deletes, version = written.verb is WriteVerb.DELETE, written.resource_version
        # An object with finalizers or a grace period goes on for a while.
        if version_order(version) == NO_ORDER or (deletes and not metadata.get("deletionTimestamp")):
            version = ""
        if watch.namespace not in (None, written.key.namespace) or not (version or (deletes and written.uid)):
            return None  # nothing tells whether the cache has it
        return UnseenWrite(
            cache.informer,
            str(written.key),
            written.uid,
            version,
            deletes,
            not deletes and _selects(watch.label_selector, watch.field_selector, written.obj),
            origin.key,
            self._now(),
        )


def _selects(labels: str, fields: str, obj: Mapping[str, Any]) -> bool:
    """Whether a cache with these selectors has an object."""
    metadata: Mapping[str, Any] = obj.get("metadata") or {}
    if labels and not LabelSelector.parse(labels).matches(metadata.get("labels") or {}):
        return False
    return not fields or FieldSelector.parse(fields).matches(obj)
