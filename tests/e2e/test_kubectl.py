"""kubectl, unchanged, against the sandbox."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from clusters import SandboxCluster
from processes import environment, find_kubectl
from waiting import until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.kubectl


class Kubectl:
    """kubectl, as somebody types it."""

    def __init__(self, binary: str, kubeconfig: Path) -> None:
        self._head = [binary, "--kubeconfig", str(kubeconfig)]
        # Discovery is cached by server: a test must not meet the cache of another one's.
        self._env = environment(KUBECACHEDIR=str(kubeconfig.parent / "cache"))

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        command = [*self._head, *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=self._env, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, out: Path, *arguments: str) -> "subprocess.Popen[bytes]":
        """In the background, with its output in a file."""
        with out.open("wb") as file:
            return subprocess.Popen([*self._head, *arguments], stdout=file, env=self._env)


@pytest.fixture
def kubectl(sandbox_cluster: SandboxCluster) -> Kubectl:
    """The one of KUBEBUILDER_ASSETS, or of the PATH."""
    return Kubectl(find_kubectl(), sandbox_cluster.kubeconfig)


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_apply_get_change_and_delete(kubectl: Kubectl, how: tuple[str, ...]) -> None:
    """Objects are applied, shown, changed by a second apply, and deleted."""
    objects = (ROOT / "examples" / "01-hello" / "objects.yaml").read_text("utf-8")
    assert "pod/web-0" in kubectl("apply", *how, "-f", "-", stdin=objects)
    table = kubectl("get", "pods", "-n", "demo").splitlines()
    assert table[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [row.split()[0] for row in table[1:]] == ["web-0", "web-1"]
    changed = objects.replace("labels: {app: web}", "labels: {app: shop}")
    kubectl("apply", *how, "-f", "-", stdin=changed)
    labels = kubectl("get", "pod", "web-0", "-n", "demo", "-o", "jsonpath={.metadata.labels}")
    assert json.loads(labels) == {"app": "shop"}
    kubectl("delete", "pod", "web-0", "-n", "demo")
    assert kubectl("get", "pods", "-n", "demo", "-o", "name").split() == ["pod/web-1"]


def test_get_watch_shows_what_happens(
    kubectl: Kubectl, sandbox_cluster: SandboxCluster, tmp_path: Path
) -> None:
    """`kubectl get pods -w` shows a pod that comes, changes and goes."""
    out = tmp_path / "watched"
    watching = kubectl.start(out, "get", "pods", "-w", "--output-watch-events")
    try:
        until("the watch is open", lambda: sandbox_cluster.server.ledger.count("watch", resource="pods"))
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"}}
        sandbox_cluster.rest.create({**pod, "spec": {"containers": [{"name": "a", "image": "b"}]}})
        sandbox_cluster.rest.patch("pods", "web", {"metadata": {"labels": {"a": "b"}}}, "default")
        sandbox_cluster.rest.delete("pods", "web", "default")
        until("the end is shown", lambda: "DELETED" in out.read_text("utf-8"))
    finally:
        watching.terminate()
        watching.wait()
    events = [line.split()[:2] for line in out.read_text("utf-8").splitlines()[1:]]
    assert events == [["ADDED", "web"], ["MODIFIED", "web"], ["DELETED", "web"]]


def test_the_in_cluster_example_is_applied_whole(kubectl: Kubectl) -> None:
    """`kubectl apply -k` makes everything, and the ConfigMap holds manifest and handlers as they are."""
    example = ROOT / "examples" / "07-in-cluster"
    applied = kubectl("apply", "-k", str(example)).split()
    kinds = {name.split("/")[0].split(".")[0] for name in applied if "/" in name}
    assert kinds >= {"namespace", "serviceaccount", "role", "rolebinding", "configmap", "deployment"}
    configmap = json.loads(kubectl("get", "configmap", "restarts", "-n", "declctl-demo", "-o", "json"))
    assert configmap["data"]["handlers.py"] == (example / "handlers.py").read_text("utf-8")
    manifest = yaml.safe_load(configmap["data"]["manifest.yaml"])
    assert manifest["spec"]["namespaces"] == ["declctl-demo"]
