"""The spool: events on disk, in segment files, until they are delivered.

A segment is appended to until it has its size, and is removed when all of its events are acknowledged.
Acknowledgements stand in a file beside it. So an event that is appended survives the end of the process,
however it ends, and is read again by the next one. An acknowledgement that was not written means that an
event is delivered twice, never that it is lost.

A record is a header (length, CRC-32, sequence number, time), the key and the body. A record that is not
complete ends its segment: it is the append that was interrupted. A process never appends to a segment of an
earlier one, so nothing stands behind such a record.
"""

import fcntl
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from declctl_webhook.settings import SettingsError, SpoolSettings, WhenFull

_MAGIC: Final = b"declctl-webhook spool 1\n"
_HEADER: Final = struct.Struct("<IIQd")  # bytes of the rest, CRC of all but the first two, sequence, time
_CHECKED: Final = struct.Struct("<Qd")
_KEY: Final = struct.Struct("<H")
_ACK: Final = struct.Struct("<QI")
_NAME = re.compile(r"segment-(\d{20})\.log")
_LARGEST_SEGMENT: Final = 4 * 2**20
_LONGEST_KEY: Final = 2**16 - 1


class SpoolFull(Exception):
    """The spool has no room, and its policy is to refuse new events."""


class EventTooLarge(Exception):
    """An event that is larger than the whole spool."""


class Damaged(Exception):
    """A record whose checksum does not fit."""


class Entry:
    """An event in the spool. Its place may change when the segment is rewritten."""

    __slots__ = ("key", "offset", "segment", "sequence", "size", "spooled_at")

    def __init__(
        self, sequence: int, key: str, spooled_at: float, segment: "Segment", offset: int, size: int
    ) -> None:
        self.sequence = sequence  # grows with each event of the spool
        self.key = key
        self.spooled_at = spooled_at  # Unix time
        self.segment = segment
        self.offset = offset  # of its record
        self.size = size  # of its record, in bytes


class Segment:
    """One segment file."""

    __slots__ = ("entries", "is_sealed", "live_bytes", "number", "path", "size")

    def __init__(self, number: int, path: Path) -> None:
        self.number = number  # the sequence number of its first event, or less
        self.path = path
        self.size = 0  # in bytes
        self.entries: dict[int, Entry] = {}  # not acknowledged, by sequence number
        self.live_bytes = 0  # of these
        self.is_sealed = True  # nothing is appended any more

    def add(self, entry: Entry) -> None:
        """Add an event that is not acknowledged."""
        self.entries[entry.sequence] = entry
        self.live_bytes += entry.size

    def discard(self, entry: Entry) -> bool:
        """Forget an event; whether it was there."""
        if self.entries.pop(entry.sequence, None) is None:
            return False
        self.live_bytes -= entry.size
        return True

    @property
    def acknowledgements(self) -> Path:
        """The file beside it."""
        return self.path.with_suffix(".ack")


class Recovery(NamedTuple):
    """What an earlier process has left."""

    entries: list[Entry]  # not acknowledged, the oldest first
    incomplete: int  # segments that end with an interrupted append, which no handler has relied upon
    damaged: int  # records whose checksum did not fit: their events are lost


