"""The first list: pods listed, cached, indexed, delivered; declctl beside the official informer."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from process import Figures, measure, median

HERE = Path(__file__).resolve().parent
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: bench}
spec:
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
      indexers: [{name: byNode, fieldPath: spec.nodeName}]
  handlers:
    - {name: count, resourceRef: {name: pods}, entryPoint: "handlers:on_pod"}
  reload: {watch: "Off"}
  admin: {bindAddress: "127.0.0.1:18099"}
"""


def main() -> None:
    """Start the server, run each peer in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "manifest.yaml").write_text(MANIFEST)
        (home / "handlers.py").write_text("def on_pod(change):\n    pass\n")
        kubeconfig = home / "kubeconfig"
        server = subprocess.Popen([sys.executable, HERE / "server.py", str(arguments.objects), kubeconfig])
        try:
            while not kubeconfig.exists():
                time.sleep(0.2)
            compare(home, arguments.objects, arguments.runs)
        finally:
            server.terminate()
            server.wait()


def compare(home: Path, count: int, runs: int) -> None:
    """A B A B …, so that a machine that slows down slows both."""
    rows: dict[str, list[Figures]] = {"declctl run --once": [], "declctl run": [], "official informer": []}
    for _ in range(runs):
        rows["declctl run --once"].append(once(home))
        rows["declctl run"].append(staying(home, count))
        rows["official informer"].append(official(home, count))
    print(f"\n{count:,} pods of about 4 KB, one index, one handler; medians of {runs} runs\n")
    print(f"{'':24}{'CPU s':>8}{'wall s':>8}{'resident MB':>13}{'peak MB':>9}{'µs CPU/object':>15}")
    medians: dict[str, Figures] = {}
    for name, figures in rows.items():
        middle = Figures(
            *(median([getattr(f, field) for f in figures]) for field in ("cpu", "wall", "resident", "peak"))
        )
        medians[name] = middle
        resident = f"{middle.resident:.0f}" if middle.resident else "-"
        each = middle.cpu / count * 1e6
        print(f"{name:24}{middle.cpu:8.2f}{middle.wall:8.2f}{resident:>13}{middle.peak:9.0f}{each:15.1f}")
    ours, theirs = medians["declctl run"], medians["official informer"]
    print(
        f"\nofficial : declctl  CPU {theirs.cpu / ours.cpu:.1f}, "
        f"resident {theirs.resident / ours.resident:.1f}, peak {theirs.peak / ours.peak:.1f}"
    )


def once(home: Path) -> Figures:
    """To the end: sync, deliver, drain."""
    return measure([*declctl(home), "--once", "--timeout", "300s"])


def staying(home: Path, count: int) -> Figures:
    """Until everything is delivered; then what is resident."""

    def delivered(_: object) -> bool:
        try:
            with urllib.request.urlopen("http://127.0.0.1:18099/status", timeout=2) as answer:
                status = json.load(answer)
        except OSError:
            return False
        return status["handlers"][0]["succeeded"] >= count if status["handlers"] else False

    return measure(declctl(home), until=delivered)


def official(home: Path, count: int) -> Figures:
    """Until the handler has heard of every pod; then what is resident."""
    done = home / "done"
    done.unlink(missing_ok=True)
    command = [sys.executable, HERE / "peers" / "official.py", home / "kubeconfig", str(count), done]
    return measure([str(word) for word in command], until=lambda _: done.exists())


def declctl(home: Path) -> list[str]:
    """The command line."""
    return [
        sys.executable,
        "-m",
        "declctl",
        "run",
        str(home / "manifest.yaml"),
        "--kubeconfig",
        str(home / "kubeconfig"),
    ]


main()
