"""What the tests of runtime share: manifests on disk, records, and a log that can be read."""

import asyncio
import inspect
import itertools
import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from declctl.decoding import Projection
from declctl.hooks.calls import EventTarget, Implementation
from declctl.kit import LoopThread, ManualClock
from declctl.manifest.model import Delivery, InitialSync, OnFailure, QueueSpec, RetrySpec
from declctl.manifest.plan import HandlerPlan
from declctl.manifest.values import EntryPoint
from declctl.objects import ChangeType, Notification, Record
from declctl.runtime.handling.binding import Filter
from declctl.runtime.handling.context import Context, HandlerEnvironment, Listers
from declctl.runtime.handling.handler_slot import EventSlot, HandlerBinding
from declctl.testing import BundleDir, Logged
from declctl.testing.controller import Line

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
  handlers:
    - {name: notify, resourceRef: {name: pods}, entryPoint: "handlers:notify"}
"""
HANDLERS = "def notify(change):\n    print(change)\n"
SOON = 30.0  # seconds after which a test that waits for another thread gives up
ONCE = RetrySpec(max_attempts=1)
EVERY_SECOND = RetrySpec(initial_backoff=1.0, max_backoff=1.0)
_versions = itertools.count(100)


@pytest.fixture
def bundle(tmp_path: Path) -> BundleDir:
    """A manifest with one handler."""
    return BundleDir(tmp_path / "app", {"manifest.yaml": MANIFEST, "handlers.py": HANDLERS})


@pytest.fixture
def log() -> Logged:
    return Logged()


def errors(log: Logged) -> list[Line]:
    return [line for line in log.lines if line.level == "error"]


@cache
def _reader(api_version: str, kind: str) -> Projection:
    return Projection(api_version=api_version, kind=kind)


def stored(
    metadata: Mapping[str, Any], *, api_version: str = "v1", kind: str = "Pod", **fields: Any
) -> Record:
    """An object as the cache has it, with these fields beside its metadata."""
    body = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
    made = _reader(api_version, kind).record(json.dumps(body).encode())
    assert made is not None
    return made


def make_record(
    name: str,
    *,
    uid: str = "",
    version: int | None = None,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    **fields: Any,
) -> Record:
    """A pod, of a newer version each time unless told otherwise."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{namespace}-{name}",
        "resourceVersion": str(next(_versions) if version is None else version),
        "labels": dict(labels or {}),
    }
    return stored(metadata, **fields)


@pytest.fixture(name="record")
def _record() -> Callable[..., Record]:
    return make_record


@pytest.fixture(name="added")
def _added() -> Callable[..., Notification]:
    """Makes notifications; Added unless told otherwise."""

    def make(name: str, kind: ChangeType = ChangeType.ADDED, **more: Any) -> Notification:
        return Notification(kind, make_record(name), **more)

    return make


PLAN = HandlerPlan(
    name="notify",
    resource="pods",
    entry_point=EntryPoint("handlers", "notify"),
    plugin=None,
    events=("Added", "Modified", "Deleted", "Resync"),
    initial_sync=InitialSync.DELIVER,
    resync_period=0.0,
    delivery=Delivery.EVENT,
    buffer_bytes=1 << 20,
    queue=QueueSpec(),
    retry=RetrySpec(),
    timeout=None,
    on_failure=OnFailure.IGNORE,
)


def implementation(
    function: Callable[..., Any], *, hook: str = "declctl_event", plugin: str = "p"
) -> Implementation:
    """A function as the gate calls it."""
    parameters = tuple(inspect.signature(function).parameters)
    return Implementation(hook, plugin, function, parameters, inspect.iscoroutinefunction(function))


def rebind(slot: EventSlot, binding: HandlerBinding) -> int:
    """Let what comes from now on go to a new binding, as a commit does; the epoch that ended."""
    slot.expect(binding)
    ended = slot.queue.cut()
    slot.apply_policy(binding)
    return ended


class Hanging:
    """A hook whose calls return when a test opens the gate."""

    def __init__(self) -> None:
        self.began, self.gate = threading.Event(), threading.Event()

    def hook(self, change: Any) -> None:
        self.began.set()
        self.gate.wait(SOON)


def fails(change: Any) -> None:
    raise ValueError("no")


class BrokenLog:
    """A log that raises for lines of a level, as one whose disk is full; for all of them, or so many."""

    def __init__(self, log: Any, level: str, times: float = math.inf) -> None:
        self._log, self._level, self._left = log, level, times

    def __getattr__(self, name: str) -> Any:
        if name == self._level and self._left > 0:
            self._left -= 1
            raise OSError("no space left on device")
        return getattr(self._log, name)


def environment(log: Logged, *, handler: str = "notify", generation: int = 1) -> HandlerEnvironment:
    """What the contexts of a handler are made of: without resources, without a cluster."""
    return HandlerEnvironment(
        handler=handler,
        generation=generation,
        listers=Listers({}),
        config={},
        cluster=SimpleNamespace(),  # type: ignore[arg-type]
        log=log,
        now=ManualClock().now,
    )


class Bench:
    """A slot without threads: a test takes and works by hand."""

    def __init__(self, clock: ManualClock, log: Logged, loop: LoopThread) -> None:
        self.clock, self.log, self.loop = clock, log, loop
        self.handler: EventSlot | None = None
        self.threads = ThreadPoolExecutor(8)

    def binding(self, *functions: Any, generation: int = 1, **policy: Any) -> HandlerBinding:
        """One generation of the handler."""
        made = tuple(f if isinstance(f, Implementation) else implementation(f) for f in functions)
        return HandlerBinding(
            generation,
            replace(PLAN, **policy),
            EventTarget(made),
            partial(Context, environment(self.log, generation=generation)),
            self.loop,
        )

    def slot(self, *functions: Any, adds: Iterable[str] = (), **policy: Any) -> EventSlot:
        """The handler, bound for the first time; an Added is queued for each name in `adds`."""
        slot = self.bound(self.binding(*functions, **policy))
        slot.add_all([Notification(ChangeType.ADDED, make_record(name)) for name in adds])
        return slot

    def bound(self, binding: HandlerBinding, filter: Filter | None = None) -> EventSlot:  # noqa: A002 - its name
        binding = replace(binding, filter=filter)
        self.handler = EventSlot(binding, clock=self.clock, log=self.log, loop=self.loop.loop)
        return self.handler

    def work(self) -> int:
        """Work on all that may be worked on; how many that was."""
        assert self.handler is not None
        done = 0
        while (item := self.handler.queue.take()) is not None:
            self.handler.work(item)
            done += 1
        return done

    def begin(self, *, asynchronous: bool = False) -> Future[bool]:
        """A worker works on the next change, as a thread or a task; the result says whether it stays."""
        assert self.handler is not None
        item = self.handler.queue.take()
        assert item is not None
        if asynchronous:
            return asyncio.run_coroutine_threadsafe(self.handler.work_async(item), self.loop.loop)
        return self.threads.submit(self.handler.work, item)


@pytest.fixture
def bench(clock: ManualClock, log: Logged):
    loop = LoopThread("test-handlers").start()
    made = Bench(clock, log, loop)
    yield made
    made.threads.shutdown(wait=False)
    loop.stop()
