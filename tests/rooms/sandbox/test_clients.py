"""Clients that others wrote: the official Python client and kubectl."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException

from declctl.errors import SandboxError
from declctl.sandbox import SandboxThread
from declctl.sandbox.faults import Match
from tests.rooms.sandbox.shapes import config_map, definition, pod, widget


@pytest.fixture(scope="module")
def server():
    with SandboxThread(seed=1) as thread:
        yield thread


@pytest.fixture
def sandbox(server):
    """The sandbox without pods, widgets, faults and ledger."""
    server.faults.clear()
    server.ledger.clear()
    for obj in server.objects("Pod"):
        server.delete("Pod", obj["metadata"]["name"], obj["metadata"]["namespace"])
    if any(crd["metadata"]["name"] == "widgets.example.com" for crd in server.objects("crd")):
        server.delete("crd", "widgets.example.com")
    return server


@pytest.fixture
def api(sandbox):
    """The official client's core API."""
    with config.new_client_from_config_dict(sandbox.kubeconfig()) as api_client:
        yield client.CoreV1Api(api_client)


def test_the_official_client_writes(api):
    """Create, read, patch, replace, list and delete with typed objects."""
    api.create_namespaced_pod("default", pod("a"))
    assert api.read_namespaced_pod("a", "default").spec.containers[0].image == "nginx"
    patched = api.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"x": "y"}}})
    assert patched.metadata.labels == {"app": "web", "x": "y"}
    patched.metadata.labels = {"z": "1"}
    assert api.replace_namespaced_pod("a", "default", patched).metadata.labels == {"z": "1"}
    assert [found.metadata.name for found in api.list_pod_for_all_namespaces().items] == ["a"]
    api.delete_namespaced_pod("a", "default")
    with pytest.raises(ApiException) as gone:
        api.read_namespaced_pod("a", "default")
    assert gone.value.status == 404


