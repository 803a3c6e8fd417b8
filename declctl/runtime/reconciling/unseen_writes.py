"""Reads follow writes: what a reconciler has written, and what the caches do not have yet.

A write returns before the watch brings it. A reconciler that reads the cache in between misses it: it counts
too few children, and creates another one. So the version of each write is kept until the caches of its kind
have it. Until then, the key that wrote is not reconciled again. Other keys of the handler wait as well, for a
shorter time. A write of the reconciled object itself, such as its status, holds back its own key only.

A cache tells when it has advanced, and then the keys whose writes it has are released. No key is looked at
before: however many are held back, each step costs O(log n).
"""

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from declctl.informer.informer import OnApplied, SharedIndexInformer
from declctl.kit import Clock
from declctl.objects import NO_ORDER, FieldSelector, LabelSelector, version_order
from declctl.objects.resource import namespace_of
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
    version: str  # that the write returned; empty for some deletes
    deletes: bool
    selected: bool  # whether the cache selects the object in its new state
    writer: str  # the key that was reconciled
    since: float  # monotonic seconds
    number: int = 0  # of all writes of the handler, in the order in which they were noted
    is_over: bool = False  # no key waits for it any longer

    def is_seen(self) -> bool:
        """Whether the cache has the write, or a newer state. From any thread."""
        cache, namespace = self.cache, namespace_of(self.key)
        # Reads of an unsynced cache raise NotSynced. Its list will be newer than the write.
        if cache.is_stopped or not cache.has_synced or not cache.follows(namespace):
            return True
        # The same holds for a namespace that a selector has just matched.
        if (version := cache.version_in(namespace)) is None:
            return True
        stored = cache.indexer.get_by_key(self.key)
        if self.deletes:
            # By uid: another object may have the name by now. An object with finalizers stays for a while.
            if stored is None or stored.uid != self.uid:
                return True
            return bool(self.version) and _reaches(stored.resource_version, self.version)
        # The store has all events up to this version; a bookmark moves it, too.
        if _reaches(version, self.version):
            return True
        if stored is None:
            return not self.selected
        return _reaches(stored.resource_version, self.version)

    def __str__(self) -> str:
        what = "the delete" if self.deletes else f"version {self.version}"
        return f"{what} of {self.key} ({self.cache.name})"


class HeldKey(NamedTuple):
    """A key that was due, and is not reconciled before caches have its writes and `until` has passed."""

    key: str
    until: float  # monotonic seconds


@dataclass(slots=True)
class _Held:
    """A held key. It waits for one thing after the other: its own writes, those of others, its time."""

    last: int  # the number of the last write that it waits for: later ones do not hold it back
    counts: bool  # towards `others`
    until: float  # monotonic seconds
    awaits_own: bool = True


_Heap = list[tuple[tuple[int, str], int, UnseenWrite]]  # the order of a version, the number, and the write


@dataclass(slots=True)
class _Awaited:
    """What is awaited of one cache."""

    call: OnApplied
    by_namespace: bool  # it follows a set of namespaces, each of which has a version of its own
    versions: dict[str | None, _Heap] = field(
        default_factory=dict[str | None, _Heap]
    )  # by namespace, or None
    deletes: dict[str, list[UnseenWrite]] = field(default_factory=dict[str, list[UnseenWrite]])  # by key
    number: int = 0  # of writes that are not over

    def add(self, write: UnseenWrite) -> None:
        """Await a write: a delete without a version by its key, any other one by its version."""
        self.number += 1
        order = version_order(write.version)
        if order == NO_ORDER:
            self.deletes.setdefault(write.key, []).append(write)
            return
        heap = self.versions.setdefault(namespace_of(write.key) if self.by_namespace else None, [])
        while heap and heap[0][2].is_over:  # as keys have waited for it for long enough
            heappop(heap)
        heappush(heap, (order, write.number, write))

    def remove(self, write: UnseenWrite) -> None:
        """Do not await a write any longer, which is over."""
        self.number -= 1
        if (deletes := self.deletes.get(write.key)) is not None and write in deletes:
            deletes.remove(write)
            if not deletes:
                del self.deletes[write.key]

    def take_seen(
        self, cache: SharedIndexInformer, keys: Sequence[str] | None, namespace: str | None
    ) -> list[UnseenWrite]:
        """The writes that the cache has after changes, which are as for `OnApplied`."""
        namespaces: Iterable[str | None] = tuple(self.versions)
        if keys is None:
            keys = [key for key in self.deletes if namespace in (None, namespace_of(key))]
            namespaces = namespaces if namespace is None else (namespace,)
        elif self.by_namespace:
            namespaces = {namespace_of(key) for key in keys}
        seen = [write for key in keys for write in self.deletes.get(key, ()) if write.is_seen()]
        for each in namespaces:
            version, heap = cache.version_in(each), self.versions.get(each, [])
            # None: a namespace has left the set, with its objects.
            is_over = version is None or cache.is_stopped
            reached = version_order(version or "")
            while heap and (is_over or heap[0][2].is_over or heap[0][0] <= reached):
                seen.append(heappop(heap)[2])
            if not heap:
                self.versions.pop(each, None)
        return [write for write in dict.fromkeys(seen) if not write.is_over]


