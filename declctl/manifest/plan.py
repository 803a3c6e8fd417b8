"""A plan: the watches, caches and handlers that a manifest declares. Plans are frozen and equal by value.

Equal plans run the same, and the differences between two plans are the work of a reload. A watch is
identified by its key; resources with the same key share the watch. A plan does not know which kinds are
cluster-scoped. So a resource that takes its namespaces from the spec has `namespaces_inherited`, and the
runtime, which asks the cluster, calls `without_namespaces` if the kind turns out to be cluster-scoped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import msgspec

from declctl.manifest.model import (
    DROPPED_BY_DEFAULT,
    AdminSpec,
    CacheMode,
    ControllerSpec,
    HandlerSpec,
    IndexerSpec,
    LeaderElectionSpec,
    LifecycleSpec,
    MetricsSpec,
    Mode,
    OnInvalid,
    PluginSpec,
    ReloadSpec,
    ReplayPolicy,
    ResourceSpec,
    ScheduleSpec,
    ShardingSpec,
    StateSpec,
    WritesSpec,
)
from declctl.manifest.values import EntryPoint, Path
from declctl.objects.fields import FieldSelector
from declctl.objects.resource import GroupVersionKind, Resource
from declctl.objects.shards import ShardKey

NO_ELECTION = LeaderElectionSpec()
NO_METRICS_ADDRESS = MetricsSpec()
NO_STATE = StateSpec()
_KEPT = {CacheMode.FRAMES: "", CacheMode.OBJECTS: " objects", CacheMode.METADATA_ONLY: " metadata"}


@dataclass(frozen=True, slots=True)
class TransformId:
    """The changes to objects before they are cached. Resources share a watch only if these are equal."""

    drop_fields: tuple[str, ...] = ()
    entry_point: EntryPoint | None = None


@dataclass(frozen=True, slots=True)
class WatchKey:
    """The request of one LIST and WATCH. Selectors are canonical texts; an empty text selects everything.

    With a `namespace_selector`, there is one LIST and WATCH in each namespace that it matches at the moment.
    They have one cache, which is never made anew because the namespaces change.
    """

    api_version: str
    kind: str
    namespace: str | None = None  # None for several, and for cluster-scoped kinds
    label_selector: str = ""
    field_selector: str = ""
    transform: TransformId = TransformId()
    cache: CacheMode = CacheMode.FRAMES
    namespace_selector: str = ""  # by labels of namespaces; empty for one namespace, or for all
    sharded: bool = False  # whether it has the objects of held shards alone

    def __str__(self) -> str:
        what = f"{self.api_version} {self.kind}{_KEPT[self.cache]}{' of held slots' if self.sharded else ''}"
        selectors = [part for part in (self.label_selector, self.field_selector) if part]
        where = f"in {self.namespace}" if self.namespace else "in all namespaces"
        if self.namespace_selector:
            where = f"in namespaces with {self.namespace_selector}"
        return " ".join([what, where, *(f"[{part}]" for part in selectors)])


class WatchPlan(msgspec.Struct, frozen=True):
    """One LIST and WATCH, and the resources that share it. `idle_timeout` (seconds) is their shortest one."""

    key: WatchKey
    resources: tuple[str, ...]
    idle_timeout: float


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """One resource: its watches, in the order of namespaces and names, and its indexes.

    `resync_period` is in seconds; 0 means never, as in client-go. `namespaces` is None for all namespaces,
    and for those that `namespace_selector` matches.
    """

    name: str
    watches: tuple[WatchKey, ...]
    indexers: tuple[IndexerSpec, ...]
    resync_period: float
    idle_timeout: float
    namespaces: tuple[str, ...] | None
    namespaces_inherited: bool
    namespace_selector: str = ""
    object_type: EntryPoint | None = None
    path: Path = field(default=(), compare=False, repr=False)

    def without_namespaces(self) -> "ResourcePlan":
        """The same resource for a cluster-scoped kind: a watch for each name, none for a namespace."""
        keys = (replace(key, namespace=None, namespace_selector="") for key in self.watches)
        return replace(
            self,
            watches=tuple(dict.fromkeys(keys)),
            namespaces=None,
            namespace_selector="",
            namespaces_inherited=False,
        )

    @property
    def sharded(self) -> bool:
        """Whether processes share its objects. False for all resources without a sharding."""
        return self.watches[0].sharded

    @property
    def names_namespaces(self) -> bool:
        """Whether it is limited to some namespaces."""
        return self.namespaces is not None or bool(self.namespace_selector)


@dataclass(frozen=True, slots=True)
class HandlerPlan(HandlerSpec):
    """One handler, with the resync period of its resource and the replay of its mode, unless it has its own.

    The concurrency of its queue is that of all handlers which share the queue.

    `resync_period` is in seconds; 0 means never. `types` are the classes of the objects that it reads.
    """

    resync_period: float = 0.0
    replay: ReplayPolicy = ReplayPolicy.NEVER
    types: tuple[EntryPoint, ...] = ()
    on_invalid: OnInvalid = OnInvalid.CALL  # also if its resource has no type


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan, in the order of the manifest."""

    name: str
    watches: tuple[WatchPlan, ...]
    resources: tuple[ResourcePlan, ...]
    handlers: tuple[HandlerPlan, ...]
    plugins: tuple[PluginSpec, ...]
    lifecycle: LifecycleSpec
    reload: ReloadSpec
    admin: AdminSpec
    writes: WritesSpec
    schedules: tuple[ScheduleSpec, ...] = ()
    leader_election: LeaderElectionSpec = NO_ELECTION
    metrics: MetricsSpec = NO_METRICS_ADDRESS
    state: StateSpec = NO_STATE
    sharding: ShardingSpec | None = None


