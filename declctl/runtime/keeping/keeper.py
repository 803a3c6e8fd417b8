"""`state` of a manifest: the caches of this process on disk, with which the next process begins.

On the loop, a change costs an append to a queue. A thread writes what waits. It begins a new file when the
changes in the file have become longer than its caches, and when a cache has come or has other records: then
the loop hands it the records of all caches at one moment, without a copy of them.
"""

import asyncio
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from declctl.errors import StateUnusable
from declctl.informer.informer import SharedIndexInformer, ignore_batch
from declctl.informer.queues.real_fifo import Batch, Bookmark, Departure, Replacement, SyncAll
from declctl.informer.reflector.namespaces import SourcesByNamespace
from declctl.kit import Clock, yield_interpreter
from declctl.kit.secret_values import is_secret
from declctl.objects import DeltaType, HeldObject, Layout, Record
from declctl.objects.frame import BROKEN_FRAME, ResumableCodec, dictionary_of
from declctl.objects.record import Projected
from declctl.objects.resource import namespace_of
from declctl.recording.entries import FrameDictionary
from declctl.recording.state_entries import (
    CacheState,
    HandlerState,
    KeptCache,
    KeptChange,
    KeptChanges,
    KeptFinalizers,
    KeptHandler,
    KeptList,
    KeptMark,
    KeptObject,
    StateEnd,
    StateEntry,
    StateHeader,
)
from declctl.recording.state_file import StateFile, StateFolder
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.caching.managed_informer import KeptObjects, ManagedInformer, PendingChange
from declctl.runtime.handling.handler_slot import HandlerSlot
from declctl.runtime.log import Log

MOST_WAITING: Final = 50_000  # batches; beyond it, a new file is begun
PAUSE_SECONDS: Final = 0.2  # between two looks at the queue: so much is lost when the process is killed
LEAST_BYTES: Final = 16 << 20  # of changes, before a new file is begun
_FIRST_LOOKS: Final = 150  # for which the first file waits until all caches are filled
_END_SECONDS: Final = 10.0  # for writing what waits at the end
_OBJECTS_OF_AN_ENTRY: Final = 500
_GONE = DeltaType.DELETED


class _WrittenCache:
    """One cache that is kept. The fields below `lost` belong to the thread."""

    def __init__(self, number: int, identity: CacheIdentity, informer: SharedIndexInformer) -> None:
        self.number = number
        self.identity = identity
        self.informer = weakref.ref(informer)
        self.lost = 0  # batches that no file has; counted on the loop
        self.layout: Layout | None = None  # of its records in the file; None: it is not in the file
        self.covered = 0  # the number of lost batches when the file began
        self.dictionaries = 0  # that the file has

    @property
    def is_kept(self) -> bool:
        """Whether the file has it, with all changes so far."""
        return self.layout is not None and self.lost == self.covered


class _KeptBatch(NamedTuple):
    """A batch that a cache applies."""

    cache: _WrittenCache
    batch: Batch


class _CacheMoment(NamedTuple):
    """One cache at one moment."""

    cache: _WrittenCache
    lost: int
    layout: Layout
    records: Sequence[Record]
    version: str
    finalizers: Mapping[str, list[str]]


class _HandlerMark(NamedTuple):
    """What one handler has still to deal with, since the mark before."""

    name: str
    caches: Sequence[_WrittenCache]
    changes: Mapping[str, PendingChange | None]
    whole: bool


class _Mark(NamedTuple):
    """What all handlers have still to deal with, now that the caches have what was written before."""

    digest: str
    handlers: Sequence[_HandlerMark]


class _Moment(NamedTuple):
    """All caches and handlers at one moment, with which a file begins."""

    caches: Sequence[_CacheMoment]
    mark: _Mark


