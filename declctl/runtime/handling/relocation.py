"""Relocation: a reload gives a handler other caches, or another filter.

A `Move` has the objects that differ between the old caches and the new ones. A `Refilter` also has the
objects that enter or leave the filter. Both are kept current while a reload is staged, so that the commit
compares nothing. A `FreshnessProof` shows that a new cache is at least as new as the objects that the handler
has received from the old ones: no handler goes back in time.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import msgspec

from declctl.errors import FilterFailed, ReloadRefused
from declctl.informer.processor import Registration
from declctl.kit import Clock, all_open
from declctl.objects import (
    NO_ORDER,
    ChangeReason,
    ChangeType,
    LabelSelector,
    Notification,
    Record,
    field_view,
    version_order,
)
from declctl.runtime.caching.managed_informer import (
    BATCH,
    LONGEST_PAUSE,
    ManagedInformer,
    Question,
    ask,
    ask_the_rest,
    pause_caches,
)
from declctl.runtime.handling.binding import Filter
from declctl.runtime.threads import UserCall

_SLICE = 500  # objects that are compared before the loop may do something else
_CHECK = 0.005  # seconds between two looks at the versions of caches
_CATCH_UP_SECONDS = 2.0  # the time for caches to catch up without a relist

Notifications = tuple[Notification, ...]


class Move:
    """The differences that a handler receives when it moves from some caches (`before`) to others (`after`).

    From `begin` to `close` it listens to all of these caches, and compares each object that changes there.
    Used on the machinery loop; several handlers may share one.
    """

    def __init__(
        self, before: Iterable[ManagedInformer], after: Iterable[ManagedInformer], *, clock: Clock
    ) -> None:
        self.before = tuple(before)
        self.after = tuple(after)
        self._clock = clock
        self._by_key: dict[str, Notifications] = {}  # of objects that differ
        self._registrations: list[Registration] = []

    def begin(self) -> Iterator[None]:
        """Follow the caches from now on, and compare all their objects, a slice at each step."""
        caches = tuple(dict.fromkeys((*self.before, *self.after)))
        # All caches are followed before the first is compared: what changes meanwhile is compared again.
        for cached in caches:
            registration = cached.informer.add_listener(self, resync_period=0.0, initial=False)
            self._registrations.append(registration)
        for cached in caches:
            keys = iter(tuple(cached.informer.indexer.known()))
            while part := tuple(islice(keys, _SLICE)):
                self.compare(part)
                yield

    def close(self) -> None:
        """Stop following the caches."""
        for registration in self._registrations:
            registration.remove()
        self._registrations.clear()

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Compare the objects that have changed in one of the caches."""
        self.compare([notification.key for notification in notifications])

    def compare(self, keys: Iterable[str]) -> None:
        """Compare the present states of these objects."""
        found_at = self._clock.now().timestamp()
        for key in keys:
            old, new = self.current_pair(key)
            self.enter(key, difference(old, new, received_at=found_at))

    def current_pair(self, key: str) -> tuple[Record | None, Record | None]:
        """The states of an object in the old caches and in the new ones."""
        return _held(self.before, key), _held(self.after, key)

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
    was: bool | None = True,
    now: bool = True,
) -> Notifications:
    """The notifications of an object between the state that a handler knows and the one that it shall know.

    Either state may be None: the object is in no cache there. `was` and `now` say whether a filter lets the
    state pass. `was` is None where the filter raised: the handler may not know this object, so no Deleted is
    delivered. `received_at` is when the difference was found, in seconds since the epoch.
    """
    known = old if was is not False else None
    passing = new if now else None
    # The same object on both sides: an update, unless the new cache has nothing newer.
    if known is not None and passing is not None and known.uid == passing.uid:
        if version_order(passing.resource_version) <= version_order(known.resource_version):
            return ()
        reason = ChangeReason.RELIST
        return (Notification(ChangeType.MODIFIED, passing, known, reason=reason, received_at=received_at),)
    # Objects of one name and two uids are two objects: the one is deleted, the other added.
    notifications: list[Notification] = []
    if known is not None and was:
        reason = ChangeReason.OUT_OF_SCOPE
        notifications.append(Notification(ChangeType.DELETED, known, reason=reason, received_at=received_at))
    if passing is not None:
        reason = ChangeReason.INITIAL
        notifications.append(
            Notification(ChangeType.ADDED, passing, initial=True, reason=reason, received_at=received_at)
        )
    return tuple(notifications)


def _held(caches: Sequence[ManagedInformer], key: str) -> Record | None:
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


