"""Logs of declctl, of handlers and of libraries: all lines are written by one chain of structlog.

Handlers and libraries may use `ctx.log`, structlog or the logging module, under any logger name. Entries of
`--log-level` and above go to stderr; what handlers `print` goes to stdout unchanged. An entry becomes one
line: a sentence for people (`TextLines`) or JSON for programs (`JsonLines`). These two are the last processor
of the chain.

Log lines and a progress line share one `Screen`: a log line is written above the progress line. Any thread
may write. When the reader of stderr is gone, writing stops and the process goes on.
"""

import asyncio
import json
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, TextIO, cast

import structlog

from declctl.cli.terminal import has_colour
from declctl.hooks.calls import current_arguments
from declctl.kit import Clock
from declctl.kit.secret_values import secret_values
from declctl.kit.text import escaped, exception_text, one_line, visible
from declctl.manifest import render_json, render_text
from declctl.runtime.reporting.status import ResourceStatus
from declctl.runtime.runtime import Runtime
from declctl.runtime.tracing import current_ids

Entry = MutableMapping[str, Any]

_PLAIN, _DIM = "\x1b[0m", "\x1b[2m"
_MARKS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m", "debug": _DIM}
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)')
_HEAD = "Traceback (most recent call last):"
_OUR_OWN = frozenset(
    (
        *("handler", "key", "generation", "resource", "reason", "suggestion", "plugin", "hook"),
        *("attempt", "max_attempts", "retry_in", "error_type", "error", "times", "logger"),
    )
)
"""The fields of declctl's own lines. Most of their sentences contain these values already."""

# Not among the fields of a line of text: ids are for programs, which read JSON.
_BESIDE = (
    *("level", "event", "timestamp", "traceback", "diagnostics"),
    *("event_id", "trace_id", "span_id"),
)
OWN_LOGGER = "declctl"
"""The field `logger` of declctl's own lines; a library has its name there, and `ctx.log` has none."""


_ERASE = "\r\x1b[2K"
_EVERY = 0.25  # seconds
_PATIENCE = 1.0  # seconds before the progress line is shown: most lists are complete by then


