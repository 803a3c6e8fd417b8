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
from tests.pieces import Pieces
from tests.storm import plugin

__all__ = ["bundle_dir", "configmap_dir", "controller", "sandbox"]  # fixtures, for every test here

_SUPPORT = str(Path(__file__).parent / "support")


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The blackboard that handlers import, here and in a pre-flight's child process."""
    monkeypatch.syspath_prepend(_SUPPORT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([_SUPPORT, os.environ.get("PYTHONPATH", "")]))
    import blackboard

    blackboard.clear()
    yield blackboard
    blackboard.clear()


class Rig(Pieces):
    """A manifest in pieces, handlers in one file, and the controller that runs them."""

    def __init__(self, folder: BundleDir, board: Any, start: Callable[..., ControllerUnderTest]) -> None:
        super().__init__(folder)
        self.board = board
        self._start = start

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
    plugin.install(site)
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("dc_stormy", None)
