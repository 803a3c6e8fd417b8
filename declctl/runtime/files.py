"""Files changed: a reload is asked for.

The operating system says that something happened in a folder; what happened is found by comparing
digests, because that is the only thing that is true for editors, kubelet's link swaps, network
mounts and clocks that stand still. Folders are watched, never files: a file that is replaced takes
its watch with it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from declctl.kit import Clock

_POLL_SECONDS = 1.0
_SAFETY_POLL_SECONDS = 5.0
_LONGEST_SETTLE_SECONDS = 2.0


class FileChanges:
    """Yields once for each settled change of what `digest` covers.

    Files that the digest doesn't cover neither cause nor prolong anything. `folders` is asked again
    after each change, since a new generation may read from others.
    """

    def __init__(
        self,
        *,
        digest: Callable[[], str],
        folders: Callable[[], Sequence[Path]],
        settle: Callable[[], float],
        clock: Clock,
        last: str,
        poll: bool = False,
    ) -> None:
        self._digest = digest
        self._folders = folders
        self._settle = settle
        self._clock = clock
        self._poll = poll
        self._last = last

    async def __aiter__(self) -> AsyncIterator[str]:
        """The digest after each settled change, until cancelled."""
        while True:
            digest = (
                await self._read()
            )  # first: something may have changed while the last change was dealt with
            if digest == self._last:
                await self._something_happened()
                continue
            self._last = await self._settled(digest)
            yield self._last

    async def _settled(self, digest: str) -> str:
        deadline = self._clock.monotonic() + _LONGEST_SETTLE_SECONDS
        while True:
            await self._clock.sleep(self._settle())
            again = await self._read()
            if again == digest or self._clock.monotonic() >= deadline:
                return again
            digest = again

    async def _read(self) -> str:
        return await asyncio.to_thread(self._digest)

    async def _something_happened(self) -> None:
        folders = [folder for folder in self._folders() if folder.is_dir()]
        if self._poll or not folders:
            await self._clock.sleep(_POLL_SECONDS)
            return
        try:
            await _notified(folders)
        except OSError:
            # No watches left (fs.inotify.max_user_watches), or a folder went away meanwhile:
            # looking still works.
            await self._clock.sleep(_POLL_SECONDS)


async def _notified(folders: Sequence[Path]) -> None:
    from watchfiles import awatch  # a compiled extension that only a running controller needs

    stop = asyncio.Event()
    changes = awatch(
        *folders,
        watch_filter=None,
        recursive=False,
        step=20,
        debounce=100,
        rust_timeout=int(_SAFETY_POLL_SECONDS * 1000),
        yield_on_timeout=True,
        stop_event=stop,
    )
    try:
        async with aclosing(changes):
            async for _ in changes:
                return
    finally:
        stop.set()