class _Expectation(Enum):
    """Whether the watch of a cache will bring a change that another cache has received."""

    COMES = auto()  # one of the two states is in its scope
    UNKNOWN = auto()  # a field selector is not judged
    IF_STORED = auto()  # neither state is in its scope: it comes if an older state is stored


@dataclass(frozen=True, slots=True)
class FreshnessGap:
    """A version that a handler has received and a new cache has not reached."""

    target: ManagedInformer  # the new cache
    version: str
    key: str  # of the changed object; empty for changes before the proof began, whose objects are not known
    handlers: Sequence[str]  # that would go back in time

    @property
    def is_closed(self) -> bool:
        """Whether the cache has reached the version by now."""
        return _reached(self.target) >= version_order(self.version)

    def refusal(self, seconds: float) -> CacheLags:
        """Why nothing can be moved, after so many seconds: the same words while the cache stays there."""
        informer = self.target.informer
        at = informer.indexer.last_store_sync_resource_version
        why = informer.statistics().error or "its watch brings nothing newer"
        message = (
            f"{', '.join(self.handlers)} would go back in time: after {seconds:g} s the cache of "
            f"{self.target.identity.watch} is at version {at}, and newer ones were heard: {why}"
        )
        return CacheLags(message, self.target)


class FreshnessProof:
    """Proves that the cache `target` has seen all that some handlers have heard from the caches `sources`.

    From `begin` to `close` it listens to the sources. Begin before a new target is listed: the list is as new
    as what was heard by then, and of what is heard later the objects are known. Used on the machinery loop.

    Two things are not proven. Where resource versions are no numbers, there is never a gap. And an object
    that comes from the scope of the target to that of a source just then, of which only the source has
    heard, is taken for one that the target never stored.
    """

    def __init__(
        self, handlers: Sequence[str], sources: Iterable[ManagedInformer], target: ManagedInformer
    ) -> None:
        self.handlers = handlers
        self.sources = tuple(sources)
        self.target = target
        self._scope = _CacheScope(target)
        self._floor = NO_ORDER  # the version that had been heard when it began
        self._due: dict[str, tuple[_Order, _Expectation]] = {}  # by key, the last change that was heard since
        self._registrations: list[Registration] = []  # with the sources, from `begin` to `close`

    def begin(self) -> None:
        """Note the version that the handlers have received, and their changes from now on."""
        self._floor = self._heard
        for source in self.sources:
            listener = _SourceListener(self, source)
            registration = source.informer.add_listener(listener, resync_period=0.0, initial=False)
            self._registrations.append(registration)

    def close(self) -> None:
        """Stop noting changes. A second call has no effect."""
        for registration in self._registrations:
            registration.remove()
        self._registrations.clear()

    def note(self, source: ManagedInformer, notification: Notification) -> None:
        """Note a change that handlers receive from one of the sources."""
        record, old = notification.record, notification.old
        if notification.type is ChangeType.RESYNC or not self._scope.reaches(record):
            return
        version = version_order(record.resource_version)
        if notification.type is ChangeType.DELETED and notification.reason is not ChangeReason.WATCH:
            # The record is the last one that was seen. The object was deleted later, by this version.
            version = version_order(source.informer.last_sync_resource_version)
        # An update brings both states: the target hears of it if either is in its scope.
        found = {self._scope.covers(state) for state in (record, old or record)}
        if True in found:
            self._due[record.key] = version, _Expectation.COMES
        elif None in found:
            self._due[record.key] = version, _Expectation.UNKNOWN
        elif record.key not in self._due:
            self._due[record.key] = version, _Expectation.IF_STORED

    def find_gap(self) -> FreshnessGap | None:
        """Forget what the target has seen by now; returns what it has yet to see, or None for nothing."""
        seen, heard = _reached(self.target), self._heard
        if NO_ORDER in (seen, heard):
            return None  # versions that are no numbers say nothing about newer and older
        if heard < self._floor:  # the server was put back to a backup: what was heard before is no history
            self._floor = heard
            self._due.clear()
        if seen < self._floor:
            return FreshnessGap(self.target, self._floor[1], "", self.handlers)
        for key, (version, answer) in tuple(self._due.items()):
            if seen < version and not self._has_passed(key, version, answer):
                return FreshnessGap(self.target, version[1], key, self.handlers)
            del self._due[key]
        return None

    def _has_passed(self, key: str, version: _Order, answer: _Expectation) -> bool:
        stored = self.target.informer.indexer.stored(key)
        if stored is None:
            # A change between two states out of scope comes only to a cache that holds an older state.
            return answer is _Expectation.IF_STORED
        return version_order(stored.resource_version) >= version

    @property
    def _heard(self) -> _Order:
        return max(map(_reached, self.sources), default=NO_ORDER)


