"""A controller under test that watches some namespaces of a cluster."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from declctl.kit import AdvancingClock
from declctl.manifest.controller_test import DEFAULT_NAMESPACE
from declctl.manifest.model import ControllerSpec
from declctl.runtime.checking.inputs import InputFiles
from declctl.testing.blocking_client import ClusterChoice
from declctl.testing.controller import HostedController
from declctl.transport import Client


class ControllerOnCluster(HostedController):
    """A controller in threads of this process that knows the namespaces of a test alone.

    The first of them stands for `default`. Its clock is that of this machine, and `advance` moves it ahead.
    """

    def __init__(self, manifest: Path, cluster: ClusterChoice, namespaces: Sequence[str]) -> None:
        files = InputFiles(str(manifest), adapt=self._in_namespaces)
        super().__init__(manifest, clock=AdvancingClock(), namespace=namespaces[0], records=True, files=files)
        self._cluster = cluster
        self._namespaces = namespaces

    async def connect(self) -> Client:
        """A client of the cluster."""
        chosen = self._cluster
        return await Client.connect(kubeconfig=chosen.kubeconfig, context=chosen.context, clock=self.clock)

    def _in_namespaces(self, controller: ControllerSpec) -> ControllerSpec:
        """The same controller in these namespaces alone; its Leases are in the first one."""
        own, *_ = self._namespaces
        resources = tuple(
            replace(
                each,
                namespaces=tuple(self._namespaces)
                if each.namespaces is None
                else tuple(own if name == DEFAULT_NAMESPACE else name for name in each.namespaces),
                namespaces_inherited=True,  # kinds without namespaces are not concerned
            )
            for each in controller.resources
        )
        election = replace(controller.leader_election, namespace=None)
        sharding = controller.sharding and replace(controller.sharding, namespace=None)
        return replace(controller, resources=resources, leader_election=election, sharding=sharding)
