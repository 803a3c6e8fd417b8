"""The watch on the files of a manifest: each settled change yields a digest.

The operating system gives notice of an event in a folder. The comparison of digests shows whether a file has
changed, which holds for editors, links that the kubelet moves, network mounts and clocks that stand still.
Folders are watched, and no files: the watch on a file ends when the file is replaced.
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
from pathlib import Path

import msgspec

from declctl.kit import Clock
from declctl.kit.files import is_exhausted
from declctl.kit.text import one_line
from declctl.manifest.model import WatchFiles
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

_POLL_SECONDS = 1.0
SAFETY_POLL_SECONDS = 5.0  # between two looks without a notice; tests make it long
_LEAST_LIMIT_SECONDS = 2.0  # the longest wait for files that never settle is at least this,
_QUIET_TIMES = 4  # and at least so many times `settle`
_FIRST_PAUSE_SECONDS = 1.0  # after a look that failed; doubled after each further one
_LONGEST_PAUSE_SECONDS = 16.0
_SILENCE_SECONDS = 60.0  # a fault is logged again if it has not occurred for so long
_MOST_FAULTS = 100  # whose last time is remembered
_THREAD = "declctl-look"

_Folder = tuple[Path, int, int]  # path, device, inode
_Notice = AbstractSet[tuple[object, str]]  # kinds of events with their paths


class FileWatchStatus(msgspec.Struct, frozen=True):
    """The health of the watch on files."""

    failures: int = 0  # looks that failed, since the start of the process
    error: str | None = None  # of the last look; None if it succeeded
    error_type: str | None = None  # the class of `error`


class FileWatchHealth:
    """Counts and logs looks at files that failed. Used on the machinery loop.

    A fault is logged once, and again only after a minute without it.
    """

    def __init__(self, *, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._failures = 0  # since the start of the process
        self._in_a_row = 0  # failures since the last success
        self._last = FileWatchStatus()
        self._failed_at: dict[str, float] = {}  # the last time of each fault, on the clock
        self._has_logged = False  # a fault since the last success

    def failed(self, error: Exception) -> None:
        """Count and log a look that has failed."""
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
        """Record a look that has succeeded; log the first one after a logged fault."""
        if self._has_logged:
            times = "once" if self._in_a_row == 1 else f"{self._in_a_row} times"
            self._log.info(f"files are looked at again, after that has failed {times}")
        self._in_a_row, self._has_logged = 0, False
        self._last = FileWatchStatus(self._failures)

    def status(self) -> FileWatchStatus:
        """The health at the last look."""
        return self._last


class FileChanges:
    """Yields the new digest after each settled change of files. Iterated on the machinery loop.

    - `digest` returns the digest of the present files, `folders` the folders to watch. Both block, and are
      called in daemon threads: on a network mount they may hang, and must not keep the process from ending.
    - `settle` returns the seconds for which files have to stay the same. Files that never do are yielded
      after four times that, but not before 2 s.
    - `watch` returns the way to watch. Like `settle`, it is called each time, as a reload may change it.
    - `last` returns the digest that was handled last. It is called after `digest`, when the consumer has
      updated it.
    - `seen` is called in a thread when a change is first seen, before it settles.
    - `blind` is called once, with the reason, if the system gives no notices and files are polled instead.
    - `failed` and `succeeded` are called after each look.
    """

    def __init__(  # noqa: PLR0913 - its callbacks, keyword by keyword
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
                except Exception as error:  # noqa: BLE001 - counted and logged; the next look comes later
                    self._failed(error)
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                    continue
                pause = _FIRST_PAUSE_SECONDS
                self._succeeded()
                if settled is not None:
                    yield settled

    async def _next(self, notices: "Notices") -> str | None:
        """Look once: return the digest of a settled change; else wait for a notice, and return None."""
        if self._watch() is WatchFiles.OFF:
            await notices.aclose()
            await self._clock.pause(_POLL_SECONDS)  # a reload by a user may turn the watch on
            return None
        # Before the wait: files may have changed while the last change was handled.
        digest = await self._read()
        if digest == self._last():
            await self._something_happened(notices)
            return None
        await self._call_seen()
        settled = await self._settled(digest)
        return settled if settled != self._last() else None

    async def _call_seen(self) -> None:
        try:
            await asyncio.to_thread(self._seen)
        except Exception as error:  # noqa: BLE001 - it only prepares: the change is yielded all the same
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
            await self._clock.pause(_POLL_SECONDS)
            return
        try:
            await notices.next(folders)
        except OSError as fault:
            # The limits of inotify are reached (fs.inotify.max_user_instances, max_user_watches), or a folder
            # is gone. Polling still works.
            again = await in_thread(self._identified, name=_THREAD)
            if self._blind is not None and len(again) == len(folders):
                self._blind(str(fault))
                self._blind = None
            await self._clock.pause(_POLL_SECONDS)

    def _identified(self) -> tuple[_Folder, ...]:
        """The folders that exist, each with its device and inode."""
        found: list[_Folder] = []
        for path in self._folders():
            with suppress(OSError):  # it was removed just now
                found.append(folder_id(path))
        return tuple(found)


class Notices:
    """The operating system's notices of events in some folders. None is lost between two calls of `next`."""

    def __init__(self) -> None:
        self._watched: tuple[_Folder, ...] = ()  # the folders of `_changes`
        self._stop = asyncio.Event()  # ends `_changes`
        self._changes: AsyncGenerator[_Notice] | None = None  # None while nothing is watched
        self._coming: asyncio.Task[_Notice] | None = None  # waits for the next notice, over several calls

    async def next(self, watched: tuple[_Folder, ...]) -> None:
        """Wait for an event in these folders, but not for ever; raises OSError if they can't be watched."""
        folders = tuple(path for path, *_ in watched)
        if self._changes is None or watched != self._watched:
            await self.aclose()
            self._watched, self._changes = watched, self._watch(folders)
            self._coming = asyncio.create_task(_following(self._changes))
            await asyncio.sleep(0)
            return  # there is no notice of earlier events: the caller has to look again
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
            # A folder was removed or made: its watch is gone, although a new folder may look the same.
            await self.aclose()

    async def aclose(self) -> None:
        """End the watch."""
        changes, coming = self._changes, self._coming
        self._changes = self._coming = None
        self._stop.set()
        if coming is not None:
            await asyncio.wait([coming])
            coming.exception()  # retrieved, so that asyncio does not log it
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
    """Whether one of these folders itself, also under another path, is in the notice."""
    real = {os.path.realpath(path) for path in folders}
    return not real.isdisjoint(os.path.realpath(path) for _, path in notice)


async def _following(changes: AsyncGenerator[_Notice]) -> _Notice:
    try:
        return await anext(changes, frozenset())
    except RuntimeError as error:  # watchfiles raises this if there is no inotify instance left
        raise OSError(str(error)) from error
    except ExceptionGroup as group:  # from the task group of watchfiles
        raise OSError(_in_words(group.exceptions[0])) from group


def _in_words(error: Exception) -> str:
    """An error on one line; with its class, unless it is an OSError with a text."""
    text = str(error)
    return one_line(
        text if isinstance(error, OSError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
    )
