"""The folder of a ConfigMap: bad keys, a write that failed, an early end, and a source that is gone."""

from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from declctl.errors import UsageError
from declctl.runtime.config_map import ConfigMapFolder, FollowedStatus, MountedFiles
from declctl.sandbox import SandboxThread
from declctl.sandbox.faults import Match
from declctl.testing import until
from declctl.transport import Client


async def never():
    raise AssertionError("no client is needed")


def test_the_files_are_those_of_the_newest_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also after a write that left its link behind; one that fails leaves nothing: a full disk."""
    files = MountedFiles(tmp_path)
    files.replace({"data": {"a.py": "1", "b.py": "2"}})
    (tmp_path / "..data_tmp").symlink_to("..9")
    files.replace({"data": {"a.py": "3"}, "binaryData": {"c.py": "NA=="}})
    found = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir() if path.suffix == ".py"}
    assert found == {"a.py": "3", "c.py": "4"}
    before = sorted(tmp_path.iterdir())
    write = Path.write_bytes

    def fails_at_b(path: Path, data: bytes) -> int:
        if path.name == "b.py":
            raise OSError("no space left on device")
        return write(path, data)

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", fails_at_b)
        with pytest.raises(OSError, match="no space"):
            files.replace({"data": {"a.py": "2", "b.py": "2"}})
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "a.py").read_text("utf-8") == "3"
    files.replace({"data": {"a.py": "2", "b.py": "2"}})
    assert (tmp_path / "b.py").read_text("utf-8") == "2"


@pytest.mark.parametrize("key", [".", "..", "../a", "..data", "a/b", ""])
def test_a_key_that_is_no_name_of_a_file_is_refused(tmp_path: Path, key: str):
    """No file is written outside of the folder, and the present ones stay."""
    files = MountedFiles(tmp_path)
    files.replace({"data": {"a.py": "1"}})
    with pytest.raises(UsageError, match="is no name of a file"):
        files.replace({"data": {key: "2"}})
    assert (tmp_path / "a.py").read_text("utf-8") == "1"


def test_an_end_before_the_begin_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log):
    """Least of all the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    ConfigMapFolder("team-a", "bundle", connect=never, log=log).__exit__(None, None, None)
    assert (tmp_path / "mine").exists()


UNMARKED = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bundle", "namespace": "team-a"}}
MAP = {**UNMARKED, "metadata": {**UNMARKED["metadata"], "labels": {"declctl.dev/code": "bundle"}}}


@pytest.fixture(name="server")
def _server() -> Iterator[SandboxThread]:
    with SandboxThread() as server:
        server.load([{**MAP, "data": {"a.py": "1"}}])
        yield server


def following(server: SandboxThread, log) -> ConfigMapFolder:
    def connect() -> Awaitable[Client]:
        return Client.from_kubeconfig_dict(server.kubeconfig())

    return ConfigMapFolder("team-a", "bundle", connect=connect, log=log)


@pytest.fixture(name="followed")
def _followed(server: SandboxThread, log) -> Iterator[ConfigMapFolder]:
    with following(server, log) as folder:
        yield folder


def test_a_lost_or_bad_map_is_a_fault_until_it_is_mended(server, followed: ConfigMapFolder, log):
    """The process goes on with files that are nowhere else any more: a user learns that, and what to do."""
    assert followed.status() == FollowedStatus("Followed", "")
    server.delete("ConfigMap", "bundle", "team-a")
    until("it is noticed", lambda: followed.status().reason == "ConfigMapDeleted")
    assert not followed.status().is_followed
    assert followed.status().message == (
        "configmap/team-a/bundle was deleted, and the process goes on with the last files: create it again, "
        "and it is followed again. A process that starts without it ends at once"
    )
    assert (followed.path / "a.py").read_text("utf-8") == "1"
    # Who may not mark code can't put other code in its place.
    server.load([UNMARKED])
    until("it is not followed", lambda: followed.status().reason == "ChangeRefused")
    with pytest.raises(UsageError, match=r"has no label declctl\.dev/code"):
        following(server, log).__enter__()
    server.delete("ConfigMap", "bundle", "team-a")
    server.load([{**MAP, "data": {"a.py": "2"}}])
    until("it is followed again", lambda: followed.status().is_followed)
    until("its files are there", lambda: (followed.path / "a.py").read_text("utf-8") == "2")
    server.load([{**MAP, "data": {"a.py": "2"}, "binaryData": {"b": "no base64"}}])
    until("it is noticed", lambda: followed.status().reason == "ChangeRefused")
    assert "the binaryData of b is not base64; mend it" in followed.status().message
    server.load([{**MAP, "data": {"a.py": "3"}}])
    until("it is taken over", lambda: followed.status().is_followed)
    assert (followed.path / "a.py").read_text("utf-8") == "3"


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (403, "WatchForbidden", "Grant get, list, watch of it, such as with `kubectl create role"),
        (500, "WatchFailed", "it is tried again by itself"),
    ],
)
def test_a_watch_that_fails_is_a_fault_until_it_works_again(
    server: SandboxThread, followed: ConfigMapFolder, code: int, reason: str, advice: str
):
    """Such as a right that was taken away: edits do not arrive, although the ConfigMap is there."""
    until("it watches", lambda: server.faults.document()["openWatches"] == 1)
    server.faults.refuse(code, Match(resource="configmaps"))
    server.faults.cut_watches("configmaps", clean=True)
    until("it is noticed", lambda: followed.status().reason == reason)
    message = followed.status().message
    assert "configmap/team-a/bundle can't be watched, and the process goes on with the last files" in message
    assert advice in message
    server.faults.clear()
    until("it is followed again", lambda: followed.status().is_followed)


def test_a_start_without_the_right_to_watch_says_which_right(server: SandboxThread, log):
    """The files of now are there; that no edit will arrive is told at once. A delete meanwhile is noticed."""
    for verb in ("list", "watch"):
        server.faults.refuse(403, Match(resource="configmaps", verb=verb))

    with following(server, log) as folder:
        assert (folder.path / "a.py").read_text("utf-8") == "1"
        until("it is told", lambda: folder.status().reason == "WatchForbidden")
        assert log.find("can't be watched")
        server.delete("ConfigMap", "bundle", "team-a")
        server.faults.clear()
        until("it is noticed", lambda: folder.status().reason == "ConfigMapDeleted")
        server.load([{**MAP, "data": {"a.py": "2"}}])
        until("it is followed", lambda: folder.status().is_followed)
