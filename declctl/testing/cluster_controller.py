"""A controller under test that watches some namespaces of a cluster."""

from collections.abc import Sequence
from pathlib import Path

from declctl.kit import AdvancingClock
from declctl.runtime.checking.inputs import InputFiles
from declctl.testing.blocking_client import ClusterChoice
from declctl.testing.controller import HostedController
from declctl.transport import Client


class ControllerOnCluster(HostedController):
    """A controller in threads of this process that knows the namespaces of a test alone.

    The first of them stands for `default`. Its clock is that of this machine, and `advance` moves it ahead.
    """

    def __init__(self, manifest: Path, cluster: ClusterChoice, namespaces: Sequence[str]) -> None:
        files = InputFiles(str(manifest), namespaces=namespaces)
        super().__init__(manifest, clock=AdvancingClock(), namespace=namespaces[0], records=True, files=files)
        self._cluster = cluster

    async def connect(self) -> Client:
        """A client of the cluster."""
        chosen = self._cluster
        return await Client.connect(kubeconfig=chosen.kubeconfig, context=chosen.context, clock=self.clock)
