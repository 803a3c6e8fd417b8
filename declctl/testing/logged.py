"""A log that keeps its lines, for tests that look at what was told."""

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from declctl.kit.logs import structlog


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `level` is debug, info, warning, error or critical; `event` is the sentence.

    `fields` has what it was bound with as well; of an exception the text is in `traceback`.
    """

    level: str
    event: str
    fields: Mapping[str, Any]


class Logged:
    """A structured logger whose lines can be read again. From any thread; what is bound shares the lines."""

    def __init__(self, lines: list[Line] | None = None, **bound: Any) -> None:
        self.lines: list[Line] = [] if lines is None else lines
        self._bound = bound

    def info(self, event: str, **fields: Any) -> None:
        """Keep a line."""
        self._keep("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Keep a line."""
        self._keep("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Keep a line."""
        self._keep("error", event, fields)

    def bind(self, **fields: Any) -> "Logged":
        """The same log with more fields."""
        return Logged(self.lines, **{**self._bound, **fields})

    def user_logger(self) -> Any:
        """A structlog logger, as `ctx.log` is one, whose lines of all levels are kept here."""
        return structlog.wrap_logger(
            None,
            processors=[
                structlog.stdlib.add_log_level,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                self._keep_entry,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        )

    def events(self, level: str | None = None) -> list[str]:
        """The sentences, of one level or of all."""
        return [line.event for line in tuple(self.lines) if level in (None, line.level)]

    def find(self, words: str) -> Line | None:
        """The first line whose sentence contains these words."""
        return next((line for line in tuple(self.lines) if words in line.event), None)

    def _keep(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        self.lines.append(Line(level, event, {**self._bound, **fields}))

    def _keep_entry(self, _logger: object, _method: str, entry: MutableMapping[str, Any]) -> Any:
        fields = dict(entry)
        if "exception" in fields:
            fields["traceback"] = fields.pop("exception")
        self._keep(fields.pop("level"), str(fields.pop("event")), fields)
        raise structlog.DropEvent  # nothing is to be written anywhere else
