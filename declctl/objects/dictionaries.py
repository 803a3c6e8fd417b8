"""Dictionaries: what the objects of one resource have in common, learned from some of them.

A dictionary makes frames two to four times smaller, because an object of a few kilobytes says
little that the others don't say. What they have in common changes as software is rolled out, so
compression is watched, and another dictionary is learned when it has decayed.
"""

from collections.abc import Sequence

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
