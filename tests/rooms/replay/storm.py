"""A storm to record: pods that come, change and go, handlers that fail at times, and two reloads."""

import random
import sys
import time
from pathlib import Path
from typing import Any

from declctl.errors import SandboxError, StatusError
from declctl.testing import BundleDir, running

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: storm}
spec:
  reload: {drainTimeout: 10s}
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
    - {name: maps, apiVersion: v1, kind: ConfigMap}
    - {name: nodes, apiVersion: v1, kind: Node, cache: {mode: MetadataOnly}}
  handlers:
    - name: copy
      mode: Reconcile
      resourceRef: {name: pods}
      entryPoint: "handlers:copy"
      queue: {concurrency: 4}
      retry: {initialBackoff: 1s, maxBackoff: 10s}
      watches: [{resourceRef: {name: maps}, mapTo: {owner: Any}}]
    - name: note
      resourceRef: {name: pods}
      entryPoint: "handlers:note"
      filter: {changedPaths: [metadata.labels]}
    - {name: slow, mode: Reconcile, resourceRef: {name: nodes}, entryPoint: "handlers:slow", debounce: 2s}
  schedules:
    - {name: tally, every: 20s, entryPoint: "handlers:tally"}
"""
HANDLERS = """
import declctl

VERSION = "one"

async def copy(request, ctx):
    pod = request.obj
    if pod is None:
        return None
    phase = pod.labels.get("phase", "none")
    if phase == "bad" and request.attempt < 3:
        raise ValueError("not yet")
    await ctx.apply({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": pod.name, "ownerReferences": [{
            "apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}]},
        "data": {"phase": phase, "code": VERSION},
    })
    known = await ctx.get("v1/ConfigMap", pod.name)
    ctx.memo["times"] = ctx.memo.get("times", 0) + 1
    if ctx.memo["times"] % 3 == 0:
        await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{pod.name}-count"},
                         "data": {"times": str(ctx.memo["times"]), "known": str(known is not None)}})
    return declctl.Requeue(after=45)

def note(change, ctx):
    if change.obj.labels.get("phase") == "sad" and change.type == "Modified" and VERSION != "reone":
        raise OSError("a sad pod")
    ctx.log.debug("noted", phase=change.obj.labels.get("phase"))

def slow(request, ctx):
    if request.obj is not None:
        metadata = {"name": request.name, "namespace": "default"}
        data = {"node": "there"}
        ctx.sync.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

def tally(schedule, ctx):
    metadata = {"name": "tally", "namespace": "default"}
    data = {"pods": str(len(ctx.listers["pods"].list()))}
    ctx.sync.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
"""
PHASES = ("none", "up", "bad", "sad", "down")


def pod(number: int, phase: str) -> dict[str, Any]:
    """A pod of the storm."""
    metadata = {"name": f"p{number}", "namespace": "default", "labels": {"phase": phase}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "a", "image": f"image-{number}"}]},
    }


def record_storm(
    folder: Path, recording: Path, *, seconds: int, rate: int, pods: int = 50, seed: int = 1
) -> BundleDir:
    """Record so many seconds of the clock, with `rate` changes in each; returns the bundle as it was last."""
    chance = random.Random(seed)
    bundle = BundleDir(folder, {"manifest.yaml": MANIFEST, "handlers.py": HANDLERS})
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}} for number in range(3)]
    objects = [*nodes, *(pod(number, "none") for number in range(pods))]
    with running(bundle.path, objects=objects, record=recording) as controller:
        controller.wait_ready()
        sandbox = controller.sandbox
        for second in range(seconds):
            for _ in range(rate):
                number, what = chance.randrange(pods), chance.random()
                phase = chance.choice(PHASES)
                try:
                    if what < 0.9:
                        sandbox.patch(
                            "Pod", f"p{number}", {"metadata": {"labels": {"phase": phase, "n": str(second)}}}
                        )
                    elif what < 0.95:
                        sandbox.delete("Pod", f"p{number}", "default")
                    else:
                        sandbox.create(pod(number, phase))
                except (StatusError, SandboxError):
                    continue  # it is gone, or there
            if second % 10 == 5:
                node = f"n{second // 10 % 3}"
                sandbox.patch("Node", node, {"metadata": {"labels": {"n": str(second)}}}, namespace="")
            if second in (seconds // 3, 2 * seconds // 3):
                bundle.edit("handlers.py", 'VERSION = "', 'VERSION = "re')
                assert controller.reload().generation
            controller.advance(1.0)
    return bundle


if __name__ == "__main__":
    started = time.monotonic()
    folder, seconds, rate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    record_storm(folder / "bundle", folder / "storm.rec", seconds=seconds, rate=rate)
    print(f"recorded in {time.monotonic() - started:.1f} s")
