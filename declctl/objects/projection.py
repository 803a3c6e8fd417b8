"""Projections: here the bytes of an API server are decoded.

A projection is compiled from what the manifest declares: it reads the envelope, the identity, the
labels and the projected field paths of an object in one partial decode, and keeps the object itself
as a frame. An object that the compiled decoder does not expect (a null where a map should be, a
field of another type) is decoded whole instead: it is never refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.cutting import cut_managed_fields
from declctl.objects.events import EventType, WatchEvent
from declctl.objects.field_path import FieldPath
from declctl.objects.frame import FrameCodec
from declctl.objects.key import key_of
from declctl.objects.partial import PartialDecoder
from declctl.objects.record import KubeObject, Layout, Projected, Record
from declctl.objects.status import status_error

MANAGED_FIELDS = FieldPath.parse("metadata.managedFields")
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
Transform = Callable[[KubeObject], KubeObject | None]
Known = Callable[[str], Record | None]

_CHANGES = {str(kind): kind for kind in (EventType.MODIFIED, EventType.ADDED, EventType.DELETED)}
_PREFIXES = tuple((b'{"type":"%b","object":' % word.encode(), kind) for word, kind in _CHANGES.items())
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # all that decoding may raise
_NO_LABELS: Mapping[str, str] = {}
_MOST_LABEL_SETS = 50_000  # interned; beyond it the table starts anew rather than grow for ever


def _nothing_known(_: str) -> Record | None:
    return None


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a LIST: its records, the version of the list, and how to go on."""

    records: Sequence[Record]
    resource_version: str
    continue_token: str
    remaining: int | None


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """How many objects were decoded, how many of them whole, and how many the transform took out."""

    objects: int
    decoded_whole: int
    dropped: int
    failed: int
    last_fault: str | None


