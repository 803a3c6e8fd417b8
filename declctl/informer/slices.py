"""Work in slices: the first slice at once, each other one in a turn of the loop of its own."""

import asyncio
from collections.abc import Iterator


class Slices:
    """Runs iterators to their end, a step at a time. Used on one loop.

    Work of only one step makes no task, and can be started without a running loop.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Iterator[None]) -> None:
        """Do the first step now and the others later."""
        for _ in work:
            self.start_later(work)
            return

    def start_later(self, work: Iterator[None]) -> None:
        """Do each step later: nothing has happened when this returns."""
        task = asyncio.get_running_loop().create_task(_finish(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Leave undone what is not done."""
        for task in self._tasks:
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)


async def _finish(work: Iterator[None]) -> None:
    await asyncio.sleep(0)
    for _ in work:
        await asyncio.sleep(0)
