"""Figures of a whole process, read from outside: /proc of Linux."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Figures:
    """One moment: seconds of CPU so far (all threads, ended children), megabytes of memory."""

    at: float
    cpu: float
    resident: float
    peak: float


def figures(pid: int) -> Figures:
    """What a process has used, `at` on the monotonic clock. Raises ProcessLookupError if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    if peak is None:  # it has ended, and nobody has asked how
        raise ProcessLookupError(pid)
    # utime, stime, cutime, cstime: counted after the name, which may have spaces and brackets in it
    ticks = sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])
    return Figures(time.monotonic(), ticks / _TICK, pages * _PAGE / 1e6, int(peak.split()[1]) * 1024 / 1e6)


def reset_peak(pid: int) -> None:
    """Begin to measure the peak anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def available() -> float:
    """Megabytes that the machine has left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("MemAvailable:"))
