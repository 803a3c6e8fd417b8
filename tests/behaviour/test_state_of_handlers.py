"""`state`: what handlers hear after a restart, and what they have still to deal with."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from declctl.recording.state_file import read_state
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
    """At its time, with its attempts, and of a change with the state before it as the old one."""
    with _process(bundle, server) as first:
        _resized(server, "a", "bad")
        _resized(server, "b", "fails")
        _resized(server, "c", "later")
        first.rest()
        assert "told Modified a 1 bad" in _lines(first)
    with _process(bundle, server) as second:
        assert _lines(second) == []
        second.advance(110)
        second.rest()
        assert _lines(second) == ["put b 2 fails", "told Modified a 1 bad"]
        _resized(server, "a", "4")  # which waits behind the failed change
        second.rest()
        second.log.lines.clear()
    with _process(bundle, server) as third:
        assert _lines(third) == []
        third.advance(210)
        third.rest()
        assert _lines(third) == ["put b 3 fails", "told Modified a 1 4"]
        third.advance(300)
        third.rest()
        assert "put c 1 later" in _lines(third)


REMEMBERING = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: keeper}
spec:
  namespaces: [demo]
  state: {path: state}
  resources: [{name: maps, apiVersion: v1, kind: ConfigMap}]
  handlers:
    - name: tell
      resourceRef: {name: maps}
      entryPoint: "handlers:tell"
      retry: {maxAttempts: 1}
      onFailure: DeadLetter
    - name: put
      mode: Reconcile
      resourceRef: {name: maps}
      entryPoint: "handlers:put"
      retry: {maxAttempts: 1}
      onFailure: DeadLetter
  schedules: [{name: tick, every: 60s, entryPoint: "handlers:tick"}]
"""
MEMORY = """
def counted(ctx, what, words):
    ctx.memo["seen"] = [*ctx.memo.get("seen", ()), what]
    ctx.log.info(f"{words} {ctx.memo['seen']}")
    if what == "bad":
        raise ValueError("bad")

def tell(change, ctx):
    old, new = change.old and change.old["data"]["size"], change.obj["data"]["size"]
    counted(ctx, new, f"tell {change.type} {old} {new}")

def put(request, ctx):
    if request.obj is not None:
        size = request.obj["data"]["size"]
        counted(ctx, size, f"put {request.attempt} {size}")

def tick(schedule, ctx):
    counted(ctx, "tick", "tick")
"""
INDEXED = "kind: ConfigMap, indexers: [{name: size, fieldPath: data.size}]"


@pytest.mark.parametrize(
    "edit",
    [
        (),
        ("handlers.py", "def counted", "def other(): ...\n\n\ndef counted"),
        ("manifest.yaml", "kind: ConfigMap", INDEXED),
    ],
    ids=["same", "code", "index"],
)
def test_memos_dead_letters_and_history_outlive_the_process(
    edit: tuple[str, ...], tmp_path: Path, server: SandboxThread
) -> None:
    """With the same code, with other code, and with an index for which the cache is listed anew."""
    bundle = BundleDir(tmp_path, {"manifest.yaml": REMEMBERING, "handlers.py": MEMORY})
    with _process(bundle, server) as first:
        first.advance(61)
        _resized(server, "a", "bad")
        first.rest()
        letters = first.runtime.dead_letters()
        assert sorted((each.handler, each.key, each.type) for each in letters) == [
            ("put", "demo/a", "Reconcile"),
            ("tell", "demo/a", "Modified"),
        ]
        history = first.runtime.history()["attempts"]
        assert history
    if edit:
        bundle.edit(*edit)
    with _process(bundle, server) as second:
        began = {each.handler: each.first_failed_at for each in second.runtime.dead_letters()}
        assert began == {each.handler: each.first_failed_at for each in letters}
        assert second.runtime.history()["attempts"][: len(history)] == history
        second.advance(61)
        assert any("tick ['tick', 'tick'" in line for line in _lines(second))
        if edit:
            assert "tell Added None bad ['1', 'bad', 'bad']" in _lines(second)
            return
        second.log.lines.clear()
        second.runtime.requeue()
        second.rest()
        assert _lines(second) == ["put 1 bad ['1', 'bad', 'bad']", "tell Modified 1 bad ['1', 'bad', 'bad']"]


def test_a_memo_of_a_schedule_is_kept_while_nothing_else_changes(
    tmp_path: Path, server: SandboxThread
) -> None:
    """Within a moment: a mark is written for it, although no cache and no handler has news."""
    bundle = BundleDir(tmp_path, {"manifest.yaml": REMEMBERING, "handlers.py": MEMORY})
    folder = bundle.path / "state"

    def ticks() -> int:
        state = read_state(folder)
        return 0 if state is None else state.notes.memos.get("schedule tick", b"").count(b"tick")

    async def trigger() -> None:
        first.runtime.trigger("tick")

    with _process(bundle, server) as first:
        until("the caches are kept", (folder / "caches").exists)
        for times in (1, 2):
            first.on_machinery(trigger(), timeout=30)
            first.rest()
            until("it is kept", lambda times=times: ticks() == times, timeout=15)
        first.on_machinery(trigger(), timeout=30)
        first.rest()
    assert ticks() == 3
