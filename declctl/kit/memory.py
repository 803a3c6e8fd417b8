"""The memory that the limits of containers leave to this process: those of its cgroups, on Linux."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_UNLIMITED = 1 << 60  # bytes; without a limit, version 1 has a number close to 2^63


class _CgroupFiles(NamedTuple):
    """The names in one version of cgroups."""

    limit: str
    usage: str
    cache: str  # in memory.stat: files that the kernel drops before it ends a process


_V1 = _CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _CgroupFiles("memory.max", "memory.current", "inactive_file")


def memory_left(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The bytes that this process and the others of its container can use until a limit is reached.

    The limits of all cgroups around the process count. Cached files count as free, as the kubelet counts
    them. None without a limit, and if none can be read.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    found = [_left(folder, names) for line in lines for folder, names in _cgroups(root, line)]
    return min((left for left in found if left is not None), default=None)


def share_of_memory_left() -> int | None:
    """The bytes that a child process may use: three quarters of `memory_left`; None without a limit."""
    left = memory_left()
    return None if left is None else left * 3 // 4


def too_much(most: int, *, of_container: bool) -> str:
    """What is said of a child process that needs more than `most` bytes, after what it did."""
    why = ", as the memory limit of the container leaves no more" if of_container else ""
    return f"takes more memory than there is for it (at most {most >> 20} MiB{why})"


def _cgroups(root: Path, line: str) -> Iterator[tuple[Path, _CgroupFiles]]:
    """The folders of the cgroups of a line of /proc/self/cgroup, such as `4:memory:/pod/container`."""
    _, controllers, path = line.split(":", 2)
    names = _V1 if "memory" in controllers.split(",") else _V2
    if controllers and names is _V2:
        return  # a hierarchy without memory
    # In a container, the folder of the cgroup is often `root` itself, whatever the path says.
    top = root / "memory" if names is _V1 else root
    inner = top / path.lstrip("/")
    for folder in (inner, *inner.parents):
        yield folder, names
        if folder == top:
            return


def _left(folder: Path, names: _CgroupFiles) -> int | None:
    try:
        limit = int((folder / names.limit).read_text())
        if limit >= _UNLIMITED:
            return None
        used = int((folder / names.usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(stat[names.cache]))
    except (OSError, ValueError, KeyError):  # no such folder or file, or `max`
        return None
