"""Pre-flight: what is declared is imported in a child process first, with a time limit."""

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from declctl.kit.breathing import REST_SECONDS
from declctl.runtime.checking.aside import Aside, Ending
from declctl.runtime.checking.declared import Declaration, Entry, Fault, FromHooks

_ENDED = "DCL044"
_TOO_LONG = "DCL045"


class _Report(msgspec.Struct):
    at: int | None = None  # the entry that is being imported
    faults: list[Fault] | None = None  # the last word
    hooks: FromHooks | None = None  # with it, unless there are faults


class Begin(Protocol):
    """Begins a child."""

    def __call__(self, *, patient: bool) -> Aside:
        """Raises OSError if no process can be started."""
        ...


class Landed(NamedTuple):
    """What a pre-flight has found: what is wrong, or else what hooks add to the caches."""

    faults: Sequence[Fault]
    hooks: FromHooks | None = None


class Preflight:
    """One pre-flight. `begin` gives it a child, patient or not."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._child: Aside | None = None
        self._given_up = threading.Event()

    def run(self, declaration: Declaration, *, timeout: float) -> Landed:
        """Build the declaration's plugin table in a child process; returns what was found.

        Blocks, but whatever the child does, for no more than `timeout` seconds and a little. If the
        child ends before it has begun, or can't get on because others have the processors, another, less
        patient one takes its place. Raises OSError if no process can be started.
        """
        report, ending = self._ask(declaration, timeout, patient=True)
        if ending.starved or (report is None and not ending.closed):
            report, ending = self._ask(declaration, timeout, patient=False)
        return _landed(declaration, report, ending, timeout)

    def give_up(self) -> None:
        """Nobody wants to know any longer: `run` returns soon; from any thread."""
        self._given_up.set()
        if self._child is not None:
            self._child.close()

    def _ask(
        self, declaration: Declaration, timeout: float, *, patient: bool
    ) -> tuple[_Report | None, Ending]:
        """What the child has said last, None if it never began, and how it has ended."""
        asked = msgspec.json.encode(declaration)
        child = self._child = self._begin(patient=patient)
        if self._given_up.is_set():
            child.close()
        time.sleep(REST_SECONDS)
        lines, ending = child.ask(asked, limit=timeout)
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


def _landed(declaration: Declaration, report: _Report | None, ending: Ending, timeout: float) -> Landed:
    if report is not None and report.faults is not None:
        return Landed(report.faults, report.hooks)
    code, what = _TOO_LONG, f"importing it took longer than {timeout:g} s"
    if not ending.closed:
        code, what = _ENDED, f"importing it ended the process ({_how(ending.status)})"
    at = None if report is None else report.at
    return Landed([_unfinished(declaration.entries, at, code, what)])


def _how(status: int | None) -> str:
    if status is None:
        return "nobody knows how"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _unfinished(entries: Sequence[Entry], at: int | None, code: str, what: str) -> Fault:
    if at is None or at >= len(entries):
        return Fault(code, f"the handlers could not be checked: {what}", ())
    entry = entries[at]
    advice = "an import should only define things: move work into declctl_prepare or declctl_startup"
    return Fault(code, f"{entry.entry_point or entry.plugin}: {what}", entry.path, advice)
