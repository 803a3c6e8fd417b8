"""The processor: passes every notification to every listener (client-go's sharedProcessor).

It keeps which listeners have not received all cached objects yet, and when resyncs are due. Used on one loop.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from declctl.errors import MalformedAnswer
from declctl.informer.applier import Notifications, resync_of
from declctl.informer.listener import Listener, ListenerStatistics, ProcessorListener
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
        self, listener: Listener, processor: "SharedProcessor", *, synced: Latch | None = None
    ) -> None:
        self.listener = listener
        self.processor = processor
        self.received_initial = Latch(f"registration {type(listener).__name__}")
        self.synced = self.received_initial if synced is None else synced
        self.joined = Latch(f"introduction of {type(listener).__name__}")
        self.ended = Latch(f"end of registration {type(listener).__name__}")
        self.period = 0.0  # seconds between two resyncs, 0 for none
        self.due = float("inf")  # monotonic seconds of the next resync
        # Keys of cached objects of which the listener has not been notified yet; None after the last one.
        self.pending: dict[str, None] | None = None
        self.postponed = False  # the initial notifications have not begun; `pending` is empty until then

    @property
    def name(self) -> str:
        """The name of the listener."""
        return str(getattr(self.listener, "name", "") or type(self.listener).__name__)

    @property
    def has_synced(self) -> bool:
        """Whether the handler was called for the whole first sync (client-go's HasSynced)."""
        return self.synced.is_open

    @property
    def is_joining(self) -> bool:
        """Whether initial notifications are still to come."""
        return self.pending is not None

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

    def __init__(self, clock: Clock) -> None:
        # Of the informer; None until `run` if it was made where no loop runs.
        self.loop = running_loop()
        self._clock = clock
        self._registrations: dict[Registration, None] = {}  # in the order in which they were added
        self._syncing: dict[Registration, None] = {}  # those whose resync is in the queue
        self._distributed = 0  # these three as in ProcessorStatistics
        self.dropped = 0
        self.faults = 0
        self.retimed = asyncio.Event()  # set when `next_due` may have changed

    def add_listener(
        self, listener: Listener, *, resync_period: float = 0.0, synced: Latch | None = None
    ) -> Registration:
        """Register a listener for all further notifications.

        `resync_period` is in seconds, 0 for none; the first resync is due after up to 1.1 periods.
        """
        registration = Registration(listener, self, synced=synced)
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
        resyncs = any([n.type is _RESYNC for n in notifications])  # noqa: C419 - a generator costs twice as much
        # A copy: a listener may add or remove others while it is called.
        for registration in tuple(self._registrations):
            if registration.removed:
                continue  # by a listener that was called in this loop
            given: Sequence[Notification] = notifications
            if resyncs and registration not in self._syncing:
                given = [n for n in given if n.type is not _RESYNC]
            if registration.pending is not None:
                if registration.postponed:
                    continue  # its initial notifications will include this change
                given = _admitted(given, registration.pending)
            self._give(registration, given)

    def postpone(self, registration: Registration) -> None:
        """Send a listener nothing before `introduce`."""
        registration.pending, registration.postponed = {}, True

    def introduce(self, registration: Registration, cache: Mapping[str, Record]) -> Iterator[None]:
        """Send a listener one initial Added for each cached object, a slice at a time (client-go 202).

        An object that changes before its turn is sent in the new state; an object that is deleted before its
        turn is not sent.
        """
        registration.postponed = False
        pending = registration.pending = dict.fromkeys(cache)
        # A change during this removes its key from `pending` and is sent at once, so the keys are copied.
        keys = iter(list(pending))
        while (part := tuple(islice(keys, self.slice_size))) and not registration.removed:
            now = self._clock.now().timestamp()
            part_given: list[Notification] = []
            for key in part:
                if key in pending:
                    del pending[key]
                    part_given.append(_initial(cache[key], now))
            self._give(registration, part_given)
            if pending:
                yield
        registration.pending = None
        registration.joined.open()

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
        registration.postponed, registration.pending = False, None
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
            if registration.pending is not None:
                return  # the initial notifications are under way, and include every object
            now = self._clock.now().timestamp()
            found = (cache.get(key) for key in part)
            self._give(registration, [resync_of(record, now) for record in found if record is not None])
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


def _admitted(notifications: Sequence[Notification], pending: dict[str, None]) -> Sequence[Notification]:
    """The notifications for a listener whose initial ones are under way.

    The first change of a pending key becomes its initial Added, or nothing if the object was deleted.
    """
    admitted: list[Notification] = []
    for notification in notifications:
        if notification.key not in pending:
            admitted.append(notification)
            continue
        del pending[notification.key]
        if notification.type is not _DELETED:
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
