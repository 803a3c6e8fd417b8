"""Who owns which field: metadata.managedFields after a write, and server-side apply.

Source: apimachinery's managedfields package, without conversion between versions. Every write of a client is
recorded. An object that has no entries, as one that a program of the sandbox has created, gets none by
updates; the first apply to it gives what is there to `before-first-apply`.

Pure: the given objects are left alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.objects.differences import same_json
from declctl.sandbox import fields, schemas, status
from declctl.sandbox.fields import FieldSet, Path
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.status import Refusal, StatusCause
from declctl.sandbox.structure import Shape, shape_of

_MOST_UPDATERS: Final = 10
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# Fields that nobody owns: the server sets them.
_UNOWNED: Final = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", f"f:{name}")
        for name in (
            "name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation",
            "managedFields", "resourceVersion",
        )
    }
)  # fmt: skip
_STATUS: Final[tuple[Path, ...]] = (("f:status",),)
_SPEC: Final[tuple[Path, ...]] = (("f:spec",),)
# What a write of /status leaves as it is, beside the spec, of kinds that are not custom.
_KEPT_BY_STATUS: Final[Mapping[str, tuple[Path, ...]]] = {
    "Deployment": (("f:metadata", "f:labels"),),
    "Pod": (("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:ownerReferences")),
}


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes: the field manager, through which subresource, at what time (RFC 3339).

    `resets` are fields that the server leaves as they are, whatever this write says.
    """

    manager: str
    time: str
    subresource: str = ""
    resets: tuple[Path, ...] = ()


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
            entry["operation"],
            entry["apiVersion"],
            entry.get("time", ""),
            entry.get("subresource", ""),
            fields.from_document(entry.get("fieldsV1") or {}),
        )

    @property
    def identity(self) -> str:
        """What makes two entries the same owner, as the real server writes it, and sorts by it.

        One who applies may do so in any version.
        """
        version = "" if self.operation == "Apply" else self.api_version
        parts = (
            ("manager", self.manager),
            ("operation", self.operation),
            ("apiVersion", version),
            ("subresource", self.subresource),
        )
        return json.dumps({name: value for name, value in parts if value}, separators=(",", ":"))

    @property
    def order(self) -> tuple[str, ...]:
        """Where the entry stands among others."""
        return (self.operation, self.time, self.manager, self.api_version, self.subresource)

    def without(self, gone: Iterable[Path]) -> "Owner":
        """The same owner with fewer fields."""
        return replace(self, fields=self.fields.difference(gone))

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
        if self.subresource:
            entry["subresource"] = self.subresource
        return {key: value for key, value in entry.items() if value or key == "fieldsV1"}


def resets(kind: ServedKind, subresource: str) -> tuple[Path, ...]:
    """The fields that a write through this subresource (or none) leaves as they are."""
    if subresource == "status":
        return (*_SPEC, *((("f:metadata",),) if kind.custom else _KEPT_BY_STATUS.get(kind.kind, ())))
    return _STATUS if kind.status else ()


def created(new: KubeObject, *, kind: ServedKind, author: Author) -> KubeObject:
    """`new` with its fields owned by the author, who creates it."""
    owners = _updated(_empty(kind), new, _read(new), kind=kind, author=author)
    return _with_owners(new, owners)


def updated(old: KubeObject, new: KubeObject, *, kind: ServedKind, author: Author) -> KubeObject:
    """`new` with what has changed owned by the author, and by nobody else.

    A client may bring entries of its own, or none ([] or [{}]), but not through a subresource.
    """
    given = new["metadata"].get("managedFields")
    owners = ([] if author.subresource else _read(new)) or _read(old)
    if given in ([], [{}]) and not author.subresource:
        owners = []
    if owners:
        owners = _updated(old, new, owners, kind=kind, author=author)
    return _with_owners(new, owners)


