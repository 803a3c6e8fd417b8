"""Pre-flight: what is declared is imported in a child process first, with a time limit."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from declctl.hooks import parser
from declctl.kit.breathing import REST_SECONDS
from declctl.runtime.checking.declared import Declaration, Entry, Fault, FromHooks
from declctl.runtime.checking.preflight_process import Ending, PreflightProcess

_ENDED = "DCL044"
_TOO_LONG = "DCL045"
_FRAME = re.compile(rb'  File "(.*)", line (\d+) in ')
_HOST = str(Path(__file__).parents[2])


class _Report(msgspec.Struct):
    at: int | None = None  # the entry that is being imported
    faults: list[Fault] | None = None  # the last word
    hooks: FromHooks | None = None  # with it, unless there are faults
    seconds: float = 0.0  # with it: how long the import took


class _Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int


class PreflightResult(NamedTuple):
    """What a pre-flight has found: what is wrong, or else what hooks add to the caches.

    `seconds` is how long the import took, without the start of the process; 0 if it did not end.
    """

    faults: Sequence[Fault]
    hooks: FromHooks | None = None
    seconds: float = 0.0


class Preflight:
    """One pre-flight. `begin` gives it a child, and raises OSError if no process can be started."""

    def __init__(self, begin: Callable[[], PreflightProcess]) -> None:
        self._begin = begin
        self._child: PreflightProcess | None = None
        self._given_up = threading.Event()
        self._stack: Sequence[_Frame] = ()  # of an import that did not end well, the innermost first

    def run(self, declaration: Declaration, *, timeout: float) -> PreflightResult:
        """Build the declaration's plugin table in a child process; returns what was found.

        Blocks, but whatever the child does, for no more than `timeout` seconds and a little. If the
        child ends before it has begun, another takes its place. Raises OSError if no process can be started.
        """
        report, ending = self._ask(declaration, timeout)
        if report is None and not ending.closed:
            report, ending = self._ask(declaration, timeout)
        return _landed(declaration, report, ending, timeout, self._stack)

    def give_up(self) -> None:
        """Nobody wants to know any longer: `run` returns soon; from any thread."""
        self._given_up.set()
        if self._child is not None:
            self._child.close()

    def _ask(self, declaration: Declaration, timeout: float) -> tuple[_Report | None, Ending]:
        """What the child has said last, None if it never began, and how it has ended."""
        asked = msgspec.json.encode(declaration)
        child = self._child = self._begin()
        if self._given_up.is_set():
            child.close()
        time.sleep(REST_SECONDS)
        lines, ending = child.ask(asked, limit=timeout)
        self._stack = [
            _Frame(found[1].decode(), int(found[2])) for found in map(_FRAME.match, lines) if found
        ]
        return _last(lines), ending


def _last(lines: Sequence[bytes]) -> _Report | None:
    """All reports in one; None without any."""
    last: _Report | None = None
    for line in lines:
        try:
            report = msgspec.json.decode(line, type=_Report)
        except msgspec.MsgspecError:
            break  # cut off where the process ended
        if report.at is None and last is not None:
            report.at = last.at
        last = report
    return last


def _landed(
    declaration: Declaration,
    report: _Report | None,
    ending: Ending,
    timeout: float,
    stack: Sequence[_Frame],
) -> PreflightResult:
    if report is not None and report.faults is not None:
        return PreflightResult(report.faults, report.hooks, report.seconds)
    at = None if report is None else report.at
    code, what, when = _TOO_LONG, f"importing it took longer than {timeout:g} s", "when the time was over"
    if not ending.closed:
        code, what, when = _ENDED, f"importing it ended the process ({how_it_ended(ending.status)})", "then"
    fault = _unfinished(declaration.entries, at, code, what)
    return PreflightResult([_at_line(declaration, fault, stack, when)])


def _at_line(declaration: Declaration, fault: Fault, stack: Sequence[_Frame], when: str) -> Fault:
    """The fault at the handler's line that ran at the end; in other code, with that line named."""
    is_compiling = any(frame.file == parser.__file__ for frame in stack)
    if is_compiling:
        message = f"{fault.message}; a large source was being compiled {when}"
        fault = structs.replace(fault, message=message, suggestion=parser.TooCostly.suggestion)
    own = {declaration.bundle.display(path) for path in declaration.files}
    inside = next((frame for frame in stack if frame.file in own), None)
    if inside is not None:
        message = f"{fault.message}; this line ran {when}"
        return structs.replace(fault, message=message, file=inside.file, line=inside.line)
    other = next((frame for frame in stack if not frame.file.startswith((_HOST, "<frozen"))), None)
    if other is None or is_compiling:
        return fault
    return structs.replace(fault, message=f"{fault.message}; {other.file}:{other.line} ran {when}")


def how_it_ended(status: int | None) -> str:
    """The status of a process, as of `subprocess`, in words."""
    if status is None:
        return "nobody knows how"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _unfinished(entries: Sequence[Entry], at: int | None, code: str, what: str) -> Fault:
    if at is None or at >= len(entries):
        return Fault(code, f"the handlers could not be checked: {what}", ())
    entry = entries[at]
    advice = "an import should only define things: move work into declctl_prepare or declctl_startup"
    return Fault(code, f"{entry.entry_point or entry.plugin}: {what}", entry.path, advice)
