"""Moves: a reload gives a handler other caches, or another filter.

`MoveDifferences` are the objects that differ between the old caches and the new ones. A `Refilter` also has
the objects that enter or leave the filter. Both are kept current while a reload is staged, so that the commit
compares nothing. A `FreshnessProof` shows that a new cache is at least as new as the objects that the handler
has received from the old ones: no handler goes back in time.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import msgspec

from declctl.errors import FilterFailed, ReloadRefused
from declctl.informer.listener import Listener
from declctl.informer.processor import Registration
from declctl.kit import Clock, all_open
from declctl.objects import (
    NO_ORDER,
    ChangeReason,
    ChangeType,
    LabelSelector,
    Notification,
    ObjectKey,
    Record,
    field_view,
    version_order,
)
from declctl.objects.expressions import EvaluationFailed
from declctl.runtime.caching.managed_informer import (
    BATCH,
    LONGEST_PAUSE,
    ManagedInformer,
    StagedFunction,
    call_for_last_objects,
    call_for_objects,
    pause_caches,
)
from declctl.runtime.handling.binding import Filter
from declctl.runtime.threads import UserCall

_SLICE = 500  # objects that are compared before the loop may do something else
_CHECK = 0.005  # seconds between two looks at the versions of caches
_CATCH_UP_SECONDS = 2.0  # the time for caches to catch up without a relist

Notifications = tuple[Notification, ...]


class _Listening:
    """Listens to caches until `close`. Used on the machinery loop."""

    def __init__(self) -> None:
        self._registrations: list[Registration] = []

    def _listen(self, cached: ManagedInformer, listener: Listener) -> None:
        """Receive the changes of a cache from now on, without those before."""
        self._registrations.append(cached.informer.add_listener(listener, resync_period=0.0, initial=False))

    def close(self) -> None:
        """Stop listening. A second call has no effect."""
        for registration in self._registrations:
            registration.remove()
        self._registrations.clear()


class MoveDifferences(_Listening):
    """The differences that a handler receives when it moves from some caches (`before`) to others (`after`).

    From `begin` to `close` it listens to all of these caches, and compares each object that changes there.
    Used on the machinery loop; several handlers may share one.
    """

    def __init__(
        self, before: Iterable[ManagedInformer], after: Iterable[ManagedInformer], *, clock: Clock
    ) -> None:
        super().__init__()
        self._before = tuple(before)
        self._after = tuple(after)
        self.caches: Sequence[ManagedInformer] = tuple(dict.fromkeys((*self._before, *self._after)))
        self._clock = clock
        self._by_key: dict[str, Notifications] = {}  # of objects that differ

    def begin(self) -> Iterator[None]:
        """Follow the caches from now on, and compare all their objects, a slice at each step."""
        # Listeners come before the first comparison, so that objects that change meanwhile are compared
        # again.
        for cached in self.caches:
            self._listen(cached, self)
        for cached in self.caches:
            keys = iter(tuple(cached.informer.indexer.known()))
            while part := tuple(islice(keys, _SLICE)):
                self.recheck(part)
                yield

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Compare the objects that have changed in one of the caches."""
        self.recheck([notification.key for notification in notifications])

    def recheck(self, keys: Iterable[str]) -> None:
        """Bring the notifications of these objects up to their present states."""
        found_at = self._clock.now().timestamp()
        for key in keys:
            old, new = self.current_pair(key)
            self.enter(key, difference(old, new, received_at=found_at))

    def current_pair(self, key: str) -> tuple[Record | None, Record | None]:
        """The states of an object in the old caches and in the new ones."""
        return _stored(self._before, key), _stored(self._after, key)

    def enter(self, key: str, notifications: Notifications) -> None:
        """Set the notifications that the handler receives for an object."""
        if notifications:
            self._by_key[key] = notifications
        else:
            self._by_key.pop(key, None)

    @property
    def notifications(self) -> list[Notification]:
        """The notifications for a handler that moves now, and has received all objects of the old caches."""
        return [each for notifications in self._by_key.values() for each in notifications]


