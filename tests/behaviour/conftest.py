"""Whole controllers over a sandbox in this process, and what the tests ask of them."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from declctl.testing import BundleDir, ControllerUnderTest
from declctl.testing.pytest_plugin import bundle_dir, configmap_dir, controller, sandbox
from tests.behaviour.storm.edits import PLUGIN

__all__ = ["bundle_dir", "configmap_dir", "controller", "sandbox"]  # fixtures, for every test here

_SUPPORT = str(Path(__file__).parent / "support")
_HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: behaviour}\nspec:\n"
MAPS = "- {name: maps, apiVersion: v1, kind: ConfigMap}"


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The blackboard that handlers import, here and in a pre-flight's child process."""
    monkeypatch.syspath_prepend(_SUPPORT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([_SUPPORT, os.environ.get("PYTHONPATH", "")]))
    import blackboard

    blackboard.clear()
    yield blackboard
    blackboard.clear()


class Rig:
    """A manifest in pieces, handlers in one file, and the controller that runs them."""

    def __init__(self, folder: BundleDir, board: Any, start: Callable[..., ControllerUnderTest]) -> None:
        self.folder = folder
        self.board = board
        self._start = start
        self.resources = [MAPS]
        self.handlers: list[str] = []
        self.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 5s"
        self.more = ""

    def handler(
        self, name: str = "tell", resource: str = "maps", entry: str | None = None, rest: str = ""
    ) -> None:
        """Add a handler to the manifest."""
        entry = entry or f"handlers:{name}"
        more = f", {rest}" if rest else ""
        self.handlers.append(
            f'- {{name: {name}, resourceRef: {{name: {resource}}}, entryPoint: "{entry}"{more}}}'
        )

    def manifest(self) -> str:
        """The text of the manifest."""
        resources = "".join(f"    {line}\n" for line in self.resources)
        handlers = "".join(f"    {line}\n" for line in self.handlers)
        return (
            f"{_HEAD}  resources:\n{resources}"
            + (f"  handlers:\n{handlers}" if handlers else "")
            + f"  reload: {{{self.reload_policy}}}\n{self.more}"
        )

    def write(self, code: str | None = None) -> Path:
        """Write the manifest, and the handlers if they are given."""
        if code is not None:
            self.folder.write("handlers.py", code)
        return self.folder.write("manifest.yaml", self.manifest())

    def run(self, code: str | None = None, *, watch: bool = False, objects: Any = ()) -> ControllerUnderTest:
        """Write it all, start the controller, and wait until its caches are filled."""
        controller = self._start(self.write(code), objects=objects, watch=watch)
        controller.wait_ready()
        return controller

    def told(self, *first: Any) -> list[tuple]:
        """The rows of the blackboard that begin like this."""
        return [row for row in tuple(self.board.told) if row[: len(first)] == first]


@pytest.fixture
def rig(bundle_dir: BundleDir, board: ModuleType, controller: Callable[..., ControllerUnderTest]) -> Rig:
    """A controller with one resource, and no handler yet."""
    return Rig(bundle_dir, board, controller)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """No test leaves modules of a generation behind."""
    yield
    left = [name for name in sys.modules if name.startswith("_declctl_gen.g")]
    for name in left:
        del sys.modules[name]


def config_map(name: str, namespace: str = "default", **data: str) -> dict[str, Any]:
    """A ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


@pytest.fixture(name="config_map")
def _config_map() -> Callable[..., dict[str, Any]]:
    """Makes a ConfigMap."""
    return config_map


@pytest.fixture
def asked(sandbox: Any) -> Callable[..., tuple[int, int]]:
    """How often the API server was asked to LIST and to WATCH."""

    def count(resource: str | None = None) -> tuple[int, int]:
        return sandbox.ledger.count("list", resource=resource), sandbox.ledger.count(
            "watch", resource=resource
        )

    return count


@pytest.fixture
def stormy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed plugin named `stormy` that writes down every change."""
    site = tmp_path / "site"
    info = site / "dc_stormy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dc-stormy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[declctl]\nstormy = dc_stormy\n")
    (site / "dc_stormy.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("dc_stormy", None)
