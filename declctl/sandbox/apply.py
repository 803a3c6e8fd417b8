"""Server-side apply: who owns which field, what a new configuration changes, and when it is in conflict.

Source: structured-merge-diff, simplified: no defaulting, no conversion between versions. Ownership by
updates is recorded from the first apply on (as Kubernetes 1.16 did), so that objects that nobody applies
stay small. Pure: the given objects are left alone.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox import fields
from declctl.sandbox.fields import MISSING, FieldSet
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.merge_keys import Structure
from declctl.sandbox.status import Cause, Refusal

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes: the field manager, through which subresource, at what time (RFC 3339)."""

    manager: str
    time: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of metadata.managedFields."""

    manager: str
    operation: str
    api_version: str
    time: str
    subresource: str
    fields: FieldSet

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Owner":
        """Read an entry."""
        return cls(
            entry.get("manager", ""),
            entry.get("operation", "Update"),
            entry.get("apiVersion", ""),
            entry.get("time", ""),
            entry.get("subresource", ""),
            fields.from_document(entry.get("fieldsV1") or {}),
        )

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes two entries the same owner."""
        return (self.manager, self.operation, self.subresource)

    def document(self) -> KubeObject:
        """Write the entry."""
        entry: KubeObject = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields.to_document(self.fields),
        }
        return {**entry, "subresource": self.subresource} if self.subresource else entry


def server_side_apply(
    live: KubeObject | None, config: KubeObject, *, kind: ServedKind, author: Author, force: bool
) -> KubeObject:
    """The object after `author` applied `config`.

    Refused with 409 if others own what it changes and `force` is not given.
    """
    structure = Structure(kind)
    config = copy.deepcopy(config)
    config["metadata"].pop("managedFields", None)
    wanted = fields.fields_of(config, structure)
    mine = Owner(author.manager, "Apply", kind.api_version, author.time, author.subresource, wanted)
    if live is None:
        return _with_owners(config, [mine])
    owners = _owners(live, kind, structure)
    before = next((owner for owner in owners if owner.identity == mine.identity), None)
    others = [owner for owner in owners if owner is not before]
    merged = fields.merge(copy.deepcopy(live), config, structure)
    contested = {owner: _contested(live, merged, wanted & owner.fields) for owner in others}
    if not force and any(_unexplained(live, found, author, structure) for found in contested.values()):
        raise _conflict(contested)
    others = [replace(owner, fields=owner.fields - contested[owner]) for owner in others]
    if before is not None:
        _remove_abandoned(merged, before.fields - wanted, others)
        if before.fields == wanted and _content(merged) == _content(live):
            mine = before
    return _with_owners(merged, [mine, *others])


def track_update(old: KubeObject, new: KubeObject, *, kind: ServedKind, author: Author) -> KubeObject:
    """`new` with ownership moved to `author` for what changed.

    Unchanged if nobody has ever applied the object.
    """
    if new["metadata"].get("managedFields") in ([], [{}]):  # how a client resets ownership
        return _with_owners(new, [])
    entries = old["metadata"].get("managedFields") or []
    if not entries:
        return new
    structure = Structure(kind)
    present = fields.fields_of(new, structure)
    changed = frozenset(path for path in present if _differs(old, new, path))
    mine = Owner(author.manager, "Update", kind.api_version, author.time, author.subresource, changed)
    before = [Owner.of(entry) for entry in entries]
    after = {
        owner: frozenset(path for path in owner.fields - changed if fields.find(new, path) is not MISSING)
        for owner in before
    }
    if not changed and all(kept == owner.fields for owner, kept in after.items()):
        return new
    owners: list[Owner] = []
    for owner, kept in after.items():
        if owner.identity == mine.identity:
            mine = replace(mine, fields=kept | changed, time=author.time if changed else owner.time)
        else:
            owners.append(replace(owner, fields=kept))
    return _with_owners(new, [*owners, mine])


def _owners(live: KubeObject, kind: ServedKind, structure: Structure) -> list[Owner]:
    entries = live["metadata"].get("managedFields") or []
    if entries:
        return [Owner.of(entry) for entry in entries]
    everything = fields.fields_of(live, structure)
    time = live["metadata"].get("creationTimestamp", "")
    return [Owner("before-first-apply", "Update", kind.api_version, time, "", everything)]


def _contested(live: KubeObject, merged: KubeObject, shared: FieldSet) -> FieldSet:
    return frozenset(path for path in shared if not _is_element(path) and _differs(live, merged, path))


def _differs(old: KubeObject, new: KubeObject, path: fields.Path) -> bool:
    before = fields.find(old, path)
    # An element with keys is there or not; its fields are compared on their own.
    return before is MISSING if _is_element(path) else before != fields.find(new, path)


def _is_element(path: fields.Path) -> bool:
    return not path[-1].startswith("f:")


def _unexplained(live: KubeObject, found: FieldSet, author: Author, structure: Structure) -> FieldSet:
    """Those conflicts that are not kubectl's own doing.

    What client-side apply wrote last may be taken over by server-side apply.
    """
    annotation = (live["metadata"].get("annotations") or {}).get(_LAST_APPLIED)
    if author.manager != "kubectl" or not annotation:
        return found
    return found - fields.fields_of(json.loads(annotation), structure)


def _conflict(contested: Mapping[Owner, FieldSet]) -> Refusal:
    causes = [
        Cause("FieldManagerConflict", f"conflict with {_describe(owner)}", fields.dotted(path))
        for owner, found in contested.items()
        for path in sorted(found)
    ]
    plural = "s" if len(causes) > 1 else ""
    where = _sentence(contested) if plural else f"{causes[0].message}: {causes[0].field}"
    message = f"Apply failed with {len(causes)} conflict{plural}: {where}"
    return Refusal(409, "Conflict", message, {"causes": [cause.document() for cause in causes]})


def _sentence(contested: Mapping[Owner, FieldSet]) -> str:
    text = ""
    for owner, found in contested.items():
        if found:
            paths = "".join(f"\n- {fields.dotted(path)}" for path in sorted(found))
            text += f"{chr(10) if text else ''}conflicts with {_describe(owner)}:{paths}"
    return text


def _describe(owner: Owner) -> str:
    if owner.operation == "Apply":
        return f'"{owner.manager}"'
    subresource = f" with subresource {json.dumps(owner.subresource)}" if owner.subresource else ""
    return f'"{owner.manager}"{subresource} using {owner.api_version}'


def _remove_abandoned(merged: KubeObject, abandoned: FieldSet, others: Sequence[Owner]) -> None:
    owned: FieldSet = frozenset[fields.Path]().union(*(owner.fields for owner in others))
    # An element goes as a whole before its fields: without its key it could not be found any more.
    for path in sorted(abandoned, key=len):
        if not any(other[: len(path)] == path for other in owned):
            fields.remove(merged, path)


def _content(obj: KubeObject) -> KubeObject:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}


def _with_owners(obj: KubeObject, owners: Sequence[Owner]) -> KubeObject:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    ordered = sorted(owners, key=lambda owner: (owner.operation, owner.time, *owner.identity))
    entries = [owner.document() for owner in ordered if owner.fields]
    if entries:
        metadata["managedFields"] = entries
    return {**obj, "metadata": metadata}
