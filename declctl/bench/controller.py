"""The controller of a measurement: its files, and `declctl run` in its own process.

The files are a manifest of our own, or a copy of a user's.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from declctl.errors import DeclctlError, TimedOut, UsageError
from declctl.manifest import ManifestSource, Plan, load, plan
from declctl.runtime.checking.inputs import Inputs
from declctl.runtime.reasons import RELOADED

FAILS: Final = "declctl.dev/bench-fails"
"""The label of objects on which the built-in handlers fail, until they are edited."""

_NOTE: Final = b"\n# an edit\n"
_HANDLERS: Final = f"""\
FAILS_ON = "{FAILS}"


def on_change(obj, ctx):
    if FAILS_ON in obj.labels:
        raise RuntimeError("this is mended by the edit")
    ctx.memo["changes"] = ctx.memo.get("changes", 0) + 1
"""
_MENDED: Final = _HANDLERS.replace(FAILS, "declctl.dev/on-nothing")
_MANIFEST: Final = """\
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
"""
_HANDLER: Final = """\
    - name: h{number}
      resourceRef: {{name: pods}}
      entryPoint: "handlers:on_change"
      retry: {{initialBackoff: 2s}}
"""
T = TypeVar("T")
PATIENCE = 180.0  # seconds
_PAUSE = 0.02
_NOT_INHERITED = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBE_CACHE_MUTATION_DETECTOR")
_LOG_LINES = 12
_SECONDS = 10.0
_STOP_SECONDS = 60.0  # its drain takes 25 s at most


@dataclass(frozen=True, slots=True)
class BenchFiles:
    """Files, by their paths below one folder. `edited` has the edited versions of some of them.

    `fails` is the label of objects on which the handlers fail before the edit; empty if there is none.
    """

    manifest: str
    files: Mapping[str, bytes]
    edited: Mapping[str, bytes]
    plan: Plan
    fails: str = ""

    def write(self, folder: Path) -> Path:
        """Write all files as they are before the edit; returns the path for `declctl run`."""
        _save(folder, self.files)
        return folder / self.manifest

    def edit(self, folder: Path) -> None:
        """Write the edited files."""
        _save(folder, self.edited)


def built_in(handlers: int) -> BenchFiles:
    """A manifest with this number of handlers of all pods.

    The handlers remember each object in `ctx.memo`, and fail on labelled objects. The edit corrects that.
    """
    text = _MANIFEST + "".join(_HANDLER.format(number=number + 1) for number in range(handlers))
    name, data = "manifest.yaml", text.encode()
    return BenchFiles(
        manifest=name,
        files={name: data, "handlers.py": _HANDLERS.encode()},
        edited={"handlers.py": _MENDED.encode()},
        plan=plan(load(ManifestSource(name, data)).controller),
        fails=FAILS,
    )


def copied(inputs: Inputs) -> BenchFiles:
    """A copy of the files of a manifest; the edit adds a comment to each handler file.

    Raises UsageError if there is no handler file to edit, or if a file that a plugin's config names is not
    below the manifest's folder.
    """
    code = inputs.bundle.files
    if not code:
        raise UsageError("The manifest has no handler file beside it, so that there is nothing to edit.")
    for name in inputs.config_files:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise UsageError(
                f"{name} is not below the folder of the manifest: bench runs a copy of that folder."
            )
    source = inputs.loaded.document.source
    manifest = "manifest.yaml" if source.name == "<stdin>" else PurePath(source.name).name
    return BenchFiles(
        manifest=manifest,
        files={manifest: source.text.encode(), **code, **inputs.config_files},
        edited={name: data + _NOTE for name, data in code.items()},
        plan=plan(inputs.loaded.controller),
    )


def _save(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a file beside the old one, and rename it, as editors do."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        aside.write_bytes(data)
        aside.replace(path)


def until(
    what: str, condition: Callable[[], T | None], *, seconds: float = PATIENCE, pause: float = _PAUSE
) -> T:
    """Call `condition` until its value is true; returns the value. Raises TimedOut, naming `what`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise TimedOut(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
    return value


class ControllerProcess:
    """One process of a controller, from its construction to the end of the `with` block.

    It connects only to the cluster of `kubeconfig`. It appends the calls of its handlers to the file `calls`,
    and its output to a file in `folder`. It ends when this process ends.
    """

    def __init__(self, manifest: Path, *, kubeconfig: Path, calls: Path, folder: Path, watch: bool) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        self._log = folder / "log"
        with self._log.open("wb") as log, (folder / "printed").open("ab") as printed:
            self._process = subprocess.Popen(  # -P: no modules of the current folder
                [
                    *(sys.executable, "-P", "-m", "declctl.bench.recorder", str(calls), "run", str(manifest)),
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
        self.close_stdin()

    @property
    def process(self) -> int:
        """The process id."""
        return self._process.pid

    def stop(self) -> None:
        """Stop it by SIGTERM, and wait for its end. Raises DeclctlError if it does not end."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise DeclctlError(f"the controller has not ended {_STOP_SECONDS:g} s after SIGTERM") from error

    def close_stdin(self) -> None:
        """End it as the end of this process would: by closing the pipe that it reads."""
        # The child ends when its standard input ends, also if this process is killed.
        if self._process.stdin is not None:
            self._process.stdin.close()

    def status(self) -> Any:
        """The document of `GET /status`. Raises DeclctlError with the last log lines of an ended process."""
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
        """Raise DeclctlError if the last reload was refused or rolled back."""
        for condition in self.status()["conditions"]:
            if condition["type"] == RELOADED and condition["status"] == "False":
                raise DeclctlError(f"the edit was refused: {condition['reason']}: {condition['message']}")

    def require_alive(self) -> None:
        """Raise DeclctlError with its last log lines if the process has ended."""
        if self._process.poll() is not None:
            words = "\n".join(f"  {event}" for event in self._log_events()[-_LOG_LINES:])
            raise DeclctlError(f"the controller has ended with {self._process.returncode}:\n{words}")

    def _address(self) -> str | None:
        # It was started with port 0, so its log line names the real port.
        if self._admin is None:
            self.require_alive()
            entries = (_entry(text) for text in self._log.read_text("utf-8", "replace").splitlines())
            self._admin = next((entry["admin"] for entry in entries if "admin" in entry), None)
        return self._admin

    def _log_events(self) -> list[str]:
        """The messages of its log."""
        lines = self._log.read_text("utf-8", "replace").splitlines()
        return [str(_entry(text).get("event", text)) for text in lines]


def _entry(text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError:  # half written, or not a log line
        return {}
    return entry if isinstance(entry, dict) else {}
