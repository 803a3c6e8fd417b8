"""Namespaces by label, against both servers: they come and go, and a user has rights in some of them only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from accounts import User
from clusters import Cluster, new_namespace
from processes import Declctl
from rest import documents
from waiting import until

from declctl.testing import BundleDir

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "10-namespaces-by-label"
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: e2e}}
spec:
  namespaces: {{labelSelector: {{matchLabels: {{team: {team}}}}}}}
  resources:
    - {{name: maps, apiVersion: v1, kind: ConfigMap, labelSelector: e2e=yes}}
  handlers:
    - {{name: tell, resourceRef: {{name: maps}}, entryPoint: "handlers:tell"}}
  reload: {{settle: 50ms, warmTimeout: 3s, preflight: "Off"}}
"""
CODE = """\
def tell(change): print(f"{change.type} {change.key} {change.reason}")
"""


def _map(name: str, namespace: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"e2e": "yes"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def _relabel(cluster: Cluster, name: str, team: str | None) -> None:
    cluster.rest.patch("namespaces", name, {"metadata": {"labels": {"team": team}}})


def _bundle(folder: Path, team: str) -> BundleDir:
    """The name of a namespace of the test is the label, so that no other test has it."""
    return BundleDir(folder, {"manifest.yaml": MANIFEST.format(team=team), "handlers.py": CODE})


@pytest.mark.scenario
@pytest.mark.timeout(180)
def test_namespaces_come_and_go(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Labelled, relabelled and deleted: handlers hear of it without a reload, and of deletes as they are."""
    a, b, bundle = new_namespace(cluster), new_namespace(cluster), _bundle(tmp_path / "bundle", namespace)
    cluster.rest.create(_map("one", a))
    cluster.rest.create(_map("two", b))
    with Declctl(bundle.path / "manifest.yaml", kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        assert list(declctl.out) == []  # nothing matches, and that is no fault
        _relabel(cluster, a, namespace)
        until("a is heard of", lambda: f"Added {a}/one Initial" in declctl.out)
        _relabel(cluster, b, namespace)
        until("b is heard of", lambda: f"Added {b}/two Initial" in declctl.out)
        _relabel(cluster, a, None)
        until("a has left", lambda: f"Deleted {a}/one OutOfScope" in declctl.out)
        cluster.rest.create(_map("unseen", a))
        # What is heard of b afterwards comes later than what could have been heard of a.
        cluster.rest.create(_map("three", b))
        until("b goes on", lambda: f"Added {b}/three Watch" in declctl.out)
        assert declctl.resource("maps")["namespaces"]["names"] == [b]
        cluster.rest.delete("namespaces", b)
        # Without the controller of namespaces nobody deletes what is in one.
        if cluster.has_controllers or not cluster.rest.is_there("namespaces", b):
            until("the deletes are heard of", lambda: len(declctl.out) == 6, seconds=60)
            assert sorted(declctl.out[4:]) == [f"Deleted {b}/three Watch", f"Deleted {b}/two Watch"]
            until("b has left", lambda: not declctl.resource("maps")["namespaces"]["names"], seconds=60)
        status = declctl.status()
        assert (status["generation"], status["ready"]) == (1, True)
        assert declctl.stop() == 0


@pytest.mark.real
@pytest.mark.timeout(240)
def test_the_rules_that_are_named_are_those_that_are_needed(real_cluster: Cluster, tmp_path: Path) -> None:
    """No right, then the rule of the message, then a Role in each namespace: all without a restart."""
    cluster, team = real_cluster, new_namespace(real_cluster)
    bundle = _bundle(tmp_path / "bundle", team)
    account, a, b = User.create(cluster, "follower", team), new_namespace(cluster), new_namespace(cluster)
    for name in (a, b):
        cluster.rest.create(_map("one", name))
        _relabel(cluster, name, team)
    kubeconfig = account.kubeconfig(tmp_path / "kubeconfig-of-the-account")
    maps = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
    with Declctl(bundle.path / "manifest.yaml", kubeconfig=kubeconfig) as declctl:
        until("it has begun", lambda: declctl.status()["resources"])
        error = until("the fault is shown", lambda: declctl.resource("maps")["error"])
        assert f"manifest.yaml:5: namespaces with team={team}: " in error
        rule = yaml.safe_load(error[error.index("{apiGroups") :])
        account.grant(rule, namespace=None)
        missing = until("the namespaces are known", lambda: _missing(declctl), seconds=120)
        assert "forbidden" in missing
        account.grant(maps, namespace=a)
        account.grant(maps, namespace=b)
        heard = {f"Added {name}/one Initial" for name in (a, b)}
        until("both are heard of", lambda: heard <= set(declctl.out), seconds=120)
        declctl.wait_until_synced()
        # One that comes in before its Role holds up no other one.
        late = new_namespace(cluster)
        cluster.rest.create(_map("one", late))
        _relabel(cluster, late, team)
        until("its fault is shown", lambda: f"in {late}" in (declctl.resource("maps")["error"] or ""))
        cluster.rest.create(_map("two", a))
        until("the others go on", lambda: f"Added {a}/two Watch" in declctl.out)
        assert declctl.status()["ready"]
        account.grant(maps, namespace=late)
        until("it is heard of", lambda: f"Added {late}/one Initial" in declctl.out, seconds=120)
        until("the fault is over", lambda: declctl.resource("maps")["error"] is None, seconds=60)
        assert declctl.stop() == 0


def _missing(declctl: Declctl) -> str | None:
    """The fault of a namespace, once the namespaces are known."""
    resource = declctl.resource("maps")
    return resource["error"] if resource["namespaces"]["error"] is None else None


@pytest.fixture
def objects_of_the_example(cluster: Cluster) -> Iterator[None]:
    """Its namespaces and what is in them; they are gone after the test."""
    found = list(documents(EXAMPLE / "objects.yaml"))
    for each in found:
        cluster.rest.create(each)
    yield
    cluster.rest.delete("configmaps", "pod-limits", "default")
    for each in found:
        name = each["metadata"]["name"]
        if each["kind"] == "Namespace" and cluster.rest.is_there("namespaces", name):
            cluster.rest.delete("namespaces", name)


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("objects_of_the_example")
def test_the_example_does_what_its_readme_says(cluster: Cluster) -> None:
    """The namespaces of the README come, leave and are deleted; the limits are those of the ConfigMap."""
    with Declctl(EXAMPLE / "manifest.yaml", kubeconfig=cluster.kubeconfig) as declctl:
        first = {
            "shop/web-0: 2 of 3 pods",
            "shop/web-1: 2 of 3 pods",
            "blog/web-0: 2 of 1 pods, too many",
            "blog/web-1: 2 of 1 pods, too many",
        }
        until("all pods are counted", lambda: set(declctl.out) == first)
        _relabel(cluster, "lab", "web")
        until("lab comes in", lambda: "lab/trial: 1 of 3 pods" in declctl.out)
        _relabel(cluster, "shop", None)
        left = {f"shop/web-{number} left with its namespace" for number in (0, 1)}
        until("shop leaves", lambda: left <= set(declctl.out))
        cluster.rest.delete("namespaces", "blog")
        if cluster.has_controllers or not cluster.rest.is_there("namespaces", "blog"):
            gone = {f"blog/web-{number} is gone" for number in (0, 1)}
            until("blog is gone", lambda: gone <= set(declctl.out), seconds=60)
        assert declctl.status()["generation"] == 1
        assert declctl.stop() == 0
