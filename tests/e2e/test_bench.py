"""`declctl bench reload`, whole: a restart and a reload as a person would make them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import run
from waiting import until

from declctl.bench.controller import ControllerProcess, built_in
from declctl.errors import DeclctlError
from declctl.sandbox import SandboxThread

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: shop}
spec:
  namespaces: [team-a]
  resources:
    - {name: maps, apiVersion: v1, kind: ConfigMap}
    - {name: orders, apiVersion: shop.example/v1, kind: Order, labelSelector: {matchLabels: {state: open}}}
  handlers:
    - {name: count, resourceRef: {name: maps}, entryPoint: "handlers:Count"}
    - {name: slow, resourceRef: {name: orders}, entryPoint: "handlers:slow"}
    - {name: gone, resourceRef: {name: orders}, events: [Deleted], entryPoint: "handlers:slow"}
"""
HANDLERS = """\
import asyncio
import os
import declctl


class Count:
    @declctl.hookimpl
    def declctl_added(self, obj, ctx):
        ctx.memo["seen"] = True

    @declctl.hookimpl
    def declctl_modified(self, obj, ctx):
        assert "NO_CLUSTER" not in os.environ["KUBECONFIG"]


async def slow(obj):
    await asyncio.sleep(0)
"""


def bench(*arguments: str, cwd: Path) -> Any:
    """What `declctl bench reload -o json` prints."""
    done = started(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def started(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """The command, ended; whoever runs it has a cluster, which is not there. It leaves nothing behind."""
    mine = {"KUBECONFIG": str(cwd / "NO_CLUSTER"), "TMPDIR": str(cwd)}
    done = run("bench", "reload", *arguments, "-o", "json", cwd=cwd, seconds=100, **mine)
    assert not list(cwd.glob("declctl-bench-*"))
    return done


@pytest.mark.guarantee("G1", "G11")
def test_a_reload_loses_nothing_that_a_restart_loses(tmp_path: Path) -> None:
    """No LIST, no object told again, no retry, memo or change lost; the restart pays all of these."""
    found = bench("--objects", "60", "--handlers", "2", cwd=tmp_path)
    assert (found["objects"], found["handlers"]) == (60, 2)
    reload, restart = found["reload"], found["restart"]
    assert (reload["lists"], reload["watches"], reload["addedAgain"]) == (0, 0, 0)
    assert (reload["retries"], reload["retriesLost"]) == (40, 0)
    assert (reload["memosLost"], reload["changesUndelivered"]) == (0, 0)
    assert reload["memos"] > 0
    assert restart["lists"] == 1
    assert restart["watches"] >= 1
    assert restart["addedAgain"] >= 60 * 2
    assert (restart["retries"], restart["retriesLost"]) == (40, 40)
    assert restart["memosLost"] == restart["memos"] >= 60 * 2
    assert restart["changesUndelivered"] > 0
    for way in (reload, restart):
        assert way["changes"] > 0
        assert way["secondsToEffect"] > 0
        assert way["longestWaitSeconds"] > 0


@pytest.mark.guarantee("G1")
def test_handlers_of_somebodys_own_are_compared(tmp_path: Path) -> None:
    """Each resource is listed anew by the restart, and every object told to whoever hears of it."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "manifest.yaml").write_text(MANIFEST)
    (shop / "handlers.py").write_text(HANDLERS)
    found = bench("--manifest", "shop", "--objects", "40", cwd=tmp_path)
    assert (found["objects"], found["handlers"]) == (40, 3)
    reload, restart = found["reload"], found["restart"]
    assert (reload["lists"], reload["watches"], reload["addedAgain"]) == (0, 0, 0)
    assert reload["changesUndelivered"] == 0
    assert (reload["retries"], restart["retries"]) == (0, 0)
    assert restart["lists"] == 2
    assert restart["addedAgain"] >= 40  # the handler of deletes hears of none
    assert restart["memosLost"] == restart["memos"] >= 20
    assert sorted(path.name for path in shop.iterdir()) == ["handlers.py", "manifest.yaml"]
    assert (shop / "handlers.py").read_text() == HANDLERS


_DEAF = "def tell(obj): pass\n"
_REFUSES = """\
import declctl

@declctl.hookimpl
def declctl_event(change): pass

@declctl.hookimpl
def declctl_import_state(state, from_generation):
    raise ValueError("this code takes nothing over")

@declctl.hookimpl
def declctl_export_state(): return {}
"""


@pytest.mark.parametrize(
    ("handler", "code", "words"),
    [
        ('{entryPoint: "handlers:tell", events: [Resync]', _DEAF, "no handler hears of it when objects come"),
        ("{entryPoint: handlers", _REFUSES, "this code takes nothing over"),
    ],
    ids=["nobody hears", "the reload is refused"],
)
def test_what_can_not_be_compared_is_told(tmp_path: Path, handler: str, code: str, words: str) -> None:
    """In one sentence, instead of figures that mean nothing."""
    head, _, _ = MANIFEST.partition("  handlers:")
    named = f"    - {handler}, name: tell, resourceRef: {{name: maps}}}}\n"
    (tmp_path / "manifest.yaml").write_text(f"{head}  handlers:\n{named}")
    (tmp_path / "handlers.py").write_text(code)
    done = started("--manifest", ".", "--objects", "20", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_a_controller_that_ends_says_why(tmp_path: Path) -> None:
    """Its last words stand in the error."""
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    (tmp_path / "kubeconfig").write_text("{}")
    ended = pytest.raises(DeclctlError, match=r"(?s)has ended with 1:.*handlers")
    with _controller(tmp_path, tmp_path / "manifest.yaml") as controller, ended:
        controller.status()


def test_a_controller_ends_with_whoever_measures(tmp_path: Path) -> None:
    """However that ended: nobody has to look for processes."""
    bundle = built_in(1)
    with SandboxThread() as server:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(server.kubeconfig()))
        with _controller(tmp_path, bundle.write(tmp_path / "bundle")) as controller:
            until("it is ready", lambda: controller.status()["ready"])
            controller.close_stdin()
            until("it has ended", lambda: not _is_alive(controller))


def _controller(folder: Path, manifest: Path) -> ControllerProcess:
    calls = folder / "calls"
    calls.touch()
    return ControllerProcess(
        manifest, kubeconfig=folder / "kubeconfig", calls=calls, folder=folder, watch=False
    )


def _is_alive(controller: ControllerProcess) -> bool:
    try:
        controller.require_alive()
    except DeclctlError:
        return False
    return True
