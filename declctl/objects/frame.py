"""Frames: an object as compressed bytes, which are decoded only when a reader asks for the object.

A codec belongs to one resource. From the first objects it learns a zstd dictionary of the texts that they
have in common. With a dictionary, frames are two to four times smaller. When software is rolled out, objects
change and frames grow; then the codec learns another dictionary. Older frames stay readable. An object that
compression does not make smaller is kept as plain JSON.

A compressed frame is a zstd frame without its magic number. Its first byte, the descriptor, distinguishes it
from plain JSON, because no descriptor is a brace.

`cache: {mode: Objects}` keeps held objects, so that a read neither decompresses nor parses. All readers share
the dictionaries and lists in a held object. Views refuse writes, but code that bypasses a view could change
them. So the frame is kept beside the object: private copies are made from it, and `MutationDetector` restores
the object.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import zstandard

_LEVEL = 1  # level 3 makes frames of pods up to 6 % smaller, for half as much CPU again

_SAMPLES = 160  # objects to learn from
_SAMPLE_BYTES = 640 * 1024  # of all samples; more take longer, and make no frame smaller
_LONGEST_SAMPLE = 16 * 1024  # bytes of one sample
_HELD_OUT = 4  # one sample in so many is not learned from, and tests the new dictionary instead
_LARGEST = 32 * 1024  # 64 KB make frames of varied pods 3 % smaller, others larger, and cost 2 % more CPU
_SAMPLES_TO_DICTIONARY = 6  # samples have so many times the bytes of the dictionary, so that it generalises
_SEGMENT = 2048  # as good as the value that zstd finds by trials, which take 55 ms in the place of 7

# zstd's hash table, at half its size for this level, stays in the first-level cache of a processor. So a
# frame takes 5 to 10 % less CPU; frames of pods are 1 % smaller, others 2 % larger.
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(
    _LEVEL, dict_size=_LARGEST, hash_log=12, write_dict_id=True
)

_STRIDE = 16  # one object in so many is measured
_WINDOW = 128  # measured objects between two checks of the ratio
_LONGEST_WINDOW = 64 * 1024
_DECAYED = 0.8  # of a dictionary's first ratio; below it another one is learned
_SMALLER = 0.97  # a new dictionary is used if frames have at most this part of their size without it
_MOST = 8  # dictionaries; each stays in memory, because frames refer to it


class DictionaryTrainer:
    """Decides when to learn a dictionary, and learns it, within `look`: some 7 ms. Used by one thread.

    Its decisions depend only on the objects that it measures.
    """

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)  # the one to use now
        self.dictionaries: list[zstandard.ZstdCompressionDict | None] = [None]  # by id; 0 is no dictionary
        self.trainings = 0  # attempts to learn a dictionary
        self.wait = 1  # the next object to measure is so many objects ahead; at first, each is measured
        self._samples: list[bytes] | None = []  # None while no dictionary has to be learned
        self._sample_bytes = 0
        self._window = _WINDOW
        self._looks = self._plain_bytes = self._frame_bytes = 0  # of this window
        self._fresh = 0.0  # the ratio in the first window of this dictionary
        self._latest = 0.0  # the ratio in the last complete window

    @property
    def ratio(self) -> float:
        """The bytes of recent objects divided by the bytes of their frames; 0 before the first object."""
        return self._latest or (self._plain_bytes / self._frame_bytes if self._frame_bytes else 0.0)

    def look(self, plain: bytes, frame_bytes: int) -> None:
        """Measure an object and its frame. May learn a dictionary, and then replaces `compressor`."""
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
        # If the new dictionary is no better, the objects just compress less well: check less often.
        self._window = _WINDOW if self._learn(samples) else min(self._window * 2, _LONGEST_WINDOW)
        self._fresh, self.wait = 0.0, _STRIDE
        self._begin_window()

    def resume(self, dictionaries: Sequence[bytes]) -> None:
        """Go on with the dictionaries of an earlier process, in their order. Before the first object.

        Raises ValueError or ZstdError for bytes that are none.
        """
        for data in dictionaries:
            dictionary = zstandard.ZstdCompressionDict(data)
            self.dictionaries.append(dictionary)
            self.compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS, dict_data=dictionary)
        if dictionaries:
            self._samples, self.wait = None, _STRIDE

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
_PLAIN = b"{"  # the first byte of JSON. It has two bits that are 0 in every descriptor
_DICTIONARY_ID = 0b0000_0011  # bits of the descriptor: the size of the dictionary's id; here 0 or 1 byte
_SINGLE_SEGMENT = 0b0010_0000  # bit of the descriptor: the id is the next byte, else the one after

_Reader: TypeAlias = zstandard.ZstdDecompressor | None  # None for plain JSON


class FrameStatistics(msgspec.Struct, frozen=True):
    """The compression of one codec."""

    ratio: float  # bytes of objects divided by bytes of frames, for one of 16 recent objects; 0 for none
    trainings: int  # attempts to learn a dictionary
    dictionaries: int  # that were learned


class FrameCodec:
    """Converts the JSON of objects to frames and back. `encode` is called by one thread, `decode` by any."""

    def __init__(self) -> None:
        self._trainer = DictionaryTrainer()
        self._compress = self._trainer.compressor.compress
        self._wait = self._trainer.wait
        self._readers = _Readers()

    @property
    def trained(self) -> bool:
        """Whether a dictionary was learned."""
        return len(self._trainer.dictionaries) > 1

    def statistics(self) -> FrameStatistics:
        """The figures so far."""
        trainer = self._trainer
        return FrameStatistics(trainer.ratio, trainer.trainings, len(trainer.dictionaries) - 1)

    def resume(self, dictionaries: Sequence[bytes]) -> None:
        """Read and make frames as a codec of an earlier process, which had these dictionaries, from 1 on."""
        self._trainer.resume(dictionaries)
        self._compress, self._wait = self._trainer.compressor.compress, self._trainer.wait

    def restore(self, frame: bytes) -> bytes:
        """The frame itself."""
        return frame

    def encode(self, plain: bytes) -> bytes:
        """The frame of a JSON object."""
        # The compressor allocates for the worst case. The slice is a copy of exactly the needed size.
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
        """The JSON objects of many frames as buffers, in a fifth less time than one by one.

        All results stay in memory as long as one of them is used.
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

    def dictionary(self, number: int) -> bytes:
        """The dictionary of a number, which `dictionary_of` tells of a frame. From any thread."""
        found = self._trainer.dictionaries[number]
        return b"" if found is None else found.as_bytes()

    def _runs(self, frames: Sequence[bytes]) -> Iterable[tuple[_Reader, Iterable[bytes]]]:
        heads = {frame[:2] for frame in frames}
        if len(heads) == 1 and heads.pop()[0] & _SINGLE_SEGMENT:
            return [(self._reader_of(frames[0]), frames)]  # the common case: one reader for all frames
        return groupby(frames, self._reader_of)

    def _reader_of(self, frame: bytes) -> _Reader:
        if frame.startswith(_PLAIN):
            return None
        dictionary_id = dictionary_of(frame)
        reader = self._readers.by_dictionary.get(dictionary_id)
        if reader is None:
            reader = zstandard.ZstdDecompressor(dict_data=self._trainer.dictionaries[dictionary_id])
            self._readers.by_dictionary[dictionary_id] = reader
        return reader

    def _look(self, plain: bytes, frame: bytes) -> None:
        self._trainer.look(plain, len(frame))
        self._compress = self._trainer.compressor.compress
        self._wait = self._trainer.wait


