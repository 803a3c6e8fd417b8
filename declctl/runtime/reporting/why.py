"""`declctl why`: which field manager owns a field of an object, and which call of a handler wrote it.

The API server knows the managers (`metadata.managedFields`). The ledger of this process knows its writes: the
handler, the generation, and what the call was for. Values of fields are not part of the answer, as they may
be secrets.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from declctl.objects import FieldPath, FieldPathError, KubeObject
from declctl.writes import WriteRecord, WriteResult, WriteVerb

_STORED = (WriteResult.SUCCEEDED,)
_UNKNOWN = (WriteResult.FAILED, WriteResult.CANCELLED)  # the server may have done it

Steps = tuple[str, ...]


class ExplainedWrite(msgspec.Struct, frozen=True):
    """One write of the ledger, in the form of the answer. `causes` are texts."""

    time: datetime
    verb: str
    result: str
    manager: str
    handler: str
    generation: int
    called_for: str  # the key of the call; empty in a life-cycle hook
    request_id: str
    causes: tuple[str, ...]
    resource_version: str
    seconds: float
    retries: int
    error: str


class OwnedField(msgspec.Struct, frozen=True):
    """A field, its manager, and the write of this process that made it so, if the ledger has one."""

    path: str
    manager: str
    operation: str  # Apply or Update
    subresource: str  # such as status; empty for the object itself
    time: str  # when the manager last changed the object, as the server has it
    handler: str | None  # of this manifest; None for a manager that is none of its handlers
    write: ExplainedWrite | None  # None if the ledger does not have it


class WriteExplanation(msgspec.Struct, frozen=True):
    """The answer about one object, or about some of its fields."""

    kind: str
    resource: str
    key: str
    exists: bool
    uid: str
    resource_version: str
    fields: tuple[OwnedField, ...]
    writes: tuple[ExplainedWrite, ...]  # of the object, the oldest first


def explain_object(
    obj: KubeObject | None,
    records: Sequence[WriteRecord],
    *,
    kind: str,
    resource: str,
    key: str,
    managers: Mapping[str, str],
    field: str = "",
) -> WriteExplanation:
    """Explain an object as the server has it; None if it is gone.

    `records` are the writes of the ledger for it, the oldest first. `managers` has the handlers of the
    manifest by their field managers. `field` limits the answer to a field, those below it, and the owner of
    one above it. Raises FieldPathError for a text that is no field path.
    """
    metadata: Mapping[str, Any] = (obj or {}).get("metadata") or {}
    uid = str(metadata.get("uid") or "")
    # Another object may have had the name before.
    records = [each for each in records if not uid or each.uid in ("", uid)]
    wanted = _steps(field) if field else ()
    newest = _newest_changes(records)
    fields: list[OwnedField] = []
    for entry in metadata.get("managedFields") or ():
        owner = OwnedField(
            "",
            str(entry.get("manager") or ""),
            str(entry.get("operation") or ""),
            str(entry.get("subresource") or ""),
            str(entry.get("time") or ""),
            None,
            None,
        )
        record = newest.get((owner.manager, owner.operation == "Apply", owner.subresource))
        handler = managers.get(owner.manager) if record is None else record.origin.handler
        write = None if record is None else _explained(record)
        fields += [
            replace(owner, path=_shown(steps), handler=handler, write=write)
            for steps in owned_fields(entry.get("fieldsV1") or {})
            if _concerns(steps, wanted)
        ]
    return WriteExplanation(
        kind,
        resource,
        key,
        obj is not None,
        uid,
        str(metadata.get("resourceVersion") or ""),
        tuple(sorted(fields, key=lambda each: (each.path, each.manager))),
        tuple(_explained(record) for record in records),
    )


def owned_fields(fields: Mapping[str, Any]) -> Iterator[Steps]:
    """The paths of a set of fields (FieldsV1), without those that only hold others.

    A step is the name of a field, or an element of a list in brackets.
    """
    for segment, inner in fields.items():
        if segment == ".":
            continue
        step = _step(segment)
        below = list(owned_fields(cast("Mapping[str, Any]", inner))) if isinstance(inner, Mapping) else []
        if below:
            yield from ((step, *steps) for steps in below)
        else:
            yield (step,)


def _step(segment: str) -> str:
    kind, _, rest = segment.partition(":")
    match kind:
        case "k":
            keys = json.loads(rest)
            return "[" + ",".join(f"{name}={value}" for name, value in keys.items()) + "]"
        case "v":
            return f"[={json.loads(rest)}]"
        case "i":
            return f"[{rest}]"
        case _:
            return rest


def _shown(steps: Steps) -> str:
    """`metadata.labels["app.kubernetes.io/name"]`, `spec.containers[name=web].image`."""
    text = ""
    for step in steps:
        if step.startswith("["):
            text += step
        elif "." in step or "/" in step:
            text += f'["{step}"]'
        else:
            text += f".{step}" if text else step
    return text


def _steps(field: str) -> Steps:
    """The steps of a field as a user writes it: a field path, also with `[name=web]`."""
    steps: list[str] = []
    for part in _parts(field):
        if part.startswith("["):
            steps.append(part)
        else:
            steps += [str(step) for step in FieldPath.parse(part).steps]
    return tuple(steps)


def _parts(field: str) -> Iterable[str]:
    """The field in parts: elements of lists by their keys, and the paths between them."""
    rest = field
    while "[" in rest:
        before, _, after = rest.partition("[")
        inside, closed, rest = after.partition("]")
        if not closed:
            raise FieldPathError(f"{field!r} has a bracket without its end", len(field))
        if before.strip("."):
            yield before.strip(".")
        # `["app/name"]` is a field, `[name=web]` and `[0]` are elements of a list.
        yield f'["{inside[1:-1]}"]' if inside[:1] in ("'", '"') else f"[{inside}]"
        rest = rest.removeprefix(".")
    if rest:
        yield rest


def _concerns(steps: Steps, wanted: Steps) -> bool:
    """Whether a field is the wanted one, or one below or above it."""
    length = min(len(steps), len(wanted))
    wanted = tuple(step[2:-2] if step.startswith('["') else step for step in wanted)
    return steps[:length] == wanted[:length]


def _newest_changes(records: Iterable[WriteRecord]) -> dict[tuple[str, bool, str], WriteRecord]:
    """The newest write of each manager that changed the object, by manager, operation and subresource.

    A write that left the version as it was has changed nothing, unless it is the first that is remembered.
    """
    found: dict[tuple[str, bool, str], WriteRecord] = {}
    version = ""
    for record in records:
        if record.result not in (*_STORED, *_UNKNOWN) or record.verb is WriteVerb.DELETE:
            continue
        subresource = "status" if record.verb is WriteVerb.PATCH_STATUS else ""
        place = record.manager, record.verb is WriteVerb.APPLY, subresource
        if place not in found or record.resource_version != version:
            found[place] = record
        version = record.resource_version or version
    return found


def _explained(record: WriteRecord) -> ExplainedWrite:
    origin = record.origin
    return ExplainedWrite(
        record.time,
        str(record.verb),
        str(record.result),
        record.manager,
        origin.handler,
        origin.generation,
        origin.key,
        origin.request_id,
        tuple(str(cause) for cause in origin.causes),
        record.resource_version,
        record.seconds,
        record.retries,
        record.error,
    )