def difference(
    old: Record | None,
    new: Record | None,
    *,
    received_at: float,
    may_be_unknown: bool = False,
) -> Notifications:
    """The notifications that take a handler from one state of an object to another.

    Either state is None if no cache has the object, or if the filter refuses it. With `may_be_unknown`, the
    handler may not know the old state, so no Deleted is delivered. `received_at` is the Unix time stamp of
    the comparison.
    """
    # The same object on both sides: an update, unless the new cache has nothing newer.
    if old is not None and new is not None and old.uid == new.uid:
        if version_order(new.resource_version) <= version_order(old.resource_version):
            return ()
        reason = ChangeReason.RELIST
        return (Notification(ChangeType.MODIFIED, new, old, reason=reason, received_at=received_at),)
    # Objects of one name and two uids are two objects: the one is deleted, the other added.
    notifications: list[Notification] = []
    if old is not None and not may_be_unknown:
        reason = ChangeReason.OUT_OF_SCOPE
        notifications.append(Notification(ChangeType.DELETED, old, reason=reason, received_at=received_at))
    if new is not None:
        reason = ChangeReason.INITIAL
        notifications.append(
            Notification(ChangeType.ADDED, new, initial=True, reason=reason, received_at=received_at)
        )
    return tuple(notifications)


def _stored(caches: Sequence[ManagedInformer], key: str) -> Record | None:
    for cached in caches:
        record = cached.informer.indexer.stored(key)
        if record is not None:
            return record
    return None


_Order = tuple[int, str]


class CacheLags(ReloadRefused):
    """A cache has not caught up in time. `target` is that cache."""

    def __init__(self, message: str, target: ManagedInformer) -> None:
        super().__init__("CacheLags", message)
        self.target = target


class FreshnessGap(msgspec.Struct, frozen=True):
    """A version that a handler has received and a new cache has not reached."""

    target: ManagedInformer  # the new cache
    version: str
    key: str  # of the changed object; empty for changes before the proof began, whose objects are not known
    handlers: Sequence[str]  # the handlers that would receive older states

    @property
    def is_closed(self) -> bool:
        """Whether the cache has reached the version by now."""
        return _reached(self.target) >= version_order(self.version)

    def refusal(self, seconds: float) -> CacheLags:
        """The refusal after `seconds`. Its text stays the same while the cache stays at its version."""
        informer = self.target.informer
        at = informer.indexer.last_store_sync_resource_version
        why = informer.statistics().error or "its watch brings nothing newer"
        message = (
            f"{', '.join(self.handlers)} would go back in time: after {seconds:g} s the cache of "
            f"{self.target.identity.watch} is at version {at}, and they have received newer ones: {why}"
        )
        return CacheLags(message, self.target)


