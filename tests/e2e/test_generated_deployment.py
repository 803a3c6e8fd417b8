"""`declctl generate deploy` on a real API server, and a process that is started as its kubelet would."""

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from accounts import token_of
from clusters import Cluster, RealCluster, drop_namespace, make_namespace, new_namespace
from container import Container, image_user, volumes_of
from kubelet import Kubelet
from packages import CHANGELOG, WEBHOOK, install
from processes import Declctl, find_kubectl
from processes import run as run_command
from rest import pod
from tls_front import self_signed
from waiting import until

from declctl.testing import ConfigMapDir

EXAMPLE = Path(__file__).parents[2] / "examples" / "07-in-cluster"
WATCHED = "declctl-demo"  # of the example
RESTRICTED = "pod-security.kubernetes.io"
_MANIFEST = "/etc/declctl/manifest.yaml"  # in the pod
pytestmark = pytest.mark.real


@pytest.fixture
def apply(real_cluster: Cluster) -> Callable[[str], str]:
    """`kubectl apply --server-side -f -`; returns what it prints on both streams."""
    kubectl = find_kubectl()

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
    drop_namespace(real_cluster, own, WATCHED)


def _generated(folder: Path, namespace: str, *more: str, env: Mapping[str, str] | None = None) -> str:
    done = run_command("generate", "deploy", str(folder), "--namespace", namespace, *more, **(env or {}))
    assert done.returncode == 0, done.stderr
    return done.stdout


def _container(
    cluster: Cluster, namespace: str, spec: Mapping[str, Any], folder: Path, **volumes: Path
) -> Container:
    """The container of a pod, with the token of its service account; `volumes` are those of the test."""
    if not isinstance(cluster, RealCluster):
        pytest.skip("the certificate authority of a given cluster is not known")
    authority = cluster.plane.authority.read_text("utf-8")
    files = {
        "token": token_of(cluster, spec["serviceAccountName"], namespace),
        "ca.crt": authority,
        "namespace": namespace,
    }
    host, port = cluster.plane.address
    return Container(
        folder / "container",
        spec,
        volumes={**volumes_of(spec, cluster.rest, namespace, folder / "volumes"), **volumes},
        account=ConfigMapDir(folder / "serviceaccount", files).path,
        # HOME is that of a user whom no /etc/passwd has.
        env={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port), "HOME": "/"},
    )


def _arguments(container: Mapping[str, Any]) -> list[str]:
    """Those behind the manifest, without the port: a pod has ports of its own, and this machine has not."""
    return [each for each in container["args"][2:] if not each.startswith("--admin=")]


def _complaints(declctl: Declctl) -> list[str]:
    """The lines of the log that are warnings or errors, and those that no logger has written."""
    found: list[str] = []
    for line in declctl.err:
        level = json.loads(line)["level"] if line.startswith("{") else "none"
        if level not in ("debug", "info"):
            found.append(line)
    return found


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

    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == image_user()
    config_map = volumes["bundle"]["configMap"]["name"]
    kubelet = Kubelet(real_cluster.rest, config_map, namespace, tmp_path / "bundle-volume", random.Random(7))
    in_pod = _container(real_cluster, namespace, spec, tmp_path, bundle=kubelet.path)
    real_cluster.rest.create(pod("web-0", WATCHED))
    with kubelet, Declctl(_MANIFEST, *arguments, python=in_pod.python) as declctl:
        declctl.wait_until_synced()
        _restarted(real_cluster, 1)
        until("the event is posted", lambda: _messages(real_cluster) == ["main has restarted 1 times"])
        before = declctl.pid
        for command in (["status"], ["doctor", _MANIFEST], ["validate", "--cluster", _MANIFEST]):
            said = in_pod.run(*command, without="HOME")
            assert (said.returncode, said.stderr) == (0, ""), said.stdout

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
        assert _complaints(declctl) == []
    temporary = tmp_path / "volumes" / "tmp"
    assert [path for path in temporary.rglob("*") if not path.is_dir()] == []


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

    kubelet = Kubelet(real_cluster.rest, "changes", namespace, tmp_path / "bundle-volume", random.Random(7))
    in_pod = _container(
        real_cluster, namespace, spec, tmp_path, bundle=kubelet.path, plugins=tmp_path / "plugins"
    )
    real_cluster.rest.create(pod("web-0", WATCHED))
    with kubelet, Declctl(_MANIFEST, *_arguments(container), python=in_pod.python) as declctl:
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
        assert _complaints(declctl) == []


