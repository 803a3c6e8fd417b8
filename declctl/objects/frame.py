"""Frames: an object as compressed bytes, which nobody decodes until somebody reads it.

A codec belongs to one resource. It learns a dictionary from the first objects it sees, because
objects of one resource repeat each other; frames made before that stay readable. Plain JSON is kept
where compression would not make it smaller.
"""

import threading

import zstandard

_MAGIC = b"\x28\xb5\x2f\xfd"  # of zstd; no JSON begins so: a frame without it is plain
_HAS_DICTIONARY = 0b11  # the bits of the descriptor, the byte after the magic, that tell of a dictionary
_LEVEL = 1  # higher levels gain nothing on objects of a few kilobytes and cost CPU
_DICTIONARY_BYTES = 32 * 1024
_SAMPLES = 200  # training on them takes some 35 ms, once; twice as many learn no more
_SAMPLE_BYTES = 4 * 1024 * 1024
_SMALL = 160  # a shorter object is not worth a frame header


class FrameCodec:
    """Bytes to frame and back. `encode` is called by one thread, `decode` by any."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False)
        self._dictionary: zstandard.ZstdCompressionDict | None = None
        self._samples: list[bytes] | None = []
        self._sample_bytes = 0
        self._readers = threading.local()  # a decompressor may not be used by two threads at once

    @property
    def trained(self) -> bool:
        """Whether it has learned a dictionary."""
        return self._dictionary is not None

    def encode(self, plain: bytes) -> bytes:
        """The frame of a JSON object."""
        if self._samples is not None:
            self._learn(plain)
        if len(plain) < _SMALL:
            return bytes(plain)
        packed = self._compressor.compress(plain)
        if len(packed) >= len(plain):
            return bytes(plain)
        # The compressor allocates for the worst case and shrinks in place; keeping its result would
        # keep the hole.
        return bytes(memoryview(packed))

    def decode(self, frame: bytes) -> bytes:
        """The JSON object of a frame made by this codec."""
        if not frame.startswith(_MAGIC):
            return frame
        with_dictionary = frame[len(_MAGIC)] & _HAS_DICTIONARY != 0
        return self._reader(with_dictionary=with_dictionary).decompress(frame)

    def _reader(self, *, with_dictionary: bool) -> zstandard.ZstdDecompressor:
        name = "trained" if with_dictionary else "plain"
        reader: zstandard.ZstdDecompressor | None = getattr(self._readers, name, None)
        if reader is None:
            reader = zstandard.ZstdDecompressor(dict_data=self._dictionary if with_dictionary else None)
            setattr(self._readers, name, reader)
        return reader

    def _learn(self, plain: bytes) -> None:
        assert self._samples is not None
        self._samples.append(plain[: 64 * 1024])
        self._sample_bytes += len(self._samples[-1])
        if len(self._samples) < _SAMPLES and self._sample_bytes < _SAMPLE_BYTES:
            return
        samples, self._samples = self._samples, None
        try:
            dictionary = zstandard.train_dictionary(_DICTIONARY_BYTES, [*samples], level=_LEVEL)
        except zstandard.ZstdError:
            return  # too little in common to learn from: frames without a dictionary serve as well
        self._dictionary = dictionary
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=dictionary, write_checksum=False)
