"""Handlers that write, against the sandbox and a real API server: apply, sets of children, status, Events."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from clusters import Cluster, SandboxCluster, served
from front import front
from processes import Declctl, run
from rest import MERGE, documents
from waiting import until

from declctl.testing import BundleDir

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: guard}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: webapps, apiVersion: example.dev/v1, kind: WebApp}}
    - {{name: maps, apiVersion: v1, kind: ConfigMap}}
  handlers:
    - name: {name}
      resourceRef: {{name: webapps}}
      entryPoint: "handlers:{entry}"
      status: true
      retry: {{initialBackoff: 50ms, maxBackoff: 200ms}}
      {rest}
  reload: {{settle: 50ms, preflight: "Off"}}
"""
EVENTS = "events: [Added, Modified]"
RECONCILES = """mode: Reconcile
      watches: [{resourceRef: {name: maps}, mapTo: {owner: Controller}}]
      applies: [{apiVersion: v1, kind: ConfigMap}]
      queue: {concurrency: 4}"""
HANDLERS = """\
import asyncio
import time
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import msgspec
from declctl import Condition, hookimpl
from kubernetes.aio.client import CoreV1Api, CustomObjectsApi


def children(obj):
    for name, text in (obj["spec"].get("files") or {}).items():
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{obj.name}-{name}"},
            "data": {"text": text},
        }


async def web(obj, ctx):
    done = await ctx.apply_set(children(obj))
    count = len(done.applied)
    state = "True" if count > 0 else "False"
    ready = Condition(type="Ready", status=state, reason="Applied", message=f"{count} files")
    written = await ctx.patch_status(conditions=[ready], files=count)
    ctx.record_event(obj, "Applied", f"{count} files")
    print("done", obj["metadata"]["generation"], count, len(done.pruned), written.changed, flush=True)


async def operator(request, ctx):
    if request.obj is None:
        return
    there = [each for each in ctx.listers["maps"].list() if each.name.startswith(f"{request.name}-")]
    done = await ctx.apply_set(children(request.obj))
    await ctx.patch_status(files=len(done.applied))
    print("read", request.name, len(there), flush=True)


def noted(obj, ctx):
    ctx.record_event(obj, "Noted", obj.annotations.get("note", "none"))


class Kept:
    @hookimpl
    async def declctl_reconcile(self, request, ctx):
        await operator(request, ctx)

    @hookimpl
    def declctl_finalize(self):
        pass


async def stamps(request, ctx):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": request.name}}
    await ctx.apply_set([{**child, "data": {"seen": str(time.time())}}])


async def late(change, obj, ctx):
    print(change.type, obj.uid, flush=True)
    while not (Path(__file__).parents[1] / "open").exists():
        await asyncio.sleep(0.01)
    await ctx.patch_status(files=1)


async def late_by_client(change, obj, ctx):
    print(change.type, obj.uid, flush=True)
    while not (Path(__file__).parents[1] / "open").exists():
        await asyncio.sleep(0.01)
    await CustomObjectsApi(ctx.client).patch_namespaced_custom_object_status(
        "example.dev", "v1", obj.namespace, "webapps", obj.name,
        {"metadata": {"resourceVersion": obj.resource_version}, "status": {"files": 1}},
    )


async def unknown(obj, ctx):
    ready = {"type": "Ready", "status": True, "reason": "Done"}
    for number in (1, 2):
        written = await ctx.patch_status([ready], files=number, fylez=number)
        print("sent", sorted(written.obj["status"]), flush=True)


async def moved(obj, ctx):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "moved"}}
    old = {"data": {"old": "1", "a": "0"}}
    await CoreV1Api(ctx.client).patch_namespaced_config_map("moved", obj.namespace, old)
    for _ in range(2):
        written = await ctx.apply({**child, "data": {"a": "1"}})
        print("applied", written.changed, ",".join(sorted(written.obj["data"])), flush=True)
    try:
        await ctx.apply({**child, "data": {"seed": "2"}}, force=False)
    except Exception as conflict:
        print("conflict", *conflict.fields, *conflict.managers, conflict, flush=True)


class Made(msgspec.Struct):
    data: dict[str, str]
    metadata: dict[str, str]
    kind: str = "ConfigMap"
    apiVersion: str = "v1"


@dataclass
class Status:
    files: int
    conditions: list[Condition]


async def single(obj, ctx):
    made = Made({"of": obj.name}, {"name": "single"})
    assert await ctx.get("v1/ConfigMap", "single") is None
    first = (await ctx.apply(made)).obj
    there = await ctx.get("v1/ConfigMap", "single")
    assert (there.uid, there["data"]["of"]) == (first["metadata"]["uid"], obj.name)
    assert (await ctx.get("v1/Namespace", obj.namespace)).name == obj.namespace
    print("deleted", await ctx.delete(there), await ctx.delete("v1/ConfigMap", "single"), flush=True)
    await ctx.apply(made)
    done = Condition(type="Ready", status="True", reason="Made")
    for files in (1, 1):
        written = await ctx.patch_status(Status(files, [done]))
    ready = written.obj["status"]["conditions"][0]
    print("status", written.changed, sorted(written.obj["status"]), ready["observedGeneration"], flush=True)
    print("another", await ctx.delete(there, propagation="Foreground"), flush=True)
    calls = ctx.delete("v1/Pod", "x"), ctx.get("v1/Pot", "x")
    print("refused", *[await refusal(each) for each in calls], flush=True)


async def refusal(call):
    try:
        return await asyncio.create_task(call)
    except Exception as error:
        return f"{type(error).__name__} {error}"


def single_in_a_thread(obj, ctx):
    there = ctx.sync.get("example.dev/v1/WebApp", obj.name)
    print("has", there.uid == obj.uid, flush=True)
    print("gone", ctx.sync.delete(there), ctx.sync.get("v1/ConfigMap", "none"), flush=True)


async def selects(obj, ctx):
    app = {"app": obj["spec"]["files"]["app"]}
    containers = [{"name": "c", "image": "registry.invalid/x"}]
    pod = {"metadata": {"labels": app}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": app}, "template": pod}
    child = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "found"}, "data": app}
    fixed = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fixed"}, "immutable": True}
    door = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "door"}}
    ports = [{"port": 80, "nodePort": 31871}]
    address = {"one": "10.0.0.201", "two": "10.0.0.202"}[app["app"]]
    door["spec"] = {"type": "NodePort", "clusterIP": address, "ports": ports, "selector": app}
    invalid = {**child, "metadata": {"name": "web", "labels": {"a": "no label!"}}}
    value = {"app": b64encode(app["app"].encode()).decode()}
    print("set", app, await refusal(ctx.apply_set([child])), flush=True)
    print("invalid", app, await refusal(ctx.apply(invalid)), flush=True)
    print("found", app, await refusal(ctx.apply(found)), flush=True)
    print("door", app, await refusal(ctx.apply(door)), flush=True)
    print("fixed", app, await refusal(ctx.apply({**fixed, "data": value})), flush=True)


async def shared(obj, ctx):
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}}
    try:
        await ctx.apply_set([child])
        await ctx.apply({**child, "data": {"of": obj.name}})
    except Exception as error:
        print("refused", obj.name, type(error).__name__, error, flush=True)
    else:
        print("done", obj.name, flush=True)
"""


