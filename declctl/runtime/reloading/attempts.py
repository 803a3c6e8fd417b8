"""Attempts to reload: their triggers, their order, and their retries.

`Triggers` begins an attempt when files change or SIGHUP comes; `declctl reload` begins one too. `Attempts`
runs one at a time, and the newest files win: until its commit, an attempt can be given up for newer files.
Everything that it has staged is undone before the newer attempt begins. A caller that waits for the old one
receives the outcome of the newer one. `ReloadRetries` retries attempts that were refused for a reason outside
of the files.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from declctl.kit import Clock, set_within
from declctl.manifest.model import ReloadSpec, WatchFiles
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.log import Log
from declctl.runtime.reasons import RETRIED
from declctl.runtime.reloading.changes import STOPPING, Outcome, Result
from declctl.runtime.reloading.files import FileChanges, FileWatchHealth
from declctl.runtime.threads import in_thread

if TYPE_CHECKING:  # the status imports this module, and needs nothing of a reload
    from declctl.runtime.reloading.reload import Reloader

FIRST_RETRY_SECONDS = 10.0  # tests shorten it
_LONGEST_RETRY_SECONDS = 300.0
_NOT_TRIED = ("AttemptedBefore", "Superseded")  # reasons of attempts that have not tried the files
_MOST_ATTEMPTS = 10  # for one user who asks, while files change in each attempt
_NOTHING = "nothing"  # stands for a digest, and equals none
_CLOSE_SECONDS = 10.0  # the longest wait for the undoing of an attempt when the process ends


class Triggers:
    """Begins attempts when files change or SIGHUP comes. Used on the machinery loop.

    `policy` returns `spec.reload` of the active generation. `watch` is the option `--watch` or `--no-watch`;
    with None the manifest decides whether files are watched.
    """

    def __init__(  # noqa: PLR0913 - its parts, keyword by keyword
        self,
        files: InputFiles,
        attempts: "Attempts",
        *,
        policy: Callable[[], ReloadSpec],
        children: PreflightPool,
        health: FileWatchHealth,
        clock: Clock,
        log: Log,
        watch: bool | None,
    ) -> None:
        self._files = files
        self._attempts = attempts
        self._policy = policy
        self._children = children
        self._health = health
        self._clock = clock
        self._log = log
        self._watch = watch

    async def files(self) -> None:
        """Begin an attempt whenever files have changed and settled, until cancelled."""
        if self._watch is False:
            return
        changes = FileChanges(
            digest=self._files.digest,
            folders=self._files.look_for_folders,
            settle=lambda: self._policy().settle,
            clock=self._clock,
            watch=self._way,
            last=lambda: self._attempts.latest,
            seen=self._warm_preflight,
            blind=self._warn_of_polling,
            failed=self._health.failed,
            succeeded=self._health.succeeded,
        )
        # Files are watched during an attempt too: it is given up if they change again.
        async with asyncio.TaskGroup() as group:
            async for digest in changes:
                group.create_task(self._attempts.reload(asked=False, digest=digest))

    async def hangups(self, hangup: asyncio.Event) -> None:
        """Make an attempt whenever the event is set, until cancelled."""
        while True:
            await hangup.wait()
            hangup.clear()
            await self._attempts.reload(asked=True)

    def _way(self) -> WatchFiles:
        """The way to watch files. `--watch` takes precedence over `watch: Off` in the manifest."""
        way = self._policy().watch
        return WatchFiles.AUTO if self._watch and way is WatchFiles.OFF else way

    def _warn_of_polling(self, why: str) -> None:
        advice = "on the node, fs.inotify.max_user_instances may be too low"
        self._log.warning(
            "the system gives no notices of changed files, which are looked at every second instead: "
            + (f"{why}; {advice}" if "Too many open files" in why else why)
        )

    def _warm_preflight(self) -> None:
        # The fork server loads while the files settle, so that the edit does not wait for it.
        if self._policy().preflight:
            self._children.warm()


@dataclass(eq=False)
class _Attempt:
    """One attempt. `force` and `settled` have no effect after it has begun.

    `asked` may become True until its outcome is reported.
    """

    asked: bool  # a user waits for its outcome
    force: bool  # make a new generation also of unchanged files
    settled: str | None  # the digest of the settled files, for an attempt that no user asked for
    has_begun: bool = False
    digest: str = ""  # of the files that it has read
    read: asyncio.Event = field(default_factory=asyncio.Event)  # `digest` is known, or never will be
    over: asyncio.Event = field(default_factory=asyncio.Event)  # committed, refused or undone
    newer: "_Attempt | None" = None  # for which this one was given up
    task: asyncio.Task[Outcome] = field(init=False)


class Attempts:
    """Runs one attempt of a reloader at a time. Used on the machinery loop.

    `digest` returns the digest of the present files; it blocks, and is called in a daemon thread. `finished`
    is awaited once for each outcome, with True if a user asked for the attempt. `health` counts failed
    digests.
    """

    def __init__(
        self,
        reloader: "Reloader",
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
        self._latest = ""  # the digest of the files of the current attempt, or of the last one
        self._tasks: set[asyncio.Task[Outcome]] = set()  # attempts under way, until `finished` has returned
        self._closed = False

    async def reload(self, *, asked: bool, digest: str | None = None, force: bool = False) -> Outcome:
        """Make the next generation of the present files; return the outcome.

        If an attempt on the same files runs, its outcome is returned; an attempt on older files is given up.
        `digest` is that of the present files; without it they are read. `force` makes a new generation also
        of unchanged files, and joins no attempt that has begun: that may have read older versions of other
        files. When the process ends, the outcome has the reason `Stopping`.
        """
        self._latest = digest or self._latest
        outcome: Outcome | None = None
        for _ in range(_MOST_ATTEMPTS):
            attempt: _Attempt | None = await self._newest(asked=asked, digest=digest, force=force)
            outcome = None
            while attempt is not None:
                await asyncio.wait([attempt.task])
                if attempt.task.cancelled():  # only `close` cancels an attempt for good
                    return self.stopping()
                outcome, attempt = attempt.task.result(), attempt.newer
            if outcome is None:
                return self.stopping()
            # A user who joined an attempt that has not tried the files gets another attempt.
            if not (asked and outcome.reason in _NOT_TRIED):
                return outcome
        assert outcome is not None
        return outcome

    async def until_closed(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run work that may commit a generation. It is undone if the process ends: `stopping` is returned."""
        task = asyncio.create_task(work, name="rollback")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task])
        return self.stopping() if task.cancelled() else task.result()

    @property
    def is_busy(self) -> bool:
        """Whether an attempt is not committed, refused or undone yet."""
        return self._current is not None

    async def idle(self) -> None:
        """Wait until no attempt is under way."""
        while self._current is not None:
            await self._current.over.wait()

    async def again(self, digest: str, *, generation: int) -> Outcome | None:
        """Retry files that were refused for a reason outside of them.

        `digest` is empty if the files were unreadable. Returns None, without an attempt, if `generation` is
        not active any more, or an attempt is under way. If the files have another digest now, the outcome is
        Superseded.
        """
        if self.is_busy or self._reloader.running[0] != generation:
            return None
        self._reloader.forget(digest)
        return await self.reload(asked=False, digest=digest or None)

    @property
    def latest(self) -> str:
        """The digest of the files of the current attempt, or of the last one."""
        return self._latest or self._reloader.running[1]

    def stopping(self) -> Outcome:
        """The outcome of an attempt that is not made because the process ends."""
        return Outcome(Result.UNCHANGED, self._reloader.running[0], "", reason=STOPPING)

    async def close(self) -> None:
        """Undo the current attempt, and begin no other: the process ends."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=_CLOSE_SECONDS)

    async def _newest(self, *, asked: bool, digest: str | None, force: bool) -> _Attempt | None:
        """The attempt on the present files, joined or begun now; None when the process ends."""
        while not self._closed and (current := self._current) is not None:
            if current.has_begun:
                await current.read.wait()
                newest = digest or await self._look(otherwise=current.digest)
                # During both waits the attempt may have ended, or another one may have begun.
                if current is not self._current or self._closed:
                    continue
                if force or newest != current.digest:
                    return self._begin(asked=asked, settled=digest, force=force, instead_of=current)
            # It has not read other files than these, so it serves this caller too.
            current.asked = current.asked or asked
            current.force = current.force or force
            current.settled = digest
            return current
        if self._closed:
            return None
        return self._begin(asked=asked, settled=digest, force=force, instead_of=None)

    def _begin(
        self, *, asked: bool, settled: str | None, force: bool, instead_of: _Attempt | None
    ) -> _Attempt:
        # If the older attempt was forced, the newer one has to be forced too.
        forced = force or (instead_of is not None and instead_of.force)
        attempt = self._current = _Attempt(asked, forced, settled)
        attempt.task = asyncio.create_task(self._run(attempt, instead_of), name="reload")
        self._tasks.add(attempt.task)
        attempt.task.add_done_callback(self._tasks.discard)
        if instead_of is not None:
            instead_of.newer = attempt
            instead_of.task.cancel()
        return attempt

    async def _run(self, attempt: _Attempt, older: _Attempt | None) -> Outcome:
        if older is not None:
            await older.over.wait()
        attempt.has_begun = True
        outcome = await self._try(attempt)
        await self._finished(outcome, attempt.asked)
        return outcome

    async def _try(self, attempt: _Attempt) -> Outcome:
        began = self._clock.monotonic()

        def read(digest: str) -> None:
            self._latest = attempt.digest = digest
            attempt.read.set()

        def given_up() -> Outcome:
            self._reloader.forget(attempt.digest)
            number, seconds = self._reloader.running[0], self._clock.monotonic() - began
            return Outcome(Result.SUPERSEDED, number, attempt.digest, reason="Superseded", seconds=seconds)

        try:
            outcome = await self._reloader.reload(
                asked=attempt.asked,
                force=attempt.force,
                settled=None if attempt.asked else attempt.settled,
                read=read,
            )
            # Files that have changed since were read in the middle of an edit. Their refusal is not logged;
            # the changed files are tried next, for the file watch or for the user who asked.
            refused = outcome.result is Result.REFUSED and bool(attempt.digest)
            if refused and await self._look(otherwise=attempt.digest) != attempt.digest:
                outcome = given_up()
            if outcome.result is Result.SUPERSEDED:
                self._latest = _NOTHING  # the next files are tried, also those of the active generation
            return outcome
        except asyncio.CancelledError:
            if attempt.newer is None:
                raise
            attempt.task.uncancel()  # cancelled for a newer attempt, whose outcome the callers receive
            return given_up()
        finally:
            attempt.read.set()
            attempt.over.set()
            if self._current is attempt:
                self._current = None

    async def _look(self, *, otherwise: str) -> str:
        """The digest of the present files; `otherwise` if they can't be read."""
        try:
            digest = await in_thread(self._digest, name="declctl-look")
        except Exception as error:  # noqa: BLE001 - counted and logged; the current attempt goes on
            self._health.failed(error)
            return otherwise
        self._health.succeeded()
        return digest


