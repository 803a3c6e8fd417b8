"""`declctl run --exec-on-restart`: what needs a new process gets one, in the same place."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from declctl.sandbox import SandboxThread
from declctl.testing import until

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: {name}}}
spec:
  reload: {{settle: 50ms}}
  resources: [{{name: maps, apiVersion: v1, kind: ConfigMap}}]
  handlers: [{{name: tell, resourceRef: {{name: maps}}, entryPoint: "handlers:tell"}}]
"""
HANDLERS = """\
import os, sys, time
MARK = os.environ["MARK"]
os.environ["MARK"] = "changed by the handlers"
def tell(change):
    name = change.key.name
    if name == "slow":
        print("it began")
        while not os.path.exists("go"):
            time.sleep(0.01)
    print(name, os.getpid(), MARK, *sys.argv[-2:])
"""


class Running:
    """`declctl run` in a process of its own, in a folder with its bundle."""

    def __init__(self, folder: Path, kubeconfig: Path, *options: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        command = [sys.executable, "-u", "-m", "declctl", "run", "manifest.yaml", *options]
        self.process = subprocess.Popen(
            [*command, "--admin", "127.0.0.1:0", "--kubeconfig", str(kubeconfig)],
            cwd=folder,
            env={**os.environ, "MARK": "from outside"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.lines.extend(iter(self.process.stdout.readline, ""))

    def said(self, words: str) -> list[str]:
        """The lines with these words."""
        return [line.strip() for line in tuple(self.lines) if words in line]

    def wait_for(self, words: str, times: int = 1) -> None:
        """Return when so many lines have these words."""
        until(f"{times} x {words!r}", lambda: len(self.said(words)) >= times or self._over(), timeout=30)
        assert len(self.said(words)) >= times, "".join(self.lines)

    def _over(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> int:
        """End it as a kubelet does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def _config_map(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}


@pytest.fixture(name="sandbox")
def _sandbox() -> Iterator[SandboxThread]:
    with SandboxThread() as sandbox:
        yield sandbox


@pytest.fixture(name="start")
def _start(tmp_path: Path, sandbox: SandboxThread):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(sandbox.kubeconfig()))
    (tmp_path / "manifest.yaml").write_text(MANIFEST.format(name="first"))
    (tmp_path / "handlers.py").write_text(HANDLERS)
    begun: list[Running] = []

    def start(*options: str) -> Running:
        begun.append(Running(tmp_path, kubeconfig, *options))
        return begun[0]

    yield start
    for running in begun:
        running.process.kill()
        running.process.wait()
        running._reader.join(10)


def test_what_needs_a_new_process_gets_one_in_its_place(start, sandbox) -> None:
    """Calls that run are waited for; process id, arguments and the first environment are kept."""
    running = start("--exec-on-restart")
    running.wait_for("maps synced")
    sandbox.create(_config_map("slow"))
    running.wait_for("it began")
    (running.folder / "manifest.yaml").write_text(MANIFEST.format(name="second"))
    running.wait_for("starting again")
    assert "!metadata.name" in running.said("starting again")[0]
    (running.folder / "go").touch()
    running.wait_for("maps synced", 2)
    line = f"slow {running.process.pid} from outside --kubeconfig {running.folder / 'kubeconfig'}"
    running.wait_for(line, 2)
    assert running.said("second: context")
    assert running.stop() == 0


def test_without_the_option_the_process_goes_on(start, sandbox) -> None:
    """It says what needs a restart, and leaves it to whoever runs it."""
    running = start()
    running.wait_for("maps synced")
    (running.folder / "manifest.yaml").write_text(MANIFEST.format(name="second"))
    running.wait_for("!metadata.name")
    sandbox.create(_config_map("one"))
    running.wait_for(f"one {running.process.pid} changed by the handlers")
    assert not running.said("starting again")
    assert running.stop() == 0


@pytest.mark.parametrize("arguments", [("m.yaml", "--once"), ("-",)])
def test_what_can_not_be_started_again_is_refused(declctl, arguments) -> None:
    """A run that ends by itself, and a manifest that can be read once only."""
    ended = declctl("run", *arguments, "--exec-on-restart")
    assert ended.status == 2
    assert "--exec-on-restart" in ended.err
