"""The low-level controller: a reflector, a queue and a function that processes it (client-go controller.go).

The shared informer is built on it; alone it serves whoever wants changes without a cache.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from declctl.informer.queues import Entry, Queue
from declctl.informer.reflector import Reflector
from declctl.kit import Latch

BATCH = 500  # entries that are processed before the loop may do something else

Process = Callable[[Sequence[Entry]], Iterable[None] | None]


class Controller:
    """Runs a reflector and processes what it queues, in order.

    `process` is called with what was popped; it may be a generator, which lets the loop do
    something else wherever it yields. What it raises ends `run` (client-go 166). `synced` opens
    when what came first is processed.
    """

    def __init__(
        self, queue: Queue, reflector: Reflector, process: Process, *, synced: Latch | None = None
    ) -> None:
        self.queue = queue
        self.reflector = reflector
        self.synced = Latch("controller") if synced is None else synced
        self._process = process

    async def run(self) -> None:
        """List, watch and process until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.reflector.run(), name="reflector")
                tasks.create_task(self._process_all(), name="process")
        finally:
            self.queue.close()

    @property
    def has_synced(self) -> bool:
        """Whether what came first is processed."""
        return self.synced.is_open

    @property
    def last_sync_resource_version(self) -> str:
        """The newest version that the reflector has seen."""
        return self.reflector.last_sync_resource_version

    async def _process_all(self) -> None:
        while True:
            batch = await self.queue.pop_batch(BATCH)
            for _ in self._process(batch) or ():
                await asyncio.sleep(0)
            self.queue.processed(batch)
            if not self.synced.is_open and self.queue.has_synced:
                self.synced.open()
            if len(batch) == BATCH:
                await asyncio.sleep(0)
