"""Changes to a cluster while something is measured: made at a steady rate, and written down."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from declctl.bench.objects import Maker
from declctl.objects import KubeObject, key_of
from declctl.sandbox import SandboxThread

_LABEL: Final = "declctl.dev/bench-change"
_CYCLE: Final = ("Modified", "Modified", "Modified", "Added", "Deleted")
_YOUNG: Final = 10  # of what is created; older ones are deleted, when all have heard of them


class Made(msgspec.Struct, frozen=True):
    """One change: of what, when it was made (monotonic seconds), and which version the object had then."""

    type: str
    resource: str
    key: str
    version: int
    at: float


class Churn:
    """`rate` changes a second: most to objects that are there, some objects come, and some of these go.

    They are made in the length of a with statement, of which there may be several, one after the other.
    `made` only grows. What a change raised is raised at the end of the with statement.
    """

    def __init__(
        self,
        server: SandboxThread,
        objects: Sequence[tuple[str, KubeObject]],
        makers: Sequence[Maker],
        *,
        rate: float,
    ) -> None:
        self.made: list[Made] = []
        self._server = server
        self._objects = objects
        self._makers = makers
        self._pause = 1 / rate
        self._young: deque[tuple[str, KubeObject]] = deque()
        self._number = 0
        self._ended = threading.Event()
        self._fault: Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> int:
        """The version of the newest change; 0 before the first."""
        return self.made[-1].version if self.made else 0

    def __enter__(self) -> Self:
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name="changes", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._fault is not None and (kind is None or issubclass(kind, Exception)):
            raise self._fault  # which is why whatever was waited for did not happen

    def wait(self, seconds: float) -> None:
        """Return after so many seconds of changes, or when one has failed."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                self.step()
                due += self._pause
        except Exception as fault:  # noqa: BLE001 - raised again by whoever ends it
            self._fault = fault

    def step(self) -> None:
        """Make the next change, and write it down."""
        kind = _CYCLE[self._number % len(_CYCLE)]
        if kind == "Added":
            self._create()
        elif kind == "Deleted" and len(self._young) > _YOUNG:
            resource, obj = self._young.popleft()
            metadata = obj["metadata"]
            at = time.monotonic()
            gone = self._server.delete(_word(obj), metadata["name"], metadata.get("namespace"))
            self._note(kind, resource, gone, at)
        else:
            resource, obj = self._objects[self._number % len(self._objects)]
            at = time.monotonic()
            self._note("Modified", resource, label(self._server, obj, _LABEL, str(time.monotonic_ns())), at)
        self._number += 1

    def _create(self) -> None:
        maker = self._makers[self._number // len(_CYCLE) % len(self._makers)]
        obj = next(maker, None)
        if obj is None:
            return  # the resource names its objects, and has them all
        at = time.monotonic()
        made = self._server.create(obj)
        self._young.append((maker.resource, made))
        self._note("Added", maker.resource, made, at)

    def _note(self, kind: str, resource: str, obj: KubeObject, at: float) -> None:
        metadata = obj["metadata"]
        key = key_of(metadata.get("namespace"), metadata["name"])
        self.made.append(Made(kind, resource, key, int(metadata["resourceVersion"]), at))


def label(server: SandboxThread, obj: KubeObject, name: str, value: str | None) -> KubeObject:
    """Set a label of an object, or with None remove it; returns the object as it is then."""
    metadata = obj["metadata"]
    patch = {"metadata": {"labels": {name: value}}}
    return server.patch(_word(obj), metadata["name"], patch, namespace=metadata.get("namespace") or "default")


def _word(obj: KubeObject) -> str:
    """How the sandbox knows a kind."""
    group, _, _ = obj["apiVersion"].rpartition("/")
    return f"{obj['kind']}.{group}" if group else obj["kind"]
