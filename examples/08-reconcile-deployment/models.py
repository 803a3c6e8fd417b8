"""Of Deployments and pods, what the handler reads."""

from msgspec import Struct

import declctl


class Condition(Struct):
    type: str
    status: str


class Conditions(Struct):
    conditions: list[Condition] = []

    def status_of(self, kind: str) -> str:
        """The status of a condition; empty if there is none of that type."""
        return next((each.status for each in self.conditions if each.type == kind), "")


class DeploymentSpec(Struct):
    selector: dict[str, object]
    replicas: int = 1


class Deployment(declctl.Object[DeploymentSpec, Conditions]): ...


class PodSpec(Struct, rename="camel"):
    node_name: str = ""


class Pod(declctl.Object[PodSpec, Conditions]): ...
