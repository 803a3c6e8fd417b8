"""Frames: an object as compressed bytes, which are decoded only when a reader asks for the object.

A codec belongs to one resource. It learns a dictionary from the first objects it sees: what the objects of
one resource have in common. An object of a few kilobytes says little that the others don't say, so a
dictionary makes frames two to four times smaller. What they have in common changes as software is rolled out,
so compression is watched, and another dictionary is learned when it has decayed. Frames that were made before
stay readable. Plain JSON is kept where compression would not make it smaller.

A compressed frame is a zstd frame without its magic number, which would say nothing new. Its first byte, the
descriptor, tells it from plain JSON: no descriptor is a brace.

`cache: {mode: Objects}` keeps held objects, so that a read neither decompresses nor parses. All readers of a
held object share what is inside. Views refuse writes; code that reaches past one could change it. So its
frame stays beside it: no code can change that, a private copy is made from it, and `mutations` puts right
what was changed.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, TypeAlias

import msgspec
import zstandard

_LEVEL = 1  # level 3 makes frames of pods up to 6 % smaller, for half as much CPU again

_SAMPLES = 160
_SAMPLE_BYTES = 640 * 1024  # in all; to learn from more takes longer, and makes no frame smaller
_LONGEST_SAMPLE = 16 * 1024
_HELD_OUT = 4  # one sample in so many is not learned from, but tells whether learning was worth it
_LARGEST = 32 * 1024  # 64 KB make frames of varied pods 3 % smaller, others larger, and cost 2 % more CPU
_SAMPLES_TO_DICTIONARY = 6  # a dictionary larger than that part of its samples learns them by heart
_SEGMENT = 2048  # as good as what zstd finds by trying, which takes 55 ms instead of 7

# The table of what was seen is half as large as zstd's own for that level: it stays in the first cache of
# a processor, though each object passes through that twice before. So a frame takes 5 to 10 % less CPU;
# frames of pods are 1 % smaller, others 2 % larger.
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(
    _LEVEL, dict_size=_LARGEST, hash_log=12, write_dict_id=True
)

_STRIDE = 16  # one object in so many is looked at
_WINDOW = 128  # looks between two judgements
_LONGEST_WINDOW = 64 * 1024
_DECAYED = 0.8  # of the ratio that a dictionary began with
_SMALLER = 0.97  # what frames may have of their size without a dictionary, or with the one before
_MOST = 8  # dictionaries; each stays in memory, because frames may have been made with it


class DictionaryTrainer:
    """Decides when to learn, and learns: some 7 ms, in which whoever encodes waits.

    What it does depends on nothing but the objects that it looks at. `compressor` is the one to
    use. `dictionaries` are all that were learned: the id of each is its place in the list; the
    first place is that of no dictionary. `wait` says how many objects it lets pass until it looks
    at one.
    """

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.dictionaries: list[zstandard.ZstdCompressionDict | None] = [None]
        self.trainings = 0
        self.wait = 1  # of the first objects, each is a sample
        self._samples: list[bytes] | None = []  # None while nothing has to be learned
        self._sample_bytes = 0
        self._window = _WINDOW
        self._looks = self._plain_bytes = self._frame_bytes = 0  # of this window
        self._fresh = 0.0  # the ratio in the first window of this dictionary
        self._latest = 0.0  # that of the last window that is complete

    @property
    def ratio(self) -> float:
        """Of the bytes of objects to those of their frames, lately; 0 before there was any."""
        return self._latest or (self._plain_bytes / self._frame_bytes if self._frame_bytes else 0.0)

    def look(self, plain: bytes, frame_bytes: int) -> None:
        """Look at an object, and at how small it became."""
        self._looks += 1
        self._plain_bytes += len(plain)
        self._frame_bytes += frame_bytes
        if self._samples is not None:
            self._sample(plain, self._samples)
        elif self._looks == self._window:
            self._judge()

    def _judge(self) -> None:
        self._latest = self._plain_bytes / self._frame_bytes
        self._fresh = self._fresh or self._latest
        decayed = len(self.dictionaries) == 1 or self._latest < self._fresh * _DECAYED
        if decayed and len(self.dictionaries) <= _MOST:
            self._samples = []
        self._begin_window()

    def _sample(self, plain: bytes, samples: list[bytes]) -> None:
        samples.append(plain[:_LONGEST_SAMPLE])
        self._sample_bytes += len(samples[-1])
        if len(samples) < _SAMPLES and self._sample_bytes < _SAMPLE_BYTES:
            return
        self._samples, self._sample_bytes = None, 0
        self.trainings += 1
        # What nothing is gained from is only harder to compress than what came before: ask less often.
        self._window = _WINDOW if self._learn(samples) else min(self._window * 2, _LONGEST_WINDOW)
        self._fresh, self.wait = 0.0, _STRIDE
        self._begin_window()

    def _begin_window(self) -> None:
        self._looks = self._plain_bytes = self._frame_bytes = 0

    def _learn(self, samples: Sequence[bytes]) -> bool:
        lessons = [sample for number, sample in enumerate(samples) if number % _HELD_OUT]
        dictionary = _trained(lessons, dictionary_id=len(self.dictionaries))
        if dictionary is None:
            return False
        compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS, dict_data=dictionary)
        held_out = samples[::_HELD_OUT]
        if _size(held_out, compressor) > _size(held_out, self.compressor) * _SMALLER:
            return False
        self.dictionaries.append(dictionary)
        self.compressor = compressor
        return True


def _trained(samples: Sequence[bytes], *, dictionary_id: int) -> zstandard.ZstdCompressionDict | None:
    size = min(sum(map(len, samples)) // _SAMPLES_TO_DICTIONARY, _LARGEST)
    try:
        return zstandard.train_dictionary(
            size,
            [*samples],
            k=min(_SEGMENT, size // 2),
            d=8,
            f=18,
            accel=2,
            steps=1,
            level=_LEVEL,
            dict_id=dictionary_id,
        )
    except zstandard.ZstdError:
        return None  # too little in common to learn from


def _size(samples: Sequence[bytes], compressor: zstandard.ZstdCompressor) -> int:
    return sum(len(compressor.compress(sample)) for sample in samples)


_MAGIC = zstandard.FRAME_HEADER
_AFTER_MAGIC = slice(len(_MAGIC), None)
# The backend of PyPy can't decompress several frames in one call.
DECOMPRESSES_TOGETHER = "multi_decompress_to_buffer" in zstandard.backend_features
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
        if not DECOMPRESSES_TOGETHER:
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


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # all that decoding may raise
BROKEN_FRAME = (zstandard.ZstdError, ValueError)  # all that decompressing may raise

KubeObject = dict[str, Any]
"""A Kubernetes object as JSON gives it: the only place where a shape is unknown."""


FILLED_IN = ("apiVersion", "kind")
"""What lists leave out of their items, and whoever decodes one fills in."""


def of_kind(obj: dict[str, Any], api_version: str, kind: str) -> dict[str, Any]:
    """The object with the `apiVersion` and `kind` that lists leave out of their items."""
    if "kind" in obj and "apiVersion" in obj:
        return obj
    return {"apiVersion": api_version, "kind": kind, **obj}


class HeldObject(msgspec.Struct, eq=False, weakref=True):
    """A decoded object, and its frame; its length is that of its JSON, in bytes.

    `body` is for reading only, and None where the object can't be decoded.
    """

    body: dict[str, Any] | None
    frame: bytes
    size: int

    def __len__(self) -> int:
        return self.size


Frame = bytes | HeldObject
"""How a cache keeps an object; its length is what is counted as its bytes."""


class Codec(Protocol):
    """How the objects of one resource are kept. `encode` is called by one thread, `decode` by any."""

    def encode(self, plain: bytes) -> Frame:
        """What is kept of a JSON object."""
        ...

    def decode(self, frame: Any) -> bytes:
        """The JSON object of what this codec made."""
        ...

    def statistics(self) -> FrameStatistics:
        """How small its frames are."""
        ...


class ObjectCodec:
    """Bytes to held object and back: a Codec. `alive` may be called by any thread."""

    def __init__(self, *, api_version: str, kind: str) -> None:
        self.api_version = api_version
        self.kind = kind
        self._frames = FrameCodec()
        self._made: dict[int, weakref.ref[HeldObject]] = {}

    def encode(self, plain: bytes) -> HeldObject:
        """The held object of a JSON object."""
        try:
            body = of_kind(msgspec.json.decode(plain), self.api_version, self.kind)
        except UNREADABLE:
            body = None  # whoever reads it is told why
        held = HeldObject(body, self._frames.encode(plain), len(plain))
        number = id(held)
        self._made[number] = weakref.ref(held, lambda _: self._made.pop(number, None))
        return held

    def decode(self, frame: Frame) -> bytes:
        """The JSON object of what this codec made: as it came, whatever its readers did to it."""
        return self._frames.decode(frame if isinstance(frame, bytes) else frame.frame)

    def statistics(self) -> FrameStatistics:
        """How small the frames are that stay beside the objects."""
        return self._frames.statistics()

    def pristine(self, held: HeldObject) -> dict[str, Any]:
        """The object as it came, decoded anew; raises the errors of decoding."""
        return of_kind(msgspec.json.decode(self.decode(held)), self.api_version, self.kind)

    def alive(self) -> Sequence["weakref.ref[HeldObject]"]:
        """Every object that somebody holds: a cache, a change that waits, a reader."""
        return list(self._made.values())