@pytest.fixture
def webapps(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The path of the web apps of a namespace, whose kind goes with the test."""
    (document,) = documents(Path(__file__).parent / "support" / "webapps.yaml")
    yield from served(cluster, document, namespace)


@pytest.fixture
def bundle(tmp_path: Path, namespace: str) -> Any:
    """Makes the folder of a controller with one of the handlers."""

    def make(entry: str = "web", rest: str = EVENTS, name: str = "web") -> Path:
        manifest = MANIFEST.format(namespace=namespace, name=name, entry=entry, rest=rest)
        return BundleDir(tmp_path / "bundle", {"manifest.yaml": manifest, "handlers.py": HANDLERS}).path

    return make


def _create(cluster: Cluster, namespace: str, name: str, **files: str) -> Any:
    body = {"apiVersion": "example.dev/v1", "kind": "WebApp", "metadata": {"name": name}}
    return cluster.rest.create_first({**body, "spec": {"files": files}}, namespace)


def _maps(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found = cluster.rest.list("configmaps", namespace)
    return {
        each["metadata"]["name"]: each for each in found if each["metadata"]["name"] != "kube-root-ca.crt"
    }


def _is_settled(declctl: Declctl, cluster: Cluster, webapps: str, namespace: str, children: int) -> bool:
    """Whether so many children are there, the caches are current, and nothing is queued or runs."""

    def versions(path: str) -> dict[str, str]:
        found = [each["metadata"] for each in cluster.rest.request("GET", path)["items"]]
        return {f"{namespace}/{each['name']}": each["resourceVersion"] for each in found}

    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    # First the caches: what they bring is in the queue when it is looked at.
    if len(_maps(cluster, namespace)) < children or declctl.cache("maps") != versions(maps):
        return False
    if declctl.cache("webapps") != versions(webapps):
        return False
    handlers = declctl.status()["handlers"]
    return all(each["synced"] and not each["queued"] and not each["running"] for each in handlers)


@pytest.mark.scenario
def test_children_are_applied_pruned_and_left_to_others(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any
) -> None:
    """What is not in the set any more goes; a child of another owner with the same label stays."""
    obj = _create(cluster, namespace, "shop", a="1", b="2")
    with Declctl(bundle(), kubeconfig=cluster.kubeconfig) as declctl:
        until("both are there", lambda: set(_maps(cluster, namespace)) == {"shop-a", "shop-b"})
        child = _maps(cluster, namespace)["shop-a"]["metadata"]
        (owner,) = child["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (obj["metadata"]["uid"], True)
        (entry,) = child["managedFields"]
        assert (entry["manager"], entry["operation"]) == ("declctl/guard/web", "Apply")

        # Somebody else's object claims to be of the set.
        stranger = {"name": "stranger", "namespace": namespace, "labels": child["labels"]}
        cluster.rest.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": stranger})
        cluster.rest.request("PATCH", f"{webapps}/shop", {"spec": {"files": {"b": None}}}, media=MERGE)
        until("one is gone", lambda: set(_maps(cluster, namespace)) == {"shop-a", "stranger"})
        assert declctl.stop() == 0
    # A new process finds its children by their label.
    cluster.rest.request("PATCH", f"{webapps}/shop", {"spec": {"files": {"a": None, "c": "3"}}}, media=MERGE)
    with Declctl(bundle(), kubeconfig=cluster.kubeconfig) as declctl:
        until("the old one is gone", lambda: set(_maps(cluster, namespace)) == {"shop-c", "stranger"})
        assert declctl.stop() == 0
    metadata = cluster.rest.request("GET", f"{webapps}/shop")["metadata"]
    assert metadata["annotations"]["applyset.kubernetes.io/contains-group-kinds"] == "ConfigMap"
    assert (
        metadata["labels"]["applyset.kubernetes.io/id"] == child["labels"]["applyset.kubernetes.io/part-of"]
    )


def test_a_child_stays_with_its_owner(cluster: Cluster, webapps: str, namespace: str, bundle: Any) -> None:
    """Neither another object of the handler nor `ctx.apply` takes it away, also after a restart."""

    def child() -> tuple[list[str], bool, Any]:
        found = _maps(cluster, namespace)["shared"]
        owners = [each["name"] for each in found["metadata"]["ownerReferences"]]
        return owners, "applyset.kubernetes.io/part-of" in found["metadata"]["labels"], found.get("data")

    _create(cluster, namespace, "o1")
    with Declctl(bundle("shared"), kubeconfig=cluster.kubeconfig) as declctl:
        until("the child is there", lambda: "done o1" in _lines(declctl, "done"))
        _create(cluster, namespace, "o2")
        until("the other one is refused", lambda: _lines(declctl, "refused o2 AlreadyOwned"))
        assert child() == (["o1"], True, {"of": "o1"})
        assert declctl.stop() == 0
    with Declctl(bundle("shared"), kubeconfig=cluster.kubeconfig) as declctl:
        until("the other one is refused", lambda: _lines(declctl, "refused o2 AlreadyOwned"))
        until("the first one goes on", lambda: "done o1" in _lines(declctl, "done"))
        assert child() == (["o1"], True, {"of": "o1"})
        assert declctl.stop() == 0


def test_a_status_keeps_what_others_wrote_and_is_not_written_again(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any
) -> None:
    """The condition of another controller stays; a call that finds nothing to change sends nothing."""
    _create(cluster, namespace, "shop", a="1")
    others = {
        "type": "Synced",
        "status": "True",
        "reason": "Other",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    cluster.rest.request("PATCH", f"{webapps}/shop/status", {"status": {"conditions": [others]}}, media=MERGE)
    with Declctl(bundle(), kubeconfig=cluster.kubeconfig) as declctl:

        def status() -> Any:
            return cluster.rest.request("GET", f"{webapps}/shop").get("status") or {}

        until("it is written", lambda: status().get("files") == 1)
        by_type = {each["type"]: each for each in status()["conditions"]}
        assert by_type["Synced"] == others
        ready = by_type["Ready"]
        assert (ready["status"], ready["reason"], ready["message"]) == ("True", "Applied", "1 files")
        assert ready["observedGeneration"] == status()["observedGeneration"] == 1
        until("it is at rest", lambda: _lines(declctl, "done")[-1:] == ["done 1 1 0 False"])
        version = cluster.rest.request("GET", f"{webapps}/shop")["metadata"]["resourceVersion"]

        cluster.rest.request("PATCH", f"{webapps}/shop", {"spec": {"files": {"a": "2"}}}, media=MERGE)
        until("the new spec is seen", lambda: status()["observedGeneration"] == 2)
        after = {each["type"]: each for each in status()["conditions"]}["Ready"]
        assert after["lastTransitionTime"] == ready["lastTransitionTime"]
        assert version != cluster.rest.request("GET", f"{webapps}/shop")["metadata"]["resourceVersion"]
        until("it is at rest", lambda: _lines(declctl, "done")[-1:] == ["done 2 1 0 False"])

        totals = {(each["verb"], each["result"]): each["count"] for each in declctl.status()["writes"]}
        assert totals["patch_status", "succeeded"] == 2
        assert totals["patch_status", "skipped"] >= 2
        # The first apply_set has marked the parent: its new version is known.
        assert declctl.status()["writeRetries"]["conflict"] == 0
        assert declctl.stop() == 0


@pytest.mark.scenario
def test_why_says_which_call_wrote_a_field(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any
) -> None:
    """From the managed fields of the object, and the writes that the process remembers."""
    _create(cluster, namespace, "shop", a="1")
    with Declctl(bundle(), kubeconfig=cluster.kubeconfig) as declctl:
        until("it is at rest", lambda: _lines(declctl, "done")[-1:] == ["done 1 1 0 False"])
        told = declctl.command("why", f"configmaps/{namespace}/shop-a", "data", "-o", "json")
        (field,) = json.loads(told.stdout)["fields"]
        assert (field["path"], field["manager"]) == ("data.text", "declctl/guard/web")
        assert (field["handler"], field["write"]["generation"]) == ("web", 1)
        assert field["write"]["calledFor"] == f"{namespace}/shop"
        assert field["write"]["causes"] == [f"Added webapps {namespace}/shop (Initial)"]
        assert declctl.ask(f"/why/configmaps/{namespace}/missing") is None
        if not isinstance(cluster, SandboxCluster):  # which has managers only of objects that were applied
            # The resource by its name in the manifest; the spec is by whoever has created the object.
            status = declctl.ask(f"/why/webapps/{namespace}/shop?field=status.files")
            assert [each["handler"] for each in status["fields"]] == ["web"]
            spec = declctl.ask(f"/why/webapps/{namespace}/shop?field=spec")
            assert {each["handler"] for each in spec["fields"]} == {None}
        assert declctl.stop() == 0


@pytest.mark.scenario
def test_a_dry_run_stores_nothing_and_prints_the_differences(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any
) -> None:
    """The API server checks all writes of a call; the diff names the objects that would be made."""
    before = _create(cluster, namespace, "shop", a="1")
    with Declctl(bundle(), "--dry-run", kubeconfig=cluster.kubeconfig) as declctl:
        until("the call has ended", lambda: _lines(declctl, "done"))
        heads = [line for line in declctl.out if line.startswith("+++")]
        assert f"+++ v1 ConfigMap {namespace}/shop-a (apply by web)" in heads
        assert f"+++ example.dev/v1 WebApp {namespace}/shop (patch_status by web)" in heads
        assert declctl.stop() == 0
    assert _maps(cluster, namespace) == {}
    after = cluster.rest.request("GET", f"{webapps}/shop")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


WATCHES = pytest.param(RECONCILES, marks=pytest.mark.scenario, id="watches")


@pytest.mark.parametrize("rest", [WATCHES, pytest.param(RECONCILES.replace("watches", "#"), id="no watch")])
def test_an_operator_reads_what_it_wrote_and_comes_to_rest(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any, tmp_path: Path, rest: str
) -> None:
    """No call misses the children of the call before it, and what is as declared is written once.

    A first start reads nothing. After a restart, children that are watched cost no request, others one LIST.
    """
    names = [f"shop{number}" for number in range(8)]
    for name in names:
        _create(cluster, namespace, name, a="1", b="2", c="3")
    folder, costs = bundle("Kept", f"{rest}\n      finalizer: example.dev/kept"), list[Counter[str]]()
    with front(cluster.rest) as counting:
        for _ in range(2):
            with Declctl(folder, kubeconfig=counting.kubeconfig(tmp_path)) as declctl:
                until("all were called", lambda: len({*_lines(declctl, "read")}) >= len(names))
                until("it is at rest", lambda: _is_settled(declctl, cluster, webapps, namespace, 24))
                asked, counting.requests = counting.requests, []
                for name in names if rest == RECONCILES else ():
                    reads = [int(line.split()[2]) for line in _lines(declctl, f"read {name} ")]
                    # The first call of all finds none. Each later one finds all.
                    assert (reads[0], set(reads[1:])) in ((0, set()), (0, {3}), (3, set())), (name, reads)
                # A change of an object that is none of its own leads to nothing.
                before = declctl.status()["handlers"][0]["delivered"], declctl.status()["writes"]
                other = {"generateName": "other-", "namespace": namespace}
                cluster.rest.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": other})
                until("the cache has it", lambda: _is_settled(declctl, cluster, webapps, namespace, 24))
                assert (declctl.status()["handlers"][0]["delivered"], declctl.status()["writes"]) == before
                assert declctl.condition("Degraded")["status"] == "False"
                assert declctl.stop() == 0
            costs.append(
                Counter(
                    f"{method} {re.findall('status|configmaps|webapps', path)[-1]}"
                    for method, path in asked
                    # An informer names no object, and no set.
                    if f"{namespace}/" in path and ("labelSelector" in path or "/shop" in path)
                )
            )
        for name in names:
            done = {"metadata": {"finalizers": None}}
            cluster.rest.request("PATCH", f"{webapps}/{name}", done, media=MERGE)
    # The finalizer, and the mark of the owner. A second call writes nothing only if it sees the children.
    first = {"PATCH webapps": 16, "PATCH configmaps": 24, "PATCH status": 8}
    assert costs[0] == (first if rest == RECONCILES else first | {"PATCH configmaps": ANY})
    assert costs[1] == ({} if rest == RECONCILES else {"GET configmaps": 8})


@pytest.mark.parametrize("isolation", ["", "isolation: {mode: Process}"])
def test_one_object_is_read_and_deleted_by_its_name(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any, isolation: str
) -> None:
    """A read is of the server; a delete is of one uid, and what is gone needs none. Also in processes."""
    _create(cluster, namespace, "shop")
    rest = f"applies: [{{apiVersion: v1, kind: ConfigMap}}]\n      events: [Added]\n      {isolation}"
    with Declctl(bundle("single", rest), kubeconfig=cluster.kubeconfig) as declctl:
        until("it is called", lambda: _lines(declctl, "refused"))
        assert _lines(declctl, "deleted") == ["deleted True False"]
        assert _lines(declctl, "another") == ["another False"]
        assert _lines(declctl, "status") == ["status False ['conditions', 'files', 'observedGeneration'] 1"]
        (refused,) = _lines(declctl, "refused")
        assert re.match("refused UndeclaredWrite .* NotFound 404", refused)
        assert _maps(cluster, namespace)["single"]["data"] == {"of": "shop"}
        totals = {(each["verb"], each["result"]): each["count"] for each in declctl.status()["writes"]}
        assert totals == {
            ("apply", "succeeded"): 2,
            ("delete", "conflict"): 1,
            ("delete", "refused"): 1,
            ("delete", "succeeded"): 1,
            ("patch_status", "skipped"): 1,
            ("patch_status", "succeeded"): 1,
        }
        assert declctl.stop() == 0
    rest = f"events: [Added]\n      {isolation}"
    with Declctl(bundle("single_in_a_thread", rest), kubeconfig=cluster.kubeconfig) as declctl:
        until("it is gone", lambda: _lines(declctl, "gone") == ["gone True None"])
        assert _lines(declctl, "has") == ["has True"]
        assert not cluster.rest.request("GET", webapps)["items"]
        assert declctl.stop() == 0


def test_what_can_not_be_changed_is_made_again_if_the_handler_has_made_it(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any
) -> None:
    """Such as a selector and an address. What is invalid, of somebody else, or not declared so stays."""
    metadata = {"name": "found", "namespace": namespace}
    found = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": {"a": "b"},
    }
    before = cluster.rest.create(found)["metadata"]["uid"]
    _create(cluster, namespace, "shop", app="one")
    kinds = ", ".join(
        f"{{apiVersion: {version}, kind: {kind}{field}}}"
        for version, kind, field in (
            ("apps/v1", "Deployment", ", onImmutable: Recreate"),
            ("v1", "ConfigMap", ", onImmutable: Recreate"),
            ("v1", "Service", ", onImmutable: Recreate"),
            ("v1", "Secret", ""),
        )
    )
    rest = f"applies: [{kinds}]\n      {EVENTS}"
    with Declctl(bundle("selects", rest), kubeconfig=cluster.kubeconfig) as declctl:
        until("it is made", lambda: _lines(declctl, "fixed {'app': 'one'}"))
        first = cluster.rest.get("deployments", "web", namespace)
        change = {"spec": {"files": {"app": "two"}}}
        cluster.rest.request("PATCH", f"{webapps}/shop", change, media=MERGE)
        until("it was called again", lambda: _lines(declctl, "fixed {'app': 'two'}"))
        second = cluster.rest.get("deployments", "web", namespace)
        assert second["spec"]["selector"]["matchLabels"] == {"app": "two"}
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        assert "AppliedSet" in _lines(declctl, "set {'app': 'two'}")[0]
        for app in ("one", "two"):
            assert "as it could not be made" in _lines(declctl, f"invalid {{'app': '{app}'}}")[0]
            assert (
                "as declctl/guard/web has not made it alone"
                in _lines(declctl, f"found {{'app': '{app}'}}")[0]
            )
        advice = "write onImmutable: Recreate for {apiVersion: v1, kind: Secret} in the `applies`"
        assert advice in _lines(declctl, "fixed {'app': 'two'}")[0]
        assert cluster.rest.get("configmaps", "found", namespace)["metadata"]["uid"] == before
        # Its port is taken until it is deleted, and its own again.
        door = cluster.rest.request("GET", f"/api/v1/namespaces/{namespace}/services/door")["spec"]
        assert (door["clusterIP"], door["ports"][0]["nodePort"]) == ("10.0.0.202", 31871)
        selector, address = [line for line in declctl.err if "was deleted and made again" in line]
        assert "spec.selector" in selector
        assert "spec.clusterIPs[0]" in address
        assert declctl.stop() == 0


def test_a_loop_of_applies_is_named_and_slowed_down(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any
) -> None:
    """Each call writes the time into a child, whose change leads to the next call."""
    _create(cluster, namespace, "shop")
    with Declctl(bundle("stamps", RECONCILES), kubeconfig=cluster.kubeconfig) as declctl:
        until("it is named", lambda: declctl.condition("Degraded")["reason"] == "WriteLoop")
        writes = f"web {namespace}/shop: its writes to v1 ConfigMap {namespace}/shop lead to its next call"
        assert writes in declctl.condition("Degraded")["message"]
        totals = {each["verb"]: each["count"] for each in declctl.status()["writes"]}
        assert totals["apply"] < 20
        assert declctl.stop() == 0


@pytest.mark.parametrize("entry", ["late", "late_by_client"])
def test_a_call_whose_object_is_gone_ends_and_the_next_change_comes(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any, tmp_path: Path, entry: str
) -> None:
    """An object is deleted and made again during a call, which then writes the status of the first one."""
    first = _create(cluster, namespace, "shop")["metadata"]["uid"]
    with Declctl(bundle(entry, "events: [Added, Deleted]"), kubeconfig=cluster.kubeconfig) as declctl:
        until("the call runs", lambda: f"Added {first}" in declctl.out)
        cluster.rest.request("DELETE", f"{webapps}/shop")
        second = _create(cluster, namespace, "shop")["metadata"]["uid"]
        (tmp_path / "open").touch()
        until("it has a status", lambda: "status" in cluster.rest.request("GET", f"{webapps}/shop"))
        until("it has ended", lambda: declctl.status()["handlers"][0]["succeeded"] == 1)
        told = [f"Added {first}", f"Deleted {first}", f"Added {second}"]
        # By the client, a call may come again until the cache knows that the object is gone.
        assert list(dict.fromkeys(line for line in declctl.out if line in told)) == told
        (figures,) = declctl.status()["handlers"]
        assert (figures["gone"], figures["failed"]) == (2, 0)
        assert entry == "late_by_client" or not figures["retried"]
        assert declctl.stop() == 0


def test_a_field_that_the_server_drops_is_a_line_once(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any
) -> None:
    """`validate --cluster` names it before; then it is logged once, counted, and shown in the status."""
    folder, kubeconfig = bundle("unknown"), str(cluster.kubeconfig)
    found = run("validate", str(folder), "--cluster", "--kubeconfig", kubeconfig)
    assert found.returncode == 0
    assert "DCL054: web writes status.fylez, and a WebApp has no field status.fylez" in found.stderr
    assert found.stderr.count("DCL054:") == 1
    _create(cluster, namespace, "shop")
    with Declctl(folder, kubeconfig=cluster.kubeconfig) as declctl:
        until("it is written", lambda: len(_lines(declctl, "sent")) >= 2)
        assert _lines(declctl, "sent")[0] == "sent ['conditions', 'files', 'observedGeneration']"
        [warned] = declctl.status()["warnings"]
        assert (warned["handler"], warned["kind"]) == ("web", "example.dev/v1 WebApp")
        assert (warned["text"], warned["count"] >= 2) == ('unknown field "status.fylez"', True)
        [line] = [line for line in declctl.err if "status.fylez" in line]
        assert "web: the API server warns of a PATCH of example.dev/v1 WebApp: unknown field" in line
        assert declctl.stop() == 0


@pytest.mark.scenario
def test_an_apply_takes_fields_over(cluster: Cluster, webapps: str, namespace: str, bundle: Any) -> None:
    """Fields of declctl's own clients, and of a manager that the handler names; others stay, or are named."""
    url = f"/api/v1/namespaces/{namespace}/configmaps/moved?fieldManager="
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "moved"}, "data": {"seed": "1"}}
    cluster.rest.request("PATCH", f"{url}seed", child, media="application/apply-patch+yaml")
    cluster.rest.request("PATCH", f"{url}old-operator", {"data": {"older": "1"}}, media=MERGE)
    _create(cluster, namespace, "shop")
    adopts = f"{EVENTS}\n      adoptFieldsFrom: [old-operator]"
    with Declctl(bundle("moved", adopts), kubeconfig=cluster.kubeconfig) as declctl:
        until("it is refused", lambda: _lines(declctl, "conflict"))
        assert _lines(declctl, "applied") == [f"applied {changed} a,seed" for changed in (True, False)]
        assert "conflict .data.seed seed 409 Conflict: other field" in _lines(declctl, "conflict")[0]
        entries = _maps(cluster, namespace)["moved"]["metadata"]["managedFields"]
        held = {each["manager"]: each["operation"] for each in entries}
        assert held == {"declctl/guard/web": "Apply", "seed": "Apply"}
        assert declctl.stop() == 0


