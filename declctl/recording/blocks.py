"""The file of a recording: a first line, then blocks of entries, each with its length and its checksum.

A process may be killed at any byte of a write. So a reader takes all whole blocks, and says that the rest is
torn.
"""

import os
import struct
import zlib
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TypeVar, overload

import msgspec
import zstandard

from declctl.errors import UsageError
from declctl.recording.entries import ENTRIES, Entry, RecordingHeader

T = TypeVar("T")

FORMAT = 1
_WORD = b"declctl-recording "
FIRST_LINE = _WORD + b"%d\n" % FORMAT
_HEAD = struct.Struct(">II")  # the bytes of a block, and their CRC-32
_MOST_BYTES = 64 << 20  # of the entries of one block
_LEVEL = 1  # frames are compressed already: a higher level makes files a few percent smaller
_LONGEST_LINE = 64
_KEPT_BLOCKS = 8  # that are in memory


def _as_text(value: object) -> str:
    """Keys may be strings of a class of their own."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a recording has no {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_as_text)


class BlockFile:
    """A file that blocks are appended to. It is made with mode 0600, in the place of one that is there."""

    def __init__(self, path: Path, *, first_line: bytes = FIRST_LINE) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._file.write(first_line)
        self.bytes = len(first_line)  # of the file so far

    def append(self, entries: Sequence[object]) -> None:
        """Append one block. Raises OSError; then the end of the file may be torn."""
        block = self._compressor.compress(_encoder.encode(entries))
        self._file.write(_HEAD.pack(len(block), zlib.crc32(block)) + block)
        self.bytes += _HEAD.size + len(block)

    def sync(self) -> None:
        """Let the disk have all that was appended. Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. May be repeated."""
        self._file.close()


class EntrySequence(Sequence[Entry], ABC):
    """Entries that are not in memory: `entry_at` finds one of them."""

    @abstractmethod
    def entry_at(self, position: int) -> Entry:
        """The entry at a position, which is within the sequence."""

    @overload
    def __getitem__(self, position: int) -> Entry: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Entry]: ...
    def __getitem__(self, position: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        if not 0 <= position < len(self):
            raise IndexError(position)
        return self.entry_at(position)


class RecordedEntries(EntrySequence):
    """The entries of the whole blocks of one file, without the header.

    Blocks are read when they are needed, and some are kept: a recording is larger in memory than on the disk.
    The file stays open, so that it may be renamed or replaced meanwhile.
    """

    def __init__(self, path: Path) -> None:
        """Find the blocks.

        Raises UsageError for a file that can't be read, is no recording, or has a newer format.
        """
        self._offsets = array("Q")  # of blocks in the file
        self._firsts = array("Q")  # the positions of their first entries, with the header
        self._size = 0  # entries, with the header
        self._block = lru_cache(_KEPT_BLOCKS)(self._read_block)
        first: Sequence[Entry] = ()
        try:
            self._file = path.open("rb")
            _read_first_line(path, self._file)
            whole = self._file.tell()
            for block in blocks_of(self._file, ENTRIES):
                first = first or block
                self._offsets.append(whole)
                self._firsts.append(self._size)
                self._size += len(block)
                whole = self._file.tell()
            self.torn = os.fstat(self._file.fileno()).st_size - whole
            """Bytes after the last whole block."""
        except OSError as error:
            raise UsageError(f"{path}: it can't be read: {error.strerror or error}") from error
        if first and isinstance(first[0], RecordingHeader):
            self.header = first[0]
        else:
            raise UsageError(
                f"{path}: the recording is torn before its first entry: its process was killed as it "
                f"began, or the file is damaged. A recording that was begun before it may be in {path}.1"
            )

    def __len__(self) -> int:
        return self._size - 1

    def entry_at(self, position: int) -> Entry:
        """The entry at a position, from its block."""
        block = bisect_right(self._firsts, position + 1) - 1
        return self._block(block)[position + 1 - self._firsts[block]]

    def _read_block(self, number: int) -> Sequence[Entry]:
        self._file.seek(self._offsets[number])
        return next(blocks_of(self._file, ENTRIES))


def is_recording(path: Path) -> bool:
    """Whether a file is empty, or begins as a recording does. Raises OSError."""
    with path.open("rb") as file:
        found = file.read(len(_WORD))
    return _WORD.startswith(found)


def _read_first_line(path: Path, file: BinaryIO) -> None:
    line = file.readline(_LONGEST_LINE)
    if not line:
        raise UsageError(
            f"{path}: the file is empty, and no recording: `declctl run --record FILE` makes one"
        )
    number = line.removeprefix(_WORD).strip()
    if not line.startswith(_WORD) or not line.endswith(b"\n") or not number.isdigit():
        raise UsageError(
            f"{path}: the file is no recording: it does not begin with {FIRST_LINE.decode().strip()!r}. "
            "`declctl run --record FILE` makes one"
        )
    if int(number) > FORMAT:
        raise UsageError(
            f"{path}:1: the recording has the format {int(number)}, and this declctl reads those up to "
            f"{FORMAT}: replay it with the version that has made it, or a newer one"
        )


def blocks_of(file: BinaryIO, decoder: msgspec.msgpack.Decoder[list[T]]) -> Iterator[Sequence[T]]:
    """The entries of each block, from the present place of a file to the first block that is not whole."""
    decompressor = zstandard.ZstdDecompressor()
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        if length > _MOST_BYTES:
            return
        block = file.read(length)
        if len(block) < length or zlib.crc32(block) != checksum:
            return
        try:
            if zstandard.frame_content_size(block) > _MOST_BYTES:
                return
            yield decoder.decode(decompressor.decompress(block))
        except (zstandard.ZstdError, msgspec.MsgspecError):
            return
