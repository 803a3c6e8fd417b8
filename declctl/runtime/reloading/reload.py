"""The steps of a reload: read → check → stage → commit → drain → retire.

All steps that can fail come before the commit, and change nothing that runs. The commit can't fail. A start
has the same steps without an old generation: its caches fill after the commit, and its handlers begin after
that. After the commit, `Probation` judges the calls of the new code, and asks for a rollback if they fail or
hang.
"""

import asyncio
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from declctl.errors import InvalidRequest, ReloadRefused
from declctl.informer.reflector.faults import is_waited_for
from declctl.kit import set_within
from declctl.kit.files import is_exhausted
from declctl.manifest import Diagnostic
from declctl.manifest.diagnostics import new_among
from declctl.manifest.model import DrainPolicy, ReloadSpec
from declctl.manifest.plan import Plan
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.checking.allowed_digests import require_reviewed
from declctl.runtime.checking.check import (
    CheckResult,
    check_inputs,
    import_in_child,
    read_files,
    refused_request,
)
from declctl.runtime.checking.config_secrets import has_other_secrets
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.handling.context import Memo
from declctl.runtime.handling.slots import Slots
from declctl.runtime.reasons import RETRIED
from declctl.runtime.reconciling.leftovers import Leftovers
from declctl.runtime.recorder import Recorder
from declctl.runtime.reloading.changes import EXHAUSTED, NOT_KEPT, Outcome, Result
from declctl.runtime.reloading.earlier import EarlierGenerations
from declctl.runtime.reloading.generation import (
    Generation,
    Lifecycle,
    OldGeneration,
    PluginLifetimes,
    RuntimeServices,
    Seconds,
)
from declctl.runtime.reloading.orphans import orphans_of
from declctl.runtime.reloading.probation import Probation
from declctl.runtime.reloading.retirement import Retirement, trim_heap
from declctl.runtime.reloading.stage import (
    Replays,
    Stage,
    StagedGeneration,
    refusal,
    restart_steps,
)
from declctl.runtime.scheduling.schedules import Schedules
from declctl.runtime.threads import in_thread
from declctl.runtime.writing import WritingParts


