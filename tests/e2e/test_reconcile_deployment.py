"""examples/08: budgets, conditions and Events of Deployments, beside the controllers of a real API server."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import User
from clusters import Cluster
from processes import Declctl, run
from rest import documents
from waiting import until
from workloads import Workload, two_nodes

EXAMPLE = Path(__file__).parents[2] / "examples" / "08-reconcile-deployment"
QUIET = 2.0  # seconds without a write and without a call
_REAL = pytest.mark.parametrize("cluster", [pytest.param("real", marks=pytest.mark.real)], indirect=True)
_RBAC = {"ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles"}
_RBAC["ClusterRoleBinding"] = "clusterrolebindings"


@pytest.fixture
def kubeconfig(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig with the rights of the example's rbac.yaml; the sandbox checks none."""
    if cluster.name == "sandbox":
        yield cluster.kubeconfig
        return
    rights = list(documents(EXAMPLE / "rbac.yaml"))
    for each in rights:
        cluster.rest.create(each)
    yield User(cluster, "deployment-guard", "default").kubeconfig(tmp_path / "kubeconfig-of-the-guard")
    for each in rights:
        metadata = each["metadata"]
        cluster.rest.delete(_RBAC[each["kind"]], metadata["name"], metadata.get("namespace"))


@pytest.fixture
def controllers(cluster: Cluster) -> None:
    """Skip without a deployment controller and a garbage collector."""
    if not cluster.has_controllers:
        pytest.skip("no kube-controller-manager beside the API server")


@pytest.fixture
def nodes(cluster: Cluster, namespace: str) -> Iterator[tuple[str, str]]:
    """Two nodes for pods."""
    with two_nodes(cluster, namespace) as names:
        yield names


@pytest.fixture
def bundle(namespace: str, tmp_path: Path) -> Path:
    """A copy of the example that watches the namespace of the test."""
    copy = tmp_path / "guard"
    shutil.copytree(EXAMPLE, copy)
    manifest = copy / "manifest.yaml"
    text = manifest.read_text("utf-8").replace("spec:\n", f"spec:\n  namespaces: [{namespace}]\n", 1)
    manifest.write_text(f"{text}  reload: {{settle: 50ms, preflight: 'Off'}}\n", "utf-8")
    return copy


