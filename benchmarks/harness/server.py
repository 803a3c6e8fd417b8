"""The benchmark server for the driver: a process with controls."""

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.faults import PeerUnavailable


class Server:
    """Serves objects of a kind, from enter to exit. `kubeconfig` is the kubeconfig for the clients."""

    def __init__(
        self, program: Path, *, kind: str, objects: int, folder: Path, formats: str = "json"
    ) -> None:
        self.kubeconfig = folder / f"kubeconfig-{kind}-{objects}"
        self._command = [str(program), "--kind", kind, "--objects", str(objects), "--prepare", formats]
        self._command += ["--kubeconfig", str(self.kubeconfig)]
        self._process: subprocess.Popen[str] | None = None
        self._control = ""

    def __enter__(self) -> Self:
        self.kubeconfig.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # it comes when the kubeconfig is written
        if not line:
            raise PeerUnavailable(f"the server ended with {self._process.wait()}")
        self._control = json.loads(line)["control"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def modify(self, count: int, *, rate: int, hot: bool, timeout: float) -> dict[str, Any]:
        """Changes objects, `rate` each second; 0 means as fast as the clients take them.

        Returns when all changes are written. Raises TimeoutError after `timeout` seconds.
        """
        return self._ask(f"/modify?count={count}&rate={rate}&hot={int(hot)}", "POST", timeout)

    def expire(self) -> None:
        """Ends all watches, and expires all versions."""
        self._ask("/expire", "POST", 30)

    def stats(self) -> dict[str, int]:
        """The counts of requests, bytes and changes."""
        return self._ask("/stats", "GET", 30)

    def calm(self, timeout: float = 30) -> None:
        """Returns when no client is connected, so that the last peer has ended."""
        deadline = time.monotonic() + timeout
        while self.stats()["open"] and time.monotonic() < deadline:
            time.sleep(0.1)

    def _ask(self, path: str, method: str, timeout: float) -> Any:
        request = urllib.request.Request(self._control + path, method=method)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
