"""Stage: a generation is made ready beside the one that runs. Whatever fails, that one never knew."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from declctl.errors import ManifestErrors, ReloadRefused
from declctl.kit import Clock, breathe, to_its_end
from declctl.manifest import Diagnostic
from declctl.runtime.caching.caches import Cached
from declctl.runtime.checking.check import Checked
from declctl.runtime.handling.following import follow, until_ready
from declctl.runtime.handling.placing import Prepared
from declctl.runtime.handling.slots import Slots
from declctl.runtime.reloading.assembly import Assembled, Surroundings, assemble, assemble_again
from declctl.runtime.reloading.changes import Step, changes
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.outdated import outdated
from declctl.runtime.reloading.owners import Owners
from declctl.runtime.reloading.refusing import refusal
from declctl.runtime.reloading.replaying import code_of, recoded, wanting
from declctl.runtime.reloading.retiring import Retiring

_WARM_CHECK = 0.02  # seconds between two looks at a cache that is being filled


@dataclass(frozen=True, slots=True)
class Staged:
    """A generation that is ready: committing it cannot fail any more."""

    generation: Generation
    prepared: Prepared
    steps: Sequence[Step]
    replayed: Sequence[str]  # the handlers that hear the cache again, as their code has changed


class Staging:
    """Makes generations ready, one at a time. Used on the machinery loop.

    What it returns has to be committed in the turn of the loop in which it does. Where it raises, which
    is ReloadRefused or what cancels it, all that was made is undone.
    """

    def __init__(
        self, around: Surroundings, owners: Owners, slots: Slots, retiring: Retiring, *, clock: Clock
    ) -> None:
        self._around = around
        self._owners = owners
        self._slots = slots
        self._retiring = retiring
        self._clock = clock

    async def first(self, checked: Checked) -> Staged:
        """The first generation, number 1. Its caches fill while it runs."""
        return await self._ready(await self._assembled(checked, 1), after=None)

    async def next(self, checked: Checked, number: int, *, after: Generation) -> Staged:
        """The generation of a checked bundle."""
        return await self._ready(await self._assembled(checked, number), after=after)

    async def again(self, before: Generation, number: int, *, after: Generation) -> Staged:
        """A generation that is still loaded, as another one."""
        return await self._ready(assemble_again(before, number, self._around), after=after)

    async def _assembled(self, checked: Checked, number: int) -> Assembled:
        try:
            return await assemble(checked, number, self._around)
        except ManifestErrors as error:
            found = tuple(d for d in error.diagnostics if isinstance(d, Diagnostic))
            raise refusal(Checked((*checked.diagnostics, *found))) from error

    async def _ready(self, assembled: Assembled, *, after: Generation | None) -> Staged:
        new, caches = assembled.generation, self._around.caches
        timeout = new.plan.reload.warm_timeout
        self._owners.enter(new)
        try:
            await self._owners.prepare(new, after=after)
            caches.start(assembled.fresh)
            if after is not None:
                await self._warm(assembled.fresh, timeout)
            await caches.build_indexes(new.wanted)
            plugins = new.foreign.plugins
            restarts = await asyncio.to_thread(outdated, plugins) if plugins else ()
            replayed = await self._replayed(after, new)
            await breathe()
            steps = (*changes(after.side, new.side), *restarts) if after is not None else ()
            same_code = after is not None and after.inputs.code == new.inputs.code
            await breathe()
            prepared = await self._slots.prepare(new.places, same_code=same_code)
            await self._follow(prepared, timeout)
        except BaseException:
            await to_its_end(self._undo(new))
            raise
        return Staged(new, prepared, steps, replayed)

    async def _replayed(self, after: Generation | None, new: Generation) -> Sequence[str]:
        if after is None or not wanting(new.plan):
            return ()
        before = await asyncio.to_thread(code_of, after.plan, after.inputs.bundle)
        return await asyncio.to_thread(recoded, before, new.plan, new.inputs.bundle)

    async def _warm(self, fresh: Sequence[Cached], timeout: float) -> None:
        deadline = self._clock.monotonic() + timeout
        for cached in fresh:
            while not cached.informer.has_synced:
                figures = cached.informer.statistics()
                if figures.missing:
                    break  # the kind may appear later: that is accepted, as at a start
                if figures.forbidden or self._clock.monotonic() >= deadline:
                    why = figures.error or f"it did not sync within {timeout:g} s"
                    reason = "Forbidden" if figures.forbidden else "NotSynced"
                    raise ReloadRefused(reason, f"{cached.identity.watch}: {why}")
                await self._clock.sleep(_WARM_CHECK)

    async def _follow(self, prepared: Prepared, timeout: float) -> None:
        moves = prepared.moves
        try:
            await breathe()
            await follow(moves, timeout=timeout)
            slots = [transfer.slot for transfer in prepared.transfers]
            await until_ready(moves, slots, clock=self._clock, timeout=timeout)
        except BaseException:
            self._slots.discard(prepared)
            raise

    async def _undo(self, generation: Generation) -> None:
        await self._retiring.let_go(generation, timeout=generation.plan.reload.drain_timeout, linger=0.0)
        await asyncio.sleep(0)  # what is released closes now: the next attempt would take it for a synced one
