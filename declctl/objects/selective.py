"""Asking a function of many objects, of which only what it reads is decoded: learned from the objects before.

An index function or a filter looks at the same few fields of every object. The rest of each object is
skipped, and of these fields only those values are decoded that are read: that takes half of the time of
decoding it all. A function that reads more gets it all the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import GeneratorType, MappingProxyType
from typing import Any, NamedTuple, TypedDict, TypeVar

import msgspec

from declctl.objects.held import FILLED_IN, HeldObject
from declctl.objects.lazy import LazyDict, lazily
from declctl.objects.reading import UNREADABLE
from declctl.objects.record import KubeObject, Record
from declctl.objects.view import ObjectView

Answer = TypeVar("Answer")

_NONE = frozenset[str]()
_MOST_FIELDS = 3  # who reads more of an object has it decoded in one go


class _Learned(NamedTuple):
    """Top-level fields that are read, those of them that are decoded lazily, and how to decode them."""

    fields: frozenset[str]
    lazy: tuple[str, ...]
    decode: Callable[[bytes], KubeObject]


class SelectiveReader:
    """The reader of many objects of one kind. Any thread may use it."""

    def __init__(self) -> None:
        self._learned: _Learned | None = _learned({})

    @property
    def fields(self) -> Mapping[str, bool] | None:
        """The fields that are decoded of the next object, and whether each is decoded value by value.

        None if so much was read that all is decoded.
        """
        learned = self._learned
        return None if learned is None else {field: field in learned.lazy for field in learned.fields}

    @property
    def reads(self) -> bool:
        """Whether it is to be expected that a part of the next object is decoded."""
        return self._learned is not None and bool(self._learned.fields)

    def ask(self, function: Callable[[ObjectView], Answer], record: Record, plain: Any = None) -> Answer:
        """What a function says of an object; raises what it raises.

        What it reads, it reads before it returns: of a generator, a list is made. Where it raises, or was
        given something that it does not seem to have read, it is asked once more, with all decoded.

        `plain` is the JSON of the object, as a buffer, if that is at hand.
        """
        if self._learned is None or (plain is None and isinstance(record.frame, HeldObject)):
            return function(ObjectView(record))
        view = _SelectiveView(record, _reader=self, _plain=plain)
        try:
            answer: Any = function(view)
            if type(answer) is GeneratorType:
                answer = list(answer)
        except Exception:
            if not view.given:
                raise
        else:
            if self._seen(view.given):
                return answer
        answer = function(ObjectView(record))
        self._decode_eagerly(value.field for value in view.given)
        return answer

    def learn(self, field: str, *, lazy: bool) -> None:
        """A field was read; it is decoded value by value if it is said to be `lazy`."""
        fields = self.fields
        if fields is None or fields.get(field) is lazy:
            return
        fields = {**fields, field: lazy}
        if field in FILLED_IN or len(fields) > _MOST_FIELDS:
            self.learn_all()
        else:
            self._learned = _learned(fields)

    def learn_all(self) -> None:
        """All of an object was read."""
        self._learned = None

    def part(self, record: Record, plain: Any) -> tuple[frozenset[str], KubeObject]:
        """The fields that are decoded of an object, and those of them that it has."""
        learned = self._learned
        if learned is None or not learned.fields:
            return _NONE, {}
        fields, lazy, decode = learned
        try:
            part = decode(record.layout.codec.decode(record.frame) if plain is None else plain)
        except msgspec.ValidationError:
            self._decode_eagerly(lazy)  # something else than an object stands there
            return _NONE, {}
        except UNREADABLE:
            return _NONE, {}  # whoever decodes all of it says what is wrong with it
        for field in lazy:
            raw = part.get(field)
            if raw is not None:
                part[field] = lazily(field, raw)
        return fields, part

    def _seen(self, given: Sequence[LazyDict]) -> bool:
        """Whether all that was given is known to have been read."""
        seen = True
        for value in given:
            if value.walked or not value.read:
                self.learn(value.field, lazy=False)
                seen = seen and bool(value.read)
        return seen

    def _decode_eagerly(self, fields: Iterable[str]) -> None:
        for field in fields:
            self.learn(field, lazy=False)


class _SelectiveView(ObjectView, kw_only=True):
    """What its reader has not read of other objects, and reads of this one, decodes all of it.

    `given` is what was read of it that is not decoded.
    """

    _reader: SelectiveReader
    _plain: Any  # a buffer of JSON, if there is one
    _fields: frozenset[str] = _NONE  # decoded so far
    _part: KubeObject | None = None  # what the object has of them; None before anything was read
    given: tuple[LazyDict, ...] = ()

    def __getitem__(self, field: str) -> Any:
        if self._body is None:
            part = self._part
            if part is None:
                self._fields, part = self._reader.part(self._record, self._plain)
                self._part = part
            if field in part:
                value = part[field]
                if type(value) is LazyDict and value.read is None:
                    value.read = False
                    self.given = (*self.given, value)
                return value
            if field not in self._fields:
                value = self._complete().get(field)
                self._reader.learn(field, lazy=value is None or isinstance(value, dict))
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
            self._reader.learn_all()
            return self._complete()
        return self._body

    def _complete(self) -> KubeObject:
        # What was given before stays the reader's own: it may have changed it.
        part = self._part or {}
        kept = {field: value for field, value in part.items() if type(value) is not LazyDict}
        lazy = {value.field: value for value in self.given}
        body = self._body = {**self._record.read(), **kept, **lazy}
        return body


def _learned(fields: Mapping[str, bool]) -> _Learned:
    kinds = {field: dict[str, msgspec.Raw] | None if lazy else Any for field, lazy in fields.items()}
    part: Any = TypedDict("part", kinds, total=False)  # pyright: ignore - its fields are learned
    lazy = tuple(field for field in fields if fields[field])
    return _Learned(frozenset(fields), lazy, msgspec.json.Decoder(part).decode)
