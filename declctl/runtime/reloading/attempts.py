"""Attempts to reload: what asks for one, and which one runs.

Files that change and SIGHUP ask by themselves; a person asks by `declctl reload`. One attempt runs at a time,
and the newest files win: until its commit an attempt can be given up. Then all that it has staged is undone,
and only after that the newer attempt begins. A caller that waits for an attempt that was given up gets the
outcome of the newer one.
"""

import asyncio
from collections.abc import Awaitable, Callable

from declctl.kit import Clock
from declctl.manifest.model import ReloadSpec, WatchFiles
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.log import Log
from declctl.runtime.reloading.changes import STOPPING, Outcome, Result
from declctl.runtime.reloading.files import FileChanges, FileWatchHealth
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.reload import Reloader
from declctl.runtime.threads import in_thread

_NOT_TRIED = ("AttemptedBefore", "Superseded")  # by an attempt that nobody had asked for, and was joined
_NOTHING = "nothing"  # no digest of files
_CLOSE_SECONDS = 10.0  # what undoing an attempt may take when the process ends


class Attempts:
    """Lets a reloader make one attempt at a time. Used on the machinery loop.

    `digest` says what the files are now; it blocks, and is asked in a daemon thread. `finished` hears every
    outcome once, with whether somebody had asked for the attempt. `health` hears whether files can be looked
    at.
    """

    def __init__(
        self,
        reloader: Reloader,
        *,
        digest: Callable[[], str],
        finished: Callable[[Outcome, bool], Awaitable[None]],
        health: FileWatchHealth,
        clock: Clock,
    ) -> None:
        self._reloader = reloader
        self._digest = digest
        self._finished = finished
        self._health = health
        self._clock = clock
        self._current: _Attempt | None = None  # not committed, refused or undone yet
        self._told = ""
        self._tasks: set[asyncio.Task[Outcome]] = set()
        self._closed = False

    async def reload(self, *, asked: bool, digest: str | None = None, force: bool = False) -> Outcome:
        """Make what the files say the next generation, or say why not.

        An attempt on the same files is joined, one on older files is given up. `digest` is what the
        files are; without it they are looked at. `force` makes a new generation whatever they are, and joins
        no attempt that has begun: what that has read besides may be older. Who waits when the process ends is
        told so.
        """
        self._told = digest or self._told
        while True:
            attempt: _Attempt | None = await self._newest(asked=asked, digest=digest, force=force)
            outcome = None
            while attempt is not None:
                await asyncio.wait([attempt.task])
                if attempt.task.cancelled():  # by `close`, and nobody else
                    return self.stopping()
                outcome, attempt = attempt.task.result(), attempt.newer
            if outcome is None:
                return self.stopping()
            if not (asked and outcome.reason in _NOT_TRIED):
                return outcome

    @property
    def is_busy(self) -> bool:
        """Whether an attempt is under way that is not committed, refused or undone yet."""
        return self._current is not None

    async def again(self, digest: str, *, generation: int) -> Outcome | None:
        """Try files of this digest once more, which were refused for another reason than what is in them.

        Without a digest, as they could not be read, it is what they are now. Does nothing and returns None if
        another generation runs, or an attempt is under way. If the files are others by now, the outcome is
        Superseded.
        """
        active = self._reloader.active
        if self.is_busy or active is None or active.number != generation:
            return None
        self._reloader.forget(digest)
        return await self.reload(asked=False, digest=digest or None)

    @property
    def latest(self) -> str:
        """The digest of the files that are being dealt with, or have been dealt with last."""
        active = self._reloader.active
        return self._told or (active.inputs.digest if active is not None else "")

    def stopping(self) -> Outcome:
        """The outcome of an attempt for which nothing was done, as the process ends."""
        return self._outcome(Result.UNCHANGED, "", reason=STOPPING)

    async def close(self) -> None:
        """Undo the attempt that runs, if any, and begin no other: the process ends."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=_CLOSE_SECONDS)

    async def _newest(self, *, asked: bool, digest: str | None, force: bool) -> "_Attempt | None":
        """The attempt on the files as they are, which runs or begins now; None when the process ends."""
        while not self._closed and (current := self._current) is not None:
            if current.has_begun:
                await current.read.wait()
                newest = digest or await self._look(otherwise=current.digest)
                if current is not self._current or self._closed:
                    continue
                if force or newest != current.digest:
                    return self._begin(asked=asked, settled=digest, force=force, instead_of=current)
            current.asked = current.asked or asked
            current.force = current.force or force
            current.settled = digest
            return current
        if self._closed:
            return None
        return self._begin(asked=asked, settled=digest, force=force, instead_of=None)

    def _begin(
        self, *, asked: bool, settled: str | None, force: bool, instead_of: "_Attempt | None"
    ) -> "_Attempt":
        attempt = self._current = _Attempt(asked=asked, settled=settled, read=self._has_read)
        attempt.force = force or (instead_of is not None and instead_of.force)
        attempt.task = asyncio.create_task(self._run(attempt, instead_of), name="reload")
        self._tasks.add(attempt.task)
        attempt.task.add_done_callback(self._tasks.discard)
        if instead_of is not None:
            instead_of.newer = attempt
            instead_of.task.cancel()
        return attempt

    async def _run(self, attempt: "_Attempt", older: "_Attempt | None") -> Outcome:
        if older is not None:
            await older.over.wait()
        attempt.has_begun = True
        outcome = await self._try(attempt)
        await self._finished(outcome, attempt.asked)
        return outcome

    async def _try(self, attempt: "_Attempt") -> Outcome:
        began = self._clock.monotonic()
        try:
            settled = None if attempt.asked else attempt.settled
            outcome = await self._reloader.reload(
                asked=attempt.asked, force=attempt.force, settled=settled, read=attempt.has_read
            )
            if not attempt.asked and await self._is_outdated(outcome, attempt.digest):
                outcome = self._given_up(attempt, began)
            if outcome.result is Result.SUPERSEDED:
                self._told = _NOTHING  # the next files are tried, even if they are what runs
            return outcome
        except asyncio.CancelledError:
            if attempt.newer is None:
                raise
            attempt.task.uncancel()
            return self._given_up(attempt, began)
        finally:
            attempt.read.set()
            attempt.over.set()
            if self._current is attempt:
                self._current = None

    def _given_up(self, attempt: "_Attempt", began: float) -> Outcome:
        self._reloader.forget(attempt.digest)
        seconds = self._clock.monotonic() - began
        return self._outcome(Result.SUPERSEDED, attempt.digest, reason="Superseded", seconds=seconds)

    async def _is_outdated(self, outcome: Outcome, digest: str) -> bool:
        """Whether a refusal is of files that are not there any longer, as they were mended meanwhile.

        Faults that are no longer in the files are not logged. The files that are there now are tried next.
        """
        refused = outcome.result is Result.REFUSED and bool(digest)
        return refused and await self._look(otherwise=digest) != digest

    async def _look(self, *, otherwise: str) -> str:
        """The digest of the files as they are; `otherwise` where that can't be found out, which is told."""
        try:
            digest = await in_thread(self._digest, name="declctl-look")
        except Exception as error:  # noqa: BLE001 - told; the attempt that runs goes on
            self._health.failed(error)
            return otherwise
        self._health.succeeded()
        return digest

    def _has_read(self, digest: str) -> None:
        self._told = digest

    def _outcome(self, result: Result, digest: str, *, reason: str, seconds: float = 0.0) -> Outcome:
        active = self._reloader.active
        number = active.number if active is not None else 0
        return Outcome(result, number, digest, reason=reason, seconds=seconds)


