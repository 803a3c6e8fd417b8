"""`state`: a process begins with the caches of the one before, and lists nothing."""

import errno
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from declctl.errors import SandboxError
from declctl.recording.state_entries import StateHeader
from declctl.recording.state_file import StateFile, StateFolder
from declctl.runtime.keeping import keeper, writer
from declctl.sandbox import SandboxThread
from declctl.testing import BundleDir, ControllerUnderTest, until

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: keeper}
spec:
  namespaces: [demo]
  state: {path: state}
  resources:
    - name: maps
      apiVersion: v1
      kind: ConfigMap
      indexers: [{name: bySize, fieldPath: data.size}]
      cache: {mode: MODE}
  handlers:
    - {name: tell, resourceRef: {name: maps}, entryPoint: "handlers:tell"}
"""
HANDLERS = """
def tell(change, ctx):
    ctx.log.info(f"{change.type} {change.key} {change.obj.get('data', {}).get('size')}")
"""


def _map(name: str, size: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "demo", "labels": {"app": "a"}},
        "data": {"size": str(size), "text": "t" * 200},
    }


@pytest.fixture
def server() -> Generator[SandboxThread]:
    """An API server that outlives the processes."""
    with SandboxThread() as server:
        server.ensure_namespace("demo")
        for number in range(300):
            server.create(_map(f"m-{number:03}", number % 7))
        yield server


def _bundle(folder: Path, mode: str = "Frames") -> Path:
    manifest = MANIFEST.replace("MODE", mode)
    if mode == "MetadataOnly":
        manifest = manifest.replace("data.size", "metadata.uid")
    BundleDir(folder, {"manifest.yaml": manifest, "handlers.py": HANDLERS})
    return folder / "manifest.yaml"


@contextmanager
def _process(manifest: Path, server: SandboxThread, *, lists: int) -> Generator[ControllerUnderTest]:
    """A process whose cache is that of the server, after so many requests for all objects."""
    server.ledger.clear()
    with ControllerUnderTest(manifest, sandbox=server, keeps_state=True) as controller:
        controller.wait_idle()
        assert _lists(server) == lists
        assert {each.key: each.resource_version for each in controller.lister("maps").list()} == {
            f"demo/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
            for each in server.objects("ConfigMap", "demo")
        }
        yield controller


def _lists(server: SandboxThread) -> int:
    """The requests for all objects; the proof of the history and the version of now ask for a few."""
    found = [each for each in server.ledger.requests() if each.resource == "configmaps"]
    return sum(
        (each.verb == "list" and int(each.params.get("limit", 500)) > 1) or "sendInitialEvents" in each.params
        for each in found
    )


def _kept(manifest: Path, server: SandboxThread) -> None:
    """A first process, which has ended in order."""
    with _process(manifest, server, lists=1):
        until("the caches are kept", (manifest.parent / "state" / "caches").exists)


@pytest.mark.parametrize("mode", ["Frames", "Objects", "MetadataOnly"])
def test_a_restart_lists_nothing(mode: str, tmp_path: Path, server: SandboxThread) -> None:
    """The next processes have the objects of now, in every form of a cache, with their index and labels."""
    manifest = _bundle(tmp_path, mode)
    _kept(manifest, server)
    for round_ in range(2):
        server.delete("ConfigMap", f"m-{round_:03}", "demo")
        server.create(_map(f"new-{round_}", 5))
        with _process(manifest, server, lists=0) as controller:
            server.patch("ConfigMap", "m-011", {"data": {"size": f"9{round_}"}}, namespace="demo")
            controller.wait_idle()
    with _process(manifest, server, lists=0) as controller:
        assert controller.log.find(
            "maps synced: 300 objects, without a list: the process before has kept them"
        )
        maps = controller.lister("maps")
        changed, untouched = maps.get("demo/m-011"), maps.get("demo/m-013")
        assert changed is not None
        assert untouched is not None
        assert changed.labels == {"app": "a"}
        if mode != "MetadataOnly":
            assert {each.name for each in maps.by_index("bySize", "91")} == {"m-011"}
            assert untouched["data"]["text"] == "t" * 200


def test_the_state_of_another_cluster_is_not_used(
    tmp_path: Path, server: SandboxThread, caplog: pytest.LogCaptureFixture
) -> None:
    """A line says so, and the cache has the objects of this cluster alone."""
    manifest = _bundle(tmp_path)
    _kept(manifest, server)
    with SandboxThread() as other:
        other.ensure_namespace("demo")
        other.create(_map("own", 1))
        for _ in range(400):  # its versions are greater than those that were kept
            other.patch("ConfigMap", "own", {"data": {"size": "2"}}, namespace="demo")
            other.patch("ConfigMap", "own", {"data": {"size": "3"}}, namespace="demo")
        with _process(manifest, other, lists=1) as controller:
            assert "what the process before has kept is not used: demo/m-299 was there" in caplog.text
            assert [each.name for each in controller.lister("maps").list()] == ["own"]


def test_an_edit_of_the_running_process_is_kept(tmp_path: Path, server: SandboxThread) -> None:
    """Another index reads another field: the file begins anew, and the next process has its values."""
    manifest = _bundle(tmp_path)
    caches = tmp_path / "state" / "caches"
    index = "{name: byText, fieldPath: data.text}, {name: bySize"
    with _process(manifest, server, lists=1) as controller:
        until("the caches are kept", caches.exists)
        before = caches.stat().st_ino
        manifest.write_text(manifest.read_text("utf-8").replace("{name: bySize", index), "utf-8")
        controller.reload()
        server.patch("ConfigMap", "m-001", {"data": {"text": "mine"}}, namespace="demo")
        until("another file is begun", lambda: caches.stat().st_ino != before)
    with _process(manifest, server, lists=0) as controller:
        assert [each.name for each in controller.lister("maps").by_index("byText", "mine")] == ["m-001"]


def test_another_manifest_has_the_kept_caches_that_it_shares(tmp_path: Path, server: SandboxThread) -> None:
    """A cache with another selector is listed; so is one whose index needs a value that was not kept."""
    manifest = _bundle(tmp_path)
    _kept(manifest, server)
    text = manifest.read_text("utf-8")
    manifest.write_text(text.replace("data.size", "data.text"), "utf-8")
    with _process(manifest, server, lists=1) as controller:
        assert len(controller.lister("maps").by_index("bySize", "t" * 200)) == 300
    more = "    - {name: some, apiVersion: v1, kind: ConfigMap, labelSelector: app=a}\n  handlers:"
    manifest.write_text(text.replace("data.size", "data.text").replace("  handlers:", more), "utf-8")
    with _process(manifest, server, lists=1) as controller:
        assert len(controller.lister("some").list()) == 300


def _header(controller: str = "keeper", version: str = "0.0") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        held = StateFolder(folder)
        file = held.begin()
        file.append([StateHeader(controller, version, "")])
        file.publish()
        file.close()
        held.close()

    return write


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "caches").write_bytes(b"x"), "caches is no state of declctl"),
        (_header("other"), "it is of the controller other"),
        (_header(), "it is of declctl 0.0, and this is "),
    ],
)
def test_a_state_that_does_not_fit_is_a_line_and_a_list(
    spoil: Callable[[Path], None], words: str, tmp_path: Path, server: SandboxThread
) -> None:
    """And the next process has a state again."""
    manifest = _bundle(tmp_path)
    _kept(manifest, server)
    spoil(tmp_path / "state")
    with _process(manifest, server, lists=1) as controller:
        line = controller.log.find("the state of the process before is not used")
        assert line is not None
        assert words in line.event
        until("the caches are kept", lambda: (tmp_path / "state" / "caches").stat().st_size > 1000)
    with _process(manifest, server, lists=0):
        pass


def test_each_moment_of_the_file_leads_to_a_true_cache(
    tmp_path: Path, server: SandboxThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when files begin all the time, and when changes come faster than they can be written."""
    monkeypatch.setattr(writer, "LEAST_BYTES", 2000)
    monkeypatch.setattr(keeper, "MOST_WAITING", 3)
    monkeypatch.setattr(writer, "PAUSE_SECONDS", 0.01)
    manifest, caches = _bundle(tmp_path), tmp_path / "state" / "caches"
    chance, moments = random.Random(1), list[bytes]()
    with _process(manifest, server, lists=1):
        until("the caches are kept", caches.exists)
        for number in range(200):
            name = f"m-{chance.randrange(320):03}"
            with suppress(SandboxError):
                if number % 3:
                    server.patch("ConfigMap", name, {"data": {"size": str(number)}}, namespace="demo")
                elif number % 2:
                    server.delete("ConfigMap", name, "demo")
                else:
                    server.create(_map(name, number))
            if not number % 40:
                moments.append(caches.read_bytes())
    assert len({len(each) for each in moments}) > 1
    for moment in moments:
        caches.write_bytes(moment)
        with _process(manifest, server, lists=0):
            pass


