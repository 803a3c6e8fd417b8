"""Recordings of whole controllers, replayed: the same calls and writes by the code of then, and no other ones."""

from pathlib import Path
from typing import Any

import pytest

from declctl.replay.differences import ReplayReport
from declctl.replay.replay import ReplayOptions, replay
from declctl.replay.tape import read_tape
from declctl.testing import BundleDir, ControllerUnderTest, Logged, running
from declctl.testing.controller import CHILDREN

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: copier}
spec:
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
    - {name: maps, apiVersion: v1, kind: ConfigMap}
  handlers:
    - {name: copy, mode: Reconcile, resourceRef: {name: pods}, entryPoint: "handlers:copy"}
"""
HANDLERS = """
import declctl

async def copy(request, ctx):
    pod = request.obj
    if pod is None:
        return None
    data = {"phase": pod.labels.get("phase", "none")}
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": pod.name}, "data": data}
    await ctx.apply(found)
    known = await ctx.get("v1/ConfigMap", pod.name)
    if known["data"] != data:
        raise ValueError("not written")
    return declctl.Requeue(after=30)
"""


def pod(name: str, **labels: str) -> dict[str, Any]:
    """A pod with labels."""
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "a", "image": "b"}]}}


def replayed(recording: Path, manifest: Path | None = None, **options: Any) -> ReplayReport:
    """What a replay finds."""
    log = Logged()
    chosen = ReplayOptions(manifest=None if manifest is None else str(manifest), **options)
    return replay(read_tape(recording), chosen, log=log, user_log=log.user_logger(), children=CHILDREN)


def relabel(controller: ControllerUnderTest, name: str, **labels: str) -> None:
    """Change labels of a pod."""
    controller.sandbox.patch("Pod", name, {"metadata": {"labels": labels}})


@pytest.fixture(name="bundle")
def _bundle(tmp_path: Path) -> BundleDir:
    return BundleDir(tmp_path / "bundle", {"manifest.yaml": MANIFEST, "handlers.py": HANDLERS})


@pytest.fixture(name="night")
def _night(bundle: BundleDir, tmp_path: Path) -> Path:
    recording = tmp_path / "night.rec"
    with running(bundle.path, objects=[pod(f"p{n}") for n in range(3)], record=recording) as controller:
        controller.wait_idle()
        relabel(controller, "p1", phase="up")
        controller.wait_idle()
        controller.advance(65)
    return recording


def test_the_code_of_then_makes_the_same_calls_and_writes(night: Path) -> None:
    found = replayed(night)
    assert (found.calls, found.same, found.writes_alike) == (10, 10, 10)
    assert found.is_alike
    assert found.seconds > 60 > 20 * found.took
    assert found.notes == []


def test_changed_code_differs_in_what_it_writes_and_asks_for(night: Path, bundle: BundleDir) -> None:
    """Of a write the changed field is named, with its values of then and now."""
    changed = HANDLERS.replace('get("phase", "none")', 'get("phase", "unknown")').replace("after=30", "after=60")
    bundle.write("handlers.py", changed)
    found = replayed(night, bundle.path)
    assert (found.calls, found.same, found.different, found.missing, found.extra) == (10, 0, 10, 0, 0)
    assert found.writes_alike == 3  # those for the pod that has a phase
    details = [each.details for each in found.differences]
    assert details[0] == (
        "requeue: 30 s then, 60 s now",
        "PATCH /api/v1/namespaces/default/configmaps/p0: data.phase was none and is unknown",
    )
