"""What a reflector did and how it is: the figures that it keeps, and the value that it shows of them."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from declctl.errors import Forbidden, NotFound, Unauthorized
from declctl.objects import EventType, ListPage, WatchEvent

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every event.
_EVENT_TYPES: Final = tuple(EventType)
_MOST_TOLD = 20  # different oddities that are logged; the others are counted
_SHOWN = 300  # characters of an oddity in the log
_log = logging.getLogger("declctl.informer")


@dataclass(frozen=True, slots=True)
class ReflectorStatistics:
    """What a reflector did and how it is.

    - `state` is what it is at, `rounds` how often it began to ask for everything.
    - `lists` counts how often everything was asked for, by LIST or by a stream (`streams` of them),
      and `relists` how often everything came again. `pages` and `items_listed` are the progress of
      that. `watches` counts requests.
    - `events` counts what watches brought, by type. `skipped` objects could not be used, because of
      their kind or because they can't be read; `kept_raw` ones could be read in part only;
      `last_oddity` tells of the last of either.
    - `failures` counts faults, `back_offs` the waits after them, `waited` their seconds.
      `idle_closes` counts watches that fell silent. `error` is the fault that lasts, since
      `error_since`; `missing` and `forbidden` say what kind of fault it is.
    - `consistency_checks` counts comparisons that were made, `inconsistencies` those that found a
      difference.

    `last_event_at` and `error_since` are on its clock, in seconds.
    """

    state: str
    lists: int
    watches: int
    relists: int
    pages: int
    items_listed: int
    events: Mapping[str, int]
    resource_version: str
    last_event_at: float | None
    idle_closes: int
    failures: int
    error: str | None
    error_since: float | None
    missing: bool
    forbidden: bool
    rounds: int = 0
    streams: int = 0
    skipped: int = 0
    kept_raw: int = 0
    last_oddity: str | None = None
    back_offs: int = 0
    waited: float = 0.0
    consistency_checks: int = 0
    inconsistencies: int = 0


class Figures:
    """The figures of one reflector, and the log lines that go with them.

    `describe` says what is listed and watched. A fault that lasts is logged once, and so is its end.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self.rounds = self.lists = self.streams = self.watches = self.pages = self.items = 0
        self.replaced = self.idle_closes = self.failures = self.back_offs = 0
        self.skipped = self.kept_raw = self.checks = self.inconsistencies = 0
        self.waited = 0.0
        self.last_event_at: float | None = None
        self._events: Counter[EventType] = Counter()
        self._error: Exception | None = None
        self._error_since: float | None = None
        self._last_oddity: str | None = None
        self._told: set[str] = set()

    def page(self, page: ListPage, *, first: bool) -> None:
        """A page of a LIST came."""
        self.pages += 1
        self.items = len(page.records) + (0 if first else self.items)
        for reason in page.skipped:
            self.odd(reason, stored=False)
        for reason in page.kept_raw:
            self.odd(reason, stored=True)

    def batch(self, batch: Sequence[WatchEvent]) -> None:
        """A batch of a watch came."""
        if len(batch) == 1:
            self._events[batch[0].type] += 1
            return
        kinds = [event.type for event in batch]
        for kind in _EVENT_TYPES:
            if count := kinds.count(kind):
                self._events[kind] += count

    def odd(self, reason: str, *, stored: bool) -> None:
        """An object was skipped, or stored though it could be read in part only."""
        self.kept_raw += stored
        self.skipped += not stored
        self._last_oddity = reason
        if reason not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(reason)
            _log.warning("%s: %s", self._describe(), reason[:_SHOWN])

    def failed(self, fault: Exception, at: float, *, context: str = "") -> None:
        """A fault was met. `context` goes into the log only."""
        self.failures += 1
        known = self._error is not None and self.told(self._error) == self.told(fault)
        _log.log(logging.DEBUG if known else logging.WARNING, "%s%s", self.told(fault), context)
        if self._error is None:
            self._error_since = at
        self._error = fault

    def recovered(self) -> None:
        """Something came that is no fault."""
        if self._error is not None:
            _log.info("%s: works again", self._describe())
            self._error = self._error_since = None

    def told(self, fault: Exception) -> str:
        """A fault with the resource that it is about."""
        return f"{self._describe()}: {fault if str(fault) else repr(fault)}"

    def statistics(self, state: str, resource_version: str) -> ReflectorStatistics:
        """The figures of this moment."""
        error = self._error
        return ReflectorStatistics(
            state=state,
            lists=self.lists,
            watches=self.watches,
            relists=max(0, self.replaced - 1),
            pages=self.pages,
            items_listed=self.items,
            events={kind.value: count for kind, count in self._events.items()},
            resource_version=resource_version,
            last_event_at=self.last_event_at,
            idle_closes=self.idle_closes,
            failures=self.failures,
            error=None if error is None else self.told(error),
            error_since=self._error_since,
            missing=isinstance(error, NotFound),
            forbidden=isinstance(error, Forbidden | Unauthorized),
            rounds=self.rounds,
            streams=self.streams,
            skipped=self.skipped,
            kept_raw=self.kept_raw,
            last_oddity=self._last_oddity,
            back_offs=self.back_offs,
            waited=self.waited,
            consistency_checks=self.checks,
            inconsistencies=self.inconsistencies,
        )