@pytest.fixture
def events(cluster: Cluster, namespace: str) -> Callable[[], list[Any]]:
    """Reads the Events of the controller."""

    def read() -> list[Any]:
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        found = cluster.rest.request("GET", path)["items"]
        return [each for each in found if each.get("reportingController") == "guard"]

    return read


@pytest.mark.client_go(282, 289, 294, "events.k8s.io recorder")
def test_an_expired_event_comes_back_with_its_count_and_similar_ones_are_combined(
    cluster: Cluster, webapps: str, namespace: str, bundle: Any, events: Callable[[], list[Any]]
) -> None:
    """The server takes an Event that is a series from the beginning, and that of many notes."""
    _create(cluster, namespace, "shop")

    def note(**annotations: str) -> None:
        body = {"metadata": {"annotations": annotations}}
        cluster.rest.request("PATCH", f"{webapps}/shop", body, media=MERGE)

    with Declctl(bundle("noted"), kubeconfig=cluster.kubeconfig) as declctl:
        until("it is posted", lambda: len(events()) == 1)
        (first,) = events()
        cluster.rest.delete("events", first["metadata"]["name"], namespace)
        note(tick="1")
        until("it is back", lambda: len(events()) == 1)
        (again,) = events()
        assert (again["reason"], again["action"], again["regarding"]["name"]) == ("Noted", "Handle", "shop")
        assert again["reportingInstance"].startswith("guard-")
        assert again["metadata"]["name"] == first["metadata"]["name"]
        assert again["metadata"]["uid"] != first["metadata"]["uid"]
        assert (again["eventTime"], again["series"]["count"]) == (first["eventTime"], 2)

        for number in range(12):
            note(note=f"{number}")
        # The stop takes nothing new: all are handled before it, and posted by it.
        until("they are handled", lambda: declctl.status()["handlers"][0]["succeeded"] == 14)
        until("they are posted", lambda: len(events()) == 10)
        assert declctl.stop() == 0
    counts = {each["note"]: (each.get("series") or {}).get("count") for each in events()}
    alone = {f"{number}": None for number in range(8)}
    assert counts == {"none": 2, **alone, "(combined from similar events): 8": 4}


def _lines(declctl: Declctl, first: str) -> list[str]:
    return [line for line in tuple(declctl.out) if line.startswith(first)]
