"""Discovery: which groups, versions and resources there are.

There is an old form, a document for each group and version, and the aggregated one that kubectl asks for.
"""

from collections.abc import Iterable
from typing import Final

from declctl.objects import KubeObject
from declctl.sandbox.kinds import Registry, ServedKind

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSION: Final = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0-declctl-sandbox",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
_SUBRESOURCE_VERBS: Final = ["get", "patch", "update"]
REVIEWS: Final = ("selfsubjectaccessreviews", "SelfSubjectAccessReview")
_REVIEW_GROUP: Final = "authorization.k8s.io"


def wants_aggregated(accept: str) -> bool:
    """Whether the client takes aggregated discovery."""
    return any(
        {"g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"}
        <= {part.strip() for part in offer.split(";")}
        for offer in accept.split(",")
    )


def aggregated(registry: Registry, *, core: bool) -> KubeObject:
    """An APIGroupDiscoveryList: of the core group for /api, of all others for /apis."""
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": version,
                    "resources": _aggregated_resources(registry, group, version),
                    "freshness": "Current",
                }
                for version in _versions(registry, group)
            ],
        }
        for group in ([""] if core else _groups(registry))
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def core_versions() -> KubeObject:
    """The answer to /api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(registry: Registry) -> KubeObject:
    """The answer to /apis."""
    entries = [_group(registry, name) for name in _groups(registry)]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": entries}


def group(registry: Registry, name: str) -> KubeObject | None:
    """The answer to /apis/<group>; None if there is none."""
    if name not in _groups(registry):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(registry, name)}


def resources(registry: Registry, group_name: str, version: str) -> KubeObject | None:
    """The answer to /api/v1 and /apis/<group>/<version>; None if there is none."""
    kinds = _kinds(registry, group_name, version)
    if not kinds and group_name != _REVIEW_GROUP:
        return None
    entries = [entry for kind in kinds for entry in _resource(kind)]
    if group_name == _REVIEW_GROUP:
        plural, kind_name = REVIEWS
        entries.append(
            {
                "name": plural,
                "singularName": kind_name.lower(),
                "namespaced": False,
                "kind": kind_name,
                "verbs": ["create"],
            }
        )
    group_version = f"{group_name}/{version}" if group_name else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": entries,
    }


def _groups(registry: Registry) -> list[str]:
    return [*dict.fromkeys(kind.group for kind in registry.served() if kind.group), _REVIEW_GROUP]


def _versions(registry: Registry, group_name: str) -> list[str]:
    if group_name == _REVIEW_GROUP:
        return ["v1"]
    found = dict.fromkeys(kind.version for kind in registry.served() if kind.group == group_name)
    return sorted(found, key=_priority)


def _priority(version: str) -> tuple[int, int, str]:
    """v2 before v1 before v1beta1 before v1alpha1, as the real server orders them."""
    for rank, word in enumerate(("alpha", "beta")):
        if word in version:
            return (2 - rank, -_number(version.partition(word)[0]), version)
    return (0, -_number(version), version)


def _number(version: str) -> int:
    digits = version.removeprefix("v")
    return int(digits) if digits.isdecimal() else 0


def _kinds(registry: Registry, group_name: str, version: str) -> list[ServedKind]:
    return [kind for kind in registry.served() if (kind.group, kind.version) == (group_name, version)]


def _group(registry: Registry, name: str) -> KubeObject:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(registry, name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resource(kind: ServedKind) -> Iterable[KubeObject]:
    entry: KubeObject = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    yield entry
    for name, api_version, kind_name in _subresources(kind):
        sub: KubeObject = {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind_name,
            "verbs": _SUBRESOURCE_VERBS,
        }
        if name == "scale":
            group_name, _, version = api_version.partition("/")
            sub |= {"group": group_name, "version": version}
        yield sub


def _subresources(kind: ServedKind) -> Iterable[tuple[str, str, str]]:
    if kind.scale is not None:
        yield ("scale", "autoscaling/v1", "Scale")
    if kind.status:
        yield ("status", kind.api_version, kind.kind)


def _aggregated_resources(registry: Registry, group_name: str, version: str) -> list[KubeObject]:
    entries = [_aggregated_resource(kind) for kind in _kinds(registry, group_name, version)]
    if group_name == _REVIEW_GROUP:
        plural, kind_name = REVIEWS
        entries.append(
            {
                "resource": plural,
                "responseKind": {"group": "", "version": "", "kind": kind_name},
                "scope": "Cluster",
                "singularResource": kind_name.lower(),
                "verbs": ["create"],
            }
        )
    return entries


def _aggregated_resource(kind: ServedKind) -> KubeObject:
    entry: KubeObject = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    subresources: list[KubeObject] = []
    for name, api_version, kind_name in _subresources(kind):
        group_name, _, version = api_version.rpartition("/")
        response = {"group": group_name, "version": version, "kind": kind_name}
        subresources.append({"subresource": name, "responseKind": response, "verbs": _SUBRESOURCE_VERBS})
    if subresources:
        entry["subresources"] = subresources
    return entry
