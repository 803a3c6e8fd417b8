"""The slow way into the cache: objects that the compiled decoder can't read, or that have a transform.

They are decoded whole, changed by the transform of the user, which is checked and counted, or kept as they
came. Nothing is refused here but an object without a name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from declctl.decoding.fields import Interning
from declctl.errors import MalformedAnswer
from declctl.kit.callbacks import refuse_async
from declctl.objects.answers import identity_of, mapping, named_object
from declctl.objects.fields import FieldPath
from declctl.objects.frame import Frame, KubeObject
from declctl.objects.record import NO_LABELS, Layout, Projected, Record, packed, revision_of
from declctl.objects.resource import key_of

Transform = Callable[[KubeObject], KubeObject | None]


class Transforming:
    """Applies a transform, or none. `dropped` and `failed` count objects that are not to be cached.

    Raises TypeError for a transform that is asynchronous.
    """

    def __init__(self, transform: Transform | None) -> None:
        refuse_async(transform, "the transform")
        self.transform = transform
        self.dropped = self.failed = 0
        self.last_fault: str | None = None

    def apply(self, obj: KubeObject, name: str) -> bytes | None:
        """The JSON of what the cache shall hold; None to drop the object."""
        # The result is written at once, so that what is no JSON is the transform's fault as well.
        if self.transform is None:
            return msgspec.json.encode(obj)
        try:
            result = self.transform(obj)
            if result is None:
                self.dropped += 1
                return None
            written = msgspec.json.encode(result)
        except Exception as fault:  # noqa: BLE001 - the user's function; the object is dropped, counted and told
            return self.failure(f"the transform raised {type(fault).__name__} on {name}: {fault}")
        if not written.startswith(b"{"):
            return self.failure(f"the transform returned a {type(result).__name__} for {name}, not an object")
        return written

    def failure(self, message: str) -> None:
        """An object can't be transformed: it is dropped, counted and told."""
        self.failed += 1
        self.last_fault = message


MANAGED_FIELDS = FieldPath.parse("metadata.managedFields")


class WholeObjects:
    """Reads one object at a time by decoding all of it.

    `drop_fields` are removed, then `transforming` is applied. `objects` counts those that became
    records, `decoded` those of them that were decoded whole.
    """

    def __init__(
        self,
        layout: Layout,
        interned: Interning,
        *,
        drop_fields: Sequence[FieldPath],
        transforming: Transforming,
    ) -> None:
        self._layout = layout
        self._interned = interned
        self._drop_fields = drop_fields
        self._transforming = transforming
        # An object of which the rest is unknown may be kept only where nothing has to be taken out of it
        # but what a cache can do with.
        self._changes = transforming.transform is not None or any(p != MANAGED_FIELDS for p in drop_fields)
        self.objects = self.decoded = 0
        self.oddity = ""  # of the last object that could be read in part only; whoever reads it takes it

    def read(self, raw: bytes) -> Record | None:
        """The record of an object; None where the transform dropped it, or failed on it.

        Raises MalformedAnswer if it has no name.
        """
        try:
            obj = named_object(raw)
        except MalformedAnswer as fault:
            return self.kept_raw(raw, fault)
        self.objects += 1
        self.decoded += 1
        identity = dict(obj["metadata"])
        for path in self._drop_fields:
            path.remove_from(obj)
        plain = self._transforming.apply(obj, str(identity["name"]))
        if plain is None:
            return None
        if self._transforming.transform is not None:
            obj = msgspec.json.decode(plain)
        return self._record_of(
            identity,
            labels=mapping(mapping(obj.get("metadata")).get("labels")),
            values=tuple(packed(path.values(obj)) for path in self._layout.positions),
            frame=self._layout.codec.encode(plain),
        )

    def kept_raw(self, raw: bytes, fault: Exception) -> Record | None:
        """The record of an object of which only the metadata can be read.

        None where it has to be changed first. Raises MalformedAnswer if it has no name.
        """
        identity = identity_of(raw)
        name = str(identity["name"])
        if self._changes:
            self.oddity = f"{name} can't be transformed: {fault}"
            return self._transforming.failure(self.oddity)
        self.objects += 1
        self.oddity = f"{name} is kept as it is, because it can't be decoded: {fault}"
        return self._record_of(
            identity,
            labels=mapping(identity.get("labels")),
            values=(None,) * len(self._layout.positions),
            frame=self._layout.codec.encode(raw),
        )

    def gone(self, raw: bytes) -> Record:
        """What is left to tell of an object that the transform dropped: its identity."""
        return self._record_of(identity_of(raw), labels={}, values=(), frame=b"{}")

    def take_oddity(self) -> str:
        """What was odd about the last object; empty if nothing was."""
        oddity, self.oddity = self.oddity, ""
        return oddity

    def _record_of(
        self,
        identity: Mapping[str, Any],
        *,
        labels: Mapping[str, Any],
        values: tuple[Projected, ...],
        frame: Frame,
    ) -> Record:
        return Record(
            key=key_of(identity.get("namespace"), str(identity["name"])),
            revision=revision_of(str(identity.get("uid") or ""), str(identity.get("resourceVersion") or "")),
            labels_json=self._interned.labels(msgspec.json.encode(labels)) if labels else NO_LABELS,
            values=self._interned.values(values),
            frame=frame,
            layout=self._layout,
        )
