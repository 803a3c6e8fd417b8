"""Events on disk: every way in which a process can end, and every way in which a disk can."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from declctl_webhook.settings import SettingsError, SpoolSettings, WhenFull
from declctl_webhook.spool import Damaged, Entry, EventTooLarge, Spool, SpoolFull

SRC = Path(__file__).parent.parent / "src"


def _settings(
    folder: Path, limit: int = 2**20, when_full: WhenFull = WhenFull.REFUSE, **more: Any
) -> SpoolSettings:
    return SpoolSettings(folder, limit, when_full, more.get("fsync", False), 2**20)


def _spool(folder: Path, limit: int = 2**20, when_full: WhenFull = WhenFull.REFUSE, **more: Any) -> Spool:
    return Spool(_settings(folder, limit, when_full, **more), now=lambda: 1000.0)


def _append(spool: Spool, body: bytes, key: str = "a") -> Entry:
    entry, _ = spool.append(key, body)
    assert entry is not None
    return entry


def _filled(spool: Spool) -> list[Entry]:
    """The events that fit."""
    entries: list[Entry] = []
    with suppress(SpoolFull):
        entries.extend(_append(spool, b"x" * 100) for _ in range(1000))
    assert len(entries) < 1000
    return entries


def _left(folder: Path) -> list[bytes]:
    """What the next process finds."""
    spool = _spool(folder)
    found = [spool.read(entry) for entry in spool.open().entries]
    spool.close()
    return found


def test_events_survive_a_restart_in_their_order(tmp_path: Path) -> None:
    """What was not delivered is there for the next process, with key and time."""
    spool = _spool(tmp_path, fsync=True)
    spool.open()
    entries = [_append(spool, b"%d" % number, key=f"key-{number}") for number in range(5)]
    spool.acknowledge(entries[1:3])
    spool.close()
    again = _spool(tmp_path)
    found = again.open().entries
    assert [(entry.key, entry.spooled_at, again.read(entry)) for entry in found] == [
        ("key-0", 1000.0, b"0"),
        ("key-3", 1000.0, b"3"),
        ("key-4", 1000.0, b"4"),
    ]
    again.acknowledge(found)
    again.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    """Two processes in one folder would send and remove each other's events."""
    spool = _spool(tmp_path)
    spool.open()
    with pytest.raises(SettingsError, match="another process uses the spool"):
        _spool(tmp_path).open()
    spool.close()
    _spool(tmp_path).open()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_truncated_tail_costs_no_other_event(tmp_path: Path, cut: int) -> None:
    """The machine crashed within a write: the events before it are there, and new ones are appended."""
    spool = _spool(tmp_path)
    spool.open()
    _append(spool, b"first")
    _append(spool, b"second, which is longer than any cut of this test")
    spool.close()
    (segment,) = tmp_path.glob("segment-*.log")
    os.truncate(segment, segment.stat().st_size - cut)
    again = _spool(tmp_path)
    recovery = again.open()
    assert ([again.read(entry) for entry in recovery.entries], recovery.incomplete) == ([b"first"], 1)
    _append(again, b"third")
    again.close()
    assert _left(tmp_path) == [b"first", b"third"]


def test_a_damaged_event_is_counted_and_costs_no_other(tmp_path: Path) -> None:
    """A flipped bit is found by the checksum, at the start and at each read."""
    spool = _spool(tmp_path)
    spool.open()
    _append(spool, b"first")
    damaged = _append(spool, b"second")
    _append(spool, b"third")
    (segment,) = tmp_path.glob("segment-*.log")
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"second", b"sekond"))
    with pytest.raises(Damaged):
        spool.read(damaged)
    spool.close()
    again = _spool(tmp_path)
    recovery = again.open()
    assert [again.read(entry) for entry in recovery.entries] == [b"first", b"third"]
    assert recovery.damaged == 1
    again.close()


def test_a_full_spool_refuses_until_there_is_room(tmp_path: Path) -> None:
    """With `Refuse` nothing is lost: the caller keeps the event."""
    spool = _spool(tmp_path, limit=4096)
    spool.open()
    entries = _filled(spool)
    assert 20 < len(entries) < 41
    assert spool.disk_bytes <= 4096
    # The oldest is stuck: the room of all others is free again.
    spool.acknowledge(entries[1:])
    refilled = [_append(spool, b"y" * 100) for _ in entries[2:]]
    assert spool.disk_bytes <= 4096
    assert [spool.read(entry) for entry in (entries[0], refilled[0])] == [b"x" * 100, b"y" * 100]
    spool.close()
    assert _left(tmp_path) == [b"x" * 100] + [b"y" * 100] * len(refilled)


