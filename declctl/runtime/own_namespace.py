"""The namespace of this process: that of its Lease, and of the Secrets in the configs of its plugins.

Where none is known, there is no election; Secrets are then read in that of the kubeconfig's context.
"""

from typing import TYPE_CHECKING

import msgspec

from declctl.errors import UsageError
from declctl.manifest.model import LeaderElectionSpec, ShardingSpec

if TYPE_CHECKING:
    from declctl.transport.config import Identity


class OwnNamespace(msgspec.Struct, frozen=True):
    """A namespace, and where it was taken from, in words."""

    name: str
    source: str


def own_namespace(identity: "Identity", *, given: str | None, config_map: str | None) -> OwnNamespace | None:
    """The namespace of this process; None outside of a cluster, if nothing says it.

    The context of a kubeconfig does not say it: that is where a user looks, and not where pods run.

    - `given`: by the command line.
    - `config_map`: `configmap/NAMESPACE/NAME`, if the process follows one.
    """
    if given is not None:
        return OwnNamespace(given, "given by --namespace")
    if identity.in_cluster:
        return OwnNamespace(identity.namespace or "default", "that of this pod")
    if config_map is not None:
        from declctl.runtime.config_map import config_map_of  # late: most runs read files

        return OwnNamespace(config_map_of(config_map)[0], f"that of {config_map}")
    return None


def namespace_of_lease(spec: LeaderElectionSpec | ShardingSpec, own: OwnNamespace | None) -> OwnNamespace:
    """The namespace of the Lease of an election, or of the Leases of a sharding.

    It is never guessed: a process that takes another one than the others leads beside them. Raises UsageError
    if none is known.
    """
    if spec.namespace is not None:
        return OwnNamespace(spec.namespace, "that of the manifest")
    if own is None:
        is_shared = isinstance(spec, ShardingSpec)
        field, what = ("sharding", "Leases") if is_shared else ("leaderElection", "Lease")
        would = "act for the same objects" if is_shared else "lead"
        raise UsageError(
            f"spec.{field} needs the namespace of its {what}, which is known in a pod, or with a "
            f"followed ConfigMap: write {field}.namespace, or start with --namespace NAMESPACE (that "
            f"of the pods of this controller, if there are any; otherwise two processes would {would})"
        )
    return own
