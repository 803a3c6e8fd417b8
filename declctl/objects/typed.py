"""Typed objects: views whose `spec`, `status` and other fields are read into types of the user.

    class Preview(declctl.Object[PreviewSpec, PreviewStatus]): ...

A field is decoded from the frame straight into its type, at its first read, and only that part of the JSON is
decoded. msgspec reads structs, dataclasses, TypedDicts and all types of Python. A class with a class method
`model_validate`, as models of pydantic have it, reads its part itself.

A class belongs to the generation that has imported it, and records belong to none. So a view is made of a
record and a class when the record is read. For the same reason decoders are kept by the class itself, and
`Object[Spec, Status]` is no alias of `typing`, which would keep the code of old generations in memory.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    overload,
)

import msgspec

from declctl.errors import InvalidObject
from declctl.objects.conditions import Condition, condition_of
from declctl.objects.fields import PathStruct
from declctl.objects.frame import UNREADABLE, HeldObject, KubeObject
from declctl.objects.plain import plain_record
from declctl.objects.record import FieldView, ObjectView, undecodable

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import TypeVar as DefaultTypeVar

    S = DefaultTypeVar("S", default=Mapping[str, Any])
    T = DefaultTypeVar("T", default=Mapping[str, Any])
else:
    S, T = TypeVar("S"), TypeVar("T")
V = TypeVar("V")

Untyped = dict[str, Any]
"""The type of `spec` and `status` in a class that names none."""

_PLACE = re.compile(r" - at (?:`key` in )?`\$(?P<steps>[^`]*)`$")
_EMPTY = ({}, [])  # of what an absent field is decoded; the first one that fits


class _Model(Protocol):
    """A class that reads its part of an object itself, as a model of pydantic does."""

    @classmethod
    def model_validate(cls, obj: Any, /) -> Any: ...


class TypedField(Generic[V]):
    """A top-level field of an object that is read into a type; made by `declctl.field`, and for `spec`.

    Raises InvalidObject for an object that does not fit. Raises TypeError at the first read, and by `check`,
    for a type that can't be read from JSON.
    """

    def __init__(self, kind: Any, name: str | None = None) -> None:
        self.kind = kind  # the type
        self.name = name or ""  # of the field in JSON
        self.decode: Callable[[Any], Any] | None = None  # what `decoder` returns, after its first call
        self._copies = False  # see `_copies_all`

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @overload
    def __get__(self, obj: None, owner: Any) -> "Self": ...
    @overload
    def __get__(self, obj: ObjectView, owner: Any) -> V: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self if obj is None else obj.typed_value(self)

    def check(self) -> None:
        """Raise TypeError if the type can't be read from JSON."""
        self.decoder()

    def decoder(self) -> Callable[[Any], Any]:
        """Decodes the JSON of an object; `f0` is the value, and None for an absent field, and for null."""
        if self.decode is None:
            self._copies = _copies_all(self.kind)
            path = PathStruct([(self.name,)], leaf=self.kind | None, hook=_read_model)
            self.decode = path.decode
        return self.decode

    def held(self, body: KubeObject) -> V | None:
        """The value in a decoded object that has other readers, too; None if it would share a part of it."""
        self.decoder()
        if not self._copies:
            return None
        found = body.get(self.name)
        return self.empty() if found is None else self._convert(found)

    def empty(self) -> V:
        """The value of an absent field. Raises msgspec's ValidationError."""
        first: msgspec.ValidationError | None = None
        for empty in _EMPTY:
            try:
                return self._convert(empty)
            except msgspec.ValidationError as fault:
                first = first or fault
        assert first is not None
        raise first

    def _convert(self, value: Any) -> V:
        return msgspec.convert(value, self.kind, dec_hook=_read_model)


def field(kind: type[V], *, name: str | None = None) -> TypedField[V]:
    """A typed top-level field of a class of objects, such as `data = declctl.field(dict[str, str])`.

    `name` is that of the field in JSON, by default that of the attribute. A field that the object does not
    have is read as if it was empty.
    """
    return TypedField(kind, name)


