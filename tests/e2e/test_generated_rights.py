"""`declctl generate rbac` on a real API server: the rights are enough, and each of them is needed.

One controller does everything that needs a right. It does its job under a token with the generated rights.
With each verb of each rule taken away in turn, the log or the status names it, and the command that gives it
back.
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from accounts import Account, Granted, generated, granted
from clusters import Cluster, drop_namespace, new_namespace
from processes import Declctl, environment, find_kubectl, run
from rest import MERGE, Refused, documents
from waiting import until

SUPPORT = Path(__file__).parent / "support"
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: web}}
spec:
  namespaces: [{namespace}]
  resources:
    # Without these fields in the cache, they are read from the server before each write.
    - {{name: webapps, apiVersion: example.dev/v1, kind: WebApp,
       transform: {{dropFields: [metadata.annotations, status]}}}}
    - {{name: settings, apiVersion: v1, kind: Pod, names: [settings]}}
    - name: selected
      apiVersion: v1
      kind: Secret
      namespaces: {{labelSelector: {{matchLabels: {{example.dev/web: {namespace}}}}}}}
  handlers:
    - name: web
      mode: Reconcile
      resourceRef: {{name: webapps}}
      entryPoint: handlers
      applies: [{{apiVersion: v1, kind: ConfigMap}}]
      status: true
      finalizer: example.dev/web
      retry: {{initialBackoff: 100ms, maxBackoff: 500ms}}
    - {{name: settings, resourceRef: {{name: settings}}, entryPoint: "handlers:print_key"}}
    - {{name: selected, resourceRef: {{name: selected}}, entryPoint: "handlers:print_key"}}
  leaderElection: {{enabled: true, leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 200ms}}
  reload: {{preflight: "Off"}}
"""
HANDLERS = """\
import declctl


def print_key(obj):
    print(obj["kind"], obj.name)


@declctl.hookimpl
async def declctl_reconcile(request, ctx):
    if request.obj is None:
        print("gone", request.name)
        return
    files = request.obj["spec"].get("files") or {}
    child = {"apiVersion": "v1", "kind": "ConfigMap"}
    names = {name: {"name": f"{request.name}-{name}"} for name in files}
    await ctx.apply_set([{**child, "metadata": names[each], "data": {"text": files[each]}} for each in files])
    ready = {"type": "Ready", "status": "True", "reason": "Applied", "message": f"{len(files)}"}
    await ctx.patch_status(conditions=[ready], files=len(files))
    for _ in range(2):  # the second one is a patch of the first
        ctx.record_event(request.obj, "Applied", "the children are applied")
    print("done", request.name, len(files))


@declctl.hookimpl
async def declctl_finalize(request, ctx):
    print("finalized", request.name)
"""
_NUMBERS = itertools.count(1)
_COMMAND = re.compile(r"`(declctl generate rbac [^`]*)`")
pytestmark = pytest.mark.real


class Scene(NamedTuple):
    """The controller, its account, and where it works."""

    cluster: Cluster
    namespace: str
    manifest: Path
    account: Account
    kubeconfig: Path
    objects: list[dict[str, Any]]


