"""Whole processes, measured from outside: by `wait4` and /proc."""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figures:
    """Seconds of CPU (user and system) and of wall time, megabytes of memory."""

    cpu: float
    wall: float
    resident: float
    peak: float


def measure(command: Sequence[str], *, until: Callable[[object], bool] | None = None) -> Figures:
    """Run a command to its end, or until `until` says so: then resident memory is read and it is ended."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    resident = 0.0
    while until is not None and _runs(child.pid):
        if until(child):
            resident = memory(child.pid)
            child.terminate()
            break
        time.sleep(0.05)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - began
    if until is not None and not resident:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode} before it was measured")
    return Figures(usage.ru_utime + usage.ru_stime, wall, resident, usage.ru_maxrss / 1024)


def _runs(pid: int) -> bool:
    # Looked at without reaping, so that wait4 still finds its figures.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return sorted(values)[len(values) // 2]
