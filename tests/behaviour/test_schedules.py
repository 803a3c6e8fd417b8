"""Schedules in a whole controller: caches first, reloads in between, and a call on request."""

import subprocess
import sys
from pathlib import Path

import pytest

from declctl.testing import BundleDir, Logged, running
from declctl.testing.controller import until

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: reporter}
spec:
  resources:
    - {name: maps, apiVersion: v1, kind: ConfigMap}
  schedules:
    - {name: pulse, every: 1s, entryPoint: "jobs:pulse"}
    - {name: nightly, cron: "0 2 * * *", timeZone: Europe/Berlin, entryPoint: "jobs:nightly"}
"""
JOBS = """
def pulse(schedule, ctx):
    ctx.log.info(f"old {len(ctx.listers['maps'].list())} maps, {schedule.name}")

async def nightly():
    raise ValueError("no paper")
"""
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}


@pytest.fixture
def bundle(tmp_path: Path) -> BundleDir:
    return BundleDir(tmp_path / "app", {"manifest.yaml": MANIFEST, "jobs.py": JOBS})


@pytest.mark.thorough
def test_a_schedule_reads_synced_caches_and_takes_new_code(bundle: BundleDir) -> None:
    """It is called with the cache as it is; after an edit, the next call has the new code."""
    with running(bundle.path, objects=[MAP]) as controller:
        log: Logged = controller.log
        until("it is called", lambda: log.find("old 1 maps, pulse"))
        bundle.edit("jobs.py", "old", "new")
        assert controller.reload().line.startswith("generation 2: ~schedule pulse (code)")
        until("the new code is called", lambda: log.find("new 1 maps, pulse"))
        bundle.edit("manifest.yaml", '    - {name: pulse, every: 1s, entryPoint: "jobs:pulse"}\n', "")
        assert "-schedule pulse" in controller.reload().line
        assert [each.name for each in controller.status().schedules] == ["nightly"]


def test_a_call_on_request_fails_and_is_shown(bundle: BundleDir) -> None:
    """`declctl trigger nightly`, and what status says then."""
    with running(bundle.path) as controller:
        until(
            "it has begun",
            lambda: controller.runtime.machinery.submit(_trigger(controller)).result() == "Begun",
        )
        until("it has failed", lambda: controller.status().schedules[1].failed)
        shown = controller.status().document()["schedules"][1]
        assert (shown["lastOutcome"], shown["lastError"]) == ("Failed", "ValueError: no paper")
        assert controller.log.find("nightly failed for ")


async def _trigger(controller) -> str:
    return str(controller.runtime.trigger("nightly"))


@pytest.mark.thorough
def test_a_wrong_function_is_refused_with_its_place(bundle: BundleDir) -> None:
    """As that of a hook."""
    bundle.edit("jobs.py", "schedule, ctx", "obj, ctx")
    done = subprocess.run(
        [sys.executable, "-m", "declctl", "validate", str(bundle.path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "pulse takes 'obj', which the schedule does not give" in done.stderr
