"""Pre-flight: what is declared is imported in a child process first, with a time limit."""

import threading
from collections.abc import Sequence

import msgspec

from declctl.runtime.aside import Aside
from declctl.runtime.declared import Declaration, Entry, Fault

_ENDED = "DCL044"
_TOO_LONG = "DCL045"


class _Report(msgspec.Struct):
    at: int | None = None  # the entry that is being imported
    faults: list[Fault] | None = None  # the last word


def preflight(declaration: Declaration, *, timeout: float, child: Aside | None = None) -> Sequence[Fault]:
    """Build the declaration's plugin table in a child process; returns what is wrong with it.

    Blocks, but whatever the child does, for no more than `timeout` seconds and a little. `child` is
    one that was started before.
    """
    child = child or Aside()
    report = _Report()

    def told(line: bytes) -> bool:
        try:
            latest = msgspec.json.decode(line, type=_Report)
        except msgspec.MsgspecError:
            return False  # cut off where the process ended
        report.at = report.at if latest.at is None else latest.at
        report.faults = latest.faults
        return latest.faults is not None

    alarm = threading.Timer(timeout, child.close)
    alarm.daemon = True
    alarm.start()
    try:
        status = child.ask(msgspec.json.encode(declaration), told)
    finally:
        alarm.cancel()
    if report.faults is not None:
        return report.faults
    if child.closed:
        what = f"importing it took longer than {timeout:g} s"
        return [_unfinished(declaration.entries, report.at, _TOO_LONG, what)]
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return [_unfinished(declaration.entries, report.at, _ENDED, f"importing it ended the process ({how})")]


def _unfinished(entries: Sequence[Entry], at: int | None, code: str, what: str) -> Fault:
    if at is None or at >= len(entries):
        return Fault(code, f"the handlers could not be checked: {what}", ())
    entry = entries[at]
    advice = "an import should only define things: move work into declctl_prepare or declctl_startup"
    return Fault(code, f"{entry.entry_point or entry.plugin}: {what}", entry.path, advice)
