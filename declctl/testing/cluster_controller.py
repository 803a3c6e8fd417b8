"""A controller under test that watches one namespace of a cluster."""

from pathlib import Path

from declctl.kit import AdvancingClock
from declctl.testing.blocking_client import ClusterChoice
from declctl.testing.controller import HostedController
from declctl.transport import Client


class ControllerOnCluster(HostedController):
    """A controller in threads of this process, whose only namespace is that of a test.

    Its clock is that of this machine, and `advance` moves it ahead.
    """

    def __init__(self, manifest: Path, cluster: ClusterChoice, namespace: str) -> None:
        super().__init__(manifest, clock=AdvancingClock(), namespace=namespace, only=namespace, records=True)
        self._cluster = cluster

    async def connect(self) -> Client:
        """A client of the cluster."""
        chosen = self._cluster
        return await Client.connect(kubeconfig=chosen.kubeconfig, context=chosen.context, clock=self.clock)
