"""Which kinds are served: the built-in ones, and those that custom resource definitions add.

Kinds are values; the registry finds them by URL, by apiVersion and kind, or by a word that a person would
use. Objects are stored by `resource` (group and plural), so that all versions of a kind show the same
objects.

A CustomResourceDefinition becomes the kinds that it makes the server serve, and the conditions that say so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from declctl.objects import KubeObject

ResourceId = tuple[str, str]  # group, plural


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where /scale reads and writes, as dotted paths."""

    spec: str = "spec.replicas"
    status: str = "status.replicas"
    selector: str = "spec.selector"


_CORE_EVENTS: ResourceId = ("", "events")
# Fields of an Event in events.k8s.io, and their names in the core group, under which they are stored.
_EVENT_FIELDS: Mapping[str, str] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedSource": "source",
}
_NEW_EVENT_FIELDS = {stored: name for name, stored in _EVENT_FIELDS.items()}


@dataclass(frozen=True, slots=True)
class ServedKind:
    """One kind in one version, as discovery describes it.

    `status` says whether it has /status; `generations` whether a changed spec counts metadata.generation up;
    `returned` whether a delete answers with the object instead of a Status; `deprecation` is the warning of a
    deprecated version; `columns` are additionalPrinterColumns and `schema` the OpenAPI schema; `selectable`
    has the fields that a field selector may name besides those of metadata.
    """

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    generations: bool = False
    returned: bool = False
    scale: ScalePaths | None = None
    custom: bool = False
    deprecation: str = ""
    selectable: tuple[str, ...] = ()
    columns: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)
    schema: KubeObject | None = field(default=None, compare=False)

    @property
    def api_version(self) -> str:
        """As it stands in objects: `apps/v1`, or `v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> ResourceId:
        """Under which its objects are stored. Events of both groups are the same objects."""
        return _CORE_EVENTS if self.is_new_event else (self.group, self.plural)

    @property
    def is_new_event(self) -> bool:
        """Whether its objects are Events of events.k8s.io, which are stored as those of the core group."""
        return self.group == "events.k8s.io"

    @property
    def is_review(self) -> bool:
        """Whether its objects are questions: they are answered, and not stored."""
        return self.group == "authorization.k8s.io"

    def why_not_selectable(self, path: str) -> str:
        """What the server says to a field selector with a path; empty if it may have it."""
        has_labels = self.custom or bool(self.selectable)
        own = ("metadata.name", *(("metadata.namespace",) if self.namespaced or not has_labels else ()))
        if path in own or path in self.selectable:
            return ""
        if has_labels:
            return f"field label not supported: {path}"
        return f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'

    @property
    def conditional(self) -> bool:
        """Whether an update must name the version that it replaces."""
        return self.custom or self.plural in ("leases", "customresourcedefinitions")

    @property
    def verbs(self) -> tuple[str, ...]:
        """What can be done with it, as discovery names it."""
        if self.is_review:
            return ("create",)
        verbs = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
        return tuple(v for v in verbs if v != "deletecollection") if self.plural == "namespaces" else verbs


def _kind(api_version: str, kind: str, plural: str, traits: str = "", short: str = "") -> ServedKind:
    group, _, version = api_version.rpartition("/")
    words = frozenset(traits.split())
    known = {"all", "api-extensions"}
    return ServedKind(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        namespaced="cluster" not in words,
        short_names=tuple(short.split()),
        categories=tuple(sorted(words & known)),
        status="status" in words,
        generations="generations" in words,
        returned="returned" in words,
        scale=ScalePaths() if "scale" in words else None,
        selectable=_SELECTABLE.get((group, kind), ()),
    )


_POD = "status.phase status.podIP status.podIPs status.nominatedNodeName spec.nodeName spec.hostNetwork"
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
# Only the fields of metadata may be selected of all other built-in kinds.
_SELECTABLE: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (*_POD.split(), "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
    ("", "Node"): ("spec.unschedulable",),
    ("", "Namespace"): ("status.phase",),
    ("", "Secret"): ("type",),
    ("", "Service"): ("spec.clusterIP", "spec.type"),
    ("", "ReplicationController"): ("status.replicas",),
    ("batch", "Job"): ("status.successful",),
    ("", "Event"): (
        *(f"involvedObject.{name}" for name in _INVOLVED),
        *("reason", "reportingComponent", "source", "type"),
    ),
    ("events.k8s.io", "Event"): (
        *(f"regarding.{name}" for name in _INVOLVED),
        *("reason", "reportingController", "type"),
    ),
}


_RBAC = "rbac.authorization.k8s.io/v1"
_WORKLOAD = "all status scale generations"
BUILT_IN: tuple[ServedKind, ...] = (
    _kind("v1", "ConfigMap", "configmaps", short="cm"),
    _kind("v1", "Endpoints", "endpoints", short="ep"),
    _kind("v1", "Event", "events", short="ev"),
    _kind("v1", "LimitRange", "limitranges", short="limits"),
    _kind("v1", "Namespace", "namespaces", "cluster status returned", "ns"),
    _kind("v1", "Node", "nodes", "cluster status", "no"),
    _kind("v1", "PersistentVolume", "persistentvolumes", "cluster status returned", "pv"),
    _kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", "status returned", "pvc"),
    _kind("v1", "Pod", "pods", "all status generations returned", "po"),
    _kind("v1", "ReplicationController", "replicationcontrollers", _WORKLOAD, "rc"),
    _kind("v1", "ResourceQuota", "resourcequotas", "status returned", "quota"),
    _kind("v1", "Secret", "secrets"),
    _kind("v1", "Service", "services", "all status returned", "svc"),
    _kind("v1", "ServiceAccount", "serviceaccounts", "returned", "sa"),
    _kind("apps/v1", "DaemonSet", "daemonsets", "all status generations", "ds"),
    _kind("apps/v1", "Deployment", "deployments", _WORKLOAD, "deploy"),
    _kind("apps/v1", "ReplicaSet", "replicasets", _WORKLOAD, "rs"),
    _kind("apps/v1", "StatefulSet", "statefulsets", _WORKLOAD, "sts"),
    _kind("batch/v1", "CronJob", "cronjobs", "all status generations", "cj"),
    _kind("batch/v1", "Job", "jobs", "all status generations"),
    _kind("coordination.k8s.io/v1", "Lease", "leases"),
    _kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", "generations"),
    _kind("events.k8s.io/v1", "Event", "events", short="ev"),
    _kind("networking.k8s.io/v1", "Ingress", "ingresses", "status generations", "ing"),
    _kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", "generations", "netpol"),
    _kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", "status generations", "pdb"),
    _kind(_RBAC, "ClusterRole", "clusterroles", "cluster"),
    _kind(_RBAC, "ClusterRoleBinding", "clusterrolebindings", "cluster"),
    _kind(_RBAC, "Role", "roles"),
    _kind(_RBAC, "RoleBinding", "rolebindings"),
    _kind("storage.k8s.io/v1", "StorageClass", "storageclasses", "cluster", "sc"),
    _kind(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "cluster status generations api-extensions returned",
        "crd crds",
    ),
    _kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", "cluster"),
)


class Registry:
    """The kinds that are served now.

    `revision` grows with every change, for caches of what is derived from it.
    """

    def __init__(self, kinds: Iterable[ServedKind] = BUILT_IN) -> None:
        self.revision = 0
        # By group, version and plural, in the order of discovery.
        self._kinds: dict[tuple[str, str, str], ServedKind] = {}
        self.add(kinds)

    def add(self, kinds: Iterable[ServedKind]) -> None:
        """Serve these too; the same group, version and plural replaces what was."""
        self._kinds |= {(kind.group, kind.version, kind.plural): kind for kind in kinds}
        self.revision += 1

    def remove(self, resource: ResourceId) -> None:
        """Serve no version of the resource any more."""
        self._kinds = {path: kind for path, kind in self._kinds.items() if kind.resource != resource}
        self.revision += 1

    def replace(self, resource: ResourceId, kinds: Iterable[ServedKind]) -> None:
        """Serve exactly these versions of the resource."""
        self.remove(resource)
        self.add(kinds)

    def served(self) -> tuple[ServedKind, ...]:
        """Every kind in every version, in the order of discovery."""
        return tuple(self._kinds.values())

    def at(self, group: str, version: str, plural: str) -> ServedKind | None:
        """The kind of a URL."""
        return self._kinds.get((group, version, plural))

    def serves(self, group: str, version: str) -> bool:
        """Whether there is anything in that group and version."""
        return any(path[:2] == (group, version) for path in self._kinds)

    def versions(self, resource: ResourceId) -> tuple[ServedKind, ...]:
        """Every served version of one resource."""
        return tuple(kind for kind in self._kinds.values() if kind.resource == resource)

    def of(self, obj: Mapping[str, Any]) -> ServedKind | None:
        """The kind of an object."""
        api_version, name = obj.get("apiVersion"), obj.get("kind")
        for kind in self._kinds.values():
            if kind.kind == name and kind.api_version == api_version:
                return kind
        return None

    def find(self, word: str) -> ServedKind | None:
        """By kind, plural, singular or short name; a group may follow (`Event.events.k8s.io`)."""
        name, _, group = word.partition(".")
        for kind in self._kinds.values():
            names = {kind.kind, kind.plural, kind.singular, *kind.short_names}
            if name in names and (not group or kind.group == group):
                return kind
        return None


def as_stored(kind: ServedKind, obj: KubeObject) -> KubeObject:
    """An object of a kind in the form that is stored."""
    return {_EVENT_FIELDS.get(name, name): value for name, value in obj.items()} if kind.is_new_event else obj


def as_served(kind: ServedKind, obj: KubeObject) -> KubeObject:
    """A stored object in the form of a kind."""
    if not kind.is_new_event:
        return obj
    return {_NEW_EVENT_FIELDS.get(name, name): value for name, value in obj.items()}


def is_definition(kind: ServedKind) -> bool:
    """Whether objects of this kind define other kinds."""
    return kind.resource == ("apiextensions.k8s.io", "customresourcedefinitions")


def established(crd: KubeObject, now: str) -> KubeObject:
    """The definition with names completed, and the status that says that its kinds are served.

    `now` is RFC 3339.
    """
    spec = {**crd["spec"]}
    names = {**spec["names"]}
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    spec["names"] = names
    spec.setdefault("conversion", {"strategy": "None"})
    previous = (crd.get("status") or {}).get("conditions")
    return {
        **crd,
        "spec": spec,
        "status": {
            "acceptedNames": names,
            "conditions": previous or [_condition("NamesAccepted", now), _condition("Established", now)],
            "storedVersions": [version["name"] for version in spec["versions"] if version.get("storage")],
        },
    }


def _condition(condition: str, now: str) -> KubeObject:
    reason, message = {
        "NamesAccepted": ("NoConflicts", "no conflicts found"),
        "Established": ("InitialNamesAccepted", "the initial names have been accepted"),
    }[condition]
    return {
        "type": condition,
        "status": "True",
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }


def kinds_of(crd: KubeObject) -> tuple[ServedKind, ...]:
    """The kinds that an established definition serves.

    One for each served version, the storage version first.
    """
    versions = [version for version in crd["spec"]["versions"] if version.get("served", True)]
    # Where no version is named, `Registry.find` takes the first.
    versions.sort(key=lambda version: not version.get("storage"))
    return tuple(_custom_kind(crd["spec"], version) for version in versions)


def resource_of(crd: KubeObject) -> tuple[str, str]:
    """Where the objects of the defined kind are stored."""
    return (crd["spec"]["group"], crd["spec"]["names"]["plural"])


def _custom_kind(spec: KubeObject, version: KubeObject) -> ServedKind:
    names: KubeObject = spec["names"]
    subresources: KubeObject = version.get("subresources") or {}
    return ServedKind(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names["singular"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        status="status" in subresources,
        generations=True,
        scale=_scale(subresources.get("scale")),
        custom=True,
        deprecation=_deprecation(spec, version),
        selectable=tuple(
            field["jsonPath"].removeprefix(".") for field in version.get("selectableFields") or ()
        ),
        columns=tuple(version.get("additionalPrinterColumns") or ()),
        schema=(version.get("schema") or {}).get("openAPIV3Schema"),
    )


def _deprecation(spec: KubeObject, version: KubeObject) -> str:
    if not version.get("deprecated"):
        return ""
    name, group, kind = version["name"], spec["group"], spec["names"]["kind"]
    newer = [
        other["name"]
        for other in spec["versions"]
        if other.get("served", True) and not other.get("deprecated")
        if priority(other["name"]) < priority(name)
    ]
    use = f"; use {group}/{min(newer, key=priority)} {kind}" if newer else ""
    return version.get("deprecationWarning") or f"{group}/{name} {kind} is deprecated{use}"


def priority(version: str) -> tuple[int, int, str]:
    """The order of versions: v2 before v1 before v1beta1 before v1alpha1, as the real server has it."""
    for rank, word in enumerate(("alpha", "beta")):
        if word in version:
            return (2 - rank, -_number(version.partition(word)[0]), version)
    return (0, -_number(version), version)


def _number(version: str) -> int:
    digits = version.removeprefix("v")
    return int(digits) if digits.isdecimal() else 0


def _scale(scale: Any) -> ScalePaths | None:
    if not scale:
        return None
    return ScalePaths(
        spec=scale["specReplicasPath"].lstrip("."),
        status=scale["statusReplicasPath"].lstrip("."),
        selector=(scale.get("labelSelectorPath") or "").lstrip("."),
    )