def dictionary_of(frame: bytes) -> int:
    """The number of the dictionary that a frame needs; 0 for none, and for plain JSON."""
    if frame.startswith(_PLAIN) or not frame[0] & _DICTIONARY_ID:
        return 0
    return frame[1 if frame[0] & _SINGLE_SEGMENT else 2]


class FrameReader:
    """Reads frames that the codec of another process has made, with the dictionaries of that codec."""

    def __init__(self) -> None:
        self._readers = {0: zstandard.ZstdDecompressor()}  # by the number of their dictionary

    def learn(self, number: int, dictionary: bytes) -> None:
        """Know a dictionary from now on. Raises ValueError or ZstdError for bytes that are none."""
        data = zstandard.ZstdCompressionDict(dictionary)
        self._readers[number] = zstandard.ZstdDecompressor(dict_data=data)

    def decode(self, frame: bytes) -> bytes:
        """The JSON object of a frame. Raises one of BROKEN_FRAME, or KeyError for an unknown dictionary."""
        if frame.startswith(_PLAIN):
            return frame
        return self._readers[dictionary_of(frame)].decompress(_MAGIC + frame)


class _Readers(threading.local):
    """The decompressors of one thread, by dictionary id: two threads must not use one at the same time."""

    def __init__(self) -> None:
        self.by_dictionary: dict[int, zstandard.ZstdDecompressor] = {}


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # all that decoding may raise
BROKEN_FRAME = (zstandard.ZstdError, ValueError)  # all that decompressing may raise