class Reloader:
    """Replaces the active generation by the next one. Used on the machinery loop, one attempt at a time."""

    def __init__(  # noqa: PLR0913 - one parameter for each part that a reload needs
        self,
        files: InputFiles,
        services: RuntimeServices,
        *,
        slots: Slots,
        schedules: Schedules,
        writing: WritingParts,
        leftovers: Leftovers,
        children: PreflightPool,
        allowed_digests: str | None,
        recorder: Recorder | None = None,
    ) -> None:
        clock, log = services.clock, services.log
        self.active: Generation | None = None
        self.probation = Probation(slots, clock=clock)  # of the active generation
        self.lifecycle = Lifecycle(log)  # calls the life-cycle hooks of all generations
        self.synced = asyncio.Event()  # a cache of a committed generation has synced; the reporter clears it
        self._earlier = EarlierGenerations()
        self._changed = asyncio.Event()  # wakes `wait_for_caches`: a cache synced or failed, or a commit
        services.caches.on_fault.append(self._changed.set)  # it may say that a cache is not to be waited for
        self._files = files
        self._services = services
        self._slots = slots
        self._schedules = schedules
        self._writing = writing
        self._leftovers = leftovers
        self._children = children
        self._recorder = recorder
        self._allowed_digests = allowed_digests  # a file, for every generation
        self._clock = clock
        self._log = log
        self._next_number = 1  # of the next generation that is committed
        self._last_digest = ""  # of the files that were tried last, applied or refused
        self._secrets_due = False  # a user has asked for the values of Secrets, and has not got them yet
        self._warnings: Sequence[Diagnostic] = ()  # of what was committed last
        self._attempt = asyncio.Lock()  # held by a start, a reload or a rollback
        self._lifetimes = PluginLifetimes(services, self.lifecycle)
        self._replays = Replays(slots, clock=clock, log=log)
        self._retiring = Retirement(services, self._lifetimes, slots, schedules, clock=clock, log=log)
        self._staging = Stage(services, self._lifetimes, slots, discard=self._discard, clock=clock)

    @property
    def running(self) -> tuple[int, str]:
        """The number of the active generation, and the digest of its files; 0 and "" before the first."""
        return (0, "") if self.active is None else (self.active.number, self.active.inputs.digest)

    @property
    def alive(self) -> Mapping[int, Generation]:
        """The generations that were committed and have not been retired."""
        return self._retiring.unretired

    @property
    def old(self) -> list[OldGeneration]:
        """The replaced generations that are not retired, and older code that is still in memory.

        Each has the names of what holds it.
        """
        kept = self.probation.previous
        found: list[OldGeneration] = []
        for number, generation in self.alive.items():
            if generation is not self.active:
                calls = self._slots.calls_of(generation.bindings.values())
                calls += self._schedules.calls_of(number)
                reason = "the probation of the next one" if generation is kept else "what was queued for it"
                found.append(OldGeneration(number, tuple(calls) or (reason,)))
        return [*found, *self._retiring.retained]

    async def start(self, checked: CheckResult) -> Outcome:
        """Make and commit the first generation. Raises ReloadRefused; then nothing runs.

        The commit comes at once, so that the status shows how the caches fill. No handler is called before
        `start_handlers`.
        """
        async with self._attempt:
            staged = await self._staging.first(checked)
            self._warnings = checked.diagnostics
            # Handlers may read any cache: none is called before all have synced (`start_handlers`).
            self._slots.pause()
            self.commit(staged)
            new = staged.generation
            return Outcome(
                Result.APPLIED, new.number, new.inputs.digest, reason="Started", imports=staged.imports
            )

    async def start_handlers(self) -> None:
        """Start the handlers when every cache has synced, or after `warmTimeout`."""
        await self.wait_for_caches()
        await self.make_room()
        self.begin()

    async def wait_for_caches(self) -> None:
        """Wait until every cache has synced, for `warmTimeout` at most.

        What the server does not serve, or refuses, is not waited for (`is_waited_for`). If a reload was
        committed meanwhile, its caches count. The caches of later generations have synced before their commit
        (`Stage`).
        """
        began = self._clock.monotonic()
        while self._unsynced(awaited=True):
            assert self.active is not None
            left = began + self.active.plan.reload.warm_timeout - self._clock.monotonic()
            if left <= 0:
                break
            await set_within(self._changed, left, clock=self._clock)
            self._changed.clear()
        for name, why in self._unsynced(awaited=False).items():
            self._log.warning(
                f"handlers begin without {name}, which has not synced ({why}); a handler that reads it "
                "before its sync gets NotSynced, and is called again",
                resource=name,
            )

    async def make_room(self) -> None:
        """Return the free memory that imports and first lists leave behind. Caches go on meanwhile."""
        await in_thread(trim_heap, name="declctl-trim")

    def begin(self) -> None:
        """Let handlers and schedules begin. A second call has no effect.

        Schedules that are paused stay so.
        """
        self._slots.take_over()
        self._slots.resume()
        self._schedules.start()

    def synced_caches(self) -> Sequence[ManagedInformer]:
        """The caches of the active generation that have synced, each once."""
        assert self.active is not None
        caches = self._services.caches
        found = dict.fromkeys(cached for each in self.active.requirements for cached in caches.of(each))
        return [cached for cached in found if cached.informer.has_synced]

    def _unsynced(self, *, awaited: bool) -> Mapping[str, str]:
        """The resources that have not synced, and why; with `awaited`, only those worth waiting for."""
        assert self.active is not None
        loaded, found = self.active.inputs.loaded, dict[str, str]()
        for requirement in self.active.requirements:
            for cached in self._services.caches.of(requirement):
                fault = cached.informer.fault
                if cached.informer.has_synced or (awaited and not is_waited_for(fault)):
                    continue
                refused = isinstance(fault, InvalidRequest)
                why = refused_request(loaded, requirement.plan.name, fault) if refused else None
                found[requirement.plan.name] = str(why or cached.informer.why_not_synced())
        return found

    async def reload(
        self,
        *,
        asked: bool,
        force: bool = False,
        settled: str | None = None,
        read: Callable[[str], None] = lambda _: None,
    ) -> Outcome:
        """Make the next generation of the present files; return the outcome.

        - `asked`: a user asks. Files that were tried before, and disabled plugins, are tried again.
        - `force`: make all code anew also if no file has changed, as it may depend on other files.
        - `settled`: the digest of the settled files. If they have another digest, a later attempt takes them.
        - `read`: called with the digest of the files that were read.

        A cancellation is possible until the commit. It is raised after everything was undone.
        """
        async with self._attempt:
            began = self._clock.monotonic()
            assert self.active is not None
            try:
                with self._own_faults():
                    checked, digest = await in_thread(self._read, name="declctl-read")
            except ReloadRefused as refused:
                return self._refused(refused, settled or "", began)
            # The files have changed since they settled. They settle again, and begin another attempt.
            if settled is not None and digest != settled:
                return Outcome(Result.SUPERSEDED, self.active.number, settled, reason="Superseded")
            read(digest)
            # A user may ask to load a plugin again that is disabled because it could not be loaded.
            wants_anew = force or (asked and bool(self.active.loaded_code.disabled))
            if digest == self.active.inputs.digest and not wants_anew:
                self._last_digest = digest
                self._slots.keep_finalizers()  # an edit that removed one was taken back
                try:
                    with self._own_faults():
                        steps = await asyncio.to_thread(restart_steps, self.active.loaded_code.plugins)
                        goes_on = await self._has_other_secrets(checked, asked=asked)
                except ReloadRefused as refused:
                    return self._refused(refused, digest, began)
                # No file has the values of Secrets: other values make another generation of the same files.
                if not goes_on:
                    return Outcome(Result.UNCHANGED, self.active.number, digest, steps=steps)
            # The same files fail the same way: they are tried again only if a user asks.
            elif digest == self._last_digest and not asked:
                return Outcome(Result.UNCHANGED, self.active.number, digest, reason="AttemptedBefore")
            try:
                with self._own_faults():
                    checked = checked.forced(self._next_number if force else self.active.inputs.forced)
                    checked, staged = await self._stage(checked, self.active)
            except ReloadRefused as refused:
                self._last_digest = digest  # not after a cancellation: the files were not tried then
                self._secrets_due &= refused.reason in RETRIED
                return self._refused(refused, digest, began)
            self._secrets_due = False
            known, self._warnings = self._warnings, checked.diagnostics
            return self._commit_with_outcome(staged, began, warnings=new_among(checked.diagnostics, known))

    async def _has_other_secrets(self, checked: CheckResult, *, asked: bool) -> bool:
        """Whether Secrets have other values for the configs of plugins than the code that runs.

        They are read if a user asks, and then until that has come to an end: an edit that is taken back reads
        none.
        Raises ReloadRefused, as `Stage.with_secrets` does.
        """
        assert self.active is not None
        self._secrets_due |= asked
        if checked.errors or not self._secrets_due:
            return False
        complete = await self._staging.with_secrets(checked)
        self._secrets_due = has_other_secrets(complete, self.active.loaded_code.plugin_configs)
        return self._secrets_due

    def forget(self, digest: str) -> None:
        """Forget that files of this digest were tried: the next attempt tries them again."""
        if self._last_digest == digest:
            self._last_digest = ""

    async def rollback(self, number: int | None = None, *, why: str, asked: bool = True) -> Outcome:
        """Commit an earlier generation again, under the next number; return the outcome.

        If a user has `asked`, it is the kept generation `number`, by default the one that was live before.
        Otherwise it is the one before the probation. `why` is the reason in the log. The present files are
        not tried again until they change or a user asks. A current attempt is waited for; if it is committed,
        nothing is done unless a user has asked.

        A cancellation is possible until the commit, as in `reload`.
        """
        judged = self.probation.period
        async with self._attempt:
            began = self._clock.monotonic()
            assert self.active is not None
            # The attempt before may have begun another probation: then the verdict was on another generation.
            period, active = self.probation.period, self.active
            if not asked and (period is None or period is not judged):
                return Outcome(Result.UNCHANGED, active.number, active.inputs.digest, reason="Superseded")
            previous = self.probation.previous
            if previous is not None and not asked:
                number = previous.number
            elif number is None and self.kept:
                number = self.kept[-1]
            if number is None or number not in self.kept:
                return not_kept(number, self.kept, active)
            try:
                with self._own_faults():
                    # Code that is still loaded goes on with its state.
                    if previous is not None and number == previous.number:
                        await self._require_allowed(previous.inputs)
                        staged = await self._staging.again(previous, self._next_number, replaced=active)
                    else:
                        staged = await self._stage_earlier(number, active)
            except ReloadRefused as refused:
                # What failed to come back is not tried again unasked.
                if period is not None and number == period.previous.number:
                    period.refused = True
                return self._refused(refused, active.inputs.digest, began)
            message = f"rolled back from generation {active.number} to {number}: {why}"
            self._earlier.forget(number)
            return self._commit_with_outcome(staged, began, rollback_line=message)

    @property
    def kept(self) -> Sequence[int]:
        """The numbers of the generations to which a rollback can go back, the newest last."""
        previous = self.probation.previous
        on_probation = () if previous is None else (previous.number,)
        return sorted({*on_probation, *self._earlier.numbers})

    async def wait_until_retired(self) -> None:
        """Wait until every replaced generation is retired."""
        await self._retiring.wait_until_retired()

    async def close(self, *, timeout: Seconds) -> None:
        """Tear down every generation, `timeout()` seconds for each hook: the process ends."""
        self._replays.close()
        await self._retiring.cancel()
        for generation in self._lifetimes.all():
            await self._lifetimes.leave(generation, timeout=timeout)
        await in_thread(self._services.processes.close, name="declctl-isolation")

    def memo(self, name: str) -> Memo:
        """The memo of a plugin or an entry point in its life-cycle hooks."""
        return self._lifetimes.memo(name)

    @property
    def memos(self) -> dict[str, Memo]:
        """The memos of life-cycle hooks, by plugin or entry point."""
        return self._lifetimes.memos

    async def _discard(self, generation: Generation) -> None:
        """Undo the staging of a generation that is not committed."""
        timeout = generation.plan.reload.drain_timeout
        await self._retiring.end(generation, timeout=timeout, linger=0.0)

    def _read(self) -> tuple[CheckResult, str]:
        checked = read_files(self._files)
        if checked.exhausted is not None:
            raise checked.exhausted
        return checked, checked.inputs.digest if checked.inputs is not None else self._files.digest()

    async def _stage(self, checked: CheckResult, active: Generation) -> tuple[CheckResult, StagedGeneration]:
        """Import checked inputs in a child, and make the next generation of them. Raises ReloadRefused."""
        await self._require_allowed(checked.inputs)
        checked = await import_in_child(checked, self._children)
        if checked.errors:
            raise refusal(checked)
        return checked, await self._staging.next(checked, self._next_number, replaced=active)

    async def _stage_earlier(self, number: int, active: Generation) -> StagedGeneration:
        """Make the next generation of the files of a kept one. Raises ReloadRefused."""
        inputs = self._earlier.get(number)
        assert inputs is not None
        checked = await in_thread(lambda: check_inputs(inputs), name="declctl-read")
        _, staged = await self._stage(checked.forced(active.inputs.forced), active)
        return staged

    async def _require_allowed(self, inputs: Inputs | None) -> None:
        """Raise ReloadRefused if a list of allowed digests lacks these files.

        The list of the active generation counts, too: files can't take effect by leaving it out.
        """
        if inputs is None:  # the files have errors, and are refused for these
            return
        assert self.active is not None
        named = [each.loaded.controller.reload.allowed_digests for each in (self.active.inputs, inputs)]
        lists = [self._allowed_digests, *named]
        await in_thread(lambda: require_reviewed(inputs, lists), name="declctl-digests")

    @contextmanager
    def _own_faults(self) -> Generator[None]:
        """Turn an unexpected exception before the commit into a refusal.

        Raises ReloadRefused with the reason `ResourcesExhausted` or `InternalError`.
        """
        try:
            yield
        except ReloadRefused:
            raise
        except Exception as fault:
            what = f"{type(fault).__name__}: {fault}"
            if is_exhausted(fault):
                raise ReloadRefused(EXHAUSTED, f"this process can't get what it needs: {what}") from fault
            self._log.error(
                f"this is a fault of declctl itself, please report it: {what}",
                traceback="".join(traceback.format_exception(fault)),
            )
            raise ReloadRefused("InternalError", f"a fault of declctl itself: {what}") from fault

    def commit(self, staged: StagedGeneration, *, back: bool = False) -> int:
        """Make a staged generation the active one, in one step of the loop. `back`: as a rollback.

        Calls no user code and awaits nothing. Returns the number of cached objects that come again to code
        that has changed.
        """
        old, new = self.active, staged.generation
        if self._recorder is not None:
            self._recorder.committed(new.inputs.as_committed(new.number, back=back))
        ended = self._slots.commit(staged.prepared)  # from here on, events go to the new bindings
        self._schedules.commit(new.schedules)
        self._services.metrics.commit(new.loaded_code, new.inputs)
        self._services.caches.commit_staged(new.requirements)  # indexes, records and transforms
        self._follow_syncs(new)
        self._writing.writers.budget.limit(new.plan.writes.qps, new.plan.writes.burst)
        # The leader finalizes leftovers: a follower would queue what that has finalized before a takeover.
        if not self._slots.is_standing_by:
            self._leftovers.commit(self._slots.all())
        replayed = self._replays.begin(staged.replayed)
        self._activate(new, back=back)
        if old is not None:
            self._warn_of_orphans(old.plan, new.plan)
            released = self.probation.begin(old, new.plan.reload, back=back)
            self._retiring.begin(old, _drain_policy(new.plan, back=back), ended, released)
            self._earlier.add(old.number, old.inputs)
        return replayed

    def _follow_syncs(self, new: Generation) -> None:
        """Call `_cache_synced` when a cache of the new generation has synced."""
        for requirement in new.requirements:
            for cached in self._services.caches.of(requirement):
                if not cached.informer.has_synced:
                    cached.informer.synced.on_open(self._cache_synced)

    def _cache_synced(self) -> None:
        self._slots.cache_synced()
        self._schedules.cache_synced()
        self._changed.set()
        self.synced.set()

    def _activate(self, new: Generation, *, back: bool) -> None:
        self.active, self._next_number = new, new.number + 1
        self._retiring.unretired[new.number] = new
        # After a rollback, the present files are those that failed: they are not tried until they change.
        if not back:
            self._last_digest = new.inputs.digest
        self._changed.set()

    def _warn_of_orphans(self, old: Plan, new: Plan) -> None:
        """Log what stays in the cluster, as no handler goes on with it."""
        for orphan in orphans_of(old, new, self._writing.ledger.applied_by()):
            self._log.warning("; ".join(filter(None, (str(orphan), orphan.hint))), handler=orphan.handler)

    async def call_reload_hooks(self, outcome: Outcome, timeout: float) -> None:
        """Call `declctl_reload` of the active generation, `timeout` seconds a hook; failures are logged."""
        active = self.active
        if active is not None:
            hooks = active.loaded_code.lifecycle("declctl_reload")
            await self.lifecycle.call_each(
                hooks, lambda _: {"outcome": outcome}, loop=active.loop, timeout=lambda: timeout
            )

    def _commit_with_outcome(
        self,
        staged: StagedGeneration,
        began: float,
        *,
        rollback_line: str = "",
        warnings: Sequence[Diagnostic] = (),
    ) -> Outcome:
        """Commit a staged generation; return the outcome. `rollback_line` is the log line of a rollback."""
        replayed = self.commit(staged, back=bool(rollback_line))
        requests = self._services.caches.request_counts()
        result = Result.ROLLED_BACK if rollback_line else Result.APPLIED
        return Outcome(
            result,
            staged.generation.number,
            staged.generation.inputs.digest,
            reason=str(result),
            message=rollback_line,
            seconds=self._clock.monotonic() - began,
            steps=staged.steps,
            lists=requests.lists,
            watches=requests.watches,
            unplanned=requests.unplanned,
            imports=staged.imports,
            replayed=replayed,
            diagnostics=warnings,
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


def _drain_policy(plan: Plan, *, back: bool) -> ReloadSpec:
    """How the code before a plan is drained; `back`: it has failed, and what waits for it is handed over."""
    return replace(plan.reload, drain_policy=DrainPolicy.HANDOVER) if back else plan.reload


def not_kept(number: int | None, kept: Sequence[int], active: Generation) -> Outcome:
    """The outcome if the requested generation is not kept; says which ones are."""
    if number is None:
        message = "no earlier generation is kept: none was live since the start of this process"
    elif number == active.number:
        message = f"generation {number} is the one that runs"
    else:
        others = ", ".join(map(str, kept)) or "none"
        message = f"generation {number} is not kept; those that are: {others}"
    return Outcome(Result.REFUSED, active.number, active.inputs.digest, NOT_KEPT, message)