def test_events_in_the_middle_of_a_rewritten_segment_stay(tmp_path: Path) -> None:
    """Their place in the file changes; what this process and the next one read does not."""
    spool = _spool(tmp_path, limit=4096)
    spool.open()
    entries = [_append(spool, b"%03d" % number * 30, key=f"k{number}") for number in range(20)]
    kept = [entries[7], entries[13]]
    spool.acknowledge(entry for entry in entries if entry not in kept)
    before = spool.disk_bytes
    last = [_append(spool, b"z" * 100) for _ in range(15)]
    assert spool.disk_bytes < before + 15 * 100
    assert [spool.read(entry) for entry in kept] == [b"007" * 30, b"013" * 30]
    spool.acknowledge(last)
    spool.close()
    assert _left(tmp_path) == [b"007" * 30, b"013" * 30]


def test_the_oldest_are_dropped_if_the_policy_says_so(tmp_path: Path) -> None:
    """`DropOldest`: the newest events are kept, and the dropped ones are named."""
    spool = _spool(tmp_path, limit=16384, when_full=WhenFull.DROP_OLDEST)
    spool.open()
    dropped: list[Entry] = []
    for number in range(500):
        entry, old = spool.append("a", b"%0100d" % number)
        assert entry is not None
        dropped += old
    spool.close()
    left = [int(body) for body in _left(tmp_path)]
    assert len(dropped) + len(left) == 500
    assert left == list(range(500 - len(left), 500))
    assert len(left) > 60


def test_the_newest_is_dropped_if_the_policy_says_so(tmp_path: Path) -> None:
    """`DropNewest`: the oldest events are kept."""
    spool = _spool(tmp_path, limit=4096, when_full=WhenFull.DROP_NEWEST)
    spool.open()
    kept = [entry for _ in range(100) if (entry := spool.append("a", b"x" * 100)[0]) is not None]
    assert 20 < len(kept) < 41
    spool.close()
    assert len(_left(tmp_path)) == len(kept)


def test_an_event_larger_than_the_spool_is_told_apart(tmp_path: Path) -> None:
    """It would never fit: nothing is dropped for it."""
    spool = _spool(tmp_path, limit=4096, when_full=WhenFull.DROP_OLDEST)
    spool.open()
    _append(spool, b"small")
    with pytest.raises(EventTooLarge):
        spool.append("a", b"x" * 5000)
    spool.close()
    assert _left(tmp_path) == [b"small"]


def test_a_full_disk_loses_nothing_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that stops half way raises, and what is appended later can be read."""
    spool = _spool(tmp_path)
    spool.open()
    _append(spool, b"first")
    write = os.write

    def half(file: int, content: Any) -> int:
        if len(content) > 10:
            return write(file, bytes(content)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            spool.append("a", b"second")
    monkeypatch.undo()
    _append(spool, b"third")
    spool.close()
    assert _left(tmp_path) == [b"first", b"third"]


def test_acknowledgements_that_can_not_be_written_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event may be delivered again by the next process; this one goes on."""
    spool = _spool(tmp_path)
    spool.open()
    first = _append(spool, b"first")
    _append(spool, b"second")

    def fails(*_: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "write", fails)
    spool.acknowledge([first])
    monkeypatch.undo()
    assert (spool.faults, "Read-only" in spool.last_fault) == (1, True)
    spool.close()
    assert _left(tmp_path) == [b"first", b"second"]


def test_an_interrupted_acknowledgement_does_not_spoil_later_ones(tmp_path: Path) -> None:
    """Half an entry at the end is cut off before the next is appended."""
    spool = _spool(tmp_path)
    spool.open()
    entries = [_append(spool, b"%d" % number) for number in range(4)]
    spool.acknowledge(entries[:1])
    spool.close()
    (acknowledged,) = tmp_path.glob("segment-*.ack")
    acknowledged.write_bytes(acknowledged.read_bytes() + b"\x02\0\0")
    again = _spool(tmp_path)
    found = again.open().entries
    again.acknowledge(found[1:2])
    again.close()
    assert _left(tmp_path) == [b"1", b"3"]


