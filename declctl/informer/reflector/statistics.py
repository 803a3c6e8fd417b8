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
# `declctl run` shows these. Lines of `_log` it shows in its own words, once for each resource.
_notices = logging.getLogger("declctl.informer.notices")


@dataclass(frozen=True, slots=True)
class ReflectorStatistics:
    """What a reflector did and how it is.

    - `state` is what it is at, `rounds` how often it began to ask for everything.
    - `lists` counts how often everything was asked for, by LIST or by a stream (`streams` of them),
      and `relists` how often everything came again. `pages` and `items_listed` are the progress of
      that. `watches` counts requests. `streams_given_up` counts the streams in whose place a LIST was made.
      `relists_requested` counts the lists that somebody asked for, such as a reload that moves a handler.
    - `events` counts what watches brought, by type. `skipped` objects could not be used, because of
      their kind or because they can't be read; `kept_raw` ones could be read in part only;
      `last_oddity` tells of the last of either.
    - `failures` counts faults, `back_offs` the waits after them, `waited` their seconds.
      `idle_closes` counts watches that fell silent. `error` is the fault that lasts, since
      `error_since`; `error_type` is its class; `missing` and `forbidden` say what kind of fault it is.
    - `consistency_checks` counts comparisons that were made, `inconsistencies` those that found a
      difference. `history_checks` counts questions whether the server goes on from what is held, after a
      connection that failed; `rollbacks` how often it did not: everything was listed anew then.

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
    streams_given_up: int = 0
    history_checks: int = 0
    rollbacks: int = 0
    relists_requested: int = 0
    error_type: str | None = None


class Figures:
    """The figures of one reflector, and the log lines that go with them.

    `describe` says what is listed and watched. A fault that lasts is logged once, and so is its end.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self.rounds = self.lists = self.streams = self.watches = self.pages = self.items = 0
        self.replaced = self.idle_closes = self.failures = self.back_offs = self.streams_given_up = 0
        self.skipped = self.kept_raw = self.checks = self.inconsistencies = 0
        self.history_checks = self.rollbacks = self.relists_requested = 0
        self.waited = 0.0
        self.last_event_at: float | None = None
        self._events: Counter[EventType] = Counter()
        self.error: Exception | None = None  # the fault that lasts; `failed` and `recovered` write it
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

    def stream_waits(self, lasted: float, silent: float) -> None:
        """A streaming list is not complete; times are in seconds. client-go warns of that as often."""
        _notices.warning(
            "%s: the streaming list is not complete after %.0f s (%d objects so far, nothing for %.0f s)",
            self._describe(), lasted, self.items, silent,
        )  # fmt: skip

    def stream_given_up(self, fault: Exception, *, for_good: bool) -> None:
        """A streaming list failed, and a LIST takes its place: this time, or from now on."""
        self.streams_given_up += 1
        instead = "it is listed in pages from now on" if for_good else "it is listed in pages this time"
        _notices.info("%s; %s", self.told(fault), instead)

    def fell_silent(self, fault: Exception) -> None:
        """A watch said nothing for its idle timeout and is opened anew: the 1st, 2nd, 4th, … is logged."""
        self.idle_closes += 1
        is_news = self.idle_closes & (self.idle_closes - 1) == 0
        again = f"it is watched again from its version ({self.idle_closes} times so far)"
        _notices.log(logging.INFO if is_news else logging.DEBUG, "%s; %s", self.told(fault), again)

    def rolled_back(self, why: str) -> None:
        """The server's history is another one than that of the cache."""
        self.rollbacks += 1
        _notices.warning(
            "%s: the server's history is not the one that the cache comes from (%s): everything is listed "
            "anew. Was its storage put back to a backup?",
            self._describe(), why,
        )  # fmt: skip

    def failed(self, fault: Exception, at: float, *, context: str = "") -> None:
        """A fault was met. `context` goes into the log only."""
        self.failures += 1
        known = self.error is not None and self.told(self.error) == self.told(fault)
        _log.log(logging.DEBUG if known else logging.WARNING, "%s%s", self.told(fault), context)
        if self.error is None:
            self._error_since = at
        self.error = fault

    def recovered(self) -> None:
        """Something came that is no fault."""
        if self.error is not None:
            _log.info("%s: works again", self._describe())
            self.error = self._error_since = None

    def told(self, fault: Exception) -> str:
        """A fault with the resource that it is about."""
        return f"{self._describe()}: {fault if str(fault) else repr(fault)}"

    def progress(self) -> str:
        """The fault that lasts, or how many objects have come. From any thread."""
        error = self.error
        return f"{self.items} objects so far" if error is None else self.told(error)

    def statistics(self, state: str, resource_version: str) -> ReflectorStatistics:
        """The figures of this moment."""
        error = self.error
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
            streams_given_up=self.streams_given_up,
            history_checks=self.history_checks,
            rollbacks=self.rollbacks,
            relists_requested=self.relists_requested,
            error_type=None if error is None else type(error).__name__,
        )
