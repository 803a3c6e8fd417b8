"""The processor: gives every notification to every listener (client-go's sharedProcessor).

It also knows which listeners have not heard all of the cache yet, and which resyncs are due. Used on one
loop.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from declctl.informer.applier import Notifications, resync_of
from declctl.informer.listener import Listener, ListenerStatistics, ProcessorListener
from declctl.kit import Clock, Latch, call_on, running_loop
from declctl.objects import ChangeReason, ChangeType, Notification, Record

_SHORTEST_PERIOD = 1.0  # seconds, as in client-go
_PHASE = 0.1  # of a period: by how much the first resync may be late, so that not all are at once
_SLICE = 500  # notifications of a replay until the loop may do something else
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every notification.
_ADDED, _DELETED, _RESYNC = ChangeType.ADDED, ChangeType.DELETED, ChangeType.RESYNC
_INITIAL = ChangeReason.INITIAL
_log = logging.getLogger("declctl.informer")


@dataclass(frozen=True, slots=True)
class ProcessorStatistics:
    """What a processor did.

    `distributed` notifications went to all `listeners` that there were; `dropped` is what
    listeners had pending when they were removed, and `faults` how often one raised, which it must
    not. `handlers` has the figures of library handlers by their names.
    """

    listeners: int
    distributed: int
    dropped: int
    faults: int
    handlers: Mapping[str, ListenerStatistics]


class Registration:
    """A listener's place at an informer. The same listener may have several, independent ones.

    `given` opens when the listener was given the whole first sync; `synced` when it has dealt with
    it, where it can say so, else together with `given`; `joined` when a late joiner has heard of all that was
    in the cache when it came; `ended` when it was removed. What is removed
    before it has synced never has. `remove` and `retime` may be called by any thread, the rest belongs
    to the informer's loop.
    """

    def __init__(
        self, listener: Listener, processor: "SharedProcessor", *, synced: Latch | None = None
    ) -> None:
        self.listener = listener
        self.processor = processor
        self.given = Latch(f"registration {type(listener).__name__}")
        self.synced = self.given if synced is None else synced
        self.joined = Latch(f"introduction of {type(listener).__name__}")
        self.ended = Latch(f"end of registration {type(listener).__name__}")
        self.period = 0.0
        self.due = float("inf")
        self.pending: dict[str, None] | None = None  # keys of the cache that it has not heard of yet
        self.postponed = False  # it has heard of nothing: what is pending is known when its turn has come

    @property
    def name(self) -> str:
        """What its listener is called."""
        return str(getattr(self.listener, "name", "") or type(self.listener).__name__)

    @property
    def has_synced(self) -> bool:
        """Whether the first sync is in the cache and the listener is through with it."""
        return self.synced.is_open

    @property
    def is_joining(self) -> bool:
        """Whether it has still to hear of objects that were in the cache when it came."""
        return self.pending is not None

    @property
    def removed(self) -> bool:
        """Whether it receives no more."""
        return self.ended.is_open

    def why_not_synced(self) -> str:
        """Why it has not synced yet; empty if it has."""
        if self.has_synced:
            return ""
        if self.removed:
            return "it was removed"
        if not self.given.is_open:
            return "the cache has not synced"
        left = self.listener.unfinished() if isinstance(self.listener, ProcessorListener) else 0
        return f"{left} changes of the first sync are not dealt with"

    def remove(self) -> None:
        """Receive no more, at once; a call that runs goes on (client-go 196). Twice is harmless."""
        call_on(self.processor.loop, lambda: self.processor.remove_listener(self))

    async def shutdown(self) -> None:
        """Receive no more, and return when the handler is called no more (client-go's ShutDownEventHandler).

        Where the handler itself waits for it, which could not end, it is removed and CacheError raised.
        """
        self.remove()
        if isinstance(self.listener, ProcessorListener):
            await self.listener.gone()

    def retime(self, resync_period: float) -> None:
        """Another resync period (seconds, 0 for none); it counts from the last resync."""
        call_on(self.processor.loop, lambda: self.processor.retime(self, resync_period))


class SharedProcessor:
    """The listeners of an informer, in the order in which they came."""

    def __init__(self, clock: Clock) -> None:
        self.loop = running_loop()  # to which it belongs; of one made before, that of the informer's `run`
        self._clock = clock
        self._registrations: dict[Registration, None] = {}
        self._syncing: dict[Registration, None] = {}
        self._distributed = 0
        self.dropped = 0  # notifications that were pending when their listener was removed
        self.faults = 0  # listeners that raised, though they must not
        self.retimed = asyncio.Event()  # set when `next_due` may have changed

    def add_listener(
        self, listener: Listener, *, resync_period: float = 0.0, synced: Latch | None = None
    ) -> Registration:
        """Tell a listener from now on. The first resync is due a period from now, and a little more."""
        registration = Registration(listener, self, synced=synced)
        registration.period = _period(resync_period)
        if registration.period:
            # Listeners that came together are spread, so that their resyncs are not one large batch.
            phase = 1 + _PHASE * self._clock.random()
            registration.due = self._clock.monotonic() + registration.period * phase
            self.retimed.set()
        self._registrations[registration] = None
        return registration

    def remove_listener(self, registration: Registration) -> None:
        """Tell it no more; nothing happens if it is not here (client-go 184, 186).

        What a library handler has pending is dropped and counted (client-go 201).
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
        """Give these to every listener; resyncs only to those whose resync is due."""
        self._distributed += len(changes)
        if not changes or not self._registrations:
            return  # without listeners the notifications need not even be made
        # Only now are they made, once for all listeners.
        notifications = tuple(changes)
        resyncs = any([n.type is _RESYNC for n in notifications])  # noqa: C419 - a generator costs twice as much
        # A copy: a listener may add or remove others as it is called.
        for registration in tuple(self._registrations):
            if registration.removed:
                continue  # by a listener that was called just now
            given: Sequence[Notification] = notifications
            if resyncs and registration not in self._syncing:
                given = [n for n in given if n.type is not _RESYNC]
            if registration.pending is not None:
                if registration.postponed:
                    continue  # it will hear of the cache as it is then
                given = _admitted(given, registration.pending)
            self._give(registration, given)

    def postpone(self, registration: Registration) -> None:
        """Tell a listener nothing before it is introduced."""
        registration.pending, registration.postponed = {}, True

    def introduce(self, registration: Registration, cache: Mapping[str, Record]) -> Iterator[None]:
        """Tell a late joiner the cache, a slice at a time; each object once (client-go 202).

        An object that changes before its turn is given as it is then; one that is deleted is not given.
        """
        registration.postponed = False
        pending = registration.pending = dict.fromkeys(cache)
        # The keys of now: a live change takes its key out of `pending`, and is given before its turn.
        keys = iter(list(pending))
        while (part := tuple(islice(keys, _SLICE))) and not registration.removed:
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

    def replay(self, registration: Registration, cache: Mapping[str, Record]) -> Iterator[None]:
        """Tell a listener the cache again, as resyncs, a slice at a time."""
        keys = iter(list(cache))
        while (part := tuple(islice(keys, _SLICE))) and not registration.removed:
            if registration.pending is not None:
                return  # it is hearing all of the cache just now
            now = self._clock.now().timestamp()
            found = (cache.get(key) for key in part)
            self._give(registration, [resync_of(record, now) for record in found if record is not None])
            yield

    def due(self) -> tuple[Registration, ...]:
        """Whose resync is due now: with those that wait for one already, they hear the next one."""
        now = self._clock.monotonic()
        due = tuple(r for r in self._registrations if r.due <= now)
        for registration in due:
            # Periods that were missed, by a suspended machine, are one resync, not many.
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
        """Who hears the resync that is under way."""
        return tuple(self._syncing)

    def served(self) -> tuple[Registration, ...]:
        """End the resync that was under way; returns the registrations that it was for."""
        served, self._syncing = tuple(self._syncing), {}
        return served

    def retime(self, registration: Registration, resync_period: float) -> None:
        """Another period, with the phase kept: the next resync is due a new period after the last one."""
        period = _period(resync_period)
        if period == registration.period or registration.removed:
            return
        # The phase is kept: a handler whose period changes at a reload hears no resync because of that.
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
        """All of them, or those of a listener."""
        return tuple(r for r in self._registrations if listener is None or r.listener is listener)

    def __len__(self) -> int:
        return len(self._registrations)

    def _give(self, registration: Registration, notifications: Sequence[Notification]) -> None:
        if not notifications:
            return
        try:
            registration.listener.add_all(notifications)
        except Exception:  # noqa: BLE001 - it must not raise, but the other listeners shall not suffer for it
            self.faults += 1
            _log.exception(
                "the listener %r raised, and has missed %d changes",
                registration.listener,
                len(notifications),
            )


def _admitted(notifications: Sequence[Notification], pending: dict[str, None]) -> Sequence[Notification]:
    """What a late joiner hears of live changes while it has not heard all of the cache."""
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
