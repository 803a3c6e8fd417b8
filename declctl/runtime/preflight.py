"""The child process in which a bundle is imported first.

What an import can do to a process (end it, hang it, crash it) it does there. The child builds the
same plugin table that the process would build, says on a pipe which entry it is at, and what is
wrong; the parent gives it a time limit.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from declctl.runtime.declared import Declaration, Entry, Fault

_MODULE = "declctl.runtime.preflight"
_ENDED = "DCL044"
_TOO_LONG = "DCL045"
_LONGEST_LINE = 16 * 1024 * 1024


class _Report(msgspec.Struct):
    at: int | None = None  # the entry that is being imported
    faults: list[Fault] | None = None  # the last word


async def preflight(declaration: Declaration, *, timeout: float) -> Sequence[Fault]:
    """Build the declaration's plugin table in a child process; returns what is wrong with it.

    Whatever the child does, this returns within `timeout` seconds and a little.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # modules of the current folder are the bundle's business
        "-m",
        _MODULE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        limit=_LONGEST_LINE,
    )
    report = _Report()
    try:
        async with asyncio.timeout(timeout):
            await _talk(child, msgspec.json.encode(declaration), report)
    except TimeoutError:
        what = f"importing it took longer than {timeout:g} s"
        return [_unfinished(declaration.entries, report.at, _TOO_LONG, what)]
    finally:
        _kill(child)
        await child.wait()
    if report.faults is not None:
        return report.faults
    status = child.returncode or 0
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return [_unfinished(declaration.entries, report.at, _ENDED, f"importing it ended the process ({how})")]


async def _talk(child: asyncio.subprocess.Process, declaration: bytes, report: _Report) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(declaration)
    child.stdin.close()
    async for line in child.stdout:
        try:
            told = msgspec.json.decode(line, type=_Report)
        except msgspec.MsgspecError:
            continue  # cut off where the process ended
        report.at = report.at if told.at is None else told.at
        report.faults = told.faults
        if told.faults is not None:
            return
    with suppress(TimeoutError):  # it has closed its end: give it a moment to end by itself, for its status
        async with asyncio.timeout(1.0):
            await child.wait()


def _unfinished(entries: Sequence[Entry], at: int | None, code: str, what: str) -> Fault:
    if at is None or at >= len(entries):
        return Fault(code, f"the handlers could not be checked: {what}", ())
    entry = entries[at]
    advice = "an import should only define things: move work into declctl_prepare or declctl_startup"
    return Fault(code, f"{entry.entry_point or entry.plugin}: {what}", entry.path, advice)


def _kill(child: asyncio.subprocess.Process) -> None:
    try:
        os.killpg(child.pid, 9)
    except ProcessLookupError:
        return


def main() -> None:
    """Be the child: read a declaration from stdin, write reports to what was stdout."""
    from declctl.runtime.foreign import build_foreign

    write = os.dup(1)
    os.dup2(2, 1)  # what the imported code prints must not be taken for a report

    def say(report: _Report) -> None:
        os.write(write, msgspec.json.encode(report) + b"\n")

    declaration = msgspec.json.decode(sys.stdin.buffer.read(), type=Declaration)
    _, faults = build_foreign(declaration, number=0, at=lambda index: say(_Report(at=index)))
    say(_Report(faults=list(faults)))
    # Threads and atexit functions of the imported code are nobody's business any longer.
    os._exit(0)


if __name__ == "__main__":
    main()
