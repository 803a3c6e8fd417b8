"""What a reflector did and how it is: the figures that it keeps, and the log lines that go with them."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from declctl.errors import Forbidden, NotFound, Unauthorized
from declctl.kit.text import exception_text
from declctl.objects import EventType, ListPage, WatchEvent

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every event.
_EVENT_TYPES: Final = tuple(EventType)
_MOST_WARNINGS = 20  # different oddities that are logged; the others are counted
_SHOWN = 300  # characters of an oddity in the log
_log = logging.getLogger("declctl.informer")
# `declctl run` shows these. Lines of `_log` it shows in its own words, once for each resource.
_notices = logging.getLogger("declctl.informer.notices")


@dataclass(slots=True)
class ReflectorStatistics:
    """What a reflector did and how it is, at one moment. A copy: to change it has no effect.

    `last_event_at` and `error_since` are on the reflector's clock, in seconds.
    """

    # How it is.
    state: str = ""  # the name of its state, such as Watching
    resource_version: str = ""  # the newest version that it has seen
    last_event_at: float | None = None  # when something came last; None if nothing has come
    error: str | None = None  # the fault that lasts, with the resource
    error_type: str | None = None  # its class
    error_since: float | None = None
    missing: bool = False  # the fault says that the server does not have the kind
    forbidden: bool = False  # the fault says that the server does not let us see it

    # Requests and their answers.
    rounds: int = 0  # how often it began to ask for everything
    lists: int = 0  # how often everything was asked for, by LIST or by a stream
    streams: int = 0  # how many of the lists were streams
    relists: int = 0  # how often everything came again
    relists_requested: int = 0  # lists that were asked for, such as by a reload that moves a handler
    streams_given_up: int = 0  # streams in whose place a LIST was made
    watches: int = 0  # requests to watch
    pages: int = 0  # pages of LISTs that came
    items_listed: int = 0  # objects of the present list, or of the last one

    # What came.
    events: Mapping[str, int] = field(default_factory=dict[str, int])  # what watches brought, by type
    skipped: int = 0  # objects that could not be used: of another kind, or unreadable
    kept_raw: int = 0  # objects that could be read in part only
    last_decode_warning: str | None = None  # why the last object was skipped or kept raw

    # What went wrong.
    failures: int = 0  # faults
    back_offs: int = 0  # waits after faults
    waited: float = 0.0  # seconds of these waits
    idle_closes: int = 0  # watches that fell silent
    consistency_checks: int = 0  # comparisons of a streaming list with a LIST that were made
    inconsistencies: int = 0  # comparisons that found a difference
    history_checks: int = 0  # proofs that the server goes on from what is held, after a lost connection
    rollbacks: int = 0  # how often the server did not go on, and everything was listed anew


class ReflectorMetrics:
    """The figures of one reflector while it works, and the log lines that go with them.

    `describe` says what is listed and watched. A fault that lasts is logged once, and so is its end.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self.counts = ReflectorStatistics()  # also written by the reflector; `statistics` sets the rest
        self.replaced = 0  # lists that were complete and taken
        self.error: Exception | None = None  # the fault that lasts; `failed` and `recovered` write it
        self._describe = describe
        self._events: Counter[EventType] = Counter()
        self._logged: set[str] = set()  # oddities

    def page(self, page: ListPage, *, first: bool) -> None:
        """Count a page of a LIST."""
        self.counts.pages += 1
        self.counts.items_listed = len(page.records) + (0 if first else self.counts.items_listed)
        for reason in page.skipped:
            self.decode_warning(reason, stored=False)
        for reason in page.kept_raw:
            self.decode_warning(reason, stored=True)

    def batch(self, batch: Sequence[WatchEvent]) -> None:
        """Count a batch of a watch."""
        if len(batch) == 1:  # the common case
            self._events[batch[0].type] += 1
            return
        kinds = [event.type for event in batch]
        for kind in _EVENT_TYPES:
            if count := kinds.count(kind):
                self._events[kind] += count

    def decode_warning(self, reason: str, *, stored: bool) -> None:
        """Count an object that was skipped, or stored though it could be read in part only."""
        self.counts.kept_raw += stored
        self.counts.skipped += not stored
        self.counts.last_decode_warning = reason
        if reason not in self._logged and len(self._logged) < _MOST_WARNINGS:
            self._logged.add(reason)
            _log.warning("%s: %s", self._describe(), reason[:_SHOWN])

    def stream_waits(self, lasted: float, silent: float) -> None:
        """Log that a streaming list is not complete yet, as often as client-go; times are in seconds."""
        _notices.warning(
            "%s: the streaming list is not complete after %.0f s (%d objects so far, nothing for %.0f s)",
            self._describe(), lasted, self.counts.items_listed, silent,
        )  # fmt: skip

    def stream_given_up(self, fault: Exception, *, for_good: bool) -> None:
        """Count a streaming list that failed. A LIST takes its place: this time, or from now on."""
        self.counts.streams_given_up += 1
        instead = "it is listed in pages from now on" if for_good else "it is listed in pages this time"
        _notices.info("%s; %s", self.sentence(fault), instead)

    def fell_silent(self, fault: Exception) -> None:
        """Count a watch that fell silent and is opened anew; the 1st, 2nd, 4th, … is logged."""
        self.counts.idle_closes += 1
        times = self.counts.idle_closes
        is_power_of_two = times & (times - 1) == 0
        _notices.log(
            logging.INFO if is_power_of_two else logging.DEBUG,
            "%s; it is watched again from its version (%d times so far)", self.sentence(fault), times,
        )  # fmt: skip

    def rolled_back(self, why: str) -> None:
        """Count that the server's history is another one than that of the cache."""
        self.counts.rollbacks += 1
        _notices.warning(
            "%s: the server's history is not the one that the cache comes from (%s): everything is listed "
            "anew. Was its storage put back to a backup?",
            self._describe(), why,
        )  # fmt: skip

    def failed(self, fault: Exception, at: float, *, context: str = "") -> None:
        """Count a fault, which lasts until `recovered`. `context` goes into the log only."""
        self.counts.failures += 1
        known = self.error is not None and self.sentence(self.error) == self.sentence(fault)
        _log.log(logging.DEBUG if known else logging.WARNING, "%s%s", self.sentence(fault), context)
        if self.error is None:
            self.counts.error_since = at
        self.error = fault

    def recovered(self) -> None:
        """Note that something came that is no fault."""
        if self.error is not None:
            _log.info("%s: works again", self._describe())
            self.error = self.counts.error_since = None

    def sentence(self, fault: Exception) -> str:
        """A fault with the resource that it is about."""
        return f"{self._describe()}: {exception_text(fault) or type(fault).__name__}"

    def progress(self) -> str:
        """The fault that lasts, or how many objects have come. From any thread."""
        error = self.error
        return f"{self.counts.items_listed} objects so far" if error is None else self.sentence(error)

    def statistics(self, state: str, resource_version: str) -> ReflectorStatistics:
        """The figures of this moment. From any thread."""
        error = self.error
        return replace(
            self.counts,
            state=state,
            resource_version=resource_version,
            error=None if error is None else self.sentence(error),
            error_type=None if error is None else type(error).__name__,
            missing=isinstance(error, NotFound),
            forbidden=isinstance(error, Forbidden | Unauthorized),
            relists=max(0, self.replaced - 1),  # the first list is no relist
            events={kind.value: count for kind, count in self._events.items()},
        )