class RetryStatus(msgspec.Struct, frozen=True):
    """A refused reload that will be retried."""

    reason: str  # of the refusal
    retries: int  # so far
    next_in_seconds: float


@dataclass(slots=True)
class _Refusal:
    """The refusal of the last attempt, for a reason of `RETRIED`."""

    outcome: Outcome
    retries: int  # of these files, so far
    due: float  # the time of the next retry, on the clock


class ReloadRetries:
    """Retries a refused reload after 10 s, 20 s, … 5 min, until it or a newer one has another outcome.

    Only reasons outside of the files count (`RETRIED`). Used on the machinery loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusal: _Refusal | None = None  # waits for its retry
        self._changed = asyncio.Event()  # set when `_refusal` was replaced
        self.made = 0  # retries since the start of the process

    def status(self) -> RetryStatus | None:
        """The refused reload that waits for its retry; None if there is none."""
        if self._refusal is None:
            return None
        left = max(0.0, self._refusal.due - self._clock.monotonic())
        return RetryStatus(self._refusal.outcome.reason, self._refusal.retries, round(left, 1))

    def record(self, outcome: Outcome) -> bool:
        """Record the outcome of an attempt. Returns whether it has to be reported.

        A retry that was refused for the same reason as before is counted, and not reported again.
        """
        before = self._refusal
        is_new = before is None or outcome.back or _cause(before.outcome) != _cause(outcome)
        if outcome.result is Result.SUPERSEDED or outcome.reason == "AttemptedBefore":
            return is_new  # the files were not tried
        if outcome.back and outcome.result is Result.REFUSED:
            return is_new  # a rollback is not retried, and says nothing of the files
        if outcome.result is not Result.REFUSED or outcome.reason not in RETRIED:
            self._refusal = None
        else:
            is_same = before is not None and before.outcome.bundle_hash == outcome.bundle_hash
            retries = before.retries + 1 if before is not None and is_same else 0
            delay = min(_LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(retries, 16))
            self._refusal = _Refusal(outcome, retries, self._clock.monotonic() + delay)
        self._changed.set()
        return is_new

    async def run(self, attempts: Attempts) -> None:
        """Retry the refused reload whenever it is due, until cancelled."""
        while True:
            self._changed.clear()
            refusal = self._refusal
            if refusal is None:
                await self._changed.wait()
                continue
            # A newer refusal may be due earlier than this one.
            left = refusal.due - self._clock.monotonic()
            if await set_within(self._changed, left, clock=self._clock):
                continue
            # A current attempt has newer files: its outcome decides whether this one is retried.
            await attempts.idle()
            if self._refusal is not refusal:
                continue
            outcome = await attempts.again(refusal.outcome.bundle_hash, generation=refusal.outcome.generation)
            if outcome is not None:
                self.made += 1
            if self._refusal is refusal:  # its files or its generation are gone
                self._refusal = None


def _cause(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.bundle_hash, outcome.reason, outcome.message