def _reached(cached: ManagedInformer) -> _Order:
    """The version that a cache is at."""
    return version_order(cached.informer.indexer.last_store_sync_resource_version)


class _SourceListener:
    """Notes the changes of one source for a proof."""

    def __init__(self, proof: FreshnessProof, source: ManagedInformer) -> None:
        self._proof = proof
        self._source = source

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Note changes of the source."""
        for notification in notifications:
            self._proof.note(self._source, notification)


class _CacheScope:
    """The scope of a cache, by the namespace and selectors of its watch."""

    def __init__(self, cached: ManagedInformer) -> None:
        watch = cached.identity.watch
        self._namespace = watch.namespace
        self._has_fields = bool(watch.field_selector)  # a field selector is not judged
        self._labels = LabelSelector.parse(watch.label_selector) if watch.label_selector else None

    def reaches(self, record: Record) -> bool:
        """Whether it may ever hold this object: objects keep their namespace."""
        return self._namespace in (None, record.object_key.namespace)

    def covers(self, record: Record) -> bool | None:
        """Whether it holds an object in this state; None if that is not known."""
        if self._labels is not None and not self._labels.matches(record.labels):
            return False
        return None if self._has_fields else True


class Pair(NamedTuple):
    """The states of an object in the old caches and in the new ones."""

    key: str
    old: Record | None
    new: Record | None


class Refilter(Move):
    """A move of one handler from one filter to another, and maybe to other caches.

    Either filter may be missing. `judge` may be called by any thread, all else by the machinery loop.
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
    ) -> None:
        super().__init__(before, after, clock=clock)
        self.name = name
        self._old = old
        self._new = new
        self._events = frozenset(ChangeType) if new is None else new.events  # types that the handler receives
        self._stale: dict[str, None] = {}  # keys of objects that the filters have still to judge
        self._call = UserCall(name="declctl-filter", what=f"the filter of {name}")

    def compare(self, keys: Iterable[str]) -> None:
        """Mark these objects: the filters have to judge them."""
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

    @property
    def caches(self) -> Sequence[ManagedInformer]:
        """The caches of the objects."""
        return (*self.before, *self.after)

    async def ask_some(self) -> None:
        """Judge some of the stale objects in a thread. A cancellation ends it after the present object.

        Raises ReloadRefused if the new filter raises.
        """
        pairs = self.unjudged()
        self.settle(await self._call.run(lambda: self.judge(pairs)))

    def refusal(self, why: str) -> ReloadRefused:
        """A refusal FilterTimeout that names the function and the last object."""
        return ReloadRefused("FilterTimeout", self._call.fault(why))

    def unjudged(self) -> list[Pair]:
        """Some of the stale objects."""
        return [Pair(key, *self.current_pair(key)) for key in islice(self._stale, BATCH)]

    def judge(self, pairs: Iterable[Pair]) -> Sequence[tuple[Pair, Notifications]]:
        """The notifications for these objects. Raises ReloadRefused if the new filter raises."""
        return [(pair, self._notifications(pair)) for pair in self._call.objects(pairs, attrgetter("key"))]

    def settle(self, judged: Iterable[tuple[Pair, Notifications]]) -> None:
        """Enter the notifications of objects that have not changed since they were judged."""
        for pair, notifications in judged:
            if self.current_pair(pair.key) == (pair.old, pair.new):
                self.enter(pair.key, notifications)
                self._stale.pop(pair.key, None)

    def _notifications(self, pair: Pair) -> Notifications:
        notifications = difference(
            pair.old,
            pair.new,
            received_at=self._clock.now().timestamp(),
            was=pair.old is not None and self._was(pair.old),
            now=pair.new is not None and self._is(pair.new),
        )
        # `judged`: the worker that delivers them must not apply the filter again.
        return tuple(msgspec.structs.replace(n, judged=True) for n in notifications if n.type in self._events)

    def _was(self, record: Record) -> bool | None:
        try:
            return self._old is None or self._old.passes(field_view(record))
        except FilterFailed:
            return None

    def _is(self, record: Record) -> bool:
        try:
            return self._new is None or self._new.passes(field_view(record))
        except FilterFailed as failure:
            message = f"{self.name}: {failure} on {record.key}"
            raise ReloadRefused("FilterFailed", message) from failure


