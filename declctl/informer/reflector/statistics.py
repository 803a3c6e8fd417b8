"""The figures of a reflector, and the log lines that belong to them."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from declctl.errors import Forbidden, GroupUnavailable, InvalidRequest, NotFound, Unauthorized
from declctl.kit.text import exception_text
from declctl.objects import EventType, ListPage, WatchEvent

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every event.
_EVENT_TYPES: Final = tuple(EventType)
_MOST_WARNINGS = 20  # different decode warnings that are logged; further ones are only counted
_SHOWN = 300  # characters of a decode warning in the log
_log = logging.getLogger("declctl.informer")
# `declctl run` prints the lines of this logger. It replaces those of `_log` by one line for each resource.
_notices = logging.getLogger("declctl.informer.notices")


@dataclass(slots=True)
class ReflectorStatistics:
    """The state and the counts of a reflector at one moment. A copy: a change of it has no effect."""

    # The present state. Times are monotonic seconds of the reflector's clock.
    state: str = ""  # the name of the state, such as Watching
    resource_version: str = ""  # the newest version that was seen
    last_event_at: float | None = None  # when the last part of an answer came; None before the first
    error: str | None = None  # the present fault, with the resource
    error_type: str | None = None  # the class of the fault
    error_since: float | None = None  # when the fault began
    missing: bool = False  # the fault: the server does not have the kind
    unavailable: bool = False  # the fault: the API service of its group does not answer
    forbidden: bool = False  # the fault: the server does not allow the request
    refused: bool = False  # the fault: the server can't do what is requested, such as for a field selector

    # Requests and their answers.
    rounds: int = 0  # decisions to list all objects, by LIST or by a stream
    lists: int = 0  # LISTs, and streaming lists that were complete
    streams: int = 0  # streaming lists among the lists
    relists: int = 0  # complete lists after the first one
    resumes: int = 0  # 1 if the cache began with the objects of an earlier process
    relists_requested: int = 0  # requests for a list, such as by a reload that moves a handler
    streams_given_up: int = 0  # streaming lists that a LIST replaced
    watches: int = 0  # requests to watch
    pages: int = 0  # pages of LISTs that came
    items_listed: int = 0  # objects of the present list, or of the last one

    # Objects and events.
    events: Mapping[str, int] = field(default_factory=dict[str, int])  # of watches, by type
    skipped: int = 0  # objects that could not be used: of another kind, or unreadable
    kept_raw: int = 0  # objects of which only the metadata could be read
    last_decode_warning: str | None = None  # why the last object was skipped or kept raw

    # Faults.
    failures: int = 0  # faults
    back_offs: int = 0  # waits after faults
    waited: float = 0.0  # seconds of these waits
    idle_closes: int = 0  # watches that fell silent
    consistency_checks: int = 0  # comparisons of a streaming list with a LIST
    inconsistencies: int = 0  # comparisons that found a difference
    history_checks: int = 0  # proofs of the server's history after a lost connection
    rollbacks: int = 0  # changes of the server's history, after which all objects were listed anew


class ReflectorMetrics:
    """The figures of one reflector while they grow, and the log lines that belong to them. Used on one loop.

    `describe` returns the resource for log lines. A fault that lasts is logged once, and so is its end.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self.counts = ReflectorStatistics()  # also written by the reflector; `statistics` completes a copy
        self.replaced = 0  # complete lists that the store has received
        self.error: Exception | None = None  # the present fault; `failed` and `recovered` write it
        self._describe = describe
        self._events: Counter[EventType] = Counter()
        self._logged: set[str] = set()  # decode warnings

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
        """Count an object that was skipped, or stored although only its metadata could be read."""
        self.counts.kept_raw += stored
        self.counts.skipped += not stored
        self.counts.last_decode_warning = reason
        if reason not in self._logged and len(self._logged) < _MOST_WARNINGS:
            self._logged.add(reason)
            _log.warning("%s: %s", self._describe(), reason[:_SHOWN])

    def kept_unused(self, why: str) -> None:
        """Log that the objects that an earlier process has kept are listed instead."""
        _notices.warning("%s: what the process before has kept is not used: %s", self._describe(), why)

    def stream_waits(self, lasted: float, silent: float) -> None:
        """Log that a streaming list is not complete yet. Both times are in seconds."""
        _notices.warning(
            "%s: the streaming list is not complete after %.0f s (%d objects so far, nothing for %.0f s)",
            self._describe(), lasted, self.counts.items_listed, silent,
        )  # fmt: skip

    def stream_given_up(self, fault: Exception, *, for_good: bool) -> None:
        """Count a streaming list that a LIST replaces, this time or from now on."""
        self.counts.streams_given_up += 1
        instead = "it is listed in pages from now on" if for_good else "it is listed in pages this time"
        _notices.info("%s; %s", self.sentence(fault), instead)

    def fell_silent(self, fault: Exception) -> None:
        """Count a silent watch that is opened anew; the 1st, 2nd, 4th, 8th, … is logged as info."""
        self.counts.idle_closes += 1
        times = self.counts.idle_closes
        is_power_of_two = times & (times - 1) == 0
        _notices.log(
            logging.INFO if is_power_of_two else logging.DEBUG,
            "%s; it is watched again from its version (%d times so far)", self.sentence(fault), times,
        )  # fmt: skip

    def rolled_back(self, why: str) -> None:
        """Count and log that the server has another history than the cache."""
        self.counts.rollbacks += 1
        _notices.warning(
            "%s: the server's history is not the one that the cache comes from (%s): everything is listed "
            "anew. Was its storage put back to a backup?",
            self._describe(), why,
        )  # fmt: skip

    def failed(self, fault: Exception, at: float, *, context: str = "") -> None:
        """Count a fault at a monotonic time; it lasts until `recovered`. `context` is for the log."""
        self.counts.failures += 1
        known = self.error is not None and self.sentence(self.error) == self.sentence(fault)
        _log.log(logging.DEBUG if known else logging.WARNING, "%s%s", self.sentence(fault), context)
        if self.error is None:
            self.counts.error_since = at
        self.error = fault

    def recovered(self) -> None:
        """Note that a request succeeded."""
        if self.error is not None:
            _log.info("%s: works again", self._describe())
            self.error = self.counts.error_since = None

    def sentence(self, fault: Exception) -> str:
        """The fault and its resource, as a sentence."""
        return f"{self._describe()}: {exception_text(fault) or type(fault).__name__}"

    def progress(self) -> str:
        """The present fault, or the number of objects that have come. From any thread."""
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
            unavailable=isinstance(error, GroupUnavailable),
            forbidden=isinstance(error, Forbidden | Unauthorized),
            refused=isinstance(error, InvalidRequest),
            relists=max(0, self.replaced - 1),  # the first list is no relist
            events={kind.value: count for kind, count in self._events.items()},
        )
