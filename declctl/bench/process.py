"""`declctl run` in a process of its own, as a person starts and ends it; waits that have an end."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from declctl.errors import DeclctlError, TimedOut

T = TypeVar("T")

PATIENCE = 180.0  # seconds
_PAUSE = 0.02


def until(
    what: str, condition: Callable[[], T | None], *, seconds: float = PATIENCE, pause: float = _PAUSE
) -> T:
    """The first true value of `condition`, asked again and again; raises TimedOut, naming `what`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise TimedOut(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
    return value


_NOT_INHERITED = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBE_CACHE_MUTATION_DETECTOR")
_TOLD_LINES = 12
_SECONDS = 10.0
_STOP_SECONDS = 60.0  # it drains for 25 at most


class Controller:
    """One process, from the moment that it is made to the end of the with statement.

    It knows no cluster but that of `kubeconfig`, whoever asks. What its handlers are told is appended to
    the file `calls`, what it prints to a file in `folder`. It ends when this process does.
    """

    def __init__(self, manifest: Path, *, kubeconfig: Path, calls: Path, folder: Path, watch: bool) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        self._log = folder / "log"
        with self._log.open("wb") as log, (folder / "printed").open("ab") as printed:
            self._process = subprocess.Popen(  # -P: modules of the current folder are none of its business
                [
                    *(sys.executable, "-P", "-m", "declctl.bench.observed", str(calls), "run", str(manifest)),
                    *("--kubeconfig", str(kubeconfig), "--admin", "127.0.0.1:0", "--log-format", "json"),
                    "--watch" if watch else "--no-watch",
                ],
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=log,
                env={**kept, "KUBECONFIG": str(kubeconfig)},
            )
        self._admin: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self.let_go()

    @property
    def process(self) -> int:
        """Its process id."""
        return self._process.pid

    def stop(self) -> None:
        """End it by SIGTERM, and return when it has ended; raises DeclctlError if it doesn't."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise DeclctlError(f"the controller has not ended {_STOP_SECONDS:g} s after SIGTERM") from error

    def let_go(self) -> None:
        """Let it end as if this process had: the pipe that it looks at is closed."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def status(self) -> Any:
        """What `GET /status` says; raises DeclctlError, with its last words, if the process has ended."""
        host, _, port = until("the controller says where it listens", self._address).rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=_SECONDS)
        try:
            connection.request("GET", "/status")
            return json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException) as error:
            self.require_alive()
            raise DeclctlError(f"the controller does not answer: {error}") from error
        finally:
            connection.close()

    def require_reloaded(self) -> None:
        """Raise DeclctlError if its last reload was refused, or taken back."""
        for condition in self.status()["conditions"]:
            if condition["type"] == "Reloaded" and condition["status"] == "False":
                raise DeclctlError(f"the edit was refused: {condition['reason']}: {condition['message']}")

    def require_alive(self) -> None:
        """Raise DeclctlError, with its last words, if the process has ended."""
        if self._process.poll() is not None:
            words = "\n".join(f"  {told}" for told in self._told()[-_TOLD_LINES:])
            raise DeclctlError(f"the controller has ended with {self._process.returncode}:\n{words}")

    def _address(self) -> str | None:
        if self._admin is None:
            self.require_alive()
            entries = (_entry(text) for text in self._log.read_text("utf-8", "replace").splitlines())
            self._admin = next((entry["admin"] for entry in entries if "admin" in entry), None)
        return self._admin

    def _told(self) -> list[str]:
        """The sentences of its log."""
        lines = self._log.read_text("utf-8", "replace").splitlines()
        return [str(_entry(text).get("event", text)) for text in lines]


def _entry(text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError:  # half written, or no entry
        return {}
    return entry if isinstance(entry, dict) else {}
