"""A recording in memory: its entries in order, and each call with its requests and its end."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from declctl.errors import UsageError
from declctl.recording.blocks import read_blocks
from declctl.recording.entries import (
    BundleFiles,
    CallBegin,
    CallEnd,
    CallRequest,
    Entry,
    RecordingHeader,
    StreamList,
    time_of,
)
from declctl.recording.writer import older_segment
from declctl.replay.differences import RequestContent, content_of

CallKey = tuple[str, str]
"""The handler and the key of a call."""


class TapedRequest(NamedTuple):
    """A request of a call."""

    position: int  # on the tape, of its answer
    request: CallRequest
    content: RequestContent


@dataclass(frozen=True, slots=True)
class TapedCall:
    """One call of a recording."""

    begin: CallBegin
    requests: list[TapedRequest] = field(default_factory=list[TapedRequest])
    end: CallEnd | None = None  # None: the recording ends before

    @property
    def key(self) -> CallKey:
        """The handler and the key."""
        return self.begin.handler, self.begin.key


@dataclass(frozen=True, slots=True)
class Tape:
    """A recording, or its newest two segments."""

    path: Path
    header: RecordingHeader
    entries: Sequence[Entry]
    torn: int  # bytes at the end of the file that could not be read
    calls: dict[int, TapedCall]
    by_key: dict[CallKey, list[int]]  # the positions of the begins, the first last

    @property
    def began(self) -> datetime:
        """When the recording began."""
        return datetime.fromisoformat(self.header.started)

    def moment(self, at: float) -> datetime:
        """The time of an entry."""
        return self.began + timedelta(seconds=at)

    @property
    def is_whole(self) -> bool:
        """Whether it begins with the start of the process."""
        return self.header.segment == 1

    @property
    def ends_at(self) -> float:
        """The time of the last entry, in seconds."""
        return max((at for entry in self.entries if (at := time_of(entry)) is not None), default=0.0)

    @property
    def first_files(self) -> BundleFiles:
        """The files with which it begins. Raises UsageError without any."""
        found = next((entry for entry in self.entries if isinstance(entry, BundleFiles)), None)
        if found is None:
            raise UsageError(f"{self.path}: the recording ends before its controller has started")
        return found


def read_tape(path: Path, *, until: float | None = None) -> Tape:
    """Read a recording, with the segment before it if that belongs to the same run.

    With `until`, entries after so many seconds are left out. Raises UsageError for what is no recording.
    """
    newest = read_blocks(path)
    header, entries = newest.header, [*newest.entries]
    older = older_segment(path)
    if header.segment > 1 and older.is_file():
        before = read_blocks(older)
        if (before.header.run, before.header.segment) == (header.run, header.segment - 1):
            header = before.header
            # The caches are known: what a segment begins with is for those who have it alone.
            entries = [*before.entries, *(each for each in entries if not _is_snapshot(each))]
    if until is not None:
        entries = [entry for entry in entries if (time_of(entry) or 0.0) <= until]
    return tape_of(path, header, entries, torn=newest.torn)


def tape_of(path: Path, header: RecordingHeader, entries: Sequence[Entry], *, torn: int = 0) -> Tape:
    """The tape of some entries; `torn`: bytes after them that could not be read."""
    calls: dict[int, TapedCall] = {}
    by_key: defaultdict[CallKey, list[int]] = defaultdict(list)
    for position, entry in enumerate(entries):
        match entry:
            case CallBegin():
                calls[entry.call] = TapedCall(entry)
                by_key[entry.handler, entry.key].append(position)
            case CallRequest() if entry.call in calls:
                calls[entry.call].requests.append(TapedRequest(position, entry, content_of(entry)))
            case CallEnd() if entry.call in calls:
                known = calls[entry.call]
                calls[entry.call] = TapedCall(known.begin, known.requests, entry)
            case _:
                pass
    for positions in by_key.values():
        positions.reverse()
    return Tape(path, header, entries, torn, calls, dict(by_key))


def _is_snapshot(entry: Entry) -> bool:
    return isinstance(entry, StreamList) and entry.snapshot