class FreshnessProof(_Listening):
    """Proves that the cache `target` has all changes that handlers have received from the `sources`.

    From `begin` to `close` it listens to the sources. `begin` comes before a new target is listed: the list
    is as new as all changes before it, and later changes are noted with their objects. Used on the machinery
    loop.

    Two cases are not covered. If resource versions are no numbers, no gap is found. If an object leaves the
    scope of the target and enters that of a source, and only the source has received this change, the proof
    assumes that the target never stored the object.
    """

    def __init__(
        self, handlers: Sequence[str], sources: Iterable[ManagedInformer], target: ManagedInformer
    ) -> None:
        super().__init__()
        self.handlers = handlers
        self.sources = tuple(sources)
        self.target = target
        selector = target.identity.watch.label_selector
        self._labels = LabelSelector.parse(selector) if selector else None
        self._floor = NO_ORDER  # the newest version of the sources at `begin`
        # By key: the version of the last change since `begin`, and whether the watch of the target may bring
        # it. If not, it comes only if the target stores an older state.
        self._due: dict[str, tuple[_Order, bool]] = {}

    def begin(self) -> None:
        """Note the version that the handlers have received, and their changes from now on."""
        self._floor = self._received
        for source in self.sources:
            self._listen(source, _SourceListener(self, source))

    def note(self, source: ManagedInformer, notification: Notification) -> None:
        """Note a change that handlers receive from one of the sources."""
        record, old = notification.record, notification.old
        namespace = self.target.identity.watch.namespace
        # Objects keep their namespace: an object of another one can't enter the scope of the target.
        if notification.type is ChangeType.RESYNC or namespace not in (None, record.object_key.namespace):
            return
        version = version_order(record.resource_version)
        if notification.type is ChangeType.DELETED and notification.reason is not ChangeReason.WATCH:
            # The record is the last one that was seen. The object was deleted later, by this version.
            version = version_order(source.informer.last_sync_resource_version)
        # The target receives an update if the old or the new state is in its scope. A field selector, which
        # is not evaluated here, may select either.
        comes = any(
            self._labels is None or self._labels.matches(each.labels) for each in (record, old or record)
        )
        if comes or record.key not in self._due:
            self._due[record.key] = version, comes

    def remaining_gap(self) -> FreshnessGap | None:
        """Forget the changes that the target has by now; return the first that it lacks, or None."""
        seen, received = _reached(self.target), self._received
        if NO_ORDER in (seen, received):
            return None  # versions that are no numbers can't be compared
        # The server was restored from a backup: older changes do not exist any more.
        if received < self._floor:
            self._floor = received
            self._due.clear()
        if seen < self._floor:
            return FreshnessGap(self.target, self._floor[1], "", self.handlers)
        for key, (version, comes) in tuple(self._due.items()):
            # A set of namespaces may have left this one meanwhile, or never had it.
            is_due = self.target.informer.follows(ObjectKey(key).namespace)
            if is_due and seen < version and not self._has_passed(key, version, comes):
                return FreshnessGap(self.target, version[1], key, self.handlers)
            del self._due[key]
        return None

    def _has_passed(self, key: str, version: _Order, comes: bool) -> bool:
        stored = self.target.informer.indexer.stored(key)
        if stored is None:
            return not comes
        return version_order(stored.resource_version) >= version

    @property
    def _received(self) -> _Order:
        versions = (source.informer.newest_store_version for source in self.sources)
        return max(map(version_order, versions), default=NO_ORDER)


def _reached(cached: ManagedInformer) -> _Order:
    """The version up to which a cache has all changes."""
    return version_order(cached.informer.indexer.last_store_sync_resource_version)


