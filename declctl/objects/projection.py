"""Projections: here the bytes of an API server are decoded.

A projection is compiled from what the manifest declares: it reads the envelope, the identity, the
labels and the projected field paths of an object in one partial decode, and keeps the object itself
as a frame. An object that the compiled decoder does not expect (a null where a map should be, a
field of another type) is decoded whole instead: it is never refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.cutting import cut_managed_fields
from declctl.objects.envelopes import CHANGES, Envelopes, ListPage, told
from declctl.objects.events import EventType, WatchEvent
from declctl.objects.field_path import FieldPath
from declctl.objects.frame import FrameCodec
from declctl.objects.interning import Interning
from declctl.objects.key import key_of
from declctl.objects.partial import PartialDecoder
from declctl.objects.reading import (
    UNREADABLE,
    identity_of,
    mapping,
    named_object,
    no_name,
)
from declctl.objects.record import Layout, Projected, Record
from declctl.objects.transforming import Transform, Transforming

MANAGED_FIELDS = FieldPath.parse("metadata.managedFields")
Known = Callable[[str], Record | None]

_NO_LABELS: Mapping[str, str] = {}


def nothing_known(_: str) -> Record | None:
    """What a cache that is empty, or not to be looked at, holds of a key."""
    return None


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """How many objects were decoded, how many of them whole, and how many the transform took out."""

    objects: int
    decoded_whole: int
    dropped: int
    failed: int
    last_fault: str | None


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
        self._transforming = Transforming(transform)
        self._always_whole = transform is not None or bool(self._drop_others)
        self._envelopes = Envelopes(api_version, kind)
        self._prefixes = self._envelopes.prefixes
        self._interned = Interning()
        self._objects = self._whole = 0
        self._oddity = ""  # of the last object that could be read in part only

    def with_transform(self, transform: Transform | None) -> "Projection":
        """The same projection with another transform; its layout and its figures are its own."""
        managed = (MANAGED_FIELDS,) if self._drop_managed else ()
        return Projection(
            api_version=self.layout.api_version,
            kind=self.layout.kind,
            paths=self.layout.positions,
            drop_fields=(*managed, *self._drop_others),
            transform=transform,
            codec=self.layout.codec,
        )

    def page(self, body: bytes, *, known: Known = nothing_known) -> ListPage:
        """Decode a LIST answer; raises MalformedAnswer if it isn't one.

        `known` tells what the cache holds of a key: an object that has not changed since is given
        back as that record, so that a relist neither compresses it again nor holds it twice.
        """
        metadata, items = self._envelopes.page(body)
        records: list[Record] = []
        skipped: list[str] = []
        kept_raw: list[str] = []
        for raw in items:
            if (foreign := self._envelopes.foreign_item(raw)) is not None:
                skipped.append(foreign.reason)
                continue
            try:
                record = self.record(raw, known=known)
            except MalformedAnswer as fault:
                skipped.append(str(fault))
                continue
            if self._oddity:
                (skipped if record is None else kept_raw).append(self._take_oddity())
            if record is not None:
                records.append(record)
        if skipped and not records:
            # Taken for an empty list, it would empty the cache.
            raise MalformedAnswer(f"no object of a LIST can be used; the first: {skipped[0]}")
        remaining = metadata.get("remainingItemCount")
        return ListPage(
            records,
            resource_version=str(metadata.get("resourceVersion") or ""),
            continue_token=str(metadata.get("continue") or ""),
            remaining=remaining if isinstance(remaining, int) else None,
            skipped=skipped,
            kept_raw=kept_raw,
        )

    def event(self, line: bytes, *, known: Known = nothing_known) -> WatchEvent:
        """Decode one line of a WATCH; `known` as in `page`, for the objects of a streaming list.

        An ERROR event is raised as the StatusError that it carries; a line that is no event raises
        MalformedAnswer.
        """
        # What every API server writes is recognised by its first and last bytes and never parsed as
        # an envelope; everything else takes the long way.
        end = -2 if line.endswith(b"}\n") else -1 if line.endswith(b"}") else None
        for prefix, change, length, own_kind in self._prefixes:
            if end and line.startswith(prefix):
                try:
                    return self._changed(change, line[length:end], known, own_kind)
                except MalformedAnswer:
                    break  # the object is not the last field of the event
        kind, raw = self._envelopes.line(line)
        if kind in CHANGES:
            return self._changed(CHANGES[kind], raw, known, False)
        return told(kind, raw)

    def record(self, raw: bytes, *, known: Known = nothing_known) -> Record | None:
        """The record of one object.

        None where the transform dropped it. Raises MalformedAnswer if it has no name.
        """
        try:
            meta, values = self._partial.decode(raw)
        except msgspec.ValidationError:
            return self._record_whole(raw)
        except UNREADABLE as fault:
            return self._kept_raw(raw, fault)
        if not meta.name:
            raise no_name(raw)
        key = key_of(meta.namespace, meta.name)
        held = known(key)
        if (
            held is not None
            and held.resource_version == meta.resourceVersion
            and meta.resourceVersion
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
            labels=self._interned.labels(bytes(meta.labels)) if meta.labels else _NO_LABELS,
            values=self._interned.values(values),
            frame=self.layout.codec.encode(raw),
            layout=self.layout,
        )

    def statistics(self) -> ProjectionStatistics:
        """The figures so far."""
        by = self._transforming
        return ProjectionStatistics(self._objects, self._whole, by.dropped, by.failed, by.last_fault)

    def _changed(self, kind: EventType, raw: bytes, known: Known, own_kind: bool) -> WatchEvent:
        if not own_kind and (foreign := self._envelopes.foreign(raw)) is not None:
            return WatchEvent(EventType.SKIPPED, None, foreign.resource_version, False, foreign.reason)
        record = self.record(raw, known=known)
        if record is None:
            # The transform dropped it: whatever the cache holds of it has to go.
            kind = EventType.DROPPED
            record = self._record_of(identity_of(raw), labels=_NO_LABELS, values=(), frame=b"{}")
        if self._oddity:
            return WatchEvent(kind, record, record.resource_version, False, self._take_oddity())
        return WatchEvent(kind, record, record.resource_version)

    def _kept_raw(self, raw: bytes, fault: Exception) -> Record | None:
        """An object of which only the metadata can be read; None where it has to be changed first."""
        identity = identity_of(raw)
        name = str(identity["name"])
        if self._always_whole:
            self._oddity = f"{name} can't be transformed: {fault}"
            return self._transforming.failure(self._oddity)
        self._objects += 1
        self._oddity = f"{name} is kept as it is, because it can't be decoded: {fault}"
        labels = mapping(identity.get("labels"))
        return self._record_of(
            identity,
            labels=self._interned.labels(msgspec.json.encode(labels)) if labels else _NO_LABELS,
            values=(None,) * len(self.layout.positions),
            frame=self.layout.codec.encode(raw),
        )

    def _take_oddity(self) -> str:
        oddity, self._oddity = self._oddity, ""
        return oddity

    def _without_managed_fields(self, raw: bytes, value: bytes) -> bytes | None:
        found = cut_managed_fields(raw, value)
        if found is None:
            return None
        cut, sure = found
        if sure:
            return cut
        try:
            meta, _ = self._partial.decode(cut)
        except UNREADABLE:
            return None
        return None if meta.managedFields else cut

    def _record_whole(self, raw: bytes) -> Record | None:
        try:
            obj = named_object(raw)
        except MalformedAnswer as fault:
            return self._kept_raw(raw, fault)
        self._objects += 1
        self._whole += 1
        identity = dict(obj["metadata"])
        if self._drop_managed:
            obj["metadata"].pop("managedFields", None)
        for path in self._drop_others:
            path.remove_from(obj)
        plain = self._transforming.apply(obj, str(identity["name"]))
        if plain is None:
            return None
        if self._transforming.transform is not None:
            obj = msgspec.json.decode(plain)
        labels = mapping(mapping(obj.get("metadata")).get("labels"))
        return self._record_of(
            identity,
            labels=self._interned.labels(msgspec.json.encode(labels)) if labels else _NO_LABELS,
            values=self._interned.values([_packed(path.values(obj)) for path in self.layout.positions]),
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


def _packed(found: tuple[str, ...]) -> Projected:
    return None if not found else found[0] if len(found) == 1 else found
