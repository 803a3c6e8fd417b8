"""What the parent does for a call in a child: it answers the questions of `ctx`, in the thread of the call.

Each answer is what the `Context` of the call gives, so that lease, limits, ledger and the hiding of
Secrets are those of any other call. Writes and requests run on the machinery loop meanwhile.
"""

import json
import logging
from concurrent.futures import Future
from typing import Any

from declctl.informer.stores.lister import CacheReader, CacheSnapshot, Views
from declctl.objects import ObjectView
from declctl.runtime.handling.context import CallElsewhere, Memo
from declctl.runtime.isolation.protocol import Ask, Tell, memo_text, sendable

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
        self._context = call.context
        self._taken: list[CacheSnapshot] = []  # snapshots that the call has taken itself
        self._under_way: dict[int, Future[Any]] = {}  # writes and requests, by question

    def answer(self, question: Ask) -> Future[Any]:
        """The answer to a question: what `_ask_` of its name returns or raises, or its future."""
        find = getattr(self, f"_ask_{question.name}", None)
        found: Future[Any] = Future()
        try:
            if find is None:
                raise TypeError(f"there is no question {question.name!r}")
            value = find(*question.given)
        except Exception as error:  # noqa: BLE001 - the child raises it
            found.set_exception(error)
            return found
        if not isinstance(value, Future):
            found.set_result(value)
            return found
        self._under_way[question.number] = value
        value.add_done_callback(lambda _: self._under_way.pop(question.number, None))
        return value

    def cancel(self, *questions: int) -> None:
        """Cancel what is under way for these questions; without one, for all."""
        for number in questions or tuple(self._under_way):
            if (found := self._under_way.get(number)) is not None:
                found.cancel()

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

    def keep(self, memo: str | None) -> None:
        """Keep the memo as the call has left it. Raises ValueError for what is no JSON."""
        if memo is not None:
            kept: Memo = self._context.memo
            values = dict(json.loads(memo))
            kept.clear()
            kept.update(values)

    def _reader(self, kind: str, name: str | int) -> CacheReader:
        if kind == "lister":
            return self._context.listers[str(name)]
        return self._context.snapshots[str(name)] if kind == "snapshot" else self._taken[int(name)]

    def _ask_now(self) -> str:
        return self._context.now().isoformat()

    def _ask_memo(self) -> str:
        return memo_text(self._context.memo)

    def _ask_read(self, source: tuple[str, str | int], what: str, *given: Any) -> Any:
        reader: Any = self._reader(*source)
        if what not in _READS:
            raise TypeError(f"a cache has no {what!r}")
        if what == "snapshot":
            self._taken.append(reader.snapshot())
            return len(self._taken) - 1
        if what == "list":
            namespace, selector = given
            return [*map(sendable, reader.list(namespace=namespace, selector=selector))]
        if what in ("len", "contains"):
            return len(reader) if what == "len" else given[0] in reader
        found = getattr(reader, what)
        found = found(*given) if callable(found) else found
        if isinstance(found, Views):
            return [*map(sendable, found)]
        return sendable(found) if isinstance(found, ObjectView) else found

    def _ask_record_event(self, obj: Any, reason: str, note: str, kind: str, action: str) -> None:
        self._context.record_event(obj, reason, note, kind, action)

    def _ask_request(self, *given: Any) -> Future[Any]:
        return self._call.request(*given)

    def _ask_apply(self, obj: Any, force: bool | None) -> Future[Any]:
        return self._call.submit(lambda writes: writes.apply(obj, force=force))

    def _ask_apply_set(self, objects: Any) -> Future[Any]:
        return self._call.submit(lambda writes: writes.apply_set(objects))

    def _ask_patch_status(self, conditions: Any, fields: Any, is_whole: Any) -> Future[Any]:
        return self._call.submit(lambda writes: writes.patch_status(conditions, fields, is_whole is True))

    def _ask_get(self, kind: Any, name: Any, namespace: Any) -> Future[Any]:
        return self._call.submit(lambda writes: writes.get(kind, name, namespace))

    def _ask_delete(self, kind: Any, name: Any, namespace: Any, uid: Any, propagation: Any) -> Future[Any]:
        return self._call.submit(
            lambda writes: writes.delete(kind, name, namespace, propagation=propagation, uid=uid)
        )


_RECORD = logging.makeLogRecord({})