@pytest.fixture(scope="module")
def scene(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The definition, two objects that are watched, and the generated rights."""
    rest, folder = real_cluster.rest, tmp_path_factory.mktemp("web")
    (definition,) = documents(SUPPORT / "webapps.yaml")
    crd = definition["metadata"]["name"]
    # Other tests of this server make it, too.
    until("it is gone", lambda: not rest.is_there("customresourcedefinitions", crd), seconds=60)
    rest.create(definition)
    namespace = new_namespace(real_cluster)
    rest.patch("namespaces", namespace, {"metadata": {"labels": {"example.dev/web": namespace}}})
    container = {"name": "main", "image": "registry.invalid/nothing"}
    settings = {"name": "settings", "namespace": namespace}
    rest.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": settings, "spec": {"containers": [container]}}
    )
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "selected"}}
    rest.request("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    manifest = folder / "manifest.yaml"
    manifest.write_text(MANIFEST.format(namespace=namespace), "utf-8")
    (folder / "handlers.py").write_text(HANDLERS, "utf-8")
    crds = str(SUPPORT / "webapps.yaml")
    objects = generated("rbac", str(manifest), "--namespace", namespace, "--name", "runner", "--crds", crds)
    account = Account(real_cluster, objects)
    yield Scene(
        real_cluster, namespace, manifest, account, account.kubeconfig(folder / "kubeconfig"), objects
    )
    for each in rest.request("GET", _webapps_of(namespace))["items"]:
        patch = {"metadata": {"finalizers": None}}
        rest.request("PATCH", f"{_webapps_of(namespace)}/{each['metadata']['name']}", patch, media=MERGE)
    rest.delete("customresourcedefinitions", crd)
    until("it is gone", lambda: not rest.is_there("customresourcedefinitions", crd), seconds=60)
    drop_namespace(real_cluster, namespace)


# What the manifest needs, and nothing else: (resource, verbs, names), in the order of the rules.
CLUSTER = [("namespaces", "list watch"), ("secrets", "list watch")]
OWN = [
    ("configmaps", "get list create patch delete"),
    ("pods", "list watch"),
    ("leases", "create"),
    ("leases", "get update"),
    ("events", "create patch"),
    ("webapps", "get list watch patch"),
    ("webapps/status", "patch"),
]
RIGHTS = [(resource, verb) for resource, verbs in (*CLUSTER, *OWN) for verb in verbs.split()]


def test_there_are_these_rights_and_no_others(scene: Scene) -> None:
    """So that the tests below take away each."""
    rights = granted(scene.objects)
    assert [(right.resource, right.verb) for right in rights] == RIGHTS
    assert {right.namespace for right in rights} == {None, scene.namespace}
    assert {right.resource: right.name for right in rights if right.name} == {
        "pods": "settings",
        "leases": "web",
    }


def test_validate_finds_nothing_missing(scene: Scene) -> None:
    """The check before a start agrees."""
    done = run("validate", str(scene.manifest), "--cluster", "--kubeconfig", str(scene.kubeconfig))
    assert done.stderr == ""


def test_a_controller_does_its_job_with_these_rights(scene: Scene) -> None:
    """It leads, watches, applies, prunes, writes the status, posts Events and finalizes."""
    with Declctl(scene.manifest, "-n", scene.namespace, kubeconfig=scene.kubeconfig) as declctl:
        name = _drive(scene, declctl)
        until("the children are pruned", lambda: f"done {name} 1" in declctl.out)
        children = [
            each["metadata"]["name"] for each in scene.cluster.rest.list("configmaps", scene.namespace)
        ]
        assert [child for child in children if child.startswith(name)] == [f"{name}-a"]
        assert _webapp(scene, name)["status"]["files"] == 1

        def counted() -> bool:
            events = scene.cluster.rest.request("GET", _events(scene))["items"]
            return any(
                each.get("series", {}).get("count", 0) >= 2 for each in events if _is_about(each, name)
            )

        until("a repeated event is counted", counted)
        scene.cluster.rest.request("DELETE", f"{_webapps(scene)}/{name}")
        until("it is finalized", lambda: f"finalized {name}" in declctl.out and f"gone {name}" in declctl.out)
        assert {"Pod settings", "Secret selected"} <= set(declctl.out)
        assert [line for line in declctl.err if "forbidden" in line] == []
        assert declctl.stop() == 0


@pytest.mark.parametrize(
    ("resource", "verb"), RIGHTS, ids=[f"{verb} {resource}" for resource, verb in RIGHTS]
)
def test_a_right_that_is_missing_is_named_with_the_command(scene: Scene, resource: str, verb: str) -> None:
    """Whichever it is: nobody has to read the audit log of the server."""
    (right,) = [each for each in granted(scene.objects) if (each.resource, each.verb) == (resource, verb)]
    with scene.account.without(right):
        _forget_lease(scene)
        with Declctl(scene.manifest, "-n", scene.namespace, kubeconfig=scene.kubeconfig) as declctl:
            _drive(scene, declctl)
            until("the right is named", lambda: _complains(declctl, right, scene), seconds=60)
            assert declctl.stop() in (0, 1)


SMALL = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: small}}
spec:
  namespaces: [{namespace}]
  resources: [{{name: settings, apiVersion: v1, kind: ConfigMap}}]
  handlers: [{{name: h, resourceRef: {{name: settings}}, entryPoint: "handlers:print_key"}}]
"""


def test_the_command_that_is_named_is_enough(real_cluster: Cluster, tmp_path: Path) -> None:
    """It is taken from the log, with the path of the manifest in it; the process goes on by itself."""
    programs = [Path(sys.executable).parent, Path(find_kubectl()).parent, os.environ["PATH"]]
    namespace = new_namespace(real_cluster)
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(SMALL.format(namespace=namespace), "utf-8")
    (tmp_path / "handlers.py").write_text(HANDLERS, "utf-8")
    metadata = {"name": "runner", "namespace": namespace}
    account = Account(real_cluster, [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}])
    with Declctl(manifest, kubeconfig=account.kubeconfig(tmp_path / "kubeconfig")) as declctl:
        until("the command is named", lambda: any(_COMMAND.search(line) for line in declctl.err))
        (command, *_) = [found[1] for line in declctl.err if (found := _COMMAND.search(line))]
        env = environment(PATH=os.pathsep.join(map(str, programs)), KUBECONFIG=str(real_cluster.kubeconfig))
        line = command.replace("MANIFEST", shlex.quote(str(manifest)))
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
        until("it is ready", lambda: declctl.status()["ready"], seconds=100)
        assert declctl.stop() == 0
    drop_namespace(real_cluster, namespace)