class Object(FieldView, Generic[S, T], kw_only=True):
    """The base of classes of typed objects: an `ObjectView` whose `spec` is an S, and its `status` a T.

    Each typed field is decoded at its first read, and kept. Fields that the type does not know are ignored by
    it, and the object has them: `obj["spec"]`, labels, key and `to_dict()` are as of any view. An object
    without a `status`, or with null there, has the T of `{}`; so it is with `spec`. Raises InvalidObject,
    with the path, for an object that does not fit. A view is for one thread at a time, and so are its values.
    """

    __custom_resource__: ClassVar[Any] = None  # what `declctl.custom_resource` says of the class
    _values: dict[TypedField[Any], Any] | None = None  # the typed fields that were read

    if TYPE_CHECKING:

        @property
        def spec(self) -> S:
            """`spec`, as an S. Raises InvalidObject."""
            ...

        @property
        def status(self) -> T:
            """`status`, as a T. Raises InvalidObject."""
            ...

    else:
        __class_getitem__ = classmethod(GenericAlias)  # typing's is kept in a cache, and all code with it
        spec = TypedField(Untyped)
        status = TypedField(Untyped)

    def __init_subclass__(cls, **options: Any) -> None:
        """Give the class its own `spec` and `status`. Raises TypeError for a type that is no type."""
        super().__init_subclass__(**options)
        for name, kind in zip(("spec", "status"), _types_of(cls), strict=True):
            if isinstance(kind, str):
                raise TypeError(f"the {name} of {cls.__name__} is the text {kind!r}: write the class itself")
            # With a type variable, the class is generic, or leaves the field untyped.
            if not isinstance(kind, TypeVar) and name not in vars(cls):
                setattr(cls, name, TypedField[Any](kind, name))

    @classmethod
    def new(
        cls,
        name: str,
        namespace: str | None = None,
        *,
        spec: S | None = None,
        status: T | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> KubeObject:
        """A new object as a plain mapping, for `ctx.apply` and tests, with apiVersion and kind of the class.

        `fields` are further top-level fields. A value of None in `spec` or `status` is left out. Raises
        TypeError for a class that `declctl.custom_resource` does not decorate.
        """
        resource = cls.__custom_resource__
        if resource is None:
            raise TypeError(
                f"{cls.__name__}.new needs apiVersion and kind, which @declctl.custom_resource gives a class"
            )
        metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
        given = {"metadata": metadata, "spec": spec, "status": status, **fields}
        plain = msgspec.to_builtins(given, enc_hook=_plain_model, str_keys=True)
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            **_without_none(plain),
        }

    @classmethod
    def of(cls, obj: KubeObject) -> "Self":
        """A view of an object that is in no cache, such as what `new` returns; for tests of functions."""
        return cls(plain_record(obj))

    def condition(self, kind: str) -> Condition | None:
        """As of any view; only the status is decoded."""
        return condition_of(self._record.key, self.typed_value(_CONDITIONS).conditions, kind)

    def typed_value(self, field: TypedField[V]) -> V:
        """The value of a typed field, which is decoded once. Raises InvalidObject and MalformedAnswer."""
        values = self._values
        if values is None:
            values = self._values = {}
        elif field in values:
            return values[field]
        # In one function, as each call costs as much as a fifth of the decoding.
        record, found = self._record, None
        layout, frame = record.layout, record.frame
        if layout.hides:
            self.get(field.name)  # its values are remembered
        try:
            if isinstance(frame, HeldObject) and frame.body is not None:
                found = field.held(frame.body)
            if found is None:
                text = self._text
                if text is None:
                    text = self._text = layout.codec.decode(frame)
                found = (field.decode or field.decoder())(text).f0
            if found is None:
                found = field.empty()
        except msgspec.ValidationError as fault:
            path, sentence = _place_of(fault, field.name)
            raise InvalidObject(record.key, type(self).__name__, path, sentence) from None
        except UNREADABLE as fault:
            raise undecodable(record.key, fault) from fault
        values[field] = found
        return found


class _Conditions(msgspec.Struct):
    """A status, of which only the conditions are read."""

    conditions: list[dict[str, Any]] | None = None