class _Page(msgspec.Struct):
    metadata: dict[str, Any]
    items: list[msgspec.Raw] | None = None
    kind: str = ""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Projection:
    """The decoder of one resource. One thread uses it; the records it makes may go anywhere.

    `paths` are projected, `drop_fields` are removed before the frame is made, `transform` is the
    user's own (it receives and returns a dict, or None to drop the object from the cache; when it
    raises, the object is dropped and counted).
    """

    def __init__(
        self,
        *,
        api_version: str,
        kind: str,
        paths: Iterable[FieldPath] = (),
        drop_fields: Sequence[FieldPath] = (MANAGED_FIELDS,),
        transform: Transform | None = None,
        codec: FrameCodec | None = None,
    ) -> None:
        self._partial = PartialDecoder(dict.fromkeys(paths))
        self.layout = Layout(
            api_version=api_version, kind=kind, positions=self._partial.positions, codec=codec or FrameCodec()
        )
        self._drop_managed = MANAGED_FIELDS in drop_fields
        self._drop_others = tuple(path for path in drop_fields if path != MANAGED_FIELDS)
        self._transform = transform
        self._always_whole = transform is not None or bool(self._drop_others)
        self._page = msgspec.json.Decoder(_Page)
        self._event = msgspec.json.Decoder(_Event)
        self._labels: dict[bytes, Mapping[str, str]] = {}
        self._strings: dict[str, str] = {}
        self._objects = self._whole = self._dropped = self._failed = 0
        self._last_fault: str | None = None

    def page(self, body: bytes, *, known: Known = _nothing_known) -> ListPage:
        """Decode a LIST answer; raises MalformedAnswer if it isn't one.

        `known` tells what the cache holds of a key: an object that has not changed since is given
        back as that record, so that a relist neither compresses it again nor holds it twice.
        """
        try:
            page = self._page.decode(body)
        except _UNREADABLE as fault:
            raise MalformedAnswer(f"the answer to a LIST is no list: {fault}") from fault
        if page.kind == "Table" or (page.items is None and not page.kind.endswith("List")):
            # Taken for an empty list, it would empty the cache.
            raise MalformedAnswer(f"the answer to a LIST is a {page.kind or 'thing'} that holds no objects")
        metadata = page.metadata
        remaining = metadata.get("remainingItemCount")
        return ListPage(
            records=[r for raw in page.items or () if (r := self.record(bytes(raw), known=known))],
            resource_version=str(metadata.get("resourceVersion") or ""),
            continue_token=str(metadata.get("continue") or ""),
            remaining=remaining if isinstance(remaining, int) else None,
        )

    def event(self, line: bytes, *, known: Known = _nothing_known) -> WatchEvent:
        """Decode one line of a WATCH; `known` as in `page`, for the objects of a streaming list.

        An ERROR event is raised as the StatusError that it carries; a line that is no event raises
        MalformedAnswer.
        """
        # What every API server writes is recognised by its first and last bytes and never parsed as
        # an envelope; everything else takes the long way.
        end = -2 if line.endswith(b"}\n") else -1 if line.endswith(b"}") else None
        for prefix, kind in _PREFIXES:
            if end and line.startswith(prefix):
                try:
                    return self._changed(kind, line[len(prefix) : end], known)
                except MalformedAnswer:
                    break  # the object is not the last field of the event
        try:
            event = self._event.decode(line)
        except _UNREADABLE as fault:
            raise MalformedAnswer(
                f"a line of a WATCH is no event: {fault}; it begins with {line[:120]!r}"
            ) from fault
        return self._any_event(event.type, bytes(event.object), known)

    def record(self, raw: bytes, *, known: Known = _nothing_known) -> Record | None:
        """The record of one object.

        None where the transform dropped it. Raises MalformedAnswer if it has no name.
        """
        try:
            meta, values = self._partial.decode(raw)
        except msgspec.ValidationError:
            return self._record_whole(raw)
        except _UNREADABLE as fault:
            raise _no_json(raw, fault) from fault
        if not meta.name:
            raise _no_name(raw)
        key = key_of(meta.namespace, meta.name)
        held = known(key)
        if (
            held is not None
            and held.resource_version == meta.resourceVersion
            and held.uid == meta.uid
            and held.layout is self.layout
        ):
            self._objects += 1
            return held
        if self._always_whole:
            return self._record_whole(raw)
        if self._drop_managed and meta.managedFields:
            cut = self._without_managed_fields(raw, bytes(meta.managedFields))
            if cut is None:
                return self._record_whole(raw)
            raw = cut
        self._objects += 1
        return Record(
            key=key,
            uid=meta.uid,
            resource_version=meta.resourceVersion,
            labels=self._intern_labels(bytes(meta.labels)) if meta.labels else _NO_LABELS,
            values=self._intern_values(values),
            frame=self.layout.codec.encode(raw),
            layout=self.layout,
        )

    def statistics(self) -> ProjectionStatistics:
        """The figures so far."""
        return ProjectionStatistics(self._objects, self._whole, self._dropped, self._failed, self._last_fault)

    def _any_event(self, kind: str, raw: bytes, known: Known) -> WatchEvent:
        if kind in _CHANGES:
            return self._changed(_CHANGES[kind], raw, known)
        if kind not in ("BOOKMARK", "ERROR"):
            raise MalformedAnswer(f"a WATCH has an event of the unknown type {kind!r}")
        obj = _json_object(raw)
        if kind == "ERROR":
            raise status_error(obj)
        metadata = _mapping(obj.get("metadata"))
        return WatchEvent(
            EventType.BOOKMARK,
            None,
            str(metadata.get("resourceVersion") or ""),
            initial_events_end=_mapping(metadata.get("annotations")).get(INITIAL_EVENTS_END) == "true",
        )

    def _changed(self, kind: EventType, raw: bytes, known: Known) -> WatchEvent:
        record = self.record(raw, known=known)
        if record is not None:
            return WatchEvent(kind, record, record.resource_version)
        # The transform dropped it: whatever the cache holds of it has to go.
        bare = self._record_of(_named_object(raw)["metadata"], labels=_NO_LABELS, values=(), frame=b"{}")
        return WatchEvent(EventType.DROPPED, bare, bare.resource_version)

    def _without_managed_fields(self, raw: bytes, value: bytes) -> bytes | None:
        found = cut_managed_fields(raw, value)
        if found is None:
            return None
        cut, sure = found
        if sure:
            return cut
        try:
            meta, _ = self._partial.decode(cut)
        except _UNREADABLE:
            return None
        return None if meta.managedFields else cut

    def _record_whole(self, raw: bytes) -> Record | None:
        obj = _named_object(raw)
        self._objects += 1
        self._whole += 1
        identity = dict(obj["metadata"])
        if self._drop_managed:
            obj["metadata"].pop("managedFields", None)
        for path in self._drop_others:
            path.remove_from(obj)
        plain = self._transformed(obj, str(identity["name"]))
        if plain is None:
            return None
        if self._transform is not None:
            obj = msgspec.json.decode(plain)
        labels = _mapping(_mapping(obj.get("metadata")).get("labels"))
        return self._record_of(
            identity,
            labels=self._intern_labels(msgspec.json.encode(labels)) if labels else _NO_LABELS,
            values=self._intern_values([_packed(path.values(obj)) for path in self.layout.positions]),
            frame=self.layout.codec.encode(plain),
        )

    def _record_of(
        self,
        identity: Mapping[str, Any],
        *,
        labels: Mapping[str, str],
        values: tuple[Projected, ...],
        frame: bytes,
    ) -> Record:
        return Record(
            key=key_of(identity.get("namespace"), str(identity["name"])),
            uid=str(identity.get("uid") or ""),
            resource_version=str(identity.get("resourceVersion") or ""),
            labels=labels,
            values=values,
            frame=frame,
            layout=self.layout,
        )

    def _transformed(self, obj: KubeObject, name: str) -> bytes | None:
        # The result is written at once, so that what is no JSON is the transform's fault as well.
        if self._transform is None:
            return msgspec.json.encode(obj)
        try:
            result = self._transform(obj)
            if result is None:
                self._dropped += 1
                return None
            plain = msgspec.json.encode(result)
        except Exception as fault:  # noqa: BLE001 - the user's function; the object is dropped, counted and told
            return self._failure(f"the transform raised {type(fault).__name__} on {name}: {fault}")
        if not plain.startswith(b"{"):
            return self._failure(
                f"the transform returned a {type(result).__name__} for {name}, not an object"
            )
        return plain

    def _failure(self, message: str) -> None:
        self._failed += 1
        self._last_fault = message

    def _intern_labels(self, raw: bytes) -> Mapping[str, str]:
        labels = self._labels.get(raw)
        if labels is None:
            if len(self._labels) >= _MOST_LABEL_SETS:
                self._labels.clear()
            decoded = _mapping(_decoded(raw))
            strings = self._bounded_strings()
            texts = [(str(k), "" if v is None else str(v)) for k, v in decoded.items()]  # null is "" in Go
            labels = {strings.setdefault(k, k): strings.setdefault(v, v) for k, v in texts}
            self._labels[raw] = labels
        return labels

    def _intern_values(self, values: Iterable[Projected]) -> tuple[Projected, ...]:
        strings = self._bounded_strings()
        return tuple([strings.setdefault(v, v) if type(v) is str else v for v in values])

    def _bounded_strings(self) -> dict[str, str]:
        if len(self._strings) >= _MOST_LABEL_SETS:
            self._strings.clear()
        return self._strings


def _packed(found: tuple[str, ...]) -> Projected:
    return None if not found else found[0] if len(found) == 1 else found


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except _UNREADABLE as fault:
        raise _no_json(raw, fault) from fault


def _json_object(raw: bytes) -> KubeObject:
    obj = _decoded(raw)
    if not isinstance(obj, dict):
        raise MalformedAnswer(f"an object is no JSON object; it begins with {raw[:120]!r}")
    return cast("KubeObject", obj)


def _named_object(raw: bytes) -> KubeObject:
    obj = _json_object(raw)
    if not _mapping(obj.get("metadata")).get("name"):
        raise _no_name(raw)
    return obj


def _no_json(raw: bytes, fault: Exception) -> MalformedAnswer:
    return MalformedAnswer(f"an object is no JSON: {fault}; it begins with {raw[:120]!r}")


def _no_name(raw: bytes) -> MalformedAnswer:
    return MalformedAnswer(f"an object has no metadata.name; it begins with {raw[:120]!r}")
