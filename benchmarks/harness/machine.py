"""The machine on which the figures were measured."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path


def machine() -> Mapping[str, str]:
    """Processor, cores, memory, kernel (without the suffix of a distribution) and Python, as texts."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The model of the processor, from the kernel."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()
