"""Makes docs/page.png anew: the page of a controller over a lively sandbox, right after a broken edit.

`make picture` runs it. It needs the same Chromium as the tests of the page.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from processes import Declctl
from waiting import until

from declctl.testing import BundleDir
from tests.browsing import Chromium, started_chromium

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "page.png"
MOST_BYTES = 200_000
_SIZE = {"width": 1180, "height": 1120}
_MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: pod-guard}
spec:
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
      indexers:
        - {name: byNode, fieldPath: spec.nodeName}
        - {name: byTeam, entryPoint: "handlers:by_team"}
    - {name: settings, apiVersion: v1, kind: ConfigMap}
  handlers:
    - {name: notify, resourceRef: {name: pods}, entryPoint: "handlers:notify"}
    - {name: audit, resourceRef: {name: pods}, events: [Added, Deleted], entryPoint: "handlers:audit"}
    - {name: configure, resourceRef: {name: settings}, entryPoint: "handlers:configure"}
  reload: {settle: 50ms}
"""
_HANDLERS = """\
def by_team(obj):
    yield obj.labels.get("team", "none")


def notify(change):
    print(f"{change.type} {change.key}")


def audit(change):
    print(f"{change.key} on {change.obj.get('spec', {}).get('nodeName')}")


def configure(change):
    print(change.key)
"""
_OBJECTS = """\
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: limits, namespace: team-a}
data: {pods: "20"}
"""


@contextmanager
def _lively_sandbox() -> Iterator[Path]:
    """An API server in memory with pods that come and go, in the current folder; gives its kubeconfig."""
    objects, kubeconfig = Path("objects.yaml"), Path("kubeconfig")
    objects.write_text(_OBJECTS, "utf-8")
    options = ["--churn", "20", "--objects", str(objects), "--kubeconfig-out", str(kubeconfig)]
    command = [sys.executable, "-m", "declctl", "sandbox", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as sandbox:
        try:
            until("the sandbox listens", kubeconfig.exists)
            yield kubeconfig
        finally:
            sandbox.terminate()


def _take(chromium: Chromium, declctl: Declctl, bundle: BundleDir) -> None:
    async def scenario() -> None:
        from playwright.async_api import expect

        async with chromium.page(viewport=_SIZE, color_scheme="light") as page:
            await page.goto(declctl.admin())
            await page.wait_for_timeout(8_000)  # rates are the mean of some seconds
            bundle.edit("handlers.py", 'f"{change.type} {change.key}"', 'f"{change.type}: {change.key}"')
            await expect(page.locator("#head")).to_contain_text("generation 2")
            bundle.edit("manifest.yaml", "handlers:notify", "handlers:notfy")
            await expect(page.locator("#alarms article.bad")).to_contain_text("refused")
            await page.screenshot(path=PICTURE)

    chromium.run(scenario)


def main() -> int:
    """Make the picture; returns 1 if it is too large for the documentation."""
    # Relative paths: messages on the picture name no folder of this machine.
    with tempfile.TemporaryDirectory() as folder, chdir(folder), _lively_sandbox() as kubeconfig:
        bundle = BundleDir(Path("pod-guard"), {"manifest.yaml": _MANIFEST, "handlers.py": _HANDLERS})
        with Declctl(bundle.path, kubeconfig=kubeconfig) as declctl, started_chromium() as chromium:
            declctl.wait_until_synced()
            _take(chromium, declctl, bundle)
            declctl.stop()
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