class Screen:
    """A stream of whole lines, with at most one progress line below them. Any thread may use it."""

    def __init__(self, stream: TextIO) -> None:
        self.is_terminal = stream.isatty()
        self.has_colour = has_colour(stream)
        self._stream = stream
        self._lock = threading.Lock()
        self._progress = ""

    def line(self, text: str) -> None:
        """Write a line, or several."""
        with self._lock:
            self._write(f"{_ERASE if self._progress else ''}{text}\n{self._progress}")

    def progress(self, text: str) -> None:
        """Replace the progress line; an empty text removes it. Does nothing where the stream is no terminal.

        The cursor stays at the beginning of the line, so that the output of handlers starts in column 1.
        """
        if not self.is_terminal:
            return
        with self._lock:
            if not (text or self._progress):
                return
            self._progress = f"{text}\r" if text else ""
            self._write(f"{_ERASE}{self._progress}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed, or a pipe without a reader
            return


def progress_line(resources: Iterable[ResourceStatus]) -> str:
    """`pods: 12,500 listed…` for each resource whose list is under way; empty when there is none."""
    listing = [f"{r.name}: {r.items_listed:,} listed…" for r in resources if not r.synced and r.items_listed]
    return "  ".join(listing)


def progress(screen: Screen, clock: Clock) -> Callable[[Runtime], AbstractAsyncContextManager[None]]:
    """A front that shows a progress line until all resources have synced for the first time."""

    @asynccontextmanager
    async def front(runtime: Runtime) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(_follow(runtime, screen, clock), name="progress line")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            screen.progress("")

    return front


async def _follow(runtime: Runtime, screen: Screen, clock: Clock) -> None:
    # Most lists are complete before that: a line that flashes up has no use.
    await clock.sleep(_PATIENCE)
    shown = ""
    while True:
        figures = runtime.status()
        line = progress_line(figures.resources)
        if line != shown:
            screen.progress(line)
            shown = line
        if figures.generation and all(resource.synced for resource in figures.resources):
            return
        await clock.sleep(_EVERY)


class TextLines:
    """Lines such as `12:00:01 generation 7: ~handler notify (code)`.

    A line has the time, the level unless it is `info`, the sentence, and the fields. A field of declctl's own
    lines is left out if its value is None or stands in the sentence; a line of a handler or a library has all
    of its fields, but for ids of events and traces. A `traceback` follows below, with handler and key in its
    head.

    `local_time`: the hour of this machine, for people at a terminal; else the moment in UTC (RFC 3339).
    """

    def __init__(self, *, colour: bool, local_time: bool = True) -> None:
        self._colour = colour
        self._local_time = local_time

    def __call__(self, _logger: object, _method: str, entry: Entry) -> str:
        """One entry as text, without the last line end."""
        level = str(entry.get("level", "info"))
        moment: datetime = entry["timestamp"]
        sentence = visible(str(entry.get("event", "")))
        shown = moment.astimezone().strftime("%H:%M:%S") if self._local_time else _rfc3339(moment)
        parts = [self._paint(shown, _DIM)]
        if level in _MARKS:
            parts.append(self._paint(level, _MARKS[level]))
        # Further lines of the sentence are indented, so that none of them looks like a line of the log.
        parts.append(sentence.replace("\n", "\n  "))
        is_own = entry.get("logger") == OWN_LOGGER
        fields = [
            f"{one_line(name)}={_shown(value)}"
            for name, value in entry.items()
            if name not in _BESIDE and not (is_own and _is_said(name, value, sentence))
        ]
        if fields:
            parts.append(self._paint(" ".join(fields), _DIM))
        line = " ".join(parts)
        if trace := entry.get("traceback"):
            line = f"{line}\n{self._traceback(str(trace), entry)}"
        if faults := entry.get("diagnostics"):
            shown = render_text(faults, color=self._colour).rstrip("\n")
            line = f"{line}\n{indent(shown, '  ')}"
        return line

    def _traceback(self, trace: str, entry: Mapping[str, Any]) -> str:
        whose = " on ".join(str(entry[name]) for name in ("handler", "key") if entry.get(name))
        if whose:
            trace = trace.replace(_HEAD, f"Traceback of {whose} (most recent call last):", 1)
        lines = visible(trace).rstrip("\n").split("\n")
        return "\n".join(f"  {self._tinted(line)}" for line in lines)

    def _tinted(self, line: str) -> str:
        if not self._colour:
            return line
        if _FRAME.match(line):
            return _FRAME.sub('  File "\x1b[36m\\g<file>\x1b[0m", line \x1b[36m\\g<line>\x1b[0m', line)
        return line if line.startswith((" ", "Traceback")) or not line else self._paint(line, _MARKS["error"])

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colour else text


class JsonLines:
    """One object a line: `ts`, `level`, `event`, `controller` (once its name is known), then the fields.

    A line that names no generation has the one that runs (`generation`; 0 before the first).
    """

    def __init__(
        self, controller: Callable[[], str] = lambda: "", generation: Callable[[], int] = lambda: 0
    ) -> None:
        self._controller = controller
        self._generation = generation

    def __call__(self, _logger: object, _method: str, entry: Entry) -> str:
        """One entry as JSON; a value that JSON can't represent is written as text."""
        moment: datetime = entry.pop("timestamp")
        head = {
            "ts": _rfc3339(moment),
            "level": entry.pop("level", "info"),
            "event": entry.pop("event", ""),
        }
        if name := self._controller():
            head["controller"] = name
        if "diagnostics" in entry:
            entry["diagnostics"] = render_json(entry["diagnostics"])
        fields = {**head, **entry}
        if "generation" not in fields and (number := self._generation()):
            fields["generation"] = number
        try:
            return escaped(json.dumps(fields, default=_plain, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            # Each field alone: only the one that JSON can't represent becomes text.
            written = (f"{json.dumps(str(name))}: {_json(value)}" for name, value in fields.items())
            return escaped(f"{{{', '.join(written)}}}")


def _json(value: object) -> str:
    """A value as JSON. What JSON can't represent, such as nan, becomes text."""
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_text(value), ensure_ascii=False)


def _plain(value: object) -> object:
    """A mapping, a list or a text in the place of a value that JSON can't represent."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, set | frozenset | deque):
        return list(cast("Iterable[object]", value))
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as fault:  # noqa: BLE001 - a `__str__` of user code: the line is written all the same
        return f"<{type(value).__name__}: {type(fault).__name__}>"


Renderer = Callable[[object, str, Entry], str]


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_said(name: str, value: object, sentence: str) -> bool:
    """Whether a field of a line of declctl's own adds nothing: its sentence has the value, or there is none.

    A number counts only together with its name.
    """
    if name not in _OUR_OWN:
        return False
    if value is None or name == "logger":
        return True
    text = visible(str(value))
    said = f"{name} {text}" if isinstance(value, int | float) else text
    return not said or re.search(rf"(?<![\w-]){re.escape(said)}(?![\w-])", sentence) is not None


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    text = visible(text).replace("\n", "\\n")
    return f'"{text}"' if isinstance(value, str) and (not text or " " in text) else text


_LINE = "declctl.informer"
_NOTICES = "declctl.informer.notices"  # what the runtime does not log by itself
_WATCHER = "watchfiles"  # it logs each notice: a log in the folder of the manifest would feed itself
_WARNINGS = "py.warnings"  # of the module warnings; its messages end with a line end
_GENERATION = re.compile(r"^_declctl_gen\.g\w+?\.")  # the package of the handler modules of a generation


_CLIENT = "kubernetes"  # the official client: below INFO it logs whole answers, which may have Secrets
_OF_RECORDS = {
    *vars(logging.makeLogRecord({})),
    "message",
    "asctime",
}  # all other attributes are fields of `extra`
_FilteringLogger: Any = type(
    "FilteringLogger", (structlog.make_filtering_bound_logger(logging.INFO),), {}
)  # of `ctx.log` and of declctl's own lines
_LEVELS = ("critical", "error", "warning", "info")
_NUMBERS = logging.getLevelNamesMapping()
_OF_LINES = ("timestamp", "level", "ts", "controller")  # names that every line has of its own


def _standard(level: int) -> str:
    """The standard level at or below a number of the logging module; libraries have others, too."""
    return next((name for name in _LEVELS if level >= _NUMBERS[name.upper()]), "debug")


class ControllerName:
    """The values of `controller` and `generation` in JSON lines; empty until the manifest is read."""

    def __init__(self) -> None:
        self.name = ""
        self.generation: Callable[[], int] = lambda: 0  # the generation that runs


class ScreenLogger:
    """The logger at the end of structlog's chain: each level writes the finished line to the screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def msg(self, line: str) -> None:
        """Write a line."""
        self._screen.line(line)

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class LibraryLogs(logging.Handler):
    """A handler of the logging module that passes records on to structlog."""

    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on. A faulty record is reported by the logging module (`handleError`)."""
        try:
            fields = {name: value for name, value in vars(record).items() if name not in _OF_RECORDS}
            if "event" in fields:  # the name of structlog's own parameter
                fields["event_"] = fields.pop("event")
            fields["logger"] = _GENERATION.sub("", record.name)
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            if record.stack_info:
                fields["stack"] = record.stack_info
            # A library does not know for which event it is called.
            arguments = current_arguments() or {}
            subject: Any = arguments.get("change") or arguments.get("request")
            if subject is not None:
                fields.setdefault("key", str(subject.key))
                fields.setdefault("event_id", subject.id)
            message = record.getMessage()
            if record.name == _WARNINGS:
                message = message.rstrip("\n")
            getattr(self._log, _standard(record.levelno))(message, **fields)
        except Exception:  # noqa: BLE001 - arguments that a library, or a handler, formats wrongly
            self.handleError(record)


def set_up_logs(
    screen: Screen,
    *,
    form: str,
    level: str,
    clock: Clock,
    controller: ControllerName | None = None,
) -> Any:
    """Send all logs to `screen`; returns the first logger. `change_level` changes the level later.

    `form` is `text` or `json`, `level` the lowest level that is written. JSON lines have the name of the
    `controller`.
    """
    renderer: Renderer
    if form == "text":
        renderer = TextLines(colour=screen.has_colour, local_time=screen.is_terminal)
    else:
        named = controller or ControllerName()
        # Both are known later.
        renderer = JsonLines(lambda: named.name, lambda: named.generation())  # noqa: PLW0108
    structlog.configure(
        processors=_chain(clock, renderer),
        wrapper_class=_FilteringLogger,
        logger_factory=lambda *_: ScreenLogger(screen),
        cache_logger_on_first_use=False,
    )
    log = structlog.get_logger()
    # Else the warnings of Python and of libraries would go to stderr as they are.
    logging.captureWarnings(capture=True)
    root = logging.getLogger()
    # All handlers are replaced, as a handler of another library would write its own lines.
    root.handlers[:] = [LibraryLogs(log)]
    change_level(level)
    return log


def change_level(level: str) -> None:
    """Write entries of this level and above from now on. It holds for all loggers, also those made before.

    From any thread, after `set_up_logs`.
    """
    lowest = logging.getLevelNamesMapping()[level.upper()]
    # structlog has a class for each level, whose methods below that level do nothing. All loggers are of one
    # class, whose base is exchanged: so a line that is left out still costs nothing.
    _FilteringLogger.__bases__ = (structlog.make_filtering_bound_logger(lowest),)
    logging.getLogger().setLevel(lowest)
    logging.getLogger(_CLIENT).setLevel(max(lowest, logging.INFO))
    # The runtime logs faults of LIST and WATCH once for each resource.
    logging.getLogger(_LINE).setLevel(lowest if lowest == logging.DEBUG else max(lowest, logging.ERROR))
    logging.getLogger(_NOTICES).setLevel(lowest)
    logging.getLogger(_WATCHER).setLevel(max(lowest, logging.WARNING))


def _chain(clock: Clock, renderer: Renderer) -> Sequence[Any]:
    def stamp(_logger: object, _method: str, entry: Entry) -> Entry:
        entry["timestamp"] = clock.now()
        return entry

    return [
        _keep_fields,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        stamp,
        _error_fields,
        _trace_fields,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _traceback,
        _hide_secrets,
        renderer,
    ]


def _keep_fields(_logger: object, _method: str, entry: Entry) -> Entry:
    """Rename a handler's field that has the name of a field of every line, so that neither is lost."""
    for name in _OF_LINES:
        if name in entry:
            entry[f"{name}_"] = entry.pop(name)
    return entry


def _error_fields(_logger: object, _method: str, entry: Entry) -> Entry:
    """Add the class and the text of an exception, apart from its traceback."""
    given = entry.get("exc_info")
    error = given[1] if isinstance(given, tuple) else sys.exc_info()[1] if given is True else given
    if isinstance(error, BaseException):
        entry.setdefault("error_type", type(error).__name__)
        entry.setdefault("error", exception_text(error))
    return entry


def _trace_fields(_logger: object, _method: str, entry: Entry) -> Entry:
    """Add the ids of the current span, so that a trace leads to its lines and back."""
    for name, value in current_ids().items():
        entry.setdefault(name, value)
    return entry


def _traceback(_logger: object, _method: str, entry: Entry) -> Entry:
    """Rename the field of an exception from structlog's `exception` to `traceback`."""
    if "exception" in entry:
        entry.setdefault("traceback", entry.pop("exception"))
    return entry


def _hide_secrets(_logger: object, _method: str, entry: Entry) -> Entry:
    """Hide values of Secrets in the texts of a line, those of handlers included."""
    for name, value in entry.items():
        if isinstance(value, str):
            entry[name] = secret_values.hide(value)
        elif not isinstance(value, int | float | datetime | None):
            # Such a field is shown as its text. It stays as it is unless the text has a secret.
            text = _text(value)
            hidden = secret_values.hide(text)
            if hidden != text:
                entry[name] = hidden
    return entry


def stderr_screen() -> Screen:
    """The screen of this process."""
    return Screen(sys.stderr)
