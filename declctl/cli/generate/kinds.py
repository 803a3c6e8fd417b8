"""The resources of kinds, without a cluster or with one: plural name, scope and subresources."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

import yaml

from declctl.errors import ApiError, NotFound, UsageError
from declctl.kit.files import MANIFEST_BYTES
from declctl.objects import GroupVersionKind, Resource
from declctl.sandbox.kinds import BUILT_IN

_Place = tuple[str, bool]  # plural, whether its objects are in namespaces
Definition = Mapping[str, Any]
"""A CustomResourceDefinition."""

# Kinds of Kubernetes that the sandbox does not serve, by group and kind.
_MORE: Final[Mapping[tuple[str, str], _Place]] = MappingProxyType(
    {
        ("", "PodTemplate"): ("podtemplates", True),
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): ("mutatingadmissionpolicies", False),
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): (
            "mutatingadmissionpolicybindings",
            False,
        ),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): (
            "mutatingwebhookconfigurations",
            False,
        ),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): ("validatingadmissionpolicies", False),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): (
            "validatingadmissionpolicybindings",
            False,
        ),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): (
            "validatingwebhookconfigurations",
            False,
        ),
        ("apiregistration.k8s.io", "APIService"): ("apiservices", False),
        ("apps", "ControllerRevision"): ("controllerrevisions", True),
        ("autoscaling", "HorizontalPodAutoscaler"): ("horizontalpodautoscalers", True),
        ("certificates.k8s.io", "CertificateSigningRequest"): ("certificatesigningrequests", False),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema"): ("flowschemas", False),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): (
            "prioritylevelconfigurations",
            False,
        ),
        ("networking.k8s.io", "IngressClass"): ("ingressclasses", False),
        ("networking.k8s.io", "IPAddress"): ("ipaddresses", False),
        ("networking.k8s.io", "ServiceCIDR"): ("servicecidrs", False),
        ("node.k8s.io", "RuntimeClass"): ("runtimeclasses", False),
        ("resource.k8s.io", "DeviceClass"): ("deviceclasses", False),
        ("resource.k8s.io", "ResourceClaim"): ("resourceclaims", True),
        ("resource.k8s.io", "ResourceClaimTemplate"): ("resourceclaimtemplates", True),
        ("resource.k8s.io", "ResourceSlice"): ("resourceslices", False),
        ("scheduling.k8s.io", "PriorityClass"): ("priorityclasses", False),
        ("storage.k8s.io", "CSIDriver"): ("csidrivers", False),
        ("storage.k8s.io", "CSINode"): ("csinodes", False),
        ("storage.k8s.io", "CSIStorageCapacity"): ("csistoragecapacities", True),
        ("storage.k8s.io", "VolumeAttachment"): ("volumeattachments", False),
    }
)


def known_kinds(
    kinds: Iterable[GroupVersionKind], definitions: Iterable[str], bundled: Iterable[Definition] = ()
) -> tuple[Mapping[GroupVersionKind, Resource], list[GroupVersionKind]]:
    """The resources of `kinds` that are known without a cluster, and the kinds that are not known.

    Known are the kinds of Kubernetes, those of `definitions`: paths of YAML files with
    CustomResourceDefinitions, and those of the `bundled` ones. Raises UsageError for a file that can't be
    read, or has none.
    """
    places: dict[tuple[str, str], _Place] = {
        **{(kind.group, kind.kind): (kind.plural, kind.namespaced) for kind in BUILT_IN},
        **_MORE,
    }
    places |= places_of(bundled)
    for path in definitions:
        places |= places_of(_definitions(path))
    found: dict[GroupVersionKind, Resource] = {}
    missing: list[GroupVersionKind] = []
    for kind in kinds:
        place = places.get((kind.group, kind.kind))
        if place is None:
            missing.append(kind)
        else:
            found[kind] = Resource(kind, *place)
    return found, missing


def served_kinds(
    kinds: Iterable[GroupVersionKind], kubeconfig: str | None, context: str | None
) -> tuple[Mapping[GroupVersionKind, Resource], list[GroupVersionKind]]:
    """The resources of `kinds` that the cluster of a kubeconfig serves, and the kinds that it does not serve.

    Raises UsageError if the cluster does not answer.
    """
    return asyncio.run(_served(tuple(kinds), kubeconfig, context))


async def _served(
    kinds: Iterable[GroupVersionKind], kubeconfig: str | None, context: str | None
) -> tuple[Mapping[GroupVersionKind, Resource], list[GroupVersionKind]]:
    from declctl.transport import Client  # late: without --cluster no client is needed

    found: dict[GroupVersionKind, Resource] = {}
    missing: list[GroupVersionKind] = []
    client = await Client.connect(kubeconfig=kubeconfig, context=context)
    try:
        for kind in kinds:
            try:
                found[kind] = await client.discover(kind)
            except NotFound:
                missing.append(kind)
    except ApiError as error:
        raise UsageError(f"The cluster could not be asked for the names of kinds: {error}") from error
    finally:
        await client.close()
    return found, missing


def bundled_definitions(
    folder: Path, kinds: Collection[GroupVersionKind] | None = None
) -> Sequence[Definition]:
    """The CustomResourceDefinitions of these kinds, or of all, in the YAML files of a folder, by their names.

    Files that are no YAML, or too large, have none: the folder may have files of others.
    """
    wanted = None if kinds is None else {(kind.group, kind.kind) for kind in kinds}
    found: dict[tuple[str, str], Definition] = {}
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if path.suffix in (".yaml", ".yml"):
            with suppress(UsageError):
                found |= {_kind_of(each): each for each in _definitions(str(path))}
    return [each for kind, each in found.items() if wanted is None or kind in wanted]


def places_of(definitions: Iterable[Definition]) -> dict[tuple[str, str], _Place]:
    """Plural name and scope of the kinds of definitions, by group and kind."""
    return {
        _kind_of(each): (str(each["spec"]["names"]["plural"]), each["spec"].get("scope") == "Namespaced")
        for each in definitions
    }


def _kind_of(definition: Definition) -> tuple[str, str]:
    return str(definition["spec"].get("group")), str(definition["spec"]["names"].get("kind"))


def _definitions(path: str) -> list[Definition]:
    """The CustomResourceDefinitions of a file. Raises UsageError if there is none."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MANIFEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    if len(text) > MANIFEST_BYTES:
        raise UsageError(
            f"{path} is larger than {MANIFEST_BYTES:,} bytes: name a file with definitions only."
        )
    try:
        documents: list[Any] = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-13-01
        raise UsageError(f"{path} is not YAML: {error}") from error
    found: list[Definition] = []
    for each in documents:
        if not isinstance(each, dict):
            continue
        document = cast("dict[str, Any]", each)
        items = (
            cast("list[Any]", document.get("items") or []) if document.get("kind") == "List" else [document]
        )
        found += [item for item in items if _is_definition(item)]
    if not found:
        raise UsageError(f"{path} has no CustomResourceDefinition.")
    return found


def _is_definition(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    document = cast("dict[str, Any]", item)
    spec: Any = document.get("spec")
    return (
        document.get("kind") == "CustomResourceDefinition"
        and isinstance(spec, dict)
        and isinstance(cast("dict[str, Any]", spec).get("names"), dict)
    )
