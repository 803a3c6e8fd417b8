"""The two kinds of the operator, and what it reads of their children.

`declctl generate crd models:Memcached models:EphemeralVolumeClaim -o crd.yaml` makes the definitions.
"""

from typing import Annotated

from msgspec import Meta, Struct

import declctl


class MemcachedSpec(Struct):
    size: Annotated[int, Meta(ge=0, le=5)]
    port: int = 11211


class MemcachedStatus(Struct):
    replicas: int = 0
    conditions: list[declctl.Condition] = []


@declctl.custom_resource(
    "example.dev/v1",
    plural="memcacheds",
    columns={
        "Size": ".spec.size",
        "Available": declctl.Column('.status.conditions[?(@.type=="Available")].status', type="string"),
    },
)
class Memcached(declctl.Object[MemcachedSpec, MemcachedStatus]):
    """A cache of so many processes."""


class VolumeSpec(Struct):
    size: Annotated[str, Meta(pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$")]


class VolumeStatus(Struct):
    conditions: list[declctl.Condition] = []


@declctl.custom_resource("example.dev/v1", plural="ephemeralvolumeclaims", short_names=["evc"])
class EphemeralVolumeClaim(declctl.Object[VolumeSpec, VolumeStatus]):
    """A volume that goes with this object."""


class DeploymentStatus(Struct, rename="camel"):
    available_replicas: int = 0


class Deployment(declctl.Object[dict[str, object], DeploymentStatus]): ...


class ClaimStatus(Struct):
    phase: str = "Pending"


class Claim(declctl.Object[dict[str, object], ClaimStatus]): ...
