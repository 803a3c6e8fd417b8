"""The resources of kinds, without a cluster or with one: plural name, scope and subresources."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from declctl.errors import ApiError, NotFound, UsageError
from declctl.manifest.definition_files import definitions_beside, definitions_in, kind_of
from declctl.objects import GroupVersionKind, Resource
from declctl.objects.schema_changes import Definition
from declctl.sandbox.kinds import BUILT_IN

_Place = tuple[str, bool]  # plural, whether its objects are in namespaces

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
        places |= places_of(definitions_in(Path(path)))
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


def bundled_definitions(folder: Path, kinds: Collection[GroupVersionKind]) -> Sequence[Definition]:
    """The CustomResourceDefinitions of these kinds in the YAML files of a folder; the last one for each."""
    wanted = {(kind.group, kind.kind) for kind in kinds}
    found = {kind_of(each): each for each in definitions_beside(folder)}
    return [each for kind, each in found.items() if kind in wanted]


def places_of(definitions: Iterable[Definition]) -> dict[tuple[str, str], _Place]:
    """Plural name and scope of the kinds of definitions, by group and kind."""
    return {
        kind_of(each): (str(each["spec"]["names"]["plural"]), each["spec"].get("scope") == "Namespaced")
        for each in definitions
    }
