"""Pre-flight: what is declared is imported in a child process first, with a time limit."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from declctl.runtime.aside import Aside
from declctl.runtime.declared import Declaration, Entry, Fault, FromHooks

_ENDED = "DCL044"
_TOO_LONG = "DCL045"


class _Report(msgspec.Struct):
    at: int | None = None  # the entry that is being imported
    faults: list[Fault] | None = None  # the last word
    hooks: FromHooks | None = None  # with it, unless there are faults


class Landed(NamedTuple):
    """What a pre-flight has found: what is wrong, or else what hooks add to the caches."""

    faults: Sequence[Fault]
    hooks: FromHooks | None = None


def preflight(declaration: Declaration, *, timeout: float, child: Aside | None = None) -> Landed:
    """Build the declaration's plugin table in a child process; returns what was found.

    Blocks, but whatever the child does, for no more than `timeout` seconds and a little. `child` is
    one that was started before; if it ends before it has begun, another takes its place. Raises
    OSError if no process can be started.
    """
    if child is not None:
        report, status = _ask(declaration, child, timeout)
        if report is not None or child.closed:
            return _landed(declaration, report, None if child.closed else status, timeout)
    child = Aside()
    report, status = _ask(declaration, child, timeout)
    return _landed(declaration, report, None if child.closed else status, timeout)


def _ask(declaration: Declaration, child: Aside, timeout: float) -> tuple[_Report | None, int]:
    """What the child has said last, None if it never began, and its exit status."""
    report: _Report | None = None

    def told(line: bytes) -> bool:
        nonlocal report
        report = report or _Report()
        try:
            latest = msgspec.json.decode(line, type=_Report)
        except msgspec.MsgspecError:
            return False  # cut off where the process ended
        report.at = report.at if latest.at is None else latest.at
        report.faults, report.hooks = latest.faults, latest.hooks
        return latest.faults is not None

    alarm = threading.Timer(timeout, child.close)
    alarm.daemon = True
    alarm.start()
    try:
        status = child.ask(msgspec.json.encode(declaration), told, limit=timeout)
    finally:
        alarm.cancel()
    return report, status


def _landed(declaration: Declaration, report: _Report | None, status: int | None, timeout: float) -> Landed:
    """`status` is None where the child was ended by us."""
    if report is not None and report.faults is not None:
        return Landed(report.faults, report.hooks)
    code, what = _TOO_LONG, f"importing it took longer than {timeout:g} s"
    if status is not None:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        code, what = _ENDED, f"importing it ended the process ({how})"
    at = None if report is None else report.at
    return Landed([_unfinished(declaration.entries, at, code, what)])


def _unfinished(entries: Sequence[Entry], at: int | None, code: str, what: str) -> Fault:
    if at is None or at >= len(entries):
        return Fault(code, f"the handlers could not be checked: {what}", ())
    entry = entries[at]
    advice = "an import should only define things: move work into declctl_prepare or declctl_startup"
    return Fault(code, f"{entry.entry_point or entry.plugin}: {what}", entry.path, advice)
