"""The rights that a plan needs of a cluster, each with its reason and its place in the manifest.

They are computed here and nowhere else: `declctl generate rbac` makes Roles of them, and `declctl validate
--cluster` asks the server for them. A plan has everything but two things, which callers give: the kinds as a
server serves them, and the methods of `ctx` that the code of a handler calls.

Rights that each authenticated user has by default (discovery, `/version`) are left out, and so are the
requests of `ctx.client`, which no manifest declares: a hook `declctl_rbac` names them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from declctl.manifest.model import AdminAuthorization, FieldConflicts, OnInvalid, PluginSpec
from declctl.manifest.plan import HandlerPlan, Plan, ResourcePlan, WatchKey
from declctl.manifest.values import Path
from declctl.objects import FieldSelector, GroupVersionKind, Resource
from declctl.objects.shards import member_lease, shard_lease

READ: Final = ("list", "watch")
APPLY: Final = ("create", "patch")  # an apply of an object that is not there is a create
CHILDREN: Final = ("get", "list", "create", "patch", "delete")
MARK: Final = ("get", "patch")  # of an object that gets a finalizer, or becomes the owner of a set
EVENTS: Final = Resource(GroupVersionKind.of("events.k8s.io/v1", "Event"), "events", True)
NAMESPACES: Final = Resource(GroupVersionKind.of("v1", "Namespace"), "namespaces", False)
SECRETS: Final = Resource(GroupVersionKind.of("v1", "Secret"), "secrets", True)
LEASES: Final = Resource(GroupVersionKind.of("coordination.k8s.io/v1", "Lease"), "leases", True)
METHODS: Final = frozenset(
    {"apply", "apply_set", "delete", "get", "patch_status", "record_event", "client", "sync_client"}
)
"""The methods and properties of `ctx` on which rights depend."""
WRITES: Final = frozenset({"apply", "apply_set", "delete"})
"""Those that write what `applies` declares."""
_REVIEWS: Final = (
    ("authentication.k8s.io", "tokenreviews", "whose token it is"),
    ("authorization.k8s.io", "subjectaccessreviews", "what the user of a token may do"),
)
_EVENTS_OF_CLUSTER = "default"  # the namespace of Events about objects that are in none


class Scope(msgspec.Struct, frozen=True):
    """Where a right is needed: in a namespace, in those that a selector matches, or in the whole cluster."""

    namespace: str | None = None
    selector: str = ""  # of labels of namespaces, canonical; then `namespace` is None

    def __str__(self) -> str:
        if self.namespace is not None:
            return f"in the namespace {self.namespace}"
        return f"in namespaces with {self.selector}" if self.selector else "in the whole cluster"


class Right(msgspec.Struct, frozen=True):
    """Verbs of one resource in one scope. `path` is the place of the manifest that needs them."""

    group: str
    resource: str  # plural, maybe with a subresource, such as `webapps/status`
    verbs: tuple[str, ...]
    scope: Scope
    reason: str
    path: Path = ()
    names: tuple[str, ...] = ()  # of the only objects that it is about; empty for all
    declared: bool = True  # False if only the code of a handler says that it is needed


class HandlerCode(msgspec.Struct, frozen=True):
    """The names of METHODS that the code of a handler uses, and the fields of the status that it writes.

    `is_known` is False for a plugin, whose source is not read: it applies sets if it declares `applies`, and
    the rest is what its hook `declctl_rbac` says.
    """

    methods: frozenset[str] = frozenset()
    is_known: bool = True
    status_fields: frozenset[str] = frozenset()  # as far as calls of `patch_status` name them

    def calls(self, method: str) -> bool:
        """Whether the code uses a method."""
        return method in self.methods


Kinds = Mapping[GroupVersionKind, Resource]
"""The resources of kinds. A kind that a server does not serve is missing."""


def kinds_of(plan: Plan) -> Mapping[GroupVersionKind, Path]:
    """The kinds that a plan names, each with the first place that names it."""
    found: dict[GroupVersionKind, Path] = {}
    for resource in plan.resources:
        found.setdefault(_gvk(resource), (*resource.path, "kind"))
    for handler in plan.handlers:
        for index, kind in enumerate(handler.applies):
            found.setdefault(kind, (*handler.path, "applies", index, "kind"))
    return found


def rights_of(
    plan: Plan,
    kinds: Kinds,
    code: Mapping[str, HandlerCode],
    *,
    namespace: str,
) -> Iterator[Right]:
    """The rights that a plan needs, in the order of the manifest. One may be there for several reasons.

    `kinds` has those of `kinds_of`; what needs a missing one is left out. `code` has the code of handlers by
    name, and under "" that of schedules and life-cycle steps. `namespace` is that of the process, in which
    its Leases are, and the Secrets of `configFrom`.
    """
    finalized = {handler.resource for handler in plan.handlers if handler.finalizer}
    selectors: set[str] = set()
    for resource in plan.resources:
        if resource.namespace_selector and resource.namespace_selector not in selectors:
            selectors.add(resource.namespace_selector)
            reason = f"which namespaces have the labels {resource.namespace_selector}"
            yield _right(NAMESPACES, READ, Scope(), reason, (*resource.path, "namespaces"))
        yield from _watching(resource, kinds, everything=resource.name in finalized)
    resources = {resource.name: resource for resource in plan.resources}
    for handler in plan.handlers:
        uses = code.get(handler.name, HandlerCode())
        yield from _handling(handler, resources, kinds, uses)
    # A schedule is about no object: its Events may be about any that is watched.
    if code.get("", HandlerCode()).calls("record_event"):
        reason = "schedules and life-cycle functions call ctx.record_event"
        yield from _events(plan.resources, kinds, reason, ("spec", "schedules"))
    yield from _configuring(plan.plugins, namespace)
    election = plan.leader_election
    if election.enabled:
        where = Scope(election.namespace or namespace)
        name = election.lease_name or plan.name
        path = ("spec", "leaderElection")
        # A request that creates has no name that RBAC could compare.
        yield _right(LEASES, ("create",), where, "the first leader creates the Lease", path)
        reason = f"leaders take and renew the Lease {name}"
        yield replace(_right(LEASES, ("get", "update"), where, reason, path), names=(name,))
    yield from _sharing(plan, namespace)
    if plan.admin.authorization is AdminAuthorization.KUBERNETES:
        yield from _reviewing()


def _watching(resource: ResourcePlan, kinds: Kinds, *, everything: bool) -> Iterator[Right]:
    """The rights of the informers; with `everything`, also of objects that have left the selectors."""
    kind = kinds.get(_gvk(resource))
    if kind is None:
        return
    reason = f"the informer of the resource {resource.name}"
    names: dict[Scope, list[str]] = {}
    for key in _watches(resource, kind):
        names.setdefault(_scope(key), []).append("" if everything else _only_name(key))
    for scope, only in names.items():
        right = _right(kind, READ, scope, reason, resource.path)
        yield right if "" in only else replace(right, names=tuple(only))


def _handling(
    handler: HandlerPlan, resources: Mapping[str, ResourcePlan], kinds: Kinds, uses: HandlerCode
) -> Iterator[Right]:
    resource = resources[handler.resource]
    own = kinds.get(_gvk(resource))
    if own is None:
        return
    scopes = _scopes(resource, own)
    applies_sets = bool(handler.applies) and (uses.calls("apply_set") or not uses.is_known)
    yield from _applying(handler, own, scopes, kinds, uses, applies_sets=applies_sets)
    if applies_sets:
        path = (*handler.path, "applies")
        for scope in scopes:
            reason = f"ctx.apply_set of {handler.name} marks the owner"
            yield replace(_right(own, MARK, scope, reason, path), declared=False)
    if handler.status or (handler.status is None and uses.calls("patch_status")):
        path = (*handler.path, "status")
        for scope in scopes:
            reason, declared = f"{handler.name} writes the status", bool(handler.status)
            writes = _right(own, ("patch",), scope, reason, path)
            yield replace(writes, resource=f"{own.plural}/status", declared=declared)
            reads = _right(own, ("get",), scope, f"{reason}, and reads it after a conflict", path)
            yield replace(reads, declared=declared)
    if handler.finalizer:
        path = (*handler.path, "finalizer")
        for scope in scopes:
            yield _right(own, MARK, scope, f"{handler.name} adds and removes its finalizer", path)
    about = [resource, *(resources[watch.resource] for watch in handler.watches)]
    tells = handler.on_invalid is OnInvalid.CONDITION
    if uses.calls("record_event") or tells:
        reason = f"{handler.name} {'tells of objects that do not fit' if tells else 'calls ctx.record_event'}"
        yield from _events(about, kinds, reason, handler.path)
    if uses.calls("get"):
        reason = f"{handler.name} calls ctx.get"
        for each in about:
            if (kind := kinds.get(_gvk(each))) is not None:
                rights = (
                    _right(kind, ("get",), scope, reason, handler.path) for scope in _scopes(each, kind)
                )
                yield from (replace(right, declared=False) for right in rights)


def _applying(
    handler: HandlerPlan,
    own: Resource,
    scopes: Sequence[Scope],
    kinds: Kinds,
    uses: HandlerCode,
    *,
    applies_sets: bool,
) -> Iterator[Right]:
    """The rights to the kinds of `applies`."""
    # Without force, an apply is refused before its answer shows the fields that it is going to take over.
    alone = ("get", *APPLY) if handler.field_conflicts is FieldConflicts.FAIL else APPLY
    for index, kind in enumerate(handler.applies):
        child = kinds.get(kind)
        if child is None:
            continue
        # An object of a namespace owns no object without one; those are applied, and in no set.
        in_sets = applies_sets and (child.namespaced or not own.namespaced)
        verbs, how = (CHILDREN, "ctx.apply_set") if in_sets else (alone, "ctx.apply")
        if uses.calls("delete"):  # which reads the object after a conflict
            verbs, how = (*verbs, "get", "delete"), f"{how} and ctx.delete"
        if uses.calls("get"):
            verbs, how = (*verbs, "get"), f"{how}, and reads them by ctx.get"
        if kind in handler.on_immutable:
            verbs, how = (*verbs, "get", "delete"), f"{how}, with onImmutable: Recreate"
        verbs, reason = tuple(dict.fromkeys(verbs)), f"{handler.name} writes {child.plural} by {how}"
        # The children of an object without a namespace may be in any.
        for scope in scopes if own.namespaced and child.namespaced else (Scope(),):
            yield _right(child, verbs, scope, reason, (*handler.path, "applies", index))


def _events(about: Iterable[ResourcePlan], kinds: Kinds, reason: str, path: Path) -> Iterator[Right]:
    """The rights to post Events about the objects of these resources."""
    scopes: dict[Scope, None] = {}
    for resource in about:
        kind = kinds.get(_gvk(resource))
        if kind is not None and kind.namespaced:
            scopes |= dict.fromkeys(_scopes(resource, kind))
        elif kind is not None:
            scopes[Scope(_EVENTS_OF_CLUSTER)] = None
    for scope in scopes:
        yield replace(_right(EVENTS, APPLY, scope, reason, path), declared=False)


def _configuring(plugins: Iterable[PluginSpec], namespace: str) -> Iterator[Right]:
    """The rights to read the Secrets that `configFrom` names: each of them alone."""
    for plugin in plugins:
        for source in plugin.config_from:
            if source.secret_key_ref is not None:
                reason = f"{source.name} of the config of the plugin {plugin.name}"
                right = _right(SECRETS, ("get",), Scope(namespace), reason, source.secret_key_ref.path)
                yield replace(right, names=(source.secret_key_ref.name,))


def _sharing(plan: Plan, namespace: str) -> Iterator[Right]:
    """The rights to the Leases of a sharding: one for each slot, and as many for processes."""
    sharding = plan.sharding
    if sharding is None:
        return
    where, name = Scope(sharding.namespace or namespace), sharding.lease_name or plan.name
    path = ("spec", "sharding")
    # A list by a label has no name that RBAC could compare, nor has a request that creates.
    reason = "processes see who holds which slot, and the first holder creates the Lease"
    yield _right(LEASES, ("list", "create"), where, reason, path)
    names = [make(name, each) for make in (shard_lease, member_lease) for each in range(sharding.slots)]
    reason = f"processes take and renew the Leases {names[0]} to {names[-1]}"
    yield replace(_right(LEASES, ("get", "update"), where, reason, path), names=tuple(names))


def _reviewing() -> Iterator[Right]:
    """The rights to ask the API server about tokens of the admin address, as system:auth-delegator has."""
    path = ("spec", "admin", "authorization")
    for group, plural, what in _REVIEWS:
        yield Right(group, plural, ("create",), Scope(), f"the admin address asks {what}", path)


def _right(kind: Resource, verbs: tuple[str, ...], scope: Scope, reason: str, path: Path) -> Right:
    return Right(kind.gvk.group, kind.plural, verbs, scope, reason, path)


def _scopes(resource: ResourcePlan, kind: Resource) -> tuple[Scope, ...]:
    return tuple(dict.fromkeys(_scope(key) for key in _watches(resource, kind)))


def _watches(resource: ResourcePlan, kind: Resource) -> tuple[WatchKey, ...]:
    # A kind without namespaces is watched once, whatever namespaces the manifest names.
    return resource.watches if kind.namespaced else resource.without_namespaces().watches


def _only_name(key: WatchKey) -> str:
    """The name of the only object of a watch; empty for several. RBAC compares it as that of a get."""
    conditions = FieldSelector.parse(key.field_selector).conditions
    return next((value for path, how, value in conditions if (path, how) == ("metadata.name", "=")), "")


def _scope(key: WatchKey) -> Scope:
    return Scope(key.namespace, key.namespace_selector)


def _gvk(resource: ResourcePlan) -> GroupVersionKind:
    first = resource.watches[0]
    return GroupVersionKind.of(first.api_version, first.kind)
