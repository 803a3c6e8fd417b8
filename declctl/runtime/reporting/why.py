"""`declctl why`: which field manager owns a field of an object, and which call of a handler wrote it.

The API server knows the managers (`metadata.managedFields`). The ledger of this process knows its writes: the
handler, the generation, and what the call was for. Values of fields are not part of the answer, as they may
be secrets.
"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from declctl.objects import FieldPath, FieldPathError, KubeObject
from declctl.objects.managed_fields import (
    ElementStep,
    Steps,
    field_digest,
    owned_values,
    read_digests,
    value_text,
)
from declctl.writes import WriteRecord, WriteResult, WriteVerb

# Results of writes of which the server may have stored something.
_UNCERTAIN = (WriteResult.NOT_LEADER, WriteResult.FAILED, WriteResult.CANCELLED)
_MOST_CANDIDATES = 1000  # names that are compared for a suggestion
# Where paths begin that users write without their beginning.
_STARTS = (("spec",), ("spec", "template", "spec"), ("metadata",), ("status",))


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
    # True if `write` gave the field its value; False if it is the newest write of the manager that changed
    # the object, as it can't be told which one gave the field its value.
    exact: bool = False
    # True if another process has written the field under this manager, after the newest write of this one.
    elsewhere: bool = False


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
    has_field: bool = True  # False if the object does not have the field that was asked for
    suggestion: str = ""  # a similar field that it has
    has_managers: bool = True  # False if the object has no metadata.managedFields
    write_loops: tuple[str, ...] = ()  # keys of handlers that write it again and again, in words


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
    one above it. An element of a list is named by its position, by some or all of its keys, or by `*`. Raises
    FieldPathError for a text that is no field path.
    """
    metadata: Mapping[str, Any] = (obj or {}).get("metadata") or {}
    uid = str(metadata.get("uid") or "")
    # Another object may have had the name before.
    records = [each for each in records if not uid or each.uid in ("", uid)]
    wanted = _steps(field) if field else ()
    by_manager = _by_manager(records)
    uncertain = {each.manager for each in records if each.result in _UNCERTAIN}
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
        writes = by_manager.get((owner.manager, owner.operation, owner.subresource), ())
        # Values have other places in another version of the API.
        is_same_version = entry.get("apiVersion") in (None, (obj or {}).get("apiVersion"))
        is_known = is_same_version and owner.manager not in uncertain
        for steps, value in owned_values(entry.get("fieldsV1") or {}, obj):
            if not _concerns(steps, wanted):
                continue
            digest = field_digest(steps, value)
            if is_known and _is_from_elsewhere(digest, writes, metadata):
                handler = managers.get(owner.manager)
                fields.append(replace(owner, path=_shown(steps), handler=handler, elsewhere=True))
                continue
            record, exact = _write_of(digest, writes)
            # A write by an official client may be part of no call that is known.
            known = record is not None and record.origin.generation > 0
            handler = record.origin.handler if record is not None and known else managers.get(owner.manager)
            write = None if record is None else _explained(record)
            fields.append(replace(owner, path=_shown(steps), handler=handler, write=write, exact=exact))
    return WriteExplanation(
        kind,
        resource,
        key,
        obj is not None,
        uid,
        str(metadata.get("resourceVersion") or ""),
        tuple(sorted(fields, key=lambda each: (each.path, each.manager))),
        tuple(_explained(record) for record in records),
        *_search(obj, wanted),
        obj is None or bool(metadata.get("managedFields")),
    )


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


class _Element(msgspec.Struct, frozen=True):
    """A step of the wanted field: elements of a list. With neither keys nor a position, all of them."""

    keys: Mapping[str, str] = {}
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> "_Element":
        """From what stands between the brackets: `0`, `*`, `name=web`, `=a/b`."""
        if text.isdecimal():
            return cls(index=int(text))
        if text == "*":
            return cls()
        keys = (part.partition("=") for part in text.split(","))
        return cls({name.strip(): value.strip().strip("\"'") for name, _, value in keys})

    def accepts(self, step: str) -> bool:
        """Whether it means the element of an owned field."""
        if not isinstance(step, ElementStep):
            return False
        if self.index is not None:
            return self.index == step.position
        return all(step.keys.get(name) == value for name, value in self.keys.items())

    def __str__(self) -> str:
        if self.index is not None:
            return f"[{self.index}]"
        return f"[{','.join(f'{name}={value}' for name, value in self.keys.items()) or '*'}]"

    def of(self, elements: Sequence[object]) -> list[object]:
        """The elements of a list that it means."""
        if self.index is not None:
            return list(elements[self.index : self.index + 1])
        return [
            each
            for each in elements
            if all(value_text(each, name) == value for name, value in self.keys.items())
        ]


_Wanted = tuple[str | _Element, ...]


def _steps(field: str) -> _Wanted:
    """The steps of a field as a user writes it: a field path, also with `[name=web]`."""
    steps: list[str | _Element] = []
    rest = field
    while "[" in rest:
        before, _, after = rest.partition("[")
        inside, closed, rest = after.partition("]")
        if not closed:
            raise FieldPathError(f"{field!r} has a bracket without its end", len(field))
        if before.strip("."):
            steps += [str(step) for step in FieldPath.parse(before.strip(".")).steps]
        # `["app/name"]` is a field, `[name=web]` and `[0]` are elements of a list.
        quoted = inside[:1] in ("'", '"')
        steps.append(inside[1:-1] if quoted else _Element.parse(inside))
        rest = rest.removeprefix(".")
    if rest:
        steps += [str(step) for step in FieldPath.parse(rest).steps]
    return tuple(steps)