class _SourceListener(NamedTuple):
    """Notes the changes of one source for a proof."""

    proof: FreshnessProof
    source: ManagedInformer

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Note changes of the source."""
        for notification in notifications:
            self.proof.note(self.source, notification)


class Pair(NamedTuple):
    """The states of an object in the old caches and in the new ones."""

    key: str
    old: Record | None
    new: Record | None


class Refilter(MoveDifferences):
    """The differences for one handler that gets another filter, and maybe other caches.

    Either filter may be missing. `report` takes the key of each object on which the expression of the new
    filter fails, which counts as false, or is slow. `judge` may be called by any thread, and calls `report`
    there; all else is called by the machinery loop.
    """

    def __init__(
        self,
        name: str,
        old: Filter | None,
        new: Filter | None,
        *,
        before: Iterable[ManagedInformer],
        after: Iterable[ManagedInformer],
        clock: Clock,
        report: Callable[[str, EvaluationFailed], None] = lambda *_: None,
    ) -> None:
        super().__init__(before, after, clock=clock)
        self.name = name
        self._report = report
        self._old = old
        self._new = new
        self._events = frozenset(ChangeType) if new is None else new.events  # types that the handler receives
        self._stale: dict[str, None] = {}  # keys of objects to which the filters have to be applied
        self._call = UserCall(name="declctl-filter", what=f"the filter of {name}")

    def recheck(self, keys: Iterable[str]) -> None:
        """Mark these objects: the filters have to judge their present states (`call_some`)."""
        for key in keys:
            old, new = self.current_pair(key)
            if old is None and new is None:
                self.enter(key, ())
                self._stale.pop(key, None)
            else:
                self._stale[key] = None

    @property
    def stale(self) -> int:
        """The number of objects that the filters have not judged in their present state."""
        return len(self._stale)

    async def call_some(self) -> None:
        """Judge some of the stale objects in a thread. A cancellation ends it after the present object.

        Raises ReloadRefused if the new filter raises.
        """
        pairs = self.unjudged()
        self.enter_judged(await self._call.run(lambda: self.judge(pairs)))

    def refusal(self, why: str) -> ReloadRefused:
        """A refusal FilterTimeout that names the function and the last object."""
        return ReloadRefused("FilterTimeout", self._call.fault(why))

    def unjudged(self) -> list[Pair]:
        """Some of the stale objects."""
        return [Pair(key, *self.current_pair(key)) for key in islice(self._stale, BATCH)]

    def judge(self, pairs: Iterable[Pair]) -> Sequence[tuple[Pair, Notifications]]:
        """The notifications for these objects. Raises ReloadRefused if the new filter raises."""
        return [(pair, self._notifications(pair)) for pair in self._call.objects(pairs, attrgetter("key"))]

    def enter_judged(self, judged: Iterable[tuple[Pair, Notifications]]) -> None:
        """Enter the notifications of objects that have not changed since they were judged."""
        for pair, notifications in judged:
            if self.current_pair(pair.key) == (pair.old, pair.new):
                self.enter(pair.key, notifications)
                self._stale.pop(pair.key, None)

    def _notifications(self, pair: Pair) -> Notifications:
        old, new, may_be_unknown = pair.old, pair.new, False
        try:
            if old is not None and self._old is not None and not self._old.passes(field_view(old)):
                old = None
        except FilterFailed:
            may_be_unknown = True
        try:
            if new is not None and self._new is not None:
                report = partial(self._report, pair.key)
                if not self._new.passes(field_view(new), report):
                    new = None
        except FilterFailed as failure:
            message = f"{self.name}: {failure} on {pair.key}"
            raise ReloadRefused("FilterFailed", message) from failure
        now = self._clock.now().timestamp()
        notifications = difference(old, new, received_at=now, may_be_unknown=may_be_unknown)
        # `judged`: the worker that delivers them must not apply the filter again.
        return tuple(msgspec.structs.replace(n, judged=True) for n in notifications if n.type in self._events)


async def follow(differences: Sequence[MoveDifferences], *, timeout: float) -> None:
    """Compare all cached objects. From then on, each change is compared when it comes.

    Raises ReloadRefused if a filter raises, or all of them take longer than `timeout` seconds.
    """
    for each in differences:
        for _ in each.begin():
            await asyncio.sleep(0)
    await call_for_objects(_refilters(differences), timeout=timeout)


async def until_ready(
    differences: Sequence[MoveDifferences],
    proofs: Sequence[FreshnessProof],
    listening: Mapping[str, Collection[Registration]],
    indexes: Sequence[StagedFunction] = (),
    *,
    clock: Clock,
    timeout: float,
) -> None:
    """Return in a turn of the loop in which a commit is consistent.

    Three conditions hold in that turn. Each handler of `listening` (registrations by handler) has received
    the initial objects of its caches. All `proofs` succeed, so that no handler receives older states. The
    filters of `differences` and the functions of `indexes` have been called with every object.

    Proofs and listeners have `timeout` seconds together; each round of calls of filters and functions has as
    many again. After that, raises CacheLags if a proof has not succeeded, and ReloadRefused for the other
    conditions. Raises ReloadRefused if a filter raises.
    """
    functions = (*indexes, *_refilters(differences))
    deadline = clock.monotonic() + timeout
    relists = _Relists(clock)
    while True:
        late = await _first_late_joiner(listening, deadline, clock=clock)
        gap = _first_gap(proofs)
        if late is None and gap is None:
            if any(function.stale for function in functions):
                await call_for_objects(functions, timeout=timeout)
                await call_for_last_objects(functions)
            # The calls have taken turns of the loop, in which newer changes may have come.
            if _first_gap(proofs) is None:
                return
        elif late is not None or clock.monotonic() >= deadline:
            if gap is not None:
                raise gap.refusal(timeout)
            raise ReloadRefused("NotSynced", f"{late} has not received all objects yet, after {timeout:g} s")
        elif gap is not None and relists.is_endless(gap):
            await call_for_objects(functions, timeout=timeout)
            if await _catch_up_while_paused(proofs, functions, clock=clock):
                return
            relists.start_over()
        elif gap is not None:
            relists.request(gap)
            await clock.sleep(_CHECK)


class _Relists:
    """Requests a relist of a cache that stays behind what handlers have received.

    Its watch has two seconds to catch up. A relist may not help, because newer changes come while it runs:
    `is_endless` says so, and the caller pauses the other caches.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._late: FreshnessGap | None = None  # the first gap after two seconds
        self._requested: dict[ManagedInformer, float] = {}  # when a list was requested last

    def start_over(self) -> None:
        """Let caches catch up by themselves once more."""
        self._began, self._late = self._clock.monotonic(), None

    def is_endless(self, gap: FreshnessGap) -> bool:
        """Whether the caches have closed an older gap, and have this one now."""
        return bool(gap.key) and self._is_late and self._late is not None and self._late.is_closed

    def request(self, gap: FreshnessGap) -> None:
        """Request a list of a cache that does not catch up by itself, at most every two seconds."""
        if gap.key:
            if not self._is_late:
                return
            gap = self._late = self._late or gap
        now = self._clock.monotonic()
        if now - self._requested.get(gap.target, float("-inf")) >= _CATCH_UP_SECONDS:
            self._requested[gap.target] = now
            gap.target.informer.request_relist()

    @property
    def _is_late(self) -> bool:
        return self._clock.monotonic() - self._began >= _CATCH_UP_SECONDS


