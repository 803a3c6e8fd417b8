"""Finalizers under random changes, faults and edits: in the end nothing is stuck, and all is as declared."""

import random
from contextlib import suppress
from typing import Any

import pytest

from declctl.errors import SandboxError
from declctl.sandbox.faults import Match
from declctl.testing import until

pytestmark = pytest.mark.thorough

NAME, OTHER = "example.dev/cleanup", "other.dev/hold"
STEPS = 120
WHAT = (
    "create",
    "create",
    "label",
    "data",
    "delete",
    "hold",
    "let go",
    "fault",
    "cut",
    "edit",
    "rest",
    "rest",
)
CODE = """
from blackboard import tell as note
import declctl

async def keys(request, ctx):
    obj = request.obj
    if obj is not None:
        metadata = obj["metadata"]
        has_it = NAME in (metadata.get("finalizers") or ())
        note("reconcile", obj.uid, has_it, "deletionTimestamp" in metadata)

@declctl.hookimpl
async def declctl_finalize(request, ctx):
    note("finalize", request.obj.uid)

NAME = "example.dev/cleanup"
"""


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_stuck(rig, config_map, sandbox, seed) -> None:
    """Objects come, go, change labels and holders; writes fail; code and scope change meanwhile."""
    dice = random.Random(seed)
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMap, labelSelector: app=web}"]
    rest = "retry: {initialBackoff: 5ms, maxBackoff: 50ms}, queue: {concurrency: 3}"
    rig.handler("keys", rest=f"mode: Reconcile, finalizer: {NAME}, {rest}")
    runs = rig.run(CODE)
    names = [f"m{number}" for number in range(6)]
    for step in range(STEPS):
        what, name = dice.choice(WHAT), dice.choice(names)
        if what == "rest":
            runs.wait_idle(60)
        elif what == "edit":
            rig.write(f"{CODE}\n# edit {step}\n")
            assert str(runs.reload().result) in ("Applied", "Unchanged")
        elif what == "fault":
            sandbox.faults.refuse(dice.choice((409, 500)), Match("patch", "configmaps"), times=3)
        elif what == "cut":
            sandbox.faults.cut_watches(clean=True)
        else:
            _change(sandbox, what, config_map(name, step=str(step)), label=dice.choice(("web", "db")))
    sandbox.faults.clear()
    for name in names:
        while OTHER in (obj := _objects(sandbox).get(name, {})).get("finalizers", ()):
            with suppress(SandboxError):  # it has changed meanwhile
                _hold(sandbox, name, obj, held=False)

    def settled() -> bool:
        found = _objects(sandbox).values()
        return all(
            "deletionTimestamp" not in obj
            and (obj["labels"]["app"] == "db" or NAME in (obj.get("finalizers") or ()))
            for obj in found
        )

    until("what was deleted is gone, and the rest has the finalizer", settled)
    runs.wait_idle(60)
    reconciled = {row[1]: row[2:] for row in rig.told("reconcile")}
    assert set(reconciled.values()) <= {(True, False)}, "never without the finalizer, nor when deleted"
    for obj in _objects(sandbox).values():
        assert obj["labels"]["app"] == "db" or obj["uid"] in reconciled
    for name in _objects(sandbox):
        sandbox.delete("ConfigMap", name)
    until("all are gone", lambda: not _objects(sandbox))
    finalized = {row[1] for row in rig.told("finalize")}
    assert set(reconciled) <= finalized, "each object that was reconciled was finalized before it went"


def _change(sandbox: Any, what: str, made: dict[str, Any], *, label: str) -> None:
    """One change of an object, if it is there."""
    name = made["metadata"]["name"]
    obj = _objects(sandbox).get(name)
    if obj is None:
        if what == "create":
            made["metadata"]["labels"] = {"app": "web"}
            sandbox.create(made)
        return
    try:
        if what == "label":
            _patch(sandbox, name, {"labels": {"app": label}})
        elif what == "data":
            sandbox.patch("ConfigMap", name, {"data": made["data"]})
        elif what == "delete":
            sandbox.delete("ConfigMap", name)
        elif what == "let go" or (what == "hold" and "deletionTimestamp" not in obj):
            _hold(sandbox, name, obj, held=what == "hold")
    except SandboxError:
        return  # it has gone or changed meanwhile


def _objects(sandbox: Any) -> dict[str, dict[str, Any]]:
    return {obj["metadata"]["name"]: obj["metadata"] for obj in sandbox.objects("ConfigMap", "default")}


def _patch(sandbox: Any, name: str, metadata: dict[str, Any]) -> None:
    sandbox.patch("ConfigMap", name, {"metadata": metadata})


def _hold(sandbox: Any, name: str, obj: dict[str, Any], *, held: bool) -> None:
    """Let another controller add or remove its finalizer, on the condition of the version."""
    there = [each for each in obj.get("finalizers") or () if each != OTHER]
    metadata = {"finalizers": [*there, OTHER] if held else there, "resourceVersion": obj["resourceVersion"]}
    _patch(sandbox, name, metadata)