def _concerns(steps: Steps, wanted: _Wanted) -> bool:
    """Whether a field is the wanted one, or one below or above it."""
    return all(
        one.accepts(step) if isinstance(one, _Element) else one in (step, "*")
        for step, one in zip(steps, wanted, strict=False)
    )


def _search(obj: KubeObject | None, wanted: _Wanted) -> tuple[bool, str]:
    """Whether an object has a field; if not, a similar field that it has, or an empty text."""
    if obj is None:
        return True, ""
    holders: list[object] = [obj]
    for at, step in enumerate(wanted):
        inside = [value for holder in holders for value in _inside(holder, step)]
        if not inside:
            near = _near(step, holders)
            if near is not None:
                return False, _shown_wanted((*wanted[:at], near))
            # A path that begins in the middle, such as that of a container.
            whole = (start for start in _STARTS if _has(obj, (*start, *wanted))) if at == 0 else ()
            return False, next((_shown_wanted((*start, *wanted)) for start in whole), "")
        holders = inside
    return True, ""


def _has(obj: KubeObject, wanted: _Wanted) -> bool:
    holders: list[object] = [obj]
    for step in wanted:
        holders = [value for holder in holders for value in _inside(holder, step)]
    return bool(holders)


def _inside(holder: object, step: str | _Element) -> list[object]:
    """The values to which a step leads."""
    if isinstance(step, _Element):
        return step.of(cast("list[object]", holder)) if isinstance(holder, list) else []
    if not isinstance(holder, Mapping):
        return []
    fields = cast("Mapping[str, object]", holder)
    return list(fields.values()) if step == "*" else [fields[step]] if step in fields else []


def _near(step: str | _Element, holders: Iterable[object]) -> "str | _Element | None":
    """A step that is similar to one that leads nowhere."""
    if isinstance(step, str):
        names = [
            name
            for holder in holders
            if isinstance(holder, Mapping)
            for name in cast("Mapping[str, object]", holder)
        ]
        near = difflib.get_close_matches(step, names[:_MOST_CANDIDATES], n=1)
        return near[0] if near else None
    for name, value in step.keys.items():
        elements = [
            each for holder in holders if isinstance(holder, list) for each in cast("list[object]", holder)
        ]
        values = [
            text for each in elements[:_MOST_CANDIDATES] if (text := value_text(each, name)) is not None
        ]
        near = difflib.get_close_matches(value, values, n=1)
        if near and near[0] != value:
            return _Element({name: near[0]})
    return None


def _shown_wanted(steps: _Wanted) -> str:
    """A wanted field, as a user writes it."""
    return _shown(tuple(step if isinstance(step, str) else str(step) for step in steps))


def _by_manager(records: Iterable[WriteRecord]) -> dict[tuple[str, str, str], list[WriteRecord]]:
    """The writes that the server has stored, by manager, operation and subresource, the oldest first."""
    found: dict[tuple[str, str, str], list[WriteRecord]] = {}
    for record in records:
        if record.result is WriteResult.SUCCEEDED and record.verb is not WriteVerb.DELETE:
            subresource = "status" if record.verb is WriteVerb.PATCH_STATUS else ""
            found.setdefault((record.manager, record.verb.operation, subresource), []).append(record)
    return found


def _is_from_elsewhere(digest: int, records: Sequence[WriteRecord], metadata: Mapping[str, Any]) -> bool:
    """Whether a field has another value than after the newest write of its manager by this process."""
    # A write that came after the object was read says nothing of it.
    read = _number(metadata.get("resourceVersion"))
    newest = next((each for each in reversed(records) if _number(each.resource_version) <= read), None)
    if newest is None or newest.fields is None or not newest.fields.digests:
        return False
    return digest not in read_digests(newest.fields.digests)


def _number(version: object) -> float:
    """A resource version as a number; NaN, which no other one is compared with, for any other text."""
    text = str(version or "")
    return int(text) if text.isdecimal() else math.nan


def _write_of(digest: int, records: Sequence[WriteRecord]) -> tuple[WriteRecord | None, bool]:
    """The write of a manager that gave a field its present value, and whether that is certain.

    `digest` is that of the field with its value; `records` are the writes of the manager, the oldest first.
    If it can't be told, returns the newest write that has changed the object.
    """
    found: WriteRecord | None = None
    for record in reversed(records):
        if record.fields is None or not record.fields.digests:
            break  # its fields are not known
        if digest not in read_digests(record.fields.digests):
            if found is None:
                break  # a write that is not in the ledger gave the field its value
            return found, True
        if found is not None and _may_have_restored(found, record):
            return found, False
        found = record
    else:
        # The oldest one: a write before it may have set the field, unless it has made the object.
        if found is not None and found.fields is not None and found.fields.created:
            return found, True
    return _newest_change(records), False


def _may_have_restored(record: WriteRecord, before: WriteRecord) -> bool:
    """Whether a write changed the object, although its manager had the same fields before.

    Then it gave fields back their values that somebody else had changed, and it is not known which ones.
    """
    fields, former = record.fields, before.fields
    return (
        fields is not None
        and former is not None
        and fields.changed
        and record.resource_version != before.resource_version
        and fields.digests == former.digests
    )


def _newest_change(records: Sequence[WriteRecord]) -> WriteRecord | None:
    """The newest write that changed the object, else the first one.

    A write that left the version as it was has changed nothing.
    """
    found: WriteRecord | None = None
    for record in records:
        unchanged = record.fields is not None and not record.fields.changed
        same = found is not None and record.resource_version == found.resource_version
        if found is None or not (unchanged or (same and record.resource_version)):
            found = record
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
