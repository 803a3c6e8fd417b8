"""Where a ControllerTest is played: over an API server in memory.

A stage has the objects, the controller and the time of one test. The player knows no more of them.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from declctl.kit import AdvancingClock
from declctl.manifest.controller_test import DEFAULT_NAMESPACE, LoadedTest
from declctl.manifest.values import Json
from declctl.objects import GroupVersionKind, KubeObject
from declctl.sandbox import SandboxThread
from declctl.testing.controller import ControllerUnderTest

FIELD_MANAGER: Final = "declctl-test"
_NOT_COPIED: Final = (".*", "__pycache__", "node_modules", "venv", "*.egg-info")


class Stage(Protocol):
    """The server, the controller and the time of one test. Entered before, left after it."""

    namespace: str
    """What stands for the namespace `default` of the document."""

    @property
    def controller(self) -> ControllerUnderTest:
        """The controller that runs now."""
        ...

    def begin(self, objects: Sequence[KubeObject]) -> None:
        """Create objects, and start the controller. Raises the fault of the start."""
        ...

    def restart(self) -> None:
        """End the controller, and start it again over the same objects."""
        ...

    def copy_bundle(self) -> None:
        """Run from a copy of the folder of the manifest. Before `begin`."""
        ...

    def replace(self, files: Mapping[str, Path]) -> None:
        """Replace files of the folder of the manifest, of which there is a copy."""
        ...

    def apply(self, obj: KubeObject) -> None:
        """Apply an object. Raises DeclctlError with the server's words, as all that follow."""
        ...

    def patch(self, kind: GroupVersionKind, namespace: str, name: str, patch: dict[str, Json]) -> None:
        """Merge a patch into an object, and a part `status` of it into its status."""
        ...

    def delete(self, kind: GroupVersionKind, namespace: str, name: str) -> None:
        """Delete an object."""
        ...

    def objects(self, kind: GroupVersionKind) -> Sequence[KubeObject]:
        """All objects of a kind."""
        ...

    def is_namespaced(self, kind: GroupVersionKind) -> bool:
        """Whether objects of a kind are in namespaces."""
        ...

    def fault(self, order: dict[str, Json]) -> None:
        """Order a fault of the server."""
        ...

    def rest(self) -> None:
        """Return when the controller has done all that needs no time to pass, as far as this is known."""
        ...

    def wait(self) -> bool:
        """Wait a moment for what may come without time; False if nothing can, or not any more."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SandboxStage:
    """An API server in memory, and a clock that stands still but for the steps that move it."""

    def __init__(self, test: LoadedTest, folder: Path) -> None:
        self.namespace = DEFAULT_NAMESPACE
        self._stack = ExitStack()
        self._manifest = test.bundle.path
        self._folder = folder  # of the bundle
        self._sandbox = SandboxThread(clock=AdvancingClock(stands=True))
        self._controller: ControllerUnderTest | None = None

    @property
    def controller(self) -> ControllerUnderTest:
        """The controller that runs now."""
        assert self._controller is not None, "the player begins before it plays"
        return self._controller

    def begin(self, objects: Sequence[KubeObject]) -> None:
        """Create objects, and start the controller."""
        self._start(objects)

    def restart(self) -> None:
        """End the controller, and start it again over the same objects."""
        self.controller.stop()
        self._start(())

    def replace(self, files: Mapping[str, Path]) -> None:
        """Replace files in a copy of the folder of the manifest."""
        for name, file in files.items():
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)

    def copy_bundle(self) -> None:
        """Run from a copy of the folder of the manifest, so that files in it can be replaced."""
        target = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="declctl-test-")))
        shutil.copytree(self._folder, target, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)
        is_file = self._manifest.is_file()
        self._manifest = target / self._manifest.name if is_file else target
        self._folder = target

    def apply(self, obj: KubeObject) -> None:
        """Apply an object, and create its namespace."""
        if namespace := (obj.get("metadata") or {}).get("namespace"):
            self._sandbox.ensure_namespace(namespace)
        self._sandbox.apply(obj, manager=FIELD_MANAGER)

    def patch(self, kind: GroupVersionKind, namespace: str, name: str, patch: dict[str, Json]) -> None:
        """Merge a patch into an object, status included."""
        served = self._sandbox.served(kind.api_version, kind.kind)
        self._sandbox.patch(served, name, patch, namespace=namespace)

    def delete(self, kind: GroupVersionKind, namespace: str, name: str) -> None:
        """Delete an object."""
        self._sandbox.delete(self._sandbox.served(kind.api_version, kind.kind), name, namespace)

    def objects(self, kind: GroupVersionKind) -> Sequence[KubeObject]:
        """All objects of a kind."""
        return self._sandbox.objects(self._sandbox.served(kind.api_version, kind.kind))

    def is_namespaced(self, kind: GroupVersionKind) -> bool:
        """Whether objects of a kind are in namespaces."""
        return self._sandbox.served(kind.api_version, kind.kind).namespaced

    def fault(self, order: dict[str, Json]) -> None:
        """Order a fault of the server."""
        self._sandbox.order(order)

    def rest(self) -> None:
        """Return when the controller has done all that needs no time to pass."""
        self.controller.rest()

    def wait(self) -> bool:
        """False: what is not there at rest does not come without time."""
        return False

    def __enter__(self) -> Self:
        self._stack.enter_context(self._sandbox)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._controller is not None:
                self._controller.stop()
        finally:
            self._stack.close()

    def _start(self, objects: Sequence[KubeObject]) -> None:
        made = ControllerUnderTest(self._manifest, objects=objects, sandbox=self._sandbox)
        self._controller = made.start()
