"""Protobuf bodies, as Go's typed clients send them, read into objects.

`kubectl create namespace` and `kubectl auth can-i` are such clients. Only reading: answers are JSON, which
these clients read as well. The fields are those of `protobuf_fields.txt`. The wire format does not tell an
unset field from a zero, so zeros are left out, except those of replicas. Custom kinds have no protobuf.
"""

import base64
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from declctl.kit.protobuf import message_fields
from declctl.objects import KubeObject
from declctl.sandbox.structure import Schema

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_PACKAGES: Final = {"": "core", "rbac.authorization.k8s.io": "rbac", "meta.k8s.io": "meta"}
_MEANT_ZEROS: Final = frozenset({"replicas"})


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: str
    repeated: bool
    mapping: bool
    inline: bool


_NUMBERS_AND_TEXTS: Final = frozenset(
    {"s", "b", "B", "i", "d", "meta.v1.Time", "meta.v1.MicroTime", "resource.Quantity", "intstr.IntOrString"}
)
_ANYTHING: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
OBJECT_META: Final = "meta.v1.ObjectMeta"
_Messages = Mapping[str, Mapping[int, _Field]]


def decode(body: bytes) -> KubeObject:
    """The object in a protobuf body; raises ValueError with a sentence if there is none that can be read."""
    if not body.startswith(_MAGIC):
        raise ValueError("the body is no Kubernetes protobuf: it does not begin with k8s")
    try:
        envelope = dict(message_fields(body[len(_MAGIC) :]))
        names = dict(message_fields(envelope[1]))
        api_version, kind = names[1].decode(), names[2].decode()
        message = _message_name(api_version, kind)
        if message not in _messages():
            raise ValueError(f"{kind} of {api_version} can't be read from protobuf: send it as JSON")
        return {"apiVersion": api_version, "kind": kind, **_object(envelope.get(2, b""), message)}
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise ValueError(f"the protobuf is broken: {error!r}") from error


def _message_name(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    if kind == "DeleteOptions":
        return "meta.v1.DeleteOptions"
    return f"{_PACKAGES.get(group, group.partition('.')[0])}.{version}.{kind}"


def built_in_schema(api_version: str, kind: str) -> Schema | None:
    """The fields of a built-in kind, as a schema that says nothing of their values; None for another kind."""
    schema = message_schema(_message_name(api_version, kind))
    if schema is _ANYTHING:
        return None
    return {"properties": {"apiVersion": {}, "kind": {}, **schema["properties"]}}


@functools.cache
def message_schema(message: str) -> Schema:
    """The fields of a message, as a schema that says nothing of their values. An unknown one has any."""
    if message not in _messages():
        return {} if message in _NUMBERS_AND_TEXTS else _ANYTHING
    properties: dict[str, Schema] = {}
    for each in _messages()[message].values():
        schema = message_schema(each.type)
        if each.inline:
            properties.update(schema["properties"])
        elif each.mapping:
            properties[each.name] = {"additionalProperties": schema}
        else:
            properties[each.name] = {"items": schema} if each.repeated else schema
    return {"properties": properties}


def _object(data: bytes, message: str) -> KubeObject:
    fields = _messages()[message]
    obj: KubeObject = {}
    for number, raw in message_fields(data):
        field = fields.get(number)
        if field is None:  # newer than this table
            continue
        if field.mapping:
            entry = dict(message_fields(raw))
            value = _value(entry.get(2, b""), field.type)
            obj.setdefault(field.name, {})[entry.get(1, b"").decode()] = value
        elif field.repeated:
            obj.setdefault(field.name, []).append(_value(raw, field.type))
        elif field.inline:
            obj.update(_value(raw, field.type))
        else:
            value = _value(raw, field.type)
            if value not in ("", 0, False, None) or (value == 0 and field.name in _MEANT_ZEROS):
                obj[field.name] = value
    return obj


def _value(raw: Any, of_type: str) -> Any:
    read = _SCALARS.get(of_type)
    return read(raw) if read is not None else _object(raw, of_type)


def _integer(raw: int) -> int:
    return raw - (1 << 64) if raw >= 1 << 63 else raw


def _time(raw: bytes, *, micro: bool = False) -> str | None:
    entry = dict(message_fields(raw))
    seconds, nanos = _integer(entry.get(1, 0)), _integer(entry.get(2, 0))
    if not seconds:
        return None
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{nanos // 1000:06d}Z" if micro else f"{text}Z"


def _int_or_string(raw: bytes) -> Any:
    entry = dict(message_fields(raw))
    return entry.get(3, b"").decode() if entry.get(1) else _integer(entry.get(2, 0))


def _raw_json(raw: bytes) -> Any:
    return json.loads(dict(message_fields(raw)).get(1) or b"{}")


_SCALARS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "s": lambda raw: raw.decode(),
    "b": lambda raw: base64.b64encode(raw).decode(),
    "B": bool,
    "i": _integer,
    "meta.v1.Time": _time,
    "meta.v1.MicroTime": lambda raw: _time(raw, micro=True),
    "resource.Quantity": lambda raw: dict(message_fields(raw)).get(1, b"").decode(),
    "intstr.IntOrString": _int_or_string,
    "meta.v1.FieldsV1": _raw_json,
    "runtime.RawExtension": _raw_json,
}


@functools.cache
def _messages() -> _Messages:
    text = resources.files("declctl.sandbox").joinpath("protobuf_fields.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: dict(_field(entry) for entry in entries) for name, *entries in lines}


def _field(entry: str) -> tuple[int, _Field]:
    name, number, of_type = entry.split(":")
    marks = of_type[: len(of_type) - len(of_type.lstrip("*%~"))]
    return int(number), _Field(name, of_type.lstrip("*%~"), "*" in marks, "%" in marks, "~" in marks)
