"""The command line: the time of a command, and the memory of an idle process."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.building import BENCHMARKS, go, peer_file
from harness.faults import PeerExited, TimeLimitExceeded
from harness.peer import Peer
from harness.results import Record, Results
from harness.server import Server

_SCENARIO = "command-line"
_IDLE_SECONDS = 5.0
_LIMIT = 60.0


def measure_command_line(results: Results, *, runs: int) -> None:
    """Adds the figures to `results`. Each command is run `runs` times."""
    results.forget([_SCENARIO])
    with tempfile.TemporaryDirectory() as folder:
        manifest = long_manifest(Path(folder))
        lines = len(manifest.read_text().splitlines())
        commands = {
            "declctl version": ["version"],
            f"declctl validate, {lines} lines": ["validate", str(manifest)],
        }
        for name, words in commands.items():
            for number in range(1, runs + 1):
                _record(results, name, number, wall=_wall(words))
        _record(results, "idle, one resource of 10 objects", 1, resident=_idle(Path(folder)))


def _wall(words: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "declctl", *words], check=True, capture_output=True)
    return time.perf_counter() - began


def _idle(folder: Path) -> float:
    """Megabytes of a process that watches one resource without changes; 0 if the process fails."""
    program = go(BENCHMARKS / "server", "server")
    with Server(program, kind="pods", objects=10, folder=folder) as server:
        words = [sys.executable, peer_file("declctl_run"), "--kubeconfig", str(server.kubeconfig)]
        with Peer([*words, "--objects", "10", "--listener", "sync"]) as peer:
            try:
                peer.wait("added", _LIMIT)
                time.sleep(_IDLE_SECONDS)
                return peer.now().resident
            except (PeerExited, TimeLimitExceeded):
                return 0.0


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


def _record(results: Results, name: str, number: int, **figures: float) -> None:
    results.records.append(Record(_SCENARIO, "pods", 0, name, number, figures))
