"""Makes docs/page.png anew: the page of a controller over a lively sandbox, after a bad quarter of an hour.

`make picture` runs it, for 15 minutes, as the lines of the page are of that time. Meanwhile an edit makes a
handler slow, another one lets it fail, and the last one is refused. With a folder as argument, the page in
the dark and on a phone is there, too. It needs the same Chromium as the tests of the page.
"""

import subprocess
import sys
import tempfile
import time
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
_SIZE = {"width": 1120, "height": 1030}
_PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True}
_MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: pod-guard}
spec:
  resources:
    - {name: namespaces, apiVersion: v1, kind: Namespace}
    - name: pods
      apiVersion: v1
      kind: Pod
      indexers: [{name: byNode, fieldPath: spec.nodeName}]
    - {name: settings, apiVersion: v1, kind: ConfigMap}
  handlers:
    - name: count
      mode: Reconcile
      resourceRef: {name: namespaces}
      entryPoint: "handlers:count"
      applies: [{apiVersion: v1, kind: ConfigMap}]
      watches: [{resourceRef: {name: pods}, mapTo: {entryPoint: "handlers:namespace_of"}}]
    - name: notify
      resourceRef: {name: pods}
      entryPoint: "handlers:notify"
      queue: {concurrency: 2}
      retry: {initialBackoff: 1s, maxBackoff: 5s}
    - name: audit
      resourceRef: {name: pods}
      events: [Added, Deleted]
      entryPoint: "handlers:audit"
      includeSnapshotsFrom: [settings]
  reload: {settle: 50ms}
"""
_HANDLERS = """\
import time


def namespace_of(pod):
    return [pod.namespace]


def count(request, ctx):
    if request.obj is None:
        return
    pods = ctx.listers["pods"].list(namespace=request.obj.name)
    data = {"pods": str(len(pods))}
    metadata = {"name": "pods", "namespace": request.obj.name}
    ctx.sync.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def notify(change):
    time.sleep(0.002)


def audit(change, ctx):
    if change.type == "Added":
        ctx.record_event(change.obj, "Noticed", f"{change.key} is new")
"""
# Seconds from the start on, the file, and the edit.
_EDITS = (
    (200, "handlers.py", "time.sleep(0.002)", "time.sleep(0.15)"),
    (290, "handlers.py", "time.sleep(0.15)", "time.sleep(0.003)"),
    (480, "handlers.py", "time.sleep(0.003)", 'raise OSError("the pager is down")'),
    (560, "handlers.py", 'raise OSError("the pager is down")', "time.sleep(0.002)"),
    (895, "manifest.yaml", "handlers:notify", "handlers:notfy"),
)
_SECONDS = 912  # a sample after the last edit
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


def _take(chromium: Chromium, declctl: Declctl, folder: Path | None) -> None:
    async def scenario() -> None:
        from playwright.async_api import expect

        shots = {PICTURE: {"viewport": _SIZE, "color_scheme": "light"}}
        if folder is not None:
            shots[folder / "page-dark.png"] = {"viewport": _SIZE, "color_scheme": "dark"}
            shots[folder / "page-phone.png"] = {**_PHONE, "color_scheme": "light"}
        for path, context in shots.items():
            async with chromium.page(**context) as page:
                await page.goto(declctl.admin())
                await expect(page.locator("#alarms article.bad").first).to_contain_text("refused")
                await expect(page.locator(".line svg").first).to_be_attached()
                await expect(page.locator("#live")).to_contain_text("Live")
                await page.screenshot(path=path, full_page=context["viewport"] is _PHONE["viewport"])

    chromium.run(scenario)


def main(folder: Path | None = None) -> int:
    """Make the picture; returns 1 if it is too large for the documentation."""
    # Relative paths: messages on the picture name no folder of this machine.
    with tempfile.TemporaryDirectory() as place, chdir(place), _lively_sandbox() as kubeconfig:
        bundle = BundleDir(Path("pod-guard"), {"manifest.yaml": _MANIFEST, "handlers.py": _HANDLERS})
        with Declctl(bundle.path, kubeconfig=kubeconfig) as declctl:
            declctl.wait_until_synced()
            began = time.monotonic()
            for seconds, file, old, new in _EDITS:
                time.sleep(max(0.0, began + seconds - time.monotonic()))
                bundle.edit(file, old, new)
            time.sleep(max(0.0, began + _SECONDS - time.monotonic()))
            with started_chromium() as chromium:
                _take(chromium, declctl, folder)
            declctl.stop()
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(*(Path(each).absolute() for each in sys.argv[1:2])))