class StateKeeper:
    """Keeps the caches of a process in a folder. Made and used on the machinery loop.

    A fault of the disk ends the keeping, and not the controller.
    """

    def __init__(
        self,
        path: Path,
        *,
        controller: str,
        version: str,
        server: str,
        digest: str,
        clock: Clock,
        log: Log,
    ) -> None:
        """Read the state of the process before.

        `server` is the URL of the API server, for people; `digest` that of the files with which this process
        begins.
        """
        self.fault = ""  # why nothing is kept; empty while all is
        self._log = log
        self._header = StateHeader(controller, version, clock.now().isoformat(), server)
        self._kept: dict[str, CacheState] = {}  # of the process before, by identity; a cache takes its own
        self._kept_handlers: Mapping[str, HandlerState] = {}  # as above, if it ran the same files
        self._begun: list[ManagedInformer] = []  # caches with what was kept
        self._digest: Callable[[], str] = lambda: digest
        self._clock = clock
        self._slots: Callable[[], Iterable[HandlerSlot[Any]]] = tuple
        self._ends_amid = False  # a cache is amid changes of which listeners will never hear the rest
        self._unmarked = 0  # batches since the last mark; those of the loop
        self._marked: frozenset[str] = frozenset()  # handlers of the last mark; the others are written whole
        self._loop = asyncio.get_running_loop()
        self._caches: list[_WrittenCache] = []  # that may be alive; changed on the loop
        self._numbers = itertools.count(1)
        self._waiting: deque[_KeptBatch | _Moment | _Mark] = deque()
        self._asked = False  # for a moment that has not come
        self._file: StateFile | None = None  # None before the first moment
        self._begun_bytes = 0  # of the file, when its caches were written
        self._looks = 0
        self._ended = threading.Event()
        self._path = path
        self._folder: StateFolder | None = None
        try:
            folder = self._folder = StateFolder(path)
            self._read(folder)
            self._thread = threading.Thread(
                target=self._run, args=(folder,), name="declctl-state", daemon=True
            )
            self._thread.start()
        except StateUnusable as why:
            self._give_up(str(why))

    def follow(self, slots: Callable[[], Iterable[HandlerSlot[Any]]], digest: Callable[[], str]) -> None:
        """Keep what handlers have still to deal with. `digest` is that of the files that run."""
        self._slots, self._digest = slots, digest

    def begin_end(self) -> None:
        """Keep what handlers have still to deal with, before the end drops it."""
        self._ends_amid = self._is_busy
        self._take_mark()

    def take(self, cached: ManagedInformer) -> None:
        """Let a new cache begin with the objects that were kept, and keep those that it will have.

        Secrets are never kept, nor are caches of namespaces by label.
        """
        identity, informer = cached.identity, cached.informer
        watch = identity.watch
        by_label = isinstance(informer.source, SourcesByNamespace)
        if self.fault or by_label or is_secret(watch.api_version, watch.kind):
            return
        kept = self._kept.pop(_digest(identity), None)
        if kept is not None:
            self._begin(cached, kept)
        cache = _WrittenCache(next(self._numbers), identity, informer)
        self._caches = [each for each in self._caches if each.informer() is not None] + [cache]
        informer.on_batch = partial(self._applied, cache, informer.on_batch)

    def close(self) -> None:
        """Write what waits, and let another process have the folder."""
        for cache in self._caches:
            if (informer := cache.informer()) is not None:
                informer.on_batch = ignore_batch
        if not self._ends_amid and any(not each.is_kept and _has_synced(each) for each in self._caches):
            self._take_moment()
        elif not self._ends_amid:
            self._take_mark()
        self._ended.set()
        if self._folder is not None:
            self._thread.join(_END_SECONDS)
            self._folder.close()

    def _read(self, folder: StateFolder) -> None:
        try:
            found = folder.read()
            if found is not None:
                self._check(found.header)
                self._kept = found.caches
                if found.digest == self._digest():
                    self._kept_handlers = found.handlers
        except StateUnusable as why:
            self._log.warning(f"the state of the process before is not used: {why}; all caches are listed")

    def _check(self, header: StateHeader) -> None:
        own = self._header
        if header.controller != own.controller:
            raise StateUnusable(f"it is of the controller {header.controller}")
        if header.version != own.version:
            raise StateUnusable(f"it is of declctl {header.version}, and this is {own.version}")

    def _begin(self, cached: ManagedInformer, kept: CacheState) -> None:
        projection = cached.informer.source.projection
        layout = projection.layout
        if list(kept.paths) != _paths(layout):
            return  # an index reads another field: its values are not in the records
        codec = cached.codec
        if not isinstance(codec, ResumableCodec):
            return
        try:
            codec.resume([kept.dictionaries[number] for number in sorted(kept.dictionaries)])
        except BROKEN_FRAME:
            return
        # Equal labels and values are one object in memory, as in a cache that was listed.
        labels, values = dict[bytes, bytes](), dict[object, tuple[Projected, ...]]()
        restore = codec.restore

        def record_of(each: KeptObject) -> Record:
            return Record(
                each.key,
                each.revision,
                labels.setdefault(each.labels, each.labels),
                values.setdefault(each.values, each.values),
                restore(each.frame),
                layout,
            )

        records = [record_of(each) for each in kept.objects.values()]
        namespace = cached.identity.watch.namespace
        pending = dict[str, Sequence[PendingChange]]()
        for name, handler in self._kept_handlers.items():
            if kept.identity in handler.caches:
                pending[name] = [
                    PendingChange(
                        each.key,
                        None if each.old is None else record_of(each.old),
                        each.attempts,
                        each.due,
                        each.causes,
                    )
                    for each in handler.changes.values()
                    if namespace in (None, namespace_of(each.key))
                ]
        for raw, keys in kept.finalizers.items():
            for key in keys:
                projection.finalizers.note(raw.encode(), key)
        cached.kept = KeptObjects({each.key: each for each in records}, pending)
        self._begun.append(cached)
        cached.informer.begin_with(records, kept.version)

    def _applied(self, cache: _WrittenCache, others: Callable[[Batch], None], batch: Batch) -> None:
        others(batch)
        if self.fault:
            return
        self._unmarked += 1
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(_KeptBatch(cache, batch))
        else:
            cache.lost += 1

    @property
    def _is_busy(self) -> bool:
        """Whether a cache is amid many changes, of which listeners have heard a part."""
        informers = [informer for each in self._caches if (informer := each.informer()) is not None]
        return any(each.indexer.is_being_replaced or each.unfinished_work for each in informers)

    def _take_moment(self) -> None:
        if self._is_busy:
            self._asked = False  # until it is asked again
            return
        # No cache or handler of the first generation is left that could take them.
        self._kept.clear()
        while self._begun:
            self._begun.pop().kept = None
        moment = list[_CacheMoment]()
        for cache in self._caches:
            informer = cache.informer()
            if informer is not None and informer.has_synced:
                projection, store = informer.source.projection, informer.indexer
                version, finalizers = store.last_store_sync_resource_version, projection.finalizers.by_list()
                moment.append(
                    _CacheMoment(cache, cache.lost, projection.layout, store.list(), version, finalizers)
                )
        self._waiting.append(_Moment(moment, self._mark(whole=True)))

    def _take_mark(self) -> None:
        """Say what handlers have still to deal with, unless a cache or a handler is amid many changes."""
        if self._is_busy:
            return
        mark = self._mark(whole=False)
        if self._unmarked or any(each.changes or each.whole for each in mark.handlers):
            self._unmarked = 0
            self._waiting.append(mark)

    def _mark(self, *, whole: bool) -> _Mark:
        now, handlers = self._clock.now().timestamp(), list[_HandlerMark]()
        for slot in self._slots():
            if not slot.has_heard_all:
                continue  # the next process tells it all objects
            informers = [each.informer for each in slot.heard_caches]
            heard = [each for each in self._caches if each.informer() in informers]
            anew = whole or slot.name not in self._marked
            changes = slot.take_pending(now, whole=anew)
            if changes is not None:
                handlers.append(_HandlerMark(slot.name, heard, changes, anew))
        self._marked = frozenset(each.name for each in handlers)
        return _Mark(self._digest(), handlers)

    # In the thread

    def _run(self, folder: StateFolder) -> None:
        try:
            while not self._ended.wait(PAUSE_SECONDS):
                self._write_waiting(folder)
                self._ask()
                if self._file is not None and not self._asked:
                    self._loop.call_soon_threadsafe(self._take_mark)
            self._write_waiting(folder)
            if self._file is not None:
                self._file.append([StateEnd()])
                self._file.close(sync=True)
        except OSError as error:
            self._give_up(f"{self._path} can't be written: {error.strerror or error}")
        except Exception as fault:  # noqa: BLE001 - a fault of declctl must not end the controller
            what = f"{type(fault).__name__}: {fault}"
            self._give_up(f"a fault of declctl itself, please report it: {what}")
        finally:
            if self._file is not None:
                self._file.close()

    def _give_up(self, why: str) -> None:
        self.fault = f"state: {why}"
        self._waiting.clear()
        self._log.warning(f"{self.fault}; nothing is kept for the next process, and the controller goes on")

    def _ask(self) -> None:
        """Ask the loop for a moment if a file has to begin."""
        file, grown = self._file, False
        caches = [(each, _has_synced(each)) for each in self._caches]
        if file is not None:
            grown = file.bytes - self._begun_bytes > max(LEAST_BYTES, self._begun_bytes)
        else:
            # The file of the process before has more, until most caches are filled.
            self._looks += 1
            if not all(synced for _, synced in caches) and self._looks < _FIRST_LOOKS:
                return
        lacking = any(synced and not each.is_kept for each, synced in caches)
        if (lacking or grown) and not self._asked:
            self._asked = True
            self._loop.call_soon_threadsafe(self._take_moment)

    def _write_waiting(self, folder: StateFolder) -> None:
        waiting = self._waiting
        while waiting:
            entries: list[StateEntry] = []
            for _ in range(min(len(waiting), _OBJECTS_OF_AN_ENTRY)):
                item = waiting.popleft()
                if isinstance(item, _Moment):
                    entries = []  # the file before ends here
                    self._begin_file(folder, item)
                elif isinstance(item, _Mark):
                    entries += self._packed_mark(item)
                elif item.cache.is_kept:
                    for some in self._packed_batch(item):
                        entries += some
            if entries and self._file is not None:
                self._file.append(entries)

    def _begin_file(self, folder: StateFolder, moment: _Moment) -> None:
        file = folder.begin()
        file.append([self._header])
        for each in moment.caches:
            cache, layout = each.cache, each.layout
            if any(record.layout is not layout for record in each.records):
                cache.layout = None  # an edit changes its records just now: the next file has it
                continue
            cache.layout, cache.covered, cache.dictionaries = layout, each.lost, 0
            name, digest = str(cache.identity.watch), _digest(cache.identity)
            file.append([KeptCache(cache.number, digest, name, _paths(layout))])
            file.append([KeptFinalizers(cache.number, dict(each.finalizers))])
            for entries in self._packed_list(cache, layout, each.records, each.version):
                file.append(entries)
                yield_interpreter()
        file.append(self._packed_mark(moment.mark))
        file.publish()
        if self._file is not None:
            self._file.close()
        self._file, self._begun_bytes, self._asked = file, file.bytes, False

    def _packed_batch(self, applied: _KeptBatch) -> Iterator[Sequence[StateEntry]]:
        cache, batch, layout = applied.cache, applied.batch, applied.cache.layout
        assert layout is not None
        match batch:
            case Replacement():
                if any(each.layout is not layout for each in batch.records):
                    cache.layout = None
                    return
                yield from self._packed_list(cache, layout, batch.records, batch.resource_version)
            case Bookmark():
                yield [KeptChanges(cache.number, batch.resource_version, [])]
            case list():
                deltas = [each for each in batch if each.record is not None]
                records = [each.record for each in deltas if each.record is not None]
                if any(each.layout is not layout for each in records):
                    cache.layout = None  # an edit has changed its records: the next file has it
                    return
                entries: list[StateEntry] = []
                objects = [
                    KeptObject(each.key, record.revision)
                    if each.type is _GONE
                    else self._packed(cache, layout, record, entries)
                    for each, record in zip(deltas, records, strict=True)
                ]
                versions = (each.resource_version for each in reversed(records))
                version = next(filter(None, versions), "")
                yield [*entries, KeptChanges(cache.number, version, objects)]
            case Departure() | SyncAll():
                return

    def _packed_list(
        self, cache: _WrittenCache, layout: Layout, records: Sequence[Record], version: str
    ) -> Iterator[Sequence[StateEntry]]:
        starts = range(0, max(1, len(records)), _OBJECTS_OF_AN_ENTRY)
        for start in starts:
            entries: list[StateEntry] = []
            part = records[start : start + _OBJECTS_OF_AN_ENTRY]
            objects = [self._packed(cache, layout, each, entries) for each in part]
            yield [*entries, KeptList(cache.number, version, objects, more=start < starts[-1])]

    def _packed_mark(self, mark: _Mark) -> Sequence[StateEntry]:
        entries, handlers = list[StateEntry](), list[KeptHandler]()
        for each in mark.handlers:
            by_namespace = {
                cache.identity.watch.namespace: cache for cache in each.caches if cache.layout is not None
            }
            changes: list[KeptChange] = []
            for pending in each.changes.values():
                if pending is None:
                    continue
                old, record = None, pending.old
                if record is not None:
                    cache = by_namespace.get(None) or by_namespace.get(namespace_of(record.key))
                    if cache is None or cache.layout is None or cache.layout is not record.layout:
                        break  # the state that the handler knows can't be written: it will be told all
                    old = self._packed(cache, cache.layout, record, entries)
                changes.append(KeptChange(pending.key, old, pending.attempts, pending.due, pending.causes))
            else:
                done = [key for key, pending in each.changes.items() if pending is None]
                numbers = [cache.number for cache in each.caches if cache.layout is not None]
                handlers.append(KeptHandler(each.name, numbers, changes, done, each.whole))
        if len(handlers) < len(mark.handlers):
            self._marked &= {each.name for each in handlers}
        return [*entries, KeptMark(mark.digest, handlers)]

    def _packed(
        self, cache: _WrittenCache, layout: Layout, record: Record, entries: list[StateEntry]
    ) -> KeptObject:
        frame = record.frame.frame if isinstance(record.frame, HeldObject) else record.frame
        while cache.dictionaries < dictionary_of(frame):
            cache.dictionaries += 1
            data = layout.codec.dictionary(cache.dictionaries)
            entries.append(FrameDictionary(cache.number, cache.dictionaries, data))
        return KeptObject(record.key, record.revision, record.labels_json, record.values, frame)


def _has_synced(cache: _WrittenCache) -> bool:
    informer = cache.informer()
    return informer is not None and informer.has_synced


def _digest(identity: CacheIdentity) -> str:
    return sha256(repr(identity).encode()).hexdigest()


def _paths(layout: Layout) -> list[str]:
    return [str(path) for path in layout.positions]
