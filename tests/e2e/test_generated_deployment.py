"""`declctl generate deploy` on a real API server, and a process that is started as its kubelet would."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters import Cluster, RealCluster, drop_namespace, make_namespace, new_namespace
from kubelet import Kubelet, python_with_read_only_root
from packages import CHANGELOG, install
from processes import Declctl, environment
from rest import path, pod
from waiting import until

from declctl.testing import ConfigMapDir

EXAMPLE = Path(__file__).parents[2] / "examples" / "07-in-cluster"
WATCHED = "declctl-demo"  # of the example
RESTRICTED = "pod-security.kubernetes.io"
pytestmark = pytest.mark.real


@pytest.fixture
def apply(real_cluster: Cluster) -> Callable[[str], str]:
    """`kubectl apply --server-side -f -`; returns what it prints on both streams."""
    places = os.pathsep.join((os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ["PATH"]))
    kubectl = shutil.which("kubectl", path=places)
    if kubectl is None:
        pytest.skip("no kubectl: neither in KUBEBUILDER_ASSETS nor on the PATH")

    def run(documents: str) -> str:
        command = [kubectl, f"--kubeconfig={real_cluster.kubeconfig}", "apply", "--server-side", "-f", "-"]
        done = subprocess.run(
            command, input=documents, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def namespace(real_cluster: Cluster) -> Iterator[str]:
    """That of the process, which takes restricted pods only; the one of the example is beside it."""
    own = new_namespace(real_cluster)
    labels = {f"{RESTRICTED}/{mode}": "restricted" for mode in ("enforce", "warn")}
    real_cluster.rest.patch("namespaces", own, {"metadata": {"labels": labels}})
    make_namespace(real_cluster, WATCHED)
    yield own
    drop_namespace(real_cluster, own)
    drop_namespace(real_cluster, WATCHED)


def _generated(folder: Path, namespace: str, *more: str, env: Mapping[str, str] | None = None) -> str:
    command = [sys.executable, "-m", "declctl", "generate", "deploy", str(folder), "--namespace", namespace]
    done = subprocess.run(
        [*command, *more],
        capture_output=True,
        text=True,
        env=environment(**(env or {})),
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment(cluster: Cluster, namespace: str, account: str, folder: Path) -> dict[str, str]:
    """What a container of a pod has: the folder of its service account, and the address of the server."""
    if not isinstance(cluster, RealCluster):
        pytest.skip("the certificate authority of a given cluster is not known")
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.rest.request("POST", f"{path('serviceaccounts', namespace)}/{account}/token", asked)
    authority = cluster.plane.authority.read_text("utf-8")
    files = {"token": token["status"]["token"], "ca.crt": authority, "namespace": namespace}
    host, port = cluster.plane.address
    return {
        "DECLCTL_SERVICE_ACCOUNT_DIR": str(ConfigMapDir(folder / "serviceaccount", files).path),
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "HOME": os.devnull,
    }


def _arguments(container: Mapping[str, Any]) -> list[str]:
    """Those behind the manifest, without the port: a pod has ports of its own, and this machine has not."""
    return [each for each in container["args"][2:] if not each.startswith("--admin=")]


def _restarted(cluster: Cluster, times: int) -> None:
    status = {"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": times}
    patch = {"status": {"containerStatuses": [status]}}
    cluster.rest.patch("pods", "web-0", patch, WATCHED, sub="status")


def _messages(cluster: Cluster) -> list[str]:
    events = cluster.rest.list("events", WATCHED)
    return [event["message"] for event in events if event["reason"] == "ContainerRestarted"]


def test_what_is_generated_runs_reloads_and_drains(
    real_cluster: Cluster, namespace: str, apply: Callable[[str], str], tmp_path: Path
) -> None:
    """One pipe brings it into the cluster; an edit is no rollout, and loses neither process nor cache."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name in ("manifest.yaml", "handlers.py"):
        shutil.copy(EXAMPLE / name, folder)
    said = apply(_generated(folder, namespace))
    assert "Warning" not in said  # of the pod security standard
    deployment = real_cluster.rest.get("deployments", "restarts", namespace)
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["args"][:2] == ["run", "/etc/declctl/manifest.yaml"]
    arguments = _arguments(container)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"bundle": "/etc/declctl", "tmp": "/tmp"}

    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = _environment(real_cluster, namespace, spec["serviceAccountName"], tmp_path)
    env |= {"TMPDIR": str(temporary), "XDG_RUNTIME_DIR": str(temporary)}  # in a pod, both are /tmp
    python = python_with_read_only_root(tmp_path / "python", temporary)
    config_map = volumes["bundle"]["configMap"]["name"]
    kubelet = Kubelet(real_cluster.rest, config_map, namespace, tmp_path / "declctl", random.Random(7))
    real_cluster.rest.create(pod("web-0", WATCHED))
    with (
        kubelet,
        Declctl(kubelet.path / "manifest.yaml", *arguments, env=env, python=python) as declctl,
    ):
        declctl.wait_until_synced()
        _restarted(real_cluster, 1)
        until("the event is posted", lambda: _messages(real_cluster) == ["main has restarted 1 times"])
        before = declctl.pid

        # An edit: the call takes a while, so that the end has something to wait for.
        handlers = (folder / "handlers.py").read_text("utf-8").replace("has restarted", "came back")
        handlers = handlers.replace(
            "    before = restarts(old)\n", "    import time\n    time.sleep(2)\n    before = restarts(old)\n"
        )
        (folder / "handlers.py").write_text(handlers, "utf-8")
        apply(_generated(folder, namespace))
        declctl.wait_for_generation(2)
        again = real_cluster.rest.get("deployments", "restarts", namespace)
        assert again["metadata"]["generation"] == deployment["metadata"]["generation"]
        assert (declctl.pid, declctl.resource("pods")["relists"]) == (before, 0)

        _restarted(real_cluster, 2)
        until("a call runs", lambda: _running(declctl) == 1)
        assert declctl.stop() == 0
        assert "main came back 2 times" in _messages(real_cluster)
        assert [line for line in declctl.err if "forbidden" in line or "Read-only" in line] == []