class _Attempt:
    """One attempt. `newer` is the one that it was given up for.

    `settled` is the digest that files had when they had settled, for an attempt that nobody asked for.
    """

    task: asyncio.Task[Outcome]

    def __init__(self, *, asked: bool, settled: str | None, read: Callable[[str], None]) -> None:
        self.asked = asked
        self.settled = settled
        self.force = False
        self._tell = read
        self.has_begun = False
        self.digest = ""
        self.read = asyncio.Event()
        self.over = asyncio.Event()
        self.newer: _Attempt | None = None

    def has_read(self, digest: str) -> None:
        """It is known what it is made of."""
        self.digest = digest
        self.read.set()
        self._tell(digest)


class Triggers:
    """Begins attempts. Used on the machinery loop.

    `active` gives the generation that runs: it is asked each time, as holding one would keep its code
    alive. `watch` None leaves it to the manifest whether files are watched.
    """

    def __init__(  # noqa: PLR0913 - all that it asks, keyword by keyword
        self,
        files: InputFiles,
        attempts: Attempts,
        *,
        active: Callable[[], Generation],
        children: PreflightPool,
        health: FileWatchHealth,
        clock: Clock,
        log: Log,
        watch: bool | None,
    ) -> None:
        self._files = files
        self._attempts = attempts
        self._active = active
        self._children = children
        self._health = health
        self._clock = clock
        self._log = log
        self._watch = watch

    async def files(self) -> None:
        """Make an attempt whenever files have changed and settled, until cancelled."""
        if self._watch is False:
            return
        changes = FileChanges(
            digest=self._files.digest,
            folders=self._files.look_for_folders,
            settle=lambda: self._policy.settle,
            clock=self._clock,
            watch=lambda: self._way,
            last=lambda: self._attempts.latest,
            seen=self._expect,
            blind=self._tell_blind,
            failed=self._health.failed,
            succeeded=self._health.succeeded,
        )
        # Files are looked at while an attempt is made, which is given up if they change again.
        async with asyncio.TaskGroup() as group:
            async for digest in changes:
                group.create_task(self._attempts.reload(asked=False, digest=digest))

    async def hangups(self, hangup: asyncio.Event) -> None:
        """Make an attempt whenever that event is set, until cancelled."""
        while True:
            await hangup.wait()
            hangup.clear()
            await self._attempts.reload(asked=True)

    @property
    def _policy(self) -> ReloadSpec:
        return self._active().plan.reload

    @property
    def _way(self) -> WatchFiles:
        """How files are watched; `--watch` does so even where the manifest says Off."""
        way = self._policy.watch
        return WatchFiles.AUTO if self._watch and way is WatchFiles.OFF else way

    def _tell_blind(self, why: str) -> None:
        advice = "on the node, fs.inotify.max_user_instances may be too low"
        self._log.warning(
            "the system gives no notices of changed files, which are looked at every second instead: "
            + (f"{why}; {advice}" if "Too many open files" in why else why)
        )

    def _expect(self) -> None:
        """What children of the pre-flight need is loaded while the files settle."""
        if self._policy.preflight:
            self._children.warm()
