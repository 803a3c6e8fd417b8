"""The checks of `declctl doctor` on this machine: Python, packages, limits, and the folder of the manifest.

Each function takes what the system says as an argument, by default from the system itself, and returns one
`Check`. None of them writes, except `check_notices`, which writes to a temporary folder of its own.
"""

import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from declctl.kit.figures import byte_size
from declctl.kit.files import folder_of

_LEAST_PYTHON = (3, 11)
_DISTRIBUTION = "declctl"
_OWN_DESCRIPTORS = (
    200  # 64 connections of the admin address, files of a reload, pipes of its child, spare ones
)
_LEAST_MEMORY, _LITTLE_MEMORY = 64 << 20, 128 << 20  # bytes: a start alone takes about 60 MiB
_NOTICE_SECONDS = 2.0  # for a notice that usually comes within a few milliseconds
_STEP_SECONDS = 0.05  # between the looks of watchfiles
_INOTIFY = "/proc/sys/fs/inotify"
_MOST_NAMED = 5  # packages that a line names
_UNLIMITED = 1 << 60  # bytes: cgroup v1 writes a number near 2^63 for no limit
_FUSE = "fuse."
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "f2fs", "bcachefs", "apfs"}
)
# Another machine may change files of these, of which this kernel gives no notice.
_REMOTE: Mapping[str, str] = MappingProxyType(
    {
        "nfs": "NFS",
        "nfs4": "NFS",
        "cifs": "SMB",
        "smb3": "SMB",
        "smbfs": "SMB",
        "ceph": "CephFS",
        "glusterfs": "GlusterFS",
        "lustre": "Lustre",
        "afs": "AFS",
        "9p": "9p, a folder of a host",
        "virtiofs": "virtiofs, a folder of a host",
        "vboxsf": "a folder of a VirtualBox host",
        "prl_fs": "a folder of a Parallels host",
        "fakeowner": "a folder of a Docker Desktop host",
    }
)


class CheckState(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"  # there was nothing to check


class Check(msgspec.Struct, frozen=True):
    """The result of one check: what was found, what it means, and what to do about it."""

    name: str
    state: CheckState
    found: str
    meaning: str = ""  # empty if all is well
    advice: str = ""


def ok(name: str, found: str) -> Check:
    """A check with nothing to complain about."""
    return Check(name, CheckState.OK, found)


def skipped(name: str, why: str) -> Check:
    """A check that does not apply here."""
    return Check(name, CheckState.SKIPPED, why)


def warning(name: str, found: str, *, meaning: str, advice: str) -> Check:
    """A check that found something that a user should know and may accept."""
    return Check(name, CheckState.WARNING, found, meaning, advice)


def failed(name: str, found: str, *, meaning: str, advice: str) -> Check:
    """A check that found something that keeps declctl, or a part of it, from working."""
    return Check(name, CheckState.FAILED, found, meaning, advice)


def check_python(
    version: Sequence[int] = sys.version_info[:3], implementation: str = platform.python_implementation()
) -> Check:
    """The version of the interpreter, and that it is CPython."""
    found = f"{implementation} {'.'.join(map(str, version))} ({sys.executable})"
    least = ".".join(map(str, _LEAST_PYTHON))
    if tuple(version[:2]) < _LEAST_PYTHON:
        return failed(
            "python",
            found,
            meaning=f"declctl needs Python {least} or newer",
            advice=f"install Python {least} or newer, and declctl there",
        )
    if implementation != "CPython":
        return warning(
            "python",
            found,
            meaning="declctl is tested with CPython alone; msgspec and others may have no build for this one",
            advice="run declctl with CPython",
        )
    return ok("python", found)


def check_packages(
    requirements: Iterable[str] | None = None, version_of: Callable[[str], str] = metadata.version
) -> Check:
    """That each package that declctl needs is installed, in a version that declctl accepts."""
    if requirements is None:
        try:
            requirements = metadata.requires(_DISTRIBUTION) or ()
        except metadata.PackageNotFoundError:
            return warning(
                "packages",
                "declctl runs from a folder, and is not installed",
                meaning="its requirements are not known to this Python, and can't be checked",
                advice="install it: pip install declctl, or pip install -e . in the checkout",
            )
    wrong, number = list[str](), 0
    for each in _required(requirements):
        number += 1
        try:
            installed = version_of(each.name)
            if not each.specifier.contains(Version(installed), prereleases=True):
                wrong.append(f"{each.name} {installed} (it has to be {each.specifier})")
        except metadata.PackageNotFoundError:
            wrong.append(f"{each.name} is not installed")
        except InvalidVersion:
            wrong.append(f"{each.name} has no readable version")
    if wrong:
        more = f", and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        return failed(
            "packages",
            "; ".join(wrong[:_MOST_NAMED]) + more,
            meaning="commands that need these packages fail, or behave in another way than tested",
            advice="install declctl anew in an environment of its own: pip install --upgrade declctl",
        )
    return ok("packages", f"all {number} packages have versions that declctl accepts")


