"""The writer of a recording: a thread that packs what it was handed, and appends it to two segments in turn.

Nothing waits for it. What comes while its queue is full is lost, and the recording says where, and how much.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

import msgspec

from declctl.errors import UsageError
from declctl.recording.blocks import BlockFile, is_recording
from declctl.recording.entries import Entry, RecordingGap, RecordingHeader

T = TypeVar("T")

MOST_WAITING = 50_000  # items that wait for the thread
LEAST_BYTES = 1 << 20  # of a recording
_BLOCK_ITEMS = 512  # that become one block, at most
_LOOK_SECONDS = 0.2  # between two looks at the queue, by default
_FULL = 0.9  # of half of the size: then the next segment begins, while entries go on to come
_END_SECONDS = 5.0  # for writing what waits at the end


class RecordingLog(Protocol):
    """The log, as far as this room writes to it."""

    def warning(self, event: str) -> object:
        """Log a warning."""
        ...


class RecordingWriter(Generic[T]):
    """Writes items to `path`, and the segment before to `path` with `.1`. `add` may be called by any thread.

    - `size`: the most bytes of both segments.
    - `header`: makes the header of a segment, by its number.
    - `pack`: makes the entries of an item. Called in the thread of the writer.
    - `begin_segment`: called in that thread when a segment is nearly full. It leads, by and by, to an item
      for which `begins_segment` is true: the entries of this one are the first of the next segment.
    - `now`: seconds since the start of the recording.
    - `pause`: seconds between two looks at the queue: so much is lost when the process is killed.

    Raises UsageError if the file can't be made, or if another file is there that is no recording.
    """

    def __init__(  # noqa: PLR0913 - what the owner knows, which this room does not
        self,
        path: Path,
        *,
        size: int,
        header: Callable[[int], RecordingHeader],
        pack: Callable[[T], Iterable[Sequence[Entry]]],
        begins_segment: Callable[[T], bool],
        begin_segment: Callable[[], object],
        now: Callable[[], float],
        log: RecordingLog,
        pause: float = _LOOK_SECONDS,
    ) -> None:
        self._path = path
        self._half = size // 2
        self._header = header
        self._pack = pack
        self._begins_segment = begins_segment
        self._begin_segment = begin_segment
        self._now = now
        self._log = log
        self._pause = pause
        self._waiting: deque[T | Entry] = deque()  # appended to by any thread
        self._lost = 0  # items since the last gap; written by any thread, so that it is about right
        self._told = False  # the log has said that items are lost
        self._asked = False  # for the next segment
        self._ended = threading.Event()
        self._segment = 1
        self.failed = False  # nothing is recorded any more
        self._keep_older(path)
        try:
            self._file = BlockFile(path)
        except OSError as error:
            raise UsageError(f"--record {path}: the file can't be made: {error.strerror or error}") from error
        self._file.append([header(1)])
        self._thread = threading.Thread(target=self._run, name="declctl-recording", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of items that are not written yet, without those that the thread has."""
        return len(self._waiting)

    @property
    def older(self) -> Path:
        """The segment before."""
        return older_segment(self._path)

    def add(self, item: T | Entry) -> None:
        """Let an item or an entry be written, or count it as lost. Neither waits nor raises."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(item)
        else:
            self._lost += 1

    def close(self) -> None:
        """Write what waits, for some seconds at most, and close the file. May be repeated."""
        self._ended.set()
        self._thread.join(_END_SECONDS)

    def _keep_older(self, path: Path) -> None:
        try:
            if path.exists():
                if not path.is_file() or not is_recording(path):
                    raise UsageError(
                        f"--record {path}: there is another file of that name, which is no recording: "
                        "name a new file, or remove it"
                    )
                path.replace(self.older)
        except OSError as error:
            raise UsageError(f"--record {path}: {error.strerror or error}") from error

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._pause):
                self._write_waiting()
            self._write_waiting()
        except OSError as error:
            self._stop(f"the recording {self._path} can't be written: {error.strerror or error}")
        except Exception as fault:  # noqa: BLE001 - a fault of declctl must not end the controller
            what = f"{type(fault).__name__}: {fault}"
            self._stop(
                f"the recording {self._path} has ended by a fault of declctl itself, please report it: {what}"
            )
        finally:
            self._file.close()

    def _stop(self, why: str) -> None:
        self.failed = True
        self._waiting.clear()
        self._log.warning(f"{why}; nothing is recorded any more, and the controller goes on")

    def _write_waiting(self) -> None:
        waiting = self._waiting
        while waiting and not self.failed:
            entries: list[Entry] = []
            for _ in range(min(len(waiting), _BLOCK_ITEMS)):
                item = waiting.popleft()
                if isinstance(item, msgspec.Struct):
                    entries.append(cast("Entry", item))
                elif self._begins_segment(item):
                    self._append(entries)
                    entries = []
                    self._next_segment(item)
                else:
                    for some in self._pack(item):
                        entries += some
            self._note_lost(entries)
            self._append(entries)

    def _append(self, entries: Sequence[Entry]) -> None:
        if entries and not self.failed:
            self._file.append(entries)
            if not self._asked and self._file.bytes > self._half * _FULL:
                self._asked = True
                self._begin_segment()

    def _note_lost(self, entries: list[Entry]) -> None:
        lost, self._lost = self._lost, 0
        if not lost:
            return
        entries.append(RecordingGap(self._now(), lost))
        if not self._told:
            self._told = True
            self._log.warning(
                f"the recording {self._path} can't be written as fast as changes come: it has gaps, which "
                "a replay shows. Further ones are not logged"
            )

    def _next_segment(self, item: T) -> None:
        self._file.close()
        self._path.replace(self.older)
        self._segment += 1
        self._file = BlockFile(self._path)
        self._file.append([self._header(self._segment)])
        for some in self._pack(item):
            self._file.append(some)
        if self._file.bytes > self._half * _FULL:
            self._stop(
                f"the caches alone take {self._file.bytes:,} bytes of {self._half:,}: raise --record-size"
            )
        self._asked = False


def older_segment(path: Path) -> Path:
    """The file of the segment before."""
    return path.with_name(f"{path.name}.1")
