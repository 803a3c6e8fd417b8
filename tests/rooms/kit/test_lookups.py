"""Questions to the file system that are asked again."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from declctl.kit import files as reader
from declctl.kit.files import Lookups, PathKind, is_exhausted


def test_it_says_what_is_there_and_follows_links(tmp_path: Path) -> None:
    """A link is what it leads to; one that leads nowhere, or to itself, is nothing."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, to in {"link": "file", "around": ".", "nowhere": "gone", "loop": "loop"}.items():
        (tmp_path / name).symlink_to(to)
    lookups = Lookups()
    names = ["file", "pipe", "link", "around", "nowhere", "loop", "gone", "file/x", "a\0b", "x" * 300]
    assert [lookups.kind(tmp_path / name) for name in names] == [
        *[PathKind.FILE, PathKind.OTHER, PathKind.FILE, PathKind.FOLDER],
        *[PathKind.NOTHING] * 6,
    ]
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
}


@pytest.mark.parametrize("change", CHANGES)
def test_answers_hold_until_one_of_them_changes(change: str, tmp_path: Path) -> None:
    """Whatever was asked, and has another answer now, is found; what nobody asked for is not."""
    (tmp_path / "file").write_text("one")
    (tmp_path / "folder").mkdir()
    lookups = Lookups()
    lookups.kind(tmp_path / "missing")
    assert lookups.read(tmp_path / "file", most=10) == b"one"
    assert lookups.names(tmp_path / "folder") == ()
    lookups.real(tmp_path / "folder")
    (tmp_path / "unrelated").touch()
    assert lookups.are_unchanged()
    CHANGES[change](tmp_path)
    assert not lookups.are_unchanged()


def test_an_error_is_an_answer_too(tmp_path: Path) -> None:
    """A file that can't be read is read again when it can be."""
    (tmp_path / "file").mkdir()
    lookups = Lookups()
    with pytest.raises(OSError, match="it is a folder"):
        lookups.read(tmp_path / "file", most=10)
    assert lookups.are_unchanged()
    (tmp_path / "file").rmdir()
    assert not lookups.are_unchanged()


def test_what_the_process_lacks_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors nothing is known of a file: it is neither changed nor unchanged."""
    (tmp_path / "file").write_text("one")
    lookups = Lookups()
    lookups.read(tmp_path / "file", most=10)

    def none_left(*_: object, **__: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_file", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            lookups.are_unchanged()
        with pytest.raises(OSError, match="Too many open files"):
            lookups.read(tmp_path / "other", most=10)
    assert lookups.are_unchanged()


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (OSError(errno.EMFILE, "too many"), True),
        (OSError(errno.ENOMEM, "no memory"), True),
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.EACCES, "denied"), False),
        (TimeoutError(errno.ETIMEDOUT, "late"), False),
        (RuntimeError("generator ignored GeneratorExit"), False),
        (ValueError("no"), False),
    ],
)
def test_what_the_process_lacks_is_told_from_what_a_file_is(error: Exception, lacks: bool) -> None:
    """Of the one nothing follows for the files, the other is a fault of theirs."""
    assert is_exhausted(error) is lacks


def test_folders_are_those_in_which_something_may_come(tmp_path: Path) -> None:
    """Around each path; above, where even the folder around it is missing; inside, where names were asked."""
    (tmp_path / "package").mkdir()
    lookups = Lookups()
    lookups.kind(tmp_path / "missing" / "deep" / "file")
    assert lookups.folders() == [tmp_path]
    lookups.names(tmp_path / "package")
    assert lookups.folders() == [tmp_path, tmp_path / "package"]
