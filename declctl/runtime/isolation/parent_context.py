"""What the parent does for a call in a child: it answers the questions of `ctx`, in the thread of the call.

Each answer is what the `HandlerContext` of the call gives, so that lease, limits, ledger and the hiding of
Secrets are those of any other call. Writes and requests run on the machinery loop meanwhile.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from declctl.informer.stores.lister import CacheReader, CacheSnapshot, Views
from declctl.objects import ObjectView
from declctl.objects.record import record_of
from declctl.runtime.handling.context import CallElsewhere, Memo
from declctl.runtime.isolation.protocol import WRITTEN, Pending, Tell, WireObject, wire_object, wire_view
from declctl.writes import AppliedSet, Written

_LEVELS = ("debug", "info", "warning", "error", "critical")
_READS = frozenset(
    (
        "get",
        "list",
        "by_index",
        "index_values",
        "keys",
        "index_names",
        "has_synced",
        "len",
        "contains",
        "snapshot",
    )
)
_RESERVED = ("event", "exc_info", "stack_info")  # of a log line; a child sends a traceback as a text


class CallOfChild:
    """The questions of one call. Used in the thread of the call."""

    def __init__(self, call: CallElsewhere) -> None:
        self._call = call
        self._context = context = call.context
        self._taken: list[CacheSnapshot] = []  # snapshots that the call has taken itself
        self._answers: Mapping[str, Callable[..., Any]] = {
            "now": lambda: context.now().isoformat(),
            "memo": lambda: dict(context.memo),
            "read": self._read,
            "record_event": self._record_event,
            "apply": self._apply,
            "apply_set": self._apply_set,
            "patch_status": self._patch_status,
            "request": self._request,
        }

    def answer(self, name: str, given: Sequence[Any]) -> Any:
        """The answer to a question, or one that is pending; raises what the context raises."""
        found = self._answers.get(name)
        if found is None:
            raise TypeError(f"there is no question {name!r}")
        return found(*given)

    def log(self, line: Tell) -> None:
        """Write a line of the log."""
        level = line.level if line.level in _LEVELS else "info"
        fields = {name: each for name, each in line.fields.items() if name not in _RESERVED}
        if line.logger is None:
            getattr(self._context.log, level)(line.event, **fields)
            return
        known = {f"{name}_" if hasattr(_RECORD, name) else name: each for name, each in fields.items()}
        logging.getLogger(line.logger).log(
            logging.getLevelNamesMapping()[level.upper()], "%s", line.event, extra=known
        )

    def keep(self, memo: Mapping[str, Any] | None) -> None:
        """Keep the memo as the call has left it. Raises TypeError if it is not JSON-like."""
        if memo is None:
            return
        kept: Memo = self._context.memo
        for name in kept.keys() - memo.keys():
            del kept[name]
        kept.update(memo)

    def _reader(self, kind: str, name: str | int) -> CacheReader:
        if kind == "lister":
            return self._context.listers[str(name)]
        return self._context.snapshots[str(name)] if kind == "snapshot" else self._taken[int(name)]

    def _read(self, source: tuple[str, str | int], what: str, *given: Any) -> Any:
        reader: Any = self._reader(*source)
        if what not in _READS:
            raise TypeError(f"a cache has no {what!r}")
        if what == "snapshot":
            self._taken.append(reader.snapshot())
            return len(self._taken) - 1
        if what == "list":
            namespace, selector = given
            return _wire_list(reader.list(namespace=namespace, selector=selector))
        if what in ("len", "contains"):
            return len(reader) if what == "len" else given[0] in reader
        found = getattr(reader, what)
        found = found(*given) if callable(found) else found
        if isinstance(found, ObjectView):
            return wire_view(found)
        return _wire_list(found) if isinstance(found, Views) else found

    def _record_event(self, obj: Any, reason: str, note: str, kind: str, action: str) -> None:
        self._context.record_event(obj, reason, note, kind, action)

    def _apply(self, obj: Any, force: bool | None) -> Pending:
        return Pending(self._call.submit(lambda writes: writes.apply(obj, force=force)), _wire_written)

    def _apply_set(self, objects: Any) -> Pending:
        return Pending(self._call.submit(lambda writes: writes.apply_set(objects)), _wire_set)

    def _request(self, method: str, path: str, headers: Any, body: Any) -> Pending:
        return Pending(self._call.request(method, path, headers, body), _wire_response)

    def _patch_status(self, conditions: Any, fields: Any) -> Pending:
        return Pending(
            self._call.submit(lambda writes: writes.patch_status(conditions, fields)), _wire_written
        )


_RECORD = logging.makeLogRecord({})


def _wire_list(views: Views) -> list[WireObject]:
    return [wire_object(record_of(view)) for view in views]


def _wire_written(written: Written) -> list[Any]:
    kind = written.kind
    head = [str(written.verb), (kind.group, kind.version, kind.kind), str(written.key)]
    return [*head, *(getattr(written, name) for name in WRITTEN)]


def _wire_set(applied: AppliedSet) -> list[Any]:
    return [[_wire_written(each) for each in some] for some in (applied.applied, applied.pruned)]


def _wire_response(response: Any) -> list[Any]:
    """What a child needs of the answer of an official client."""
    return [response.status, response.reason, dict(response.getheaders()), response.data]
