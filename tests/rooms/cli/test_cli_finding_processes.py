"""How commands find their process: by the manifest of the folder, by a name, or not at all."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from declctl.cli.admin_client import admin_address
from declctl.errors import UsageError
from declctl.kit.running_processes import RunningProcess, registered, start_time
from declctl.testing import until
from tests.rooms.cli.answering import STATUS
from tests.rooms.cli.conftest import MANIFEST


@pytest.fixture(name="runs")
def _runs(folder: Path) -> Iterator[Callable[..., RunningProcess]]:
    """Lets a controller run, as far as commands can see."""
    with ExitStack() as stack:

        def runs(controller: str, address: str, **more: str) -> RunningProcess:
            own = start_time(os.getpid()) or ""
            process = RunningProcess(controller, os.getpid(), own, address, **more)
            stack.enter_context(registered(process))
            return process

        yield runs


def _write_manifest(folder: Path, name: str, admin: str = "") -> None:
    text = MANIFEST.replace("name: c}", f"name: {name}}}")
    (folder / "manifest.yaml").write_text(text + (f"  admin: {{{admin}}}\n" if admin else ""))


@pytest.mark.parametrize("admin", ["", "bindAddress: '127.0.0.1:0'", "bindAddress: '127.0.0.1:9'"])
def test_the_process_of_the_manifest_is_found(folder, runs, admin):
    """Wherever it listens: at any free port, or where --admin has put it."""
    _write_manifest(folder, "pod-guard", admin)
    runs("other", "127.0.0.1:1001")
    runs("pod-guard", "127.0.0.1:1002", manifest=str(folder / "manifest.yaml"))
    found = admin_address(None)
    assert (str(found), found.controller) == ("127.0.0.1:1002", "pod-guard")


@pytest.mark.parametrize("started_with", ["", "manifest.yaml"])
def test_the_folder_of_the_manifest_decides_between_two_of_one_name(folder, runs, started_with):
    """Two checkouts of one controller run side by side, and each folder is for its own."""
    _write_manifest(folder, "c")
    runs("c", "127.0.0.1:1001", manifest="/srv/other/manifest.yaml")
    here = runs("c2", "127.0.0.1:1002", manifest=str(folder / started_with))
    assert admin_address(None).process == here  # although its name was edited meanwhile


def test_a_broken_manifest_leads_to_its_process_and_to_no_other(folder, runs):
    """While it is broken by an edit, `declctl status` shows the process that goes on."""
    (folder / "manifest.yaml").write_text("apiVersion: declctl.dev/v1alpha1\nkind: [\n")
    runs("other", "127.0.0.1:8081")
    with pytest.raises(UsageError, match=r"Running: other \(127\.0\.0\.1:8081"):
        admin_address(None)
    here = runs("c", "127.0.0.1:1002", manifest=str(folder))
    assert admin_address(None).process == here


def test_a_name_is_enough_from_any_folder(declctl, runs):
    """`declctl status --admin pod-guard` needs neither a port nor the folder; else it says what runs."""
    runs("other", "127.0.0.1:1001", manifest="/srv/other")
    said = declctl.refused("reload", "--admin", "pod-guard")
    assert f"Running: other (127.0.0.1:1001, pid {os.getpid()}, /srv/other)." in said
    runs("pod-guard", "0.0.0.0:1002")
    assert str(admin_address("pod-guard")) == "127.0.0.1:1002"


def test_without_a_manifest_the_only_one_is_meant_and_of_several_none(folder, runs):
    """With one controller nothing needs to be said; with two, a command never picks one."""
    only = runs("a", "127.0.0.1:1001")
    assert admin_address(None).process == admin_address(str(only.pid)).process == only
    runs("b", "127.0.0.1:1002")
    with pytest.raises(UsageError, match=r"2 controllers run .*: a \(.*; b \(.*--admin"):
        admin_address(None)


@pytest.mark.parametrize("address", ["127.0.0.1:1001", "localhost:1001", ":1001"])
def test_a_process_is_known_by_each_of_its_addresses(runs, address):
    """With it, its certificate and the file of its token; another port is another process."""
    process = runs("a", "127.0.0.1:1001", cert_file="/run/tls.crt")
    found = admin_address(address)
    assert (found.process, found.encrypted) == (process, True)
    assert admin_address("localhost:1002").process is None


def test_two_of_the_same_name_are_told_apart_by_the_user(folder, runs):
    """Neither of two processes of one name is preferred by chance."""
    _write_manifest(folder, "c")
    runs("c", "127.0.0.1:1001", manifest="/srv/a")
    pid = os.getppid()  # another process, which runs as well
    other = RunningProcess("c", pid, start_time(pid) or "", "127.0.0.1:1002", manifest="/srv/b")
    with registered(other), pytest.raises(UsageError, match="2 controllers run"):
        admin_address(None)


def test_nobody_there_is_told_with_those_that_run(declctl, folder, runs):
    """Without the process of the manifest, the sentence names the controllers that there are."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    _write_manifest(folder, "pod-guard", f"bindAddress: '127.0.0.1:{port}'")
    runs("other", "127.0.0.1:1001")
    assert "Running: other (127.0.0.1:1001" in declctl.refused("status")


