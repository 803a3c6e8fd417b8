"""The children of an object: applied together, and deleted when they are not in the set any more.

The labels and annotations are those of KEP-3659 (ApplySet). The object is the parent of the set:

- The parent has the label `applyset.kubernetes.io/id`, and annotations with the tool and with the kinds of
  the members. The kinds are widened before the first apply and narrowed after the last delete, so that a
  process that ends in between leaves no member behind that the next one does not look for.
- A member has the label `applyset.kubernetes.io/part-of`, and an owner reference to the parent.

The ID of a set depends on the parent alone. So several handlers may share it. Therefore a member is deleted
only if it has the label, the owner reference with the uid of the parent, and fields that this field manager
has applied.

All parents of a handler have one field manager. So the server takes an apply for another parent as a change
of mind, and removes the owner reference of the first one. Therefore an object that is not known to be a
member is only created. If it exists, it is read, and is refused if another object controls it. Any other one
is adopted, which the log tells, or refused, as the handler declares.

A member whose present state is known, by a LIST of this call or by a cache whose changes lead to the next
call, is not applied if that would change nothing.
"""

import base64
import copy
import hashlib
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any

import msgspec

from declctl.errors import AlreadyExists, AlreadyOwned, Conflict, CrossNamespaceOwner, InvalidWrite, NotFound
from declctl.kit import Clock
from declctl.objects import FieldPath, GroupVersionKind, KubeObject, ObjectKey, ObjectView, Resource
from declctl.writes.apply import AppliedDocument, Discover, has_applied, has_preconditions, placed
from declctl.writes.declared import ChildCache, DeclaredWrites
from declctl.writes.gate import NO_VERSION, ApiWrite, WarningLog, WriteGate, conflict_pause
from declctl.writes.ledger import WriteOrigin, WriteVerb, Written
from declctl.writes.locks import KeyLocks

PART_OF = "applyset.kubernetes.io/part-of"
SET_ID = "applyset.kubernetes.io/id"
TOOLING = "applyset.kubernetes.io/tooling"
GROUP_KINDS = "applyset.kubernetes.io/contains-group-kinds"
NAMESPACES = "applyset.kubernetes.io/additional-namespaces"
_TOOL = "declctl"
_PAGE = "500"  # objects of one page of a list
_MOST_SETS = 10_000  # whose members are remembered
_MOST_MEMBERS = 100_000  # whose parents are remembered
_MOST_CONFLICTS = 5  # of one change of the parent

GroupKind = tuple[str, str]  # group, kind
SendApply = Callable[
    [ApiWrite, WriteOrigin, DeclaredWrites, Callable[[KubeObject], bool], KubeObject | None],
    Awaitable[Written],
]
"""Sends an apply of an object that the function knows to be a member; see `Recreation.apply`."""


@dataclass(frozen=True, slots=True)
class Member:
    """One object of a set. The server has it in all versions of its kind, so the version does not count."""

    group_kind: GroupKind
    key: ObjectKey
    resource: Resource = field(compare=False)

    @classmethod
    def of(cls, resource: Resource, key: ObjectKey) -> "Member":
        """The object of a resource with a key."""
        return cls((resource.gvk.group, resource.gvk.kind), key, resource)

    def __str__(self) -> str:
        return f"{self.resource} {self.key}"


def set_id(parent: ObjectView) -> str:
    """The ID of the set of a parent: of its name, namespace, kind and group, as KEP-3659 defines it."""
    kind = _kind_of(parent)
    text = ".".join((parent.name, parent.namespace or "", kind.kind, kind.group))
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"applyset-{digest}-v1"


def drops_set_annotations(fields: Iterable[FieldPath]) -> bool:
    """Whether objects without these fields may be without annotations of the parent of a set."""
    probe = {"metadata": {"annotations": dict.fromkeys((TOOLING, GROUP_KINDS, NAMESPACES), "")}}
    whole = copy.deepcopy(probe)
    for each in fields:
        each.remove_from(probe)
    return probe != whole


@dataclass(frozen=True, slots=True)
class AppliedSet:
    """The result of `apply_set`: the members in the order of the call, and those that were deleted."""

    applied: tuple[Written, ...]
    pruned: tuple[Written, ...]