def test_a_full_disk_is_a_condition(
    tmp_path: Path, server: SandboxThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller works; the next process begins with what was written before, and is true."""
    manifest = _bundle(tmp_path)
    with _process(manifest, server, lists=1) as controller, monkeypatch.context() as patch:
        until("the caches are kept", (tmp_path / "state" / "caches").exists)
        full = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(StateFile, "append", Mock(side_effect=full))
        server.patch("ConfigMap", "m-011", {"data": {"size": "77"}}, namespace="demo")
        _wait_for_fault(controller)
        assert "state can't be written: No space left on device" in controller.condition("Degraded").message
        controller.wait_idle()
        assert controller.log.find("Modified demo/m-011 77")
    with _process(manifest, server, lists=0):
        pass


def _wait_for_fault(controller: ControllerUnderTest) -> None:
    until("it is said", lambda: controller.condition("Degraded").reason == "StateNotKept")


def test_a_folder_that_can_not_be_used_is_a_condition(tmp_path: Path, server: SandboxThread) -> None:
    """Another process has it, or it goes while the process runs: the controller works, and says so."""
    manifest = _bundle(tmp_path)
    other = StateFolder(tmp_path / "state")
    with _process(manifest, server, lists=1) as controller:
        _wait_for_fault(controller)
        assert "another process has the folder" in controller.condition("Degraded").message
    other.close()
    with _process(manifest, server, lists=1) as controller:
        until("the caches are kept", (tmp_path / "state" / "caches").exists)
        line = manifest.read_text("utf-8")
        manifest.write_text(line.replace("path: state", "path: elsewhere"), "utf-8")
        assert "!state" in map(str, controller.reload().steps)  # what runs keeps its folder
        assert not (tmp_path / "elsewhere").exists()
        manifest.write_text(line, "utf-8")
        controller.reload()
        for each in (tmp_path / "state").iterdir():
            each.unlink()
        (tmp_path / "state").rmdir()
        for number in range(3):  # each edit begins another file
            index = f"{{name: by{number}, fieldPath: data.text{number}}}, {{name: bySize"
            manifest.write_text(manifest.read_text("utf-8").replace("{name: bySize", index), "utf-8")
            controller.reload()
            server.create(_map(f"more-{number}", number))
        _wait_for_fault(controller)
        controller.wait_idle()
