"""The processes that this one has started: tests share one that takes long to load, and leave no other."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from declctl.runtime.checking import check, preflight_pool
from declctl.testing.controller import SharedPreflightPool

# Code that lets the clock of the child in which it is imported go 20 s ahead.
SLOW_IN_CHILD = """\
from declctl.runtime.checking import preflight_child as answering
real = answering.monotonic
answering.monotonic = lambda: real() + 20
"""
_NOT_COMPARED = ("HOME", "PYTEST_CURRENT_TEST")


def _inherited() -> object:
    return {name: value for name, value in os.environ.items() if name not in _NOT_COMPARED}


_SHARED = SharedPreflightPool(_inherited)


def share_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `check` and the commands, in this process, fork the children of their pre-flights from one process.

    For tests whose handlers read neither the current folder nor HOME when they are imported.
    """
    monkeypatch.setattr(preflight_pool, "PreflightPool", lambda: _SHARED)
    monkeypatch.setattr(check, "PreflightPool", lambda: _SHARED)


def child_processes(process: str = "self") -> set[str]:
    """Their numbers, zombies too."""
    found: set[str] = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has
                found |= set((task / "children").read_text().split())
    return found


def descendants() -> set[str]:
    """The children, theirs, and so on."""
    found: set[str] = set()
    waiting = child_processes()
    while waiting:
        process = waiting.pop()
        found.add(process)
        waiting |= child_processes(process)
    return found
