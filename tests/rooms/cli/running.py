"""`declctl run` in a process of its own, for tests of what it prints and how it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from declctl.testing import until
from tests.written import WrittenLines

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: {name}}}
spec:
  reload: {{settle: 50ms, watch: {watch}}}
  resources: [{{name: maps, apiVersion: v1, kind: ConfigMap}}]
  handlers: [{{name: tell, resourceRef: {{name: maps}}, entryPoint: "handlers:tell"}}]
"""


def completed(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which has ended."""
    return subprocess.run(
        [sys.executable, "-m", "declctl", *arguments],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


class Running:
    """`declctl run` with these arguments, begun in a folder."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str]) -> None:
        self.folder = folder
        self._written = WrittenLines()
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "declctl", "run", *arguments],
            cwd=folder,
            env=env,
            stdout=self._written.file,
            stderr=subprocess.STDOUT,
        )

    @property
    def lines(self) -> list[str]:
        """All that it has printed so far."""
        return self._written.read()

    def said(self, words: str) -> list[str]:
        """The lines with these words."""
        return [line.strip() for line in self.lines if words in line]

    def wait_for(self, words: str, times: int = 1) -> None:
        """Return when so many lines have these words."""
        until(f"{times} x {words!r}", lambda: len(self.said(words)) >= times or self._over(), timeout=30)
        assert len(self.said(words)) >= times, "\n".join(self.lines)

    def stop(self) -> int:
        """End it as a kubelet does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def close(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def _over(self) -> bool:
        return self.process.poll() is not None


def config_map(name: str) -> dict[str, object]:
    """An object for a handler to be called for."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
