"""Logs: declctl's own, those of handlers and those of libraries, by one way out.

Handlers and libraries may use `ctx.log`, structlog or the logging module, under any logger name. All of it
goes to stderr, from `--log-level` on; what handlers `print` goes to stdout, untouched.
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
_NOTICES = "declctl.informer.notices"  # what the runtime does not tell by itself
_WATCHER = "watchfiles"  # it says how many files have changed; what came of it is a line of declctl
_GENERATION = re.compile(r"^_declctl_gen\.g\w+?\.")  # handler modules are imported below it


_CLIENT = "kubernetes"  # the official client: below INFO it logs whole answers, Secrets among them
_OF_RECORDS = {*vars(logging.makeLogRecord({})), "message", "asctime"}  # all else is what `extra` has brought
_LEVELS = ("critical", "error", "warning", "info")
_NUMBERS = logging.getLevelNamesMapping()
_OF_LINES = ("timestamp", "level", "ts", "controller")  # names that every line has of its own


def _standard(level: int) -> str:
    """The standard level that a number of the logging module belongs to: libraries have some of their own."""
    return next((name for name in _LEVELS if level >= _NUMBERS[name.upper()]), "debug")


class ControllerName:
    """The name that every JSON line has in `controller`; empty until the manifest was read."""

    def __init__(self) -> None:
        self.name = ""


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
            fields = {name: value for name, value in vars(record).items() if name not in _OF_RECORDS}
            if "event" in fields:  # the name of structlog's own parameter
                fields["event_"] = fields.pop("event")
            fields["logger"] = _GENERATION.sub("", record.name)
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            if record.stack_info:
                fields["stack"] = record.stack_info
            getattr(self._log, _standard(record.levelno))(record.getMessage(), **fields)
        except Exception:  # noqa: BLE001 - arguments that a library, or a handler, formats wrongly
            self.handleError(record)


def set_up_logs(
    screen: Screen,
    *,
    form: LogFormat,
    level: LogLevel,
    clock: Clock,
    controller: ControllerName | None = None,
) -> Any:
    """Send all logs to `screen`; returns the logger to begin with.

    JSON lines have the name of the `controller`.
    """
    lowest = logging.getLevelNamesMapping()[level.upper()]
    renderer: Renderer
    if form is LogFormat.TEXT:
        renderer = TextLines(colour=screen.has_colour)
    else:
        named = controller or ControllerName()
        renderer = JsonLines(lambda: named.name)
    structlog.configure(
        processors=_chain(clock, renderer),
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=lambda *_: ScreenLogger(screen),
        cache_logger_on_first_use=False,
    )
    log = structlog.get_logger()
    root = logging.getLogger()
    root.handlers[:] = [LibraryLogs(log)]
    root.setLevel(lowest)
    logging.getLogger(_CLIENT).setLevel(max(lowest, logging.INFO))
    # What the line meets on the way is told once for each resource, by the runtime.
    logging.getLogger(_LINE).setLevel(lowest if lowest == logging.DEBUG else max(lowest, logging.ERROR))
    logging.getLogger(_NOTICES).setLevel(lowest)
    logging.getLogger(_WATCHER).setLevel(lowest if lowest == logging.DEBUG else max(lowest, logging.WARNING))
    return log


def _chain(clock: Clock, renderer: Renderer) -> Sequence[Any]:
    def stamp(_logger: object, _method: str, entry: Entry) -> Entry:
        entry["timestamp"] = clock.now()
        return entry

    return [
        _keep_fields,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        stamp,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _traceback,
        renderer,
    ]


def _keep_fields(_logger: object, _method: str, entry: Entry) -> Entry:
    """A field of a handler that is named as one of every line gets another name, so that neither is lost."""
    for name in _OF_LINES:
        if name in entry:
            entry[f"{name}_"] = entry.pop(name)
    return entry


def _traceback(_logger: object, _method: str, entry: Entry) -> Entry:
    """Structlog calls it `exception`, declctl `traceback`."""
    if "exception" in entry:
        entry.setdefault("traceback", entry.pop("exception"))
    return entry


def stderr_screen() -> Screen:
    """The screen of this process."""
    return Screen(sys.stderr)
