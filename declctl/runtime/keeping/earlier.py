"""What the process before has kept, as caches and handlers of this one begin with it."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from declctl.decoding.projection import Projection, RecordRemaker
from declctl.objects import ChangeReason, ChangeType, FrameCodec, Notification, Record
from declctl.objects.frame import BROKEN_FRAME, ResumableCodec
from declctl.objects.record import Projected
from declctl.objects.resource import namespace_of
from declctl.recording.state_entries import CacheState, HandlerState, KeptKey, KeptObject
from declctl.recording.state_file import KeptState
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.caching.kept_objects import KeptLetter, KeptObjects, KeyState, PendingChange
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.keeping.moments import kept_identity, kept_kind, layout_paths


class EarlierState:
    """The state of the process before; None for none. `digest` is that of the files of this process.

    If it is not known to be of the same cluster, objects of which none is there any more are no deleted ones.
    """

    def __init__(self, found: KeptState | None, digest: str, *, is_same_cluster: bool = False) -> None:
        self._caches = dict(found.caches) if found is not None else {}  # by identity; a cache takes its own
        self._handlers: Mapping[str, HandlerState] = found.handlers if found is not None else {}
        # Other code may do otherwise with the same objects: it hears of them all.
        self._knows = found is not None and found.digest == digest
        self._is_same_cluster = is_same_cluster
        # A killed process may have told of objects that came after its last mark.
        self._is_ended = found is not None and found.is_ended
        self._memos = found.notes.memos if found is not None else {}
        self.history: Sequence[dict[str, Any]] = json.loads(found.notes.history) if found is not None else ()

    def memos(self, owner: str) -> Mapping[str, Mapping[str, Any]]:
        """The memos of plugins (`plugin`) or schedules (`schedule`), by name."""
        return {
            key.removeprefix(f"{owner} "): json.loads(text)
            for key, text in self._memos.items()
            if key.startswith(f"{owner} ")
        }

    def begin(self, cached: ManagedInformer) -> None:
        """Let a new cache begin with the objects that were kept, and tell its handlers what they know."""
        state = self._caches.pop(kept_identity(cached.identity), None)
        record_of = None if state is None else _record_maker(cached, state)
        records, known = dict[str, Record](), dict[str, Mapping[str, PendingChange]]()
        if state is not None and record_of is not None:
            for raw, keys in state.finalizers.items():
                for key in keys:
                    cached.informer.source.projection.finalizers.note(raw.encode(), key)
            records = {key: record_of(each) for key, each in state.objects.items()}
            known = {
                name: _pending(handler.keys, cached.identity, record_of)
                for name, handler in self._handlers.items()
                if self._knows and handler.is_known and state.identity in handler.caches
            }
            cached.informer.begin_with(
                [*records.values()],
                state.version,
                whole=self._is_ended,
                same_cluster=self._is_same_cluster,
            )
        cached.kept = KeptObjects(records, known, self._states(cached))

    def _states(self, cached: ManagedInformer) -> Mapping[str, Mapping[str, KeyState]]:
        kind = kept_kind(*cached.identity.group_kind)
        return {
            name: {
                key: _state(cached, each)
                for key, each in handler.keys.items()
                if (each.memo or each.letter) and _is_in(key, cached.identity)
            }
            for name, handler in self._handlers.items()
            if handler.kind == kind
        }


def _is_in(key: str, identity: CacheIdentity) -> bool:
    return identity.watch.namespace in (None, namespace_of(key))


def _record_maker(cached: ManagedInformer, state: CacheState) -> Callable[[KeptObject], Record] | None:
    """Makes the records of a cache of what was kept of it; None if it can't be used."""
    codec, layout = cached.codec, cached.informer.source.projection.layout
    if not isinstance(codec, ResumableCodec):
        return None
    if list(state.paths) != layout_paths(layout):
        return None  # an index reads another field: its values are not in the records
    try:
        codec.resume([state.dictionaries[number] for number in sorted(state.dictionaries)])
    except BROKEN_FRAME:
        return None
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

    return record_of


def _pending(
    keys: Mapping[str, KeptKey], identity: CacheIdentity, record_of: Callable[[KeptObject], Record]
) -> Mapping[str, PendingChange]:
    """What a handler had still to do for the objects of a cache."""
    found: dict[str, PendingChange] = {}
    for key, each in keys.items():
        change = each.change
        if change is not None and _is_in(key, identity):
            old = None if change.old is None else record_of(change.old)
            found[key] = PendingChange(old, change.attempts, change.due, change.causes)
    return found


def _state(cached: ManagedInformer, kept: KeptKey) -> KeyState:
    """The memo and the dead letter of a key."""
    memo = None if kept.memo is None else json.loads(kept.memo)
    letter = kept.letter
    if letter is None:
        return KeyState(memo=memo, uid=kept.uid)
    layout = cached.informer.source.projection.layout
    plain = Projection(api_version=layout.api_version, kind=layout.kind, codec=FrameCodec()).layout
    remake = RecordRemaker(layout)

    def record_of(each: KeptObject) -> Record:
        frame = plain.codec.encode(each.frame)
        return remake(Record(each.key, each.revision, each.labels, (), frame, plain))

    changes = [
        Notification(
            ChangeType(each.type),
            record_of(each.object),
            None if each.old is None else record_of(each.old),
            final_state_unknown=each.final_state_unknown,
            reason=ChangeReason(each.reason),
            received_at=each.received_at,
        )
        for each in letter.changes
    ]
    return KeyState(memo=memo, uid=kept.uid, letter=KeptLetter(letter.text, changes))
