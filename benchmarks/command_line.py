"""The command line: how long it takes to say something, and what an idle process holds."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from process import Figures, measure, median

HERE = Path(__file__).resolve().parent
RUNS = 9


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        manifest = long_manifest(home)
        version = [measure([sys.executable, "-m", "declctl", "version"]) for _ in range(RUNS)]
        validate = [
            measure([sys.executable, "-m", "declctl", "validate", str(manifest)]) for _ in range(RUNS)
        ]
        lines = len(manifest.read_text().splitlines())
        print(f"\nmedians of {RUNS} runs\n")
        row("declctl version", version)
        row(f"declctl validate ({lines} lines)", validate)
        print(f"{'idle, one resource':36}{idle(home):8.1f} MB resident")


def row(name: str, figures: list[Figures]) -> None:
    """One line of the table."""
    wall = sorted(f.wall for f in figures)
    print(f"{name:36}{median(wall) * 1000:8.0f} ms  (least {wall[0] * 1000:.0f}, most {wall[-1] * 1000:.0f})")


def long_manifest(home: Path) -> Path:
    """A manifest of about 200 lines with a handler file."""
    text = (
        "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata:\n  name: long\nspec:\n  resources:\n"
    )
    for number in range(16):
        text += f"    - name: pods-{number}\n      apiVersion: v1\n      kind: Pod\n"
        text += f"      namespaces: [team-{number}]\n"
        text += "      resyncPeriod: 10m\n      indexers:\n"
        text += "        - name: byNode\n          fieldPath: spec.nodeName\n"
    text += "  handlers:\n"
    for number in range(12):
        text += f"    - name: handler-{number}\n      resourceRef:\n        name: pods-{number}\n"
        text += "      events: [Added, Modified]\n      entryPoint: handlers:on_pod\n"
    manifest = home / "manifest.yaml"
    manifest.write_text(text)
    (home / "handlers.py").write_text("def on_pod(change, obj):\n    print(change.type, obj.key)\n")
    return manifest


def idle(home: Path) -> float:
    """Megabytes of a process that watches one resource in which nothing happens."""
    folder = home / "idle"
    folder.mkdir()
    (folder / "handlers.py").write_text("def on_pod(change, obj):\n    print(change.type, obj.key)\n")
    (folder / "manifest.yaml").write_text(
        "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: idle}\nspec:\n"
        "  resources: [{name: pods, apiVersion: v1, kind: Pod}]\n"
        "  handlers: [{name: one, resourceRef: {name: pods}, entryPoint: 'handlers:on_pod'}]\n"
        "  admin: {bindAddress: '127.0.0.1:18098'}\n"
    )
    kubeconfig = folder / "kubeconfig"
    server = subprocess.Popen([sys.executable, HERE / "server.py", "10", kubeconfig])
    try:
        while not kubeconfig.exists():
            time.sleep(0.1)
        command = [
            sys.executable,
            "-m",
            "declctl",
            "run",
            str(folder / "manifest.yaml"),
            "--kubeconfig",
            str(kubeconfig),
        ]
        since: list[float] = []

        def settled(_: object) -> bool:
            try:
                with urllib.request.urlopen("http://127.0.0.1:18098/status", timeout=2) as answer:
                    ready = json.load(answer)["ready"]
            except OSError:
                return False
            if ready and not since:
                since.append(time.monotonic())
            return bool(since) and time.monotonic() - since[0] > 5

        return measure(command, until=settled).resident
    finally:
        server.terminate()
        server.wait()


main()
