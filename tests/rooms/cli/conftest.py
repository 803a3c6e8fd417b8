"""What the tests of the command line share: the command, run in this process."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from declctl.cli.main import status_of
from tests.children import share_children
from tests.rooms.cli import hello
from tests.rooms.cli.answering import Process, answering


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str


@pytest.fixture(name="declctl")
def _declctl(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs a command and gives its exit status and what it wrote."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        status = status_of(arguments)
        written = capsys.readouterr()
        return Ended(int(status), written.out, written.err)

    return run


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


@pytest.fixture(name="logging_restored", autouse=True)
def _logging_restored() -> Iterator[None]:
    """Put back what logging was before: the whole process shares it, and the tests of other rooms read it."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before[0], before[1]
    logging.captureWarnings(capture=False)
    for name in ("kubernetes", "declctl.informer", "declctl.informer.notices", "watchfiles"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()
