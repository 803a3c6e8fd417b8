"""Files changed: a reload is asked for.

The operating system says that something happened in a folder; what happened is found by comparing
digests, because that is the only thing that is true for editors, kubelet's link swaps, network
mounts and clocks that stand still. Folders are watched, never files: a file that is replaced takes
its watch with it.
"""

import asyncio
import errno
import stat
from collections.abc import AsyncGenerator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from pathlib import Path

from declctl.kit import Clock
from declctl.manifest.model import WatchFiles
from declctl.runtime.threads import in_thread

_POLL_SECONDS = 1.0
_SAFETY_POLL_SECONDS = 5.0
_LEAST_LIMIT_SECONDS = 2.0  # of the wait for files that never rest
_QUIET_TIMES = 4  # the same as a multiple of `settle`, so that the quiet time that was asked for is kept
_THREAD = "declctl-look"

_Folder = tuple[Path, int, int]  # with its device and its number there
_Notice = AbstractSet[tuple[object, str]]  # what has happened, and to which path


class FileChanges:
    """Yields once for each settled change of what `digest` covers.

    Files that the digest doesn't cover neither cause nor prolong anything. `folders`, `settle` and
    `watch` are asked again and again, since a new generation may say something else. `digest` and `folders`
    look at files, and are called in a daemon thread: on a network mount they may hang, and then neither the
    loop nor the end of the process must. `last` says what has been dealt with, or is being: whoever is told a
    digest remembers it before asking for the next. Files that are never quiet for `settle` seconds are told
    after four times that long, or after two seconds, whichever is later. `seen` is called, in a thread, when
    a change is first seen, which then has to settle. `blind` is told once, and why, if the system gives no
    notices.
    """

    def __init__(  # noqa: PLR0913 - what it asks and tells, keyword by keyword
        self,
        *,
        digest: Callable[[], str],
        folders: Callable[[], Sequence[Path]],
        settle: Callable[[], float],
        clock: Clock,
        last: Callable[[], str],
        watch: Callable[[], WatchFiles] = lambda: WatchFiles.AUTO,
        seen: Callable[[], None] = lambda: None,
        blind: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._digest = digest
        self._folders = folders
        self._settle = settle
        self._clock = clock
        self._watch = watch
        self._seen = seen
        self._blind: Callable[[str], None] | None = blind
        self._last = last

    async def __aiter__(self) -> AsyncGenerator[str]:
        """The digest after each settled change, until cancelled."""
        async with aclosing(_Notices()) as notices:
            while True:
                if self._watch() is WatchFiles.OFF:
                    await notices.aclose()
                    await self._clock.sleep(_POLL_SECONDS)  # a reload that was asked for may turn it on
                    continue
                # Looked at first: something may have changed while the last change was dealt with.
                digest = await self._read()
                if digest == self._last():
                    await self._something_happened(notices)
                    continue
                await asyncio.to_thread(self._seen)
                settled = await self._settled(digest)
                if settled != self._last():
                    yield settled

    async def _settled(self, digest: str) -> str:
        limit = max(_LEAST_LIMIT_SECONDS, _QUIET_TIMES * self._settle())
        deadline = self._clock.monotonic() + limit
        while True:
            left = deadline - self._clock.monotonic()
            await self._clock.sleep(min(self._settle(), left))
            again = await self._read()
            if again == digest or self._clock.monotonic() >= deadline:
                return again
            digest = again

    async def _read(self) -> str:
        return await in_thread(self._digest, name=_THREAD)

    async def _something_happened(self, notices: "_Notices") -> None:
        folders = await in_thread(self._identified, name=_THREAD)
        if self._watch() is WatchFiles.POLL or not folders:
            await notices.aclose()
            await self._clock.sleep(_POLL_SECONDS)
            return
        try:
            await notices.next(folders)
        except OSError as fault:
            # Nothing left to watch with (fs.inotify.max_user_instances, max_user_watches), or a folder
            # went away meanwhile: looking still works.
            again = await in_thread(self._identified, name=_THREAD)
            if self._blind is not None and len(again) == len(folders):
                self._blind(str(fault))
                self._blind = None
            await self._clock.sleep(_POLL_SECONDS)

    def _identified(self) -> tuple[_Folder, ...]:
        """The folders that are there, each with what it is."""
        found: list[_Folder] = []
        for path in self._folders():
            with suppress(OSError):  # it went away this moment
                found.append(_folder(path))
        return tuple(found)


class _Notices:
    """The operating system's notices about some folders, none lost between two looks."""

    def __init__(self) -> None:
        self._watched: tuple[_Folder, ...] = ()
        self._stop = asyncio.Event()
        self._changes: AsyncGenerator[_Notice] | None = None
        self._coming: asyncio.Task[_Notice] | None = None

    async def next(self, watched: tuple[_Folder, ...]) -> None:
        """Return when something may have happened in these folders, or after a while; raises OSError."""
        folders = tuple(path for path, *_ in watched)
        if self._changes is None or watched != self._watched:
            await self.aclose()
            self._watched, self._changes = watched, self._watch(folders)
            self._coming = asyncio.create_task(_following(self._changes))
            await asyncio.sleep(0)
            return  # what happened before the watch began is not told: whoever asks has to look again
        if self._coming is None:
            self._coming = asyncio.create_task(_following(self._changes))
        try:
            notice = await asyncio.shield(self._coming)
        except OSError:
            self._coming = None
            await self.aclose()
            raise
        self._coming = None
        if await in_thread(lambda: _is_of(notice, folders), name=_THREAD):
            # A folder itself went away or came: the watch has gone with it, and a new one may look the same.
            await self.aclose()

    async def aclose(self) -> None:
        """Watch no more."""
        changes, coming = self._changes, self._coming
        self._changes = self._coming = None
        self._stop.set()
        if coming is not None:
            await asyncio.wait([coming])
            coming.exception()  # looked at: nobody else does
        if changes is not None:
            await changes.aclose()

    def _watch(self, folders: tuple[Path, ...]) -> AsyncGenerator[_Notice]:
        from watchfiles import awatch  # a compiled extension that only a running controller needs

        self._stop = asyncio.Event()
        return awatch(
            *folders,
            watch_filter=None,
            recursive=False,
            step=20,
            debounce=100,
            rust_timeout=int(_SAFETY_POLL_SECONDS * 1000),
            yield_on_timeout=True,
            stop_event=self._stop,
        )


def _folder(path: Path) -> _Folder:
    """A folder that is moved, or to which a link leads no longer, is another one; raises OSError."""
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(path))
    return path, found.st_dev, found.st_ino


def _is_of(notice: _Notice, folders: Sequence[Path]) -> bool:
    """Whether something has happened to one of these folders itself, by whatever name."""
    return not {path.resolve() for path in folders}.isdisjoint(Path(path).resolve() for _, path in notice)


async def _following(changes: AsyncGenerator[_Notice]) -> _Notice:
    try:
        return await anext(changes, frozenset())
    except RuntimeError as error:  # how watchfiles tells that the system has no inotify instance left
        raise OSError(str(error)) from error