def test_the_official_client_pages(api, sandbox):
    for number in range(5):
        sandbox.create(pod(f"p{number}"))
    names, token = [], None
    while True:
        page = api.list_namespaced_pod("default", limit=2, _continue=token)
        names += [found.metadata.name for found in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert names == [f"p{number}" for number in range(5)]
    assert sandbox.ledger.count("list", resource="pods") == 3


def test_the_official_client_watches(api, sandbox):
    """Its Watch yields typed events, from a list's version on."""
    sandbox.create(pod("a"))
    version = api.list_namespaced_pod("default").metadata.resource_version
    sandbox.patch("Pod", "a", {"status": {"phase": "Running"}})
    sandbox.delete("Pod", "a")
    stream = watch.Watch().stream(
        api.list_namespaced_pod, "default", resource_version=version, timeout_seconds=1
    )
    seen = [(event["type"], event["object"].status.phase) for event in stream]
    assert seen == [("MODIFIED", "Running"), ("DELETED", "Running")]


def test_the_official_client_sees_faults(api, sandbox):
    """An ordered 403 arrives as the client's ApiException with the Status inside."""
    sandbox.faults.refuse(403, Match(verb="list", resource="pods"), message="not today")
    with pytest.raises(ApiException) as refused:
        api.list_namespaced_pod("default")
    assert json.loads(refused.value.body)["message"] == "not today"


@pytest.mark.client_go(341, "envtest")
def test_custom_objects(api, sandbox):
    """The CustomObjectsApi works on a kind that was defined a moment ago."""
    sandbox.create(definition())
    custom = client.CustomObjectsApi(api.api_client)
    where = ("example.com", "v1", "default", "widgets")
    custom.create_namespaced_custom_object(*where, widget("w", size=1))
    custom.patch_namespaced_custom_object_status(*where, "w", {"status": {"ready": True}})
    found = custom.get_namespaced_custom_object(*where, "w")
    assert (found["spec"], found["status"]) == ({"size": 1}, {"ready": True})


def test_the_dynamic_client(api, sandbox, tmp_path):
    """The dynamic client discovers kinds and applies on the server side."""
    sandbox.create(definition())
    found = dynamic.DynamicClient(api.api_client, cache_file=str(tmp_path / "discovery.json"))
    widgets = found.resources.get(api_version="example.com/v1", kind="Widget")
    applied = found.server_side_apply(
        widgets, body=widget("w", size=4), namespace="default", field_manager="me"
    )
    assert applied.spec.size == 4
    assert widgets.get(name="w", namespace="default").metadata.managedFields[0].manager == "me"


def test_the_thread_is_a_clear_boundary():
    thread = SandboxThread()
    with pytest.raises(SandboxError, match="use it in a with statement"):
        thread.create(pod("a"))
    with pytest.raises(SandboxError, match="start it first"):
        _ = thread.url


def test_the_thread_stops_and_starts(sandbox):
    """It comes back under the same URL, with its objects and its faults."""
    sandbox.create(pod("kept"))
    url = sandbox.url
    sandbox.stop()
    assert sandbox.start() == url
    sandbox.faults.watch_list = "invalid"
    assert sandbox.faults.document()["watchList"] == "invalid"
    assert [obj["metadata"]["name"] for obj in sandbox.objects("Pod")] == ["kept"]
    sandbox.update({**pod("kept"), "status": {"phase": "Failed"}})
    assert sandbox.objects("Pod", "default")[0]["status"]["phase"] == "Failed"


def _kubectl():
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    beside = Path(assets) / "kubectl" if assets else None
    return str(beside) if beside and beside.exists() else shutil.which("kubectl")


@pytest.fixture
def kubectl(sandbox, tmp_path):
    """Run kubectl against the sandbox and return what it printed."""
    binary = _kubectl()
    if binary is None:
        pytest.skip("there is no kubectl: set KUBEBUILDER_ASSETS or install it")
    (tmp_path / "config").write_text(yaml.safe_dump(sandbox.kubeconfig()))
    environment = {"KUBECONFIG": str(tmp_path / "config"), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def run(*arguments, given=None, fails=False):
        done = subprocess.run(
            [binary, *arguments],
            input=given,
            capture_output=True,
            text=True,
            env=environment,
            timeout=30,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stdout if not fails else done.stderr

    run.binary, run.environment = binary, environment
    return run


WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: nginx, ports: [{containerPort: 80}]}, {name: old, image: x}]}
"""


@pytest.mark.kubectl
def test_kubectl_apply_from_the_client(kubectl, sandbox):
    """Plain apply creates, leaves alone, changes, and removes what is no longer there, with validation on."""
    assert kubectl("apply", "-f", "-", given=WEB) == "deployment.apps/web created\n"
    assert kubectl("apply", "-f", "-", given=WEB) == "deployment.apps/web unchanged\n"
    changed = WEB.replace(", {name: old, image: x}", "").replace("nginx", "caddy")
    assert kubectl("apply", "-f", "-", given=changed) == "deployment.apps/web configured\n"
    (deployment,) = sandbox.objects("Deployment")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in containers] == [("c", "caddy")]
    assert kubectl("delete", "deployment", "web").startswith('deployment.apps "web" deleted')


@pytest.mark.kubectl
def test_kubectl_apply_on_the_server(kubectl, sandbox):
    """Server-side apply owns its fields, and is in conflict with a scale until it is forced."""
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", given=WEB)
    replicas = WEB.replace("spec:\n  selector", "spec:\n  replicas: 2\n  selector")
    kubectl("apply", "--server-side", "-f", "-", given=replicas)
    assert kubectl("scale", "deployment/web", "--replicas=5") == "deployment.apps/web scaled\n"
    told = kubectl("apply", "--server-side", "-f", "-", given=replicas, fails=True)
    assert ".spec.replicas" in told
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=replicas)
    assert sandbox.objects("Deployment")[0]["spec"]["replicas"] == 2
    kubectl("delete", "deployment", "web")


@pytest.mark.kubectl
def test_kubectl_changes_objects(kubectl, sandbox):
    """label, annotate, patch, edit and a dry run do what they say."""
    sandbox.create(pod("p"))
    kubectl("label", "pod", "p", "tier=front")
    kubectl("annotate", "pod", "p", "note=x")
    kubectl("patch", "pod", "p", "-p", '{"spec":{"containers":[{"name":"c","image":"caddy"}]}}')
    kubectl.environment["EDITOR"] = "sed -i s/front/back/"
    assert kubectl("edit", "pod", "p") == "pod/p edited\n"
    kubectl("label", "pod", "p", "gone=x", "--dry-run=server")
    (found,) = sandbox.objects("Pod")
    assert found["metadata"]["labels"] == {"app": "web", "tier": "back"}
    assert [(each["name"], each["image"]) for each in found["spec"]["containers"]] == [("c", "caddy")]


@pytest.mark.kubectl
def test_kubectl_gets_tables(kubectl, sandbox):
    """Pods, a custom kind with columns, and unknown kinds look as users know them."""
    sandbox.load([pod("p", phase="Running"), definition(), widget("w", size=7)])
    header, row = kubectl("get", "pods").splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["p", "0/1", "Running", "0"]
    assert kubectl("get", "wd").splitlines()[0].split() == ["NAME", "SIZE", "READY", "AGE"]
    assert "doesn't have a resource type" in kubectl("get", "nopes", fails=True)
    assert 'pods "nope" not found' in kubectl("get", "pod", "nope", fails=True)


@pytest.mark.kubectl
def test_kubectl_waits_and_deletes(kubectl, sandbox):
    """A wait sees a condition, delete waits until the object is gone, a namespace goes with its objects."""
    sandbox.create(pod("p", node="n"))
    sandbox.patch("Pod", "p", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=10s") == "pod/p condition met\n"
    kubectl("delete", "pod", "p")
    sandbox.load([config_map("c", "team")])
    kubectl("delete", "namespace", "team")
    assert [obj for obj in sandbox.objects("ConfigMap") if obj["metadata"]["namespace"] == "team"] == []


@pytest.mark.kubectl
def test_kubectl_watches(kubectl, sandbox):
    """`get -w --output-watch-events` prints a line for each change."""
    sandbox.create(pod("p"))
    command = [kubectl.binary, "get", "pods", "-w", "--output-watch-events", "--no-headers"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=kubectl.environment) as process:
        assert process.stdout.readline().split()[:2] == ["ADDED", "p"]
        _until(lambda: sandbox.ledger.count("watch", resource="pods") == 1)
        sandbox.patch("Pod", "p", {"status": {"phase": "Running"}})
        assert process.stdout.readline().split()[:4] == ["MODIFIED", "p", "0/1", "Running"]
        sandbox.delete("Pod", "p")
        assert process.stdout.readline().split()[:2] == ["DELETED", "p"]
        process.terminate()


def _until(true, seconds=10.0):
    """Another process is waited for here, so that a short poll can't be avoided."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.kubectl
