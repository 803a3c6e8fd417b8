"""The keys of a reconciler with a `debounce`, until nothing has led to them for that time."""

from collections.abc import Iterator
from dataclasses import dataclass

from declctl.kit import Clock
from declctl.kit.debounce import Rest, RestingValues
from declctl.objects import Cause
from declctl.workqueue import MOST_CAUSES, Priority


@dataclass(slots=True)
class RestingKey:
    """A key that is not queued yet."""

    key: str
    priority: Priority  # the highest of its causes
    causes: dict[Cause, None]  # a set that keeps the order; never empty


class RestingKeys:
    """Keys that rest, each with its causes. The owner calls all methods under one lock."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._rests: dict[str, Rest[RestingKey]] = {}  # by key
        self._values: RestingValues[RestingKey] = RestingValues()

    def add(self, key: str, cause: Cause, priority: Priority, seconds: float) -> bool:
        """Let a key rest for `seconds` from now; returns whether it did not rest already."""
        now, rest = self._clock.monotonic(), self._rests.get(key)
        if rest is None:
            resting = RestingKey(key, priority, {cause: None})
            self._rests[key] = self._values.begin(resting, now, seconds)
            return True
        self._values.extend(rest, now, seconds)
        rest.value.priority = min(rest.value.priority, priority)
        if len(rest.value.causes) < MOST_CAUSES:
            rest.value.causes[cause] = None
        return False

    def rested(self, seconds: float) -> Iterator[RestingKey]:
        """Remove the keys whose rest is over; with a debounce of 0 `seconds`, all keys."""
        now = self._clock.monotonic()
        for resting in self._values.due(now) if seconds else self._values.all():
            del self._rests[resting.key]
            yield resting

    def next_due(self, seconds: float) -> float | None:
        """Seconds until `rested` has to be called; None if no key rests."""
        if not self._rests:
            return None
        moment = self._values.next() if seconds else None
        return 0.0 if moment is None else max(0.0, moment - self._clock.monotonic())

    def soonest(self) -> Iterator[tuple[float, RestingKey]]:
        """The keys in the order in which they come to rest, each with the monotonic time of that.

        The owner keeps its lock while it reads them.
        """
        return ((rest.until, rest.value) for rest in self._values.soonest())

    def clear(self) -> int:
        """Forget all keys; returns how many."""
        number = len(self._rests)
        self._rests.clear()
        self._values = RestingValues()
        return number

    def __len__(self) -> int:
        return len(self._rests)
