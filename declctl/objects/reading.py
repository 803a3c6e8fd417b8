"""Reading JSON that others wrote: whatever is wrong with it becomes one error with its beginning."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.record import KubeObject
from declctl.objects.splitting import member

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # all that decoding may raise


def mapping(value: Any) -> Mapping[str, Any]:
    """The value, or an empty mapping where it is none."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def decoded(raw: bytes) -> Any:
    """What these bytes are; raises MalformedAnswer if they are no JSON."""
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE as fault:
        raise no_json(raw, fault) from fault


def json_object(raw: bytes) -> KubeObject:
    """The JSON object that these bytes are; raises MalformedAnswer if they are something else."""
    obj = decoded(raw)
    if not isinstance(obj, dict):
        raise MalformedAnswer(f"an object is no JSON object; it begins with {raw[:120]!r}")
    return cast("KubeObject", obj)


def named_object(raw: bytes) -> KubeObject:
    """The same; raises MalformedAnswer if it has no name, too."""
    obj = json_object(raw)
    if not mapping(obj.get("metadata")).get("name"):
        raise no_name(raw)
    return obj


def identity_of(raw: bytes) -> Mapping[str, Any]:
    """The metadata of an object of which the rest may be unreadable.

    Raises MalformedAnswer if they are unreadable, too, or have no name.
    """
    try:
        found = json_object(raw).get("metadata")
    except MalformedAnswer as fault:
        try:
            found = decoded(member(raw, "metadata"))
        except ValueError:
            raise fault from None
    identity = mapping(found)
    if not identity.get("name"):
        raise no_name(raw)
    return identity


def no_json(raw: bytes, fault: Exception) -> MalformedAnswer:
    """The error of bytes that can't be decoded."""
    return MalformedAnswer(f"an object is no JSON: {fault}; it begins with {raw[:120]!r}")


def no_name(raw: bytes) -> MalformedAnswer:
    """The error of an object that nobody can store."""
    return MalformedAnswer(f"an object has no metadata.name; it begins with {raw[:120]!r}")