class Spool:
    """The events of one folder. One thread at a time may use it, and one process.

    `now` is the Unix time.
    """

    def __init__(self, settings: SpoolSettings, *, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._segments: dict[int, Segment] = {}  # by number, the oldest first
        self._active: Segment | None = None  # the one that is appended to
        self._file = -1  # of the active segment
        self._lock = -1  # a file with a lock on it, from `open` to `close`
        self._next = 1  # the next sequence number
        self.faults = 0  # files that could not be written or removed: their events may be delivered twice
        self.last_fault = ""

    def open(self) -> Recovery:
        """Take the folder, and read what is in it. Blocks.

        Raises SettingsError if the folder can't be written, or another process has it.
        """
        folder = self._settings.path
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(_unwritable(folder, error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._recover(folder)
        except BlockingIOError as error:
            self._unlock()
            raise SettingsError(
                f"another process uses the spool {folder}: give each process a folder of its own"
            ) from error
        except OSError as error:
            self._unlock()
            raise SettingsError(_unwritable(folder, error)) from error

    def close(self) -> None:
        """Give the folder back; events that are not acknowledged stay in it."""
        self._seal()
        for segment in [each for each in self._segments.values() if not each.entries]:
            self._remove(segment)
        self._unlock()

    def configure(self, settings: SpoolSettings) -> None:
        """Use other limits from now on. The folder stays the same."""
        self._settings = settings

    @property
    def disk_bytes(self) -> int:
        """The size of the segments on disk."""
        return sum(segment.size for segment in self._segments.values())

    def append(
        self, key: str, body: bytes, *, when_full: WhenFull | None = None
    ) -> tuple[Entry | None, list[Entry]]:
        """Write an event. Returns its entry, or None if it was dropped, and the older ones that were dropped.

        `when_full` replaces the policy of the settings. Raises SpoolFull, EventTooLarge, and OSError if the
        disk is full or read-only; then nothing was written.
        """
        name = key.encode("utf-8", "replace")[:_LONGEST_KEY]
        rest = _KEY.pack(len(name)) + name + body
        size = _HEADER.size + len(rest)
        if size + len(_MAGIC) > self._settings.max_bytes:
            raise EventTooLarge(f"{len(body):,} bytes, and spool.maxBytes is {self._settings.max_bytes:,}")
        dropped = self._make_room(size, when_full or self._settings.when_full)
        if dropped is None:
            return None, []
        sequence, at = self._next, self._now()
        record = _HEADER.pack(len(rest), _checksum(sequence, at, rest), sequence, at) + rest
        segment = self._segment()
        try:
            _write(self._file, record)
            if self._settings.fsync:
                os.fdatasync(self._file)
        except OSError:
            # A part of it may be there. Nothing may be appended behind that part.
            with suppress(OSError):
                os.ftruncate(self._file, segment.size)
            self._abandon(segment)
            raise
        self._next += 1
        entry = Entry(sequence, key, at, segment, segment.size, size)
        segment.add(entry)
        segment.size += size
        return entry, dropped

    def read(self, entry: Entry) -> bytes:
        """The body of an event. Raises Damaged, and OSError."""
        with entry.segment.path.open("rb") as file:
            file.seek(entry.offset)
            record = file.read(entry.size)
        found = next(_records(record, 0), None)
        if found is None or found.body is None or found.sequence != entry.sequence:
            raise Damaged(f"event {entry.sequence} in {entry.segment.path.name}")
        return found.body

    @staticmethod
    def has(entry: Entry) -> bool:
        """Whether the event is neither acknowledged nor dropped."""
        return entry.sequence in entry.segment.entries

    def acknowledge(self, entries: Iterable[Entry]) -> None:
        """Forget events: they are delivered, or dropped. Never raises OSError: see `faults`."""
        by_segment: dict[int, list[Entry]] = {}
        for entry in entries:
            if entry.segment.discard(entry):
                by_segment.setdefault(entry.segment.number, []).append(entry)
        for number, done in by_segment.items():
            segment = self._segments[number]
            if not segment.entries and (segment.is_sealed or segment.size > self._segment_bytes // 2):
                self._remove(segment)
            else:
                self._write_acknowledgements(segment, done)

    @property
    def _segment_bytes(self) -> int:
        return max(4096, min(_LARGEST_SEGMENT, self._settings.max_bytes // 8))

    def _recover(self, folder: Path) -> Recovery:
        for leftover in folder.glob("*.tmp"):  # of a rewrite that was interrupted
            leftover.unlink()
        entries: list[Entry] = []
        incomplete = damaged = 0
        for path in sorted(folder.glob("segment-*.log")):
            match = _NAME.fullmatch(path.name)
            if match is None:
                continue
            segment = Segment(int(match[1]), path)
            content, done = path.read_bytes(), _acknowledged(segment.acknowledgements)
            segment.size = len(content)
            self._segments[segment.number] = segment
            self._next = max(self._next, segment.number + 1)
            end = len(_MAGIC) if content.startswith(_MAGIC) else 0
            for record in _records(content, end) if end else ():
                end = record.end
                self._next = max(self._next, record.sequence + 1)
                if record.body is None:
                    damaged += 1
                elif record.sequence not in done:
                    size = record.end - record.offset
                    entry = Entry(record.sequence, record.key, record.at, segment, record.offset, size)
                    segment.add(entry)
            incomplete += end < len(content)
            if segment.entries:
                entries += segment.entries.values()
            else:
                self._remove(segment)
        for orphan in folder.glob("segment-*.ack"):
            if not orphan.with_suffix(".log").exists():
                orphan.unlink()
        return Recovery(sorted(entries, key=lambda entry: entry.sequence), incomplete, damaged)

    def _make_room(self, size: int, policy: WhenFull) -> list[Entry] | None:
        """The older events that were dropped; None if the new one is."""
        dropped: list[Entry] = []
        limit = self._settings.max_bytes - size - (0 if self._active is not None else len(_MAGIC))
        while self.disk_bytes > limit:
            if self._compact():
                continue
            if policy is WhenFull.REFUSE:
                raise SpoolFull
            if policy is WhenFull.DROP_NEWEST:
                return None
            oldest = next(iter(self._segments.values()))
            if oldest is self._active:
                self._seal()
            dropped += oldest.entries.values()
            oldest.entries.clear()
            oldest.live_bytes = 0
            self._remove(oldest)
            limit = self._settings.max_bytes - size - (0 if self._active is not None else len(_MAGIC))
        return dropped

    def _compact(self) -> bool:
        """Rewrite a segment of which more than half is acknowledged; whether there was one."""
        for segment in self._segments.values():
            if segment.size - len(_MAGIC) <= 2 * segment.live_bytes:
                continue
            if segment is self._active:
                self._seal()
            if not segment.entries:
                self._remove(segment)
            elif not self._rewrite(segment):
                continue
            return True
        return False

    def _rewrite(self, segment: Segment) -> bool:
        """Write the events that are not acknowledged into a file that takes the place of the segment.

        Returns whether it was written.
        """
        temporary = segment.path.with_suffix(".tmp")
        try:
            return self._replace(segment, temporary)
        except OSError as error:  # the disk is full: the old file is still whole
            self._note(error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return False

    def _replace(self, segment: Segment, temporary: Path) -> bool:
        content = segment.path.read_bytes()
        kept, parts, size = sorted(segment.entries.values(), key=lambda e: e.sequence), [_MAGIC], len(_MAGIC)
        places: list[int] = []
        for entry in kept:
            parts.append(content[entry.offset : entry.offset + entry.size])
            places.append(size)
            size += entry.size
        with temporary.open("wb") as file:
            file.write(b"".join(parts))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(segment.path)
        # Acknowledgements name events and not places: those of the old file are true of the new one.
        for entry, place in zip(kept, places, strict=True):
            entry.offset = place
        segment.size = size
        return True

    def _segment(self) -> Segment:
        """The segment to append to. Raises OSError."""
        if self._active is not None and self._active.size < self._segment_bytes:
            return self._active
        self._seal()
        path = self._settings.path / f"segment-{self._next:020}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        segment = Segment(self._next, path)
        self._segments[segment.number] = segment
        try:
            _write(self._file, _MAGIC)
            if self._settings.fsync:
                _fsync_folder(self._settings.path)
        except OSError:
            self._abandon(segment)
            raise
        segment.size, segment.is_sealed, self._active = len(_MAGIC), False, segment
        return segment

    def _seal(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        if self._active is not None:
            self._active.is_sealed = True
        self._file, self._active = -1, None

    def _abandon(self, segment: Segment) -> None:
        """Never append to this segment again, after a failed write."""
        self._seal()
        self._next += 1  # the name of the next segment differs, even if this one can't be removed
        if not segment.entries:
            self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        if segment is self._active:
            self._seal()
        del self._segments[segment.number]
        try:
            # The events first: an acknowledgement without an event does no harm.
            segment.path.unlink(missing_ok=True)
            segment.acknowledgements.unlink(missing_ok=True)
        except OSError as error:
            self._note(error)

    def _write_acknowledgements(self, segment: Segment, done: Iterable[Entry]) -> None:
        numbers = [entry.sequence for entry in done]
        content = b"".join(_ACK.pack(number, zlib.crc32(number.to_bytes(8, "little"))) for number in numbers)
        try:
            path = segment.acknowledgements
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                _write(file, content)
            finally:
                os.close(file)
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        self.faults += 1
        self.last_fault = f"{error.filename or self._settings.path}: {error.strerror}"

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


class _Found(NamedTuple):
    offset: int
    end: int
    sequence: int
    at: float
    key: str
    body: bytes | None  # None if the checksum does not fit


def _records(content: bytes, offset: int) -> Iterator[_Found]:
    """The records of a segment, up to the first that is not complete."""
    while offset + _HEADER.size <= len(content):
        length, checksum, sequence, at = _HEADER.unpack_from(content, offset)
        start, end = offset + _HEADER.size, offset + _HEADER.size + length
        if length < _KEY.size or end > len(content):
            return
        rest = content[start:end]
        if _checksum(sequence, at, rest) != checksum:
            yield _Found(offset, end, 0, 0.0, "", None)
        else:
            key_end = _KEY.size + _KEY.unpack_from(rest)[0]
            yield _Found(
                offset,
                end,
                sequence,
                at,
                rest[_KEY.size : key_end].decode("utf-8", "replace"),
                rest[key_end:],
            )
        offset = end


def _checksum(sequence: int, at: float, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(_CHECKED.pack(sequence, at)))


def _acknowledged(path: Path) -> set[int]:
    """The sequence numbers of a file of acknowledgements; those whose checksum does not fit are left out."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return set()
    whole = len(content) - len(content) % _ACK.size
    if whole < len(content):
        os.truncate(path, whole)  # an interrupted write: others are appended behind it
    pairs = _ACK.iter_unpack(content[:whole])
    return {number for number, checksum in pairs if zlib.crc32(number.to_bytes(8, "little")) == checksum}


def _write(file: int, content: bytes) -> None:
    """Write all of it. Raises OSError."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(folder: Path, error: OSError) -> str:
    return (
        f"the spool {folder} can't be used: {error.strerror}. Events wait there until they are delivered: "
        "mount a volume that the process may write (an emptyDir survives a restart of the container, a "
        "PersistentVolumeClaim one of the pod), and name it in spool.path"
    )