def test_kubectl_creates_with_typed_clients(kubectl, sandbox):
    """Its create commands and can-i, which speak protobuf, work too."""
    kubectl("create", "namespace", "typed")
    kubectl("create", "configmap", "x", "--from-literal=a=b", "-n", "typed")
    kubectl("create", "deployment", "d", "--image=nginx", "--replicas=0", "--port=80", "-n", "typed")
    (deployment,) = sandbox.objects("Deployment", "typed")
    assert deployment["spec"]["replicas"] == 0
    assert deployment["spec"]["template"]["spec"]["containers"][0]["ports"] == [
        {"containerPort": 80, "protocol": "TCP"}
    ]
    assert sandbox.objects("ConfigMap", "typed")[0]["data"] == {"a": "b"}
    assert kubectl("auth", "can-i", "list", "pods") == "yes\n"
    kubectl("delete", "namespace", "typed")


def test_events_of_both_groups_are_the_same_objects(api, sandbox):
    """An Event of events.k8s.io is what `kubectl describe` shows, in the older names."""
    about = {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "default"}
    events = client.EventsV1Api(api.api_client)
    body = {
        "metadata": {"name": "a.1"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": about,
        "note": "it was seen",
        "reportingController": "guard",
        "reportingInstance": "guard-1",
        "action": "Look",
        "reason": "Seen",
        "type": "Normal",
    }
    events.create_namespaced_event("default", body)
    seen = api.read_namespaced_event("a.1", "default")
    assert (seen.message, seen.involved_object.name) == ("it was seen", "a")
    assert seen.reporting_component == "guard"
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}}
    patched = events.patch_namespaced_event("a.1", "default", series)
    assert (patched.note, patched.series.count) == ("it was seen", 2)
    (listed,) = events.list_namespaced_event("default").items
    assert (listed.note, listed.regarding.name) == ("it was seen", "a")
    (line,) = list(watch.Watch().stream(api.list_namespaced_event, "default", timeout_seconds=1))
    assert line["object"].series.count == 2
    api.delete_namespaced_event("a.1", "default")
    assert events.list_namespaced_event("default").items == []


def test_options_in_the_body_of_a_delete_replace_those_of_the_query(api, sandbox):
    """A client that sends both must not believe that the query makes it a dry run."""
    for name in ("a", "b"):
        sandbox.create(config_map(name))
    api.delete_namespaced_config_map("b", "default", body={"dryRun": ["All"]})
    api.delete_namespaced_config_map("a", "default", body={}, dry_run="All")
    assert [found["metadata"]["name"] for found in sandbox.objects("ConfigMap", "default")] == ["b"]
