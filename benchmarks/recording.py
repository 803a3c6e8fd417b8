"""What `declctl run --record` costs: the CPU time of each change, with and without it, in turns.

    python benchmarks/recording.py [--rate 1000] [--seconds 8] [--rounds 3]

A server in memory in a process of its own changes pods. The handler does nothing, so the share of
the recording is as large as it can be.
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
        folder, kubeconfig = Path(name) / "bundle", Path(name) / "kubeconfig"
        folder.mkdir()
        (folder / "manifest.yaml").write_text(MANIFEST)
        (folder / "handlers.py").write_text("def h(change): pass\n")
        recording = Path(name) / "a.rec"
        without: list[float] = []
        recorded: list[float] = []
        with process("sandbox", "--kubeconfig-out", str(kubeconfig), "--churn", str(given.rate)):
            while not kubeconfig.exists():
                time.sleep(0.1)
            for _ in range(given.rounds):
                without.append(microseconds_of_change(kubeconfig, folder, given.seconds))
                options = ("--record", str(recording))
                recorded.append(microseconds_of_change(kubeconfig, folder, given.seconds, *options))
        before, after = statistics.median(without), statistics.median(recorded)
        share = f"{after / before - 1:+.1%}"
        print(f"without {before:.1f} µs, recorded {after:.1f} µs of CPU for each change: {share}")
        print(f"rounds: {[round(each, 1) for each in without]} and {[round(each, 1) for each in recorded]}")


if __name__ == "__main__":
    main()