def test_the_token_is_read_from_the_file_that_the_process_reads(
    declctl, ask, write, process, runs, monkeypatch
):
    """A rotated token needs no step of the user; the file of the environment comes first."""
    write("token", "first\n")
    runs("pod-guard", process.address, token_file=str(Path("token").absolute()))
    declctl("status")
    write("token", "second\n")
    ask("status")
    write("mine", "third\n")
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN_FILE", "mine")
    ask("status")
    assert [shown for _, _, shown in process.asked] == ["Bearer first", "Bearer second", "Bearer third"]


REDACTED = {**STATUS, "redacted": True}
NEEDS_TOKEN = {"error": "/-/reload needs the header Authorization: Bearer with the right token."}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "can't be read: No such file or directory: create the file, or correct its path; or"),
        (" \n", "is empty: write the token into it; or"),
        ("a\nb", "has characters that no header can carry: write the token into it; or"),
    ],
)
@pytest.mark.parametrize("by", ["environment", "process"])
def test_status_goes_on_without_a_token_file_that_can_not_be_used(
    ask, folder, process, runs, monkeypatch, content, why, by
):
    """It shows what the process shows to all, and says which file, why, and what to do."""
    file = folder / "token"
    if content is not None:
        file.write_text(content)
    if by == "environment":
        monkeypatch.setenv("DECLCTL_ADMIN_TOKEN_FILE", str(file))
    else:
        runs("pod-guard", process.address, token_file=str(file))
    ended = ask("status")  # a process without a token on loopback shows everything
    assert (ended.status, ended.err) == (0, "")
    process.answers(200, REDACTED)
    who = "DECLCTL_ADMIN_TOKEN_FILE" if by == "environment" else "pod-guard"
    for command in (["status"], ["status", "-o", "json"], ["top", "--once", "--interval", "100ms"]):
        ended = ask(*command)
        assert ended.status == 0
        assert "pod-guard" in ended.out
        assert f"The token file {file}, which {who} names, {why} " in ended.err
        assert "set DECLCTL_ADMIN_TOKEN to the token." in ended.err
    assert {shown for _, _, shown in process.asked} == {None}
    process.answers(401, NEEDS_TOKEN)
    for command in ("reload", "history", "tap"):
        assert f"asks for a token. The token file {file}, which {who} names, {why} " in ask.refused(command)


def test_status_says_that_the_token_was_not_sent(declctl, folder, process, monkeypatch):
    """To an address that only a manifest names: to set the variable, which is set, would not help."""
    _write_manifest(folder, "pod-guard", f"bindAddress: '{process.address}'")
    monkeypatch.setattr("declctl.cli.admin_client.is_loopback", lambda _: False)
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "mine")
    process.answers(200, REDACTED)
    said = f"It was not sent, as only a manifest names {process.address}"
    assert f"{said}: write --admin" in declctl("status").err
    assert process.asked[-1][2] is None
    process.answers(401, NEEDS_TOKEN)
    assert f"asks for a token. {said}" in declctl("reload").err


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_a_process_at_any_free_port_is_found_until_it_ends(declctl, hello, begin):
    """`declctl run` and then `declctl status` in one folder need no address; a second run names the first."""
    runtime = Path(os.environ["XDG_RUNTIME_DIR"]) / "declctl"
    first = begin(".", "--sandbox", "--admin", "127.0.0.1:0")
    first.wait_for("admin address http://")
    until("its file is there", lambda: list(runtime.glob("*.json")))
    name = json.loads(next(runtime.glob("*.json")).read_text())["controller"]
    found = declctl("status", "-o", "json").document
    assert found["name"] == name
    assert declctl("status", "--admin", name).status == 0
    address = str(admin_address(name))
    second = begin(".", "--sandbox", "--admin", address)
    assert second.process.wait(60) == 2
    second.wait_for(f"is in use, by the controller {name} ({address}, pid {first.process.pid}, ")
    assert first.stop() == 0
    assert list(runtime.iterdir()) == []
