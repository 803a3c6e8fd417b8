"""What `declctl run --record` and `state` cost: the CPU time of each change, with and without them, in turns.

    python benchmarks/recording.py [--rate 1000] [--seconds 8] [--rounds 3]

A server in memory in a process of its own changes pods. The handler does nothing, so the shares are as
large as they can be.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: recorded}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "handlers:h"}]
"""
_PORT = 18_471
_STATUS = f"http://127.0.0.1:{_PORT}/status"
_TICKS = os.sysconf("SC_CLK_TCK")
_READY_SECONDS = 60.0


@contextmanager
def process(*arguments: str) -> Generator[int]:
    """A declctl process, by its id."""
    command = [sys.executable, "-m", "declctl", *arguments]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield started.pid
    finally:
        started.terminate()
        started.wait(30)


def cpu_of(pid: int) -> float:
    """The seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def delivered() -> int:
    """The changes that the handler has received; 0 before the process answers."""
    try:
        with urllib.request.urlopen(_STATUS, timeout=5) as answer:
            return json.load(answer)["handlers"][0]["succeeded"]
    except (OSError, LookupError):
        return 0


def microseconds_of_change(kubeconfig: Path, folder: Path, seconds: float, *options: str) -> float:
    """The CPU time of one change, in microseconds."""
    admin = ("--admin", f"127.0.0.1:{_PORT}")
    with process("run", str(folder), "--kubeconfig", str(kubeconfig), *admin, *options) as pid:
        deadline = time.monotonic() + _READY_SECONDS
        while delivered() < 1000:
            if time.monotonic() > deadline:
                sys.exit("the controller does not get ready")
            time.sleep(0.2)
        began, before = cpu_of(pid), delivered()
        time.sleep(seconds)
        return (cpu_of(pid) - began) / max(1, delivered() - before) * 1e6


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=1000.0, help="changes a second")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        kubeconfig, record = Path(name) / "kubeconfig", ("--record", str(Path(name) / "a.rec"))
        plain, keeping = Path(name) / "plain", Path(name) / "keeping"
        for folder, state in ((plain, ""), (keeping, "  state: {path: state}\n")):
            folder.mkdir()
            (folder / "manifest.yaml").write_text(MANIFEST + state)
            (folder / "handlers.py").write_text("def h(change): pass\n")
        runs = {"without": (plain, ()), "recorded": (plain, record), "with a state": (keeping, ())}
        found: dict[str, list[float]] = {each: [] for each in runs}
        with process("sandbox", "--kubeconfig-out", str(kubeconfig), "--churn", str(given.rate)):
            while not kubeconfig.exists():
                time.sleep(0.1)
            for _ in range(given.rounds):
                for each, (folder, options) in runs.items():
                    found[each].append(microseconds_of_change(kubeconfig, folder, given.seconds, *options))
        before = statistics.median(found["without"])
        for each, figures in found.items():
            after = statistics.median(figures)
            rounds = ", ".join(f"{figure:.1f}" for figure in figures)
            print(f"{each}: {after:.1f} µs of CPU for each change ({after / before - 1:+.1%}); {rounds}")


if __name__ == "__main__":
    main()
