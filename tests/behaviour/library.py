"""Informers of the library over real HTTP against a sandbox in the same loop, and what tests ask of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from declctl.decoding import Projection
from declctl.informer import DeletedFinalStateUnknown, ReflectorOptions, SharedIndexInformer, field_index
from declctl.kit import Clock, ManualClock, SystemClock
from declctl.objects import FieldPath, GroupVersionKind, KubeObject, ObjectView
from declctl.sandbox import Sandbox
from declctl.transport import Client

DEFAULT_OPTIONS = ReflectorOptions()
_PATIENCE = 20.0  # seconds
_PAUSE = 0.005


class HurriedClock(SystemClock):
    """Time that goes faster: back-off and deadlines are those of production, and nobody waits for them."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def monotonic(self) -> float:
        """Seconds on this clock."""
        return time.monotonic() * self._speed

    async def sleep(self, seconds: float) -> None:
        """Sleep for the part of it that is real."""
        await asyncio.sleep(max(0.0, seconds) / self._speed)


@dataclass
class Told:
    """A handler that writes down what it is told, as `add a 1`; `tombstones` are names."""

    lines: list[str] = field(default_factory=list)
    initial: list[str] = field(default_factory=list)
    tombstones: list[str] = field(default_factory=list)
    view: dict[str, str] = field(default_factory=dict)  # version by name, of what is there as far as was told

    async def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        self.view[obj.name] = obj.resource_version
        self.lines.append(f"add {obj.name} {obj.resource_version}")
        if is_in_initial_list:
            self.initial.append(obj.name)

    async def on_update(self, old: ObjectView, new: ObjectView) -> None:
        self.view[new.name] = new.resource_version
        self.lines.append(f"update {new.name} {new.resource_version}")

    async def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None:
        if isinstance(obj, DeletedFinalStateUnknown):
            self.tombstones.append(obj.obj.name)
            obj = obj.obj
        self.view.pop(obj.name)
        self.lines.append(f"delete {obj.name}")

    def names(self, kind: str) -> list[str]:
        """Who was added, updated or deleted, in order."""
        return [line.split()[1] for line in self.lines if line.startswith(f"{kind} ")]


class Cluster:
    """A sandbox and one informer on it; `told` is what its first handler has heard."""

    def __init__(self, sandbox: Sandbox, client: Client, informer: SharedIndexInformer, clock: Clock) -> None:
        self.sandbox = sandbox
        self.faults = sandbox.faults
        self.client = client
        self.informer = informer
        self.clock = clock
        self.told = Told()
        self.registration = informer.add_event_handler(self.told)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """List and watch from now on."""
        self._task = asyncio.create_task(self.informer.run())

    async def synced(self) -> "Cluster":
        """Start, and return when all of the first sync is told and the watch is open."""
        self.start()
        await self.registration.synced.wait()
        await self.watching()
        return self

    async def watching(self) -> None:
        """Return when the informer watches without a fault."""
        await eventually(lambda: (f := self.figures()).state == "Watching" and f.error is None)

    async def same(self) -> None:
        """Return when the cache is what the server has, and the handler knows it."""
        await eventually(lambda: self.cached() == self.served() == self.told.view)

    def figures(self) -> Any:
        """The informer's."""
        return self.informer.statistics()

    def cached(self) -> dict[str, str]:
        """Version by name, in the cache."""
        return {obj.name: obj.resource_version for obj in self.informer.get_lister(require_sync=False).list()}

    def served(self) -> dict[str, str]:
        """Version by name, on the server."""
        objects = self.sandbox.store.objects(self.informer.name)
        return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in objects}

    def asked(self, verb: str) -> list[dict[str, str]]:
        """The parameters of every LIST or WATCH of the informer, but those that only prove its history."""
        asked = [dict(request.params) for request in self.sandbox.ledger.requests(verb)]
        proofs = ("limit", "1"), ("resourceVersionMatch", "Exact")
        return [params for params in asked if not any(params.get(name) == value for name, value in proofs)]

    def lists(self) -> int:
        """How often everything was asked for, in either way."""
        return len(self.asked("list")) + sum("sendInitialEvents" in watch for watch in self.asked("watch"))

    def put(self, name: str, **data: str) -> KubeObject:
        """Create or change a ConfigMap."""
        store = self.sandbox.store
        if any(name == obj["metadata"]["name"] for obj in store.objects("ConfigMap")):
            return store.patch("ConfigMap", name, {"data": data}, namespace="default")
        return store.create(config_map(name, **data))

    def delete(self, name: str) -> None:
        """Delete a ConfigMap."""
        self.sandbox.store.delete("ConfigMap", name, "default")

    def forget(self, act: Callable[[], Any]) -> None:
        """The watch is cut, something happens, and the server forgets how it came to that."""
        self.faults.cut_watches()
        act()
        self.put("somebody-else")
        self.faults.compact()

    async def stop(self) -> None:
        """Stop it all; a task that ended by itself tells why."""
        if self._task is not None:
            assert not self._task.done(), self._task.exception()
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.client.close()


@asynccontextmanager
async def cluster(
    *,
    kind: str = "ConfigMap",
    speed: float = 50.0,
    clock: Clock | None = None,
    sandbox: Sandbox | None = None,
    options: ReflectorOptions = DEFAULT_OPTIONS,
) -> AsyncIterator[Cluster]:
    """A sandbox, a client and an informer, not started yet, on a clock that is `speed` times as fast.

    Or on another `clock`.
    """
    clock = clock or HurriedClock(speed)
    async with sandbox or Sandbox() as server:
        # The question whether the server is there waits on the same clock, unless a test turns that by hand.
        hurried = clock if isinstance(clock, HurriedClock) else None
        client = await Client.from_kubeconfig_dict(server.kubeconfig(), clock=hurried)
        path = FieldPath.parse("data.colour")
        source = client.source(
            GroupVersionKind.of("v1", kind), projection=Projection(api_version="v1", kind=kind, paths=[path])
        )
        informer = SharedIndexInformer(
            source, name=kind, clock=clock, options=options, indexers={"colour": field_index("data.colour")}
        )
        it = Cluster(server, client, informer, clock)
        try:
            yield it
        finally:
            await it.stop()


def config_map(name: str, **data: str) -> KubeObject:
    """A ConfigMap in the namespace `default`."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


async def eventually(condition: Callable[[], object], *, seconds: float = _PATIENCE) -> None:
    """Return when it holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(_PAUSE)


@asynccontextmanager
async def ticking(clock: ManualClock) -> AsyncIterator[None]:
    """Seconds pass on a manual clock, one after the other, whenever everybody else has had a turn."""

    async def tick() -> None:
        while True:
            await clock.advance(1.0)
            await asyncio.sleep(_PAUSE)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
