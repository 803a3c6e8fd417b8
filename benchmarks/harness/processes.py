"""Figures of a whole process, from /proc of Linux."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a process at a time: seconds of CPU (with threads and ended children), megabytes."""

    at: float
    cpu: float
    resident: float
    peak: float


def figures(pid: int) -> Figures:
    """The figures of a process; `at` is the monotonic clock. Raises ProcessLookupError if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    if peak is None:  # a process that has ended, and that its parent has not waited for
        raise ProcessLookupError(pid)
    # utime, stime, cutime, cstime: counted after the name, which may have spaces and brackets in it
    ticks = sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])
    return Figures(time.monotonic(), ticks / _TICK, pages * _PAGE / 1e6, int(peak.split()[1]) * 1024 / 1e6)


def reset_peak(pid: int) -> None:
    """Resets the peak of a process to its current size."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def available() -> float:
    """Megabytes of memory that are available on the machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("MemAvailable:"))
