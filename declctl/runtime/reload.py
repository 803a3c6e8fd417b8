"""The walk of one edit, from files to commit: settle → read → check → stage → commit → drain → retire.

Everything that can fail happens before the commit and touches nothing that runs; the commit can't
fail. A start is the same walk without an old generation, and does not wait for its caches.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from declctl.errors import ManifestErrors, ReloadRefused
from declctl.hooks.faults import told
from declctl.kit import Clock, to_its_end
from declctl.manifest import Diagnostic
from declctl.objects import Notification
from declctl.runtime.assembly import Assembled, Surroundings, assemble, lifecycle_context
from declctl.runtime.caches import Cached, Wanted
from declctl.runtime.changes import Step, changes
from declctl.runtime.check import Checked, read_files
from declctl.runtime.children import Children
from declctl.runtime.context import Memo
from declctl.runtime.generation import Generation
from declctl.runtime.inputs import InputFiles
from declctl.runtime.lifecycle import Lifecycle
from declctl.runtime.log import Log
from declctl.runtime.outcome import Outcome, Result
from declctl.runtime.refiltering import Refilter, ask, changed_filters
from declctl.runtime.slots import Ended, Slots

_CATCH_UP_SECONDS = 2.0
_CATCH_UP_CHECK = 0.005
_WARM_CHECK = 0.02  # seconds between two looks at a cache that is being filled


@dataclass(frozen=True, slots=True)
class Staged:
    """A generation that is ready: committing it cannot fail any more."""

    assembled: Assembled
    steps: Sequence[Step]
    told: Mapping[str, Sequence[Notification]]  # to handlers whose filter has changed

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
        self._files = files
        self._around = around
        self._slots = slots
        self._lifecycle = lifecycle
        self._children = children
        self._clock = clock
        self._log = log
        self._last_number = 0
        self._last_digest = ""
        self._attempt = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._memos: dict[str, Memo] = {}  # of life-cycle hooks, by plugin or entry point

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
                return Outcome(Result.UNCHANGED, self.active.number, digest)
            if digest == self._last_digest and not asked:
                return Outcome(Result.UNCHANGED, self.active.number, digest, reason="AttemptedBefore")
            self._last_digest = digest
            try:
                staged = await self._try(checked)
            except ReloadRefused as refused:
                return self._refused(refused, digest, began)
            return self._applied(staged, began)

    async def drained(self) -> None:
        """Return when every generation that was replaced has been retired."""
        while self._retiring:
            await asyncio.wait(self._retiring)

    async def close(self, *, timeout: float) -> None:
        """Tear down the active generation."""
        for task in self._retiring:
            task.cancel()
        if self.active is not None:
            await self._teardown(self.active, timeout=timeout)

    def memo(self, name: str) -> Memo:
        """What a plugin or an entry point remembers in its life-cycle hooks."""
        return self._memos.setdefault(name, Memo())

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
        generation = assembled.generation
        try:
            if self.active is None:
                await self._startup(generation)
            await self._prepare(generation)
            await self._hand_over_state(generation)
            self._around.caches.start(assembled.fresh)
            if warm:
                await self._warm(assembled.fresh, generation.plan.reload.warm_timeout)
            await self._around.caches.build_indexes(generation.wanted)
            refilters = self._refilters(generation)
            await ask(refilters, timeout=generation.plan.reload.warm_timeout)
            await self._catch_up(generation)
            told = {refilter.name: refilter.told(self._slots.untold(refilter.name)) for refilter in refilters}
        except BaseException:
            await to_its_end(self._undo(generation))
            raise
        self._last_number = number
        old = self.active.side if self.active is not None else None
        return Staged(assembled, changes(old, generation.side) if old is not None else (), told)

    def _commit(self, staged: Staged) -> None:
        """Between two deltas: no user code, no I/O, nothing to wait for."""
        old, new = self.active, staged.generation
        ended = self._slots.commit(new.places, staged.told)
        self._around.caches.reproject(new.wanted)
        self.active = new
        self.alive[new.number] = new
        self._last_digest = new.inputs.digest
        if old is not None:
            task = asyncio.get_running_loop().create_task(self._retire(old, new, ended))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, old: Generation, new: Generation, ended: Sequence[Ended]) -> None:
        began = self._clock.monotonic()
        policy = new.plan.reload
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
        await self._teardown(old, timeout=policy.drain_timeout, kept=new.foreign.same_plugins(old.foreign))
        del self.alive[old.number]
        self._around.caches.drop_indexes(old.wanted, self._still_wanted())
        self._around.caches.release(old.wanted, linger=policy.informer_linger)
        old.foreign.close()

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

    async def _catch_up(self, generation: Generation) -> None:
        """Wait until no handler would be moved into its past; for long only if a server lags far behind."""
        deadline = self._clock.monotonic() + _CATCH_UP_SECONDS
        while self._slots.is_behind(generation.places) and self._clock.monotonic() < deadline:
            await self._clock.sleep(_CATCH_UP_CHECK)

    def _refilters(self, new: Generation) -> Sequence[Refilter]:
        if (old := self.active) is None:
            return ()
        return changed_filters(old.places, new.places, same_code=old.inputs.code == new.inputs.code)

    async def tell(self, outcome: Outcome, *, timeout: float) -> None:
        """Call `declctl_reload` of the active generation with the outcome of an attempt."""
        assert self.active is not None
        implementations = self.active.foreign.lifecycle("declctl_reload")
        await self._lifecycle.call_each(implementations, lambda _: {"outcome": outcome}, timeout=timeout)

    async def _startup(self, generation: Generation) -> None:
        failed = await self._lifecycle.call_each(
            generation.foreign.lifecycle("declctl_startup"),
            lambda i: self._arguments(i.plugin, generation),
            timeout=generation.plan.reload.warm_timeout,
        )
        if failed:
            raise ReloadRefused("StartupFailed", "; ".join(str(failure) for failure in failed))

    async def _prepare(self, generation: Generation) -> None:
        kept = self._same_plugins(generation)
        implementations = [i for i in generation.foreign.lifecycle("declctl_prepare") if i.plugin not in kept]
        failed = await self._lifecycle.call_each(
            implementations,
            lambda i: self._arguments(i.plugin, generation),
            timeout=generation.plan.reload.warm_timeout,
        )
        if failed:
            raise ReloadRefused("PrepareFailed", "; ".join(str(failure) for failure in failed))

    async def _hand_over_state(self, new: Generation) -> None:
        if self.active is None:
            return
        exporters = {i.plugin: i for i in self.active.foreign.lifecycle("declctl_export_state")}
        timeout, kept = new.plan.reload.warm_timeout, self._same_plugins(new)
        for importer in new.foreign.lifecycle("declctl_import_state"):
            exporter = exporters.get(importer.plugin)
            if exporter is None or importer.plugin in kept:
                continue
            try:
                state = await self._lifecycle.call(exporter, {}, timeout=timeout)
                arguments = {"state": state, "from_generation": self.active.number}
                await self._lifecycle.call(importer, arguments, timeout=timeout)
            except Exception as error:
                cause = error.__cause__ or error
                message = f"the state of {importer.plugin} was not handed over: {told(cause)}"
                raise ReloadRefused("StateNotImported", message) from error

    async def _undo(self, generation: Generation) -> None:
        kept = self._same_plugins(generation)
        await self._teardown(generation, timeout=generation.plan.reload.drain_timeout, kept=kept)
        self._around.caches.drop_indexes(generation.wanted, self._still_wanted())
        self._around.caches.release(generation.wanted, linger=0.0)
        generation.foreign.close()
        await asyncio.sleep(0)  # what is released closes now: the next attempt would take it for a synced one

    def _still_wanted(self) -> list[Wanted]:
        """What every generation reads that hasn't been retired: the active one, and those that drain."""
        return [wanted for generation in self.alive.values() for wanted in generation.wanted]

    def _same_plugins(self, new: Generation) -> frozenset[str]:
        """The installed plugins that go on as they are: one object each, neither prepared nor torn down."""
        return frozenset() if self.active is None else new.foreign.same_plugins(self.active.foreign)

    async def _teardown(
        self, generation: Generation, *, timeout: float, kept: frozenset[str] = frozenset()
    ) -> None:
        await self._lifecycle.call_each(
            [i for i in generation.foreign.lifecycle("declctl_teardown") if i.plugin not in kept],
            lambda i: self._arguments(i.plugin, generation),
            timeout=timeout,
        )

    def _arguments(self, plugin: str, generation: Generation) -> dict[str, object]:
        return {"ctx": lifecycle_context(plugin, generation, self.memo(plugin), self._around)}

    def _applied(self, staged: Staged, began: float) -> Outcome:
        self._commit(staged)
        asked = self._around.caches.asked()
        return Outcome(
            Result.APPLIED,
            staged.generation.number,
            staged.generation.inputs.digest,
            reason="Applied",
            seconds=self._clock.monotonic() - began,
            steps=staged.steps,
            lists=asked.lists,
            watches=asked.watches,
            unplanned=asked.unplanned,
        )

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
}


def _refusal(checked: Checked) -> ReloadRefused:
    """The errors as one refusal: the first in words, the others counted."""
    errors = checked.errors
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = f"{first.file}:{first.line}: {first.message}{more}"
    return ReloadRefused(_REASONS.get(first.code, "Invalid"), message, checked.diagnostics)