KubeObject = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


FILLED_IN = ("apiVersion", "kind")
"""The fields that lists leave out of their items, and that decoding adds."""


def of_kind(obj: dict[str, Any], api_version: str, kind: str) -> dict[str, Any]:
    """The object with the `apiVersion` and `kind` that lists leave out of their items."""
    if "kind" in obj and "apiVersion" in obj:
        return obj
    return {"apiVersion": api_version, "kind": kind, **obj}


class HeldObject(msgspec.Struct, eq=False, weakref=True):
    """A decoded object with its frame. Its length is the number of bytes of its JSON."""

    body: dict[str, Any] | None  # shared by all readers, for reading only; None if it can't be decoded
    frame: bytes
    size: int  # bytes of the JSON

    def __len__(self) -> int:
        return self.size


Frame = bytes | HeldObject
"""The form in which a cache keeps an object. Its length counts as the bytes of the object."""


class Codec(Protocol):
    """Converts the JSON of objects to the form of a cache, and back.

    `encode` is called by one thread, `decode` by any.
    """

    def encode(self, plain: bytes) -> Frame:
        """The cached form of a JSON object."""
        ...

    def decode(self, frame: Any) -> bytes:
        """The JSON object of a form that this codec made."""
        ...

    def dictionary(self, number: int) -> bytes:
        """The dictionary of a number, which `dictionary_of` tells of a frame. From any thread."""
        ...

    def statistics(self) -> FrameStatistics:
        """The figures so far."""
        ...


@runtime_checkable
class ResumableCodec(Protocol):
    """A codec that can go on with the frames of an earlier process."""

    def resume(self, dictionaries: Sequence[bytes]) -> None:
        """Know the dictionaries of these frames, from number 1 on. Before the first `encode`.

        Raises ValueError or ZstdError for bytes that are no dictionaries.
        """
        ...

    def restore(self, frame: bytes) -> Frame:
        """The cached form of one of these frames."""
        ...


class ObjectCodec:
    """A codec that makes held objects. `alive` may be called by any thread."""

    def __init__(self, *, api_version: str, kind: str) -> None:
        self.api_version = api_version
        self.kind = kind
        self._frames = FrameCodec()
        self._made: dict[int, weakref.ref[HeldObject]] = {}  # by id: the held objects that are alive

    def resume(self, dictionaries: Sequence[bytes]) -> None:
        """Know the dictionaries of the frames of an earlier process."""
        self._frames.resume(dictionaries)

    def restore(self, frame: bytes) -> HeldObject:
        """The held object of a frame."""
        return self._hold(self._frames.decode(frame), frame)

    def encode(self, plain: bytes) -> HeldObject:
        """The held object of a JSON object."""
        return self._hold(plain, self._frames.encode(plain))

    def _hold(self, plain: bytes, frame: bytes) -> HeldObject:
        try:
            body = of_kind(msgspec.json.decode(plain), self.api_version, self.kind)
        except UNREADABLE:
            body = None  # `Record.read` raises the error for each reader
        held = HeldObject(body, frame, len(plain))
        number = id(held)
        self._made[number] = weakref.ref(held, lambda _: self._made.pop(number, None))
        return held

    def decode(self, frame: Frame) -> bytes:
        """The JSON object of a form that this codec made, as the server sent it."""
        return self._frames.decode(frame if isinstance(frame, bytes) else frame.frame)

    def dictionary(self, number: int) -> bytes:
        """The dictionary of a number, of the frames beside the objects."""
        return self._frames.dictionary(number)

    def statistics(self) -> FrameStatistics:
        """The figures of the frames beside the objects."""
        return self._frames.statistics()

    def pristine(self, held: HeldObject) -> dict[str, Any]:
        """The object as the server sent it, decoded anew. Raises the errors of decoding."""
        return of_kind(msgspec.json.decode(self.decode(held)), self.api_version, self.kind)

    def alive(self) -> Sequence["weakref.ref[HeldObject]"]:
        """References to all held objects: those of the cache, of pending notifications, and of readers."""
        return list(self._made.values())
