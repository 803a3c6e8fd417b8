"""What a hostile input may cost: a bound on computing time and on memory for each test of this folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RESET_PEAK = "5"  # proc(5), clear_refs: resets the peak resident set size of the process


@contextmanager
def bounded(*, seconds: float, megabytes: float, pid: int | None = None) -> Iterator[None]:
    """Fails unless the block takes `seconds` of a processor and `megabytes` of additional memory at most.

    What else the machine does is not counted. Memory is the peak of process `pid` (this process by default)
    during the block, minus its resident memory at the start. A block that never ends is the business of the
    test's own time limit. Linux only, as the peak comes from /proc.
    """
    process = Path("/proc") / str(pid if pid is not None else os.getpid())
    (process / "clear_refs").write_text(_RESET_PEAK)
    before, began = _kilobytes(process, "VmRSS"), _seconds(process)
    yield
    took = _seconds(process) - began
    added = (_kilobytes(process, "VmHWM") - before) / 1024
    assert took <= seconds, f"took {took:.1f} s, more than {seconds:g} s"
    assert added <= megabytes, f"took {added:.0f} MB more than before, more than {megabytes:g} MB"


def _seconds(process: Path) -> float:
    """The processor time of all threads so far, as user and in the kernel; see proc(5)."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kilobytes(process: Path, field: str) -> int:
    for line in (process / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise AssertionError(f"{process}/status has no {field}")
