"""A sandbox full of pods in a process of its own, so that its cost is nobody's."""

import json
import sys
import threading
from pathlib import Path

from pods import pods

from declctl.sandbox import SandboxThread


def main(count: int, kubeconfig: Path) -> None:
    """Serve until terminated; the kubeconfig is written when everything is there."""
    with SandboxThread() as sandbox:
        sandbox.load(pods(count))
        kubeconfig.write_text(json.dumps(sandbox.kubeconfig()))
        threading.Event().wait()


main(int(sys.argv[1]), Path(sys.argv[2]))
