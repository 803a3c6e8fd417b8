"""The processor: passes every notification to every listener (client-go's sharedProcessor).

It keeps which listeners have not received all cached objects yet, and when resyncs are due. Used on one loop.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from declctl.errors import MalformedAnswer
from declctl.informer.applier import Notifications, resync_of
from declctl.informer.listener import Listener, ListenerStatistics, ProcessorListener
from declctl.informer.scope import ShardScope
from declctl.kit import Clock, Latch, call_on, running_loop
from declctl.objects import ChangeReason, ChangeType, Notification, Record

_SHORTEST_PERIOD = 1.0  # seconds, as in client-go
_PHASE = 0.1  # of a period: the largest delay of the first resync, so that not all listeners resync at once
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every notification.
_ADDED, _DELETED, _RESYNC = ChangeType.ADDED, ChangeType.DELETED, ChangeType.RESYNC
_INITIAL, _RELIST = ChangeReason.INITIAL, ChangeReason.RELIST
_log = logging.getLogger("declctl.informer")


class ProcessorStatistics(msgspec.Struct, frozen=True):
    """The figures of a processor so far."""

    listeners: int  # registered now
    distributed: int  # notifications, each counted once for all listeners
    dropped: int  # notifications that were pending when their listener was removed
    faults: int  # calls of listeners that raised, which they must not
    handlers: Mapping[str, ListenerStatistics]  # of library handlers, by name


class Introduction:
    """Initial notifications that are under way: of cached objects, for some registrations.

    With a scope, only objects of `shards` are introduced.
    """

    def __init__(self, keys: Iterable[str], scope: ShardScope | None, shards: Iterable[int]) -> None:
        # Keys of objects that were cached at the beginning, and were not looked at since.
        self.pending: dict[str, None] = dict.fromkeys(keys)
        self._scope = scope
        self._shards = set(shards)

    def awaits(self, record: Record) -> bool:
        """Whether the initial notification of an object is still to come."""
        return record.key in self.pending and self._has(record)

    def take(self, notifications: Sequence[Notification]) -> Collection[int]:
        """The positions of those that take the place of an initial notification, which does not come then."""
        taken: set[int] = set()
        for position, notification in enumerate(notifications):
            if notification.key in self.pending and self._has(notification.record):
                del self.pending[notification.key]
                taken.add(position)
        return taken

    def initial(self, keys: Iterable[str], cache: Mapping[str, Record], now: float) -> Sequence[Notification]:
        """The initial notifications of the pending ones of these keys, which are pending no longer."""
        made: list[Notification] = []
        for key in keys:
            if key in self.pending:
                del self.pending[key]
                record = cache.get(key)
                if record is not None and self._has(record):
                    made.append(_initial(record, now))
        return made

    def close_shards(self, shards: Iterable[int]) -> None:
        """Introduce no further object of these shards."""
        self._shards -= set(shards)

    def _has(self, record: Record) -> bool:
        return self._scope is None or self._scope.shard_of(record) in self._shards


class Registration:
    """A listener's registration at an informer (client-go's ResourceEventHandlerRegistration).

    A listener may have several registrations, which are independent. `remove` and `retime` may be called from
    any thread; everything else belongs to the informer's loop.

    A latch of a removed registration does not open any more, except `ended`, and `joined` if the initial
    notifications were under way:

    - `received_initial`: the listener has received the whole first sync.
    - `synced`: the handler was called for the whole first sync. For listeners without a handler, it is
      `received_initial`.
    - `joined`: the listener has received all objects that were cached when it was added.
    - `ended`: the registration was removed.
    """

    def __init__(
        self,
        listener: Listener,
        processor: "SharedProcessor",
        *,
        initial: bool = True,
        synced: Latch | None = None,
    ) -> None:
        self.initial = initial  # it is introduced to objects that are cached already
        self.listener = listener
        self.processor = processor
        self.received_initial = Latch(f"registration {type(listener).__name__}")
        self.synced = self.received_initial if synced is None else synced
        self.joined = Latch(f"introduction of {type(listener).__name__}")
        self.ended = Latch(f"end of registration {type(listener).__name__}")
        self.period = 0.0  # seconds between two resyncs, 0 for none
        self.due = float("inf")  # monotonic seconds of the next resync
        self.introductions: list[Introduction] = []  # that are under way
        self.is_joining = False  # notifications of the objects that were cached when it was added are to come
        self.postponed = False  # these have not begun

    @property
    def name(self) -> str:
        """The name of the listener."""
        return str(getattr(self.listener, "name", "") or type(self.listener).__name__)

    @property
    def has_synced(self) -> bool:
        """Whether the handler was called for the whole first sync (client-go's HasSynced)."""
        return self.synced.is_open

    def knows(self, record: Record) -> bool:
        """Whether the listener was notified of a cached object. On the loop."""
        if self.postponed or any(each.awaits(record) for each in self.introductions):
            return False
        scope = self.processor.scope
        return scope is None or scope.is_open(record)

    @property
    def removed(self) -> bool:
        """Whether the registration was removed."""
        return self.ended.is_open

    def why_not_synced(self) -> str:
        """Why the registration has not synced; empty if it has."""
        if self.has_synced:
            return ""
        if self.removed:
            return "it was removed"
        if not self.received_initial.is_open:
            return "the cache has not synced"
        left = self.listener.unfinished() if isinstance(self.listener, ProcessorListener) else 0
        return f"{left} changes of the first sync are not dealt with"

    def remove(self) -> None:
        """End the notifications. A call that is under way goes on (client-go 196). May be repeated."""
        call_on(self.processor.loop, lambda: self.processor.remove_listener(self))

    async def shutdown(self) -> None:
        """End the notifications, and return when the handler is not called any longer (ShutDownEventHandler).

        Raises CacheError if the handler itself waits for this, which would never end; it is removed all the
        same. On the loop.
        """
        self.remove()
        if isinstance(self.listener, ProcessorListener):
            await self.listener.gone()

    def retime(self, resync_period: float) -> None:
        """Change the resync period: seconds from the last resync, 0 for none."""
        call_on(self.processor.loop, lambda: self.processor.retime(self, resync_period))


class SharedProcessor:
    """The listeners of an informer, in the order in which they were added (client-go's sharedProcessor).

    Used on one loop; `statistics` from any thread.
    """

    slice_size = 500  # notifications of an introduction or replay until other tasks of the loop may run

    def __init__(self, clock: Clock, scope: ShardScope | None = None) -> None:
        # Of the informer; None until `run` if it was made where no loop runs.
        self.loop = running_loop()
        self.scope = scope  # listeners are notified of its open shards alone
        self._clock = clock
        self._registrations: dict[Registration, None] = {}  # in the order in which they were added
        self._introductions: dict[Introduction, None] = {}  # that are under way
        self._syncing: dict[Registration, None] = {}  # those whose resync is in the queue
        self._distributed = 0  # these three as in ProcessorStatistics
        self.dropped = 0
        self.faults = 0
        self.retimed = asyncio.Event()  # set when `next_due` may have changed

    def add_listener(
        self,
        listener: Listener,
        *,
        resync_period: float = 0.0,
        initial: bool = True,
        synced: Latch | None = None,
    ) -> Registration:
        """Register a listener for all further notifications.

        `resync_period` is in seconds, 0 for none; the first resync is due after up to 1.1 periods. `initial`
        False introduces it to no shard that is opened later.
        """
        registration = Registration(listener, self, initial=initial, synced=synced)
        registration.period = _period(resync_period)
        if registration.period:
            # Spread over a tenth of the period: listeners that are added together do not resync together.
            phase = 1 + _PHASE * self._clock.random()
            registration.due = self._clock.monotonic() + registration.period * phase
            self.retimed.set()
        self._registrations[registration] = None
        return registration

    def remove_listener(self, registration: Registration) -> None:
        """Remove a registration; no effect if it is not registered (client-go 184, 186).

        Pending notifications of a library handler are dropped and counted (client-go 201).
        """
        if registration in self._registrations:
            del self._registrations[registration]
            self._syncing.pop(registration, None)
            listener = registration.listener
            # A listener may be registered twice: its buffer goes with its last registration.
            if isinstance(listener, ProcessorListener) and not self.registrations(listener):
                self.dropped += listener.close()
            registration.ended.open()

    def distribute(self, changes: Notifications) -> None:
        """Pass notifications to every listener; resyncs only to listeners whose resync is due."""
        self._distributed += len(changes)
        if not changes or not self._registrations:
            return  # without a listener the notifications of `Additions` are never made
        # Made here, once for all listeners.
        notifications = tuple(changes)
        if (scope := self.scope) is not None and not scope.tells_all:
            notifications = tuple([each for each in notifications if scope.is_open(each.record)])
        # Once for each introduction, which several registrations may share.
        taken = {each: each.take(notifications) for each in self._introductions}
        resyncs = any([n.type is _RESYNC for n in notifications])  # noqa: C419 - a generator costs twice as much
        # A copy: a listener may add or remove others while it is called.
        for registration in tuple(self._registrations):
            if registration.removed:
                continue  # by a listener that was called in this loop
            given: Sequence[Notification] = notifications
            if registration.postponed:
                continue  # its initial notifications will include this change
            if registration.introductions:
                given = _admitted(
                    given, [taken[each] for each in registration.introductions if each in taken]
                )
            if resyncs and registration not in self._syncing:
                given = [n for n in given if n.type is not _RESYNC]
            self._give(registration, given)

    def postpone(self, registration: Registration) -> None:
        """Send a listener nothing before `introduce`."""
        registration.is_joining = registration.postponed = True

    def introduce(self, registration: Registration, cache: Mapping[str, Record]) -> Iterator[None]:
        """Send a listener one initial Added for each cached object, a slice at a time (client-go 202).

        An object that changes before its turn is sent in the new state; an object that is deleted before its
        turn is not sent.
        """
        registration.is_joining, registration.postponed = True, False
        yield from self._introduce([registration], cache, () if self.scope is None else self.scope.open)
        registration.is_joining = False
        registration.joined.open()

    def introduce_shards(self, shards: Iterable[int], cache: Mapping[str, Record]) -> Iterator[None]:
        """Send listeners one initial Added for each cached object of opened shards, as in `introduce`.

        A listener that was added for changes only is left out.
        """
        members = [each for each in self._registrations if each.initial and not each.postponed]
        yield from self._introduce(members, cache, shards)

    def close_shards(self, shards: Collection[int]) -> None:
        """Introduce no further object of shards that were closed."""
        for introduction in self._introductions:
            introduction.close_shards(shards)

    def _introduce(
        self, registrations: Sequence[Registration], cache: Mapping[str, Record], shards: Iterable[int]
    ) -> Iterator[None]:
        introduction = Introduction(cache, self.scope, shards)
        self._introductions[introduction] = None
        for registration in registrations:
            registration.introductions.append(introduction)
        # A change during this removes its key from `pending` and is sent at once, so the keys are copied.
        keys = iter(list(introduction.pending))
        while part := tuple(islice(keys, self.slice_size)):
            present = [each for each in registrations if not each.removed]
            if not present:
                break
            notifications = introduction.initial(part, cache, self._clock.now().timestamp())
            for registration in present:
                self._give(registration, notifications)
            if introduction.pending:
                yield
        del self._introductions[introduction]
        for registration in registrations:
            registration.introductions.remove(introduction)

    def introduce_differences(
        self,
        registration: Registration,
        known: Mapping[str, Record],
        cache: Mapping[str, Record],
        *,
        exactly: bool,
    ) -> None:
        """Send a postponed listener what differs from the objects that it knows, as after a list.

        With `exactly`, states of one version are compared, too: a server that was put back to a backup uses
        versions again.
        """
        registration.postponed = False
        now, told = self._clock.now().timestamp(), list[Notification]()
        for key, old in known.items():
            new = cache.get(key)
            if new is old:
                continue
            if new is not None and new.revision == old.revision and not (exactly and _differs(old, new)):
                continue
            if new is None or new.uid != old.uid:
                told.append(Notification(ChangeType.DELETED, old, None, False, True, _RELIST, now))
            if new is not None:
                same = new.uid == old.uid
                kind = ChangeType.MODIFIED if same else ChangeType.ADDED
                told.append(Notification(kind, new, old if same else None, False, False, _RELIST, now))
        added = [each for key, each in cache.items() if key not in known]
        told += [Notification(ChangeType.ADDED, each, None, False, False, _RELIST, now) for each in added]
        self._give(registration, told)
        registration.joined.open()

    def resync(self, registration: Registration, cache: Mapping[str, Record]) -> Iterator[None]:
        """Send a listener a resync for each cached object, a slice at a time."""
        keys = iter(list(cache))
        while (part := tuple(islice(keys, self.slice_size))) and not registration.removed:
            if registration.is_joining:
                return  # the initial notifications are under way, and include every object
            now = self._clock.now().timestamp()
            found = [record for key in part if (record := cache.get(key)) is not None]
            if self.scope is not None:
                found = [record for record in found if registration.knows(record)]
            self._give(registration, [resync_of(record, now) for record in found])
            yield

    def due(self) -> tuple[Registration, ...]:
        """The registrations whose resync is due now. They receive the next resync, and get a new due time."""
        now = self._clock.monotonic()
        due = tuple(r for r in self._registrations if r.due <= now)
        for registration in due:
            # Several missed periods, as of a suspended machine, are one resync.
            missed = (now - registration.due) // registration.period
            registration.due += registration.period * (missed + 1)
            self._syncing[registration] = None
        return due

    def next_due(self) -> float | None:
        """Seconds until the first resync is due; None if there is none."""
        moments = [r.due for r in self._registrations if r.period]
        return min(moments) - self._clock.monotonic() if moments else None

    @property
    def syncing(self) -> tuple[Registration, ...]:
        """The registrations that receive the resync that is in the queue."""
        return tuple(self._syncing)

    def served(self) -> tuple[Registration, ...]:
        """Note that the resync was taken from the queue; returns the registrations that receive it."""
        served, self._syncing = tuple(self._syncing), {}
        return served

    def retime(self, registration: Registration, resync_period: float) -> None:
        """Change the resync period; the next resync is due a new period after the last one."""
        period = _period(resync_period)
        if period == registration.period or registration.removed:
            return
        # From the last resync, and not from now: a reload that changes the period causes no resync.
        last = registration.due - registration.period if registration.period else self._clock.monotonic()
        registration.period = period
        registration.due = last + period if period else float("inf")
        self.retimed.set()

    def statistics(self) -> ProcessorStatistics:
        """The figures of this moment."""
        handlers: dict[str, ListenerStatistics] = {}
        for registration in self._registrations:
            if isinstance(registration.listener, ProcessorListener):
                name, number = registration.name, 2
                while name in handlers:
                    name, number = f"{registration.name} ({number})", number + 1
                handlers[name] = registration.listener.statistics()
        return ProcessorStatistics(
            len(self._registrations), self._distributed, self.dropped, self.faults, handlers
        )

    def registrations(self, listener: Listener | None = None) -> tuple[Registration, ...]:
        """All registrations, or those of one listener."""
        return tuple(r for r in self._registrations if listener is None or r.listener is listener)

    def __len__(self) -> int:
        return len(self._registrations)

    def _give(self, registration: Registration, notifications: Sequence[Notification]) -> None:
        if not notifications:
            return
        try:
            registration.listener.add_all(notifications)
        except Exception:  # noqa: BLE001 - the other listeners still have to be notified
            self.faults += 1
            _log.exception(
                "the listener %r raised, and has missed %d changes",
                registration.listener,
                len(notifications),
            )


def _admitted(
    notifications: Sequence[Notification], taken: Sequence[Collection[int]]
) -> Sequence[Notification]:
    """The notifications for a listener whose initial ones are under way.

    Those at the positions `taken` are the first ones of a pending object: each becomes its initial Added, or
    nothing if the object was deleted.
    """
    admitted: list[Notification] = []
    for position, notification in enumerate(notifications):
        if not any(position in positions for positions in taken):
            admitted.append(notification)
        elif notification.type is not _DELETED:
            admitted.append(_initial(notification.record, notification.received_at))
    return admitted


def _initial(record: Record, now: float) -> Notification:
    return Notification(_ADDED, record, None, True, False, _INITIAL, now)


def _period(seconds: float) -> float:
    return 0.0 if seconds <= 0 else max(seconds, _SHORTEST_PERIOD)


def _differs(old: Record, new: Record) -> bool:
    try:
        return old.decode() != new.decode()
    except MalformedAnswer:
        return False  # as for a list: it is replaced by its next version