def _running(declctl: Declctl) -> int:
    (handler,) = declctl.status()["handlers"]
    return handler["running"]


_WITH_PLUGIN = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: changes}}
spec:
  namespaces: [{namespace}]
  resources: [{{name: pods, apiVersion: v1, kind: Pod}}]
  handlers: [{{name: log, resourceRef: {{name: pods}}, pluginRef: {{name: changelog}}}}]
  plugins: [{{name: changelog, version: ">=0.1,<1", config: {{format: {form}}}}}]
  reload: {{settle: 20ms}}
"""


def test_a_third_party_plugin_runs_under_the_generated_rights(
    real_cluster: Cluster, namespace: str, apply: Callable[[str], str], tmp_path: Path
) -> None:
    """Two commands bring it there; an edit of its config in the ConfigMap keeps the process and the cache."""
    plugins = install(CHANGELOG, tmp_path / "plugins")  # as the init container copies them out of an image
    folder = tmp_path / "bundle"
    folder.mkdir()
    manifest = folder / "manifest.yaml"
    manifest.write_text(_WITH_PLUGIN.format(namespace=WATCHED, form="text"), "utf-8")
    documents = _generated(folder, namespace, "--plugin-image", "registry.example/plugins:1", env=plugins)
    apply(documents)
    spec = real_cluster.rest.get("deployments", "changes", namespace)["spec"]["template"]["spec"]
    assert [each["image"] for each in spec["initContainers"]] == ["registry.example/plugins:1"]
    (container,) = spec["containers"]
    assert {"name": "PYTHONPATH", "value": "/opt/plugins"} in container["env"]
    (role,) = [each for each in yaml.safe_load_all(documents) if each["kind"] == "Role"]
    assert role["metadata"]["namespace"] == WATCHED
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]

    env = {**_environment(real_cluster, namespace, spec["serviceAccountName"], tmp_path), **plugins}
    kubelet = Kubelet(real_cluster.rest, "changes", namespace, tmp_path / "declctl", random.Random(7))
    real_cluster.rest.create(pod("web-0", WATCHED))
    arguments = _arguments(container)
    with kubelet, Declctl(kubelet.path / "manifest.yaml", *arguments, env=env) as declctl:
        declctl.wait_until_synced()
        until("the plugin speaks", lambda: f"Added pods {WATCHED}/web-0" in declctl.out)
        before = declctl.pid
        manifest.write_text(_WITH_PLUGIN.format(namespace=WATCHED, form="json"), "utf-8")
        apply(_generated(folder, namespace, "--plugin-image", "registry.example/plugins:1", env=plugins))
        declctl.wait_for_generation(2)
        _restarted(real_cluster, 1)
        until("it speaks as it is told now", lambda: any(line.startswith("{") for line in declctl.out))
        assert (declctl.pid, declctl.resource("pods")["lists"]) == (before, 1)
        assert declctl.stop() == 0
        assert [line for line in declctl.err if "forbidden" in line] == []


def test_a_pod_of_it_is_admitted(real_cluster: Cluster, namespace: str, apply: Callable[[str], str]) -> None:
    """The namespace enforces the standard restricted, and a Deployment gets its pod there."""
    if not real_cluster.has_controllers:
        pytest.skip("no kube-controller-manager beside the API server: nothing makes pods")
    apply(_generated(EXAMPLE, namespace))

    def admitted() -> list[Any]:
        return real_cluster.rest.list("pods", namespace)

    until("there is a pod", admitted, seconds=60)


def test_an_edit_of_what_takes_a_restart_is_a_rollout(
    real_cluster: Cluster, namespace: str, apply: Callable[[str], str], tmp_path: Path
) -> None:
    """An election that is turned on, for example; the server takes all kinds of it, too."""
    apply(_generated(EXAMPLE, namespace))
    before = real_cluster.rest.get("deployments", "restarts", namespace)
    text = (EXAMPLE / "manifest.yaml").read_text("utf-8")
    (tmp_path / "manifest.yaml").write_text(f"{text}  leaderElection: {{enabled: true}}\n", "utf-8")
    shutil.copy(EXAMPLE / "handlers.py", tmp_path)
    said = apply(_generated(tmp_path, namespace))
    assert "poddisruptionbudget.policy/restarts serverside-applied" in said
    after = real_cluster.rest.get("deployments", "restarts", namespace)
    digests = [
        each["spec"]["template"]["metadata"]["annotations"]["declctl.dev/restart-digest"]
        for each in (before, after)
    ]
    assert digests[0] != digests[1]
    assert after["spec"]["replicas"] == 2