class SetOwner(msgspec.Struct, frozen=True):
    """The parent of a set, with what its handler needs to write it."""

    parent: ObjectView
    manager: str
    origin: WriteOrigin
    declared: DeclaredWrites

    @property
    def applies(self) -> tuple[GroupVersionKind, ...]:
        """The kinds that the handler declares; empty for every kind."""
        return self.declared.applies

    @property
    def reference(self) -> KubeObject:
        """The owner reference of the members."""
        return {
            "apiVersion": self.parent["apiVersion"],
            "kind": self.parent["kind"],
            "name": self.parent.name,
            "uid": self.parent.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    @property
    def group_kinds(self) -> frozenset[GroupKind]:
        """The declared kinds."""
        return frozenset((kind.group, kind.kind) for kind in self.applies)

    def undeclared(self, kinds: frozenset[GroupKind]) -> frozenset[GroupKind]:
        """Those kinds that the handler may not write."""
        return kinds - self.group_kinds if self.applies else frozenset()

    def mark(self, document: AppliedDocument) -> None:
        """Make a document a member of the set."""
        _mark(document, set_id(self.parent), [self.reference])

    def other_controller(self, obj: Mapping[str, Any]) -> KubeObject | None:
        """The owner reference of the controller of an object, unless that is the parent.

        As in controller-runtime, a parent that was deleted and created again is the same one.
        """
        for each in _owners_of(obj):
            if each.get("controller") and not self._is_parent(each):
                return each
        return None

    def is_owner_of(self, obj: Mapping[str, Any]) -> bool:
        """Whether the parent, or a former one of its name, owns an object."""
        return any(self._is_parent(each) for each in _owners_of(obj))

    def _is_parent(self, reference: Mapping[str, Any]) -> bool:
        own = self.reference
        same = _group_kind_of(reference) == _group_kind_of(own) and reference.get("name") == own["name"]
        return same or reference.get("uid") == own["uid"]

    def is_marked_for(self, kind: GroupKind) -> bool:
        """Whether the parent has a set in which objects of a kind may be, as far as its cached state tells.

        The cache may lack the annotations.
        """
        metadata = self.parent["metadata"]
        annotations = metadata.get("annotations") or {}
        return (metadata.get("labels") or {}).get(SET_ID) == set_id(self.parent) and (
            TOOLING not in annotations
            or kind in {_parsed(each) for each in _listed_in(annotations, GROUP_KINDS)}
        )

    def owns(self, obj: Mapping[str, Any]) -> bool:
        """Whether this handler has applied an object as a member of the set."""
        metadata = obj.get("metadata") or {}
        return (
            (metadata.get("labels") or {}).get(PART_OF) == set_id(self.parent)
            and any(each.get("uid") == self.parent.uid for each in _owners_of(obj))
            and has_applied(self.manager, metadata)
        )

    def is_only_owner_of(self, obj: Mapping[str, Any]) -> bool:
        """Whether an object is a member of the set, and no other object controls it."""
        return self.owns(obj) and self.other_controller(obj) is None

    @property
    def cached_kinds(self) -> frozenset[GroupKind]:
        """The kinds of which a cache has all objects in the namespace of the parent."""
        caches = (each for each in self.declared.children if each.has_all_of(self.parent.namespace))
        kinds = frozenset((each.kind.group, each.kind.kind) for each in caches)
        return kinds - self.undeclared(kinds)

    def cache_of(self, kind: GroupVersionKind, namespace: str | None) -> ChildCache | None:
        """The cache that has all objects of a kind in a namespace, and whose changes lead to calls."""
        there = (each for each in self.declared.children if each.kind == kind and each.has_all_of(namespace))
        return next(there, None)

    def cached(self, member: Member) -> KubeObject | None:
        """A child as such a cache has it; None if there is no cache."""
        cache = self.cache_of(member.resource.gvk, member.key.namespace)
        obj = None if cache is None else cache.reader.get(member.key)
        return None if obj is None else obj.to_dict()


class ApplySets:
    """Applies and prunes sets. Used on the loop of the gate.

    Calls for one parent by one field manager wait for each other.

    It remembers the members of each set that it has applied. A call looks for the members in the kinds that
    the annotations of the parent name, in caches or by a LIST, unless the call before it had members of the
    same kinds and namespaces; then it looks at the former members alone. `on_marked` is called with each
    write of a parent.

    Kinds that a handler does not declare, if it declares any, are neither listed nor deleted: they stay in
    the annotation of the parent, and `log` tells them once.
    """

    def __init__(
        self,
        gate: WriteGate,
        send_apply: SendApply,
        discover: Discover,
        *,
        version: str,
        clock: Clock,
        on_marked: Callable[[Written], None],
        log: WarningLog | None = None,
    ) -> None:
        self._clock = clock
        self._log = log
        self._told: set[tuple[str, GroupKind]] = set()  # handlers and kinds of `_tell_undeclared`
        self._on_marked = on_marked
        self._gate = gate
        self._send_apply = send_apply
        self._discover = discover
        self._tooling = f"{_TOOL}/v{version}"
        # (uid of the parent, field manager) → the set after a call that has succeeded; the oldest call first.
        self._known: OrderedDict[tuple[str, str], _KnownSet] = OrderedDict()
        self._locks = KeyLocks()  # by the keys of `_known`
        # (field manager, member) → uid of the parent for which this process has applied it; empty for an
        # object that is in no set. The oldest write first.
        self._parents: OrderedDict[tuple[str, Member], str] = OrderedDict()

    def forget(self) -> None:
        """Read the members at the next calls, because another process may have written them."""
        self._known.clear()
        self._parents.clear()

    async def apply(self, owner: SetOwner, documents: Sequence[AppliedDocument]) -> AppliedSet:
        """Apply the documents in order, then delete the members that are not among them.

        Raises InvalidWrite and CrossNamespaceOwner before anything is written, AlreadyOwned and AlreadyExists
        before their child is, NotLeader, and ApiError. After the first error nothing else is applied, and
        nothing is deleted.
        """
        async with self._locks.of((owner.parent.uid, owner.manager)):
            members = await self._members(owner, documents)
            resource = await self._discover(_kind_of(owner.parent))
            marks = _ParentMarks(self._gate, self._clock, resource, owner, self._tooling, self._on_marked)
            if owner.declared.lacks_annotations:
                known = self._known.get((owner.parent.uid, owner.manager))
                await marks.read(None if known is None else known.parent)
            marks.check_tool()
            return await self._apply_members(owner, members, marks)

    async def keep_marks(
        self, manager: str, owner: SetOwner | None, document: AppliedDocument, member: Member
    ) -> None:
        """Add to a document of `ctx.apply` the label and the owner reference of a member of a handler's set.

        Without it, the apply would remove both, as it has the same field manager. `owner` has the object of
        the call; None without one. An object is read if it may be a member, and this process has not written
        it for this owner.
        """
        uid = self._parents.get((manager, member))
        if owner is not None and uid == owner.parent.uid:
            owner.mark(document)
            return
        # An unknown object may be a member if the object of the call has a set of its kind.
        unlikely = uid is None and (owner is None or not owner.is_marked_for(member.group_kind))
        if uid == "" or unlikely:
            return
        try:
            obj = await self._gate.read(member.resource, member.key.namespace, member.key.name)
        except NotFound:
            return
        metadata = obj["metadata"]
        part_of = (metadata.get("labels") or {}).get(PART_OF)
        controllers = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
        if part_of and controllers and has_applied(manager, metadata):
            _mark(document, part_of, controllers)
            self._remember(manager, member, str(controllers[0].get("uid")))
        else:
            self._remember(manager, member, "")

    def _is_adopted(self, owner: SetOwner, member: Member, obj: KubeObject) -> bool:
        """Whether the parent does not own an object yet that exists, and is to be applied.

        Raises AlreadyOwned if another object controls it, and AlreadyExists if the handler adopts none.
        """
        other = owner.other_controller(obj)
        if other is not None:
            raise _already_owned(owner, member, other.get("kind"), other.get("name"))
        if owner.is_owner_of(obj):
            return False
        if not owner.declared.adopts:
            raise AlreadyExists(
                f"{member.resource.gvk.kind} {member.key} exists, and is no child of "
                f"{owner.parent['kind']} {owner.parent.key}: {owner.origin.handler} has onExisting: "
                "Fail. Delete the object, give the child another name, or write onExisting: Adopt"
            )
        return True

    def _tell_adopted(self, owner: SetOwner, member: Member) -> None:
        """Log that a child was adopted. From then on the parent owns it, so that this comes once."""
        if self._log is None:
            return
        parent, kind = owner.parent, member.resource.gvk.kind
        self._log.warning(
            f"{owner.origin.handler}: {kind} {member.key} existed, and {parent['kind']} {parent.key} adopts "
            "it: the whole object is deleted with it, or when it leaves the set. With onExisting: Fail, such "
            "a child is refused"
        )

    def _remember(self, manager: str, member: Member, uid: str) -> None:
        if self._gate.dry_run:
            return
        self._parents.pop((manager, member), None)
        self._parents[manager, member] = uid
        if len(self._parents) > _MOST_MEMBERS:
            self._parents.popitem(last=False)

    async def _apply_members(
        self, owner: SetOwner, members: Mapping[Member, AppliedDocument], marks: "_ParentMarks"
    ) -> AppliedSet:
        state = owner.parent.uid, owner.manager
        last = self._known.pop(state, _KnownSet())
        # Until the call succeeds, its members may be there or not.
        self._know(state, _KnownSet(last.members | members.keys(), owner.group_kinds))
        scope, former = SetScope.of(members, owner), SetScope.of(last.members, owner)
        is_known = last.is_whole and (former, last.declared) == (scope, owner.group_kinds)
        named = await marks.widen(scope)
        if is_known:
            there = {member: obj for member in members if (obj := owner.cached(member)) is not None}
        else:
            # The former scope, also if somebody has replaced the parent without its annotations.
            there = await self._find(owner, members, named | former)
        applied: list[Written] = []
        for member, document in members.items():
            obj = there.get(member)
            # A cache may be behind what this process has written.
            if obj is not None and not (owner.is_only_owner_of(obj) and self._gate.is_newest(obj)):
                obj = None
            if obj is None and self._parents.get((owner.manager, member)) != owner.parent.uid:
                written, was_member = await self._create(owner, document, member)
                if was_member:  # the annotations are lost, and there may be others
                    there |= await self._find(owner, members, scope | SetScope(owner.group_kinds))
            else:
                written = await self._apply(owner, document, member, obj=obj)
            applied.append(written)
        # One object may be served in two groups: what was applied is never deleted under its other name.
        uids = {written.uid for written in applied}
        others = {
            member: obj
            for member, obj in there.items()
            if member not in members and obj["metadata"].get("uid") not in uids
        }
        undeclared = owner.undeclared((named | former).kinds)
        leaving = {member for member in last.members - members.keys() if member.group_kind not in undeclared}
        leaving |= {member for member, obj in others.items() if owner.owns(obj)}
        pruned = await self._prune(owner, leaving, uids)
        if not is_known:
            # Members that stay: those of other handlers, and of kinds that the handler does not declare.
            left = SetScope.of(others.keys() - leaving, owner)
            spaces = (named | former).namespaces if undeclared else frozenset[str]()
            await marks.narrow(scope | left | SetScope(undeclared, spaces))
        self._know(state, _KnownSet(frozenset(members), owner.group_kinds, marks.metadata, is_whole=True))
        return AppliedSet(tuple(applied), tuple(pruned))

    def _know(self, state: tuple[str, str], known: "_KnownSet") -> None:
        if self._gate.dry_run:
            return
        self._known[state] = known
        if len(self._known) > _MOST_SETS:
            self._known.popitem(last=False)

    async def _members(
        self, owner: SetOwner, documents: Sequence[AppliedDocument]
    ) -> dict[Member, AppliedDocument]:
        """The members with their documents, in order. Raises before anything is written."""
        found: dict[Member, AppliedDocument] = {}
        parent = owner.parent
        for document in documents:
            resource = await self._discover(document.kind)
            if parent.namespace is not None:
                if not resource.namespaced:
                    raise CrossNamespaceOwner(
                        f"{document} is cluster-scoped, so {parent['kind']} {parent.key} of a namespace "
                        "can't own it: the garbage collector would delete it. Write it by ctx.apply, and "
                        "delete it in a finalizer"
                    )
                if document.namespace not in (None, parent.namespace):
                    raise CrossNamespaceOwner(
                        f"{document} is in the namespace {document.namespace}, so {parent['kind']} "
                        f"{parent.key} can't own it: write it into {parent.namespace}, or by ctx.apply "
                        "without an owner"
                    )
            member = Member.of(resource, placed(document, resource, parent.namespace))
            if member in found:
                raise InvalidWrite(f"{document} is twice in the set: each object may be in it once")
            found[member] = document
        return found

    async def _create(
        self, owner: SetOwner, document: AppliedDocument, member: Member
    ) -> tuple[Written, bool]:
        """Apply a child that is not known to be there; returns the result, and whether it was a member.

        An object that is there is adopted in the state that was read, so that two parents don't adopt it.
        Raises as `_is_adopted`, and Conflict if the object has changed meanwhile.
        """
        if not has_preconditions(document):
            try:
                return await self._apply(owner, document, member, version=NO_VERSION), False
            except Conflict:
                pass  # it is there
        try:
            obj = await self._gate.read(member.resource, member.key.namespace, member.key.name)
        except NotFound:
            return await self._apply(owner, document, member), False
        if not self._is_adopted(owner, member, obj):
            return await self._apply(owner, document, member), owner.owns(obj)
        version = obj["metadata"].get("resourceVersion") if not has_preconditions(document) else ""
        written = await self._apply(owner, document, member, version=version or "")
        self._tell_adopted(owner, member)
        return written, False

    async def _apply(
        self,
        owner: SetOwner,
        document: AppliedDocument,
        member: Member,
        *,
        obj: KubeObject | None = None,
        version: str = "",
    ) -> Written:
        """Apply a child. `obj` is its present state if that is known; `version` is a precondition."""
        owner.mark(document)
        metadata = {**document.body["metadata"], "resourceVersion": version}
        write = ApiWrite(
            WriteVerb.APPLY,
            member.resource,
            member.key,
            body={**document.body, "metadata": metadata} if version else document.body,
            manager=owner.manager,
            repeats_conflict=not version and not has_preconditions(document),
            force=owner.declared.force,
            awaits_event=bool(version),
        )
        if version == NO_VERSION:  # an object that is made by it has no fields to take over
            written = await self._gate.send(write, owner.origin)
        else:
            written = await self._send_apply(write, owner.origin, owner.declared, owner.is_only_owner_of, obj)
        self._remember(owner.manager, member, owner.parent.uid)
        return written

    async def _prune(
        self, owner: SetOwner, members: Iterable[Member], uids: Collection[str]
    ) -> list[Written]:
        """Delete former members, each of which is read before, except for those with `uids`."""
        pruned: list[Written] = []
        for member in sorted(members, key=str):
            try:
                obj = await self._gate.read(member.resource, member.key.namespace, member.key.name)
            except NotFound:
                continue
            metadata = obj["metadata"]
            if owner.owns(obj) and metadata["uid"] not in uids and "deletionTimestamp" not in metadata:
                pruned += await self._delete(owner, member, obj)
        return pruned

    async def _find(
        self, owner: SetOwner, kept: Collection[Member], scope: "SetScope"
    ) -> dict[Member, KubeObject]:
        """The objects with the label of the set, in the kinds and namespaces of a scope, and in caches.

        Kinds are looked into in the versions of the members in `kept`.
        """
        found: dict[Member, KubeObject] = {}
        undeclared = owner.undeclared(scope.kinds)
        self._tell_undeclared(owner, undeclared)
        versions = {(kind.group, kind.kind): kind for kind in owner.applies}
        versions |= {member.group_kind: member.resource.gvk for member in kept}
        for group, kind in sorted((scope.kinds - undeclared) | owner.cached_kinds):
            try:
                resource = await self._discover(
                    versions.get((group, kind), GroupVersionKind(group, "", kind))
                )
                async for obj in self._listed(owner, resource, scope):
                    metadata = obj["metadata"]
                    member = Member.of(resource, ObjectKey.of(metadata.get("namespace"), metadata["name"]))
                    found[member] = obj
            except NotFound:
                continue  # the kind is not served any more, and its objects went with it
        return found

    def _tell_undeclared(self, owner: SetOwner, kinds: Iterable[GroupKind]) -> None:
        handler = owner.origin.handler
        for group, kind in sorted(kinds):
            if self._log is None or (handler, (group, kind)) in self._told:
                continue
            self._told.add((handler, (group, kind)))
            parent, name = owner.parent, f"{kind}.{group}" if group else kind
            self._log.warning(
                f"{handler}: {parent['kind']} {parent.key} may have children of the kind {name}, which the "
                "handler's `applies` does not name: they are neither looked for nor deleted. If no other "
                f"handler applies them, delete them, or add {name} to `applies` until they are gone"
            )

    async def _listed(
        self, owner: SetOwner, resource: Resource, scope: "SetScope"
    ) -> AsyncIterator[KubeObject]:
        spaces: Iterable[str | None]
        if not resource.namespaced:
            # Such as a kind of `applies` that another handler's parent has: it can't be a member here.
            spaces = [] if owner.parent.namespace else [None]
        else:
            spaces = sorted({*scope.namespaces, *filter(None, [owner.parent.namespace])})
        selector = f"{PART_OF}={set_id(owner.parent)}"
        of_kind = {"apiVersion": resource.gvk.api_version, "kind": resource.gvk.kind}
        for namespace in spaces:
            if (cache := owner.cache_of(resource.gvk, namespace)) is not None:
                for view in cache.reader.list(namespace=namespace, selector=selector):
                    yield view.to_dict()
                continue
            params = {"labelSelector": selector, "limit": _PAGE}
            while True:
                page = await self._gate.read(resource, namespace, params=params)
                for item in page.get("items") or ():
                    yield item | of_kind  # which a list leaves out
                following = (page.get("metadata") or {}).get("continue")
                if not following:
                    break
                params["continue"] = following

    async def _delete(self, owner: SetOwner, member: Member, obj: KubeObject) -> list[Written]:
        """Delete a member; an empty list if the object has gone, or another one has its name."""
        if not self._gate.dry_run:
            self._parents.pop((owner.manager, member), None)
        deleted = await self._gate.delete(
            member.resource,
            member.key,
            uid=obj["metadata"]["uid"],
            propagation="Background",
            manager=owner.manager,
            origin=owner.origin,
        )
        return [] if deleted is None else [deleted]


class _KnownSet(msgspec.Struct, frozen=True):
    """A set as a call has left it."""

    members: frozenset[Member] = frozenset()
    declared: frozenset[GroupKind] = frozenset()  # that the handler had; other kinds are not known
    parent: Mapping[str, Any] | None = None  # the metadata of the parent; None if the cache has them
    is_whole: bool = False  # the call has succeeded: there are no other members


class _ParentMarks:
    """The label and the annotations of the parent of a set, which are written only if they change."""

    def __init__(
        self,
        gate: WriteGate,
        clock: Clock,
        resource: Resource,
        owner: SetOwner,
        tooling: str,
        on_written: Callable[[Written], None],
    ) -> None:
        self._gate = gate
        self._clock = clock
        self._on_written = on_written
        self._resource = resource
        self._owner = owner
        self._tooling = tooling
        self._metadata: Mapping[str, Any] = owner.parent["metadata"]  # the newest that is known

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """What a later call has to know of the parent, if its cached state does not tell."""
        names = ("uid", "resourceVersion", "annotations")
        return (
            {name: self._metadata.get(name) for name in names}
            if self._owner.declared.lacks_annotations
            else None
        )

    async def read(self, known: Mapping[str, Any] | None = None) -> None:
        """Take the metadata `known` in the place of those in the cache; without them, those of the server."""
        if known is not None:
            self._metadata = known
            return
        self._metadata = (await self._gate.read_again(self._resource, self._owner.parent))["metadata"]

    @property
    def scope(self) -> "SetScope":
        """The kinds and namespaces in the annotations; unreadable ones are left out."""
        kinds = {_parsed(each) for each in self._annotation(GROUP_KINDS)}
        return SetScope(frozenset(kinds), frozenset(self._annotation(NAMESPACES)))

    def check_tool(self) -> str:
        """The tool of the set; empty if there is none yet. Raises InvalidWrite for another tool's set."""
        tool = (self._metadata.get("annotations") or {}).get(TOOLING, "")
        if tool and tool.partition("/")[0] != _TOOL:
            parent = self._owner.parent
            raise InvalidWrite(
                f"{parent['kind']} {parent.key} is the parent of an ApplySet of {tool} ({TOOLING}): one "
                "object can be the parent of one tool's set only"
            )
        return tool

    async def widen(self, scope: "SetScope") -> "SetScope":
        """Let the annotations name these kinds and namespaces, too. Raises as `check_tool`.

        Returns the scope that they have named before: as the write is conditional, the server had it.
        """
        for conflicts in range(_MOST_CONFLICTS):
            tool, before = self.check_tool(), self.scope
            if not scope.kinds or (tool and before | scope == before):
                return before
            try:
                await self._write(before | scope)
            except Conflict:
                await self._clock.sleep(conflict_pause(self._clock, conflicts))
                await self.read()
            else:
                return before
        before = self.scope
        await self._write(before | scope)
        return before

    async def narrow(self, scope: "SetScope") -> None:
        """Let the annotations name these kinds and namespaces only.

        Raises Conflict if the parent has changed meanwhile: another handler may have members of other kinds.
        """
        if self._annotation(GROUP_KINDS) and self.scope != scope:
            await self._write(scope)

    async def _write(self, scope: "SetScope") -> None:
        parent = self._owner.parent
        annotations: dict[str, str | None] = {
            TOOLING: self._tooling,
            GROUP_KINDS: ",".join(
                sorted(f"{kind}.{group}" if group else kind for group, kind in scope.kinds)
            ),
        }
        if scope.namespaces or self._annotation(NAMESPACES):
            annotations[NAMESPACES] = ",".join(sorted(scope.namespaces)) or None
        # The version: two handlers that change the annotations at the same time must see each other's kinds.
        metadata = {
            "uid": parent.uid,
            "resourceVersion": self._metadata.get("resourceVersion"),
            "labels": {SET_ID: set_id(parent)},
            "annotations": annotations,
        }
        write = ApiWrite(
            WriteVerb.PATCH,
            self._resource,
            parent.key,
            body={"metadata": metadata},
            manager=self._owner.manager,
        )
        try:
            written = await self._gate.send(write, self._owner.origin)
        except NotFound:
            await self._gate.read_again(self._resource, parent)
            raise
        self._metadata = written.obj.get("metadata") or {}
        self._on_written(written)

    def _annotation(self, name: str) -> list[str]:
        return _listed_in(self._metadata.get("annotations") or {}, name)


class SetScope(msgspec.Struct, frozen=True):
    """The kinds of the members, and their namespaces besides that of the parent."""

    kinds: frozenset[GroupKind] = frozenset()
    namespaces: frozenset[str] = frozenset()

    @classmethod
    def of(cls, members: Iterable[Member], owner: SetOwner) -> "SetScope":
        """The scope of members."""
        there = list(members)
        kinds = frozenset(each.group_kind for each in there)
        spaces = frozenset(each.key.namespace for each in there if each.key.namespace)
        return cls(kinds, spaces - {owner.parent.namespace or ""})

    def __or__(self, other: "SetScope") -> "SetScope":
        return SetScope(self.kinds | other.kinds, self.namespaces | other.namespaces)


def _kind_of(parent: ObjectView) -> GroupVersionKind:
    return GroupVersionKind.of(parent["apiVersion"], parent["kind"])


def _group_kind_of(reference: Mapping[str, Any]) -> GroupKind:
    return str(reference.get("apiVersion")).rpartition("/")[0], str(reference.get("kind"))


def _owners_of(obj: Mapping[str, Any]) -> Sequence[KubeObject]:
    return (obj.get("metadata") or {}).get("ownerReferences") or ()


def _mark(document: AppliedDocument, part_of: str, references: Sequence[KubeObject]) -> None:
    """Give a document the label of a set, and owner references in the place of those with the same uid."""
    metadata: KubeObject = document.body["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), PART_OF: part_of}
    uids = {each["uid"] for each in references}
    others = [each for each in metadata.get("ownerReferences") or () if each.get("uid") not in uids]
    metadata["ownerReferences"] = [*others, *references]


def _already_owned(owner: SetOwner, member: Member, kind: object, name: object) -> AlreadyOwned:
    parent = owner.parent
    return AlreadyOwned(
        f"{member.resource.gvk.kind} {member.key} is a child of {kind} {name}, so {parent['kind']} "
        f"{parent.key} can't own it, too: an object has one controller. Give the child a name of its own, "
        f"such as one that begins with {parent.name}"
    )


def _listed_in(annotations: Mapping[str, Any], name: str) -> list[str]:
    """The parts of an annotation that is a list with commas."""
    text = annotations.get(name) or ""
    return [part for each in text.split(",") if (part := each.strip())]


def _parsed(text: str) -> GroupKind:
    kind, _, group = text.partition(".")
    return group, kind
