"""The two kinds of cluster that every scenario meets: the sandbox, and a real API server."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from controlplane import ControlPlane, audited
from rest import Rest
from waiting import until

from declctl.sandbox import SandboxThread

SHARDED = "--feature-gates=ShardedListAndWatch=true"
"""The flag of an API server whose LISTs and WATCHes can have a `shardSelector`; alpha in 1.36."""
_NUMBERS = itertools.count(1)


class Cluster(Protocol):
    """What a scenario needs of a cluster."""

    name: str
    kubeconfig: Path
    rest: Rest
    has_controllers: bool
    has_shard_selectors: bool

    def asked(self, verb: str, resource: str) -> int:
        """How many LISTs or WATCHes declctl has asked for, since the beginning.

        Those that only prove which history the server has, after a connection that failed, don't count.
        """
        ...

    def streamed(self, resource: str) -> int:
        """How many of these WATCHes have begun with all objects: streaming lists."""
        ...

    def outage(self) -> None:
        """The API server goes, without a word, and comes back on its port with all it knew."""
        ...

    def save(self, folder: Path) -> None:
        """A backup of the storage; for the real one, into a folder that is not there yet."""
        ...

    def restore(self, folder: Path) -> None:
        """Put the storage back to the backup; the API server is restarted for it."""
        ...

    def forget(self) -> None:
        """Versions older than now are expired; who is connected may be cut off."""
        ...


def new_namespace(cluster: Cluster) -> str:
    """A namespace that no other test knows."""
    name = f"e2e-{os.getpid()}-{next(_NUMBERS)}"
    make_namespace(cluster, name)
    return name


def make_namespace(cluster: Cluster, name: str) -> None:
    """Create a namespace."""
    cluster.rest.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def drop_namespace(cluster: Cluster, *names: str) -> None:
    """Delete namespaces, and return when all are gone: each takes seconds."""
    for name in names:
        cluster.rest.delete("namespaces", name)
    for name in names:
        until(f"{name} is gone", lambda name=name: not cluster.rest.is_there("namespaces", name), seconds=60)


def definition_of(group: str, plural: str, kind: str) -> dict[str, Any]:
    """The definition of a kind with a status, whose objects may have any fields."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
        "versions": [{**version, "schema": {"openAPIV3Schema": anything}}],
    }
    metadata = {"name": f"{plural}.{group}"}
    kinds = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**kinds, "metadata": metadata, "spec": spec}


def served(cluster: Cluster, definition: dict[str, Any], namespace: str) -> Iterator[str]:
    """The path of the objects of a kind `v1` in a namespace; the kind goes with the test. For fixtures."""
    cluster.rest.create(definition)
    plural, _, group = definition["metadata"]["name"].partition(".")
    path = f"/apis/{group}/v1/namespaces/{namespace}/{plural}"
    until("the kind is served", lambda: cluster.rest.serves(path))
    yield path
    cluster.rest.delete("customresourcedefinitions", definition["metadata"]["name"])
    until("the kind is gone", lambda: not cluster.rest.serves(path))


class SandboxCluster:
    """The sandbox, with its ledger."""

    name = "sandbox"
    has_controllers = False

    def __init__(self, server: SandboxThread, folder: Path, *, shard_selectors: bool = False) -> None:
        self.server = server
        self.has_shard_selectors = shard_selectors
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()), "utf-8")
        self.rest = Rest.of_kubeconfig(server.kubeconfig())

    def asked(self, verb: str, resource: str) -> int:
        """From the ledger."""
        requests = self.server.ledger.requests(verb, resource=resource)
        return sum(
            request.user_agent.startswith("declctl/")
            and request.params.get("limit") != "1"
            and request.params.get("resourceVersionMatch") != "Exact"
            for request in requests
        )

    def streamed(self, resource: str) -> int:
        """From the ledger."""
        requests = self.server.ledger.requests("watch", resource=resource)
        return sum("sendInitialEvents" in request.params for request in requests)

    def outage(self) -> None:
        """It stops listening and starts again."""
        self.server.stop()
        self.server.start()

    def save(self, folder: Path) -> None:
        """In memory."""
        self._backup = self.server.save()

    def restore(self, folder: Path) -> None:
        """It stops listening, goes back, and starts again."""
        self.server.stop()
        self.server.restore(self._backup)
        self.server.start()

    def forget(self) -> None:
        """Its history goes."""
        self.server.faults.compact()


