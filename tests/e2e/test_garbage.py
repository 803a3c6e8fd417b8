"""Objects go with their owners: the sandbox does as kube-controller-manager does."""

from pathlib import Path

import clusters
import pytest
from clusters import Cluster
from waiting import until

from declctl.sandbox import SandboxThread


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def collecting(request: pytest.FixtureRequest, tmp_path: Path):
    """Either cluster, with garbage collection."""
    if request.param == "sandbox":
        with SandboxThread(garbage_collection=True) as server:
            yield clusters.SandboxCluster(server, tmp_path)
        return
    cluster: Cluster = request.getfixturevalue("_real_cluster")
    if not cluster.has_controllers:
        pytest.skip("there is no kube-controller-manager here")
    yield cluster


@pytest.mark.scenario
def test_what_goes_with_its_owners(collecting: Cluster):
    """Gone are the dependents of owners that are gone or never were, and theirs; others lose a reference."""
    rest, namespace = collecting.rest, clusters.new_namespace(collecting)

    def config_map(name: str, *owners: tuple[str, str, str, str]) -> str:
        keys = ("apiVersion", "kind", "name", "uid")
        references = [dict(zip(keys, each, strict=True)) for each in owners]
        metadata = {"name": name, "namespace": namespace, "ownerReferences": references}
        created = rest.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        return created["metadata"]["uid"]

    def of(name: str, *, kind: str = "ConfigMap", api_version: str = "v1", uid: str = ""):
        return (api_version, kind, name, uid or uids[name])

    uids: dict[str, str] = {}
    for name in ("first", "second", "third"):
        uids[name] = config_map(name)
    uids["of-first"] = config_map("of-first", of("first"))
    config_map("grandchild", of("of-first"))
    config_map("of-both", of("first"), of("second"))
    config_map("of-second", of("second"))
    config_map("of-nobody", of("nobody", uid="00000000-0000-4000-8000-000000000001"))
    config_map("of-another", of("first", uid="00000000-0000-4000-8000-000000000002"))
    config_map("of-unknown-kind", of("first", api_version="e2e.example.com/v1", kind="Nothing"))
    config_map("of-third", of("third"))
    for name, policy in (("first", "Background"), ("third", "Orphan")):
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        rest.request("DELETE", path, {"propagationPolicy": policy})

    def found() -> dict[str, list[str]]:
        items = [each["metadata"] for each in rest.list("configmaps", namespace)]
        return {
            each["name"]: [owner["name"] for owner in each.get("ownerReferences", ())]
            for each in items
            if each["name"] != "kube-root-ca.crt"
        }

    expected = {
        "second": [],
        "of-both": ["second"],
        "of-second": ["second"],
        "of-unknown-kind": ["first"],
        "of-third": [],
    }
    until("the garbage is collected", lambda: found() == expected, seconds=60)
