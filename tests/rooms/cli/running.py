"""`declctl run` in a process of its own, for tests of what it prints and how it ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from declctl.testing import until

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
    """`declctl run` with these arguments, begun in a folder; `lines` is all that it has printed."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "declctl", "run", *arguments],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def said(self, words: str) -> list[str]:
        """The lines with these words."""
        return [line.strip() for line in tuple(self.lines) if words in line]

    def wait_for(self, words: str, times: int = 1) -> None:
        """Return when so many lines have these words."""
        until(f"{times} x {words!r}", lambda: len(self.said(words)) >= times or self._over(), timeout=30)
        assert len(self.said(words)) >= times, "".join(self.lines)

    def stop(self) -> int:
        """End it as a kubelet does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def close(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)

    def _over(self) -> bool:
        return self.process.poll() is not None

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.lines.extend(iter(self.process.stdout.readline, ""))


def config_map(name: str) -> dict[str, object]:
    """An object for a handler to be called for."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