_CONDITIONS = TypedField[_Conditions](_Conditions, "status")


def typed_fields(kind: type[Object[Any, Any]]) -> Sequence[TypedField[Any]]:
    """The fields of a class that have types of the user."""
    named: dict[str, TypedField[Any]] = {}
    for each in reversed(kind.__mro__):
        if each is not Object:
            named.update({name: value for name, value in vars(each).items() if isinstance(value, TypedField)})
    return tuple(named.values())


def require_fit(view: ObjectView) -> None:
    """Read the typed fields of an object, if its class has some. Raises InvalidObject."""
    if isinstance(view, Object):
        for each in typed_fields(type(view)):
            each.__get__(view, type(view))


def _types_of(kind: type[Any]) -> tuple[Any, Any]:
    """The types of spec and status of a class; a type variable if the class leaves it open."""
    if kind is Object:
        return S, T
    for base in vars(kind).get("__orig_bases__", kind.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, Object):
            variables: Sequence[Any] = cast("Any", origin).__parameters__
            given = dict(zip(variables, get_args(base), strict=False))
            spec, status = _types_of(origin)
            return given.get(spec, spec), given.get(status, status)
    return S, T


def _copies_all(kind: Any) -> bool:
    """Whether a value that is read into a type shares no part with the decoded JSON that it is read from.

    Raises TypeError, with the place, for a type that JSON can't be read into.
    """
    known = msgspec.inspect
    waiting: list[tuple[Any, str]] = [(known.type_info(kind), "")]
    seen, copies = set[Any](), True
    while waiting:
        found, place = waiting.pop()
        inner = getattr(found, "cls", None)
        copies = copies and not isinstance(found, known.AnyType | known.CustomType)
        is_model = inner is object or hasattr(inner, "model_validate")
        if isinstance(found, known.CustomType) and not is_model:
            where = f"{place} is of" if place else "it is"
            raise TypeError(f"{where} the class {found.cls.__name__}, which can't be read from JSON")
        if inner is not None and inner in seen:
            continue
        seen.add(inner)
        name = getattr(inner, "__name__", "")
        waiting += [(each.type, f"{name}.{each.name}") for each in getattr(found, "fields", ())]
        parts = [getattr(found, part, None) for part in ("item_type", "key_type", "value_type", "type")]
        parts += (*getattr(found, "types", ()), *getattr(found, "item_types", ()))
        waiting += [(each, place) for each in parts if isinstance(each, known.Type)]
    return copies


def _read_model(kind: type[_Model], value: Any) -> Any:
    """The value of a class that reads it itself. Raises what that raises, which msgspec locates.

    `object` stands for any JSON, as in `dict[str, object]`; msgspec asks for it as for any other class.
    """
    return value if kind is object else kind.model_validate(value)


def _plain_model(value: Any) -> Any:
    """What msgspec can't write: a model of pydantic, or a mapping."""
    dump: Any = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"a {type(value).__name__} can't be part of an object")


def _without_none(value: Any) -> Any:
    """The same JSON without the fields of mappings that are null."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: _without_none(each) for name, each in fields.items() if each is not None}
    return [*map(_without_none, cast("list[Any]", value))] if isinstance(value, list) else value


def _place_of(fault: msgspec.ValidationError, field: str) -> tuple[str, str]:
    """The path of a fault in the object, such as `spec.hosts[*].name`, and its sentence."""
    text = str(fault)
    found = _PLACE.search(text)
    steps, sentence = (found["steps"], text[: found.start()]) if found else ("", text)
    steps = steps.removeprefix(f".{field}").replace("[...]", "[*]")
    if not steps:
        sentence = sentence.replace(" | null`", "`", 1)  # an absent field would be read
    # A model of pydantic lists its faults; the text of the exception would quote the values.
    errors: Any = getattr(fault.__cause__, "errors", None)
    if errors is not None and (listed := errors()):
        first, more = listed[0], len(listed) - 1
        steps += "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        sentence = f"{first['msg']}{f' (and {more} more)' if more else ''}"
    return f"{field}{steps}", sentence
