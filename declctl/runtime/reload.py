"""The walk of one edit, from files to commit: settle → read → check → stage → commit → drain → retire.

Everything that can fail happens before the commit and touches nothing that runs; the commit can't
fail. A start is the same walk without an old generation, and does not wait for its caches.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from declctl.errors import ManifestErrors, ReloadRefused
from declctl.kit import Clock, to_its_end
from declctl.manifest import Diagnostic
from declctl.manifest.model import DrainPolicy, ReloadSpec
from declctl.runtime.assembly import Assembled, Surroundings, assemble, assemble_again
from declctl.runtime.caches import Cached, Wanted
from declctl.runtime.changes import Step, changes
from declctl.runtime.check import Checked, read_files
from declctl.runtime.children import Children
from declctl.runtime.context import Memo
from declctl.runtime.following import follow, until_ready
from declctl.runtime.generation import Generation
from declctl.runtime.inputs import InputFiles
from declctl.runtime.lifecycle import Lifecycle
from declctl.runtime.log import Log
from declctl.runtime.outcome import Outcome, Result
from declctl.runtime.outdated import outdated
from declctl.runtime.owners import Owners
from declctl.runtime.placing import Ended, Prepared
from declctl.runtime.replaying import Replays, changed_code
from declctl.runtime.slots import Slots
from declctl.runtime.trial import Kept, Trial

NOT_IN_MEMORY = "NotInMemory"  # the reason of a rollback that nothing was done for
_WARM_CHECK = 0.02  # seconds between two looks at a cache that is being filled


@dataclass(frozen=True, slots=True)
class Staged:
    """A generation that is ready: committing it cannot fail any more."""

    assembled: Assembled
    prepared: Prepared
    steps: Sequence[Step]
    replayed: Sequence[str]  # the handlers that hear the cache again, as their code has changed

    @property
    def generation(self) -> Generation:
        """The generation itself."""
        return self.assembled.generation


class Reloader:
    """Makes generations follow one another.

    Used on the machinery loop, by one attempt at a time.
    """

    def __init__(
        self,
        files: InputFiles,
        *,
        around: Surroundings,
        slots: Slots,
        lifecycle: Lifecycle,
        children: Children,
        clock: Clock,
        log: Log,
    ) -> None:
        self.active: Generation | None = None
        self.alive: dict[int, Generation] = {}  # committed and not retired
        self.trial: Trial | None = None  # of the active generation, while the one before may come back
        self._files = files
        self._around = around
        self._slots = slots
        self._children = children
        self._clock = clock
        self._log = log
        self._last_number = 0
        self._last_digest = ""
        self._attempt = asyncio.Lock()
        self._owners = Owners(around, lifecycle)
        self._replays = Replays(slots, clock=clock, log=log)
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self, checked: Checked) -> Generation:
        """Make the first generation; raises ManifestErrors or ReloadRefused, and then nothing runs.

        It is committed at once: its caches fill while it runs.
        """
        async with self._attempt:
            staged = await self._stage(checked, warm=False)
            self._commit(staged)
            return staged.generation

    async def reload(
        self, *, asked: bool, settled: str | None = None, read: Callable[[str], None] = lambda _: None
    ) -> Outcome:
        """Make what the files say now the next generation, or say why not.

        `asked` tries again what has been tried before; otherwise the same bytes are not tried
        twice. Files that are not `settled`, a digest, any longer are left to a later attempt. `read` is told
        the digest of what the attempt is made of. Cancelling, which is possible until
        the commit, undoes everything before it is raised.
        """
        async with self._attempt:
            began = self._clock.monotonic()
            assert self.active is not None
            checked = await asyncio.to_thread(read_files, self._files)
            inputs = checked.inputs
            digest = inputs.digest if inputs is not None else await asyncio.to_thread(self._files.digest)
            if settled is not None and digest != settled:
                return Outcome(Result.SUPERSEDED, self.active.number, settled, reason="Superseded")
            read(digest)
            if digest == self.active.inputs.digest:
                self._last_digest = digest
                steps = await asyncio.to_thread(outdated, self.active.foreign.plugins)
                return Outcome(Result.UNCHANGED, self.active.number, digest, steps=steps)
            if digest == self._last_digest and not asked:
                return Outcome(Result.UNCHANGED, self.active.number, digest, reason="AttemptedBefore")
            self._last_digest = digest
            try:
                staged = await self._try(checked)
            except ReloadRefused as refused:
                return self._refused(refused, digest, began)
            return self._applied(staged, began)

    async def rollback(self, number: int | None = None, *, why: str, asked: bool = True) -> Outcome:
        """Commit the generation before again, as the next one, or say why not.

        Only what is still loaded can come back: `number`, or whichever it is. What the files say is not
        tried again until it changes or somebody asks. An attempt that runs is waited for; if it is
        committed, nothing is done unless somebody `asked`.
        """
        wanted = self.trial
        async with self._attempt:
            began = self._clock.monotonic()
            assert self.active is not None
            trial, active = self.trial, self.active
            if trial is not wanted and not asked:
                return Outcome(Result.UNCHANGED, active.number, active.inputs.digest, reason="Superseded")
            if trial is None or number not in (None, trial.kept.generation.number):
                return self._not_in_memory(number)
            before = trial.kept.generation
            try:
                assembled = assemble_again(before, self._last_number + 1, self._around)
                staged = await self._make_ready(assembled, warm=True)
            except ReloadRefused as refused:
                trial.refused = True
                return self._refused(refused, active.inputs.digest, began)
            message = f"rolled back from generation {active.number} to {before.number}: {why}"
            return self._applied(staged, began, back=message)

    @property
    def loaded(self) -> tuple[int, ...]:
        """The generation that may come back, if there is one, and the one that runs."""
        kept = self.trial.kept.generation if self.trial is not None else None
        return tuple(each.number for each in (kept, self.active) if each is not None)

    def passed(self, trial: Trial) -> None:
        """The active generation stays: the one before is retired."""
        if self.trial is trial:
            self.trial = None
            trial.kept.released.set()

    async def drained(self) -> None:
        """Return when every generation that was replaced has been retired."""
        while self._retiring:
            await asyncio.wait(self._retiring)

    async def close(self, *, timeout: float) -> None:
        """Tear down every generation that has not been: the active one, and those that were to follow."""
        self._replays.close()
        for task in self._retiring:
            task.cancel()
        if self._retiring:
            await asyncio.wait(tuple(self._retiring))
        for generation in self._owners.all():
            await self._owners.leave(generation, timeout=timeout)

    def memo(self, name: str) -> Memo:
        """What a plugin or an entry point remembers in its life-cycle hooks."""
        return self._owners.memo(name)

    async def _try(self, checked: Checked) -> Staged:
        checked = await self._children.import_aside(checked)
        if checked.errors:
            raise _refusal(checked)
        return await self._stage(checked, warm=True)

    async def _stage(self, checked: Checked, *, warm: bool) -> Staged:
        number = self._last_number + 1
        try:
            assembled = await assemble(checked, number, self._around)
        except ManifestErrors as error:
            found = tuple(d for d in error.diagnostics if isinstance(d, Diagnostic))
            raise _refusal(Checked((*checked.diagnostics, *found))) from error
        return await self._make_ready(assembled, warm=warm)

    async def _make_ready(self, assembled: Assembled, *, warm: bool) -> Staged:
        generation = assembled.generation
        self._owners.enter(generation)
        try:
            await self._owners.prepare(generation, after=self.active)
            self._around.caches.start(assembled.fresh)
            if warm:
                await self._warm(assembled.fresh, generation.plan.reload.warm_timeout)
            await self._around.caches.build_indexes(generation.wanted)
            restarts = await asyncio.to_thread(outdated, generation.foreign.plugins)
            replayed = await asyncio.to_thread(changed_code, self.active, generation)
            prepared = await self._slots.prepare(generation.places, same_code=self._same_code(generation))
            try:
                steps = (*self._steps(generation), *restarts)
                await self._follow(prepared, timeout=generation.plan.reload.warm_timeout)
            except BaseException:
                self._slots.discard(prepared)
                raise
        except BaseException:
            await to_its_end(self._undo(generation))
            raise
        self._last_number = generation.number
        return Staged(assembled, prepared, steps, replayed)

    def _commit(self, staged: Staged, *, back: bool = False) -> None:
        """Between two deltas: no user code, no I/O, nothing to wait for."""
        old, new = self.active, staged.generation
        ended = self._slots.commit(staged.prepared)
        self._around.caches.reproject(new.wanted)
        self._replays.begin(staged.replayed)
        self.active = new
        self.alive[new.number] = new
        if not back:
            self._last_digest = new.inputs.digest
        if old is not None:
            policy = new.plan.reload
            if back:  # what waits for code that fails goes to the code that does not
                policy = replace(policy, drain_policy=DrainPolicy.HANDOVER)
            kept = self._next_trial(old, new, back=back)
            task = asyncio.get_running_loop().create_task(self._retire(old, policy, ended, kept))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def _next_trial(self, old: Generation, new: Generation, *, back: bool) -> Kept | None:
        """Begin the probation of `new`; returns whether `old` is kept for it.

        What was on trial itself is not: the last one that is known to be good stays.
        """
        trial, self.trial = self.trial, None
        policy = new.plan.reload
        if back or not policy.probation_period:
            if trial is not None:
                trial.kept.released.set()
            return None
        kept = trial.kept if trial is not None else Kept(old)
        self.trial = Trial(kept, policy, began=self._clock.monotonic())
        return kept if trial is None else None

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
        await self._let_go(old, timeout=policy.drain_timeout, linger=policy.informer_linger)

    async def _let_go(self, generation: Generation, *, timeout: float, linger: float) -> None:
        """End a generation: what nobody else uses is torn down, and its code forgotten."""
        was_last = await self._owners.leave(generation, timeout=timeout)
        self.alive.pop(generation.number, None)
        self._around.caches.drop_indexes(generation.wanted, self._still_wanted())
        self._around.caches.release(generation.wanted, linger=linger)
        if was_last:
            generation.foreign.close()

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

    async def _follow(self, prepared: Prepared, *, timeout: float) -> None:
        """Return when handlers can be moved: the commit has to be made in that turn of the loop."""
        moves = prepared.moves
        await follow(moves, timeout=timeout)
        slots = [transfer.slot for transfer in prepared.transfers]
        await until_ready(moves, slots, clock=self._clock, timeout=timeout)

    def _same_code(self, new: Generation) -> bool:
        return self.active is not None and self.active.inputs.code == new.inputs.code

    def _steps(self, new: Generation) -> Sequence[Step]:
        return changes(self.active.side, new.side) if self.active is not None else ()

    async def tell(self, outcome: Outcome, *, timeout: float) -> None:
        """Call `declctl_reload` of the active generation with the outcome of an attempt."""
        assert self.active is not None
        await self._owners.tell(self.active, outcome, timeout=timeout)

    async def _undo(self, generation: Generation) -> None:
        await self._let_go(generation, timeout=generation.plan.reload.drain_timeout, linger=0.0)
        await asyncio.sleep(0)  # what is released closes now: the next attempt would take it for a synced one

    def _still_wanted(self) -> list[Wanted]:
        """What every generation reads that hasn't been retired: the active one, and those that drain."""
        return [wanted for generation in self.alive.values() for wanted in generation.wanted]

    def _applied(self, staged: Staged, began: float, *, back: str = "") -> Outcome:
        self._commit(staged, back=bool(back))
        asked = self._around.caches.asked()
        result = Result.ROLLED_BACK if back else Result.APPLIED
        return Outcome(
            result,
            staged.generation.number,
            staged.generation.inputs.digest,
            reason=str(result),
            message=back,
            seconds=self._clock.monotonic() - began,
            steps=staged.steps,
            lists=asked.lists,
            watches=asked.watches,
            unplanned=asked.unplanned,
        )

    def _not_in_memory(self, number: int | None) -> Outcome:
        assert self.active is not None
        there = self.trial.kept.generation.number if self.trial is not None else None
        wanted = "no earlier generation" if number is None else f"generation {number}"
        message = f"{wanted} is not in memory: " if number is not None else f"{wanted} is in memory: "
        if there is not None:
            message += f"generation {there} is"
        elif not self.active.plan.reload.probation_period:
            message += "one is kept for spec.reload.probationPeriod, and that is not set"
        else:
            message += "one is kept for spec.reload.probationPeriod after a reload, and no longer"
        return Outcome(Result.REFUSED, self.active.number, self.active.inputs.digest, NOT_IN_MEMORY, message)

    def _refused(self, refused: ReloadRefused, digest: str, began: float) -> Outcome:
        assert self.active is not None
        return Outcome(
            Result.REFUSED,
            self.active.number,
            digest,
            reason=refused.reason,
            message=refused.message,
            seconds=self._clock.monotonic() - began,
            diagnostics=tuple(d for d in refused.diagnostics if isinstance(d, Diagnostic)),
        )


_REASONS = {
    "DCL042": "SyntaxError",
    "DCL043": "ImportFailed",
    "DCL044": "ImportFailed",
    "DCL045": "ImportTimeout",
    "DCL087": "RestartRequired",
}


def _refusal(checked: Checked) -> ReloadRefused:
    """The errors as one refusal: the first in words, the others counted."""
    errors = checked.errors
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = f"{first.file}:{first.line}: {first.message}{more}"
    return ReloadRefused(_REASONS.get(first.code, "Invalid"), message, checked.diagnostics)
