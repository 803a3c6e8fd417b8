"""A kind that the cluster does not have yet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import telling
from clusters import Cluster, SandboxCluster
from processes import Declctl
from rest import documents, pod
from waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "05-custom-resource"
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: e2e}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: backups, apiVersion: example.com/v1, kind: Backup}}
    - {{name: pods, apiVersion: v1, kind: Pod}}
    - {{name: odd, apiVersion: v1, kind: Pod, fieldSelector: spec.size=1}}
    - {{name: gauges, apiVersion: metrics.dev/v1, kind: Gauge}}
  handlers:
    - {{name: backups, resourceRef: {{name: backups}}, entryPoint: "handlers:tell"}}
    - {{name: pods, resourceRef: {{name: pods}}, entryPoint: "handlers:tell"}}
"""


@pytest.fixture
def definition(cluster: Cluster) -> Iterator[dict[str, object]]:
    """The CustomResourceDefinition of the example; it goes with the test."""
    (document,) = documents(EXAMPLE / "crd.yaml")
    name = document["metadata"]["name"]
    yield document
    if cluster.rest.is_there("customresourcedefinitions", name):
        cluster.rest.delete("customresourcedefinitions", name)


@pytest.fixture
def aggregated(cluster: Cluster) -> Iterator[bool]:
    """An API service without a backend, which the sandbox does not have: there the group is not served."""
    url = "/apis/apiregistration.k8s.io/v1/apiservices"
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1.metrics.dev"},
        "spec": {
            "group": "metrics.dev",
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 10,
            "insecureSkipTLSVerify": True,
            "service": {"name": "nowhere", "namespace": "default"},
        },
    }
    if isinstance(cluster, SandboxCluster):
        yield False
        return
    cluster.rest.request("POST", url, service)
    yield True
    cluster.rest.request("DELETE", f"{url}/v1.metrics.dev")


@pytest.mark.scenario
def test_a_kind_that_appears_later_starts_then(
    cluster: Cluster, definition: dict[str, object], aggregated: bool, tmp_path: Path, namespace: str
) -> None:
    """The rest runs at once, the status says what is missing, and it starts when its kind appears.

    Neither a group whose API service is away nor a selector that the server refuses is waited for.
    """
    bundle = telling(tmp_path / "bundle", MANIFEST, namespace=namespace)
    cluster.rest.create(pod("there", namespace))
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        until("pods are told", lambda: any(f"Added pods {namespace}/there" in line for line in declctl.out))
        error = until("the status names it", lambda: declctl.resource("backups")["error"])
        assert "Backup" in error
        assert "example.com/v1" in error
        shown = {each["name"]: (each["state"], each["errorType"]) for each in declctl.status()["resources"]}
        away = ("Unavailable", "GroupUnavailable") if aggregated else ("Missing", "NotFound")
        assert (shown["odd"], shown["gauges"]) == (("Refused", "InvalidRequest"), away)
        [line] = [line for line in declctl.err if "handlers begin without odd" in line]
        assert "manifest.yaml:9:61" in line
        assert "field label not supported: spec.size" in line
        until("odd is waited for", lambda: declctl.condition("Ready")["message"] == "not synced: odd")
        until("gauges is told", lambda: "gauges: " in declctl.condition("Degraded")["message"])
        cluster.rest.create(definition)
        for document in documents(EXAMPLE / "sandbox" / "objects.yaml"):
            cluster.rest.create_first(document, namespace)
        key = f"{namespace}/orders-daily"
        until("it is told", lambda: any(f"Added backups {key}" in line for line in declctl.out), seconds=60)
        assert declctl.resource("backups")["error"] is None
        assert declctl.resource("pods")["relists"] == 0
        assert declctl.stop() == 0
