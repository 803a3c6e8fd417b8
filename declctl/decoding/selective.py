"""Asking a function of many objects, of which only what it reads is decoded: learned from the objects before.

An index function or a filter looks at the same few values of every object. The rest of each object is
skipped: that takes a third of the time of decoding it all. A function that reads more gets it all the same.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import GeneratorType, MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar, cast

import msgspec

from declctl.decoding.lazy import LazyDict, Source, lazily
from declctl.objects.answers import UNREADABLE
from declctl.objects.frame import FILLED_IN, HeldObject
from declctl.objects.read_only import ReadOnlyDict, read_only
from declctl.objects.record import KubeObject, ObjectView, Record

Answer = TypeVar("Answer")
How: TypeAlias = frozenset[str] | Literal["each", "whole"]
"""How a field is decoded: the keys of it that are looked for, all of them but each alone when it is read, or
as a whole. Where no key has been found yet, it is each."""

_MOST_FIELDS = 3  # who reads more of an object has it decoded in one go
_MOST_KEYS = 8  # and who looks for more keys of a field gets them all


class _Learned(NamedTuple):
    """Top-level fields that are read, and how to decode them; `lazy` are those that are not decoded whole.

    `sought` reads all keys that are looked for, as one value or a tuple; None where there may be others.
    """

    fields: Mapping[str, How]
    lazy: Sequence[Source]
    decode: Callable[[Any], KubeObject]
    sought: Callable[[Any], Any] | None


class SelectiveReader:
    """The reader of many objects of one kind. Any thread may use it."""

    def __init__(self) -> None:
        self._learned: _Learned | None = _NOTHING

    @property
    def fields(self) -> Mapping[str, How] | None:
        """The fields that are decoded of the next object; None if so much was read that all are."""
        return None if self._learned is None else self._learned.fields

    @property
    def reads(self) -> bool:
        """Whether it is to be expected that a part of the next object is decoded."""
        return bool(self.fields)

    def ask(self, function: Callable[[ObjectView], Answer], record: Record, plain: Any = None) -> Answer:
        """What a function says of an object; raises what it raises.

        What it reads, it reads before it returns: of a generator, a list is made. Where it raises, or was
        given something that it does not seem to have read, it is asked once more, with all decoded.

        `plain` is the JSON of the object, as a buffer, if that is at hand.
        """
        return self._ask(function, record, record, plain)

    def ask_watched(
        self, function: Callable[[ObjectView], Answer], record: Record, plain: Any
    ) -> tuple[Answer, bool]:
        """The same, and whether it has looked at nothing else than what `signature` gives."""
        watched, learned = _Watched(record), self._learned
        answer = self._ask(function, record, cast("Record", watched), plain)
        return answer, not watched.seen and self._learned is learned

    def signature(self, plain: Any) -> str | tuple[str, ...] | None:
        """What stands in an object where functions look; None if that is no text, or not known exactly.

        `plain` is its JSON, as a buffer.
        """
        learned = self._learned
        if learned is None or learned.sought is None:
            return None
        try:
            found = learned.sought(plain)
        except UNREADABLE:
            return None  # also where a field is missing
        if type(found) is str or (type(found) is tuple and all(type(each) is str for each in found)):
            return found
        return None

    def _ask(
        self, function: Callable[[ObjectView], Answer], record: Record, shown: Record, plain: Any
    ) -> Answer:
        learned = self._learned
        if learned is None or (plain is None and isinstance(record.frame, HeldObject)):
            return function(ObjectView(shown))
        learned, part = self._part(learned, record, plain)
        view = _SelectiveView(shown, _reader=self, _learned=learned, _part=part)
        try:
            answer: Any = function(view)
            if type(answer) is GeneratorType:
                answer = list(answer)
        except Exception:
            if not view.given():
                raise
        else:
            if self._was_read(learned, part):
                return answer
        answer = function(ObjectView(shown))
        self._decode_whole(value.source for value in view.given())
        return answer

    def learn(self, field: str, how: How) -> None:
        """A field was read; what was learned of it once is not forgotten."""
        fields = self.fields
        if fields is None or fields.get(field) in ("whole", how):
            return
        more: dict[str, How] = {**fields, field: how}
        if field in FILLED_IN or len(more) > _MOST_FIELDS or not _findable(field):
            self.learn_all()
        else:
            self._learned = _learned(more)

    def learn_all(self) -> None:
        """All of an object was read."""
        self._learned = None

    def _part(self, learned: _Learned, record: Record, plain: Any) -> tuple[_Learned, KubeObject]:
        """What an object has of the fields that are decoded, and which these are."""
        if not learned.fields:
            return learned, {}
        try:
            if plain is None:
                plain = record.layout.codec.decode(record.frame)
            part = learned.decode(plain)
        except msgspec.ValidationError:
            self._decode_whole(learned.lazy)  # something else than an object stands there
            return _NOTHING, {}
        except UNREADABLE:
            return _NOTHING, {}  # whoever decodes all of it says what is wrong with it
        for source in learned.lazy:
            raw = part.get(source.field)
            if raw is not None:
                part[source.field] = lazily(source, raw, plain)
        return learned, part

    def _was_read(self, learned: _Learned, part: KubeObject) -> bool:
        """Whether all that was given is known to have been read; learns what was read of it."""
        read = True
        for source in learned.lazy:
            value = part.get(source.field)
            if value is None or value.read is None or (value.read and value.plain is not None):
                continue  # most are read, and nothing else of them than of those before
            if value.walked or not value.read:
                self.learn(source.field, "whole")
                read = read and bool(value.read)
            elif learned.fields[source.field] != "each":
                self._learn_keys(source, value.keys_read())
        return read

    def _learn_keys(self, source: Source, found: frozenset[str]) -> None:
        """All keys of a field had to be there."""
        keys = source.sought | found
        if len(keys) > _MOST_KEYS or (keys and keys == source.sought) or not all(map(_findable, keys)):
            self.learn(source.field, "each")
        elif keys:
            self.learn(source.field, keys)

    def _decode_whole(self, sources: Iterable[Source]) -> None:
        for source in sources:
            self.learn(source.field, "whole")


class _Watched:
    """A record that knows whether anything of it was looked at."""

    __slots__ = ("_record", "seen")

    def __init__(self, record: Record) -> None:
        self._record = record
        self.seen = False

    def __getattr__(self, name: str) -> Any:
        self.seen = True
        return getattr(self._record, name)


class _SelectiveView(ObjectView, kw_only=True):
    """What its reader has not read of other objects, and reads of this one, decodes all of it."""

    _reader: SelectiveReader
    _learned: _Learned
    _part: KubeObject

    def given(self) -> Sequence[LazyDict]:
        """What was read of it that is not decoded."""
        values = [self._part.get(source.field) for source in self._learned.lazy]
        return [value for value in values if value is not None and value.read is not None]

    def __getitem__(self, field: str) -> Any:
        body = self._body
        if body is None:
            part = self._part
            if field in part:
                value = part[field]
                if type(value) is not LazyDict:
                    value = part[field] = read_only(value)
                elif value.read is None:
                    value.read = False
                return value
            if field in self._learned.fields:
                raise KeyError(field)
            body = self._complete()
            value = body.get(field)
            self._reader.learn(field, frozenset() if value is None or isinstance(value, dict) else "whole")
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
        # What was given before is given again: it is known then what of it was read.
        part = self._part.items()
        kept = {
            field: value for field, value in part if type(value) is not LazyDict or value.read is not None
        }
        body = self._body = ReadOnlyDict({**self._record.read(), **kept})
        return body


def _learned(fields: Mapping[str, How]) -> _Learned:
    lazy = [
        Source(field, _keys(how), _decoder({field: _EACH})) for field, how in fields.items() if how != "whole"
    ]
    decode = _decoder({field: _kind(field, how) for field, how in fields.items()})
    keys = {field: sorted(_keys(how)) for field, how in fields.items()}
    return _Learned(fields, lazy, decode, _sought(keys) if keys and all(keys.values()) else None)


def _sought(keys: Mapping[str, Sequence[str]]) -> Callable[[Any], Any]:
    # Structs, of which one call reads all that is sought. Their own names are not those of the keys.
    fields = {f"f{n}": field for n, field in enumerate(keys)}
    inner = {name: {f"k{n}": key for n, key in enumerate(keys[field])} for name, field in fields.items()}
    kinds = {name: _struct(dict.fromkeys(names, (Any, None)), names) for name, names in inner.items()}
    decode = msgspec.json.Decoder(_struct({name: (kind,) for name, kind in kinds.items()}, fields)).decode
    read = operator.attrgetter(*(f"{name}.{key}" for name, names in inner.items() for key in names))
    return lambda plain: read(decode(plain))


def _struct(fields: Mapping[str, tuple[Any, ...]], rename: Mapping[str, str]) -> Any:
    return msgspec.defstruct("Sought", [(n, *of) for n, of in fields.items()], rename=rename, gc=False)


def _findable(key: str) -> bool:
    # msgspec finds no other key of a TypedDict, neither in UTF-8 nor escaped; in a plain dict it does.
    return key.isascii()


def _keys(how: How) -> frozenset[str]:
    return how if isinstance(how, frozenset) else frozenset()


def _kind(field: str, how: How) -> Any:
    if how == "whole":
        return Any
    keys = _keys(how)
    return _typed(field, dict.fromkeys(keys, Any)) | None if keys else _EACH


def _decoder(kinds: Mapping[str, Any]) -> Callable[[Any], KubeObject]:
    return msgspec.json.Decoder(_typed("part", kinds)).decode


def _typed(name: str, kinds: Mapping[str, Any]) -> Any:
    return TypedDict(name, kinds, total=False)  # pyright: ignore - its fields are learned


_EACH = dict[str, msgspec.Raw] | None
_NOTHING = _learned({})
