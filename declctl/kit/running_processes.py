"""The running controllers of this user: each has a file in the runtime folder, by which commands find it.

The folder is `DECLCTL_RUNTIME_DIR`, or else `declctl` below `XDG_RUNTIME_DIR` or the counterpart of the
platform. Only its user can read it, and a folder of another user is never used: a command sends the token to
the address that a file names.

A file says where a process listens, and has no secret. The process removes it at its end. The file of a
process that was killed is recognised, as no process has its id and its start time. The next reader removes
it.
"""

import contextlib
import errno
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Final

import msgspec

from declctl.kit.files import read_file

ENTRY_BYTES: Final = 64 << 10
"""One file of a running process. Paths in it are the longest part."""

CONTROLLER_HEADER: Final = "Declctl-Controller"
"""The name of a controller: of the one that answers, and in a request of the one that has to."""

FOLDER_VARIABLE: Final = "DECLCTL_RUNTIME_DIR"
"""The folder of the files, for systems on which no folder of the platform will do."""

_SUFFIX = ".json"
_PS_SECONDS = 5.0
_START_FIELD = 19  # of /proc/PID/stat, counted from the field after the name of the program


class RunningProcess(msgspec.Struct, frozen=True, rename="camel"):
    """A process that runs a controller. All paths are absolute."""

    controller: str  # the name in the metadata of its manifest
    pid: int
    start_time: str  # of the process, as the system counts; with `pid`, it names one process
    address: str  # `host:port` of its admin address
    manifest: str | None = None  # a file or a folder; None for standard input
    token_file: str | None = None  # the file of the token that it requires
    cert_file: str | None = None  # the file of its certificate; None for plain HTTP
    key_file: str | None = None  # of the same

    def __str__(self) -> str:
        where = f", {self.manifest}" if self.manifest else ""
        return f"{self.controller} ({self.address}, pid {self.pid}{where})"


def runtime_folder() -> Path:
    """The folder of the files; it need not exist. Raises OSError if no folder is safe to use."""
    # All users may write to an emptyDir of a pod, and rename its folders: platformdirs takes none below it. A
    # pod with a read-only root has nothing else, and its users are those of the pod: our image takes one.
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).absolute()
    import platformdirs  # late: most commands need none

    with warnings.catch_warnings():
        # It warns of an XDG_RUNTIME_DIR that others can write to, and takes another folder.
        warnings.simplefilter("ignore")
        return Path(platformdirs.user_runtime_dir("declctl", appauthor=False))


@contextlib.contextmanager
def registered(process: RunningProcess) -> Generator[Path]:
    """Have a file for a process inside a `with` block; gives its path. Blocks.

    Raises OSError if it can't be written; an error of its removal is ignored, as readers recognise it.
    """
    folder = runtime_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(folder)
    path = folder / f"{process.controller}-{process.pid}{_SUFFIX}"
    part = path.with_suffix(f".{os.getpid()}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(process))
        part.replace(path)  # so that a reader never sees half of it
    except OSError:
        part.unlink(missing_ok=True)
        raise
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def running_processes() -> list[RunningProcess]:
    """The running controllers of this user, in the order of their names. Blocks.

    Files of processes that have ended are removed. Without a folder that is safe to use, there are none.
    """
    try:
        folder = runtime_folder()
        _require_private(folder)
        paths = [path for path in folder.iterdir() if path.suffix == _SUFFIX]
    except OSError:
        return []
    found = [process for path in paths if (process := _read(path)) is not None]
    return sorted(found, key=lambda each: (each.controller, each.pid))


def start_time(pid: int) -> str | None:
    """A text that no later process with the same id has; None if there is no such process. Blocks.

    Raises OSError if the system can't say it, as without a free file descriptor.
    """
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The name of the program is in parentheses, and may itself have some.
        fields = text.rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[_START_FIELD]
    try:
        told = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PS_SECONDS,
            check=False,
            # Otherwise, a shell with another language or time zone would read another text.
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(errno.ETIMEDOUT, f"ps takes longer than {_PS_SECONDS:g} s") from error
    return told.stdout.strip() or None


def _read(path: Path) -> RunningProcess | None:
    """The process of a file; None if it has ended, or if the file is none of ours."""
    try:
        if path.lstat().st_uid != os.geteuid():
            return None
        process = msgspec.json.decode(read_file(path, most=ENTRY_BYTES), type=RunningProcess)
        started = start_time(process.pid)
    except (OSError, msgspec.DecodeError):
        return None  # also if the start time can't be found now: the process may live, and keeps its file
    if started == process.start_time:
        return process
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def _require_private(folder: Path) -> None:
    """Raise OSError unless the folder belongs to this user, and nobody else may use it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        what = "it must be a folder of this user that no other user can read"
        raise OSError(errno.EPERM, what, str(folder))
