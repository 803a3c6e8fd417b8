"""`state` of a manifest: what caches have and handlers have still to do, on disk for the next process.

On the loop, a change costs an append to a queue; a thread writes what waits (`StateWriter`). Five times a
second, and before the end drops what waits, a *mark* says what each handler has still to do: a file is read
to its last mark. So `caches, with the old state of what was pending` is what a handler knows. A *moment* is
all of that at once, with which a file begins.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from declctl.errors import StateUnusable
from declctl.informer.informer import ignore_batch
from declctl.informer.queues.real_fifo import Batch
from declctl.informer.reflector.namespaces import SourcesByNamespace
from declctl.kit import Clock
from declctl.kit.secret_values import is_secret
from declctl.recording.state_entries import StateHeader
from declctl.recording.state_file import StateFolder
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.handler_slot import HandlerSlot
from declctl.runtime.keeping.earlier import EarlierState
from declctl.runtime.keeping.moments import (
    AppliedBatch,
    CacheMoment,
    HandlerMark,
    Mark,
    Moment,
    Notes,
    WrittenCache,
    kept_kind,
)
from declctl.runtime.keeping.writer import StateWriter
from declctl.runtime.log import Log

MOST_WAITING: Final = 50_000  # batches; beyond it, a new file is begun
_MOST_REFUSED: Final = 150  # first moments, as a handler has not heard all: 30 seconds
_KEPT_ATTEMPTS: Final = 50
_END_SECONDS: Final = 10.0  # for writing what waits at the end


class StateKeeper:
    """Keeps the state of a process in a folder. Made and used on the machinery loop.

    A fault of the disk ends the keeping, and not the controller.
    """

    def __init__(
        self,
        path: Path,
        header: StateHeader,
        *,
        digest: str,
        clock: Clock,
        log: Log,
    ) -> None:
        """Read the state of the process before; `digest` is that of the files with which this one begins."""
        self.fault = ""  # why nothing is kept; empty while all is
        self.earlier = EarlierState(None, digest)
        self._clock = clock
        self._log = log
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._caches: list[WrittenCache] = []  # that may be alive; changed on the loop
        self._numbers = itertools.count(1)
        self._begun: list[ManagedInformer] = []  # caches of the first generation, until the first moment
        self._refused = 0  # moments
        self._slots: Callable[[], Iterable[HandlerSlot[Any]]] = tuple
        self._digest: Callable[[], str] = lambda: digest
        self._notes: Callable[[], Notes] = lambda: Notes((), {})
        self._ends_amid = False  # a cache is amid changes of which listeners will never hear the rest
        self._known: frozenset[str] = frozenset()  # handlers of the last mark that it says all of
        self._folder: StateFolder | None = None
        try:
            folder = self._folder = StateFolder(path)
            self._read(folder, header, digest)
            self._writer = StateWriter(folder, header, caches=lambda: self._caches, ask=self._asked_for)
            self._thread = threading.Thread(target=self._run, name="declctl-state", daemon=True)
            self._thread.start()
        except StateUnusable as why:
            self._give_up(str(why))

    def follow(
        self,
        slots: Callable[[], Iterable[HandlerSlot[Any]]],
        *,
        digest: Callable[[], str],
        history: Callable[[], Sequence[dict[str, Any]]],
        memos: Callable[[], Mapping[str, Mapping[str, Mapping[str, Any]]]],
    ) -> None:
        """Keep what handlers have still to do, and memos, by owner and name.

        `digest` is that of the files that run. Of the history, the newest 50 attempts are kept.
        """
        self._slots, self._digest = slots, digest
        self._notes = lambda: Notes(
            history()[-_KEPT_ATTEMPTS:],
            {
                f"{owner} {name}": memo
                for owner, by_name in memos().items()
                for name, memo in by_name.items()
                if memo
            },
        )

    def take(self, cached: ManagedInformer) -> None:
        """Let a new cache begin with the objects that were kept, and keep those that it will have.

        Secrets are never kept, nor are caches of namespaces by label.
        """
        identity, informer = cached.identity, cached.informer
        watch = identity.watch
        if self.fault or is_secret(watch.api_version, watch.kind):
            return
        self.earlier.begin(cached)
        self._begun.append(cached)
        if isinstance(informer.source, SourcesByNamespace):
            return
        cache = WrittenCache(next(self._numbers), identity, informer)
        self._caches = [each for each in self._caches if each.informer() is not None] + [cache]
        informer.on_batch = partial(self._applied, cache, informer.on_batch)

    def begin_end(self) -> None:
        """Keep what handlers have still to do, before the end drops it."""
        self._ends_amid = self._is_busy
        self._take_mark()

    def close(self) -> None:
        """Write what waits, and let another process have the folder."""
        for cache in self._caches:
            if (informer := cache.informer()) is not None:
                informer.on_batch = ignore_batch
        if not self._ends_amid and any(not each.is_kept and each.has_synced for each in self._caches):
            self._take_moment()
        elif not self._ends_amid:
            self._take_mark()
        if self._folder is not None:
            if not self.fault:
                self._writer.end()
                self._thread.join(_END_SECONDS)
            self._folder.close()

    def _read(self, folder: StateFolder, header: StateHeader, digest: str) -> None:
        try:
            found = folder.read()
            if found is not None:
                _check(found.header, header)
                self.earlier = EarlierState(
                    found, digest, is_same_cluster=found.header.authority == header.authority
                )
        except StateUnusable as why:
            self._log.warning(f"the state of the process before is not used: {why}; all caches are listed")

    def _applied(self, cache: WrittenCache, others: Callable[[Batch], None], batch: Batch) -> None:
        others(batch)
        if self.fault:
            return
        if len(self._writer.waiting) < MOST_WAITING:
            self._writer.waiting.append(AppliedBatch(cache, batch))
        else:
            cache.lost += 1

    @property
    def _is_busy(self) -> bool:
        """Whether a cache is amid many changes, of which listeners have heard a part."""
        informers = [informer for each in self._caches if (informer := each.informer()) is not None]
        return any(each.indexer.is_being_replaced or each.unfinished_work for each in informers)

    def _asked_for(self, is_moment: bool) -> None:
        """Called by the thread, for a moment or a mark."""
        self._loop.call_soon_threadsafe(self._take_moment if is_moment else self._take_mark)

    def _take_moment(self) -> None:
        # The file of the process before says what handlers know that have not heard all yet.
        waits = (
            self._begun
            and self._refused < _MOST_REFUSED
            and not all(each.is_settled for each in self._slots())
        )
        if waits or self._is_busy:
            self._refused += 1
            self._writer.refuse()
            return
        # No cache or handler of the first generation is left that could take them.
        while self._begun:
            self._begun.pop().kept = None
        self.earlier = EarlierState(None, "")
        moment = list[CacheMoment]()
        for cache in self._caches:
            informer = cache.informer()
            if informer is not None and informer.has_synced:
                projection, store = informer.source.projection, informer.indexer
                version, finalizers = store.last_store_sync_resource_version, projection.finalizers.by_list()
                moment.append(
                    CacheMoment(cache, cache.lost, projection.layout, store.list(), version, finalizers)
                )
        self._writer.waiting.append(Moment(moment, self._mark(whole=True)))

    def _take_mark(self) -> None:
        """Say what handlers have still to do, unless a cache is amid many changes."""
        if self.fault or self._is_busy:
            return
        self._writer.waiting.append(self._mark(whole=False))

    def _mark(self, *, whole: bool) -> Mark:
        now, handlers = self._clock.now().timestamp(), list[HandlerMark]()
        unmarked, self._writer.unmarked = self._writer.unmarked, set()
        for slot in self._slots():
            group, kind = slot.binding.object_kind or ("", "")
            if is_secret(group or "v1", kind):
                continue
            informers = [each.informer for each in slot.heard_caches]
            heard = [each for each in self._caches if each.informer() in informers]
            is_known = slot.is_settled
            anew = whole or (is_known and (slot.name not in self._known or slot.name in unmarked))
            states = slot.take_states(now, whole=anew)
            handlers.append(HandlerMark(slot.name, kept_kind(group, kind), heard, is_known, anew, states))
        self._known = frozenset(each.name for each in handlers if each.is_known)
        return Mark(self._digest(), handlers, self._notes())

    def _run(self) -> None:
        """The thread."""
        try:
            self._writer.run()
        except OSError as error:
            self._give_up(f"{self._path} can't be written: {error.strerror or error}")
        except Exception as fault:  # noqa: BLE001 - a fault of declctl must not end the controller
            what = f"{type(fault).__name__}: {fault}"
            self._give_up(f"a fault of declctl itself, please report it: {what}")

    def _give_up(self, why: str) -> None:
        self.fault = f"state: {why}"
        self._log.warning(f"{self.fault}; nothing is kept for the next process, and the controller goes on")


def _check(header: StateHeader, own: StateHeader) -> None:
    if header.controller != own.controller:
        raise StateUnusable(f"it is of the controller {header.controller}")
    if header.version != own.version:
        raise StateUnusable(f"it is of declctl {header.version}, and this is {own.version}")