async def _first_late_joiner(
    listening: Mapping[str, Collection[Registration]], deadline: float, *, clock: Clock
) -> str | None:
    """Wait until all handlers have received their initial objects; returns one that has not in time."""
    for name, registrations in listening.items():
        joining = [each.joined for each in registrations if each.is_joining]
        if not await all_open(joining, clock=clock, timeout=deadline - clock.monotonic()):
            return name
    return None


async def _catch_up_while_paused(
    proofs: Sequence[FreshnessProof], functions: Sequence[StagedFunction], *, clock: Clock
) -> bool:
    """Let caches catch up while the sources are paused, for a second at most; returns whether they have."""
    began = clock.monotonic()
    targets = {proof.target for proof in proofs}
    sources = (source for proof in proofs for source in proof.sources)
    with pause_caches(source for source in sources if source not in targets):
        for proof in proofs:
            if (gap := proof.remaining_gap()) is not None:
                gap.target.informer.request_relist()
        # Polled: a bookmark raises the version of a cache without an event.
        while _first_gap(proofs) is not None:
            if clock.monotonic() - began >= LONGEST_PAUSE:
                return False
            await clock.sleep(_CHECK)
        if any(function.stale for function in functions):
            await call_for_last_objects(functions)
        return _first_gap(proofs) is None


def _first_gap(proofs: Iterable[FreshnessProof]) -> FreshnessGap | None:
    return next((gap for proof in proofs if (gap := proof.remaining_gap()) is not None), None)


def _refilters(differences: Sequence[MoveDifferences]) -> Sequence[Refilter]:
    return [each for each in differences if isinstance(each, Refilter)]