def plan(controller: ControllerSpec, *, is_sharded: bool | None = None) -> Plan:
    """The plan of a manifest.

    `is_sharded`: whether the process shares objects, by the manifest at its start; None: as this one says.
    """
    children = _children(controller)
    if is_sharded is None:
        is_sharded = controller.sharding is not None
    resources = tuple(
        _resource(spec, is_child=spec.name in children, sharded=is_sharded and spec.sharded)
        for spec in controller.resources
    )
    # Of a shared queue, the handlers that name no concurrency have the default, which is the lowest.
    workers: dict[str, int] = {}
    for spec in controller.handlers:
        workers[spec.queue.name] = max(spec.queue.concurrency, workers.get(spec.queue.name, 0))
    by_name = {resource.name: resource for resource in resources}
    return Plan(
        name=controller.name,
        watches=watches_of(resources),
        resources=resources,
        handlers=tuple(_handler(spec, by_name, workers[spec.queue.name]) for spec in controller.handlers),
        plugins=controller.plugins,
        lifecycle=controller.lifecycle,
        reload=controller.reload,
        admin=controller.admin,
        writes=controller.writes,
        schedules=controller.schedules,
        leader_election=controller.leader_election,
        metrics=controller.metrics,
        state=controller.state,
        sharding=controller.sharding,
    )


def watches_of(resources: tuple[ResourcePlan, ...]) -> tuple[WatchPlan, ...]:
    """Each watch once, in the order in which the resources first use it."""
    users: dict[WatchKey, list[ResourcePlan]] = {}
    for resource in resources:
        for key in resource.watches:
            users.setdefault(key, []).append(resource)
    return tuple(
        WatchPlan(key, tuple(user.name for user in by), min(user.idle_timeout for user in by))
        for key, by in users.items()
    )


def _children(controller: ControllerSpec) -> frozenset[str]:
    """The resources whose objects a handler applies as children, and watches to keep them as they are.

    Their caches have `managedFields`: by them, a handler knows a child that needs no apply.
    """
    kinds = {spec.name: GroupVersionKind.of(spec.api_version, spec.kind) for spec in controller.resources}
    return frozenset(
        watched.resource
        for handler in controller.handlers
        for watched in handler.watches
        if watched.leads_to_owner and kinds[watched.resource] in handler.applies
    )


def _resource(spec: ResourceSpec, *, is_child: bool, sharded: bool) -> ResourcePlan:
    return ResourcePlan(
        name=spec.name,
        watches=_watch_keys(spec, is_child=is_child, sharded=sharded),
        indexers=spec.indexers,
        resync_period=spec.resync_period or 0.0,
        idle_timeout=spec.idle_timeout,
        namespaces=spec.namespaces,
        namespaces_inherited=spec.namespaces_inherited,
        namespace_selector=spec.namespace_selector,
        object_type=spec.object_type,
        path=spec.path,
    )


