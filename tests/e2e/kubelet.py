"""What a kubelet does for a volume, and what a container runtime does for a single file."""

import random
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from rest import Rest
from waiting import until

from declctl.testing import ConfigMapDir

_LONGEST_PAUSE = 0.06  # seconds between two looks; a real kubelet takes up to a minute and a half


class Kubelet:
    """Mounts a ConfigMap of the API server at `path`, and follows its changes in a thread.

    As a kubelet does, it writes nothing if no file has changed, and swaps all files at once. It looks at
    moments of its own, which `chance` draws: a state that is overwritten soon may never be mounted.
    """

    def __init__(self, rest: Rest, name: str, namespace: str, folder: Path, chance: random.Random) -> None:
        self.path = folder
        self._rest = rest
        self._name = name
        self._namespace = namespace
        self._chance = chance
        self._dir = ConfigMapDir(folder)
        self._data: Mapping[str, str] = {}
        self._version = ""
        self._fault: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="kubelet", daemon=True)

    def __enter__(self) -> Self:
        self._sync()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for(self, config_map: Any) -> None:
        """Return when the files are those of that state of the ConfigMap."""
        version = config_map["metadata"]["resourceVersion"]

        def mounted() -> bool:
            if self._fault is not None:
                raise self._fault
            return self._version == version

        until(f"version {version} is mounted", mounted)

    def _follow(self) -> None:
        try:
            while not self._stop.wait(self._chance.uniform(0.0, _LONGEST_PAUSE)):
                self._sync()
        except Exception as fault:  # raised again where the test waits
            self._fault = fault

    def _sync(self) -> None:
        found = self._rest.get("configmaps", self._name, self._namespace)
        if found["data"] != self._data:
            self._data = found["data"]
            self._dir.swap(self._data)
        self._version = found["metadata"]["resourceVersion"]


def python_with_files(script: Path, mounts: Mapping[Path, Path]) -> str:
    """A Python that sees single files mounted over others (source by target), as `subPath` does.

    What is mounted is the file that is behind a source when the Python starts, and stays that one. Skips
    where nobody may mount.
    """
    for target in mounts:
        target.touch()
    commands = [["mount", "--bind", str(source), str(target)] for target, source in mounts.items()]
    inside = "\n".join(["set -e", *map(shlex.join, commands), 'exec "$@"'])
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c", inside, "sh"]
    if shutil.which("unshare") is None:
        pytest.skip("mounts of one's own need Linux")
    tried = subprocess.run([*apart, "true"], check=False, capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"mounts of one's own are not allowed here: {tried.stderr.strip()}")
    script.write_text(f'#!/bin/sh\nexec {shlex.join([*apart, sys.executable])} "$@"\n', "utf-8")
    script.chmod(0o755)
    return str(script)
