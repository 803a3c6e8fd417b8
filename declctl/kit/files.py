"""Files of users: read with limits on size and time, and checked for changes.

Only regular files are read, up to a limit. Links are followed, because a mounted ConfigMap consists of them.
The limits of all files that declctl reads are here; docs/reference/limits.md lists them.

`Lookups` records the questions that a read asks of the file system, with the answers, so that a later check
can ask the same questions. A missing file is an answer, too: it may appear later, such as a package in the
place of a module, or the module of an optional import.
"""

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from declctl.kit.text import one_line

T = TypeVar("T")

MANIFEST_BYTES: Final = 4 << 20
"""One manifest file, or standard input. A ConfigMap holds 1 MiB."""

MANIFEST_FILES: Final = 1000
"""YAML files in a folder that is given as the manifest."""

CODE_BYTES: Final = 8 << 20
"""One handler file."""

BUNDLE_BYTES: Final = 32 << 20
"""All handler files of a bundle together; also all files of a manifest folder."""

BUNDLE_FILES: Final = 5000
"""Handler files of a bundle."""

FOLDER_DEPTH: Final = 32
"""Folders inside each other in a package."""

CONFIG_BYTES: Final = 1 << 20
"""One file of a plugin's `configFrom`. A Secret holds 1 MiB."""

TOKEN_BYTES: Final = 64 << 10
"""The file of a token. A token of a ServiceAccount has 1 KiB."""

OBJECTS_BYTES: Final = 64 << 20
"""One file of objects for the sandbox, or standard input."""

READ_SECONDS: Final = 20.0
"""The deadline to read manifest, handlers and config files once. A network mount may hang for ever."""

_PIECE: Final = 1 << 20  # bytes of one read
_KINDS: Mapping[int, str] = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_reading: dict[int, str] = {}  # by thread, the file that it reads; written by that thread alone
# By file, held while `read_in_time` reads it.
_locks: MutableMapping[Path, threading.Lock] = WeakValueDictionary()
_hung: set[Path] = set()  # files whose read has timed out in `read_in_time`, and has not ended yet
_guard = threading.Lock()  # for `_locks` and `_hung`


def folder_of(place: Path) -> Path:
    """A folder itself, and the folder of anything else: a manifest may be given as either."""
    return place if place.is_dir() else place.parent


