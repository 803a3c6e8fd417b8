"""The cluster misbehaves; what declctl knows ends up true."""

from pathlib import Path

from bundles import telling
from clusters import Cluster, drop_namespace, make_namespace
from processes import Declctl
from rest import pod
from waiting import until


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
