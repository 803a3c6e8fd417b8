"""Views that decode what their reader reads: learned from what it has read of other objects before.

An index function or a filter looks at the same few fields of every object. The rest of each object is
skipped, which takes a quarter of the time of decoding it. Whoever reads more gets it all the same.
"""

import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from declctl.objects.held import FILLED_IN, HeldObject
from declctl.objects.reading import UNREADABLE
from declctl.objects.record import KubeObject, Record
from declctl.objects.view import ObjectView

_MOST_FIELDS = 3  # who reads more of an object has it decoded in one go


class _Learned(NamedTuple):
    """Top-level fields, and how to read them."""

    fields: tuple[str, ...]
    decode: Any
    values: Any  # of what was decoded: the value of one field, or the values of all


class SelectiveReader:
    """The reader of many objects of one kind. Any thread may use it.

    `fields` are those that it has read so far; None if it has read so much that all is decoded.
    """

    def __init__(self) -> None:
        self._learned: _Learned | None = None
        self._whole = False

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields that are decoded of the next object; none before anything was read."""
        if self._whole:
            return None
        return () if self._learned is None else self._learned.fields

    def view(self, record: Record) -> ObjectView:
        """An object to be read."""
        if self._whole or isinstance(record.frame, HeldObject):
            return ObjectView(record)
        return _SelectiveView(record, _reader=self)

    def learn(self, field: str | None) -> None:
        """A field was read, or all of them."""
        fields = self.fields
        if fields is None or field in fields:
            return
        if field is None or field in FILLED_IN or len(fields) == _MOST_FIELDS or not _nameable(field):
            self._whole = True
        else:
            self._learned = _learned((*fields, field))

    def part(self, record: Record) -> tuple[tuple[str, ...], KubeObject]:
        """The fields that are decoded of an object, and those of them that it has."""
        learned = self._learned
        if learned is None:
            return (), {}
        try:
            found = learned.decode(record.layout.codec.decode(record.frame))
        except UNREADABLE:
            return (), {}  # whoever decodes all of it says what is wrong with it
        fields, values = learned.fields, learned.values(found)
        if len(fields) == 1:
            return fields, {} if values is msgspec.UNSET else {fields[0]: values}
        pairs = zip(fields, values, strict=True)
        return fields, {field: value for field, value in pairs if value is not msgspec.UNSET}


class _SelectiveView(ObjectView, kw_only=True):
    """What its reader has not read of other objects, and reads of this one, decodes all of it."""

    _reader: SelectiveReader
    _fields: tuple[str, ...] | None = None  # decoded so far; None before anything was read
    _part: KubeObject | None = None  # what the object has of them

    def __getitem__(self, field: str) -> Any:
        if self._body is None:
            part = self._part
            if part is None:
                self._fields, part = self._reader.part(self._record)
                self._part = part
            if field in part:
                return part[field]
            if field not in (self._fields or ()):
                self._reader.learn(field)
                self._complete()
        body = self._body
        if body is None:
            raise KeyError(field)
        return body[field]

    def __contains__(self, field: object) -> bool:
        try:
            self[str(field)]
        except KeyError:
            return False
        return isinstance(field, str)

    def get(self, field: str, default: Any = None) -> Any:
        """What stands in a field; `default` if the object does not have it."""
        try:
            return self[field]
        except KeyError:
            return default

    @property
    def annotations(self) -> Mapping[str, str]:
        """`metadata.annotations`, read-only; empty if there are none. Decodes."""
        return MappingProxyType((self.get("metadata") or {}).get("annotations") or {})

    def _decoded(self) -> KubeObject:
        if self._body is None:
            self._reader.learn(None)
            self._complete()
        assert self._body is not None
        return self._body

    def _complete(self) -> None:
        # What was read before stays the reader's own: it may have changed it.
        self._body = {**self._record.read(), **(self._part or {})}


def _nameable(field: str) -> bool:
    return field.isidentifier() and field.isascii()


def _learned(fields: tuple[str, ...]) -> _Learned:
    """Its fields are called by their number, and read by their name, which may be a keyword."""
    numbered = [f"f{number}" for number in range(len(fields))]
    made: list[tuple[str, Any, Any]] = [(number, Any, msgspec.UNSET) for number in numbered]
    part = msgspec.defstruct("Part", made, rename=dict(zip(numbered, fields, strict=True)), gc=False)
    return _Learned(fields, msgspec.json.Decoder(part).decode, operator.attrgetter(*numbered))