@pytest.mark.parametrize("content", [b"", b"declctl-web", bytes(100)])
def test_a_segment_without_a_begin_is_ignored(tmp_path: Path, content: bytes) -> None:
    """The process was killed while it made the file, or the machine crashed."""
    path = tmp_path / "segment-00000000000000000007.log"
    path.write_bytes(content)
    assert _left(tmp_path) == []
    assert not path.exists()


def test_a_segment_of_another_version_is_kept_and_told(tmp_path: Path) -> None:
    """Going back to an older version of the plugin deletes no events."""
    path = tmp_path / "segment-00000000000000000007.log"
    path.write_bytes(b"declctl-webhook spool 2\nevents")
    with pytest.raises(SettingsError, match="no file of this version"):
        _spool(tmp_path).open()
    assert path.read_bytes().endswith(b"events")
    path.unlink()
    assert _left(tmp_path) == []  # the folder is free again


def test_a_rewrite_that_was_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    """The segment is whole until the new file takes its place: half of a new one is removed."""
    spool = _spool(tmp_path)
    spool.open()
    _append(spool, b"first")
    spool.close()
    (segment,) = tmp_path.glob("segment-*.log")
    segment.with_suffix(".tmp").write_bytes(segment.read_bytes()[:30])
    assert _left(tmp_path) == [b"first"]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_disk_that_is_full_while_a_segment_is_rewritten_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file stays, and the spool refuses until there is room."""
    spool = _spool(tmp_path, limit=4096)
    spool.open()
    entries = _filled(spool)
    spool.acknowledge(entries[1:])

    def fails(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(SpoolFull):
        spool.append("a", b"x" * 100)
    monkeypatch.undo()
    _append(spool, b"more")
    assert spool.read(entries[0]) == b"x" * 100
    spool.close()
    assert _left(tmp_path) == [b"x" * 100, b"more"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    """The start fails with what to do, and not with a traceback about a lock file."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine allows no mounts")
    try:
        with pytest.raises(SettingsError, match=r"Read-only file system\. .*mount a volume.*spool\.path"):
            _spool(folder).open()
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="Not a directory"):
        _spool(tmp_path / "file" / "spool").open()


