"""The thread that writes a state: moments, changes and marks become entries of a file.

It begins a new file when the changes in the file have become longer than its caches, and when a cache has
come or has other records: then it asks the loop for a moment.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from declctl.informer.queues.real_fifo import Bookmark, Departure, Replacement, SyncAll
from declctl.kit import yield_interpreter
from declctl.objects import DeltaType, HeldObject, Layout, Notification, Record
from declctl.objects.frame import dictionary_of
from declctl.objects.resource import namespace_of
from declctl.recording.entries import FrameDictionary
from declctl.recording.state_entries import (
    KeptCache,
    KeptChange,
    KeptChanges,
    KeptDeadLetter,
    KeptFinalizers,
    KeptHandler,
    KeptKey,
    KeptList,
    KeptMark,
    KeptNotes,
    KeptObject,
    LetterChange,
    StateEnd,
    StateEntry,
    StateHeader,
)
from declctl.recording.state_file import StateFile, StateFolder
from declctl.runtime.caching.kept_objects import KeptLetter, KeyState
from declctl.runtime.keeping.moments import (
    AppliedBatch,
    HandlerMark,
    Mark,
    Moment,
    Notes,
    WrittenCache,
    kept_identity,
    layout_paths,
)

PAUSE_SECONDS: Final = 0.2  # between two looks at the queue: so much is lost when the process is killed
LEAST_BYTES: Final = 16 << 20  # of changes, before a new file is begun
_FIRST_LOOKS: Final = 150  # for which the first file waits until all caches are filled
_OBJECTS_OF_AN_ENTRY: Final = 500
_GONE = DeltaType.DELETED


class StateWriter:
    """Writes what waits into a folder, until `end`. Its public members are used on the loop, but for `run`.

    - `caches`: those that may be alive.
    - `ask`: asks the loop for a moment, or else for a mark. From the thread.
    """

    def __init__(
        self,
        folder: StateFolder,
        header: StateHeader,
        *,
        caches: Callable[[], Sequence[WrittenCache]],
        ask: Callable[[bool], None],
    ) -> None:
        self.waiting: deque[AppliedBatch | Moment | Mark] = deque()
        self.unmarked: set[str] = set()  # handlers whose mark could not be written whole
        self._folder = folder
        self._header = header
        self._caches = caches
        self._ask_for = ask
        self._asked = False  # for a moment that has not come
        self._file: StateFile | None = None  # None before the first moment
        self._begun_bytes = 0  # of the file, when its caches were written
        self._looks = 0
        self._notes: KeptNotes | None = None  # that the file has
        self._is_marked = False  # the last entry of the file is a mark
        self._ended = threading.Event()

    def end(self) -> None:
        """Write what waits, and end."""
        self._ended.set()

    def refuse(self) -> None:
        """No moment comes at the last request: it may be asked for again."""
        self._asked = False

    def run(self) -> None:
        """Write until the end. Raises OSError."""
        try:
            while not self._ended.wait(PAUSE_SECONDS):
                self._write_waiting()
                self._ask()
            self._write_waiting()
            if self._file is not None:
                self._file.append([StateEnd()])
                self._file.close(sync=True)
        finally:
            if self._file is not None:
                self._file.close()

    def _ask(self) -> None:
        """Ask the loop for a moment if a file has to begin, and for a mark if there is one."""
        file, grown = self._file, False
        caches = [(each, each.has_synced) for each in self._caches()]
        if file is not None:
            grown = file.bytes - self._begun_bytes > max(LEAST_BYTES, self._begun_bytes)
        else:
            # The file of the process before has more, until most caches are filled.
            self._looks += 1
            if not all(synced for _, synced in caches) and self._looks < _FIRST_LOOKS:
                return
        lacking = any(synced and not each.is_kept for each, synced in caches)
        if self._asked:
            return
        self._asked = lacking or grown
        if self._asked or file is not None:
            self._ask_for(self._asked)

    def _write_waiting(self) -> None:
        waiting = self.waiting
        while waiting:
            entries: list[StateEntry] = []
            for _ in range(min(len(waiting), _OBJECTS_OF_AN_ENTRY)):
                item = waiting.popleft()
                if isinstance(item, Moment):
                    entries = []  # the file before ends here
                    self._begin_file(item)
                elif isinstance(item, Mark):
                    entries += self._packed_mark(item)
                elif item.cache.is_kept:
                    self._is_marked = False
                    for some in self._packed_batch(item):
                        entries += some
            if entries and self._file is not None:
                self._file.append(entries)

    def _begin_file(self, moment: Moment) -> None:
        file = self._folder.begin()
        file.append([self._header])
        for each in moment.caches:
            cache, layout = each.cache, each.layout
            if any(record.layout is not layout for record in each.records):
                cache.layout = None  # an edit changes its records just now: the next file has it
                continue
            cache.layout, cache.covered, cache.dictionaries = layout, each.lost, 0
            name, identity = str(cache.identity.watch), kept_identity(cache.identity)
            file.append([KeptCache(cache.number, identity, name, layout_paths(layout))])
            file.append([KeptFinalizers(cache.number, dict(each.finalizers))])
            for entries in self._packed_list(cache, layout, each.records, each.version):
                file.append(entries)
                yield_interpreter()
        self._notes, self._is_marked = None, False
        file.append(self._packed_mark(moment.mark))
        file.publish()
        if self._file is not None:
            self._file.close()
        self._file, self._begun_bytes, self._asked = file, file.bytes, False

    def _packed_batch(self, applied: AppliedBatch) -> Iterator[Sequence[StateEntry]]:
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
                    else _packed(cache, layout, record, entries)
                    for each, record in zip(deltas, records, strict=True)
                ]
                versions = (each.resource_version for each in reversed(records))
                version = next(filter(None, versions), "")
                yield [*entries, KeptChanges(cache.number, version, objects)]
            case Departure() | SyncAll():
                return

    def _packed_list(
        self, cache: WrittenCache, layout: Layout, records: Sequence[Record], version: str
    ) -> Iterator[Sequence[StateEntry]]:
        starts = range(0, max(1, len(records)), _OBJECTS_OF_AN_ENTRY)
        for start in starts:
            entries: list[StateEntry] = []
            part = records[start : start + _OBJECTS_OF_AN_ENTRY]
            objects = [_packed(cache, layout, each, entries) for each in part]
            yield [*entries, KeptList(cache.number, version, objects, more=start < starts[-1])]

    def _packed_mark(self, mark: Mark) -> Sequence[StateEntry]:
        """A mark; nothing if it says the same as the one before."""
        entries, handlers = list[StateEntry](), list[KeptHandler]()
        for each in mark.handlers:
            packed = _packed_handler(each, entries)
            if each.is_known and not packed.is_known:
                self.unmarked.add(each.name)
            handlers.append(packed)
        notes = _packed_notes(mark.notes)
        if notes != self._notes:
            self._notes = notes
            entries.append(notes)
        elif self._is_marked and not any(each.keys or each.whole for each in handlers):
            return []
        self._is_marked = True
        return [*entries, KeptMark(mark.digest, handlers)]


def _packed_handler(mark: HandlerMark, entries: list[StateEntry]) -> KeptHandler:
    """A handler; what its objects need comes into `entries`.

    It is not known if an edit has changed the records of its cache just now: the next file has them.
    """
    caches = {
        cache.identity.watch.namespace: cache for cache in mark.caches if cache.layout is not None
    }  # by namespace

    def cache_of(record: Record) -> WrittenCache | None:
        cache = caches.get(None) or caches.get(namespace_of(record.key))
        return cache if cache is not None and cache.layout is record.layout else None

    keys, is_known = list[KeptKey](), mark.is_known
    for key, state in mark.states.items():
        change, pending = None, state.pending
        if pending is not None:
            old, record = None, pending.old
            if record is not None and (cache := cache_of(record)) is not None:
                old = _packed(cache, record.layout, record, entries)
            is_known &= record is None or old is not None
            change = KeptChange(old, pending.attempts, pending.due, pending.causes)
        letter = None if state.letter is None else _packed_letter(state.letter)
        keys.append(KeptKey(key, change, _packed_memo(state), state.uid, letter))
    numbers = [cache.number for cache in mark.caches if cache.layout is not None]
    return KeptHandler(mark.name, mark.kind, numbers, is_known, mark.whole, keys)


def _packed(cache: WrittenCache, layout: Layout, record: Record, entries: list[StateEntry]) -> KeptObject:
    """An object of a cache; the dictionaries that the file lacks come into `entries`."""
    frame = record.frame.frame if isinstance(record.frame, HeldObject) else record.frame
    while cache.dictionaries < dictionary_of(frame):
        cache.dictionaries += 1
        data = layout.codec.dictionary(cache.dictionaries)
        entries.append(FrameDictionary(cache.number, cache.dictionaries, data))
    return KeptObject(record.key, record.revision, record.labels_json, record.values, frame)


def _packed_memo(state: KeyState) -> bytes | None:
    return None if state.memo is None else _json(state.memo)


def _packed_letter(letter: KeptLetter) -> KeptDeadLetter:
    return KeptDeadLetter(letter.text, [_packed_change(each) for each in letter.changes])


def _packed_change(change: Notification) -> LetterChange:
    old = None if change.old is None else _plain(change.old)
    unknown = change.final_state_unknown
    return LetterChange(
        str(change.type), _plain(change.record), old, unknown, str(change.reason), change.received_at
    )


def _plain(record: Record) -> KeptObject:
    return KeptObject(
        record.key, record.revision, record.labels_json, frame=record.layout.codec.decode(record.frame)
    )


def _packed_notes(notes: Notes) -> KeptNotes:
    memos = {name: text for name, memo in notes.memos.items() if (text := _json(memo)) is not None}
    return KeptNotes(json.dumps(notes.history, default=str).encode(), memos)


def _json(memo: Mapping[str, object]) -> bytes | None:
    """A memo as JSON; None if its call has put in what has none: then it is as if it were empty."""
    try:
        # In one go: the call of another thread can't change it meanwhile, as nothing here lets it run.
        return json.dumps(dict(memo)).encode()
    except (TypeError, ValueError, RuntimeError):
        return None
