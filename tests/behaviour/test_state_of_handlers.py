"""`state`: what handlers hear after a restart, and what they have still to deal with."""

from collections.abc import Iterator
from contextlib import contextmanager
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
    - {name: maps, apiVersion: v1, kind: ConfigMap}
    - {name: pods, apiVersion: v1, kind: Pod}
  handlers:
    - name: tell
      resourceRef: {name: maps}
      entryPoint: "handlers:tell"
      retry: {initialBackoff: 100s}
    - name: put
      mode: Reconcile
      resourceRef: {name: maps}
      entryPoint: "handlers:put"
      retry: {initialBackoff: 100s}
      watches: [{resourceRef: {name: pods}, mapTo: {label: map}}]
"""
HANDLERS = """
import declctl

def tell(change, ctx):
    old = change.old and change.old["data"]["size"]
    new = change.obj["data"]["size"]
    ctx.log.info(f"told {change.type} {change.obj.name} {old} {new}")
    if new == "bad":
        raise ValueError("bad")

def put(request, ctx):
    obj = request.obj
    ctx.log.info(f"put {request.name} {request.attempt} {obj and obj['data']['size']}")
    if obj is not None and obj["data"]["size"] == "fails":
        raise ValueError("fails")
    if obj is not None and obj["data"]["size"] == "later":
        return declctl.Requeue(after=500)
"""


def _map(name: str, size: str) -> dict:
    metadata = {"name": name, "namespace": "demo"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"size": size}}


def _pod(name: str, of: str) -> dict:
    metadata = {"name": name, "namespace": "demo", "labels": {"map": of}}
    spec = {"containers": [{"name": "a", "image": "b"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture(name="server")
def _server() -> Iterator[SandboxThread]:
    """An API server that outlives the processes."""
    with SandboxThread() as server:
        server.ensure_namespace("demo")
        for name in "abcd":
            server.create(_map(name, "1"))
        yield server


@pytest.fixture(name="bundle")
def _bundle(tmp_path: Path) -> BundleDir:
    return BundleDir(tmp_path, {"manifest.yaml": MANIFEST, "handlers.py": HANDLERS})


@contextmanager
def _process(bundle: BundleDir, server: SandboxThread) -> Iterator[ControllerUnderTest]:
    with ControllerUnderTest(bundle.path, sandbox=server, keeps_state=True) as controller:
        controller.wait_ready()
        controller.rest()
        yield controller
        until("the caches are kept", (bundle.path / "state" / "caches").exists)


def _lines(controller: ControllerUnderTest) -> list[str]:
    return sorted(line.event for line in controller.log.lines if line.by_handler)


def _resized(server: SandboxThread, name: str, size: str) -> None:
    server.patch("ConfigMap", name, {"data": {"size": size}}, namespace="demo")


def test_only_what_has_happened_meanwhile_is_heard(bundle: BundleDir, server: SandboxThread) -> None:
    """With the old state that the handler knows; a reconciler gets the keys of what has changed."""
    with _process(bundle, server) as first:
        assert len(_lines(first)) == 8
    with _process(bundle, server) as second:
        assert _lines(second) == []
    _resized(server, "a", "2")
    _resized(server, "a", "3")
    server.delete("ConfigMap", "b", "demo")
    server.create(_map("new", "1"))
    server.create(_pod("p", "c"))
    with _process(bundle, server) as third:
        assert _lines(third) == [
            *("put a 1 3", "put b 1 None", "put c 1 1", "put new 1 1"),
            *("told Added new None 1", "told Deleted b None 1", "told Modified a 1 3"),
        ]
        third.log.lines.clear()
        _resized(server, "d", "2")
        third.rest()
        assert _lines(third) == ["put d 1 2", "told Modified d 1 2"]


def test_with_other_files_all_is_heard(bundle: BundleDir, server: SandboxThread) -> None:
    """As after any start: new code may do otherwise."""
    with _process(bundle, server):
        pass
    bundle.edit("handlers.py", '"told ', '"heard ')
    with _process(bundle, server) as second:
        assert len(_lines(second)) == 8
    with _process(bundle, server) as third:
        assert _lines(third) == []


def test_what_was_not_dealt_with_comes_again(bundle: BundleDir, server: SandboxThread) -> None:
    """A failed change with the state before it as the old one, a key with its attempts and its time."""
    with _process(bundle, server) as first:
        _resized(server, "a", "bad")
        _resized(server, "b", "fails")
        _resized(server, "c", "later")
        first.rest()
        assert "told Modified a 1 bad" in _lines(first)
    with _process(bundle, server) as second:
        assert _lines(second) == ["told Modified a 1 bad"]
        second.advance(110)
        second.rest()
        assert _lines(second).count("put b 2 fails") == 1
        _resized(server, "a", "4")  # which waits behind the failed change
        second.rest()
    with _process(bundle, server) as third:
        assert _lines(third) == ["told Modified a 1 4"]
        third.advance(510)
        third.rest()
        assert "put c 1 later" in _lines(third)