_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from declctl_webhook.settings import SpoolSettings, WhenFull
from declctl_webhook.spool import Spool
spool = Spool(SpoolSettings(Path(sys.argv[2]), 2**30, WhenFull.REFUSE, False, 2**20), now=lambda: 1.0)
spool.open()
number = 0
entries = []
while True:
    entry, _ = spool.append(f"key-{number % 7}", b"%d" % number)
    entries.append(entry)
    print("+", number, flush=True)
    if number % 3 == 0:
        spool.acknowledge([entries[number // 2]])
        print("-", number // 2, flush=True)
    number += 1
"""


@pytest.mark.parametrize("lines", [10, 250])
def test_kill_9_loses_no_event_that_was_appended(tmp_path: Path, lines: int) -> None:
    """The process is killed while it writes: each event that it has told of is there, or was delivered."""
    command = [sys.executable, "-c", _WRITER, str(SRC), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.readlines()
    # The end may be in the middle of a line.
    whole = [line for line in told if line.endswith("\n")]
    numbers = {sign: {int(line[2:]) for line in whole if line[0] == sign} for sign in "+-"}
    spool = _spool(tmp_path, limit=2**30)
    recovery = spool.open()
    found = [int(spool.read(entry)) for entry in recovery.entries]
    assert found == sorted(found)
    assert recovery.damaged == 0
    # One call was under way, whose line is missing.
    assert len((numbers["+"] - numbers["-"]) - set(found)) <= 1
    assert set(found) - numbers["+"] <= {len(numbers["+"])}
    assert not numbers["-"] & set(found)


class _Killed(BaseException):
    """The process ends here."""


class SpoolMachine(RuleBasedStateMachine):
    """A spool beside a model. A kill may happen within any write, after any number of its bytes.

    After a kill, the next process begins with a copy of the folder as it was at that moment.
    """

    entries = Bundle("entries")
    limit = 6000

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory()
        self.folder = Path(self.root.name) / "0"
        self.starts = 0
        self.live: dict[int, Entry] = {}  # not acknowledged, by sequence number
        self.model: dict[int, tuple[str, bytes]] = {}  # of the same
        self.spool = _spool(self.folder, self.limit)
        self.spool.open()

    @rule(target=entries, key=st.sampled_from("abc"), body=st.binary(max_size=300))
    def append(self, key: str, body: bytes) -> int:
        """A hook writes an event."""
        try:
            entry = _append(self.spool, body, key)
        except SpoolFull:
            return -1
        self.live[entry.sequence] = entry
        self.model[entry.sequence] = (key, body)
        return entry.sequence

    @rule(sequence=consumes(entries))
    def acknowledge(self, sequence: int) -> None:
        """The event is delivered."""
        if sequence in self.live:
            self.spool.acknowledge([self.live.pop(sequence)])
            del self.model[sequence]

    @rule()
    def restart(self) -> None:
        """The process ends in order, and another begins."""
        self.spool.close()
        self._open()

    @rule()
    def kill(self) -> None:
        """The process is killed between two writes."""
        self._leave_as_it_is()
        self._open()

    @rule(written=st.integers(0, 400), key=st.sampled_from("abc"), body=st.binary(max_size=300))
    def kill_within_append(self, written: int, key: str, body: bytes) -> None:
        """The process is killed within the write of an event: that event is there or not, the others are."""
        is_whole = self._until_killed(written, lambda: self.spool.append(key, body))
        self._leave_as_it_is()
        self._open(new=[(key, body)] if is_whole else [])

    @precondition(lambda self: self.model)
    @rule(written=st.integers(0, 24), data=st.data())
    def kill_within_acknowledge(self, written: int, data: st.DataObject) -> None:
        """The process is killed within the write of acknowledgements: these events may come again."""
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, min_size=1, max_size=3))
        entries = [self.live[number] for number in chosen]
        self._until_killed(written, lambda: self.spool.acknowledge(entries))
        self._leave_as_it_is()
        self._open(uncertain=chosen)

    @invariant()
    def is_bounded(self) -> None:
        """The files of events never exceed the limit."""
        on_disk = sum(path.stat().st_size for path in self.folder.glob("segment-*.log"))
        assert on_disk == self.spool.disk_bytes <= self.limit

    @invariant()
    def is_readable(self) -> None:
        """Every event that is not acknowledged can be read."""
        assert all(self.spool.has(entry) for entry in self.live.values())
        assert {n: (entry.key, self.spool.read(entry)) for n, entry in self.live.items()} == self.model

    def teardown(self) -> None:
        self.spool.close()
        self.root.cleanup()

    def _leave_as_it_is(self) -> None:
        self.starts += 1
        at_the_kill = Path(self.root.name) / str(self.starts)
        shutil.copytree(self.folder, at_the_kill)
        self.spool.close()
        self.folder = at_the_kill

    def _until_killed(self, written: int, call: Callable[[], object]) -> bool:
        """Call, with a kill after some bytes; whether the call has come to its end before."""
        write, left = os.write, written

        def dies(file: int, content: memoryview) -> int:
            nonlocal left
            part = content[:left]
            count = write(file, part) if part else 0
            left -= count
            if count < len(content):
                raise _Killed
            return count

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", dies)
            try:
                call()
            except (_Killed, SpoolFull):
                return False
            return True

    def _open(self, *, new: Sequence[tuple[str, bytes]] = (), uncertain: Collection[int] = ()) -> None:
        """Begin again: the same events are there, beside `new` ones, and maybe without `uncertain` ones."""
        self.spool = _spool(self.folder, self.limit)
        recovery = self.spool.open()
        found = {entry.sequence: (entry.key, self.spool.read(entry)) for entry in recovery.entries}
        assert recovery.damaged == 0
        assert list(found) == sorted(found)
        assert set(self.model) - set(found) <= set(uncertain)
        assert [event for number, event in found.items() if number not in self.model] == list(new)
        self.live = {entry.sequence: entry for entry in recovery.entries}
        self.model = found


TestSpoolMachine = SpoolMachine.TestCase
TestSpoolMachine.settings = settings(deadline=None, max_examples=30, stateful_step_count=40)
