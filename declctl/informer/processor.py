"""The processor.

Gives every notification to every listener, and knows whose resync is due (client-go's
sharedProcessor).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from declctl.informer.listener import Listener
from declctl.kit import Clock
from declctl.objects import Notification

_SHORTEST_PERIOD = 1.0  # seconds, as in client-go


@dataclass(slots=True, eq=False)
class _Attached:
    listener: Listener
    period: float
    last: float  # when its last resync was, or would have been


class SharedProcessor:
    """The listeners of one informer. Used on its loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attached: dict[int, _Attached] = {}
        self._listeners: tuple[Listener, ...] = ()

    def add_listener(self, listener: Listener, *, resync_period: float) -> None:
        """Tell a listener of everything from now on.

        The first resync is jittered, so that listeners do not come together.
        """
        period = _period(resync_period)
        early = period * 0.1 * self._clock.random()
        self._attached[id(listener)] = _Attached(listener, period, self._clock.monotonic() - early)
        self._listeners = tuple(attached.listener for attached in self._attached.values())

    def remove_listener(self, listener: Listener) -> None:
        """Tell it no more; one that isn't there is passed over."""
        self._attached.pop(id(listener), None)
        self._listeners = tuple(attached.listener for attached in self._attached.values())

    def retime(self, listener: Listener, resync_period: float) -> None:
        """Give a listener another period.

        Its phase is kept: next due is its last resync plus the new period.
        """
        attached = self._attached.get(id(listener))
        if attached is not None:
            attached.period = _period(resync_period)

    def distribute(self, notifications: Sequence[Notification]) -> None:
        """Give these to every listener."""
        for listener in self._listeners:
            listener.add_all(notifications)

    def due(self) -> list[Listener]:
        """The listeners whose resync is due; they count as resynced now."""
        now = self._clock.monotonic()
        due: list[Listener] = []
        for attached in self._attached.values():
            if attached.period and now >= attached.last + attached.period:
                # Periods that were missed (a suspended machine) are one resync, not many.
                attached.last += attached.period * int((now - attached.last) // attached.period)
                due.append(attached.listener)
        return due

    def has(self, listener: object) -> bool:
        """Whether it is attached."""
        return id(listener) in self._attached

    def __len__(self) -> int:
        return len(self._attached)


def _period(seconds: float) -> float:
    return 0.0 if seconds <= 0 else max(seconds, _SHORTEST_PERIOD)
