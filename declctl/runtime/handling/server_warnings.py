"""Warnings of the API server in log, status and metrics: each distinct one is a line once, and is counted.

A warning says that a request succeeded in another way than its sender may think: a field was dropped that
the schema does not have, a version is deprecated, a namespace forbids such pods. The handler is the one whose
call has sent the request; a LIST or WATCH, and what declctl does by itself, have none.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from declctl.kit import Clock
from declctl.kit.secret_values import secret_values
from declctl.kit.text import excerpt
from declctl.objects import ObjectView, Resource
from declctl.objects.api_path import parse_api_path
from declctl.objects.custom_resource import custom_resource_of
from declctl.runtime.handling.client_writes import current_origin
from declctl.runtime.handling.failure_log import LineLimit
from declctl.runtime.log import Log

_MOST = 100  # distinct warnings that are remembered: texts may name objects
_MOST_TOTALS = 1000  # pairs of handler and kind that are counted
_LONGEST = 500  # characters of a text
OTHER = "(other)"
"""The kind of a request that is for no resource, such as one for a version."""

_UNKNOWN_FIELD = 'unknown field "'
_DROPPED = "; the server has dropped it: mend its name, or add it to the schema of the kind"
_LEFT_BEHIND = (
    "; the server has dropped it: its definition is older than the class {}, which has the field: write it "
    "again with `declctl generate crd`, and apply it"
)


class ServerWarning(msgspec.Struct, frozen=True):
    """A distinct warning. `handler` is empty for a request that no call has sent."""

    handler: str
    kind: str  # such as `example.dev/v1 Widget`
    text: str
    count: int
    last: datetime  # when it came last


class WarningTotal(msgspec.Struct, frozen=True):
    """The number of warnings about the requests of one handler for one kind."""

    handler: str
    kind: str
    count: int


class ServerWarnings:
    """Logs, counts and remembers the warnings of an API server. From any thread.

    The newest 100 distinct warnings are remembered; one that was forgotten is logged again. There are at most
    20 lines a minute, and the next line has the number of those that were left out. `known_plural` returns a
    discovered resource by its group, version and plural, and `view_of` the class of a handler's objects.
    """

    def __init__(
        self,
        *,
        known_plural: Callable[[str, str, str], Resource | None],
        view_of: Callable[[str], type[ObjectView]],
        clock: Clock,
        log: Log,
    ) -> None:
        self._known_plural = known_plural
        self._view_of = view_of
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()  # guards all of the following
        self._warnings: OrderedDict[tuple[str, str, str], ServerWarning] = OrderedDict()  # the newest last
        self._totals: Counter[tuple[str, str]] = Counter()
        self._lines = LineLimit()

    def add(self, method: str, path: str, texts: Sequence[str]) -> None:
        """Receive the warnings of an answer (`transport.warnings.WarningObserver`)."""
        origin, kind = current_origin(), self._kind_of(path)
        handler = "" if origin is None else origin.handler
        for text in dict.fromkeys(texts):
            shown = excerpt(secret_values.hide(text), most=_LONGEST)
            if (left_out := self._count(handler, kind, shown)) is None:
                continue
            whose = f"{handler}: " if handler else ""
            dropped = self._dropped(handler, kind, text) if text.startswith(_UNKNOWN_FIELD) else ""
            more = f" ({left_out:,} other warnings were left out)" if left_out else ""
            self._log.warning(
                f"{whose}the API server warns of a {method} of {kind}: {shown}{dropped}{more}",
                kind=kind,
                warning=shown,
                **({"handler": handler} if handler else {}),
            )

    def newest(self) -> Sequence[ServerWarning]:
        """The remembered warnings; the one that came last is the first."""
        with self._lock:
            return tuple(reversed(self._warnings.values()))

    def totals(self) -> Sequence[WarningTotal]:
        """The counts since the start, by handler and kind."""
        with self._lock:
            totals = sorted(self._totals.items())
        return [WarningTotal(handler, kind, count) for (handler, kind), count in totals]

    def _dropped(self, handler: str, kind: str, text: str) -> str:
        """What to do about a field that the server has dropped."""
        view = self._view_of(handler)
        resource = custom_resource_of(view)
        path = text.removeprefix(_UNKNOWN_FIELD).partition('"')[0]
        if resource is None or kind != f"{resource.api_version} {resource.kind}":
            return _DROPPED
        from declctl.objects.definitions import has_field  # late: it makes schemas, which few processes do

        has_it = has_field(cast("Any", view), path)
        return _LEFT_BEHIND.format(view.__name__) if has_it else _DROPPED

    def _kind_of(self, path: str) -> str:
        parts = parse_api_path(path)
        if parts is None:
            return OTHER
        known = self._known_plural(parts.group, parts.version, parts.plural)
        return parts.resource if known is None else str(known.gvk)

    def _count(self, handler: str, kind: str, text: str) -> int | None:
        """Count a warning. None if no line is due, else the number of lines that were left out before it."""
        now = self._clock.monotonic()
        with self._lock:
            total = (handler, kind)
            full = len(self._totals) >= _MOST_TOTALS and total not in self._totals
            self._totals[("", OTHER) if full else total] += 1
            known = self._warnings.pop((handler, kind, text), None)
            count = 1 if known is None else known.count + 1
            found = ServerWarning(handler, kind, text, count, self._clock.now())
            self._warnings[handler, kind, text] = found
            if known is not None:
                return None
            if len(self._warnings) > _MOST:
                self._warnings.popitem(last=False)
            return self._lines.admit(now)
