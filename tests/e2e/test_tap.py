"""`declctl tap` beside a running process: what happens comes line by line, across a reload."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from bundles import telling
from clusters import Cluster
from processes import Declctl, environment
from rest import pod
from waiting import until


class Tap:
    """`declctl tap -o json` as a child; `lines` are its documents so far."""

    def __init__(self, declctl: Declctl, *words: str) -> None:
        admin = declctl.admin().removeprefix("http://")
        command = [sys.executable, "-m", "declctl", "tap", *words, "-o", "json", "--admin", admin]
        self.lines: list[dict[str, Any]] = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        until("it listens", lambda: self.kinds("begin"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        """The documents of a kind."""
        return [each for each in tuple(self.lines) if each["kind"] == kind]

    def ended(self) -> int:
        """Its exit status, with all that it has written."""
        status = self.process.wait(60)
        self._reader.join(60)
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))


@pytest.mark.scenario
def test_changes_and_a_reload_are_seen_as_they_happen(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Added, Modified with its paths, the mark of a reload, a failure of the new code; Ctrl-C ends it."""
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    with Declctl(bundle.path, "--no-watch", kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        with Tap(declctl, "pods", "--namespace", namespace) as tap:
            cluster.rest.create(pod("web", namespace))
            until("the pod is told", lambda: tap.kinds("call"))
            patch = {"metadata": {"labels": {"tier": "hunter2"}, "annotations": {"a/b": "c"}}}
            cluster.rest.patch("pods", "web", patch, namespace)
            until("its label is told", lambda: any(each["type"] == "Modified" for each in tap.kinds("call")))
            bundle.edit("handlers.py", "def tell(change):", "def tell(change):\n    raise ValueError('no')")
            declctl.reload()
            until("the reload is told", lambda: tap.kinds("reload"))
            cluster.rest.create(pod("api", namespace))
            until("the failure is told", lambda: any(each["error"] for each in tap.kinds("call")))
            tap.process.send_signal(signal.SIGINT)
            assert tap.ended() == 0
    assert "hunter2" not in json.dumps(tap.lines)
    first = tap.kinds("call")[0]
    modified = next(each for each in tap.kinds("call") if each["type"] == "Modified")
    failure = next(each for each in tap.kinds("call") if each["error"])
    assert (first["type"], first["key"], first["outcome"]) == ("Added", f"{namespace}/web", "succeeded")
    # A map that was not there before is one path.
    assert {"metadata.labels", "metadata.annotations"} <= set(modified["paths"])
    assert (tap.kinds("reload")[0]["result"], tap.kinds("reload")[0]["generation"]) == ("Applied", 2)
    assert (failure["generation"], failure["error"], failure["outcome"]) == (2, "ValueError: no", "retried")
    assert tap.lines.index(tap.kinds("reload")[0]) < tap.lines.index(failure)


def test_a_listener_that_does_not_read_delays_no_handler(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Its process is stopped while objects come; every one of them is handled."""
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    with Declctl(bundle.path, "--no-watch", kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        with Tap(declctl) as tap:
            tap.process.send_signal(signal.SIGSTOP)
            for number in range(50):
                cluster.rest.create(pod(f"p{number}", namespace))
            until("all are handled", lambda: declctl.status()["handlers"][0]["succeeded"] >= 50)
            assert declctl.status()["ready"]
            tap.process.send_signal(signal.SIGCONT)
            until("they are told", lambda: len(tap.kinds("call")) >= 50)