@pytest.mark.parametrize("missing", ["", "list", "create", "get", "update"])
def test_the_leases_of_a_sharding_are_those_that_are_granted(
    real_cluster: Cluster, tmp_path: Path, missing: str
) -> None:
    """All slots are taken with these rights, and each that is missing is named with what grants it."""
    namespace = new_namespace(real_cluster)
    manifest = tmp_path / "manifest.yaml"
    sharding = "  sharding: {slots: 4, leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 200ms}\n"
    manifest.write_text(SMALL.format(namespace=namespace) + sharding, "utf-8")
    (tmp_path / "handlers.py").write_text(HANDLERS, "utf-8")
    objects = generated("rbac", str(manifest), "--namespace", namespace, "--name", "runner")
    rights = [each for each in granted(objects) if each.resource == "leases"]
    names = {each.name for each in rights if each.verb in ("get", "update")}
    assert names == {f"small-{what}-{number}" for what in ("shard", "member") for number in range(4)}
    account = Account(real_cluster, objects)
    kubeconfig = account.kubeconfig(tmp_path / "kubeconfig")
    with ExitStack() as stack:
        if missing:
            stack.enter_context(account.without(next(each for each in rights if each.verb == missing)))
        declctl = stack.enter_context(Declctl(manifest, "-n", namespace, kubeconfig=kubeconfig))
        if missing in ("", "get"):  # no Lease of theirs has to be read that a list does not show
            until("it handles all slots", lambda: declctl.status()["sharding"]["handled"] == 4)
        else:
            said = f"it lacks {missing}: `declctl generate rbac MANIFEST"
            until("the right is named", lambda: any(said in text for text in _texts(declctl.status())))
        assert declctl.stop() == 0
    drop_namespace(real_cluster, namespace)


def _complains(declctl: Declctl, right: Granted, scene: Scene) -> bool:
    """Whether the log or the status names a right, and the command that gives it back in the same line."""
    command = f"declctl generate rbac MANIFEST --namespace {scene.namespace} --name runner | kubectl apply"
    said = [*declctl.err, *_texts(declctl.status())]
    named = f'cannot {right.verb} resource "{right.resource}" in API group "{right.group}"'
    return any(named in text and command in text for text in said)


def _texts(value: Any) -> Iterator[str]:
    """All texts of a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def _drive(scene: Scene, declctl: Declctl) -> str:
    """Create an object with two children, and take one of them from it when it is reconciled."""
    name = f"app-{next(_NUMBERS)}"
    body = {"apiVersion": "example.dev/v1", "kind": "WebApp", "metadata": {"name": name}}
    body["spec"] = {"files": {"a": "1", "b": "2"}}
    until("it is stored", lambda: _stored(scene, body))

    def is_over() -> bool:
        return f"done {name} 2" in declctl.out or any("forbidden" in line for line in declctl.err)

    until("it is reconciled, or something is missing", is_over, seconds=60)
    patch = {"spec": {"files": {"b": None}}}
    scene.cluster.rest.request("PATCH", f"{_webapps(scene)}/{name}", patch, media=MERGE)
    return name


def _stored(scene: Scene, body: dict[str, Any]) -> bool:
    try:
        scene.cluster.rest.request("POST", _webapps(scene), body)
    except Refused as refused:  # the kind may be served a moment before its objects can be stored
        return refused.status == 409
    return True


def _webapps(scene: Scene) -> str:
    return _webapps_of(scene.namespace)


def _webapps_of(namespace: str) -> str:
    return f"/apis/example.dev/v1/namespaces/{namespace}/webapps"


def _webapp(scene: Scene, name: str) -> Any:
    return scene.cluster.rest.request("GET", f"{_webapps(scene)}/{name}")


def _events(scene: Scene) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{scene.namespace}/events"


def _is_about(event: dict[str, Any], name: str) -> bool:
    return event["regarding"]["name"] == name


def _forget_lease(scene: Scene) -> None:
    """The next leader creates it."""
    if scene.cluster.rest.is_there("leases", "web", scene.namespace):
        scene.cluster.rest.delete("leases", "web", scene.namespace)
