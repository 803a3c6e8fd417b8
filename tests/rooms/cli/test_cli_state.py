"""`declctl state inspect` and `clear`."""

import pytest

from declctl.recording.state_entries import (
    KeptCache,
    KeptChange,
    KeptHandler,
    KeptKey,
    KeptList,
    KeptMark,
    KeptObject,
    StateEnd,
    StateHeader,
)
from declctl.recording.state_file import StateFolder

HEADER = StateHeader("keeper", "1.0", "2026-01-01T00:00:00+00:00", "https://10.0.0.1")


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """A folder that a process has."""
    held = StateFolder(tmp_path / "state")
    file = held.begin()
    file.append([HEADER, KeptCache(1, "a", "v1 Pod in a", []), KeptCache(2, "b", "v1 Secret in a", [])])
    file.append([KeptList(1, "70", [KeptObject("a/b", "uid\n70", b"{}", (), b"frame" * 300)])])
    keys = [KeptKey("a/b", KeptChange()), KeptKey("a/c", memo=b"{}")]
    file.append([KeptMark("digest", [KeptHandler("tell", "Pod", [1], True, True, keys)])])
    file.publish()
    yield held, file
    file.close()
    held.close()


def test_a_state_is_shown_while_it_is_written(declctl, folder):
    """Whose it is, and each whole cache; a cache whose list has not come to its end is not kept."""
    held, file = folder
    shown = declctl.done("state", "inspect", str(held.path)).out
    assert "controller  keeper, of declctl 1.0\nserver      https://10.0.0.1\n" in shown
    assert "began 2026-01-01T00:00:00+00:00, runs, or was killed" in shown
    assert [row.split() for row in shown.splitlines()[-5:]] == [
        ["CACHE", "OBJECTS", "VERSION", "BYTES"],
        ["v1", "Pod", "in", "a", "1", "70", "1.48Ki"],
        [],
        ["HANDLER", "KIND", "GOES", "ON", "PENDING", "MEMOS", "DEAD", "LETTERS"],
        ["tell", "Pod", "yes", "1", "1", "0"],
    ]
    file.append([StateEnd()])
    document = declctl.done("state", "inspect", str(held.path), "-o", "json").document
    assert document["endedInOrder"] is True
    assert document["bytes"] == file.bytes
    assert document["caches"] == [
        {"name": "v1 Pod in a", "objects": 1, "resourceVersion": "70", "bytes": 1500 + 3 + 6 + 2}
    ]
    assert document["handlers"] == [
        {"name": "tell", "kind": "Pod", "goesOn": True, "pending": 1, "memos": 1, "deadLetters": 0}
    ]


def test_a_state_is_cleared_when_no_process_has_it(declctl, folder):
    """Before that, nothing is removed; afterwards the folder is free for the next process."""
    held, file = folder
    assert "another process has the folder" in declctl.refused("state", "clear", str(held.path))
    assert held.read() is not None
    file.close()
    held.close()
    assert "removed " in declctl.done("state", "clear", str(held.path)).out
    assert "has no state" in declctl.done("state", "clear", str(held.path)).out
    ended = declctl("state", "inspect", str(held.path))
    assert (ended.status, ended.out) == (1, "")
    assert "has no state: the next process lists everything" in ended.err


def test_what_is_no_state_is_said(declctl, tmp_path):
    """And a folder that is not there is not made."""
    (tmp_path / "caches").write_bytes(b"declctl-state 2\n")
    ended = declctl("state", "inspect", str(tmp_path))
    assert (ended.status, ended.out) == (1, "")
    assert "has the format 2, and this declctl reads 1: the next process lists everything" in ended.err
    for command in ("inspect", "clear"):
        assert "is no folder" in declctl.refused("state", command, str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()
