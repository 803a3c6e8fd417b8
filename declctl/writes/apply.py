"""Objects of handlers as documents of a server-side apply: checked, copied, and put into a namespace."""

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import Field, is_dataclass
from typing import Any, ClassVar, Protocol, TypeGuard, cast

import msgspec

from declctl.errors import InvalidWrite
from declctl.kit.text import visible
from declctl.objects import GroupVersionKind, KubeObject, ObjectKey, ObjectView, Resource
from declctl.objects.resource import MOST_FIELD_MANAGER


class DataclassInstance(Protocol):
    """An object of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Typed = msgspec.Struct | DataclassInstance
"""A value whose type names its fields, written as msgspec encodes it. It may be part of other values."""
Writable = Mapping[str, Any] | Typed
"""An object as a hook may write it."""
Discover = Callable[[GroupVersionKind], Awaitable[Resource]]
"""The resource of a kind; raises NotFound while the server does not serve it."""

_SERVER_SIDE = ("managedFields", "creationTimestamp", "generation", "deletionTimestamp", "selfLink")
_OF_ONE_STATE = ("uid", "resourceVersion")
_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**63 - 1  # an API server rounds any other number
_DEEPEST = 200  # levels of an object
_HINT = "apply takes an object as in YAML: apiVersion, kind, metadata.name, and the fields to set"


class AppliedDocument(msgspec.Struct, frozen=True):
    """An object to apply: a private copy of JSON values."""

    kind: GroupVersionKind
    name: str
    namespace: str | None  # as it was written; None if it was not
    body: KubeObject

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def document_of(obj: object) -> AppliedDocument:
    """Check an object and copy it. From any thread.

    `obj` is a mapping as in YAML, a typed value, or an ObjectView, all of whose fields are applied. Fields
    that only the server sets are left out; but for a view, `metadata.uid` and `metadata.resourceVersion`
    stay, as preconditions. Raises InvalidWrite.
    """
    if not isinstance(obj, Mapping) and not is_typed(obj):
        raise InvalidWrite(f"a {type(obj).__name__} can't be applied: {_HINT}")
    body = plain_json(obj.to_dict() if isinstance(obj, ObjectView) else cast("Writable", obj))
    api_version, kind = (_text(body, name, name) for name in ("apiVersion", "kind"))
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        raise InvalidWrite(f"a {kind} without metadata can't be applied: {_HINT}")
    fields = cast("KubeObject", metadata)
    if not fields.get("name") and fields.get("generateName"):
        raise InvalidWrite(
            f"a {kind} with metadata.generateName can't be applied, as each apply would make another object: "
            "compute a metadata.name, such as from the name of the object that is reconciled"
        )
    name = _text(fields, "name", "metadata.name")
    namespace = fields.get("namespace")
    if namespace is not None and not (isinstance(namespace, str) and namespace):
        raise InvalidWrite(f"metadata.namespace of the {kind} {name} is {namespace!r}; it has to be a text")
    _check_metadata(fields, f"{kind} {name}")
    server_side = (*_SERVER_SIDE, *_OF_ONE_STATE) if isinstance(obj, ObjectView) else _SERVER_SIDE
    for field in server_side:
        fields.pop(field, None)
    return AppliedDocument(GroupVersionKind.of(api_version, kind), name, namespace, body)


def _check_metadata(metadata: KubeObject, what: str) -> None:
    """Check the fields to which `apply_set` adds its own. Raises InvalidWrite."""
    if not isinstance(metadata.get("labels") or {}, dict):
        raise InvalidWrite(f"metadata.labels of the {what} is {metadata['labels']!r}; it has to be a dict")
    references = metadata.get("ownerReferences") or []
    if not isinstance(references, list):
        raise InvalidWrite(f"metadata.ownerReferences of the {what} is {references!r}; it has to be a list")
    for index, each in enumerate(cast("list[Any]", references)):
        if not isinstance(each, dict):
            raise InvalidWrite(
                f"metadata.ownerReferences[{index}] of the {what} is {each!r}; it has to be a dict with "
                "apiVersion, kind, name and uid. apply_set adds the object of the call as an owner by itself"
            )


def placed(document: AppliedDocument, resource: Resource, default: str | None) -> ObjectKey:
    """The key of a document, whose body gets the namespace; see `key_in`. Raises InvalidWrite."""
    key = key_in(resource, document.name, document.namespace, default, what=str(document))
    if key.namespace is not None:
        document.body["metadata"]["namespace"] = key.namespace
    return key


def key_in(
    resource: Resource, name: str, namespace: str | None, default: str | None, *, what: str
) -> ObjectKey:
    """The key of an object of a resource. By default it is in the namespace `default`; `what` names it.

    Raises InvalidWrite for a missing namespace, and for one that the kind does not have.
    """
    if not resource.namespaced:
        if namespace is not None:
            raise InvalidWrite(
                f"{what} has the namespace {namespace}, but {resource} are cluster-scoped: leave it out"
            )
        return ObjectKey.of(None, name)
    namespace = namespace or default
    if namespace is None:
        raise InvalidWrite(
            f"{what} needs a namespace, because the call is not about an object of a namespace"
        )
    return ObjectKey.of(namespace, name)


def has_applied(manager: str, metadata: Mapping[str, Any]) -> bool:
    """Whether a field manager has applied fields of an object with these metadata."""
    return any(
        each.get("manager") == manager and each.get("operation") == "Apply"
        for each in metadata.get("managedFields") or ()
    )


def has_preconditions(document: AppliedDocument) -> bool:
    """Whether the apply fails with 409 if the object has another uid or version than the document."""
    return any(document.body["metadata"].get(field) for field in _OF_ONE_STATE)


def field_manager(controller: str, handler: str) -> str:
    """The field manager of a handler: `declctl/<controller>/<handler>`, at most 128 characters.

    A longer one ends with a digest, so that it stays the same, and differs from others.
    """
    name = f"declctl/{controller}/{handler}"
    if len(name) <= MOST_FIELD_MANAGER and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    shown = "".join(letter for letter in name if letter.isprintable())
    return f"{shown[: MOST_FIELD_MANAGER - 17]}-{digest}"


def is_typed(value: object) -> TypeGuard[Typed]:
    """Whether a value is a Struct or of a dataclass, and no ObjectView, which is a mapping."""
    if isinstance(value, msgspec.Struct):
        return not isinstance(value, Mapping)
    return is_dataclass(value) and not isinstance(value, type)


def plain_json(obj: Writable) -> KubeObject:
    """A copy that consists of plain JSON values, so that it can be sent and encoded in any way.

    Subclasses of str, int, float, dict and list become plain values, and typed values what msgspec makes of
    them. Raises InvalidWrite for any other value and for other keys than texts, with the place.
    """
    found = _plain(dict(obj) if isinstance(obj, Mapping) else obj, "", 0)
    if not isinstance(found, dict):
        raise InvalidWrite(f"a {type(obj).__name__} is written as a list, and not as an object with fields")
    return cast("KubeObject", found)


def _plain(value: Any, place: str, depth: int) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return _text_of(value, place)
        case int():
            if not _LEAST_INTEGER <= value <= _MOST_INTEGER:
                raise _unwritable(place, f"the number {value} does not fit into 64 bits", "write a text")
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case dict() | list() | tuple() if depth == _DEEPEST:
            raise _unwritable(
                place, f"there are more than {_DEEPEST} levels, or a value contains itself", "flatten it"
            )
        case dict():
            fields = cast("dict[Any, Any]", value)
            return {
                _key(name, place): _plain(each, f"{place}.{name}" if place else str(name), depth + 1)
                for name, each in fields.items()
            }
        case list() | tuple():
            elements = cast("list[Any]", value)
            return [_plain(each, f"{place}[{index}]", depth + 1) for index, each in enumerate(elements)]
        case _ if is_typed(value):
            return _plain(_builtins(value, place), place, depth)
        case _:
            found = repr(value) if isinstance(value, float) else f"a {type(value).__name__}"
            hint = "convert it to a text, a number, a boolean, a list or a dict"
            raise _unwritable(place, f"JSON has no {found}", hint)


def _builtins(value: Any, place: str) -> Any:
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError) as fault:
        hint = "give its fields types that msgspec encodes"
        raise _unwritable(place, f"a {type(value).__name__} can't be encoded: {fault}", hint) from fault


def _text_of(value: str, place: str) -> str:
    text = str.__str__(value)  # also of an enumeration, whose own texts are others
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _unwritable(place, f"{text!r} has half of a surrogate pair", "decode the text anew") from None
    return text


def _key(name: object, place: str) -> str:
    if isinstance(name, str):
        return _text_of(name, place)
    hint = "write the key in quotes"
    if isinstance(name, bool):
        hint += ", as YAML reads on, off, yes and no without quotes as booleans"
    raise _unwritable(place, f"the key {name!r} is no text", hint)


def _unwritable(place: str, fault: str, hint: str) -> InvalidWrite:
    where = f" at {visible(place)}" if place else ""
    return InvalidWrite(f"the object has a value{where} that JSON can't write: {fault}; {hint}")


def _text(holder: KubeObject, field: str, place: str) -> str:
    value = holder.get(field)
    if not isinstance(value, str) or not value:
        found = "is missing" if value is None else f"is {value!r}"
        raise InvalidWrite(f"{place} {found}: {_HINT}")
    return value
