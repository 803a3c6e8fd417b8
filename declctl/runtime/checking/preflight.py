"""Pre-flight: the declared user code is first imported in a child process, with a time limit.

`list_plugins` imports installed plugins the same way, for `declctl plugins list`. A plugin whose import
hangs, exits or crashes is one line of the list, and ends neither the others nor the command.
"""

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from declctl.codes import IMPORT_EXITED, IMPORT_TOO_LONG
from declctl.hooks import parser
from declctl.kit import yield_interpreter
from declctl.kit.memory import too_much
from declctl.runtime.checking.declaration import (
    Declaration,
    DeclaredEntry,
    DeclaredPlugin,
    Fault,
    FromHooks,
    ListedPlugin,
)
from declctl.runtime.checking.preflight_pool import Ending, PreflightProcess

_FRAME = re.compile(rb'  File "(.*)", line (\d+) in ')
_HOST = str(Path(__file__).parents[2])
_SECONDS = 10.0  # time limit of `list_plugins` for all plugins
_DEFINE = "an import should only define things: move work into declctl_prepare or declctl_startup"
_SECONDS_EACH = 0.5  # added for each plugin


class _ImportReport(msgspec.Struct):
    plugin: int | None = None  # the index of the plugin that is being imported, before all entries
    at: int | None = None  # the index of the entry that is being imported
    faults: list[Fault] | None = None  # only in the last report, as are the fields below
    hooks: FromHooks | None = None  # None if there are errors
    seconds: float = 0.0  # duration of the import


class _Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int


class PreflightResult(NamedTuple):
    """The result of a pre-flight."""

    faults: Sequence[Fault]
    hooks: FromHooks | None = None  # that hooks add to the caches; None if there are errors
    seconds: float = 0.0  # duration of the import, without the start of the process; 0 if it did not end


class Preflight:
    """One pre-flight. `begin` starts a child, and raises OSError if no process can be started."""

    def __init__(self, begin: Callable[[], PreflightProcess]) -> None:
        self._begin = begin
        self._child: PreflightProcess | None = None  # the last one; written by `run`'s thread
        self._given_up = threading.Event()
        self._stack: Sequence[_Frame] = ()  # of an import that did not complete, the innermost frame first

    def run(self, declaration: Declaration, *, timeout: float) -> PreflightResult:
        """Import the declared code in a child process. Blocks for `timeout` seconds and a little at most.

        If the child ends before it has begun, another takes its place. Raises OSError if no process can be
        started.
        """
        report, ending = self._ask(declaration, timeout)
        # The child was killed before it began, maybe with its server: the code is not to blame.
        if report is None and not ending.closed:
            report, ending = self._ask(declaration, timeout)
        return _result_of(declaration, report, ending, timeout, self._stack)

    def give_up(self) -> None:
        """End the child, so that `run` returns soon. From any thread."""
        self._given_up.set()
        if self._child is not None:
            self._child.close()

    def _ask(self, declaration: Declaration, timeout: float) -> tuple[_ImportReport | None, Ending]:
        """The combined reports of a new child (None if it never began), and its end."""
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
    """All reports combined; None without reports."""
    last: _ImportReport | None = None
    for line in lines:
        try:
            report = msgspec.json.decode(line, type=_ImportReport)
        except msgspec.MsgspecError:
            break  # cut off when the process ended
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
    code, when = IMPORT_EXITED, "then"
    if ending.memory:
        what = f"importing it {too_much(ending.memory, of_container=True)}"
    elif not ending.closed:
        what = f"importing it ended the process ({how_it_ended(ending.status)})"
    else:
        what = f"importing it took longer than {timeout:g} s"
        code, when = IMPORT_TOO_LONG, "when the time was over"
    plugin = None if report is None else report.plugin
    if at is None and plugin is not None and plugin < len(declaration.plugins):
        fault = _unfinished_plugin(declaration.plugins[plugin], code, what)
    else:
        fault = _unfinished(declaration.entries, at, code, what)
    if ending.memory:
        fault = structs.replace(fault, suggestion=f"{_DEFINE}, or raise the memory limit of the container")
    return PreflightResult([_at_line(declaration, fault, stack, when)])


def _at_line(declaration: Declaration, fault: Fault, stack: Sequence[_Frame], when: str) -> Fault:
    """The fault at the line of the handler files that ran at the end; else other code is named."""
    is_compiling = any(frame.file == parser.__file__ for frame in stack)
    if is_compiling:
        message = f"{fault.message}; a large source was being compiled {when}"
        fault = structs.replace(fault, message=message, suggestion=parser.TooCostly.suggestion)
    # The innermost line of the handler files is the useful one; without one, other code is named.
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
    """The status of a process, as in `subprocess`, in words."""
    if status is None:
        return "an unknown status"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _unfinished_plugin(declared: DeclaredPlugin, code: str, what: str) -> Fault:
    from declctl.hooks.plugins import installed  # late: `validate` does without importlib.metadata

    found = next((plugin for plugin in installed() if plugin.name == declared.name), None)
    who = f"the plugin {declared.name}" if found is None else found.described
    advice = "`declctl plugins list` imports it by itself; look for another version of it, or remove it"
    return Fault(code, f"{who}: {what}", (*declared.path, "name"), advice)


def _unfinished(entries: Sequence[DeclaredEntry], at: int | None, code: str, what: str) -> Fault:
    if at is None or at >= len(entries):
        return Fault(code, f"the handlers could not be checked: {what}", ())
    entry = entries[at]
    return Fault(code, f"{entry.entry_point or entry.plugin}: {what}", entry.path, _DEFINE)


class _ListingReport(msgspec.Struct):
    plugin: ListedPlugin | None = None


def list_plugins(
    begin: Callable[[], PreflightProcess], *, seconds: float = _SECONDS
) -> Sequence[ListedPlugin]:
    """Every installed plugin, imported in children that `begin` starts. Blocks.

    If a child does not complete, the plugin that it was importing is quarantined, and another child goes on
    with the plugins after it. A child has `seconds`, and half a second more for each plugin. Raises OSError
    if no process can be started.
    """
    from declctl.hooks.plugins import installed  # late: `validate` does without importlib.metadata

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
    """The plugins that a child has reported, in their order, without the stack that a crash writes."""
    found: list[ListedPlugin] = []
    for line in lines:
        try:
            report = msgspec.json.decode(line, type=_ListingReport)
        except msgspec.MsgspecError:
            continue
        if report.plugin is not None:
            found.append(report.plugin)
    return found
