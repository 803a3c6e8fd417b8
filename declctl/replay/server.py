"""The objects of a recording, as a server would have them at one moment of it, and sources that watch them.

Several caches may have the same objects, one after the other or at once. Their changes are one history here:
a state that is known already changes nothing. So code of today gets what it asks for, whatever caches the
code of then had.
"""

import asyncio
import base64
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from declctl.decoding.projection import Known, Projection
from declctl.errors import Expired
from declctl.kit.secret_values import HIDDEN, is_secret
from declctl.objects import (
    GroupVersionKind,
    ListOptions,
    ListPage,
    Resource,
    WatchEvent,
    WatchOptions,
    newer_version,
)
from declctl.objects.fields import FieldSelector, LabelSelector
from declctl.objects.frame import FrameReader
from declctl.objects.record import REVISION_BREAK
from declctl.objects.resource import namespace_of
from declctl.recording.entries import (
    FrameDictionary,
    RecordedStream,
    StreamChanges,
    StreamDeparture,
    StreamList,
    StreamObject,
)

_READABLE = base64.b64encode(HIDDEN.encode()).decode()
State = tuple[str, bytes]
"""The revision and the JSON of an object."""


class TapeScope:
    """The objects of one kind that caches with the same requests have had."""

    def __init__(self, stream: RecordedStream) -> None:
        self.stream = stream
        self.objects: dict[str, State] = {}
        self.version = ""  # the newest
        self.listed = asyncio.Event()  # a whole list has come
        self._sources: list[weakref.ref[TapeSource]] = []

    def join(self, source: "TapeSource") -> None:
        """Let a source notice all changes from now on, as long as it is in use."""
        if source not in self.sources:
            self._sources = [*map(weakref.ref, self.sources), weakref.ref(source)]

    @property
    def sources(self) -> "Sequence[TapeSource]":
        """The sources that are in use."""
        return [source for each in self._sources if (source := each()) is not None]

    @property
    def resource(self) -> tuple[str, str]:
        """The group, and the name in URL paths."""
        return self.stream.api_version.rpartition("/")[0], self.stream.plural

    @property
    def requests(self) -> tuple[str, str, str | None, str, str, str, bool]:
        """What tells one scope from another."""
        s = self.stream
        return (
            *(s.api_version, s.kind, s.namespace, s.label_selector, s.field_selector),
            *(s.namespace_selector, s.metadata_only),
        )

    def put(self, key: str, state: State) -> None:
        """Take a state, unless a newer one is known."""
        before = self.objects.get(key)
        if before is not None and (before[0] == state[0] or _is_newer(before[0], state[0])):
            return
        self.objects[key] = state
        self._note_version(state[0])
        for source in self.sources:
            source.changed("ADDED" if before is None else "MODIFIED", key, state[1])

    def drop(self, key: str, revision: str) -> None:
        """Let an object be gone, unless a newer one is known; with an empty revision in any case."""
        before = self.objects.get(key)
        if before is None or (revision and _is_newer(before[0], revision)):
            return
        del self.objects[key]
        self._note_version(revision)
        for source in self.sources:
            source.changed("DELETED", key, _at_version(before[1], revision))

    def _note_version(self, revision: str) -> None:
        version = revision.rpartition(REVISION_BREAK)[2]
        self.version = newer_version(version, self.version) if self.version else version


