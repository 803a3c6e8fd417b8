"""Whole controllers over a sandbox in this process, and what the tests ask of them."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from declctl.admin.endpoints import matching_keys
from declctl.objects import FieldSelector
from declctl.runtime.checking.check import check
from declctl.runtime.planning.comparison import ObjectSelection, compare_plans
from declctl.runtime.reloading.changes import Outcome
from declctl.testing import BundleDir, ControllerUnderTest, until
from declctl.testing.pytest_plugin import bundle_dir, configmap_dir, controller, sandbox
from tests.pieces import Pieces
from tests.storm import plugin

__all__ = ["bundle_dir", "configmap_dir", "controller", "sandbox"]  # fixtures, for every test here

# Handlers tell all of a change.
TELLING = """
from blackboard import tell as note
def tell(change, obj):
    note("told", obj["kind"], str(change.key), str(change.type), str(change.reason), change.initial)
"""
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

    runs: ControllerUnderTest  # since `start` or `run`

    def __init__(self, folder: BundleDir, board: Any, start: Callable[..., ControllerUnderTest]) -> None:
        super().__init__(folder)
        self.board = board
        self._start = start

    def run(self, code: str | None = None, *, watch: bool = False, objects: Any = ()) -> ControllerUnderTest:
        """Write it all, start the controller, and wait until its caches are filled."""
        controller = self.start(code, watch=watch, objects=objects)
        controller.wait_ready()
        return controller

    def start(
        self, code: str | None = None, *, watch: bool = False, objects: Any = ()
    ) -> ControllerUnderTest:
        """Write it all and start the controller, whose caches may not be filled yet."""
        self.runs = self._start(self.write(code), objects=objects, watch=watch)
        return self.runs

    def only(self, name: str = "tell", **options: Any) -> None:
        """Make this the only handler of the manifest."""
        self.handlers = []
        self.handler(name, **options)

    def reload(self, code: str | None = None, *resources: str) -> Outcome:
        """Write it all, with other resources if there are any, and reload it."""
        self.resources = list(resources) or self.resources
        self.write(code)
        return self.runs.reload()

    def apply(self, code: str | None = None, *resources: str) -> Outcome:
        """Reload it, and have it applied."""
        outcome = self.reload(code, *resources)
        assert outcome.result == "Applied", outcome.line
        return outcome

    def roll_back(self, number: int | None = None) -> Outcome:
        """Go back to the generation before, or to another one."""
        return self.runs.on_machinery(self.runs.runtime.rollback(number), 30)

    def retired(self) -> None:
        """Return when the old code is gone."""
        until("the old code is retired", lambda: self.runs.status().generations_alive == 1)

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


def secret(name: str, **labels: str) -> dict[str, Any]:
    """A Secret in the namespace `default`."""
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


def definition(plural: str, kind: str, *versions: str, scope: str = "Namespaced") -> dict[str, Any]:
    """The definition of a kind that is served in these versions."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": name, "served": True, "storage": name == versions[-1], "schema": schema}
                for name in versions
            ],
        },
    }


def gadgets(*versions: str) -> dict[str, Any]:
    """The definition of a kind that is served in these versions."""
    return definition("gadgets", "Gadget", *versions)


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
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Installs a plugin by its name and code, here and for children; returns the folder of its module."""
    site, made = tmp_path / "site", []

    def add(name: str, *code: str) -> Path:
        plugin.install(site, name, *code)
        made.append(f"dc_{name}")
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
        importlib.invalidate_caches()
        return site

    yield add
    for module in made:
        sys.modules.pop(module, None)


def planned_against(runs: ControllerUnderTest, folder: Path) -> Any:
    """What `declctl plan --against running` says of the files."""
    running = runs.runtime.running()
    assert running is not None

    def matching(selected: ObjectSelection) -> int:
        fields = FieldSelector.parse(selected.fields)
        return len(
            matching_keys(runs.lister(selected.resource), selected.namespace, selected.labels or None, fields)
        )

    return compare_plans(
        check(folder / "manifest.yaml", in_child=False), against=running.plan(), matching=matching
    )


def let_begin(runs: ControllerUnderTest) -> None:
    """Let `warmTimeout` pass: handlers begin without the caches that can't sync."""

    def has_begun() -> bool:
        runs.advance(1)
        return any(line.startswith("handlers begin without") for line in runs.log.events("warning"))

    until("handlers begin", has_begun)
