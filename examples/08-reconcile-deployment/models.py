"""Of Deployments and pods, what the handler reads."""

from msgspec import Struct

import declctl


class DeploymentSpec(Struct):
    selector: dict[str, object]
    replicas: int = 1


class Deployment(declctl.Object[DeploymentSpec]): ...


class PodSpec(Struct, rename="camel"):
    node_name: str = ""


class Pod(declctl.Object[PodSpec]): ...