class TapeServer:
    """All scopes of a recording. Used on the machinery loop."""

    def __init__(self) -> None:
        self._scopes: dict[tuple[object, ...], TapeScope] = {}
        self._by_stream: dict[int, TapeScope] = {}
        self._readers: dict[int, FrameReader] = {}
        self._lists: dict[int, dict[str, State]] = {}  # by stream: parts of a list that is not complete
        self._had_list: set[tuple[int, str | None]] = set()  # streams, with the namespace of their lists
        self._statuses: dict[tuple[str, str, str], Any] = {}  # of today, by group, plural and key
        self.resources: dict[GroupVersionKind, Resource] = {}
        self.unknown: dict[str, None] = {}  # what was asked for, and is not on the tape

    def declare(self, stream: RecordedStream) -> None:
        """Know a stream from now on."""
        scope = TapeScope(stream)
        self._by_stream[stream.stream] = self._scopes.setdefault(scope.requests, scope)
        # A segment has the dictionaries of its frames again.
        self._readers.setdefault(stream.stream, FrameReader())
        if stream.plural:
            gvk = GroupVersionKind.of(stream.api_version, stream.kind)
            subresources = frozenset(stream.subresources)
            self.resources[gvk] = Resource(gvk, stream.plural, stream.namespaced, subresources=subresources)

    def learn(self, dictionary: FrameDictionary) -> None:
        """Know a dictionary from now on."""
        self._readers[dictionary.stream].learn(dictionary.number, dictionary.data)

    def change(self, changes: StreamChanges) -> None:
        """Take changes of a cache."""
        scope = self._by_stream[changes.stream]
        for each in changes.objects:
            if each.frame:
                scope.put(each.key, self._state(changes.stream, each))
            else:
                scope.drop(each.key, each.revision)
                self._statuses.pop((*scope.resource, each.key), None)

    def list(self, part: StreamList) -> None:
        """Take a list, or a part of it. After a second list, the sources are listed anew, too."""
        parts = self._lists.setdefault(part.stream, {})
        parts.update((each.key, self._state(part.stream, each)) for each in part.objects)
        if part.more:
            return
        del self._lists[part.stream]
        scope, listed = self._by_stream[part.stream], (part.stream, part.namespace)
        is_relist = listed in self._had_list and not part.snapshot
        self._had_list.add(listed)
        known = [key for key in scope.objects if part.namespace in (None, namespace_of(key))]
        if is_relist:
            for source in scope.sources:
                source.expire()
        for key in known:
            if key not in parts:
                scope.drop(key, "")
        for key, state in parts.items():
            scope.put(key, state)
        scope.version = newer_version(part.version, scope.version)
        scope.listed.set()

    def keep_status(self, group: str, plural: str, key: str, status: Any) -> None:
        """Let an object have a status of today, from its present state on; None: that of the recording."""
        if status is None:
            self._statuses.pop((group, plural, key), None)
            return
        self._statuses[group, plural, key] = status
        for scope in self._scopes.values():
            if scope.resource == (group, plural) and (state := scope.objects.get(key)) is not None:
                scope.objects[key] = state[0], self._today(scope, key, state[1])

    def kind_of(self, stream: int) -> str:
        """The kind of the objects of a stream."""
        return self._by_stream[stream].stream.kind

    def depart(self, departure: StreamDeparture) -> None:
        """Let the objects of a namespace leave a cache."""
        scope = self._by_stream[departure.stream]
        for key in [key for key in scope.objects if namespace_of(key) == departure.namespace]:
            scope.drop(key, "")

    def touch(self) -> None:
        """Let no watch count as silent."""
        for source in self._sources():
            source.touch()

    @property
    def pending(self) -> bool:
        """Whether a source has something that its reflector has not read."""
        return any(source.pending for source in self._sources())

    def find(self, group: str, plural: str, key: str) -> dict[str, Any] | None:
        """The present state of an object; None if no cache has it."""
        return self.all_of(group, plural, key).get(key)

    def all_of(self, group: str, plural: str, only: str | None = None) -> dict[str, dict[str, Any]]:
        """All objects of a resource that any cache has, or the `only` one, by key, as a server has them."""
        found: dict[str, dict[str, Any]] = {}
        for scope in self._scopes.values():
            if scope.resource == (group, plural) and not scope.stream.metadata_only:
                kind = {"apiVersion": scope.stream.api_version, "kind": scope.stream.kind}
                keys = scope.objects if only is None else {only} & scope.objects.keys()
                found |= {key: kind | msgspec.json.decode(scope.objects[key][1]) for key in keys}
        return found

    def source(
        self,
        gvk: GroupVersionKind,
        namespace: str | None,
        labels: str,
        fields: str,
        metadata_only: bool,
        projection: Projection,
    ) -> "TapeSource":
        """A source of what today's code asks for: a scope, or the part of a wider one."""
        wanted = (gvk.api_version, gvk.kind)
        scopes = [each for each in self._scopes.values() if each.requests[:2] == wanted]
        for each in scopes:
            if each.requests == (*wanted, namespace, labels, fields, "", metadata_only):
                return TapeSource(each, None, projection)
        for each in scopes:
            stream = each.stream
            is_wider = stream.namespace in (None, namespace) and not (
                stream.label_selector or stream.field_selector
            )
            if is_wider and (metadata_only or not stream.metadata_only):
                return TapeSource(each, _selecting(namespace, labels, fields), projection)
        where = f" in {namespace}" if namespace else ""
        what = f"{gvk}{where}{f' [{labels or fields}]' if labels or fields else ''}"
        nothing = TapeScope(
            RecordedStream(0, *wanted, namespace, labels, fields, "", metadata_only, "", True, [])
        )
        nothing.listed.set()
        nothing.version = "1"
        # A list alone looks for finalizers of old code in the whole cluster: no cache misses it.
        return TapeSource(nothing, None, projection, on_watch=lambda: self.unknown.setdefault(what, None))

    def _sources(self) -> Iterable["TapeSource"]:
        return [source for scope in self._scopes.values() for source in scope.sources]

    def _state(self, stream: int, of: StreamObject) -> State:
        raw, scope = self._readers[stream].decode(of.frame), self._by_stream[stream]
        if is_secret(scope.stream.api_version, scope.stream.kind):
            raw = msgspec.json.encode(readable_secrets(msgspec.json.decode(raw)))
        return of.revision, self._today(scope, of.key, raw)

    def _today(self, scope: TapeScope, key: str, raw: bytes) -> bytes:
        """A state with the status of today, if today's code has written another one."""
        status = self._statuses.get((*scope.resource, key))
        if status is None or scope.stream.metadata_only:
            return raw
        return msgspec.json.encode({**msgspec.json.decode(raw), "status": status})


