"""The file of a recording: what is whole is read, whatever came after it; what is no recording says so."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from declctl.errors import UsageError
from declctl.recording.blocks import FIRST_LINE, BlockFile, RecordedEntries, is_recording
from declctl.recording.entries import (
    BundleFiles,
    CallBegin,
    CallEnd,
    CallRequest,
    Entry,
    FrameDictionary,
    RecordedStream,
    RecordingEnd,
    RecordingGap,
    RecordingHeader,
    ReloadMark,
    StreamChanges,
    StreamDeparture,
    StreamList,
)

HEADER = RecordingHeader("run", 1, "c", "manifest.yaml", "1.0", "2026-01-01T00:00:00+00:00")


def _fits(entry: Entry) -> bool:
    """Whether its numbers have at most 64 bits."""
    try:
        return bool(msgspec.msgpack.encode(entry))
    except OverflowError:
        return False


# Each field by its type: texts, bytes and numbers of any kind.
ENTRIES = st.one_of(
    *map(
        st.from_type,
        (
            *(BundleFiles, CallBegin, CallEnd, CallRequest, FrameDictionary, RecordedStream, RecordingEnd),
            *(RecordingGap, ReloadMark, StreamChanges, StreamDeparture, StreamList),
        ),
    )
).filter(_fits)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks=st.lists(st.lists(ENTRIES, min_size=1, max_size=4), max_size=5), data=st.data())
def test_what_is_cut_at_any_byte_is_a_whole_prefix(
    tmp_path: Path, blocks: list[list[Entry]], data: st.DataObject
):
    """A process may be killed in the middle of a write."""
    path, ends = tmp_path / "a.rec", list[int]()
    file = BlockFile(path)
    file.append([HEADER])
    for block in [[], *blocks]:
        if block:
            file.append(block)
        ends.append(file.bytes)
    file.close()
    whole = path.read_bytes()
    assert len(whole) == ends[-1]
    cut = data.draw(st.integers(ends[0], len(whole)))
    path.write_bytes(whole[:cut])
    found = RecordedEntries(path)
    complete = sum(end <= cut for end in ends) - 1
    assert found.header == HEADER
    # Not a number is no number, and equals none.
    assert repr(list(found)) == repr([entry for block in blocks[:complete] for entry in block])
    assert found.torn == cut - ends[complete]


def test_a_broken_byte_ends_what_is_whole(tmp_path: Path):
    path = tmp_path / "a.rec"
    file = BlockFile(path)
    file.append([HEADER])
    file.append([CallBegin(1.0, 1, "h", "k", 1)])
    second = file.bytes
    file.append([CallBegin(2.0, 2, "h", "k", 1)])
    file.append([CallBegin(3.0, 3, "h", "k", 1)])
    file.close()
    raw = bytearray(path.read_bytes())
    raw[second + 12] ^= 1
    path.write_bytes(raw)
    assert list(RecordedEntries(path)) == [CallBegin(1.0, 1, "h", "k", 1)]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "it can't be read: No such file"),
        (b"", "the file is empty, and no recording: `declctl run --record FILE`"),
        (b"apiVersion: v1\nkind: List\n", "it does not begin with 'declctl-recording 1'"),
        (b"\x89PNG\r\n\x1a\n" * 100, "it does not begin with"),
        (FIRST_LINE[:-3], "it does not begin with"),
        (
            b"declctl-recording 7\n",
            ":1: the recording has the format 7, and this declctl reads those up to 1",
        ),
        (b"declctl-recording one\n", "it does not begin with"),
        (FIRST_LINE, "torn before its first entry"),
        (FIRST_LINE + b"\xff" * 40, "torn before its first entry"),
    ],
)
def test_what_is_no_recording_says_why(tmp_path: Path, content: bytes | None, said: str):
    path = tmp_path / "a.rec"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        RecordedEntries(path)
    assert str(refused.value).startswith(str(path))
    assert said in str(refused.value)


def test_a_folder_is_no_recording(tmp_path: Path):
    with pytest.raises(UsageError, match="Is a directory"):
        RecordedEntries(tmp_path)


def test_only_files_of_this_format_are_replaced(tmp_path: Path):
    """`--record manifest.yaml` must not overwrite a manifest."""
    path = tmp_path / "manifest.yaml"
    path.write_text("kind: Controller\n")
    assert not is_recording(path)
    path.write_bytes(FIRST_LINE)
    assert is_recording(path)
