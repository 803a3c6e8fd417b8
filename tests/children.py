"""The processes that this one has started, for tests that leave none."""

from contextlib import suppress
from pathlib import Path


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
