"""A reflector on its bench: a source that misbehaves on demand, a store that is fed, and a clock."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from declctl.decoding import Projection
from declctl.errors import Expired
from declctl.informer import FakeControllerSource, Indexer, Reflector, ReflectorOptions, ReflectorStatistics
from declctl.kit import ManualClock
from tests.rooms.informer.shapes import fresh_projection, pod, rest

EXPIRED = Expired(410, "Expired", "too old resource version")


class Bench:
    """A source, a reflector that feeds a store, and a clock. What is given is in ReflectorOptions."""

    def __init__(self, *, jitter: float = 0.0, projection: Projection | None = None, **more: Any) -> None:
        self.clock = ManualClock(jitter=jitter)
        self.source = FakeControllerSource(projection=projection or fresh_projection())
        self.store = Indexer()
        self.faults: list[Exception] = []
        self.reflector = Reflector(
            self.source,
            self.store,
            clock=self.clock,
            known=self.store.get_by_key,
            on_fault=self.faults.append,
            options=ReflectorOptions(**more),
        )
        self.task: asyncio.Task[None] | None = None

    @property
    def figures(self) -> ReflectorStatistics:
        return self.reflector.statistics()

    @property
    def names(self) -> list[str]:
        return sorted(key.removeprefix("demo/") for key in self.store.list_keys())

    def versions(self, verb: str = "watch") -> list[str | None]:
        """The resource versions asked for, in order."""
        requests = self.source.watches() if verb == "watch" else self.source.lists()
        return [request.resource_version for request in requests]

    def agrees(self) -> bool:
        """Whether the store has what the server has."""
        wanted = {key: obj["metadata"]["resourceVersion"] for key, obj in self.source.objects.items()}
        return wanted == {record.key: record.resource_version for record in self.store.list()}

    async def begin(self) -> None:
        self.task = asyncio.create_task(self.reflector.run())
        await self.settle()

    async def stop(self) -> None:
        """Stop it; nothing may be left behind."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            assert self.source.open_watches == 0

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await rest(self.clock)

    async def settle(self) -> None:
        await rest(self.clock)


@contextlib.asynccontextmanager
async def bench(
    *, streams: bool = True, objects: Iterable[str] = ("a", "b"), begin: bool = True, **more: Any
) -> AsyncIterator[Bench]:
    """A bench with some pods on its server; running if `begin`, and stopped at the end in any case."""
    made = Bench(**more)
    made.source.streams = streams
    for name in objects:
        made.source.add(pod(name))
    if begin:
        await made.begin()
    try:
        yield made
    finally:
        await made.stop()