class UnseenWrites:
    """The unseen writes of one reconciler, and the keys that they hold back. From any thread.

    `wake` is called when a key is released by a cache. `report` takes a message about a cache that lags.
    """

    def __init__(
        self, *, clock: Clock, report: Callable[[str], None], wake: Callable[[], None] = lambda: None
    ) -> None:
        self._clock = clock
        self._report = report
        self._wake = wake
        self._lock = threading.Lock()  # guards all of the following
        self._turns = itertools.count()
        self._last = 0  # the number of the last write
        # By number: writes that are younger than OTHERS_SECONDS; the others; those that other keys wait for.
        self._young: OrderedDict[int, UnseenWrite] = OrderedDict()
        self._old: OrderedDict[int, UnseenWrite] = OrderedDict()
        self._shared: OrderedDict[int, UnseenWrite] = OrderedDict()
        self._own: dict[str, OrderedDict[int, UnseenWrite]] = {}  # by writer; none is empty
        self._caches: dict[SharedIndexInformer, _Awaited] = {}  # by cache that lacks a write
        self._held: dict[str, _Held] = {}  # by key
        self._await_others: list[tuple[int, int, str]] = []  # a heap: `last`, the turn, and the held key
        self._await_time: list[tuple[float, str]] = []  # a heap: `until` and held key
        self._released: deque[str] = deque()  # keys of `_held` that wait for nothing any longer
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
        own_kind: tuple[str, str],
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
                self._await(write)

    def hold(self, key: str, delay: float) -> bool:
        """Hold a key back, if it has to wait for writes, or for a `delay` in seconds; returns whether it has.

        It is held until `take_released` returns it.
        """
        if not (self._young or self._old or delay > 0):
            return False
        with self._lock:
            now = self._expire()
            own = key in self._own
            if not (own or self._shared or delay > 0):
                return False
            self.held_back += bool(own or self._shared)
            held = self._held[key] = _Held(self._last, not (own or delay > 0), now + delay)
            self.others += held.counts
            self._look(key, held)
            return True

    def take_released(self) -> str | None:
        """A key that need not wait any longer, which is not held from now on; None if there is none."""
        if not self._held:
            return None
        with self._lock:
            now = self._expire()
            while self._await_time and self._await_time[0][0] <= now:
                self._released.append(heappop(self._await_time)[1])
            if not self._released:
                return None
            key = self._released.popleft()
            self.others -= self._held.pop(key).counts
            return key

    def next_due(self) -> float | None:
        """Seconds until `take_released` has to be called, unless a cache wakes before; None without keys."""
        if not self._held:
            return None
        with self._lock:
            now = self._expire()
            if self._released:
                return 0.0
            moments = [until for until, _ in self._await_time[:1]]
            moments += [each.since + OTHERS_SECONDS for each in islice(self._young.values(), 1)]
            moments += [each.since + OWN_SECONDS for each in islice(self._old.values(), 1)]
            return max(0.0, min(moments) - now)

    def held(self, most: int | None = None) -> Sequence[HeldKey]:
        """The keys that are held back; the first `most` of them."""
        with self._lock:
            return [HeldKey(key, held.until) for key, held in islice(self._held.items(), most)]

    def clear(self) -> None:
        """Hold no key back any longer."""
        with self._lock:
            for waiting in (self._held, self._await_others, self._await_time, self._released):
                waiting.clear()
            self.others = 0

    def __len__(self) -> int:
        """The number of keys that are held back."""
        return len(self._held)

    @property
    def kept(self) -> int:
        """The number of writes that are kept."""
        return len(self._young) + len(self._old)

    # The methods below, but for `_applied`, are called under the lock.

    def _look(self, key: str, held: _Held) -> None:
        """Let a held key wait for the next thing that it has to wait for."""
        if (own := self._own.get(key)) is not None and next(iter(own)) <= held.last:
            return
        held.awaits_own = False
        if self._shared and next(iter(self._shared)) <= held.last:
            heappush(self._await_others, (held.last, next(self._turns), key))
        elif held.until > self._clock.monotonic():
            heappush(self._await_time, (held.until, key))
        else:
            self._released.append(key)

    def _look_at_others(self) -> None:
        """Let the keys go on whose writes of others are all over."""
        first = next(iter(self._shared), self._last + 1)
        while self._await_others and self._await_others[0][0] < first:
            key = heappop(self._await_others)[2]
            self._look(key, self._held[key])

    def _await(self, write: UnseenWrite) -> None:
        """Let the cache of a write tell when it has it."""
        cache = write.cache
        awaited = self._caches.get(cache)
        if awaited is None:
            call, by_namespace = partial(self._applied, cache), cache.version_in(None) is None
            awaited = self._caches[cache] = _Awaited(call, by_namespace)
            cache.observe(call)
        awaited.add(write)

    def _applied(self, cache: SharedIndexInformer, keys: Sequence[str] | None, namespace: str | None) -> None:
        """End the writes that a cache has now. On the machinery loop."""
        with self._lock:
            awaited = self._caches.get(cache)
            if awaited is None:
                return
            for write in awaited.take_seen(cache, keys, namespace):
                self._end(write)
            self._look_at_others()
            wakes = bool(self._released)
        if wakes:
            self._wake()

    def _end(self, write: UnseenWrite) -> None:
        """Let no key wait for a write any longer."""
        write.is_over = True
        for known in (self._young, self._old, self._shared):
            known.pop(write.number, None)
        own = self._own[write.writer]
        del own[write.number]
        if not own:
            del self._own[write.writer]
        held = self._held.get(write.writer)
        if held is not None and held.awaits_own:
            self._look(write.writer, held)
        awaited = self._caches[write.cache]
        awaited.remove(write)
        if not awaited.number:
            del self._caches[write.cache]
            write.cache.unobserve(awaited.call)

    def _expire(self) -> float:
        """End the writes for which keys have waited for long enough; returns the monotonic time."""
        now = self._clock.monotonic()
        while self._young and now - (write := next(iter(self._young.values()))).since >= OTHERS_SECONDS:
            self._old[write.number] = self._young.pop(write.number)
            self._shared.pop(write.number, None)
            self.lagging += 1
            self._tell(write, now)
        while self._old and now - (write := next(iter(self._old.values()))).since >= OWN_SECONDS:
            self._end(write)
        self._look_at_others()
        return now

    def _unseen(self, written: Written, origin: WriteOrigin, cache: "ManagedInformer") -> UnseenWrite | None:
        watch, metadata = cache.identity.watch, written.obj.get("metadata") or {}
        deletes = written.verb is WriteVerb.DELETE
        if watch.namespace not in (None, written.key.namespace):
            return None
        if not written.uid if deletes else version_order(written.resource_version) == NO_ORDER:
            return None  # nothing tells whether the cache has it
        return UnseenWrite(
            cache.informer,
            str(written.key),
            written.uid,
            # Of an object that goes on for a while, with its finalizers or its grace period.
            written.resource_version if not deletes or metadata.get("deletionTimestamp") else "",
            deletes,
            _selects(watch.label_selector, watch.field_selector, written.obj),
            origin.key,
            self._clock.monotonic(),
        )

    def _tell(self, write: UnseenWrite, now: float) -> None:
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            age = now - write.since
            self._report(
                f"a cache lags: it has lacked {write} for {age:.0f} s. {write.writer} waits for "
                f"its own writes up to {OWN_SECONDS:.0f} s; other keys do not wait any longer, and may read "
                "an older state"
            )


def _reaches(version: str, other: str) -> bool:
    """Whether a version is the other one or a newer one."""
    orders = version_order(version), version_order(other)
    return version == other or (NO_ORDER not in orders and orders[0] >= orders[1])


def _selects(labels: str, fields: str, obj: Mapping[str, Any]) -> bool:
    """Whether a cache with these selectors has an object."""
    metadata: Mapping[str, Any] = obj.get("metadata") or {}
    if labels and not LabelSelector.parse(labels).matches(metadata.get("labels") or {}):
        return False
    return not fields or FieldSelector.parse(fields).matches(obj)
