"""The thread that writes a recording: it is bounded, never waited for, and says what it has lost."""

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from declctl.errors import UsageError
from declctl.recording.blocks import RecordedEntries
from declctl.recording.entries import CallBegin, Entry, RecordingGap, RecordingHeader, StreamList
from declctl.recording.writer import MOST_WAITING, RecordingWriter, older_segment
from declctl.testing import Logged, until

SIZE = 1 << 20


class Written:
    """A writer of numbers, which take some kilobytes. A string begins a segment."""

    def __init__(
        self,
        path: Path,
        *,
        size: int = SIZE,
        bytes_of_snapshot: int = 100,
        pack: Callable[[int | str], list[Sequence[Entry]]] | None = None,
    ) -> None:
        self.log = Logged()
        self.asked = threading.Event()
        self.bytes_of_snapshot = bytes_of_snapshot
        self.writer = RecordingWriter[int | str](
            path,
            size=size,
            header=lambda number: RecordingHeader("run", number, "c", "m", "1", "2026-01-01T00:00:00+00:00"),
            pack=pack or self._pack,
            begins_segment=lambda item: isinstance(item, str),
            begin_segment=self.asked.set,
            now=lambda: 0.0,
            log=self.log,
            pause=0.005,
        )

    def _pack(self, item: int | str) -> list[Sequence[Entry]]:
        if isinstance(item, str):
            return [[StreamList(0.0, 1, _noise(item, self.bytes_of_snapshot), [], snapshot=True)]]
        return [[CallBegin(0.0, item, _noise(str(item), 8000), "", 1)]]


def _noise(seed: str, size: int) -> str:
    return random.Random(seed).randbytes(size // 2).hex()


def test_it_keeps_the_newest_two_segments_within_its_size(tmp_path: Path):
    path = tmp_path / "a.rec"
    written = Written(path)
    number = 0
    for segment in range(1, 5):
        written.asked.clear()
        while not written.asked.is_set():
            for _ in range(10):
                number += 1
                written.writer.add(number)
            until("it is written", lambda: not written.writer.waiting)
        written.writer.add(f"snapshot {segment}")
    written.writer.close()
    newest, older = RecordedEntries(path), RecordedEntries(older_segment(path))
    assert (older.header.segment, newest.header.segment) == (4, 5)
    assert isinstance(older[0], StreamList)
    assert isinstance(newest[0], StreamList)
    assert path.stat().st_size + older_segment(path).stat().st_size <= SIZE
    assert [each.call for each in older if isinstance(each, CallBegin)][-1] == number
    assert older_segment(path).stat().st_mode & 0o777 == 0o600


def test_what_comes_too_fast_is_a_marked_gap(tmp_path: Path):
    """Nobody waits for the file, and one line says that it has gaps."""
    path = tmp_path / "a.rec"
    free = threading.Event()

    def when_free(item: int | str) -> list[Sequence[Entry]]:
        assert free.wait(30)
        return [[CallBegin(0.0, int(item), "h", "", 1)]]

    written = Written(path, size=1 << 40, pack=when_free)
    for number in range(MOST_WAITING + 2000):
        written.writer.add(number)
    free.set()
    until("it is written", lambda: not written.writer.waiting)
    written.writer.close()
    found = RecordedEntries(path)
    lost = sum(each.lost for each in found if isinstance(each, RecordingGap))
    kept = sum(isinstance(each, CallBegin) for each in found)
    assert lost > 0
    assert kept + lost == MOST_WAITING + 2000
    assert len([line for line in written.log.events("warning") if "gaps" in line]) == 1


def test_caches_that_are_too_large_end_it(tmp_path: Path):
    written = Written(tmp_path / "a.rec", bytes_of_snapshot=4 * SIZE)
    written.writer.add("snapshot")
    until("it has ended", lambda: written.writer.failed)
    assert written.log.find("raise --record-size") is not None


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path: Path):
    path = tmp_path / "manifest.yaml"
    path.write_text("kind: Controller\n")
    with pytest.raises(UsageError, match=r"--record .*manifest.yaml: there is another file"):
        Written(path)
    assert path.read_text() == "kind: Controller\n"
    with pytest.raises(UsageError, match=r"--record .*: there is another file of that name"):
        Written(tmp_path)
    with pytest.raises(UsageError, match=r"the file can't be made: No such file"):
        Written(tmp_path / "missing" / "a.rec")


def test_the_recording_of_the_process_before_stays(tmp_path: Path):
    """A process that crashes is started again at once, and must not overwrite the night of its crash."""
    path = tmp_path / "a.rec"
    for number in (1, 2):
        written = Written(path)
        written.writer.add(number)
        written.writer.close()
    assert [each.call for each in RecordedEntries(older_segment(path)) if isinstance(each, CallBegin)] == [1]


def test_a_full_disk_ends_the_recording_alone(tmp_path: Path):
    def full(_: int | str) -> list[Sequence[Entry]]:
        raise OSError(28, "No space left on device")

    written = Written(tmp_path / "a.rec", pack=full)
    written.writer.add(1)
    until("it has ended", lambda: written.writer.failed)
    line = written.log.find("can't be written: No space left on device")
    assert line is not None
    assert "nothing is recorded any more" in line.event
