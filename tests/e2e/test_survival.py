"""The cluster misbehaves; what declctl knows ends up true."""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import clusters
import pytest
import yaml
from bundles import telling
from clusters import Cluster, RealCluster, drop_namespace, make_namespace
from controlplane import audited
from processes import Declctl
from proxy import proxy
from rest import pod
from waiting import stays, until


def _listed(cluster: Cluster, namespace: str) -> dict[str, str]:
    pods = cluster.rest.list("pods", namespace)
    return {f"{namespace}/{p['metadata']['name']}": p["metadata"]["resourceVersion"] for p in pods}


def _folded(lines: list[str]) -> dict[str, str]:
    """What somebody knows who only listened."""
    known: dict[str, str] = {}
    for line in lines:
        kind, _, key, version = line.split()
        if kind == "Deleted":
            assert known.pop(key, None) is not None, f"{line}: of an object that was never told"
        else:
            assert (key in known) == (kind == "Modified"), line
            known[key] = version
    return known


@pytest.mark.scenario
def test_after_outages_and_a_new_namespace_cache_and_story_are_true(
    cluster: Cluster, tmp_path: Path, namespace: str
) -> None:
    """The API server restarts, the namespace is made anew: cache, handler and server agree in the end."""
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    for number in range(3):
        cluster.rest.create(pod(f"first-{number}", namespace))
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        cluster.outage()
        cluster.rest.create(pod("during", namespace))
        cluster.rest.delete("pods", "first-0", namespace)
        drop_namespace(cluster, namespace)
        make_namespace(cluster, namespace)
        for number in range(1, 4):  # some have the names of those that are gone
            cluster.rest.create(pod(f"first-{number}", namespace))
        cluster.outage()
        cluster.rest.patch("pods", "first-1", {"metadata": {"labels": {"again": "yes"}}}, namespace)
        truth = _listed(cluster, namespace)
        until("the cache is true", lambda: declctl.cache("pods") == truth, seconds=60)
        until("the handler knows the truth", lambda: _folded(list(declctl.out)) == truth, seconds=60)
        assert declctl.status()["ready"]
        assert declctl.stop() == 0


_MANY = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: many}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: pods, apiVersion: v1, kind: Pod}}
    - {{name: configmaps, apiVersion: v1, kind: ConfigMap}}
    - {{name: serviceaccounts, apiVersion: v1, kind: ServiceAccount}}
  handlers:
    - {{name: pods, resourceRef: {{name: pods}}, entryPoint: "handlers:tell"}}
    - {{name: configmaps, resourceRef: {{name: configmaps}}, entryPoint: "handlers:tell"}}
    - {{name: serviceaccounts, resourceRef: {{name: serviceaccounts}}, entryPoint: "handlers:tell"}}
"""


@pytest.mark.real
def test_after_an_outage_all_watches_go_on_together(real_cluster: Cluster, tmp_path: Path) -> None:
    """60 watches ask once a second together while the server is away, and go on within 5 s of the first."""
    if not isinstance(real_cluster, RealCluster):
        pytest.skip("a given cluster is not stopped")
    plane, rest = real_cluster.plane, real_cluster.rest
    namespaces = [clusters.new_namespace(real_cluster) for _ in range(20)]
    bundle = telling(tmp_path / "bundle", _MANY, namespace=", ".join(namespaces))
    with proxy(plane.address) as way:
        kubeconfig = tmp_path / "kubeconfig"
        document = yaml.safe_load(real_cluster.kubeconfig.read_text("utf-8"))
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{way.address[1]}"
        kubeconfig.write_text(yaml.safe_dump(document), "utf-8")
        with Declctl(bundle.path, kubeconfig=kubeconfig) as declctl:
            declctl.wait_until_synced()
            requests = len(audited(plane.audit_log))
            plane.kill_api_server()
            until("the outage is noticed", lambda: declctl.status()["server"]["unreachableSince"])
            began, accepted = time.monotonic(), way.accepted
            stays("the process lives while the server is away", lambda: declctl.alive, seconds=2.0)
            assert 1 <= way.accepted - accepted <= time.monotonic() - began + 1
            plane.start_api_server()
            wanted = set[str]()
            for name in namespaces:
                for kind in ("Pod", "ConfigMap", "ServiceAccount"):
                    rest.create({**pod("back", name), "kind": kind})
                    wanted.add(f"Added {kind.lower()}s {name}/back")
            until("all is told", lambda: wanted <= {line.rpartition(" ")[0] for line in list(declctl.out)})
            first: dict[str, datetime] = {}
            for entry in audited(plane.audit_log)[requests:]:
                if entry.get("userAgent", "").startswith("declctl/"):
                    url = entry["requestURI"].partition("?")[0]
                    first.setdefault(url, datetime.fromisoformat(entry["requestReceivedTimestamp"]))
            assert len(first) == len(wanted)
            assert (max(first.values()) - min(first.values())).total_seconds() < 5.0
            assert declctl.stop() == 0


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def own_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that nobody else uses: the test puts its storage back."""
    if request.param == "sandbox":
        yield request.getfixturevalue("sandbox_cluster")
        return
    folder = tmp_path / "plane"
    folder.mkdir()
    with clusters.real(folder, "--etcd-compaction-interval=5m") as cluster:
        yield cluster


@pytest.mark.client_go("A storage that is put back to a backup")
def test_after_a_restore_of_the_storage_cache_and_story_are_true(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    """The storage goes back to a backup without the last changes; others follow under their versions."""
    cluster = own_cluster
    namespace = clusters.new_namespace(cluster)
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    for number in range(10):
        cluster.rest.create(pod(f"first-{number}", namespace))
    cluster.save(tmp_path / "backup")
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        for turn in range(30):  # so many that the restored server is behind for a while
            for number in range(10):
                change = {"metadata": {"labels": {"lost": str(turn)}}}
                cluster.rest.patch("pods", f"first-{number}", change, namespace)
        cluster.rest.create(pod("lost", namespace))
        until("the change is told", lambda: f"{namespace}/lost" in declctl.cache("pods"))
        cluster.restore(tmp_path / "backup")
        cluster.rest.patch("pods", "first-1", {"metadata": {"labels": {"other": "yes"}}}, namespace)
        truth = _listed(cluster, namespace)
        assert f"{namespace}/lost" not in truth
        until("the cache is true", lambda: declctl.cache("pods") == truth, seconds=60)
        until("the handler knows the truth", lambda: _folded(list(declctl.out)) == truth, seconds=60)
        assert declctl.status()["server"]["rollbacks"] == 1
        until("the log says so", lambda: any("put back to a backup" in line for line in tuple(declctl.err)))
        assert declctl.status()["ready"]
        assert declctl.stop() == 0
