"""CustomResourceDefinitions.

From the definition to the kinds that it makes the server serve, and the conditions that say so.
"""

from collections.abc import Iterator
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.kinds import ScalePaths, ServedKind
from declctl.sandbox.status import Cause

CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"


def is_definition(kind: ServedKind) -> bool:
    """Whether objects of this kind define other kinds."""
    return kind.resource == ("apiextensions.k8s.io", "customresourcedefinitions")


def check_definition(crd: KubeObject) -> None:
    """Refuse with 422 a definition that could not be served."""
    spec = crd.get("spec") or {}
    names, name = spec.get("names") or {}, crd["metadata"].get("name", "")
    causes = list(_causes(spec, names, name))
    if causes:
        raise status.invalid("CustomResourceDefinition", name, causes, group="apiextensions.k8s.io")


def _causes(spec: KubeObject, names: KubeObject, name: str) -> Iterator[Cause]:
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if name != wanted:
        message = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        yield Cause("FieldValueInvalid", message, "metadata.name")
    for field in ("plural", "kind"):
        if not names.get(field):
            yield Cause("FieldValueRequired", "Required value", f"spec.names.{field}")
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        message = f'Unsupported value: "{spec.get("scope", "")}": supported values: "Cluster", "Namespaced"'
        yield Cause("FieldValueNotSupported", message, "spec.scope")
    if sum(bool(version.get("storage")) for version in spec.get("versions") or ()) != 1:
        message = "Invalid value: must have exactly one version marked as storage version"
        yield Cause("FieldValueInvalid", message, "spec.versions")


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
    versions.sort(key=lambda version: not version.get("storage"))
    return tuple(_kind(crd["spec"], version) for version in versions)


def resource_of(crd: KubeObject) -> tuple[str, str]:
    """Where the objects of the defined kind are stored."""
    return (crd["spec"]["group"], crd["spec"]["names"]["plural"])


def _kind(spec: KubeObject, version: KubeObject) -> ServedKind:
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
        columns=tuple(version.get("additionalPrinterColumns") or ()),
        schema=(version.get("schema") or {}).get("openAPIV3Schema"),
    )


def _scale(scale: Any) -> ScalePaths | None:
    if not scale:
        return None
    return ScalePaths(
        spec=scale["specReplicasPath"].lstrip("."),
        status=scale["statusReplicasPath"].lstrip("."),
        selector=(scale.get("labelSelectorPath") or "").lstrip("."),
    )
