"""`declctl run` as a child, as a person or a pod runs it: its lines, its admin address, its exit status."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from waiting import until

from tests.written import WrittenLines

_ADMIN = re.compile(r"admin address http://([\d.]+:\d+)")
_MOST_ASKED = 20  # attempts of a request that is answered 429
# Whoever runs the tests may have a cluster of their own: it is none of the tests' business.
_NOT_INHERITED = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "DECLCTL_LOAD_PLUGINS")
Ended = subprocess.CompletedProcess[str]


def environment(**more: str) -> dict[str, str]:
    """The environment of a child; a PYTHONPATH comes before the one that is there."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    paths = [path for path in (more.get("PYTHONPATH"), kept.get("PYTHONPATH")) if path]
    known = {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    return {**kept, "NO_COLOR": "1", "PYTHONFAULTHANDLER": "1", **more, **known}


def find_kubectl() -> str:
    """The kubectl of KUBEBUILDER_ASSETS, or of the PATH; skips the test if there is none."""
    places = os.pathsep.join((os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ["PATH"]))
    found = shutil.which("kubectl", path=places)
    if found is None:
        pytest.skip("no kubectl: neither in KUBEBUILDER_ASSETS nor on the PATH")
    return found


def run(*words: str, cwd: Path | None = None, seconds: float = 60, **env: str) -> Ended:
    """A command of declctl, ended."""
    command, mine = [sys.executable, "-m", "declctl", *words], environment(**env)
    return subprocess.run(
        command, cwd=cwd, env=mine, capture_output=True, text=True, check=False, timeout=seconds
    )


class Declctl:
    """One `declctl run`."""

    def __init__(
        self,
        manifest: Path | str,
        *arguments: str,
        kubeconfig: Path | None = None,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        where = ["--admin", "127.0.0.1:0", *(["--kubeconfig", str(kubeconfig)] if kubeconfig else [])]
        command = [python, "-m", "declctl", "run", str(manifest), *where, *arguments]
        self._out, self._err = WrittenLines(), WrittenLines()
        self._process = subprocess.Popen(
            command, stdout=self._out.file, stderr=self._err.file, env=environment(**(env or {}))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self.alive:
            with suppress(OSError, AssertionError):
                print("--- status", json.dumps(self.status()))
            self._process.send_signal(signal.SIGABRT)  # each thread says where it is
            with suppress(subprocess.TimeoutExpired):
                self.wait(seconds=5.0)
        self.kill()
        if kind is not None:  # pytest shows it beside the failure
            print("\n".join(["--- stdout", *self.out[-50:], "--- stderr", *self.err[-200:]]))

    @property
    def out(self) -> list[str]:
        """The lines of its stdout so far."""
        return self._out.read()

    @property
    def err(self) -> list[str]:
        """The lines of its stderr so far."""
        return self._err.read()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def admin(self) -> str:
        """The base URL of its admin address."""

        def named() -> str | None:
            assert self.alive, "\n".join(self.err)
            found = _ADMIN.search("\n".join(self.err))
            return found and f"http://{found[1]}"

        return until("the admin address is named", named) or ""

    def ask(self, path: str, *, method: str = "GET", seconds: float = 10.0) -> Any:
        """A document of the admin address, that of a refused reload too; None for 404."""
        request = urllib.request.Request(f"{self.admin()}{path}", method=method)
        for attempt in range(_MOST_ASKED):
            try:
                with urllib.request.urlopen(request, timeout=seconds) as answer:
                    return json.load(answer)
            except HTTPError as error:
                if error.code == 404:
                    return None
                if error.code == 422:
                    return json.load(error)
                if error.code != 429 or attempt + 1 == _MOST_ASKED:
                    raise
                time.sleep(float(error.headers["Retry-After"]))  # as each client should
        raise AssertionError("unreachable")

    def command(self, *words: str) -> Ended:
        """Another command that asks this process, ended."""
        return run(*words, "--admin", self.admin().removeprefix("http://"))

    def reload(self, *, seconds: float = 60.0) -> Any:
        """Ask for a reload; the document of what became of it."""
        return self.ask("/-/reload", method="POST", seconds=seconds)

    def status(self) -> Any:
        """What it says of itself."""
        return self.ask("/status")

    def condition(self, kind: str) -> dict[str, str]:
        """One of its conditions."""
        return next(one for one in self.status()["conditions"] if one["type"] == kind)

    def resource(self, name: str) -> dict[str, Any]:
        """One of its resources."""
        return next(one for one in self.status()["resources"] if one["name"] == name)

    def wait_until_synced(self) -> Self:
        """Return when every resource has synced, and every handler has heard of what there was."""
        until("it is ready", lambda: self.status()["ready"] and self._at_rest())
        return self

    def wait_for_generation(self, number: int) -> None:
        """Return when that generation runs."""
        until(f"generation {number} runs", lambda: self.status()["generation"] == number)

    def activity(self) -> tuple[int, list[int]]:
        """The writes that were sent so far, and the calls of each handler."""
        status = self.status()
        writes = sum(each["count"] for each in status["writes"] if each["result"] != "skipped")
        return writes, [handler["delivered"] for handler in status["handlers"]]

    def wait_until_quiet(self, quiet: float, *, seconds: float = 80.0) -> None:
        """Return after `quiet` seconds without a write and without a call."""
        last, since = self.activity(), time.monotonic()

        def is_quiet() -> bool:
            nonlocal last, since
            now = self.activity()
            if now != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since >= quiet

        until(f"it rests for {quiet:g} s", is_quiet, seconds=seconds)

    def cache(self, resource: str) -> dict[str, str]:
        """Key → resourceVersion of what is in its cache."""
        found: dict[str, str] = {}
        for key in self.ask(f"/cache/{resource}")["keys"]:
            obj = self.ask(f"/cache/{resource}/{quote(key)}")
            if obj is not None:  # gone meanwhile
                found[key] = obj["metadata"]["resourceVersion"]
        return found

    def hang_up(self) -> None:
        """SIGHUP."""
        self._process.send_signal(signal.SIGHUP)

    def pause(self) -> None:
        """SIGSTOP, as a node that swaps or a debugger has it; returns when nothing of it runs any longer."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT: it goes on from where it was paused."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, as the kernel sends it when memory runs out; returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self, *, seconds: float = 30.0) -> int:
        """SIGTERM, as a kubelet sends it; returns the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(seconds=seconds)

    def wait(self, *, seconds: float = 60.0) -> int:
        """Return its exit status when it ends by itself."""
        return self._process.wait(seconds)

    def _at_rest(self) -> bool:
        handlers: Sequence[dict[str, Any]] = self.status()["handlers"]
        return all(handler["synced"] and not handler["queued"] for handler in handlers)