async def follow(moves: Sequence[Move], *, timeout: float) -> None:
    """Begin the moves: compare all that is cached; from then on each change is compared as it comes.

    Raises ReloadRefused where a filter raises, or all of them take longer than `timeout` seconds.
    """
    for move in moves:
        for _ in move.begin():
            await asyncio.sleep(0)
    await ask(_refilters(moves), timeout=timeout)


async def until_ready(
    moves: Sequence[Move],
    proofs: Sequence[FreshnessProof],
    listening: Mapping[str, Collection[Registration]],
    indexes: Sequence[Question] = (),
    *,
    clock: Clock,
    timeout: float,
) -> None:
    """Return in a turn of the loop in which a commit is consistent.

    Three conditions hold in that turn. No handler of `listening` (its registrations by its name) is still
    hearing of what was in its caches when it came. All `proofs` succeed, so that no handler goes back in
    time. The filters of `moves` and the `indexes` have been asked about every object.

    Waits for `timeout` seconds at most. Raises CacheLags where a proof does not succeed by then, and
    ReloadRefused for the other conditions, and where a filter raises.
    """
    questions = (*indexes, *_refilters(moves))
    deadline = clock.monotonic() + timeout
    catch_up = _CatchUp(clock)
    while True:
        late = await _first_late_joiner(listening, deadline, clock=clock)
        gap = _first_gap(proofs)
        if late is None and gap is None:
            if any(question.stale for question in questions):
                await ask(questions, timeout=timeout)
                await ask_the_rest(questions)
            # Asking takes turns of the loop, in which something newer may have been heard.
            if _first_gap(proofs) is None:
                return
        elif late is not None or clock.monotonic() >= deadline:
            if gap is not None:
                raise gap.refusal(timeout)
            raise ReloadRefused("NotSynced", f"{late} has not heard of all objects yet, after {timeout:g} s")
        elif gap is not None and catch_up.is_endless(gap):
            await ask(questions, timeout=timeout)
            if await _caught_up_while_held(proofs, questions, clock=clock):
                return
            catch_up.begin_anew()
        elif gap is not None:
            catch_up.help(gap)
            await clock.sleep(_CHECK)


class _CatchUp:
    """Lets caches catch up with others that go on: a cache that does not by itself is listed.

    This may never end: during a list there are newer changes, or objects change faster than they are applied.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._late: FreshnessGap | None = None  # the first that there was after two seconds
        self._requested: dict[ManagedInformer, float] = {}  # when a list was requested last

    def begin_anew(self) -> None:
        """Let caches catch up by themselves once more."""
        self._began, self._late = self._clock.monotonic(), None

    def is_endless(self, gap: FreshnessGap) -> bool:
        """Whether caches have closed an older gap, and there is this one now."""
        return bool(gap.key) and self._is_late and self._late is not None and self._late.is_closed

    def help(self, gap: FreshnessGap) -> None:
        """Have a cache listed that does not catch up by itself, every two seconds at most."""
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
    """Wait until no handler is joining a cache; returns the name of one that is at the deadline."""
    for name, registrations in listening.items():
        joining = [each.joined for each in registrations if each.is_joining]
        if not await all_open(joining, clock=clock, timeout=deadline - clock.monotonic()):
            return name
    return None


async def _caught_up_while_held(
    proofs: Sequence[FreshnessProof], questions: Sequence[Question], *, clock: Clock
) -> bool:
    """Let caches catch up while the caches that they follow are paused; returns whether they have.

    Takes a second at most.
    """
    began = clock.monotonic()
    targets = {proof.target for proof in proofs}
    sources = (source for proof in proofs for source in proof.sources)
    with pause_caches(source for source in sources if source not in targets):
        for proof in proofs:
            if (gap := proof.find_gap()) is not None:
                gap.target.informer.request_relist()
        # No event says at which version a cache is: a bookmark moves it, and notifies no listener.
        while _first_gap(proofs) is not None:
            if clock.monotonic() - began >= LONGEST_PAUSE:
                return False
            await clock.sleep(_CHECK)
        if any(question.stale for question in questions):
            await ask_the_rest(questions)
        return _first_gap(proofs) is None


def _first_gap(proofs: Iterable[FreshnessProof]) -> FreshnessGap | None:
    return next((gap for proof in proofs if (gap := proof.find_gap()) is not None), None)


def _refilters(moves: Sequence[Move]) -> Sequence[Refilter]:
    return [move for move in moves if isinstance(move, Refilter)]
