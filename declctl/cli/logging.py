"""Logs: declctl's own, those of handlers and those of libraries, by one way out.

Handlers may use `ctx.log`, structlog or the logging module. All of it goes to stderr; what handlers
`print` goes to stdout, untouched.
"""

import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

from declctl.cli.lines import Entry, JsonLines, Renderer, TextLines
from declctl.cli.options import LogFormat, LogLevel
from declctl.cli.screen import Screen
from declctl.kit import Clock
from declctl.kit.logs import structlog

_LINE = "declctl.informer"
_HANDLERS = "_declctl_gen"  # below this package handler modules are imported, and so are their loggers named
_GENERATION = re.compile(rf"^{_HANDLERS}\.g\d+\.")


class ScreenLogger:
    """The end of structlog's chain: every level writes the finished line."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def msg(self, line: str) -> None:
        """Write a line."""
        self._screen.line(line)

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class LibraryLogs(logging.Handler):
    """Records of the logging module, handed to structlog."""

    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on; what is wrong with a record is the logging module's business to tell."""
        try:
            fields: dict[str, Any] = {"logger": _GENERATION.sub("", record.name)}
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            self._log.log(record.levelno, record.getMessage(), **fields)
        except Exception:  # noqa: BLE001 - arguments that a library, or a handler, formats wrongly
            self.handleError(record)


def set_up_logs(screen: Screen, *, form: LogFormat, level: LogLevel, clock: Clock) -> Any:
    """Send all logs to `screen`; returns the logger to begin with."""
    lowest = logging.getLevelNamesMapping()[level.upper()]
    renderer: Renderer = TextLines(colour=screen.has_colour) if form is LogFormat.TEXT else JsonLines()
    structlog.configure(
        processors=_chain(clock, renderer),
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=lambda *_: ScreenLogger(screen),
        cache_logger_on_first_use=False,
    )
    log = structlog.get_logger()
    root = logging.getLogger()
    root.handlers[:] = [LibraryLogs(log)]
    root.setLevel(max(lowest, logging.WARNING))
    logging.getLogger(_HANDLERS).setLevel(lowest)
    # What the line meets on the way is told once for each resource, by the runtime.
    logging.getLogger(_LINE).setLevel(lowest if lowest == logging.DEBUG else max(lowest, logging.ERROR))
    return log


def _chain(clock: Clock, renderer: Renderer) -> Sequence[Any]:
    def stamp(_logger: object, _method: str, entry: Entry) -> Entry:
        entry["timestamp"] = clock.now()
        return entry

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        stamp,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _traceback,
        renderer,
    ]


def _traceback(_logger: object, _method: str, entry: Entry) -> Entry:
    """Structlog calls it `exception`, declctl `traceback`."""
    if "exception" in entry:
        entry.setdefault("traceback", entry.pop("exception"))
    return entry


def stderr_screen() -> Screen:
    """The screen of this process."""
    return Screen(sys.stderr)