def applied(
    live: KubeObject | None, config: KubeObject, *, kind: ServedKind, author: Author, force: bool
) -> KubeObject:
    """The object, with its owners, after `author` applied `config`.

    Refused with 409 if others own what it changes and `force` is not given, and with 400 or 500 for a
    configuration that can't be applied.
    """
    shape = shape_of(kind)
    _check(config, shape, kind)
    owners: list[Owner] = []
    if live is not None:
        owners = _read(live)
        if not owners:
            first = replace(author, manager="before-first-apply")
            owners = _updated(_empty(kind), live, [], kind=kind, author=first)
    present = _bare(live) if live is not None else {}
    try:
        result = _applied(present, config, owners, (kind, shape), author, force=force)
    except _Conflicts as conflicts:
        allowed = _from_last_applied(present, kind, shape) if author.manager == "kubectl" else None
        contested = [(owner, path) for owner, path in conflicts.contested if path not in (allowed or ())]
        if contested:
            raise _conflict(contested) from conflicts
        result = _applied(present, config, owners, (kind, shape), author, force=True)
    return _with_last_applied(result, config) if author.manager == "kubectl" else result


def keep_times(old: KubeObject, new: KubeObject) -> KubeObject:
    """`old` if `new` is the same but for the times of its entries; otherwise `new`."""
    before, after = (
        {**obj, "metadata": {**obj["metadata"], "managedFields": _timeless(obj)}} for obj in (old, new)
    )
    return old if same_json(before, after) else new


def scaled(old: KubeObject, new: KubeObject, path: Path, *, kind: ServedKind, author: Author) -> KubeObject:
    """`new` with ownership after a write of the replicas (at `path`) through /scale.

    As in the real server, such a write is recorded only if somebody owns the replicas, and the entry of an
    update loses its time when it is carried over.
    """
    owners = _read(old)
    if not any(path in owner.fields for owner in owners):
        return _with_owners(new, owners)
    difference = fields.compare(old, new, shape_of(kind))
    changed = path in difference.added | difference.modified
    result: list[Owner] = []
    for owner in owners:
        # A Scale is of another version than the object: only one who applies is known again.
        if path not in owner.fields or (owner.operation == "Apply" and not changed):
            result.append(owner)
            continue
        result.append(owner.without([path]))
        if not changed:
            carried = replace(owner, api_version=kind.api_version, fields=frozenset({path}), time="")
            result.append(carried)
    if changed and fields.find(new, path):  # a Scale of no replicas does not have the field
        replicas = frozenset({path})
        result.append(Owner(author.manager, "Update", kind.api_version, "", author.subresource, replicas))
    return _with_owners(new, [owner for owner in result if owner.fields])


class _Conflicts(Exception):
    """An apply changes fields of others."""

    def __init__(self, contested: Sequence[tuple[Owner, Path]]) -> None:
        super().__init__()
        self.contested = contested


def _updated(
    old: KubeObject, new: KubeObject, owners: Sequence[Owner], *, kind: ServedKind, author: Author
) -> list[Owner]:
    shape = shape_of(kind)
    # As in the real server: what can't be compared has no owners from then on. The fault is in a part of the
    # object that this write leaves as it is, so that it is not refused.
    versions = {owner.api_version for owner in owners} | {kind.api_version}
    if _mistyped(new, kind) or (len(versions) > 1 and any(fields.duplicates(new, shape))):
        return []
    whole = fields.compare(_bare(old), _bare(new), shape)
    difference = whole.excluding(author.resets)
    changed = difference.added | difference.modified
    others = [
        owner.without(
            changed | difference.removed
            if _resets_for(owner, kind, author)
            else whole.added | whole.modified | whole.removed
        )
        for owner in owners
    ]
    mine = Owner(
        author.manager,
        "Update",
        kind.api_version,
        author.time,
        author.subresource,
        frozenset(changed - _UNOWNED),
    )
    if mine.fields:
        same = [owner for owner in others if owner.identity == mine.identity]
        mine = replace(mine, fields=mine.fields.union(*(owner.fields for owner in same)))
        others = [owner for owner in others if owner.identity != mine.identity]
    return _capped([owner for owner in (*others, mine) if owner.fields])


def _resets_for(owner: Owner, kind: ServedKind, author: Author) -> bool:
    """Whether fields that the server resets are no change for an owner.

    A write of the object, unlike one of its status, knows that for its own version only.
    """
    return owner.api_version == kind.api_version or author.subresource == "status"


