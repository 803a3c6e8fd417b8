"""A recording to replay: its entries in their order, and each call with its requests and its end.

In memory is only where they are in the file.
"""

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from declctl.errors import UsageError
from declctl.recording.blocks import EntrySequence, RecordedEntries
from declctl.recording.entries import (
    BundleFiles,
    CallBegin,
    CallEnd,
    CallRequest,
    CallTime,
    Entry,
    RecordedStream,
    RecordingHeader,
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
    requests: Sequence[TapedRequest]
    times: Sequence[float]  # that `ctx.now` has returned, in seconds since the epoch
    end: CallEnd | None  # None: the recording ends before

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
    second: int  # the position at which the second segment begins; the number of entries if there is one
    calls: Mapping[int, Sequence[int]]  # by number: the positions of its begin and all else of it
    begins: dict[CallKey, int]  # how often calls begin that are still to come
    late_calls: Mapping[
        int, Sequence[int]
    ]  # by generation: calls that the one before has made after its commit
    streams: Sequence[RecordedStream]
    first_files: BundleFiles  # with which it begins
    ends_at: float  # the time of the last entry, in seconds

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

    def call(self, number: int) -> TapedCall:
        """A call of the recording."""
        first, *others = self.calls[number]
        begin, requests, times, end = self.entries[first], list[TapedRequest](), list[float](), None
        assert isinstance(begin, CallBegin)
        for position in others:
            match self.entries[position]:
                case CallRequest() as request:
                    requests.append(TapedRequest(position, request, content_of(request)))
                case CallTime(time=time):
                    times.append(time)
                case CallEnd() as found:
                    end = found
                case _:
                    pass
        return TapedCall(begin, requests, times, end)


def read_tape(path: Path, *, until: float | None = None) -> Tape:
    """Read a recording, with the segment before it if that belongs to the same run.

    With `until`, entries after so many seconds are left out. Raises UsageError for what is no recording.
    """
    newest = RecordedEntries(path)
    older = older_segment(path)
    if newest.header.segment > 1 and older.is_file():
        before = RecordedEntries(older)
        if (before.header.run, before.header.segment) == (newest.header.run, newest.header.segment - 1):
            both = _Joined(before, newest)
            return tape_of(path, before.header, both, torn=newest.torn, second=len(before), until=until)
    return tape_of(path, newest.header, newest, torn=newest.torn, until=until)


def tape_of(
    path: Path,
    header: RecordingHeader,
    entries: Sequence[Entry],
    *,
    torn: int = 0,
    second: int | None = None,
    until: float | None = None,
) -> Tape:
    """The tape of some entries, as `read_tape` makes it. Raises UsageError if no controller has started."""
    calls: dict[int, array[int]] = {}
    begins: defaultdict[CallKey, int] = defaultdict(int)
    late: defaultdict[int, list[int]] = defaultdict(list)
    streams: list[RecordedStream] = []
    first_files: BundleFiles | None = None
    generation, ends_at, length = 0, 0.0, 0
    for position, entry in enumerate(entries):
        at = time_of(entry)
        if at is not None:
            if until is not None and at > until:
                break
            ends_at = max(ends_at, at)
        length += 1
        match entry:
            case CallBegin():
                calls[entry.call] = array("I", [position])
                begins[entry.handler, entry.key] += 1
                if entry.generation < generation:
                    late[generation].append(entry.call)
            case CallRequest() | CallTime() | CallEnd() if entry.call in calls:
                calls[entry.call].append(position)
            case BundleFiles():
                first_files = first_files or entry
                generation = entry.generation
            case RecordedStream():
                streams.append(entry)
            case _:
                pass
    if first_files is None:
        raise UsageError(f"{path}: the recording ends before its controller has started")
    kept = entries if length == len(entries) else _Joined(entries, (), length)
    return Tape(
        path,
        header,
        kept,
        torn,
        length if second is None else second,
        calls,
        begins,
        late,
        streams,
        first_files,
        ends_at,
    )


class _Joined(EntrySequence):
    """The entries of two segments, up to a length."""

    def __init__(self, first: Sequence[Entry], second: Sequence[Entry], length: int | None = None) -> None:
        self._first = first
        self._second = second
        self._border = len(first)
        self._length = self._border + len(second) if length is None else length

    def __len__(self) -> int:
        return self._length

    def entry_at(self, position: int) -> Entry:
        """The entry at a position, from its segment."""
        if position < self._border:
            return self._first[position]
        return self._second[position - self._border]
