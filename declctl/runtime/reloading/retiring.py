"""Retire: what an old generation has queued is dealt with, then what nobody else uses is let go."""

import asyncio
from collections.abc import Sequence

from declctl.kit import Clock
from declctl.manifest.model import ReloadSpec
from declctl.runtime.caching.caches import Wanted
from declctl.runtime.handling.placing import Ended
from declctl.runtime.handling.slots import Slots
from declctl.runtime.log import Log
from declctl.runtime.reloading.assembly import Surroundings
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.owners import Owners
from declctl.runtime.reloading.trial import Kept


class Retiring:
    """The generations that were committed, by their numbers, and the end of those that were replaced.

    Used on the machinery loop.
    """

    def __init__(self, around: Surroundings, owners: Owners, slots: Slots, *, clock: Clock, log: Log) -> None:
        self.alive: dict[int, Generation] = {}  # committed and not retired
        self._around = around
        self._owners = owners
        self._slots = slots
        self._clock = clock
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, old: Generation, policy: ReloadSpec, ended: Sequence[Ended], kept: Kept | None) -> None:
        """Retire a generation that was replaced; where it is `kept`, not before that is released."""
        task = asyncio.get_running_loop().create_task(self._retire(old, policy, ended, kept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drained(self) -> None:
        """Return when every generation that was replaced has been retired."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Leave undone what is not done: the process ends."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def let_go(self, generation: Generation, *, timeout: float, linger: float) -> None:
        """End a generation, committed or not: what nobody else uses is torn down, and its code forgotten.

        Hooks have `timeout` seconds, informers linger for `linger` seconds.
        """
        was_last = await self._owners.leave(generation, timeout=timeout)
        self.alive.pop(generation.number, None)
        self._around.caches.drop_indexes(generation.wanted, self._still_wanted())
        self._around.caches.release(generation.wanted, linger=linger)
        if was_last:
            generation.foreign.close()

    async def _retire(
        self, old: Generation, policy: ReloadSpec, ended: Sequence[Ended], kept: Kept | None
    ) -> None:
        began = self._clock.monotonic()
        late = await self._slots.drain(ended, policy=policy.drain_policy, timeout=policy.drain_timeout)
        took = self._clock.monotonic() - began
        if late:
            names = ", ".join(late)
            self._log.warning(
                f"generation {old.number} was not drained in {took:.1f} s: {names} went to the new code"
            )
        else:
            self._log.info(f"generation {old.number} drained in {took * 1000:.0f} ms")
        await self._slots.finished(ended)
        if kept is not None:
            await kept.released.wait()
        await self.let_go(old, timeout=policy.drain_timeout, linger=policy.informer_linger)

    def _still_wanted(self) -> list[Wanted]:
        """What every generation reads that hasn't been retired: the active one, and those that drain."""
        return [wanted for generation in self.alive.values() for wanted in generation.wanted]
