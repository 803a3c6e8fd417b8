"""A folder whose files are watched while a test changes them, on a clock that the test moves."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from declctl.errors import ManifestErrors
from declctl.kit import ManualClock
from declctl.manifest.model import WatchFiles
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.runtime.reloading import files as looking
from declctl.runtime.reloading.files import FileChanges

T = TypeVar("T")


class Watched:
    """Files that are watched while a test saves them in its own way; each change that is told is read.

    `folders` None are those in which files are looked for. Time stands still unless `pass_time` moves it, so
    that a save may take as long as it likes. Files are read on the loop, so that nothing is under way when
    time passes.
    """

    def __init__(
        self, manifest: Path, folders: Sequence[Path] | None = None, watch: WatchFiles = WatchFiles.AUTO
    ) -> None:
        self.files = InputFiles(str(manifest))
        self.clock = ManualClock()
        self.told: list[str] = []
        self.read: list[Inputs] = []
        self._folders = folders
        self._watch = watch
        self.last = self.files.digest()

    async def watch(self) -> None:
        """Keep what is told, until cancelled."""
        changes = FileChanges(
            digest=self.files.digest,
            folders=self.files.look_for_folders if self._folders is None else lambda: self._folders or (),
            settle=lambda: 0.3,
            clock=self.clock,
            last=lambda: self.last,
            watch=lambda: self._watch,
        )
        async with aclosing(aiter(changes)) as stream:
            async for digest in stream:
                self.last = digest
                self.told.append(digest)
                with suppress(ManifestErrors, OSError):  # who tries it is told
                    self.read.append(self.files.read())

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in small steps, in which whoever reads files in a thread gets on."""
        for _ in range(round(seconds / 0.1)):
            await self.clock.advance(0.1)

    async def noticed(self) -> None:
        """Return when somebody waits for the files to settle, or for the next look at them."""
        if self.files.digest() != self.last:
            async with asyncio.timeout(10):
                while self.clock.next_wake is None:
                    await asyncio.sleep(0.005)

    def saved(self, *steps: Callable[[], object], pause: float = 0.1) -> list[str]:
        """What is told while these steps are taken, `pause` seconds apart, and in the time after them."""

        async def scenario() -> None:
            for step in steps:
                step()
                await self.noticed()
                await self.pass_time(pause)
            await self.pass_time(3.0)

        self.run(scenario)
        return self.told

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Watch while a scenario, which is a coroutine function, is played."""

        async def play() -> None:
            task = asyncio.create_task(self.watch())
            await self.clock.settle()
            await scenario()
            task.cancel()
            await asyncio.wait([task])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "to_thread", inline)
            patch.setattr(looking, "in_thread", inline)
            asyncio.run(play())


async def inline(call: Callable[..., T], *arguments: object, name: str = "") -> T:
    """`asyncio.to_thread` and `in_thread` without a thread."""
    return call(*arguments)
