"""`metadata.managedFields`: the fields that each manager owns, their values, and digests of both.

`declctl why` asks which write gave a field its value. Values may be secrets, and objects are large: so the
ledger of writes keeps a digest of each field with its value, four bytes for each.
"""

import itertools
import json
import zlib
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec

from declctl.objects.frame import KubeObject

T = TypeVar("T")

MOST_DIGESTS = 256
"""The most fields of one manager of which digests are made: 1 KB."""

CLIENT_MANAGER = "declctl"
"""The field manager of declctl's own requests that name none: the User-Agent up to its slash."""

Steps = tuple[str, ...]
"""The path of a field. A step is the name of a field, or an element of a list in brackets."""

_TOLERANCE = timedelta(seconds=5)  # by which the clock of the server may be behind ours
_METADATA, _FINALIZERS = "f:metadata", "f:finalizers"
_IDENTITY = ("name", "namespace")  # fields of the metadata of an apply that no manager owns
_KUBECTL = "kubectl"  # for which a server also renews the annotation of the last apply
_MISSING = object()
_PRESENT = object()  # the value of a field that is owned without what is below it


class ElementStep(str):
    """An element of a list, as a step: its text, such as `[name=web]`, with its keys and its position."""

    keys: Mapping[str, str]  # with their values as text; that of a set of plain values is ""
    position: int | None  # in the object; None if it is not there, or unknown


class AppliedFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of one manager in the answer to its write.

    The server sets the time of a manager's entry when a write changes the object. By its clock:
    """

    digests: bytes  # of `field_digests`; empty if there are too many fields
    changed: bool  # the write may have changed the object; otherwise it was as it is before
    created: bool  # the write may have created the object


def applied_fields(
    answer: KubeObject, *, manager: str, operation: str, subresource: str, since: datetime
) -> AppliedFields | None:
    """The fields of a manager in the answer to its write, which began at `since`; None if it has none.

    Raises nothing: the write has succeeded, whatever the server says of its fields.
    """
    try:
        entries = managed_entries(answer, manager, operation, subresource)
        if not entries:
            return None
        since -= _TOLERANCE
        return AppliedFields(
            field_digests(managed_values(answer, manager, operation, subresource)),
            changed=max(_time(entry.get("time")) for entry in entries) >= since,
            created=_time(answer["metadata"].get("creationTimestamp")) >= since,
        )
    except Exception:  # noqa: BLE001 - as above
        return None


def owned_fields(fields: Mapping[str, Any]) -> Iterator[Steps]:
    """The paths of a set of fields (FieldsV1), without those that only hold others."""
    return (steps for steps, _ in owned_values(fields, None))


def owned_values(fields: Mapping[str, Any], holder: object) -> Iterator[tuple[Steps, object]]:
    """The paths of a set of fields, each with its value in `holder`, the object that has the fields.

    A value is only good for `field_digest`.
    """
    for segment, inner in fields.items():
        if segment == ".":
            continue
        step, value = _found(segment, holder)
        inside = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else {}
        below = list(owned_values(inside, value))
        if below:
            yield from (((step, *steps), found) for steps, found in below)
        else:
            # Others may own what is below a field that only has the entry ".".
            yield (step,), _PRESENT if inside and value is not _MISSING else value


def managed_values(
    obj: KubeObject, manager: str, operation: str, subresource: str
) -> Iterator[tuple[Steps, object]]:
    """The fields of one manager in an object, with their values. `operation` is Apply or Update."""
    for entry in managed_entries(obj, manager, operation, subresource):
        yield from owned_values(entry.get("fieldsV1") or {}, obj)


def differs_under(
    before: KubeObject, after: KubeObject, manager: str, operation: str, subresource: str
) -> bool:
    """Whether a manager owned fields in one state of an object with other values than in a later one."""
    owned = dict(managed_values(before, manager, operation, subresource))
    for steps, value in managed_values(after, manager, operation, subresource):
        if steps in owned and field_digest(steps, owned[steps]) != field_digest(steps, value):
            return True
    return False


def managed_entries(
    obj: Mapping[str, Any], manager: str, operation: str, subresource: str
) -> list[Mapping[str, Any]]:
    """The entries of one manager: more than one if it has written in several versions of the API."""
    entries: Iterable[Mapping[str, Any]] = (obj.get("metadata") or {}).get("managedFields") or ()
    wanted = manager, operation, subresource
    return [
        entry
        for entry in entries
        if (entry.get("manager"), entry.get("operation"), entry.get("subresource") or "") == wanted
    ]


def upgraded_managed_fields(
    obj: KubeObject, csa_managers: Collection[str], ssa_manager: str, api_version: str
) -> list[KubeObject] | None:
    """`managedFields` in which fields of former updates belong to the applies of `ssa_manager`.

    client-go's `csaupgrade.UpgradeManagedFields`: the entries `Update` of the `csa_managers` become part of
    the entry `Apply` of the other one. None if there are none. Different from client-go, an entry of another
    API version stays, as its fields may have other paths, and so do finalizers: an apply without one would
    let the object go before it is cleaned up.
    """
    entries: list[KubeObject] = list((obj.get("metadata") or {}).get("managedFields") or ())
    own: KubeObject = {
        "manager": ssa_manager,
        "operation": "Apply",
        "apiVersion": api_version,
        "fieldsType": "FieldsV1",
    }
    others: list[KubeObject] = []
    taken: KubeObject = {}
    for entry in entries:
        fields, is_of_object = entry.get("fieldsV1") or {}, not entry.get("subresource")
        match entry.get("manager"), entry.get("operation"):
            case manager, "Apply" if manager == ssa_manager and is_of_object:
                own = entry
            case manager, "Update" if (
                manager in csa_managers
                and manager != ssa_manager  # these are its finalizer, and the marks of its sets
                and is_of_object
                and entry.get("apiVersion") == api_version
            ):
                adopted, kept = _split_finalizers(fields)
                taken = _union(taken, adopted)
                others += [{**entry, "fieldsV1": kept}] if kept else []
            case _:
                others.append(entry)
    if not taken or own.get("apiVersion") != api_version:
        return None
    return [{**own, "fieldsV1": _union(own.get("fieldsV1") or {}, taken)}, *others]


def is_applied(obj: Mapping[str, Any], body: Mapping[str, Any], manager: str) -> bool:
    """Whether a server-side apply of `body` by a manager would surely leave an object as it is.

    True only if the last apply of the manager had these fields, and no others, and each has this value. The
    schema of the kind is not known here. So a value counts as equal only if its JSON is: of a quantity that
    the server writes in another way, and of a list or map that is owned as a whole and was given defaults,
    the answer is False. It is False, too, for a body with preconditions, which are no fields of a manager.
    """
    metadata: Mapping[str, Any] = body.get("metadata") or {}
    entries = managed_entries(obj, manager, "Apply", "")
    version = body.get("apiVersion")
    if (
        manager == _KUBECTL
        or [entry.get("apiVersion") for entry in entries] != [version]
        or (obj.get("apiVersion"), obj.get("kind")) != (version, body.get("kind"))
    ):
        return False
    below = {name: value for name, value in metadata.items() if name not in _IDENTITY}
    wanted = {name: value for name, value in body.items() if name not in ("apiVersion", "kind", "metadata")}
    others = [
        each.get("fieldsV1") or {} for each in obj["metadata"]["managedFields"] if each is not entries[0]
    ]
    fields = entries[0].get("fieldsV1") or {}
    return _is_owned(wanted | ({"metadata": below} if below else {}), obj, fields, others)


def _is_owned(value: Any, live: Any, fields: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a value is `live`, and has these `fields` (FieldsV1). `others` are those of others here."""
    below = {segment: inner for segment, inner in fields.items() if segment != "."}
    if not below:
        # Owned as a whole; or it was applied as empty once, and what is in it now belongs to others.
        is_whole = not value or not any(segment != "." for each in others for segment in each)
        return not fields and is_whole and _json(value) == _json(live)
    if isinstance(value, dict) and isinstance(live, Mapping):
        inside = cast("KubeObject", value)
        holder = cast("Mapping[str, Any]", live)
        return below.keys() == {f"f:{name}" for name in inside} and all(
            name in holder and _is_owned(each, holder[name], below[f"f:{name}"], _of(others, f"f:{name}"))
            for name, each in inside.items()
        )
    if not isinstance(value, list) or not isinstance(live, list):
        return False
    there, last = cast("list[Any]", live), -1
    for element in cast("list[Any]", value):
        segment = _only(each for each in below if _may_be(each, element))
        at = None if segment is None else _only(i for i, each in enumerate(there) if _is(segment, each))
        # Elements that an apply names get its order.
        if segment is None or at is None or at <= last:
            return False
        last, inner = at, below.pop(segment)
        if not segment.startswith("v:") and not _is_owned(element, there[at], inner, _of(others, segment)):
            return False
    return not below


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _of(fields: Iterable[Mapping[str, Any]], segment: str) -> list[Mapping[str, Any]]:
    """The fields below a segment, of those that have it."""
    return [each[segment] for each in fields if segment in each]


def _only(found: Iterable[T]) -> T | None:
    """The one thing that is found; None for none, and for several."""
    first = list(itertools.islice(found, 2))
    return first[0] if len(first) == 1 else None


