"""examples/07-in-cluster as in a pod: mounted ConfigMap, mounted service account, the rights of its Role."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from accounts import token_of
from clusters import Cluster, RealCluster, SandboxCluster, drop_namespace, make_namespace
from processes import Declctl
from rest import documents, pod
from tls_front import tls_front
from waiting import until

from declctl.testing import ConfigMapDir

EXAMPLE = Path(__file__).parents[2] / "examples" / "07-in-cluster"
NAMESPACE = "declctl-demo"


class Pod(NamedTuple):
    """What a pod finds when it starts."""

    account: Path
    address: tuple[str, int]

    @property
    def env(self) -> dict[str, str]:
        """Its environment."""
        host, port = self.address
        return {
            "DECLCTL_SERVICE_ACCOUNT_DIR": str(self.account),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "HOME": os.devnull,  # a kubeconfig of whoever runs the tests is none of its business
        }


@pytest.fixture
def in_pod(cluster: Cluster, tmp_path: Path) -> Iterator[Pod]:
    """The example's namespace and rights are applied, and its service account has a token."""
    make_namespace(cluster, NAMESPACE)
    for document in documents(EXAMPLE / "deploy" / "rbac.yaml"):
        document["metadata"]["namespace"] = NAMESPACE
        for subject in document.get("subjects", []):
            subject["namespace"] = NAMESPACE
        cluster.rest.create(document)
    if isinstance(cluster, SandboxCluster):
        host, port = cluster.server.url.removeprefix("http://").split(":")
        with tls_front(tmp_path, (host, int(port))) as (address, authority):
            yield _pod(tmp_path, address, authority.read_text("utf-8"), token="anything")
    else:
        address, authority = _address(cluster)
        yield _pod(tmp_path, address, authority, token=token_of(cluster, "restarts", NAMESPACE))
    drop_namespace(cluster, NAMESPACE)


def _pod(folder: Path, address: tuple[str, int], authority: str, *, token: str) -> Pod:
    files = {"token": token, "ca.crt": authority, "namespace": NAMESPACE}
    return Pod(ConfigMapDir(folder / "serviceaccount", files).path, address)


def _address(cluster: Cluster) -> tuple[tuple[str, int], str]:
    if not isinstance(cluster, RealCluster):
        pytest.skip("the certificate authority of a given cluster is not known")
    return cluster.plane.address, cluster.plane.authority.read_text("utf-8")


def _restarted(cluster: Cluster, times: int) -> None:
    status = {"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": times}
    cluster.rest.patch("pods", "web-0", {"status": {"containerStatuses": [status]}}, NAMESPACE, sub="status")


def test_the_in_cluster_example_needs_only_its_role(cluster: Cluster, in_pod: Pod, tmp_path: Path) -> None:
    """Under its own Role it syncs, posts its events, and takes a changed ConfigMap without a restart."""
    names = ("manifest.yaml", "handlers.py")
    files = {name: (EXAMPLE / name).read_text("utf-8") for name in names}
    mounted = ConfigMapDir(tmp_path / "declctl", files)
    cluster.rest.create(pod("web-0", NAMESPACE))
    with Declctl(mounted.path / "manifest.yaml", "--log-format", "json", env=in_pod.env) as declctl:
        declctl.wait_until_synced()
        _restarted(cluster, 1)

        def messages() -> list[str]:
            events = cluster.rest.list("events", NAMESPACE)
            return [event["message"] for event in events if event["reason"] == "ContainerRestarted"]

        until("the event is posted", lambda: messages() == ["main has restarted 1 times"])
        mounted.swap({**files, "handlers.py": files["handlers.py"].replace("has restarted", "came back")})
        declctl.wait_for_generation(2)
        _restarted(cluster, 2)
        until("the new code posts", lambda: "main came back 2 times" in messages())
        assert declctl.resource("pods")["relists"] == 0
        assert declctl.stop() == 0
