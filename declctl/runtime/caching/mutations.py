"""Who changes what all readers share is found out: looks at the objects of caches with `mode: Objects`.

A part of the objects is looked at each second, so that it costs next to nothing; with
KUBE_CACHE_MUTATION_DETECTOR=true (client-go's variable), and in tests, all of them are.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from declctl.kit import Clock
from declctl.objects import Mutation, MutationDetector
from declctl.runtime.caching.informer_pool import InformerPool

_EVERY = 1.0  # seconds, as in client-go
_PART = 100  # objects of a cache that are looked at each time: some 3 ms
_CHECKED_AT_ONCE = 20  # objects until the loop may do something else
_KEPT = 100  # of the newest changes


class MutationChecks:
    """The detectors of all caches, run on the machinery loop. `thorough` looks at every object each time."""

    def __init__(self, caches: InformerPool, *, clock: Clock, thorough: bool) -> None:
        self._caches = caches
        self._clock = clock
        self._thorough = thorough
        self._found: deque[Mutation] = deque(maxlen=_KEPT)

    @property
    def found(self) -> Sequence[Mutation]:
        """The newest changes that were found and put right."""
        return tuple(self._found)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(_EVERY)
            await self.look()

    async def look(self) -> None:
        """Look at a part of each cache, or at all of it."""
        for cached in self._caches.all():
            if cached.mutations is not None:
                await self._look_at(cached.mutations)

    async def _look_at(self, detector: MutationDetector) -> None:
        left = _PART
        while left > 0:
            self._found.extend(detector.look(_CHECKED_AT_ONCE))
            if detector.at_end_of_round:
                return
            if not self._thorough:
                left -= _CHECKED_AT_ONCE
            await asyncio.sleep(0)
