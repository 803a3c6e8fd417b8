"""Objects, listeners and running informers that the tests of this room share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from declctl.decoding import Projection
from declctl.informer import FakeControllerSource, SharedIndexInformer
from declctl.kit import ManualClock
from declctl.objects import ChangeType, FieldPath, Notification, Record

PROJECTION = Projection(api_version="v1", kind="Pod", paths=[FieldPath.parse("spec.nodeName")])


def pod(
    name: str = "web", *, namespace: str | None = "demo", node: str | None = None, **metadata: Any
) -> Any:
    """A small pod; what is given besides goes into its metadata."""
    scope = {} if namespace is None else {"namespace": namespace}
    spec = {} if node is None else {"nodeName": node}
    return {"metadata": {"name": name, **scope, **metadata}, "spec": spec}


def record(
    name: str = "web", version: int = 1, *, projection: Projection = PROJECTION, **more: Any
) -> Record:
    """The record of a pod; its uid is its name's unless one is given."""
    uid = more.pop("uid", f"uid-{name}")
    made = projection.record(msgspec.json.encode(pod(name, uid=uid, resourceVersion=str(version), **more)))
    assert made is not None
    return made


class Recorder:
    """A listener that keeps what it is told, and folds it into what the cache must hold."""

    def __init__(self) -> None:
        self.told: list[Notification] = []
        self.folded: dict[str, Record] = {}
        self.faults: list[str] = []

    def add_all(self, notifications: Sequence[Notification]) -> None:
        for notification in notifications:
            self.told.append(notification)
            self._fold(notification)

    def lines(self) -> list[str]:
        """What was told, as `Added demo/a`."""
        return [f"{n.type} {n.key}" for n in self.told]

    def clear(self) -> None:
        self.told.clear()

    def _fold(self, n: Notification) -> None:
        known = self.folded.get(n.key)
        if n.type is ChangeType.DELETED:
            if self.folded.pop(n.key, None) is None:
                self.faults.append(f"{n.key} was deleted and not known")
            if n.final_state_unknown and n.record != known:
                self.faults.append(f"the tombstone of {n.key} is not the last that was told")
            return
        if n.type is ChangeType.ADDED and known is not None:
            self.faults.append(f"{n.key} was added twice")
        if n.type is not ChangeType.ADDED and known is None:
            self.faults.append(f"{n.key} is {n.type} and was not added")
        if n.type is ChangeType.MODIFIED and n.old != known:
            self.faults.append(f"the old state of {n.key} is not the one that was told")
        if n.type is ChangeType.RESYNC and n.record != known:
            self.faults.append(f"the resync of {n.key} brings something new")
        self.folded[n.key] = n.record


async def rest(clock: ManualClock) -> None:
    """Let everything run that can, without time passing."""
    for _ in range(5):
        await clock.settle()


@contextlib.asynccontextmanager
async def running(informer: SharedIndexInformer, clock: ManualClock) -> AsyncIterator[SharedIndexInformer]:
    """The informer, running and at rest; stopped at the end."""
    task = asyncio.create_task(informer.run())
    await rest(clock)
    try:
        yield informer
    finally:
        task.cancel()
        await asyncio.wait([task])


def made(
    source: FakeControllerSource | None = None, **more: Any
) -> tuple[FakeControllerSource, SharedIndexInformer, ManualClock]:
    """A source with its informer and their clock."""
    clock = ManualClock()
    source = source or FakeControllerSource(projection=fresh_projection())
    return source, SharedIndexInformer(source, name="pods", clock=clock, **more), clock


class Informed:
    """A source, its informer, their clock, and a listener from the beginning on."""

    def __init__(self, *names: str, source: FakeControllerSource | None = None, **more: Any) -> None:
        self.source, self.informer, self.clock = made(source, **more)
        self.listener = Recorder()
        self.informer.add_listener(self.listener)
        for name in names:
            self.source.add(pod(name))

    async def rest(self) -> None:
        await rest(self.clock)

    @contextlib.asynccontextmanager
    async def runs(self) -> AsyncIterator["Informed"]:
        async with running(self.informer, self.clock):
            yield self


def informed(*names: str, **more: Any) -> contextlib.AbstractAsyncContextManager[Informed]:
    """A running informer of these pods, with its listener."""
    return Informed(*names, **more).runs()


def fresh_projection() -> Projection:
    """A projection of `spec.nodeName`."""
    return Projection(api_version="v1", kind="Pod", paths=[FieldPath.parse("spec.nodeName")])


async def recreate_unseen(source: FakeControllerSource, clock: ManualClock) -> None:
    """Delete `demo/a` and create it again while the watch is away, and let it be found by a list."""
    source.cut()
    source.delete("demo/a")
    source.add(pod("a"))
    source.compact()
    await clock.advance(5)
