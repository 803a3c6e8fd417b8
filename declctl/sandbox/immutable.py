"""Fields of kinds of Kubernetes that can't be changed: those that controllers meet most often.

Worded as kube-apiserver words them. Schemas of these kinds are not checked otherwise.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.status import StatusCause

_FIELD: Final = "field is immutable"
# Of the spec, by group and kind.
_FIXED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("apps", "Deployment"): ("selector",),
    ("apps", "ReplicaSet"): ("selector",),
    ("apps", "DaemonSet"): ("selector",),
    ("batch", "Job"): ("selector", "template"),
}
# The fields of a spec that may change, where all others are fixed; and what the server says of them.
_STATEFUL_SET: Final = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
_LISTED: Final = ", ".join(f"'{name}'" for name in _STATEFUL_SET[:-1])
_CHANGING: Final[Mapping[tuple[str, str], tuple[tuple[str, ...], str]]] = {
    ("apps", "StatefulSet"): (
        _STATEFUL_SET,
        f"updates to statefulset spec for fields other than {_LISTED} and 'minReadySeconds' are forbidden",
    ),
    ("", "PersistentVolumeClaim"): (
        ("resources", "volumeAttributesClassName", "volumeName"),
        (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for "
            "bound claims"
        ),
    ),
}
_DATA: Final = frozenset({("", "Secret"), ("", "ConfigMap")})
_SERVICE: Final = ("", "Service")


def changed_fields(kind: ServedKind, old: KubeObject, new: KubeObject) -> Iterator[StatusCause]:
    """What a write changes and may not change."""
    what = kind.group, kind.kind
    before, after = old.get("spec") or {}, new.get("spec") or {}
    for name in _FIXED.get(what, ()):
        if before.get(name) != after.get(name):
            yield StatusCause.invalid(f"spec.{name}", after.get(name), _FIELD)
    if what in _CHANGING:
        free, why = _CHANGING[what]
        if _without(before, free) != _without(after, free):
            yield StatusCause.forbidden("spec", why)
    # A server gives every other Service an address, which an update without one keeps.
    if what == _SERVICE and "ExternalName" not in (before.get("type"), after.get("type")):
        address = after.get("clusterIP")
        if address and address != before.get("clusterIP"):
            yield StatusCause.invalid("spec.clusterIPs[0]", [address], "may not change once set")
    if what in _DATA and old.get("immutable"):
        for name in ("immutable", "data", "binaryData"):
            if old.get(name) != new.get(name):
                yield StatusCause.forbidden(name, "field is immutable when `immutable` is set")
    if kind.kind == "Secret" and old.get("type") != new.get("type"):
        yield StatusCause.invalid("type", new.get("type"), _FIELD)
    if kind.kind in ("RoleBinding", "ClusterRoleBinding") and old.get("roleRef") != new.get("roleRef"):
        yield StatusCause.invalid("roleRef", new.get("roleRef"), "cannot change roleRef")


def _without(spec: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in names}