def _may_be(segment: str, element: object) -> bool:
    """Whether a segment can be that of an element of a list. A key with a default may be missing."""
    if not segment.startswith("k:") or not isinstance(element, Mapping):
        return _is(segment, element)
    given = cast("Mapping[str, object]", element)
    return all(_json(given.get(name, key)) == _json(key) for name, key in json.loads(segment[2:]).items())


def _is(segment: str, element: object) -> bool:
    """Whether a segment is that of an element of a list that the server has stored."""
    kind, _, text = segment.partition(":")
    if kind == "v":
        return _json(element) == _json(json.loads(text))
    if kind != "k" or not isinstance(element, Mapping):
        return False
    stored = cast("Mapping[str, object]", element)
    return all(name in stored and _json(stored[name]) == _json(key) for name, key in json.loads(text).items())


def _split_finalizers(fields: KubeObject) -> tuple[KubeObject, KubeObject]:
    """A set of fields without the finalizers, and these alone."""
    metadata = fields.get(_METADATA) or {}
    if _FINALIZERS not in metadata:
        return fields, {}
    rest = {name: inner for name, inner in metadata.items() if name != _FINALIZERS}
    without = {name: inner for name, inner in fields.items() if name != _METADATA}
    return (
        {**without, _METADATA: rest} if rest else without,
        {_METADATA: {_FINALIZERS: metadata[_FINALIZERS]}},
    )


def _union(one: KubeObject, other: KubeObject) -> KubeObject:
    """The union of two sets of fields (FieldsV1)."""
    found = {**one, **other}
    for name in one.keys() & other.keys():
        inner = _union(one[name], other[name])
        # A field that is owned by itself, and has others below it, is marked.
        found[name] = inner if (one[name] and other[name]) or not inner else {**inner, ".": {}}
    return found


def field_digest(steps: Steps, value: object) -> int:
    """A number of 32 bits that is equal for the same field with the same value."""
    encoded = {id(_MISSING): b"", id(_PRESENT): b"."}.get(id(value))
    if encoded is None:
        encoded = msgspec.json.encode(value)
    return zlib.crc32(encoded, zlib.crc32("\0".join(steps).encode()))


def field_digests(values: Iterable[tuple[Steps, object]]) -> bytes:
    """The digests of fields in a form that takes four bytes each; empty for more than `MOST_DIGESTS`."""
    digests = array("I")
    for steps, value in values:
        if len(digests) == MOST_DIGESTS:
            return b""
        digests.append(field_digest(steps, value))
    return digests.tobytes()


def value_text(element: object, key: str) -> str | None:
    """The value of a key of an element as text; with "" of a plain value itself. None if it has none."""
    if key == "":
        return None if isinstance(element, Mapping | list) else _text(element)
    if not isinstance(element, Mapping):
        return None
    fields = cast("Mapping[str, object]", element)
    return _text(fields[key]) if key in fields else None


def read_digests(digests: bytes) -> frozenset[int]:
    """The digests of `field_digests`."""
    return frozenset(array("I", digests))


def _found(segment: str, holder: object) -> tuple[str, object]:
    """The step of a segment of FieldsV1, and the value to which it leads."""
    kind, _, rest = segment.partition(":")
    if kind not in ("k", "v", "i"):
        fields = cast("Mapping[str, object]", holder) if isinstance(holder, Mapping) else {}
        return rest, fields.get(rest, _MISSING)
    elements = cast("list[object]", holder) if isinstance(holder, list) else []
    wanted = json.loads(rest)
    index, shown, keys = None, rest, {}
    match kind:
        case "k":
            keys = {name: _text(value) for name, value in wanted.items()}
            shown = ",".join(f"{name}={value}" for name, value in keys.items())
            index = next((at for at, each in enumerate(elements) if _has(each, wanted)), None)
        case "v":
            keys = {"": _text(wanted)}
            shown = f"={keys['']}"
            index = elements.index(wanted) if wanted in elements else None
        case _:
            index = wanted if wanted < len(elements) else None
    step = ElementStep(f"[{shown}]")
    step.keys, step.position = keys, index
    return step, _MISSING if index is None else elements[index]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _has(element: object, keys: Mapping[str, object]) -> bool:
    if not isinstance(element, Mapping):
        return False
    element = cast("Mapping[str, object]", element)
    # A key with a default, such as the protocol of a port, may be missing in the object.
    return all(element.get(name, value) == value for name, value in keys.items())


def _time(text: object) -> datetime:
    return datetime.fromisoformat(str(text)) if text else datetime.min.replace(tzinfo=UTC)
