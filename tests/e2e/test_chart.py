"""deploy/chart, by the real helm and kubectl, against a real API server."""

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters import Cluster, drop_namespace, new_namespace
from processes import find_kubectl

from declctl.manifest import ManifestSource, load, plan
from declctl.manifest.rights import rights_of

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
EXAMPLE = ROOT / "examples" / "07-in-cluster"
RULES = yaml.safe_load("""
rbac:
  - namespaces: [team-a, team-b]
    rules: [{apiGroups: [""], resources: [pods], verbs: [list, watch]}]
  - rules: [{apiGroups: [apps], resources: [deployments], verbs: [list, watch]}]
""")


@pytest.fixture(scope="module")
def helm() -> str:
    """The program."""
    found = shutil.which("helm")
    if found is None:
        pytest.skip("needs helm: go install helm.sh/helm/v3/cmd/helm@v3.18.6")
    return found


def _run(
    helm: str, *arguments: str, values: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    files = [f"--set-file=bundle.{each.replace('.', chr(92) + '.')}={EXAMPLE / each}" for each in BUNDLE]
    # A helm that `go install` has built would assume Kubernetes 1.20.
    version = ["--kube-version=1.36.0"]
    return subprocess.run(
        [helm, *arguments, *files, *version, "--values", "-"],
        check=False,
        input=yaml.safe_dump(values or {}),
        capture_output=True,
        text=True,
        timeout=60,
    )


BUNDLE = ("manifest.yaml", "handlers.py")


def _objects(helm: str, namespace: str = "default", **values: Any) -> dict[tuple[str, str], dict[str, Any]]:
    made = _run(helm, "template", "guard", str(CHART), "--namespace", namespace, values=values)
    assert made.returncode == 0, made.stderr
    return {
        (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(made.stdout) if each
    }


def test_helm_finds_nothing(helm: str) -> None:
    """`helm lint --strict`."""
    linted = _run(helm, "lint", "--strict", str(CHART))
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.real
def test_the_server_takes_what_the_chart_makes(helm: str, real_cluster: Cluster) -> None:
    """`helm template | kubectl apply --server-side --dry-run=server`, with all that can be turned on."""
    namespace = new_namespace(real_cluster)
    values = {
        **copy.deepcopy(RULES),
        "replicas": 2,
        "leaderElection": True,
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}], "egress": [{}]},
        "admin": {"tokenSecret": "token"},
        "env": [{"name": "TZ", "value": "UTC"}],
        "allowedDigests": "reviewed",
        "state": {"path": "/var/lib/declctl"},
        "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
    }
    values["rbac"][0]["namespaces"] = [namespace]
    made = _run(helm, "template", "guard", str(CHART), "--namespace", namespace, values=values)
    config = f"--kubeconfig={real_cluster.kubeconfig}"
    applied = subprocess.run(
        [find_kubectl(), config, "apply", "--server-side", "--dry-run=server", "-f", "-"],
        check=False,
        input=made.stdout,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert applied.returncode == 0, applied.stderr
    kinds = " ".join(sorted(line.split("/")[0].split(".")[0] for line in applied.stdout.splitlines()))
    assert kinds == (
        "clusterrole clusterrolebinding configmap deployment networkpolicy poddisruptionbudget "
        "role role rolebinding rolebinding serviceaccount"
    )
    drop_namespace(real_cluster, namespace)


def test_the_bundle_is_whole_and_its_edit_is_no_rollout(helm: str) -> None:
    """The ConfigMap has the files as they are, and the pod does not depend on them."""
    objects = _objects(helm)
    assert objects["ConfigMap", "guard"]["data"] == {
        each: (EXAMPLE / each).read_text().rstrip("\n") for each in BUNDLE
    }
    edited = _objects(helm, bundle={"more.py": "x = 1\n"})
    assert edited["ConfigMap", "guard"] != objects["ConfigMap", "guard"]
    assert edited["Deployment", "guard"] == objects["Deployment", "guard"]


def test_objects_have_the_name_of_their_controller(helm: str) -> None:
    """As those of `declctl generate deploy`; another one keeps the selector of a Deployment that is there."""

    def names(**values: Any) -> set[str]:
        objects = _objects(helm, **values)
        selector = objects["Deployment", "guard"]["spec"]["selector"]["matchLabels"]
        labels = [each["metadata"]["labels"] for each in objects.values()]
        return {each["app.kubernetes.io/name"] for each in (selector, *labels)}

    manifest = yaml.safe_load((EXAMPLE / "manifest.yaml").read_text("utf-8"))
    assert names() == {manifest["metadata"]["name"]} != {"guard"}
    assert names(nameOverride="declctl") == {"declctl"}


def test_rights_are_those_of_the_values(helm: str) -> None:
    """A Role in each namespace, a ClusterRole without namespaces, and nothing else."""
    objects = _objects(helm, **RULES)
    granted = {
        (kind, each["metadata"].get("namespace")) for (kind, _), each in objects.items() if "Role" in kind
    }
    # Roles of two namespaces have one name.
    assert {kind for kind, _ in granted} == {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert objects["ClusterRole", "declctl:default:guard:1"]["rules"] == RULES["rbac"][1]["rules"]
    assert not any("Role" in kind for kind, _ in _objects(helm))


def test_the_rights_that_are_printed_are_taken(helm: str, tmp_path: Path) -> None:
    """Rule for rule, for the account of the release; those for another namespace are refused."""
    text = (EXAMPLE / "manifest.yaml").read_text("utf-8") + "  leaderElection: {enabled: true}\n"
    (shutil.copytree(EXAMPLE, tmp_path / "a") / "manifest.yaml").write_text(text)
    command = [sys.executable, "-m", "declctl", "generate", "rbac", "a", "-n", "team-a", "--explain"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    made = _run(helm, "template", "guard", str(CHART), "-n", "team-a", values={"rights": printed})
    roles = [each for each in yaml.safe_load_all(made.stdout) if each and "Role" in each["kind"]]
    wanted = [each["rules"] for each in yaml.safe_load_all(printed) if "rules" in each]
    assert [each["rules"] for each in roles if "rules" in each] == wanted
    account = {"kind": "ServiceAccount", "name": "guard", "namespace": "team-a"}
    assert [each["subjects"] for each in roles if "subjects" in each] == [[account]] * len(wanted)
    refused = _run(helm, "template", "guard", str(CHART), "-n", "other", values={"rights": printed})
    assert "declctl generate rbac --namespace other" in refused.stderr


def test_releases_of_one_name_share_no_role(helm: str) -> None:
    """In two namespaces, with rights in a third one, and in the cluster: helm would refuse the second one."""

    def named(namespace: str) -> set[tuple[str, str]]:
        made = _run(helm, "template", "guard", str(CHART), "--namespace", namespace, values=RULES)
        roles = [each for each in yaml.safe_load_all(made.stdout) if each and "Role" in each["kind"]]
        own = [each["metadata"]["name"] for each in roles if each["metadata"].get("namespace") == namespace]
        assert own == (["guard-0", "guard-0"] if namespace == "team-a" else [])
        return {(each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in roles}

    assert named("team-a") & named("team-c") == set()


@pytest.mark.parametrize(
    ("value", "more"),
    [("leaderElection", "leaderElection: {enabled: true}"), ("sharding", "sharding: {slots: 2}")],
)
def test_the_rights_to_leases_are_those_that_a_manifest_needs(helm: str, value: str, more: str) -> None:
    """The chart does not know the names of the Leases, so that it has the verbs for each in its namespace."""
    text = (EXAMPLE / "manifest.yaml").read_text("utf-8") + f"  {more}\n"
    planned = plan(load(ManifestSource("manifest.yaml", text.encode())).controller)
    needed = [each for each in rights_of(planned, {}, {}, namespace="default") if each.resource == "leases"]
    (rule,) = _objects(helm, **{value: True})["Role", "guard-lease"]["rules"]
    assert {each.group for each in needed} == set(rule["apiGroups"])
    assert {each.resource for each in needed} == set(rule["resources"])
    assert {verb for each in needed for verb in each.verbs} == set(rule["verbs"])
    assert {each.scope.namespace for each in needed} == {"default"}


def test_an_autoscaler_keeps_the_number_that_it_has_set(helm: str) -> None:
    """An upgrade of the release would set it back; processes that share are replaced one after the other."""
    spec = _objects(helm, sharding=True, autoscaled=True)["Deployment", "guard"]["spec"]
    assert "replicas" not in spec
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }


def test_the_pod_is_restricted(helm: str) -> None:
    """The pod security standard `restricted`, and a read-only root."""
    pod = _objects(helm)["Deployment", "guard"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_state_has_a_volume(helm: str) -> None:
    """One that the user of the image may write to; two pods can't have one claim."""
    state = {"path": "/var/lib/declctl", "existingClaim": "caches"}
    made = [_objects(helm, state=each)["Deployment", "guard"] for each in ({"path": state["path"]}, state)]
    pods = [each["spec"]["template"]["spec"] for each in made]
    assert [each for pod in pods for each in pod["volumes"] if each["name"] == "state"] == [
        {"name": "state", "emptyDir": {}},
        {"name": "state", "persistentVolumeClaim": {"claimName": "caches"}},
    ]
    mount = {"name": "state", "mountPath": state["path"]}
    assert [mount in pod["containers"][0]["volumeMounts"] for pod in pods] == [True, True]
    assert pods[1]["securityContext"]["fsGroup"] == pods[1]["securityContext"]["runAsGroup"]
    for wrong in ({"state": state, "replicas": 2, "leaderElection": True}, {"state": {**state, "path": ""}}):
        made_wrong = _run(helm, "template", "guard", str(CHART), values=wrong)
        assert "state.existingClaim" in made_wrong.stderr


def test_probes_reach_the_process_whatever_the_manifest_says(helm: str) -> None:
    """By default a manifest has its admin address on loopback, and the pod would never be ready."""
    objects = _objects(helm, admin={"port": 9000})
    (container,) = objects["Deployment", "guard"]["spec"]["template"]["spec"]["containers"]
    assert "--admin=:9000" in container["args"]
    assert container["ports"] == [{"name": "admin", "containerPort": 9000}]


def test_the_metrics_have_a_port_of_their_own(helm: str) -> None:
    """Prometheus reaches it, and not the admin address."""
    prometheus = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    policy = {"enabled": True, "metricsFrom": prometheus}
    objects = _objects(helm, metrics={"port": 9090}, networkPolicy=policy)
    (container,) = objects["Deployment", "guard"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "metrics", "containerPort": 9090} in container["ports"]
    spec = objects["NetworkPolicy", "guard"]["spec"]
    assert spec["ingress"] == [{"from": prometheus, "ports": [{"port": "metrics"}]}]


def test_only_bundles_of_a_list_run(helm: str) -> None:
    """The list is mounted, and named on the command line; the probes speak TLS if the manifest says so."""
    pod = _objects(helm, allowedDigests="reviewed", admin={"scheme": "HTTPS"})["Deployment", "guard"]["spec"][
        "template"
    ]["spec"]
    (container,) = pod["containers"]
    assert "--allowed-digests=/etc/declctl-allowed/digests" in container["args"]
    assert {"name": "allowed", "configMap": {"name": "reviewed"}} in pod["volumes"]
    assert {"name": "allowed", "mountPath": "/etc/declctl-allowed", "readOnly": True} in container[
        "volumeMounts"
    ]
    probes = [container[f"{each}Probe"]["httpGet"]["scheme"] for each in ("startup", "liveness", "readiness")]
    assert probes == ["HTTPS"] * 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 2}, "without leaderElection"),
        ({"sharding": True, "leaderElection": True}, "exclude each other"),
        ({"existingBundle": "other"}, "not both"),
        ({"replica": 2}, "replica"),
        ({"image": {"digest": "abc"}}, "digest"),
        ({"metrics": {"port": 8081}}, "metrics.port is admin.port"),
        ({"networkPolicy": {"enabled": True, "metricsFrom": [{}]}}, "metricsFrom is for metrics.port"),
    ],
)
def test_wrong_values_are_refused(helm: str, values: dict[str, Any], said: str) -> None:
    """With the name of the value."""
    made = _run(helm, "template", "guard", str(CHART), values=values)
    assert made.returncode != 0
    assert said in made.stderr
