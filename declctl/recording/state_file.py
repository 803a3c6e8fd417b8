"""The folder of a state: one file with the caches of a process, which the next process begins with.

The file begins with all caches as they were at one moment. Changes are appended to it, until it is replaced
by a new one that begins with a later moment. A process may be killed at any byte: what is whole is read.
"""

import fcntl
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from declctl.errors import StateUnusable
from declctl.recording.blocks import BlockFile, blocks_of
from declctl.recording.entries import FrameDictionary
from declctl.recording.state_entries import (
    STATE_ENTRIES,
    CacheState,
    HandlerState,
    KeptCache,
    KeptChanges,
    KeptFinalizers,
    KeptList,
    KeptMark,
    KeptNotes,
    StateEnd,
    StateEntry,
    StateHeader,
)

FORMAT = 1
_WORD = b"declctl-state "
_FIRST_LINE = _WORD + b"%d\n" % FORMAT
_LONGEST_LINE = 64
_NAME, _NEW_NAME, _LOCK_NAME = "caches", "caches.new", "lock"


class KeptState(msgspec.Struct, frozen=True):
    """What a state file has: the caches by their identity. Caches whose list is not whole are left out."""

    header: StateHeader
    caches: dict[str, CacheState]
    is_ended: bool  # the process has ended in order, and was not killed
    bytes: int = 0  # of the file
    written: datetime | None = None  # the last change of the file
    digest: str = ""  # of the files that ran
    handlers: dict[str, HandlerState] = {}  # by name
    notes: KeptNotes = KeptNotes()


def read_state(folder: Path) -> KeptState | None:
    """The state in a folder, which a process may be writing; None if there is none. Raises StateUnusable."""
    path = folder / _NAME
    try:
        with path.open("rb") as file:
            _check_first_line(path, file.readline(_LONGEST_LINE))
            state = _state_of(path, blocks_of(file, STATE_ENTRIES))
            status = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateUnusable(f"{path} can't be read: {error.strerror or error}") from error
    return replace(state, bytes=status.st_size, written=datetime.fromtimestamp(int(status.st_mtime), UTC))


class StateFolder:
    """The folder of a state, which belongs to this process until `close`.

    It is made if it does not exist. Raises StateUnusable if that is not possible, or if another process has
    it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateUnusable(f"the folder {path} can't be used: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise StateUnusable(
                f"another process has the folder {path}: give each process a folder of its own"
            ) from error
        except OSError as error:
            os.close(self._lock)
            raise StateUnusable(f"the folder {path} can't be locked: {error.strerror or error}") from error

    def read(self) -> KeptState | None:
        """The state of the process before; None if there is none. Raises StateUnusable."""
        return read_state(self.path)

    def begin(self) -> "StateFile":
        """A new file, which takes the place of the present one by `StateFile.publish`. Raises OSError."""
        return StateFile(self.path / _NEW_NAME, self.path / _NAME)

    def clear(self) -> int:
        """Remove the state; returns the bytes of its files. Raises OSError."""
        removed = 0
        for path in (self.path / _NAME, self.path / _NEW_NAME):
            with suppress(FileNotFoundError):
                size = path.stat().st_size
                path.unlink()
                removed += size
        return removed

    def close(self) -> None:
        """Let another process have the folder. May be repeated."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class StateFile:
    """A state file that is written. Methods raise OSError."""

    def __init__(self, path: Path, published: Path) -> None:
        self._path, self._published = path, published
        self._file = BlockFile(path, first_line=_FIRST_LINE)

    @property
    def bytes(self) -> int:
        """The length of the file."""
        return self._file.bytes

    def append(self, entries: Sequence[StateEntry]) -> None:
        """Append entries."""
        self._file.append(entries)

    def publish(self) -> None:
        """Take the place of the file before. It can be appended to as before."""
        self._path.replace(self._published)

    def close(self, *, sync: bool = False) -> None:
        """Close the file; with `sync`, the disk has it then. May be repeated."""
        if sync:
            self._file.sync()
        self._file.close()


def _check_first_line(path: Path, line: bytes) -> None:
    number = line.removeprefix(_WORD).strip()
    if not line.startswith(_WORD) or not line.endswith(b"\n") or not number.isdigit():
        raise StateUnusable(f"{path} is no state of declctl")
    if int(number) != FORMAT:
        raise StateUnusable(f"{path} has the format {int(number)}, and this declctl reads {FORMAT}")


def _state_of(path: Path, blocks: Iterable[Sequence[StateEntry]]) -> KeptState:
    found, since_mark = _StateReading(), list[StateEntry]()
    for entry in (each for block in blocks for each in block):
        since_mark.append(entry)
        if isinstance(entry, StateHeader):
            found.header = entry
        elif isinstance(entry, KeptMark | StateEnd):
            for each in since_mark:
                found.take(each)
            since_mark.clear()
    if found.header is None:
        raise StateUnusable(f"{path} is torn before its first entry")
    caches = {found.caches[number].identity: found.caches[number] for number in sorted(found.whole)}
    return KeptState(
        found.header,
        caches,
        found.is_ended,
        digest=found.digest,
        handlers=found.handlers,
        notes=found.notes,
    )


class _StateReading:
    """A file, as far as it was read."""

    def __init__(self) -> None:
        self.header: StateHeader | None = None
        self.caches: dict[int, CacheState] = {}
        self.whole: set[int] = set()  # caches whose list has come to its end
        self.is_ended = False
        self.digest = ""
        self.handlers: dict[str, HandlerState] = {}
        self.notes = KeptNotes()

    def take(self, entry: StateEntry) -> None:
        """Take the next entry."""
        caches, whole = self.caches, self.whole
        match entry:
            case KeptCache():
                caches[entry.cache] = CacheState(entry.identity, entry.name, entry.paths)
            case FrameDictionary(stream, number, data):
                caches[stream].dictionaries[number] = data
            case KeptFinalizers():
                caches[entry.cache].finalizers = entry.keys
            case KeptList():
                if entry.cache in whole:  # listed anew
                    whole.discard(entry.cache)
                    caches[entry.cache].objects = {}
                _take(caches[entry.cache], entry)
                if not entry.more:
                    whole.add(entry.cache)
            case KeptChanges():
                _take(caches[entry.cache], entry)
            case KeptMark():
                self._mark(entry)
            case KeptNotes():
                self.notes = entry
            case StateEnd():
                self.is_ended = True
            case StateHeader():
                pass

    def _mark(self, mark: KeptMark) -> None:
        self.digest, handlers = mark.digest, dict[str, HandlerState]()
        for each in mark.handlers:
            before = None if each.whole else self.handlers.get(each.name)
            state = handlers[each.name] = before or HandlerState()
            # If it was not known before, the keys of this mark alone do not say what it has to do.
            state.kind, state.is_known = each.kind, each.is_known and (each.whole or state.is_known)
            state.caches = [self.caches[number].identity for number in each.caches]
            for key in each.keys:
                if key.change or key.memo or key.letter:
                    state.keys[key.key] = key
                else:
                    state.keys.pop(key.key, None)
        self.handlers = handlers


def _take(cache: CacheState, entry: KeptList | KeptChanges) -> None:
    cache.version = entry.version or cache.version
    for each in entry.objects:
        if each.frame:
            cache.objects[each.key] = each
        else:
            cache.objects.pop(each.key, None)