def _capped(owners: list[Owner]) -> list[Owner]:
    """At most ten entries of updates: the oldest of one version become one."""
    updaters = sorted(
        (owner for owner in owners if owner.operation == "Update"),
        key=lambda owner: (owner.time, owner.identity),
    )
    excess = len(updaters) - _MOST_UPDATERS
    if excess <= 0:
        return owners
    kept = {owner.identity: owner for owner in owners}
    firsts: dict[str, Owner] = {}
    for owner in updaters:
        if excess <= 0:
            break
        first = firsts.setdefault(owner.api_version, owner)
        if first is owner:
            continue
        bucket = replace(owner, manager="ancient-changes", subresource="")
        if bucket.identity not in kept:
            kept[bucket.identity] = replace(bucket, fields=kept.pop(first.identity).fields)
        kept[bucket.identity] = replace(bucket, fields=kept[bucket.identity].fields | owner.fields)
        del kept[owner.identity]
        excess -= 1
    return list(kept.values())


def _applied(
    live: KubeObject,
    config: KubeObject,
    owners: Sequence[Owner],
    of: tuple[ServedKind, Shape],
    author: Author,
    *,
    force: bool,
) -> KubeObject:
    kind, shape = of
    wanted = fields.without(fields.fields_of(config, shape), author.resets)
    mine = Owner(author.manager, "Apply", kind.api_version, author.time, author.subresource, wanted)
    before = next((owner for owner in owners if owner.identity == mine.identity), None)
    others = [owner for owner in owners if owner is not before]
    merged = fields.merge(live, config, shape)
    owned = wanted.union(*(owner.fields for owner in others))
    if before is not None and not before.fields <= owned:
        merged = _pruned(merged, before.fields, owned, shape)
    whole = fields.compare(live, merged, shape)
    difference = whole.excluding(author.resets)
    contested: list[tuple[Owner, Path]] = []
    left: list[Owner] = []
    for owner in others:
        seen = difference if _resets_for(owner, kind, author) else whole
        changed = owner.fields & (seen.added | seen.modified)
        contested += [(owner, path) for path in sorted(changed)]
        left.append(owner.without(changed | seen.removed))
    if contested and not force:
        raise _Conflicts(contested)
    mine = replace(mine, fields=wanted - _UNOWNED)
    if live and same_json(live, merged):
        mine = replace(mine, time=before.time if before is not None else "")
    return _with_owners(merged, [owner for owner in (*left, mine) if owner.fields])


def _pruned(merged: KubeObject, last: FieldSet, owned: FieldSet, shape: Shape) -> KubeObject:
    """`merged` without what its author no longer applies and nobody else owns."""
    last = fields.with_holders(last, shape)
    everything = fields.with_holders(fields.fields_of(merged, shape), shape)

    def left_of(gone: FieldSet) -> FieldSet:
        document = fields.to_document(gone)
        left = fields.remove(merged, document, shape)
        return fields.with_holders(fields.fields_of(left, shape), shape)

    # What others own comes back, and with it what holds it.
    left = left_of(last)
    left = left_of(everything - (left | fields.with_holders(owned, shape)))
    return fields.remove(merged, fields.to_document((everything - left) & last), shape)


def _check(config: KubeObject, shape: Shape, kind: ServedKind) -> None:
    if config["metadata"].get("managedFields") is not None:
        raise status.bad_request("metadata.managedFields must be nil")
    faults = _mistyped(config, kind) + [
        f"{fields.dotted(path)}: duplicate entries for key {fields.dotted((step,))}"
        for path, step in fields.duplicates(config, shape)
    ]
    if faults:
        metadata = config["metadata"]
        name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        what = f"({name}; {kind.api_version}, Kind={kind.kind})"
        text = faults[0] if len(faults) == 1 else "\n  ".join(["errors:", *faults])
        raise Refusal(500, "", f"failed to create typed patch object {what}: {text}")


def _mistyped(obj: KubeObject, kind: ServedKind) -> list[str]:
    return list(schemas.mistyped(kind.schema, obj)) if kind.custom and kind.schema is not None else []