class TapeSource:
    """A source that lists and watches a scope (`informer.Source`). It never ends a watch by itself."""

    def __init__(
        self,
        scope: TapeScope,
        selects: Callable[[str, bytes], bool] | None,
        projection: Projection,
        on_watch: Callable[[], object] = lambda: None,
    ) -> None:
        self.projection = projection
        self._on_watch = on_watch
        self._scope = scope
        self._selects = selects
        self._there: set[str] = set()  # the keys that the watch has, if not all are selected
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._woken = asyncio.Event()
        self._touched = False
        self._expired = False
        self._watches = False
        self._has_listed = False  # and does not watch yet

    @property
    def description(self) -> str:
        """The resource in the words of a log line."""
        return f"{self._scope.stream.plural or self._scope.stream.kind} of the recording"

    @property
    def is_listed(self) -> bool:
        """Whether the recording has a list of it, as far as it was played."""
        return self._scope.listed.is_set()

    @property
    def pending(self) -> bool:
        """Whether something waits for the reflector, or the reflector has listed and does not watch yet."""
        return (self._watches and bool(self._waiting or self._touched)) or self._expired or self._has_listed

    def is_watch_list_semantics_unsupported(self) -> bool:
        """Its watches never begin with all objects."""
        return True

    async def list(self, options: ListOptions, *, known: Known) -> ListPage:  # noqa: ARG002 - a Source's
        """All objects, as soon as the recording has listed them."""
        await self._scope.listed.wait()
        self._scope.join(self)
        self._waiting.clear()
        self._expired, self._has_listed = False, True
        chosen = {key: raw for key, (_, raw) in self._scope.objects.items() if self._is_selected(key, raw)}
        self._there = set(chosen)
        records = [self.projection.record(raw, known=known) for raw in chosen.values()]
        return ListPage([each for each in records if each is not None], self._scope.version or "1", "", None)

    async def watch(
        self,
        options: WatchOptions,  # noqa: ARG002 - a Source's
        *,
        known: Known | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """The changes of the scope since the last list or watch."""
        self._has_listed = False
        self._on_watch()
        try:
            self._watches = True
            yield []
            while True:
                self._woken.clear()
                self._touched = False
                if self._expired:
                    raise Expired(410, "Expired", "the recording has listed anew")
                if self._waiting:
                    lines = [self._line(*self._waiting.popleft()) for _ in range(len(self._waiting))]
                    events, fault = self.projection.events(lines)
                    yield events
                    if fault is not None:
                        raise fault
                else:
                    await self._woken.wait()
                    if not self._waiting and not self._expired:
                        self._touched = False
                        yield []
        finally:
            self._watches = False

    def changed(self, kind: str, key: str, raw: bytes) -> None:
        """An object has changed."""
        if self._selects is not None:
            was_there, selected = key in self._there, kind != "DELETED" and self._selects(key, raw)
            if not was_there and not selected:
                return
            kind = "DELETED" if not selected else "MODIFIED" if was_there else "ADDED"
            (self._there.add if selected else self._there.discard)(key)
        self._waiting.append((kind, raw))
        self._woken.set()

    def expire(self) -> None:
        """Let the reflector list anew."""
        self._waiting.clear()
        self._expired = True
        self._woken.set()

    def touch(self) -> None:
        """Let the watch not count as silent."""
        if self._watches:
            self._touched = True
            self._woken.set()

    def _is_selected(self, key: str, raw: bytes) -> bool:
        return self._selects is None or self._selects(key, raw)

    def _line(self, kind: str, raw: bytes) -> bytes:
        layout = self.projection.layout
        stream = self._scope.stream
        if not raw.startswith((b'{"kind":', b'{"apiVersion":')):
            sent = (
                ("PartialObjectMetadata", "meta.k8s.io/v1")
                if stream.metadata_only
                else (layout.kind, layout.api_version)
            )
            head = b'{"kind":"%b","apiVersion":"%b"' % tuple(part.encode() for part in sent)
            raw = head + (b"," if raw != b"{}" else b"") + raw[1:]
        return b'{"type":"%b","object":%b}' % (kind.encode(), raw)


def _selecting(namespace: str | None, labels: str, fields: str) -> Callable[[str, bytes], bool]:
    by_label, by_field = LabelSelector.parse(labels), FieldSelector.parse(fields)

    def selects(key: str, raw: bytes) -> bool:
        if namespace is not None and namespace_of(key) != namespace:
            return False
        if not labels and not fields:
            return True
        obj = cast("Mapping[str, Any]", msgspec.json.decode(raw))
        return by_label.matches(obj.get("metadata", {}).get("labels") or {}) and by_field.matches(obj)

    return selects


def _is_newer(revision: str, other: str) -> bool:
    """Whether a revision is a newer state of the same object than another one."""
    (uid, _, version), (other_uid, _, other_version) = (
        each.rpartition(REVISION_BREAK) for each in (revision, other)
    )
    return uid == other_uid and version != other_version and newer_version(version, other_version) == version


def _at_version(raw: bytes, revision: str) -> bytes:
    """The last state of an object with the version of its deletion, if that is known."""
    version = revision.rpartition(REVISION_BREAK)[2]
    if not version:
        return raw
    obj = msgspec.json.decode(raw)
    obj["metadata"]["resourceVersion"] = version
    return msgspec.json.encode(obj)


def readable_secrets(document: Any) -> Any:
    """A Secret, or a list of them, whose hidden values are base64, as code expects them. Changes it."""
    if not isinstance(document, dict):
        return document
    found = cast("dict[str, Any]", document)
    if isinstance(found.get("items"), list):
        found["items"] = [readable_secrets(each) for each in found["items"]]
    if isinstance(data := found.get("data"), dict):
        found["data"] = {name: _READABLE if value == HIDDEN else value for name, value in data.items()}
    return found
