"""`state`: a process begins with the caches of the one before, and lists nothing."""

from pathlib import Path

import pytest

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


def _map(name: str, size: int) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "demo", "labels": {"app": "a"}},
        "data": {"size": str(size), "text": "t" * 200},
    }


@pytest.fixture
def server():
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


def _run(manifest: Path, server: SandboxThread) -> ControllerUnderTest:
    server.ledger.clear()
    return ControllerUnderTest(manifest, sandbox=server, keeps_state=True)


def _lists(server: SandboxThread) -> list[object]:
    """The requests for all objects; the proof of the history and the version of now ask for a few."""
    found = [each for each in server.ledger.requests() if each.resource == "configmaps"]
    return [
        each
        for each in found
        if (each.verb == "list" and "limit" not in each.params) or "sendInitialEvents" in each.params
    ]


@pytest.mark.parametrize("mode", ["Frames", "Objects", "MetadataOnly"])
def test_a_restart_lists_nothing(mode: str, tmp_path: Path, server: SandboxThread) -> None:
    """The second process has the objects of now, in every form of a cache, with their index and labels."""
    manifest = _bundle(tmp_path, mode)
    with _run(manifest, server) as first:
        first.wait_idle()
        until("the caches are kept", (tmp_path / "state" / "caches").exists)
        server.patch("ConfigMap", "m-001", {"data": {"size": "99"}}, namespace="demo")
        first.wait_idle()
    server.delete("ConfigMap", "m-002", "demo")
    server.create(_map("new", 5))
    with _run(manifest, server) as second:
        second.wait_idle()
        assert not _lists(server)
        maps = second.lister("maps")
        names = {each.name for each in maps.list()}
        assert names == {each["metadata"]["name"] for each in server.objects("ConfigMap", "demo")}
        assert maps.get("demo/m-001").labels == {"app": "a"}
        if mode != "MetadataOnly":
            assert {each.name for each in maps.by_index("bySize", "99")} == {"m-001"}
            assert maps.get("demo/m-003")["data"]["text"] == "t" * 200
