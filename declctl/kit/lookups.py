"""What a read has asked of the file system, so that the same can be asked again.

A file that is missing decides what is read as much as one that is there: a package may come in the place of a
module, and an optional import may be possible one day. So each question is remembered with its answer, also
where the answer is that there is nothing.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

from declctl.kit import files as reader

T = TypeVar("T")

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})
_NO_THREAD = "can't start new thread"  # the message of the RuntimeError of `Thread.start`
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


class Kind(StrEnum):
    """What is under a path. Links are followed."""

    NOTHING = "nothing"
    FOLDER = "folder"
    FILE = "file"
    OTHER = "other"  # a device, a socket or a pipe


def is_exhausted(error: BaseException | None) -> bool:
    """Whether the process could not get memory, a descriptor, a thread or a process.

    Such an error says nothing about the file that was to be read.
    """
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_THREAD in str(error))


class _Question(NamedTuple):
    """`ask` is called with `path` and `most`, the limit on the size of a file."""

    ask: Callable[[Path, int], object]
    path: Path
    most: int = 0


class Lookups:
    """Asks the file system, and remembers each question with its first answer.

    An OSError is an answer, too, and is raised, as a rule; one that `is_exhausted` is raised and not
    remembered. Used by one thread at a time. Every method blocks.
    """

    def __init__(self) -> None:
        self._answers: dict[_Question, object] = {}  # kinds, names, digests of files; errors as text
        self._around: set[Path] = set()  # the folders in which a changed answer shows

    def kind(self, path: Path) -> Kind:
        """What is under this path: the first answer, however often it is asked."""
        question = _Question(_kind, path)
        known = self._answers.get(question)
        return known if isinstance(known, Kind) else self._ask(question, _kind)

    def real(self, path: Path) -> str:
        """The path of a folder, whose names are asked, without links."""
        return self._ask(_Question(_real, path), _real)

    def names(self, folder: Path) -> Sequence[str]:
        """The names in a folder, in order."""
        return self._ask(_Question(_names, folder), _names)

    def read(self, path: Path, *, most: int) -> bytes:
        """The bytes of a regular file, of `most` at the most."""
        return self._ask(_Question(_bytes, path, most), _bytes)

    def hold(self) -> bool:
        """Whether each question has the same answer now."""
        return all(_answer(question) == answer for question, answer in self._answers.items())

    def folders(self) -> Sequence[Path]:
        """The folders that notice if an answer changes: around each path or, if it is missing, above it."""
        return sorted({_nearest(folder) for folder in self._around})

    def _ask(self, question: _Question, ask: Callable[[Path, int], T]) -> T:
        if ask is not _real:  # it is asked of folders whose names are asked, too
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


def _kind(path: Path, _: int) -> Kind:
    try:
        mode = path.stat().st_mode
    except ValueError:  # a zero byte in the name
        return Kind.NOTHING
    except OSError as error:
        if error.errno in _NOT_THERE:
            return Kind.NOTHING
        raise
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    return Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER


def _real(path: Path, _: int) -> str:
    return os.path.realpath(path)


def _names(folder: Path, _: int) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir()))


def _bytes(path: Path, most: int) -> bytes:
    return reader.read_file(path, most=most)


def is_folder(path: Path) -> bool:
    """Whether there is a folder that can be seen."""
    try:
        return _kind(path, 0) is Kind.FOLDER
    except OSError:
        return False


def _nearest(folder: Path) -> Path:
    """This folder or, if it is missing, the nearest around it that is there."""
    return next((path for path in (folder, *folder.parents) if is_folder(path)), folder)
