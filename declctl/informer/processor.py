"""The processor: gives every notification to every listener (client-go's sharedProcessor).

It also knows who has not heard all of the cache yet, and whose resync is due. Used on one loop.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from declctl.informer.applying import resync_of
from declctl.informer.listener import Listener
from declctl.kit import Clock, Latch
from declctl.objects import ChangeReason, ChangeType, Notification, Record

_SHORTEST_PERIOD = 1.0  # seconds, as in client-go
_PHASE = 0.1  # of a period: by how much the first resync may be late, so that not all are at once
_SLICE = 500  # notifications of a replay until the loop may do something else
_log = logging.getLogger("declctl.informer")


class Registration:
    """A listener's place at an informer. The same listener may have several, independent ones.

    `given` opens when the listener was given the whole first sync; `synced` when it has dealt with
    it, where it can say so, else together with `given`.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        synced: Latch | None,
        remove: Callable[["Registration"], None],
        retime: Callable[["Registration", float], None],
    ) -> None:
        self.listener = listener
        self.given = Latch(f"registration {type(listener).__name__}")
        self.synced = self.given if synced is None else synced
        self.removed = False
        self.period = 0.0
        self.due = float("inf")
        self.pending: dict[str, None] | None = None  # keys of the cache that it has not heard of yet
        self._remove = remove
        self._retime = retime

    @property
    def has_synced(self) -> bool:
        """Whether the first sync is in the cache and the listener is through with it."""
        return self.synced.is_open

    def remove(self) -> None:
        """Be told no more; removing twice is harmless."""
        self._remove(self)

    def retime(self, resync_period: float) -> None:
        """Another resync period (seconds, 0 for none); it counts from the last resync."""
        self._retime(self, resync_period)


class SharedProcessor:
    """The listeners of an informer, in the order in which they came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._registrations: dict[Registration, None] = {}
        self._syncing: tuple[Registration, ...] = ()
        self.faults = 0  # listeners that raised, though they must not

    def add_listener(
        self,
        listener: Listener,
        *,
        resync_period: float = 0.0,
        synced: Latch | None = None,
        remove: Callable[[Registration], None] | None = None,
    ) -> Registration:
        """Tell a listener from now on. The first resync is due a period from now, and a little more."""
        registration = Registration(
            listener, synced=synced, remove=remove or self.remove_listener, retime=self.retime
        )
        registration.period = _period(resync_period)
        if registration.period:
            phase = 1 + _PHASE * self._clock.random()
            registration.due = self._clock.monotonic() + registration.period * phase
        self._registrations[registration] = None
        return registration

    def remove_listener(self, registration: Registration) -> None:
        """Tell it no more; nothing happens if it is not here (client-go 184, 186)."""
        if registration in self._registrations:
            del self._registrations[registration]
            registration.removed = True

    def distribute(self, notifications: Sequence[Notification]) -> None:
        """Tell everybody; resyncs only those whose resync is due."""
        if not notifications:
            return
        resyncs = any(n.type is ChangeType.RESYNC for n in notifications)
        for registration in tuple(self._registrations):
            told = notifications
            if resyncs and registration not in self._syncing:
                told = [n for n in told if n.type is not ChangeType.RESYNC]
            if registration.pending is not None:
                told = _admitted(told, registration.pending)
            self._give(registration, told)

    def introduce(self, registration: Registration, cache: Mapping[str, Record]) -> Iterator[None]:
        """Tell a late joiner the cache, a slice at a time; each object once (client-go 202).

        What changes before its turn has come is told as it is then, what is deleted not at all.
        """
        pending = registration.pending = dict.fromkeys(cache)
        keys = iter(list(pending))
        while (part := tuple(islice(keys, _SLICE))) and not registration.removed:
            now = self._clock.now().timestamp()
            told: list[Notification] = []
            for key in part:
                if key in pending:
                    del pending[key]
                    told.append(_initial(cache[key], now))
            self._give(registration, told)
            if pending:
                yield
        registration.pending = None

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
        """Whose resync is due now; they are the ones that hear the next one."""
        now = self._clock.monotonic()
        self._syncing = tuple(r for r in self._registrations if r.due <= now)
        for registration in self._syncing:
            # Periods that were missed, by a suspended machine, are one resync, not many.
            missed = (now - registration.due) // registration.period
            registration.due += registration.period * (missed + 1)
        return self._syncing

    @property
    def syncing(self) -> tuple[Registration, ...]:
        """Who hears the resync that is under way."""
        return self._syncing

    def retime(self, registration: Registration, resync_period: float) -> None:
        """Another period, with the phase kept: the next resync is due a new period after the last one."""
        period = _period(resync_period)
        if period == registration.period or registration.removed:
            return
        last = registration.due - registration.period if registration.period else self._clock.monotonic()
        registration.period = period
        registration.due = last + period if period else float("inf")

    def registrations(self, listener: Listener | None = None) -> tuple[Registration, ...]:
        """All of them, or those of a listener."""
        return tuple(r for r in self._registrations if listener is None or r.listener is listener)

    def __len__(self) -> int:
        return len(self._registrations)

    def _give(self, registration: Registration, told: Sequence[Notification]) -> None:
        if not told:
            return
        try:
            registration.listener.add_all(told)
        except Exception:  # noqa: BLE001 - it must not, but the others shall not suffer for it
            self.faults += 1
            _log.exception(
                "the listener %r raised, and has missed %d changes", registration.listener, len(told)
            )


def _admitted(told: Sequence[Notification], pending: dict[str, None]) -> Sequence[Notification]:
    """What a late joiner hears of live changes while it has not heard all of the cache."""
    admitted: list[Notification] = []
    for notification in told:
        if notification.key not in pending:
            admitted.append(notification)
            continue
        del pending[notification.key]
        if notification.type is not ChangeType.DELETED:
            admitted.append(_initial(notification.record, notification.received_at))
    return admitted


def _initial(record: Record, now: float) -> Notification:
    return Notification(ChangeType.ADDED, record, initial=True, reason=ChangeReason.INITIAL, received_at=now)


def _period(seconds: float) -> float:
    return 0.0 if seconds <= 0 else max(seconds, _SHORTEST_PERIOD)
