"""The server, as the driver sees it: a process with controls."""

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.faults import LeftOut


class Server:
    """Serves `objects` of a kind while it is entered; `kubeconfig` is what clients take."""

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
        told = self._process.stdout.readline()  # it comes when the kubeconfig is written
        if not told:
            raise LeftOut(f"the server ended with {self._process.wait()}")
        self._control = json.loads(told)["control"]
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
        """Change objects, `rate` a second or as fast as they are taken (0); answers when all are written.

        Raises TimeoutError if that takes longer than `timeout` seconds.
        """
        return self._ask(f"/modify?count={count}&rate={rate}&hot={int(hot)}", "POST", timeout)

    def expire(self) -> None:
        """End all watches, and forget all versions."""
        self._ask("/expire", "POST", 30)

    def stats(self) -> dict[str, int]:
        """How much was asked, and sent."""
        return self._ask("/stats", "GET", 30)

    def calm(self, timeout: float = 30) -> None:
        """Return when no client is connected any more: the last peer has gone."""
        deadline = time.monotonic() + timeout
        while self.stats()["open"] and time.monotonic() < deadline:
            time.sleep(0.1)

    def _ask(self, path: str, method: str, timeout: float) -> Any:
        request = urllib.request.Request(self._control + path, method=method)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