def _empty(kind: ServedKind) -> KubeObject:
    return {"apiVersion": kind.api_version, "kind": kind.kind} if kind.custom else {}


def _from_last_applied(live: KubeObject, kind: ServedKind, shape: Shape) -> FieldSet | None:
    """The fields that client-side kubectl apply wrote last, and that still are as it wrote them.

    Server-side kubectl apply may take them over. None without such an annotation.
    """
    annotation = (live["metadata"].get("annotations") or {}).get(_LAST_APPLIED)
    if not annotation:
        return None
    try:
        last: Any = json.loads(annotation)
    except ValueError:
        return None
    if not isinstance(last, dict) or last.get("apiVersion") != kind.api_version:
        return None
    difference = fields.compare(last, live, shape)
    return fields.fields_of(last, shape) - difference.added - difference.modified - difference.removed


def _with_last_applied(obj: KubeObject, config: KubeObject) -> KubeObject:
    """Keeps the annotation of client-side kubectl apply in step, if it is there."""
    annotations = obj["metadata"].get("annotations") or {}
    if not annotations.get(_LAST_APPLIED):
        return obj
    given = {**config, "metadata": {**config["metadata"]}}
    if "annotations" in given["metadata"]:
        applied = given["metadata"]["annotations"] or {}
        given["metadata"]["annotations"] = {k: v for k, v in applied.items() if k != _LAST_APPLIED}
    text = json.dumps(given, separators=(",", ":"), sort_keys=True, ensure_ascii=False) + "\n"
    return {**obj, "metadata": {**obj["metadata"], "annotations": {**annotations, _LAST_APPLIED: text}}}


def _conflict(contested: Sequence[tuple[Owner, Path]]) -> Refusal:
    causes = [
        StatusCause("FieldManagerConflict", f"conflict with {_describe(owner)}", fields.dotted(path))
        for owner, path in contested
    ]
    if len(causes) == 1:
        where = f"1 conflict: {causes[0].message}: {causes[0].field}"
    else:
        lines: dict[str, list[str]] = {}
        for owner, path in sorted(contested, key=lambda each: each[0].identity):
            lines.setdefault(_describe(owner), []).append(f"\n- {fields.dotted(path)}")
        text = "\n".join(f"conflicts with {owner}:{''.join(paths)}" for owner, paths in lines.items())
        where = f"{len(causes)} conflicts: {text}"
    details = {"causes": [cause.document() for cause in causes]}
    return Refusal(409, "Conflict", f"Apply failed with {where}", details)


def _describe(owner: Owner) -> str:
    subresource = f" with subresource {json.dumps(owner.subresource)}" if owner.subresource else ""
    version = "" if owner.operation == "Apply" else f" using {owner.api_version}"
    return f"{json.dumps(owner.manager)}{subresource}{version}"


def _read(obj: KubeObject) -> list[Owner]:
    """The entries of an object; entries that can't be read count as none."""
    entries = obj["metadata"].get("managedFields") or []
    whole = isinstance(entries, list) and all(
        isinstance(entry, dict)
        and entry.get("operation") in ("Apply", "Update")
        and entry.get("apiVersion")
        and entry.get("fieldsType") == "FieldsV1"
        and isinstance(entry.get("fieldsV1") or {}, dict)
        for entry in entries
    )
    if not whole:
        return []
    found = [Owner.of(entry) for entry in entries]
    return list({owner.identity: owner for owner in found}.values())


def _bare(obj: KubeObject) -> KubeObject:
    if "metadata" not in obj:
        return obj
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}


def _timeless(obj: KubeObject) -> list[KubeObject]:
    entries = obj["metadata"].get("managedFields") or []
    return [{key: value for key, value in entry.items() if key != "time"} for entry in entries]


def _with_owners(obj: KubeObject, owners: Sequence[Owner]) -> KubeObject:
    bare = _bare(obj)
    if owners:
        ordered = sorted(owners, key=lambda owner: owner.order)
        bare["metadata"]["managedFields"] = [owner.document() for owner in ordered]
    return bare
