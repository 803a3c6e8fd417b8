"""Pre-flight: what is declared is imported in a child process first, with a time limit.

`list_plugins` asks the same way whether installed plugins can be used, for `declctl plugins list`: a plugin
that hangs, ends the process or crashes when it is imported is one line of the list, and takes neither the
others nor the command line down.
"""

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from declctl.hooks import parser
from declctl.hooks.plugins import installed
from declctl.kit import yield_interpreter
from declctl.runtime.checking.loaded_code import Declaration, DeclaredEntry, Fault, FromHooks, ListedPlugin
from declctl.runtime.checking.preflight_pool import Ending, PreflightProcess

_ENDED = "DCL044"
_TOO_LONG = "DCL045"
_FRAME = re.compile(rb'  File "(.*)", line (\d+) in ')
_HOST = str(Path(__file__).parents[2])
_SECONDS = 10.0  # for all plugins, and a little for each besides
_SECONDS_EACH = 0.5


class _ImportReport(msgspec.Struct):
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
        self._child: PreflightProcess | None = None  # the last one; written by `run`'s thread
        self._given_up = threading.Event()
        self._stack: Sequence[_Frame] = ()  # of an import that did not end well, the innermost first

    def run(self, declaration: Declaration, *, timeout: float) -> PreflightResult:
        """Build the declaration's plugin table in a child process; returns what was found.

        Blocks, but whatever the child does, for no more than `timeout` seconds and a little. If the
        child ends before it has begun, another takes its place. Raises OSError if no process can be started.
        """
        report, ending = self._ask(declaration, timeout)
        # It was killed before it began, maybe with the process it was forked from: the code is not to blame.
        if report is None and not ending.closed:
            report, ending = self._ask(declaration, timeout)
        return _result_of(declaration, report, ending, timeout, self._stack)

    def give_up(self) -> None:
        """Nobody wants to know any longer: `run` returns soon; from any thread."""
        self._given_up.set()
        if self._child is not None:
            self._child.close()

    def _ask(self, declaration: Declaration, timeout: float) -> tuple[_ImportReport | None, Ending]:
        """What the child has said last, None if it never began, and how it has ended."""
        asked = msgspec.json.encode(declaration)
        child = self._child = self._begin()
        # `give_up` may have come before there was a child to close.
        if self._given_up.is_set():
            child.close()
        yield_interpreter()
        lines, ending = child.ask(asked, limit=timeout)
        self._stack = [
            _Frame(found[1].decode(), int(found[2])) for found in map(_FRAME.match, lines) if found
        ]
        return _last(lines), ending


def _last(lines: Sequence[bytes]) -> _ImportReport | None:
    """All reports in one; None without any."""
    last: _ImportReport | None = None
    for line in lines:
        try:
            report = msgspec.json.decode(line, type=_ImportReport)
        except msgspec.MsgspecError:
            break  # cut off where the process ended
        if report.at is None and last is not None:
            report.at = last.at
        last = report
    return last


def _result_of(
    declaration: Declaration,
    report: _ImportReport | None,
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
    # The innermost line of the user's own files is where to look; code that it calls is named otherwise.
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


def _unfinished(entries: Sequence[DeclaredEntry], at: int | None, code: str, what: str) -> Fault:
    if at is None or at >= len(entries):
        return Fault(code, f"the handlers could not be checked: {what}", ())
    entry = entries[at]
    advice = "an import should only define things: move work into declctl_prepare or declctl_startup"
    return Fault(code, f"{entry.entry_point or entry.plugin}: {what}", entry.path, advice)


class _ListingReport(msgspec.Struct):
    plugin: ListedPlugin | None = None


def list_plugins(
    begin: Callable[[], PreflightProcess], *, seconds: float = _SECONDS
) -> Sequence[ListedPlugin]:
    """Every installed plugin, examined in children that `begin` gives. Blocks.

    If a child does not come to its end, the plugin that it was importing is quarantined, and another child
    goes on with the plugins after it. A child has `seconds`, and half a second more for each plugin.
    Raises OSError if no process can be started.
    """
    waiting, found = list(installed()), list[ListedPlugin]()
    while waiting:
        limit = seconds + _SECONDS_EACH * len(waiting)
        names = tuple((plugin.name, plugin.distribution) for plugin in waiting)
        child = begin()
        asked = Declaration(root="", folder=b"", files={}, entries=(), plugins=(), examined=names)
        lines, ending = child.ask(msgspec.json.encode(asked), limit=limit)
        known = _listed(lines)
        found += known
        if len(known) < len(waiting):
            # Plugins are imported in order: the first without a report is the one that ended the child.
            culprit, reason = (
                waiting[len(known)],
                f"importing it ended the process ({how_it_ended(ending.status)})",
            )
            if ending.closed:
                reason = f"importing it took longer than {limit:g} s"
            found.append(
                ListedPlugin(culprit.name, culprit.distribution, culprit.version, (), "Quarantined", reason)
            )
        waiting = waiting[len(known) + 1 :]
    return found


def _listed(lines: Sequence[bytes]) -> list[ListedPlugin]:
    """What a child has said of plugins, in their order; a stack that a crash wrote is left out."""
    found: list[ListedPlugin] = []
    for line in lines:
        try:
            report = msgspec.json.decode(line, type=_ListingReport)
        except msgspec.MsgspecError:
            continue
        if report.plugin is not None:
            found.append(report.plugin)
    return found