def _required(requirements: Iterable[str]) -> Iterable[Requirement]:
    """The requirements that hold on this machine, without those of extras."""
    for text in requirements:
        with suppress(InvalidRequirement):
            found = Requirement(text)
            if found.marker is None or found.marker.evaluate({"extra": ""}):
                yield found


def check_descriptors(watches: int, limits: tuple[int, int] | None = None) -> Check:
    """That the process may open enough files: a connection for each of `watches`, and those of declctl."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE) if limits is None else limits
    needed = watches + _OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY:
        return ok("descriptors", "no limit on open files")
    found = f"{soft:,} open files allowed, about {needed:,} needed at most"
    if soft >= needed:
        return ok("descriptors", found)
    raised = f"ulimit -n {needed}" + ("" if hard == resource.RLIM_INFINITY or hard >= needed else " as root")
    return failed(
        "descriptors",
        found,
        meaning="watches, the admin address or reloads fail with `Too many open files`",
        advice=f"raise the limit before the start: {raised}; in a pod it is that of the container runtime",
    )


def memory_limit(cgroup: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The bytes that this process may use, by its cgroup or its resource limits; None for no limit."""
    limits = [soft for soft, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA))]
    found = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # cgroup v2; the limits of all groups above hold, too
                folder = cgroup / path.lstrip("/")
                files = [
                    each / "memory.max"
                    for each in (folder, *folder.parents)
                    if cgroup in (each, *each.parents)
                ]
            elif "memory" in controllers.split(","):
                root = cgroup / "memory"
                # In a container, the path of the host may not exist: the root is the own group there.
                files = [root / path.lstrip("/") / "memory.limit_in_bytes", root / "memory.limit_in_bytes"]
            else:
                continue
            for file in files:
                with suppress(OSError, ValueError):  # `max` is no number
                    found.append(int(file.read_text()))
    return min((limit for limit in found if limit < _UNLIMITED), default=None)


def check_memory(limit: int | None) -> Check:
    """That the memory limit (bytes; None for no limit) leaves room for caches."""
    if limit is None:
        return ok("memory", "no limit on memory")
    found = f"{byte_size(limit)} of memory allowed"
    if limit >= _LITTLE_MEMORY:
        return ok("memory", found)
    little = byte_size(2 * _LITTLE_MEMORY)
    advice = f"allow {little} or more: resources.limits.memory of the container, or ulimit -v"
    if limit < _LEAST_MEMORY:
        return failed(
            "memory",
            found,
            meaning="the process is ended by the kernel before its caches are filled",
            advice=advice,
        )
    return warning(
        "memory",
        found,
        meaning="a start takes about 60 MiB; little is left for caches and reloads",
        advice=advice,
    )


def check_inotify(folder: Path = Path(_INOTIFY), processes: Path = Path("/proc")) -> Check:
    """The limits of inotify, and how many instances this user has in use."""
    try:
        instances = int((folder / "max_user_instances").read_text())
        watches = int((folder / "max_user_watches").read_text())
    except (OSError, ValueError):
        return skipped("inotify", f"there are no limits in {folder}: this system has no inotify")
    used = _instances_in_use(processes)
    found = f"{used} of {instances:,} instances in use, {watches:,} watches allowed"
    if used < instances and watches > _OWN_DESCRIPTORS:
        return ok("inotify", found)
    return warning(
        "inotify",
        found,
        meaning="no instance is left for declctl, so that it polls files each second instead",
        advice="raise fs.inotify.max_user_instances and max_user_watches: sysctl -w, on the node",
    )