def read_file(path: str | os.PathLike[str], *, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises OSError: EINVAL for anything but a regular file, EFBIG for a file that is larger or grows larger
    while it is read, and the errors of the system. It never waits for a writer. A file system may hang: see
    `within`.
    """
    name = os.fspath(path)
    _reading[threading.get_ident()] = name
    try:
        # Checked before it is opened, because opening a device may have an effect; and again when it is open.
        require_regular(name, Path(name).stat())
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            require_regular(name, found)
            if found.st_size > most:
                raise too_large(name, most, found.st_size)
            return _all(name, descriptor, most)
        finally:
            os.close(descriptor)
    except ValueError as error:  # a zero byte in the name
        raise OSError(errno.EINVAL, f"this is no file name: {error}", name) from error
    finally:
        del _reading[threading.get_ident()]


def require_regular(name: str, found: os.stat_result) -> None:
    """Raise OSError (EINVAL) unless `found` is the state of a regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, and only regular files are read", name)


def too_large(name: str, most: int, size: int | None = None) -> OSError:
    """The error for a file of more than `most` bytes. `size` is None if the file was not read to its end."""
    has = "it has more bytes than" if size is None else f"it has {size:,} bytes, and the limit is"
    return OSError(errno.EFBIG, f"{has} {most:,}" + (", which is the limit" if size is None else ""), name)


def within(seconds: float, call: Callable[[], T], *, name: str, file: str | None = None) -> T:
    """Call `call` in a daemon thread called `name`; returns its result or raises its exception. Blocks.

    Raises TimeoutError after `seconds`, which names the file that was being read, otherwise `file`. The
    thread then goes on by itself, because a read that hangs can't be ended.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the caller
            errors.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _timed_out(seconds, _reading.get(thread.ident or 0, file))
    if errors:
        raise errors.pop()  # so that this frame and its traceback are no cycle
    return results[0]


def read_in_time(path: Path, call: Callable[[], T], *, name: str) -> T:
    """Call `call`, which reads one file, in a thread called `name`; returns its result. Blocks.

    Raises TimeoutError after READ_SECONDS. A read that hangs keeps its thread. Until that thread ends,
    further reads of the same file raise TimeoutError at once, so that repeated reads keep one thread. Reads
    of one file wait for each other.
    """
    with _guard:
        lock = _locks.setdefault(path, threading.Lock())
    with lock:
        with _guard:
            if path in _hung:
                raise _timed_out(READ_SECONDS, str(path))
        ended = threading.Event()

        def read() -> T:
            try:
                return call()
            finally:
                with _guard:
                    ended.set()
                    _hung.discard(path)

        try:
            return within(READ_SECONDS, read, name=name, file=str(path))
        except TimeoutError:
            with _guard:
                # The read may have ended just now; or the file system itself raised TimeoutError.
                if not ended.is_set():
                    _hung.add(path)
            raise


def unfinished_reads() -> tuple[int, int]:
    """Of `read_in_time`: how many files are being read, and of how many a read has timed out and goes on."""
    with _guard:
        return len(_locks), len(_hung)


def read_file_in_time(path: Path, *, most: int, name: str) -> bytes:
    """The content of a file, with the errors of `read_file` and the deadline of `read_in_time`. Blocks."""
    return read_in_time(path, lambda: read_file(path, most=most), name=name)


def _timed_out(seconds: float, file: str | None) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"reading takes longer than {seconds:g} s", file)


def shown(path: str | os.PathLike[str]) -> str:
    """A path as one line that can be printed, logged and encoded. Bytes that are no UTF-8 become marks."""
    return one_line(os.fsencode(path).decode("utf-8", "replace"))


def _all(name: str, descriptor: int, most: int) -> bytes:
    """Read to the end: the size of a file in /proc is 0, and other files may grow meanwhile."""
    pieces: list[bytes] = []
    left = most + 1
    while piece := os.read(descriptor, min(_PIECE, left)):
        pieces.append(piece)
        left -= len(piece)
        if not left:
            raise too_large(name, most)
    return b"".join(pieces)


_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})
_NO_THREAD = "can't start new thread"  # the message of the RuntimeError of `Thread.start`
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


class PathKind(StrEnum):
    """The kind of file at a path. Links are followed."""

    NOTHING = "nothing"
    FOLDER = "folder"
    FILE = "file"
    OTHER = "other"  # a device, a socket or a pipe


def is_exhausted(error: BaseException | None) -> bool:
    """Whether the process has run out of memory, descriptors, threads or processes.

    Such an error says nothing about the file that was read.
    """
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_THREAD in str(error))


class _Question(NamedTuple):
    """One question to the file system."""

    ask: Callable[[Path, int], object]  # asks it, with `path` and `most`
    path: Path
    most: int = 0  # bytes of a file that is read


class Lookups:
    """Asks the file system, and records each question with its first answer.

    An OSError is an answer, too: it is recorded and raised. An error for which `is_exhausted` is true is
    raised and not recorded. Used by one thread at a time. Every method blocks.
    """

    def __init__(self) -> None:
        self._answers: dict[_Question, object] = {}  # kinds, names, digests of files, and errors as text
        self._around: set[Path] = set()  # folders that change when an answer changes

    def kind(self, path: Path) -> PathKind:
        """The kind of file at a path. The first answer is returned again for the same path."""
        question = _Question(_kind, path)
        known = self._answers.get(question)
        return known if isinstance(known, PathKind) else self._ask(question, _kind)

    def real(self, path: Path) -> str:
        """The path of a folder with all links resolved. Also call `names` for the folder."""
        return self._ask(_Question(_real, path), _real)

    def names(self, folder: Path) -> Sequence[str]:
        """The names in a folder, sorted."""
        return self._ask(_Question(_names, folder), _names)

    def read(self, path: Path, *, most: int) -> bytes:
        """The content of a regular file of at most `most` bytes."""
        return self._ask(_Question(_bytes, path, most), _bytes)

    def are_unchanged(self) -> bool:
        """Ask every question again. True if all answers are the same."""
        return all(_answer(question) == answer for question, answer in self._answers.items())

    def folders(self) -> Sequence[Path]:
        """The folders to watch for changed answers; for a missing folder its nearest existing parent."""
        return sorted({_nearest(folder) for folder in self._around})

    def _ask(self, question: _Question, ask: Callable[[Path, int], T]) -> T:
        if ask is not _real:  # `names` of the same folder covers it
            self._around.add(question.path if ask is _names else question.path.parent)
        try:
            found = ask(question.path, question.most)
        except OSError as error:
            if not is_exhausted(error):
                self._answers.setdefault(question, str(error))
            raise
        self._answers.setdefault(question, _short(found))
        return found


def _answer(question: _Question) -> object:
    try:
        return _short(question.ask(question.path, question.most))
    except OSError as error:
        if is_exhausted(error):
            raise
        return str(error)


def _short(found: object) -> object:
    return hashlib.sha256(found).digest() if isinstance(found, bytes) else found


def _kind(path: Path, _: int) -> PathKind:
    try:
        mode = path.stat().st_mode
    except ValueError:  # a zero byte in the name
        return PathKind.NOTHING
    except OSError as error:
        if error.errno in _NOT_THERE:
            return PathKind.NOTHING
        raise
    if stat.S_ISDIR(mode):
        return PathKind.FOLDER
    return PathKind.FILE if stat.S_ISREG(mode) else PathKind.OTHER


def _real(path: Path, _: int) -> str:
    return os.path.realpath(path)


def _names(folder: Path, _: int) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir()))


def _bytes(path: Path, most: int) -> bytes:
    return read_file(path, most=most)


def places_of(path: str | os.PathLike[str]) -> frozenset[Path]:
    """Where a path is: as it is written, and where its links lead. Both are absolute. Blocks."""
    return frozenset({Path(os.path.abspath(path)), Path(os.path.realpath(path))})  # noqa: PTH100 - keeps links


def is_below(path: str | os.PathLike[str], folders: Iterable[Path]) -> bool:
    """Whether a path is one of these folders or lies below one, by one of its `places_of`. Blocks."""
    places = places_of(path)
    return any(place.is_relative_to(folder) for folder in folders for place in places)


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path; False if the file system does not answer."""
    try:
        return _kind(path, 0) is PathKind.FOLDER
    except OSError:
        return False


def _nearest(folder: Path) -> Path:
    """This folder or, if it is missing, its nearest parent that exists."""
    return next((path for path in (folder, *folder.parents) if is_folder(path)), folder)
