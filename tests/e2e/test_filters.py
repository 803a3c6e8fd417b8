"""A handler with a filter: what it hears of a cluster that changes, and of a filter that does."""

from pathlib import Path

import pytest
from bundles import MANIFEST, telling
from clusters import Cluster
from processes import Declctl
from rest import pod
from waiting import until

_FILTER = ', filter: {{labelSelector: "app in (web,db)", changedPaths: [metadata.labels, spec]}}'
_FILTERED = MANIFEST.replace('"handlers:tell"', f'"handlers:tell"{_FILTER}')


def _told(declctl: Declctl) -> list[tuple[str, str]]:
    """Types and names, in order."""
    return [(line.split()[0], line.split()[2].rpartition("/")[2]) for line in tuple(declctl.out)]


@pytest.mark.scenario
def test_objects_enter_and_leave_a_filter(cluster: Cluster, tmp_path: Path, namespace: str) -> None:
    """By their labels, and by an edit of the filter, for which the API server is asked for nothing."""
    bundle = telling(tmp_path / "bundle", _FILTERED, namespace=namespace)
    for app in ("api", "db", "web"):
        cluster.rest.create(pod(app, namespace, app=app))
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        until("what is there is told", lambda: len(_told(declctl)) == 2)
        assert sorted(_told(declctl)) == [("Added", "db"), ("Added", "web")]

        cluster.rest.patch("pods", "api", {"metadata": {"annotations": {"a": "b"}}}, namespace)
        cluster.rest.patch("pods", "db", {"metadata": {"annotations": {"a": "b"}}}, namespace)
        cluster.rest.patch("pods", "db", {"metadata": {"labels": {"tier": "back"}}}, namespace)
        cluster.rest.patch("pods", "web", {"metadata": {"labels": {"app": "api"}}}, namespace)
        until("one has left", lambda: len(_told(declctl)) == 4)
        assert _told(declctl)[2:] == [("Modified", "db"), ("Deleted", "web")]

        asked = cluster.asked("list", "pods"), cluster.asked("watch", "pods")
        bundle.edit("manifest.yaml", "app in (web,db)", "app=api")
        declctl.wait_for_generation(2)
        until("the edit is told", lambda: len(_told(declctl)) == 7)
        assert sorted(_told(declctl)[4:]) == [("Added", "api"), ("Added", "web"), ("Deleted", "db")]
        assert (cluster.asked("list", "pods"), cluster.asked("watch", "pods")) == asked
        said = "generation 2: ~handler tell (filter), 0 LIST"
        until("the log says so", lambda: any(said in line for line in tuple(declctl.err)))

        (figures,) = declctl.status()["handlers"]
        assert (figures["delivered"], figures["succeeded"]) == (7, 7)
        assert figures["filtered"] >= 3  # api at the start, and the two annotations
        assert declctl.stop() == 0