def _instances_in_use(processes: Path) -> int:
    """The inotify instances of this user's processes, as far as they may be read."""
    number, user = 0, os.getuid()
    for process in processes.glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to somebody else
            if process.stat().st_uid != user:
                continue
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    number += str(descriptor.readlink()) == "anon_inode:inotify"
    return number


def check_notices() -> Check:
    """That the system gives notice of a change of a file, in a temporary folder."""
    from watchfiles import watch  # late: a compiled extension

    with tempfile.TemporaryDirectory(prefix="declctl-doctor-") as folder:
        file, began, written = Path(folder) / "file", time.monotonic(), 0.0
        try:
            steps = watch(
                folder,
                watch_filter=None,
                recursive=False,
                step=10,
                debounce=50,
                rust_timeout=int(_STEP_SECONDS * 1000),
                yield_on_timeout=True,
                raise_interrupt=False,
            )
            for changes in steps:
                if changes:
                    took = time.monotonic() - written
                    return ok("notices", f"a change of a file was noticed after {took * 1000:.0f} ms")
                # The first step shows that the watch is there: what is written now has to be noticed.
                if not written:
                    file.write_text("changed")
                    written = time.monotonic()
                if time.monotonic() - began > _NOTICE_SECONDS:
                    break
        except (OSError, RuntimeError) as error:  # watchfiles raises both if inotify is exhausted
            why = str(error)
        else:
            why = f"a change of a file was not noticed within {_NOTICE_SECONDS:g} s"
    return warning(
        "notices",
        why,
        meaning="edits are found by polling: after up to 5 s with `watch: Auto`, 1 s with `watch: Poll`",
        advice="write `watch: Poll` under spec.reload, or raise the limits of inotify",
    )


class Mount(msgspec.Struct, frozen=True):
    """One line of /proc/self/mountinfo."""

    point: str
    kind: str  # such as ext4
    source: str  # the device or the server
    root: str  # the folder or file of the file system that is mounted


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """The mount that a real path lies on, by the text of /proc/self/mountinfo; None if it is not known."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        # 36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/root rw: optional fields end with a dash.
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(rest) < 2:
            continue
        point = _unescaped(fields[4])
        # A later line of the same mount point hides the earlier one.
        if (path == Path(point) or Path(point) in path.parents) and (
            best is None or len(point) >= len(best.point)
        ):
            best = Mount(point, rest[0], _unescaped(rest[1]), _unescaped(fields[3]))
    return best


def _unescaped(text: str) -> str:
    """Mountinfo writes space, tab, line end and backslash as octal numbers."""
    for octal, letter in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(octal, letter)
    return text


def check_mount(manifest: Path, mountinfo: str) -> Check:
    """The kind of mount of the manifest, and whether edits of its files are noticed there.

    Raises OSError if the manifest can't be looked at.
    """
    folder = folder_of(manifest)
    # The path as given, without its links: ..data of a ConfigMap is one.
    path = folder.absolute() / ("" if manifest.is_dir() else manifest.name)
    alone = mount_of(path, mountinfo)
    if alone is not None and not manifest.is_dir() and alone.point == str(path):
        return warning(
            "mount",
            f"{manifest} is mounted by itself, from {alone.root}",
            meaning="a file that replaces it is not seen, and the kubelet never updates a subPath",
            advice="mount its folder, without subPath; or restart the process after each edit",
        )
    if (folder / "..data").is_symlink():
        return ok("mount", f"{folder} is a ConfigMap or Secret: the kubelet exchanges all files at once")
    mount = mount_of(folder.resolve(), mountinfo)
    if mount is None:
        return skipped("mount", f"the mount of {folder} is not known: this system has no mountinfo")
    where = f"{folder} is on {mount.kind}, mounted at {mount.point}"
    remote = _REMOTE.get(mount.kind)
    if remote is not None or mount.kind.startswith(_FUSE):
        return warning(
            "mount",
            f"{where} ({remote or 'a file system in user space'})",
            meaning="no notice comes of edits that are made elsewhere: they are found after up to 5 s",
            advice="write `watch: Poll` under spec.reload to find them after 1 s",
        )
    if mount.kind == "overlay":
        return ok(
            "mount", f"{where}: edits within this container are noticed, those of the image need a new one"
        )
    if mount.kind in _LOCAL:
        return ok("mount", where)
    return ok("mount", f"{where}, which declctl does not know; files are looked at every 5 s at the latest")
