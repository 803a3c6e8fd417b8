"""What asks for a reload by itself: files that change, and SIGHUP."""

import asyncio
from collections.abc import Callable

from declctl.kit import Clock
from declctl.manifest.model import ReloadSpec, WatchFiles
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.log import Log
from declctl.runtime.reloading.attempts import Attempts
from declctl.runtime.reloading.files import FileChanges, FileWatchHealth
from declctl.runtime.reloading.generation import Generation


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
