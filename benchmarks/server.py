"""A sandbox full of pods in a process of its own, so that its cost is nobody's."""

import asyncio
import json
import sys
from pathlib import Path

from pods import pods

from declctl.sandbox import Sandbox


async def main(count: int, kubeconfig: Path) -> None:
    """Serve until terminated; the kubeconfig is written when everything is there."""
    sandbox = Sandbox()
    await sandbox.start()
    sandbox.load(pods(count))
    kubeconfig.write_text(json.dumps(sandbox.kubeconfig()))
    await asyncio.Event().wait()


asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