def _watch_keys(spec: ResourceSpec, *, is_child: bool, sharded: bool) -> tuple[WatchKey, ...]:
    dropped = spec.transform.drop_fields
    if dropped is None:
        is_whole = spec.cache is not CacheMode.METADATA_ONLY and spec.transform.entry_point is None
        dropped = () if is_child and is_whole else DROPPED_BY_DEFAULT
    transform = TransformId(dropped, spec.transform.entry_point)
    # A request can name one namespace and one object: each pair has a watch of its own.
    keys = (
        WatchKey(
            spec.api_version,
            spec.kind,
            namespace,
            spec.label_selector,
            field_selector,
            transform,
            spec.cache,
            spec.namespace_selector,
            sharded,
        )
        for namespace in spec.namespaces or (None,)
        for field_selector in _field_selectors(spec)
    )
    return tuple(dict.fromkeys(keys))


def _field_selectors(spec: ResourceSpec) -> tuple[str, ...]:
    """A field selector for each name, as one selector can't list several names."""
    if not spec.names:
        return (spec.field_selector,)
    parts = [f"metadata.name={name}" for name in spec.names]
    return tuple(
        str(FieldSelector.parse(",".join(filter(None, (part, spec.field_selector))))) for part in parts
    )


def _handler(spec: HandlerSpec, resources: Mapping[str, ResourcePlan], shared_workers: int) -> HandlerPlan:
    # Copied by name, so that a new field of HandlerSpec needs no line here.
    given = {each.name: getattr(spec, each.name) for each in fields(spec)}
    if spec.resync_period is None:
        given["resync_period"] = resources[spec.resource].resync_period
    if spec.replay is None:
        reconciles = spec.mode is Mode.RECONCILE
        given["replay"] = ReplayPolicy.ON_CODE_CHANGE if reconciles else ReplayPolicy.NEVER
    given["on_invalid"] = _on_invalid(spec, resources[spec.resource])
    if spec.queue.is_shared:
        given["queue"] = replace(spec.queue, concurrency=shared_workers)
    read = dict.fromkeys((spec.resource, *(watch.resource for watch in spec.watches)))
    types = dict.fromkeys(resources[name].object_type for name in read)
    return HandlerPlan(**given, types=tuple(each for each in types if each is not None))


def _on_invalid(spec: HandlerSpec, resource: ResourcePlan) -> OnInvalid:
    if resource.object_type is None:
        return OnInvalid.CALL  # there is nothing that it could not fit
    if spec.on_invalid is not None:
        return spec.on_invalid
    return OnInvalid.CONDITION if spec.status else OnInvalid.SKIP


class Contradiction(NamedTuple):
    """What contradicts itself in a plan: the place in the manifest, what it is, and what to do."""

    path: Path
    message: str
    advice: str


def cut_apart(planned: Plan, kinds: Mapping[GroupVersionKind, Resource]) -> Iterator[Contradiction]:
    """What handlers need of other slots because kinds have no namespace: with `by: Namespace` as well.

    `kinds` has the resources as the server serves them; one that is missing counts as namespaced.
    """
    if planned.sharding is None or planned.sharding.by is ShardKey.UID:
        return  # the checks of the manifest have refused what needs another object
    resources = {resource.name: resource for resource in planned.resources}
    alone = {
        name
        for name, resource in resources.items()
        if resource.sharded and (kind := kinds.get(_gvk(resource))) is not None and not kind.namespaced
    }
    for handler in planned.handlers:
        needed = [(watch.resource, watch.path) for watch in handler.watches]
        needed += [
            (name, (*handler.path, "includeSnapshotsFrom", index))
            for index, name in enumerate(handler.include_snapshots_from)
        ]
        for name, path in needed:
            if name in alone:
                message = f"{name} has no namespaces, so that its objects are cut by uid: a process has some"
                advice = f"write sharded: false for {name}: each process has all of it"
                yield Contradiction(path, message, advice)
            elif handler.resource in alone and resources[name].sharded:
                what = f"{handler.resource} has no namespaces, so that its objects are cut by uid"
                message = f"{what}: objects of {name} that it needs may be in other slots"
                advice = f"write sharded: false for {name}: each process has all of it"
                yield Contradiction(path, message, advice)


def _gvk(resource: ResourcePlan) -> GroupVersionKind:
    first = resource.watches[0]
    return GroupVersionKind.of(first.api_version, first.kind)