class RealCluster:
    """A kube-apiserver that is ours, with its audit log."""

    name = "real"

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.kubeconfig = plane.kubeconfig
        self.has_controllers = plane.has_controllers
        self.has_shard_selectors = SHARDED in plane.flags
        self.rest = Rest.of_kubeconfig(yaml.safe_load(plane.kubeconfig.read_text("utf-8")))

    def asked(self, verb: str, resource: str) -> int:
        """From the audit log."""
        return sum(
            1
            for entry in audited(self.plane.audit_log)
            if entry["verb"] == verb
            and entry.get("objectRef", {}).get("resource") == resource
            and entry.get("userAgent", "").startswith("declctl/")
            and not {"limit=1", "resourceVersionMatch=Exact"} & set(_parameters(entry))
        )

    def streamed(self, resource: str) -> int:
        """From the audit log."""
        return sum(
            1
            for entry in audited(self.plane.audit_log)
            if entry["verb"] == "watch"
            and entry.get("objectRef", {}).get("resource") == resource
            and entry.get("userAgent", "").startswith("declctl/")
            and "sendInitialEvents=true" in _parameters(entry)
        )

    def outage(self) -> None:
        """It is killed and started again."""
        self.plane.kill_api_server()
        self.plane.start_api_server()

    def save(self, folder: Path) -> None:
        """A copy of etcd's folder."""
        self.plane.save(folder)

    def restore(self, folder: Path) -> None:
        """The storage begins with the copy."""
        self.plane.restore(folder)

    def forget(self) -> None:
        """The storage is compacted, and the API server restarted if it remembers by itself."""
        if "--watch-cache=false" in self.plane.flags:
            self.plane.compact()
            return
        self.plane.kill_api_server()
        self.plane.compact()
        self.plane.start_api_server()


def _parameters(entry: dict[str, Any]) -> list[str]:
    return entry.get("requestURI", "").partition("?")[2].split("&")


class GivenCluster:
    """The cluster of DECLCTL_TEST_KUBECONFIG: somebody's, so that nothing is stopped, and nothing counted."""

    name = "given"
    has_controllers = True
    has_shard_selectors = False

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.rest = Rest.of_kubeconfig(yaml.safe_load(kubeconfig.read_text("utf-8")))

    def asked(self, verb: str, resource: str) -> int:
        """Not known here."""
        pytest.skip(f"the {verb} requests for {resource} of a given cluster can't be counted")

    def streamed(self, resource: str) -> int:
        """Not known here."""
        pytest.skip(f"the streaming lists of {resource} of a given cluster can't be counted")

    def outage(self) -> None:
        """Not ours to stop."""
        pytest.skip("a given cluster is not stopped")

    def save(self, folder: Path) -> None:
        """Not ours to stop."""
        pytest.skip("the storage of a given cluster is not copied")

    def restore(self, folder: Path) -> None:
        """Not ours to stop."""
        pytest.skip("the storage of a given cluster is not put back")

    def forget(self) -> None:
        """Not ours to compact."""
        pytest.skip("a given cluster is not compacted")


@contextmanager
def sandbox(folder: Path, *, shard_selectors: bool = False) -> Iterator[SandboxCluster]:
    """A sandbox for the length of the context."""
    with SandboxThread(bookmark_interval=1.0, shard_selectors=shard_selectors) as server:
        yield SandboxCluster(server, folder, shard_selectors=shard_selectors)


@contextmanager
def real(folder: Path, *flags: str) -> Iterator[Cluster]:
    """The real API server that the environment offers; skips, and says so, if it offers none.

    With `flags` it is one of its own, without controllers.
    """
    if given := os.environ.get("DECLCTL_TEST_KUBECONFIG"):
        if flags:
            pytest.skip(f"a given cluster is not started with {' '.join(flags)}")
        yield GivenCluster(Path(given))
        return
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        pytest.skip("no real API server: set KUBEBUILDER_ASSETS or DECLCTL_TEST_KUBECONFIG")
    plane = ControlPlane(Path(assets), folder, flags=flags, controllers=not flags)
    try:
        plane.start()
        yield RealCluster(plane)
    finally:
        plane.stop()
