"""examples/09 in a cluster: its kinds, its objects, and what has to be there for each."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusters import Cluster, drop_namespace, make_namespace
from rest import MERGE, Refused, documents
from waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "09-custom-resource-operator"
FINALIZER = "example.dev/memcached"
DIRECTORY = "directory"
_API = "/apis/example.dev/v1"
_PLURALS = ("memcacheds", "ephemeralvolumeclaims")


class Operator:
    """The objects of the example in one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rest = cluster.rest

    def create(self, name: str, namespace: str, *, kind: str = "Memcached", **spec: Any) -> None:
        """Create an object of one of the two kinds."""
        metadata = {"name": name}
        body = {"apiVersion": "example.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}
        self.rest.create_first(body, namespace)

    def patch(self, name: str, namespace: str, **spec: Any) -> None:
        """Change the spec of a Memcached."""
        self.rest.request("PATCH", self._path(name, namespace), {"spec": spec}, media=MERGE)

    def delete(self, name: str, namespace: str) -> None:
        """Delete a Memcached; it goes when it is finalized."""
        self.rest.request("DELETE", self._path(name, namespace))

    def get(self, name: str, namespace: str, kind: str = "memcacheds") -> Any:
        """An object; None if it is gone."""
        try:
            return self.rest.request("GET", f"{_API}/namespaces/{namespace}/{kind}/{name}")
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def all(self, kind: str = "memcacheds") -> list[Any]:
        """All objects of a kind; none while the kind is not served."""
        try:
            return self.rest.request("GET", f"{_API}/{kind}")["items"]
        except Refused as refused:
            if refused.status == 404:
                return []
            raise

    def entries(self) -> dict[str, str]:
        """The addresses in the directory, by `namespace.name`."""
        found = self.rest.list("configmaps", DIRECTORY)
        return {
            each["metadata"]["name"]: each["data"]["address"] for each in found if "address" in each["data"]
        }

    def replicas(self, namespace: str) -> dict[str, int]:
        """The replicas of each Deployment of the operator in a namespace."""
        found = self.rest.list("deployments", namespace)
        return {each["metadata"]["name"]: each["spec"]["replicas"] for each in found}

    def observed(self, namespace: str) -> dict[str, bool]:
        """Whether each Memcached of a namespace has a status of its newest generation."""
        return {
            each["metadata"]["name"]: (each.get("status") or {}).get("observedGeneration")
            == each["metadata"]["generation"]
            for each in self.all()
            if each["metadata"]["namespace"] == namespace
        }

    def _path(self, name: str, namespace: str) -> str:
        return f"{_API}/namespaces/{namespace}/memcacheds/{name}"


def bundle(folder: Path, *, retry: str = "", election: str = "") -> Path:
    """A copy of the example with another `retry` of its handlers and an election; returns its folder."""
    copy = folder / "operator"
    shutil.copytree(EXAMPLE, copy)
    manifest = copy / "manifest.yaml"
    text = manifest.read_text("utf-8").replace("timeout: 30s", f"timeout: 30s\n      retry: {retry or '{}'}")
    text += "  reload: {settle: 50ms, preflight: 'Off'}\n"
    manifest.write_text(text + (f"  leaderElection: {election}\n" if election else ""), "utf-8")
    return copy


@contextmanager
def installed(cluster: Cluster) -> Iterator[Operator]:
    """The kinds and the directory of the example for the length of the context."""
    for document in documents(EXAMPLE / "crd.yaml"):
        cluster.rest.create(document)
    make_namespace(cluster, DIRECTORY)
    operator = Operator(cluster)
    until("the kinds are served", lambda: all(cluster.rest.serves(f"{_API}/{kind}") for kind in _PLURALS))
    try:
        yield operator
    finally:
        for each in operator.all():  # those of a test that has failed
            metadata = each["metadata"]
            path = f"{_API}/namespaces/{metadata['namespace']}/memcacheds/{metadata['name']}"
            cluster.rest.request("PATCH", path, {"metadata": {"finalizers": None}}, media=MERGE)
        for name in (f"{plural}.example.dev" for plural in _PLURALS):
            if cluster.rest.is_there("customresourcedefinitions", name):
                cluster.rest.delete("customresourcedefinitions", name)
        until(
            "the kinds are gone", lambda: not any(cluster.rest.serves(f"{_API}/{kind}") for kind in _PLURALS)
        )
        drop_namespace(cluster, DIRECTORY)
