"""Where a ControllerTest is played: a server with objects, a controller, and time.

`SandboxStage` is an API server in memory; that of a cluster is in `cluster_stage`. The player knows no more
of them than `TestingStage`.
"""

import shutil
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from declctl.errors import NotSynced, SandboxError
from declctl.kit import AdvancingClock
from declctl.kit.files import folder_of
from declctl.manifest.controller_test import LoadedTest
from declctl.manifest.values import Json
from declctl.objects import GroupVersionKind, KubeObject
from declctl.objects.differences import changed_paths
from declctl.sandbox import SandboxThread
from declctl.sandbox.status import Refusal
from declctl.testing.documents import BundleUnderTest
from declctl.writes import WriteRecord, WriteVerb

if TYPE_CHECKING:  # late: it has the whole runtime
    from declctl.testing.controller import HostedController

FIELD_MANAGER: Final = "declctl-test"
_MOST_PATHS: Final = 5  # of one write
_PATIENCE_SECONDS: Final = 30.0  # of this machine, for calls that compute or wait for something outside
_NOT_COPIED: Final = (".*", "__pycache__", "node_modules", "venv", "*.egg-info")


class TestingStage(ABC):
    """The server, the controller and the time of one test. Entered before, left after it.

    All names are those of the document. Methods raise DeclctlError with the server's words if it refuses
    something.
    """

    def __init__(self, test: LoadedTest) -> None:
        assert isinstance(test.bundle, BundleUnderTest)
        self._stack = ExitStack()
        self._test = test
        self.bundle = test.bundle  # the Controller under test
        self._manifest = test.bundle.path
        self._controller: HostedController | None = None

    def prepare(self) -> str:
        """Make what the test needs first; returns why it can't be played here, empty if it can."""
        return ""

    @property
    def controller(self) -> "HostedController":
        """The controller that runs now."""
        assert self._controller is not None, "the player begins before it plays"
        return self._controller

    @property
    def has_begun(self) -> bool:
        """Whether a controller was started."""
        return self._controller is not None

    def copy_bundle(self) -> None:
        """Run from a copy of the folder of the manifest, in which files can be replaced. Before `begin`."""
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="declctl-test-")))
        left_out = shutil.ignore_patterns(*_NOT_COPIED)
        shutil.copytree(self.bundle.folder, folder, ignore=left_out, dirs_exist_ok=True)
        self._manifest = folder if self._manifest.is_dir() else folder / self._manifest.name

    def replace(self, files: Mapping[str, Path]) -> None:
        """Replace files of the folder of the manifest, of which there is a copy."""
        folder = folder_of(self._manifest)
        for name, file in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)

    def begin(self, objects: Sequence[KubeObject]) -> int:
        """Create objects, and start the controller; returns the newest version before its start.

        Raises the fault of the start.
        """
        self.load([*self.bundle.definitions, *objects])
        version = self.version()
        self._start()
        return version

    def restart(self) -> None:
        """End the controller, and start it again over the same objects."""
        self.controller.stop()
        self._start()

    def _start(self) -> None:
        from declctl.testing.controller import DefinitionWarning

        self._controller = None
        made = self.make_controller(self._manifest)
        made.patience = _PATIENCE_SECONDS
        made.shares = False  # it is alone, and tests are about handlers
        with warnings.catch_warnings():
            # `declctl validate` says it at its place.
            warnings.simplefilter("ignore", DefinitionWarning)
            self._controller = made.start()

    def rest(self) -> None:
        """Return when the controller has done all that needs no time to pass, as far as this is known."""
        self.controller.rest()

    def wait(self) -> bool:
        """Wait a moment for what may come without time; False if nothing can, or not any more."""
        return False

    @abstractmethod
    def make_controller(self, manifest: Path) -> "HostedController":
        """A controller of this server, not started."""

    @abstractmethod
    def load(self, objects: Sequence[KubeObject]) -> None:
        """Create objects, with their status; definitions that are there already stay as they are."""

    @abstractmethod
    def apply(self, obj: KubeObject) -> None:
        """Apply an object, and a status that it has."""

    @abstractmethod
    def patch(self, kind: GroupVersionKind, namespace: str, name: str, patch: dict[str, Json]) -> None:
        """Merge a patch into an object, and a part `status` of it into its status."""

    @abstractmethod
    def delete(self, kind: GroupVersionKind, namespace: str, name: str) -> None:
        """Delete an object."""

    @abstractmethod
    def objects(self, kind: GroupVersionKind) -> Sequence[KubeObject]:
        """All objects of a kind; of one with namespaces, those that the test can know."""

    @abstractmethod
    def version(self) -> int:
        """The newest resource version: what is written from now on has a greater one."""

    def changed_by(self, _write: WriteRecord, /) -> Sequence[str]:
        """The fields that a write has changed, as paths; empty if they are not known."""
        return ()

    @abstractmethod
    def is_namespaced(self, kind: GroupVersionKind) -> bool:
        """Whether objects of a kind are in namespaces."""

    @abstractmethod
    def fault(self, order: dict[str, Json]) -> None:
        """Order a fault of the server."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._controller is not None:
                self._controller.stop()
        finally:
            self._stack.close()


class SandboxStage(TestingStage):
    """An API server in memory, and a clock that stands still but for the steps that move it."""

    def __init__(self, test: LoadedTest) -> None:
        super().__init__(test)
        self._sandbox = SandboxThread(clock=AdvancingClock(stands=True), garbage_collection=True)

    def make_controller(self, manifest: Path) -> "HostedController":
        """A controller of the sandbox."""
        from declctl.testing.controller import ControllerUnderTest

        return ControllerUnderTest(manifest, sandbox=self._sandbox, records=True)

    def load(self, objects: Sequence[KubeObject]) -> None:
        """Create objects, and their namespaces."""
        self._sandbox.load(objects)

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

    def version(self) -> int:
        """The newest resource version of the sandbox."""
        return self._sandbox.do(lambda sandbox: sandbox.store.version)

    def changed_by(self, write: WriteRecord, /) -> Sequence[str]:
        """The fields that a write has changed; none of a new object, or if the history has lost it."""
        if write.verb is WriteVerb.DELETE or not write.resource_version:
            return ()
        version = int(write.resource_version)
        try:
            served = self._sandbox.served(write.kind.api_version, write.kind.kind)
            events = self._sandbox.do(
                lambda sandbox: sandbox.store.history.collection(served.resource).since(version - 1)
            )
        except (Refusal, SandboxError):
            return ()
        if not events or events[0].version != version or (old := events[0].old) is None:
            return ()
        paths, _ = changed_paths(old.decode(), events[0].new.decode(), most=_MOST_PATHS)
        return [each for each in paths if each != "metadata.generation"]

    def is_namespaced(self, kind: GroupVersionKind) -> bool:
        """Whether objects of a kind are in namespaces."""
        return self._sandbox.served(kind.api_version, kind.kind).namespaced

    def fault(self, order: dict[str, Json]) -> None:
        """Order a fault of the server."""
        self._sandbox.order(order)

    def rest(self) -> None:
        """Return when the controller is at rest, and no call waits for a cache that fills.

        How long that takes says nothing of the controller, so the clock is moved as far as it has to be.
        """
        looked_at = 0
        while True:
            self.controller.rest()
            calls = self.controller.calls
            new, looked_at = calls[looked_at:], len(calls)
            waits = [each.retry_in or 0.0 for each in new if each.error_type == NotSynced.__name__]
            if not waits:
                return
            self.controller.advance(max(waits))

    def __enter__(self) -> Self:
        self._stack.enter_context(self._sandbox)
        return self
