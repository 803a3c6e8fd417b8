"""What the tests of the command line share: the command, run in this process."""

import importlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from declctl.cli.main import status_of
from declctl.sandbox import SandboxThread
from tests.children import share_children
from tests.rooms.cli import hello
from tests.rooms.cli.answering import Process, answering
from tests.rooms.cli.running import Running

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: c}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "handlers:f"}]
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def objects(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The objects that stdout has as YAML, by kind and name."""
        return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(self.out)}


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Command:
    """Runs commands in this process; these arguments come last in each."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *last: str) -> None:
        self._capsys = capsys
        self._last = last

    def __call__(self, *arguments: str) -> Ended:
        """Run a command; its exit status and what it wrote."""
        self._capsys.readouterr()
        status = status_of((*arguments, *self._last))
        written = self._capsys.readouterr()
        return Ended(int(status), written.out, written.err)

    def done(self, *arguments: str) -> Ended:
        """Run a command that ends with 0."""
        ended = self(*arguments)
        assert ended.status == 0, ended
        return ended

    def refused(self, *arguments: str, status: int = 2) -> str:
        """Run a command that ends with this status and has nothing on stdout; what it wrote on stderr."""
        ended = self(*arguments)
        assert (ended.status, ended.out) == (status, ""), ended
        return ended.err


@pytest.fixture(name="declctl")
def _declctl(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command and gives its exit status and what it wrote."""
    return Command(capsys)


@pytest.fixture(name="ask")
def _ask(capsys: pytest.CaptureFixture[str], process: Process) -> Command:
    """Runs a command that asks the running process of the fixture `process`."""
    return Command(capsys, "--admin", process.address)


@pytest.fixture(name="complete")
def _complete(declctl: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Ended]:
    """Asks as bash does after Tab at the end of a line."""

    def complete(line: str) -> Ended:
        monkeypatch.setenv("_DECLCTL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return declctl()

    return complete


@pytest.fixture(autouse=True)
def _children_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the children of pre-flights are forked from is loaded once, not by each command."""
    share_children(monkeypatch)


@pytest.fixture(name="folder")
def _folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """An empty current folder, in which no cluster and no token are configured, and no controller runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "KUBECONFIG",
        "DECLCTL_ADMIN_TOKEN",
        "DECLCTL_ADMIN_TOKEN_FILE",
        "DECLCTL_LOAD_PLUGINS",
        "KUBERNETES_SERVICE_HOST",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(name="process")
def _process(folder: Path) -> Iterator[Process]:
    """A running process, and an empty current folder."""
    with answering() as process:
        yield process


@pytest.fixture(name="hello")
def _hello(folder: Path) -> Path:
    """The current folder, with a manifest without faults and its handler."""
    (folder / "manifest.yaml").write_text(hello.MANIFEST)
    (folder / "handlers.py").write_text(hello.HANDLERS)
    return folder


@pytest.fixture(name="write")
def _write(folder: Path) -> Callable[[str, str], None]:
    """Writes a file below the current folder, and the folders above it."""

    def write(name: str, text: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")

    return write


@pytest.fixture(name="install")
def _install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Installs a package with one plugin in `site`, as pip would, for child processes as well."""
    site = folder / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    modules: list[str] = []

    def install(name: str, source: str) -> None:
        module = f"declctl_test_{name}"
        modules.append(module)
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-1.2.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2.0\n")
        (info / "entry_points.txt").write_text(f"[declctl]\n{name} = {module}\n")
        importlib.invalidate_caches()

    yield install
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture(name="sandbox")
def _sandbox(tmp_path: Path) -> Iterator[SandboxThread]:
    """A cluster, and a kubeconfig of it in the folder of the test."""
    with SandboxThread() as sandbox:
        (tmp_path / "kubeconfig").write_text(json.dumps(sandbox.kubeconfig()))
        yield sandbox


@pytest.fixture(name="begin")
def _begin(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Begins `declctl run` in the folder of the test, and ends it with the test if it runs still."""
    with ExitStack() as stack:

        def begin(*arguments: str, **env: str) -> Running:
            running = Running(tmp_path, *arguments, env={**os.environ, **env})
            stack.callback(running.close)
            return running

        yield begin


@pytest.fixture(name="process_restored", autouse=True)
def _process_restored() -> Iterator[None]:
    """Put back what `run` changes in the whole process, which the tests of other rooms share."""
    root, interval = logging.getLogger(), sys.getswitchinterval()
    before = root.handlers[:], root.level
    yield
    sys.setswitchinterval(interval)
    root.handlers[:], root.level = before[0], before[1]
    logging.captureWarnings(capture=False)
    for name in ("kubernetes", "declctl.informer", "declctl.informer.notices", "watchfiles"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()
