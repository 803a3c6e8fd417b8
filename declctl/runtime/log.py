"""The logger that the runtime needs, as a protocol, and the level of the process's log.

The bound loggers of structlog satisfy the protocol; tests use a list.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

import msgspec

LEVELS = ("debug", "info", "warning", "error")  # the least important lines first


class Log(Protocol):
    """A structured logger: the event is a sentence for people, the fields are for machines."""

    def debug(self, event: str, **fields: Any) -> Any:
        """Log a detail for a search of faults."""
        ...

    def info(self, event: str, **fields: Any) -> Any:
        """Log something that went as it should."""
        ...

    def warning(self, event: str, **fields: Any) -> Any:
        """Log something that may need attention."""
        ...

    def error(self, event: str, **fields: Any) -> Any:
        """Log a failure."""
        ...

    def bind(self, **fields: Any) -> "Log":
        """A logger that adds these fields to each line."""
        ...


class LogLevelStatus(msgspec.Struct, frozen=True):
    """A level that is not the one of the start."""

    level: str
    start: str
    until: datetime | None  # in UTC: it is set back then by itself; None: it stays until the process ends


class LogLevelControl:
    """The level of the process's log: lines below it are not written. Used on the machinery loop.

    A reload does not change it. `apply` makes the loggers use a level of `LEVELS`.
    """

    def __init__(self, start: str, apply: Callable[[str], None]) -> None:
        self.start = start  # as the command line has it
        self.level = start
        self._apply = apply
        self._until: datetime | None = None

    def change(self, level: str, *, until: datetime | None = None) -> None:
        """Use another level. `until` is for the status: the caller sets the level back at that time."""
        self._apply(level)
        self.level, self._until = level, until

    @property
    def changed(self) -> LogLevelStatus | None:
        """The level, if it is not the one of the start; else None."""
        return None if self.level == self.start else LogLevelStatus(self.level, self.start, self._until)
