"""Stage: a generation is made ready beside the one that runs. Whatever fails, that one never knew."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from declctl.errors import Forbidden, ManifestErrors, NotFound, ReloadRefused, Unauthorized
from declctl.kit import Clock, breathe, to_its_end
from declctl.manifest import Diagnostic
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.checking.check import Checked
from declctl.runtime.handling.relocation import CacheLags, FreshnessProof
from declctl.runtime.handling.slots import Prepared, Slots, follow, until_ready
from declctl.runtime.reloading.assembly import Assembled, assemble, assemble_again
from declctl.runtime.reloading.changes import Step, changes
from declctl.runtime.reloading.generation import Generation, RuntimeServices
from declctl.runtime.reloading.outdated import changed_states, outdated
from declctl.runtime.reloading.plugin_lifetimes import PluginLifetimes
from declctl.runtime.reloading.refusing import refusal
from declctl.runtime.reloading.replaying import code_of, recoded, wanting

WARM_CHECK = 0.02  # seconds between two looks at a cache that is being filled


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
        self,
        around: RuntimeServices,
        owners: PluginLifetimes,
        slots: Slots,
        *,
        let_go: Callable[[Generation], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._around = around
        self._owners = owners
        self._slots = slots
        self._let_go = let_go  # undoes what was made of a generation that is not committed
        self._clock = clock

    async def first(self, checked: Checked) -> Staged:
        """The first generation, number 1. Its caches fill when it is committed."""
        return await self._ready(await self._assembled(checked, 1), after=None)

    async def next(self, checked: Checked, number: int, *, after: Generation) -> Staged:
        """The generation of a checked bundle."""
        return await self._ready(await self._assembled(checked, number), after=after)

    async def again(self, before: Generation, number: int, *, after: Generation) -> Staged:
        """A generation that is still loaded, as another one."""
        return await self._ready(await assemble_again(before, number, self._around), after=after)

    async def _assembled(self, checked: Checked, number: int) -> Assembled:
        try:
            return await assemble(checked, number, self._around, clock=self._clock)
        except ManifestErrors as error:
            found = tuple(d for d in error.diagnostics if isinstance(d, Diagnostic))
            raise refusal(Checked((*checked.diagnostics, *found))) from error

    async def _ready(self, assembled: Assembled, *, after: Generation | None) -> Staged:
        new, caches = assembled.generation, self._around.caches
        timeout = new.plan.reload.warm_timeout
        proofs: Sequence[FreshnessProof] = ()
        self._owners.enter(new)
        try:
            await self._owners.prepare(new, after=after)
            proofs = self._slots.begin_proofs(new.places)
            caches.start(assembled.fresh)
            if after is not None:
                await self._warm(new, after, timeout)
            await caches.build_indexes(new.wanted, timeout=timeout)
            plugins = new.foreign.plugins
            restarts = await asyncio.to_thread(outdated, plugins) if plugins else ()
            replayed = await self._replayed(after, new)
            await breathe()
            steps = (
                (*_changes(after, new), *changed_states(after.foreign.plugins, plugins), *restarts)
                if after is not None
                else ()
            )
            same_code = after is not None and _code(after) == _code(new)
            await breathe()
            prepared = await self._slots.prepare(new.places, proofs, same_code=same_code)
            await self._follow(prepared, new, timeout)
        except BaseException:
            for proof in proofs:
                proof.close()
            await to_its_end(self._undo(new))
            raise
        staying = {slot.handler.name for slot in prepared.staying}  # the others hear the cache anyway
        return Staged(new, prepared, steps, [name for name in replayed if name in staying])

    async def _replayed(self, after: Generation | None, new: Generation) -> Sequence[str]:
        if after is None or not wanting(new.plan):
            return ()
        if after.inputs.forced != new.inputs.forced:
            return [handler.name for handler in wanting(new.plan) if handler.entry_point is not None]
        before = await asyncio.to_thread(code_of, after.plan, after.inputs.bundle)
        return await asyncio.to_thread(recoded, before, new.plan, new.inputs.bundle)

    async def _warm(self, new: Generation, after: Generation, timeout: float) -> None:
        """Wait until all that a generation adds has synced; raises ReloadRefused for what can't."""
        deadline = self._clock.monotonic() + timeout
        moved = _moved_to(new, after)
        for wanted in new.wanted:
            name = wanted.plan.name
            before = after.resource(name)
            known = self._around.caches.of(before) if before is not None and name not in moved else ()
            for cached in self._around.caches.of(wanted):
                if cached not in known:
                    may_be_missing = before is None and name not in moved
                    await self._until_synced(cached, deadline, timeout, may_be_missing=may_be_missing)

    async def _until_synced(
        self, cached: ManagedInformer, deadline: float, timeout: float, *, may_be_missing: bool
    ) -> None:
        informer = cached.informer
        while not informer.has_synced:
            fault = informer.fault
            is_missing = isinstance(fault, NotFound)
            is_forbidden = isinstance(fault, Forbidden | Unauthorized)
            if is_missing and may_be_missing:
                return  # the kind may appear later: that is accepted, as at a start
            is_late = self._clock.monotonic() >= deadline
            if is_late and cached.staged is not None and cached.staged.is_running:
                raise cached.staged.refusal(f"took longer than {timeout:g} s")
            if is_missing or is_forbidden or is_late:
                why = informer.statistics().error or f"it did not sync within {timeout:g} s"
                reason = "NotServed" if is_missing else "Forbidden" if is_forbidden else "NotSynced"
                raise ReloadRefused(reason, f"{cached.identity.watch}: {why}")
            await self._clock.sleep(WARM_CHECK)

    async def _follow(self, prepared: Prepared, new: Generation, timeout: float) -> None:
        moves = prepared.moves
        try:
            await breathe()
            await follow(moves, timeout=timeout)
            slots = [transfer.slot for transfer in prepared.transfers]
            indexes, clock = self._around.caches.staged_indexes, self._clock
            await until_ready(moves, prepared.proofs, slots, indexes, clock=clock, timeout=timeout)
        except CacheLags as lag:
            self._slots.discard(prepared)
            raise ReloadRefused(lag.reason, f"{self._place_of(lag.target, new)}: {lag.message}") from lag
        except BaseException:
            self._slots.discard(prepared)
            raise

    def _place_of(self, cached: ManagedInformer, generation: Generation) -> str:
        """File and line of the resource that has a cache, and its name."""
        document = generation.inputs.loaded.document
        resource = next(w.plan for w in generation.wanted if cached in self._around.caches.of(w))
        return f"{document.path}:{document.locate(resource.path).line}: {resource.name}"

    async def _undo(self, generation: Generation) -> None:
        await self._let_go(generation)
        await asyncio.sleep(0)  # what is released closes now: the next attempt would take it for a synced one


def _changes(after: Generation, new: Generation) -> Sequence[Step]:
    return changes(after.side.forced(after.inputs.forced), new.side.forced(new.inputs.forced))


def _code(generation: Generation) -> tuple[str, int]:
    return generation.inputs.code, generation.inputs.forced


def _moved_to(new: Generation, after: Generation) -> frozenset[str]:
    """The names of the resources to which a handler goes on from another one, with its `resourceRef` edited.

    Their kinds have to be served: the handler heard objects before, and would be left without any.
    """
    before = {handler.name: handler.resource for handler in after.plan.handlers}
    return frozenset(h.resource for h in new.plan.handlers if before.get(h.name, h.resource) != h.resource)