@pytest.mark.timeout(240)
def test_a_deployment_is_guarded_until_it_goes(
    cluster: Cluster, namespace: str, nodes: tuple[str, str], bundle: Path, kubeconfig: Path
) -> None:
    """Made, scaled, mended, released and deleted: budget, condition and Events follow; then all is quiet."""
    web, key = Workload(cluster, namespace), f"{namespace}/web"
    with Declctl(bundle, kubeconfig=kubeconfig) as declctl:
        declctl.wait_until_synced()
        web.create(4, guard="true")
        until("it has a budget", lambda: web.most() == 1)
        (owner,) = web.budget()["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (web.get()["metadata"]["uid"], True)
        until("no pod is ready", lambda: web.verdict() == ("Unknown", "NotReady"))
        web.run(nodes[0], nodes[1])
        until("it is guarded", lambda: web.verdict() == ("True", "Spread"))
        assert web.condition()["message"] == "1 of 4 pods may be evicted at a time"
        if not cluster.has_controllers:
            assert "observedGeneration" not in web.get()["status"], "it belongs to the deployment controller"
        event = ("Normal", "Spread", "1 of 4 pods may be evicted at a time")
        until("an Event says so", lambda: event in web.events())

        web.change(replicas=8)
        until("the budget follows", lambda: web.most() == 2)
        until("the condition, too", lambda: web.condition()["message"].startswith("2 of 8 pods"))
        web.drop_budget()
        until("it is made again", lambda: web.most() == 2)
        _rests(declctl)

        web.change(replicas=1)
        until("no budget holds up a drain", lambda: web.most() is None)
        event = ("Warning", "OneReplica", "fewer than two replicas: each drain is an outage")
        until("an Event warns", lambda: event in web.events())
        web.change(replicas=4)
        until("it has one again", lambda: web.most() == 1)
        web.label(None)
        until("without the label it has none", lambda: web.most() is None)
        until("and says so", lambda: web.verdict() == ("False", "NoLabel"))
        web.label("true")
        until("with the label it is back", lambda: (web.most(), web.verdict()) == (1, ("True", "Spread")))
        _rests(declctl)

        web.delete()
        until("it is gone", lambda: web.get() is None)
        if cluster.has_controllers:
            until("its budget is collected", lambda: web.budget() is None, seconds=60)
        _rests(declctl)
        assert declctl.out[-1] == f"{key}: 1 of 4 pods may be evicted at a time"
        assert declctl.stop() == 0


def _rests(declctl: Declctl) -> None:
    """Nothing is called and nothing is written; each status that was written was another one."""
    declctl.wait_until_quiet(QUIET)
    status = declctl.status()
    (handler,) = status["handlers"]
    assert (handler["queued"], handler["running"], handler["failed"]) == (0, 0, 0)
    totals = {(each["verb"], each["result"]): each["count"] for each in status["writes"]}
    assert totals["patch_status", "succeeded"] == len(declctl.out), declctl.out
    assert all(one != next_one for one, next_one in zip(declctl.out, declctl.out[1:], strict=False))
    assert declctl.condition("Degraded")["status"] == "False"


def _applied(declctl: Declctl) -> int:
    """How often a budget was applied."""
    return sum(each["count"] for each in declctl.status()["writes"] if each["verb"] == "apply")


@pytest.mark.scenario
def test_pods_decide_whether_a_deployment_is_guarded(
    cluster: Cluster, namespace: str, nodes: tuple[str, str], bundle: Path, kubeconfig: Path
) -> None:
    """Pods lead to their Deployment, past a ReplicaSet. A Deployment without the label is not touched."""
    web, other = Workload(cluster, namespace), Workload(cluster, namespace, "other")
    one, two = nodes
    with Declctl(bundle, kubeconfig=kubeconfig) as declctl:
        declctl.wait_until_synced()
        other.create(2)
        other.run(one, two)
        web.create(3, guard="true")
        web.run(one, one)
        until("both run on one node", lambda: web.verdict() == ("False", "OneNode"))
        web.run(two)
        until("it is spread", lambda: web.verdict() == ("True", "Spread"))
        since = web.condition()["lastTransitionTime"]
        web.stop(two)
        until("it is not any more", lambda: web.verdict() == ("False", "OneNode"))
        assert web.condition()["lastTransitionTime"] >= since
        event = ("Warning", "OneNode", "all ready pods run on one node")
        until("an Event warns of it", lambda: event in web.events())
        _rests(declctl)
        assert (other.verdict(), other.most(), other.events()) == (None, None, [])
        assert not other.get()["metadata"].get("labels"), "it is no owner of a set"
        assert declctl.stop() == 0


def test_an_edit_of_the_rule_reaches_every_deployment(
    cluster: Cluster, namespace: str, bundle: Path, kubeconfig: Path
) -> None:
    """As the README says: another share of pods, while it runs."""
    names = ("web", "mail", "shop")
    workloads = [Workload(cluster, namespace, name) for name in names]
    with Declctl(bundle, kubeconfig=kubeconfig) as declctl:
        for each in workloads:
            each.create(8, guard="true")
        until("each has a budget", lambda: [each.most() for each in workloads] == [2, 2, 2])
        code = bundle / "handlers.py"
        code.write_text(code.read_text("utf-8").replace("replicas // 4", "replicas // 2"), "utf-8")
        declctl.wait_for_generation(2)
        until("each has another one", lambda: [each.most() for each in workloads] == [4, 4, 4])
        assert declctl.stop() == 0


@pytest.mark.timeout(240)
@_REAL
@pytest.mark.usefixtures("controllers")
def test_a_rollout_keeps_the_condition(
    cluster: Cluster, namespace: str, nodes: tuple[str, str], bundle: Path, kubeconfig: Path
) -> None:
    """The deployment controller writes the same status meanwhile: neither loses what the other writes."""
    web = Workload(cluster, namespace)
    with Declctl(bundle, kubeconfig=kubeconfig) as declctl:
        web.create(4, guard="true")
        web.run(*nodes, *nodes)
        until("it is guarded", lambda: web.verdict() == ("True", "Spread"))
        until("it is available", lambda: web.condition("Available").get("status") == "True")
        since = web.condition()["lastTransitionTime"]
        web.roll_out()

        def is_rolled_out() -> bool:
            web.run_waiting(*nodes)
            return web.condition("Progressing").get("reason") == "NewReplicaSetAvailable"

        until("it has begun", lambda: web.condition("Progressing")["reason"] == "ReplicaSetUpdated")
        until("it has ended", is_rolled_out, seconds=60)
        assert (web.verdict(), web.condition()["lastTransitionTime"]) == (("True", "Spread"), since)
        _rests(declctl)
        assert web.condition("Available")["status"] == "True"
        assert declctl.stop() == 0


@pytest.mark.timeout(240)
@_REAL
@pytest.mark.usefixtures("controllers")
def test_a_deployment_that_waits_for_its_children_goes(
    cluster: Cluster, namespace: str, bundle: Path, kubeconfig: Path
) -> None:
    """`kubectl delete --cascade=foreground` deletes the budget first: it is not made again."""
    web = Workload(cluster, namespace)
    with Declctl(bundle, kubeconfig=kubeconfig) as declctl:
        web.create(2, guard="true")
        until("it has a budget", lambda: web.most() == 1)
        until("it has its status", lambda: web.verdict() == ("Unknown", "NotReady"))
        _rests(declctl)
        applied = _applied(declctl)
        web.delete("Foreground")
        until("it is gone", lambda: web.get() is None, seconds=60)
        _rests(declctl)
        assert (web.budget(), _applied(declctl)) == (None, applied)
        assert declctl.stop() == 0


@_REAL
@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize(
    ("kind", "keeps"),
    [("Deployment", True), ("ReplicaSet", True), ("DaemonSet", True), ("StatefulSet", False)],
)
def test_which_controllers_keep_a_condition(cluster: Cluster, namespace: str, kind: str, keeps: bool) -> None:
    """What docs/write.md says of the status of other kinds."""
    rest, plural = cluster.rest, f"{kind.lower()}s"
    labels = {"app": "kept"}
    container = {"name": "main", "image": "registry.invalid/nothing"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec: dict[str, Any] = {"selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "kept", "namespace": namespace}
    rest.create({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec})

    def status(generation: int) -> Any:
        found = rest.get(plural, "kept", namespace)["status"]
        return found if found.get("observedGeneration") == generation else None

    own = {"type": "example.dev/Own", "status": "True", "reason": "Written", "message": ""}
    until("the controller has seen it", lambda: status(1))
    rest.patch(plural, "kept", {"status": {"conditions": [own]}}, namespace, sub="status")
    rest.patch(plural, "kept", {"spec": {"template": {"spec": {"schedulerName": "nobody"}}}}, namespace)
    conditions = until("it has seen the edit", lambda: status(2)).get("conditions") or []
    assert any(each["type"] == own["type"] for each in conditions) is keeps


def test_the_rights_of_the_example_are_enough(kubeconfig: Path) -> None:
    """`declctl validate --cluster` misses none of them."""
    done = run("validate", str(EXAMPLE), "--cluster", "--kubeconfig", str(kubeconfig))
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
