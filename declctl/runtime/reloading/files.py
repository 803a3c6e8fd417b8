"""Files changed: a reload is asked for.

The operating system says that something happened in a folder; what happened is found by comparing
digests, because that is the only thing that is true for editors, kubelet's link swaps, network
mounts and clocks that stand still. Folders are watched, never files: a file that is replaced takes
its watch with it.
"""

import asyncio
import errno
import math
import os
import stat
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from declctl.kit import Clock
from declctl.kit.files import is_exhausted
from declctl.kit.text import one_line
from declctl.manifest.model import WatchFiles
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

_POLL_SECONDS = 1.0
SAFETY_POLL_SECONDS = 5.0  # between two looks without a notice; tests make it long
_LEAST_LIMIT_SECONDS = 2.0  # of the wait for files that never rest
_QUIET_TIMES = 4  # the same as a multiple of `settle`, so that the quiet time that was asked for is kept
_FIRST_PAUSE_SECONDS = 1.0  # after a look that failed; twice as long after each further one
_LONGEST_PAUSE_SECONDS = 16.0
_SILENCE_SECONDS = 60.0  # without a fault, until the log says the same fault again
_MOST_FAULTS = 100  # whose last moment is remembered
_THREAD = "declctl-look"

_Folder = tuple[Path, int, int]  # with its device and its number there
_Notice = AbstractSet[tuple[object, str]]  # what has happened, and to which path


@dataclass(frozen=True, slots=True)
class FileWatchStatus:
    """Whether changed files can be noticed. `error` says why not, `failures` counts the looks that failed.

    `error_type` is the class of `error`.
    """

    failures: int = 0
    error: str | None = None
    error_type: str | None = None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"failures": self.failures, "error": self.error, "errorType": self.error_type}


class FileWatchHealth:
    """Counts looks at files that failed, and logs each distinct fault once, until it stays away for a minute.

    Used on the machinery loop.
    """

    def __init__(self, *, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._failures = 0  # in the life of the process
        self._in_a_row = 0  # since a look has succeeded
        self._last = FileWatchStatus()
        self._failed_at: dict[str, float] = {}  # on the clock, by fault
        self._has_logged = False  # a fault, since a look has succeeded

    def failed(self, error: Exception) -> None:
        """A look has failed."""
        self._failures += 1
        self._in_a_row += 1
        what, now = _in_words(error), self._clock.monotonic()
        self._last = FileWatchStatus(self._failures, what, type(error).__name__)
        if len(self._failed_at) >= _MOST_FAULTS:
            self._failed_at.clear()
        before, self._failed_at[what] = self._failed_at.get(what, -math.inf), now
        if now - before < _SILENCE_SECONDS:
            return
        self._has_logged = True
        again = f"it is tried again, at the latest every {_LONGEST_PAUSE_SECONDS:g} s"
        if isinstance(error, OSError) or is_exhausted(error):
            lacks = (
                "; raise the limits of the process, or see what uses them up" if is_exhausted(error) else ""
            )
            self._log.warning(f"files can't be looked at, so that no edit is noticed: {what}; {again}{lacks}")
        else:
            self._log.error(
                "this is a fault of declctl itself, please report it: files can't be looked at, so that no "
                f"edit is noticed: {what}; {again}",
                traceback="".join(traceback.format_exception(error)),
            )

    def succeeded(self) -> None:
        """Files have been looked at."""
        if self._has_logged:
            times = "once" if self._in_a_row == 1 else f"{self._in_a_row} times"
            self._log.info(f"files are looked at again, after that has failed {times}")
        self._in_a_row, self._has_logged = 0, False
        self._last = FileWatchStatus(self._failures)

    def status(self) -> FileWatchStatus:
        """How it was at the last look."""
        return self._last


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
        failed: Callable[[Exception], None] = lambda _: None,
        succeeded: Callable[[], None] = lambda: None,
    ) -> None:
        self._digest = digest
        self._folders = folders
        self._settle = settle
        self._clock = clock
        self._watch = watch
        self._seen = seen
        self._blind: Callable[[str], None] | None = blind
        self._last = last
        self._failed = failed
        self._succeeded = succeeded

    async def __aiter__(self) -> AsyncGenerator[str]:
        """The digest after each settled change, until cancelled."""
        pause = _FIRST_PAUSE_SECONDS
        async with aclosing(Notices()) as notices:
            while True:
                try:
                    settled = await self._next(notices)
                except Exception as error:  # noqa: BLE001 - told; what runs goes on without looks
                    self._failed(error)
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                    continue
                pause = _FIRST_PAUSE_SECONDS
                self._succeeded()
                if settled is not None:
                    yield settled

    async def _next(self, notices: "Notices") -> str | None:
        """Look, and wait for the files to settle or for something to happen; None if nothing has changed."""
        if self._watch() is WatchFiles.OFF:
            await notices.aclose()
            await self._clock.sleep(_POLL_SECONDS)  # a reload that was asked for may turn it on
            return None
        # Looked at first: something may have changed while the last change was dealt with.
        digest = await self._read()
        if digest == self._last():
            await self._something_happened(notices)
            return None
        await self._tell_seen()
        settled = await self._settled(digest)
        return settled if settled != self._last() else None

    async def _tell_seen(self) -> None:
        try:
            await asyncio.to_thread(self._seen)
        except Exception as error:  # noqa: BLE001 - it only prepares: the change is told all the same
            self._failed(error)

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

    async def _something_happened(self, notices: "Notices") -> None:
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
                found.append(folder_id(path))
        return tuple(found)


class Notices:
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
        except Exception:
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
            rust_timeout=int(SAFETY_POLL_SECONDS * 1000),
            yield_on_timeout=True,
            stop_event=self._stop,
        )


def folder_id(path: Path) -> _Folder:
    """Identifies a folder: one that is moved or replaced is another one. Raises OSError."""
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(path))
    return path, found.st_dev, found.st_ino


def _is_of(notice: _Notice, folders: Sequence[Path]) -> bool:
    """Whether something has happened to one of these folders itself, by whatever name."""
    real = {os.path.realpath(path) for path in folders}
    return not real.isdisjoint(os.path.realpath(path) for _, path in notice)


async def _following(changes: AsyncGenerator[_Notice]) -> _Notice:
    try:
        return await anext(changes, frozenset())
    except RuntimeError as error:  # how watchfiles tells that the system has no inotify instance left
        raise OSError(str(error)) from error
    except ExceptionGroup as group:  # what its task group makes of an error in its thread
        raise OSError(_in_words(group.exceptions[0])) from group


def _in_words(error: Exception) -> str:
    """An error on one line, with its class where its text does not say what it is."""
    text = str(error)
    return one_line(
        text if isinstance(error, OSError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
    )
