"""Frames: an object as compressed bytes, which nobody decodes until somebody reads it.

A codec belongs to one resource. It learns a dictionary from the first objects it sees, and another
one when compression decays; frames that were made before stay readable. Plain JSON is kept where
compression would not make it smaller.

A compressed frame is a zstd frame without its magic number, which would say nothing new. Its first
byte, the descriptor, tells it from plain JSON: no descriptor is a brace.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import zstandard

from declctl.objects.dictionaries import DictionaryTrainer

_MAGIC = zstandard.FRAME_HEADER
_AFTER_MAGIC = slice(len(_MAGIC), None)
_TOGETHER = "multi_decompress_to_buffer" in zstandard.backend_features  # that of PyPy has not got it
_PLAIN = b"{"  # no descriptor: two bits that zstd leaves 0 are 1 in it
_DICTIONARY_ID = 0b0000_0011  # of the descriptor: how the id of a dictionary is written; here 0 or 1 byte
_SINGLE_SEGMENT = 0b0010_0000  # of the descriptor: whether the id is next, or after one byte

_Reader: TypeAlias = zstandard.ZstdDecompressor | None  # None for what is plain


@dataclass(frozen=True, slots=True)
class FrameStatistics:
    """How small frames are, and what was learned to make them so.

    `ratio` is of the bytes of objects to those of their frames, in one of 16 of the last objects.
    Not every training gives a dictionary.
    """

    ratio: float
    trainings: int
    dictionaries: int


class FrameCodec:
    """Bytes to frame and back. `encode` is called by one thread, `decode` by any."""

    def __init__(self) -> None:
        self._trainer = DictionaryTrainer()
        self._compress = self._trainer.compressor.compress
        self._wait = self._trainer.wait
        self._readers = _Readers()

    @property
    def trained(self) -> bool:
        """Whether it has learned a dictionary."""
        return len(self._trainer.dictionaries) > 1

    def statistics(self) -> FrameStatistics:
        """The figures so far."""
        trainer = self._trainer
        return FrameStatistics(trainer.ratio, trainer.trainings, len(trainer.dictionaries) - 1)

    def encode(self, plain: bytes) -> bytes:
        """The frame of a JSON object."""
        # The compressor allocates for the worst case and shrinks in place; keeping its result would
        # keep the hole. What is sliced off it is a copy, of exactly its size.
        frame = self._compress(plain)[_AFTER_MAGIC]
        if len(frame) >= len(plain) and plain.startswith(_PLAIN):
            frame = plain
        self._wait -= 1
        if not self._wait:
            self._look(plain, frame)
        return frame

    def decode(self, frame: bytes) -> bytes:
        """The JSON object of a frame made by this codec."""
        reader = self._reader_of(frame)
        return frame if reader is None else reader.decompress(_MAGIC + frame)

    def decode_many(self, frames: Sequence[bytes]) -> Sequence[Any]:
        """The JSON objects of many frames as buffers of bytes, each a fifth quicker than alone.

        All of them are in memory as long as one is.
        """
        if not _TOGETHER:
            return [self.decode(frame) for frame in frames]
        found: list[Any] = []
        for reader, some in self._runs(frames):
            if reader is None:
                found += some
            else:
                segments: Any = reader.multi_decompress_to_buffer([_MAGIC + frame for frame in some])
                found += segments
        return found

    def _runs(self, frames: Sequence[bytes]) -> Iterable[tuple[_Reader, Iterable[bytes]]]:
        heads = {frame[:2] for frame in frames}
        if len(heads) == 1 and heads.pop()[0] & _SINGLE_SEGMENT:
            return [(self._reader_of(frames[0]), frames)]  # as nearly always: no need to ask for each
        return groupby(frames, self._reader_of)

    def _reader_of(self, frame: bytes) -> _Reader:
        if frame.startswith(_PLAIN):
            return None
        descriptor, dictionary_id = frame[0], 0
        if descriptor & _DICTIONARY_ID:
            dictionary_id = frame[1 if descriptor & _SINGLE_SEGMENT else 2]
        reader = self._readers.by_dictionary.get(dictionary_id)
        if reader is None:
            reader = zstandard.ZstdDecompressor(dict_data=self._trainer.dictionaries[dictionary_id])
            self._readers.by_dictionary[dictionary_id] = reader
        return reader

    def _look(self, plain: bytes, frame: bytes) -> None:
        self._trainer.look(plain, len(frame))
        self._compress = self._trainer.compressor.compress
        self._wait = self._trainer.wait


class _Readers(threading.local):
    """A decompressor may not be used by two threads at once."""

    def __init__(self) -> None:
        self.by_dictionary: dict[int, zstandard.ZstdDecompressor] = {}
