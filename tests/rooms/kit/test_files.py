"""Questions to the file system: answers that hold until they change, and reads that wait for nothing."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from declctl.kit import files as reader
from declctl.kit.files import Lookups, PathKind, is_exhausted, read_file


def test_it_says_what_is_there_and_follows_links(tmp_path: Path) -> None:
    """A link is what it leads to; one that leads nowhere, or to itself, is nothing."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, to in {"link": "file", "around": ".", "nowhere": "gone", "loop": "loop"}.items():
        (tmp_path / name).symlink_to(to)
    lookups = Lookups()
    found = [PathKind.FILE, PathKind.OTHER, PathKind.FILE, PathKind.FOLDER, *[PathKind.NOTHING] * 6]
    names = ["file", "pipe", "link", "around", "nowhere", "loop", "gone", "file/x", "a\0b", "x" * 300]
    assert [lookups.kind(tmp_path / name) for name in names] == found
    assert lookups.real(tmp_path / "link") == os.path.realpath(tmp_path / "file")
    assert lookups.are_unchanged()


CHANGES = {
    "a file comes": lambda root: (root / "missing").touch(),
    "a file goes": lambda root: (root / "file").unlink(),
    "a file has other bytes": lambda root: (root / "file").write_text("two"),
    "a file becomes a folder": lambda root: ((root / "file").unlink(), (root / "file").mkdir()),
    "a folder goes": lambda root: shutil.rmtree(root / "folder"),
    "a folder has another name in it": lambda root: (root / "folder" / "inner").touch(),
    "a folder becomes a link": lambda root: ((root / "folder").rmdir(), (root / "folder").symlink_to(".")),
    "what could not be read is gone": lambda root: (root / "unreadable").rmdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_answers_hold_until_one_of_them_changes(change: str, tmp_path: Path, monkeypatch) -> None:
    """Whatever was asked, and has another answer now, is found; what nobody asked for is not.

    An error is an answer, too. What the process lacks is none: without descriptors nothing is known.
    """
    (tmp_path / "file").write_text("one")
    for folder in ("folder", "unreadable"):
        (tmp_path / folder).mkdir()
    lookups = Lookups()
    lookups.kind(tmp_path / "missing")
    assert lookups.read(tmp_path / "file", most=10) == b"one"
    assert lookups.names(tmp_path / "folder") == ()
    lookups.real(tmp_path / "folder")
    with pytest.raises(OSError, match="it is a folder"):
        lookups.read(tmp_path / "unreadable", most=10)
    (tmp_path / "unrelated").touch()
    assert lookups.are_unchanged()

    def none_left(*_: object, **__: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_file", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            lookups.are_unchanged()
        with pytest.raises(OSError, match="Too many open files"):
            lookups.read(tmp_path / "other", most=10)
    assert lookups.are_unchanged()
    CHANGES[change](tmp_path)
    assert not lookups.are_unchanged()


def test_what_the_process_lacks_is_told_from_what_a_file_is() -> None:
    """Of the one nothing follows for the files, the other is a fault of theirs."""
    lacking = [OSError(errno.EMFILE, "too many"), OSError(errno.ENOMEM, "no memory"), MemoryError()]
    lacking.append(RuntimeError("can't start new thread"))
    others = [OSError(errno.EACCES, "denied"), TimeoutError(errno.ETIMEDOUT, "late"), ValueError("no")]
    others.append(RuntimeError("generator ignored GeneratorExit"))
    assert [error for error in lacking + others if is_exhausted(error)] == lacking


def test_folders_are_those_in_which_something_may_come(tmp_path: Path) -> None:
    """Around each path; above, where even the folder around it is missing; inside, where names were asked."""
    (tmp_path / "package").mkdir()
    lookups = Lookups()
    lookups.kind(tmp_path / "missing" / "deep" / "file")
    assert lookups.folders() == [tmp_path]
    lookups.names(tmp_path / "package")
    assert lookups.folders() == [tmp_path, tmp_path / "package"]


def test_a_file_that_becomes_a_pipe_before_it_is_opened_is_not_read(tmp_path: Path, monkeypatch) -> None:
    """What was looked at is a file, what is opened is none: a read would wait for a writer."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    looked_at = (tmp_path / "file").stat()
    with monkeypatch.context() as replaced:
        replaced.setattr(Path, "stat", lambda _: looked_at)
        with pytest.raises(OSError, match="it is a named pipe, and only regular files are read"):
            read_file(tmp_path / "pipe", most=100)
