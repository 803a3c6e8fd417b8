"""Fixtures for pytest: `pytest_plugins = ["declctl.testing.pytest_plugin"]` in a conftest.

`sandbox` is an API server in memory, `configmap_dir` and `bundle_dir` are folders to run from, and
`controller(manifest, …)` runs one over that sandbox until the test ends. `manual_clock` stands still, and
`handler_log` keeps what a handler writes with its `ctx.log`.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from declctl.kit import ManualClock
from declctl.objects import KubeObject
from declctl.sandbox import SandboxThread
from declctl.testing.bundle import BundleDir, ConfigMapDir
from declctl.testing.controller import ControllerUnderTest, Logged


class Start(Protocol):
    """Starts a controller that is stopped when the test ends."""

    def __call__(
        self, manifest: str | Path, *, objects: Iterable[KubeObject] = (), watch: bool = False
    ) -> ControllerUnderTest:
        """See `ControllerUnderTest`."""
        ...


@pytest.fixture
def sandbox() -> Iterator[SandboxThread]:
    """An API server in memory, for this test alone."""
    with SandboxThread() as server:
        yield server


@pytest.fixture
def configmap_dir(tmp_path: Path) -> ConfigMapDir:
    """An empty mounted ConfigMap; fill it with `swap`."""
    return ConfigMapDir(tmp_path / "configmap")


@pytest.fixture
def bundle_dir(tmp_path: Path) -> BundleDir:
    """An empty folder for a manifest and handlers."""
    return BundleDir(tmp_path / "bundle")


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until the test moves it, for code that the test calls itself."""
    return ManualClock()


@pytest.fixture
def handler_log() -> Logged:
    """A log for handlers that the test calls itself: `handler_log.user_logger()` is their `ctx.log`."""
    return Logged()


@pytest.fixture
def controller(sandbox: SandboxThread) -> Iterator[Start]:
    """Starts controllers over `sandbox`: `controller("manifest.yaml", objects=[…])`."""
    with ExitStack() as stack:

        def start(
            manifest: str | Path, *, objects: Iterable[KubeObject] = (), watch: bool = False
        ) -> ControllerUnderTest:
            made = ControllerUnderTest(manifest, objects=objects, sandbox=sandbox, watch=watch)
            return stack.enter_context(made)

        yield start
