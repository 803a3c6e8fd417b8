"""The files by which commands find running controllers, and the files of cgroups: which of them count."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from declctl.kit.memory import memory_left
from declctl.kit.running_processes import (
    RunningProcess,
    registered,
    running_processes,
    runtime_folder,
    start_time,
)


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty runtime folder of a user."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DECLCTL_RUNTIME_DIR", raising=False)
    return tmp_path / "declctl"


def this_process(controller: str = "pod-guard", **more: str) -> RunningProcess:
    return RunningProcess(controller, os.getpid(), start_time(os.getpid()) or "", "127.0.0.1:8081", **more)


def test_a_process_is_found_until_it_ends_by_its_user_alone(folder: Path):
    """With all that a command needs, in the order of names.

    Neither file nor folder is for others, whatever the umask is.
    """
    process = this_process(manifest="/srv/pods/manifest.yaml", token_file="/run/token")
    with registered(process):
        assert running_processes() == [process]
    assert running_processes() == []
    assert list(folder.iterdir()) == []
    before = os.umask(0)
    try:
        with registered(this_process()) as path:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    with registered(this_process("b")), registered(this_process("a")):
        assert [each.controller for each in running_processes()] == ["a", "b"]
    assert runtime_folder() == folder


def test_the_folder_of_a_pod_may_be_below_one_of_all_users(tmp_path: Path, monkeypatch):
    """An emptyDir belongs to root, and all may write to it; the folder in it is still of this user alone."""
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    monkeypatch.setenv("DECLCTL_RUNTIME_DIR", str(volume / "declctl"))
    process = this_process()
    with registered(process) as path:
        assert path.parent == volume / "declctl"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert running_processes() == [process]
        path.parent.chmod(0o755)
        assert running_processes() == []


def test_a_process_that_is_gone_does_not_count_and_its_file_is_removed(folder: Path):
    """Another may listen at its address. Ids of processes come again; start times do not."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = replace(this_process(), pid=child.pid, start_time=start_time(child.pid) or "")
        with registered(process) as path:
            assert running_processes() == [process]
            child.kill()
            child.wait()
            assert running_processes() == []
            assert not path.exists()
    with registered(replace(this_process(), start_time="1")) as path:
        assert running_processes() == []
        assert not path.exists()
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
        assert start_time(child.pid) is None
    assert start_time(os.getpid()) == start_time(os.getpid())


def test_a_process_keeps_its_file_if_the_system_can_not_be_asked(monkeypatch: pytest.MonkeyPatch):
    """A reader without a free file descriptor must not remove the file of a process that runs."""

    def fail(pid: int) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    process = this_process()
    with registered(process):
        with monkeypatch.context() as patch:
            patch.setattr("declctl.kit.running_processes.start_time", fail)
            assert running_processes() == []
        assert running_processes() == [process]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"controller": 1}', b"x" * 100_000])
def test_another_file_in_the_folder_is_left_alone(folder: Path, content: bytes):
    """What can't be read is no process, and not ours to remove."""
    folder.mkdir(mode=0o700)
    (folder / "other.json").write_bytes(content)
    assert running_processes() == []
    assert (folder / "other.json").exists()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_a_folder_that_others_can_use_is_not_used(folder: Path, mode: int):
    """Nobody else can put an address there to which a command would send the token."""
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(OSError, match="no other user"), registered(this_process()):
        raise AssertionError("it was written")
    folder.chmod(0o700)
    with registered(this_process()):
        folder.chmod(mode)
        assert running_processes() == []
        folder.chmod(0o700)


def test_a_link_in_the_place_of_the_folder_is_not_followed(folder: Path, tmp_path: Path):
    """A link could lead to a folder of another user."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), registered(this_process()):
        raise AssertionError("it was written")


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"), "rss 3\ntotal_inactive_file "
_V2 = ("memory.max", "memory.current", "memory.stat"), "active_file 7\ninactive_file "


@pytest.mark.parametrize(
    ("own", "folders", "left"),
    [
        ("0::/\n", {".": (_V2, 500, 200, 30)}, 330),
        ("0::/a/b/c\n", {"a/b/c": (_V2, "max", 1, 0), "a/b": (_V2, 400, 50, 0), "a": (_V2, 500, 490, 0)}, 10),
        ("0::/../../elsewhere\n", {".": (_V2, 500, 200, 0)}, 300),
        ("5:memory:/a\n", {"memory/a": (_V1, 9223372036854771712, 600, 0)}, None),
        ("5:cpu,memory:/pod\n4:pids:/pod\n0::/\n", {"memory": (_V1, 500, 200, 30)}, 330),
    ],
)
def test_the_nearest_limit_around_the_process_counts(own, folders, left, tmp_path: Path) -> None:
    """A child of a controller must not use more; without a limit there is no number."""
    for folder, ((names, keys), limit, used, cache) in folders.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in zip(names, (f"{limit}\n", f"{used}\n", f"{keys}{cache}\n"), strict=True):
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert (memory_left(tmp_path, tmp_path / "own"), memory_left(tmp_path, tmp_path / "none")) == (left, None)