_WITH_FILES = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: files}}
spec:
  namespaces: [{namespace}]
  resources: [{{name: pods, apiVersion: v1, kind: Pod}}]
  handlers: [{{name: send, resourceRef: {{name: pods}}, pluginRef: {{name: webhook}}}}]
  plugins:
    - name: webhook
      config:
        url: http://127.0.0.1:9/nobody-listens
        headersFrom: [{{name: Authorization, file: /etc/webhook/token}}]
        spool: {{path: /var/spool/webhook}}
  admin:
    tls: {{certFile: /etc/admin/cert.pem, keyFile: /etc/admin/key.pem}}
    tokenFile: /etc/admin/token
"""


def test_a_pod_has_the_files_and_folders_that_options_name(
    real_cluster: Cluster, namespace: str, apply: Callable[[str], str], tmp_path: Path
) -> None:
    """Certificate and token of the admin address, a secret of a plugin, and its spool."""
    plugins = install(WEBHOOK, tmp_path / "plugins")
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "manifest.yaml").write_text(_WITH_FILES.format(namespace=WATCHED), "utf-8")
    pair = {file.name: file.read_text("utf-8") for file in self_signed(tmp_path)}
    for name, data in (("files-tls", pair), ("files-token", {"token": "s3cret"}), ("hook", {"token": "t"})):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
        real_cluster.rest.request("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    options = ["--plugin-image", "registry.example/plugins:1", "--tls-secret", "files-tls"]
    options += ["--token-secret", "files-token", "--secret", "/etc/webhook=hook"]
    options += ["--writable", "/var/spool/webhook=64Mi"]
    apply(_generated(folder, namespace, *options, env=plugins))
    spec = real_cluster.rest.get("deployments", "files", namespace)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"

    kubelet = Kubelet(real_cluster.rest, "files", namespace, tmp_path / "bundle-volume", random.Random(7))
    in_pod = _container(
        real_cluster, namespace, spec, tmp_path, bundle=kubelet.path, plugins=tmp_path / "plugins"
    )
    real_cluster.rest.create(pod("web-0", WATCHED))
    spool = tmp_path / "volumes" / "writable-1"
    with kubelet, Declctl(_MANIFEST, *_arguments(container), python=in_pod.python) as declctl:

        def ready() -> bool:
            # By the file of the process, with the token and the certificate that it names.
            return json.loads(in_pod.run("status", "-o", "json").stdout or "{}").get("ready") is True

        until("it is ready", ready, seconds=60)
        until("the event waits in the spool", lambda: any(spool.rglob("*")))
        assert in_pod.run("reload").returncode == 0  # guarded by the token
        assert declctl.stop() == 0


def test_a_namespace_that_is_missing_is_made(
    real_cluster: Cluster, namespace: str, apply: Callable[[str], str]
) -> None:
    """In the same pipe, before what is in it; one that is there keeps its labels."""
    missing = f"{namespace}-new"
    apply(_generated(EXAMPLE, missing, "--create-namespace"))
    assert real_cluster.rest.is_there("deployments", "restarts", missing)
    drop_namespace(real_cluster, missing)
    before = real_cluster.rest.get("namespaces", namespace)["metadata"]["labels"]
    apply(_generated(EXAMPLE, namespace, "--create-namespace"))
    assert real_cluster.rest.get("namespaces", namespace)["metadata"]["labels"] == before


def test_a_pod_of_it_is_admitted(real_cluster: Cluster, namespace: str, apply: Callable[[str], str]) -> None:
    """The namespace enforces the standard restricted, and a Deployment gets its pod there."""
    if not real_cluster.has_controllers:
        pytest.skip("no kube-controller-manager beside the API server: nothing makes pods")
    apply(_generated(EXAMPLE, namespace))

    def admitted() -> list[Any]:
        return real_cluster.rest.list("pods", namespace)

    until("there is a pod", admitted, seconds=60)


@pytest.mark.parametrize("more", ["leaderElection: {enabled: true}", "sharding: {slots: 16}"])
def test_an_edit_of_what_takes_a_restart_is_a_rollout(
    real_cluster: Cluster, namespace: str, apply: Callable[[str], str], tmp_path: Path, more: str
) -> None:
    """An election that is turned on, for example; the server takes all kinds of it, too."""
    apply(_generated(EXAMPLE, namespace))
    before = real_cluster.rest.get("deployments", "restarts", namespace)
    text = (EXAMPLE / "manifest.yaml").read_text("utf-8")
    (tmp_path / "manifest.yaml").write_text(f"{text}  {more}\n", "utf-8")
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
