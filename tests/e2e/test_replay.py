"""A night on both API servers, recorded and replayed: an edit, a cut line, a server that restarts."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters import Cluster, definition_of, served
from processes import Declctl, run
from rest import MERGE
from test_histories import between
from waiting import until

from declctl.testing import BundleDir

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: night}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: shops, apiVersion: night.dev/v1, kind: Shop}}
    - {{name: maps, apiVersion: v1, kind: ConfigMap}}
    - {{name: secrets, apiVersion: v1, kind: Secret, names: [login]}}
  handlers:
    - name: shop
      mode: Reconcile
      resourceRef: {{name: shops}}
      entryPoint: handlers
      status: true
      finalizer: night.dev/shop
      applies: [{{apiVersion: v1, kind: ConfigMap}}, {{apiVersion: v1, kind: Secret}}]
      retry: {{initialBackoff: 50ms, maxBackoff: 200ms}}
      watches: [{{resourceRef: {{name: maps}}, mapTo: {{owner: Controller}}}}]
    - {{name: note, resourceRef: {{name: maps}}, entryPoint: "handlers:note"}}
  schedules:
    - {{name: tally, every: 1s, entryPoint: "handlers:tally"}}
  reload: {{settle: 50ms, preflight: "Off"}}
"""
HANDLERS = """\
import declctl
import kubernetes
from kubernetes.aio.client import CoreV1Api


@declctl.hookimpl
async def declctl_reconcile(request, ctx):
    shop = request.obj
    if shop is None:
        return None
    if shop["spec"].get("fails", 0) >= request.attempt:
        raise ValueError("not yet")
    named = [{**map_of(f"{shop.name}-{n}"), "data": {"n": str(n)}} for n in range(shop["spec"]["maps"])]
    await ctx.apply_set(named)
    password = ctx.listers["secrets"].get(f"{request.namespace}/login")["data"]["password"]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{shop.name}-login"}}
    await ctx.apply({**secret, "data": {"password": password}, "stringData": {"by": "mark-by-apply"}})
    assert await ctx.get("v1/ConfigMap", "nobody") is None
    read = await CoreV1Api(ctx.client).read_namespaced_secret("login", request.namespace)
    await ctx.patch_status(ready=len(named), secret=len(read.data))
    ctx.record_event(shop, "Served", f"with {password}")
    if shop.name == "a":
        return declctl.Requeue(after=1.5)


@declctl.hookimpl
async def declctl_finalize(request, ctx):
    await ctx.delete("v1/Secret", f"{request.name}-login")


def note(change, ctx):
    ctx.memo["times"] = ctx.memo.get("times", 0) + 1
    if change.type == "Modified" and "refused" in change.obj.labels:
        raise declctl.Terminal("refused")


def tally(schedule, ctx):
    maps = kubernetes.client.CoreV1Api(ctx.sync_client).list_namespaced_config_map("NAMESPACE")
    data = {"maps": str(len(maps.items)), "shops": str(len(ctx.listers["shops"].list())), "by": "one"}
    ctx.sync.apply({**map_of("tally"), "metadata": {"name": "tally", "namespace": "NAMESPACE"}, "data": data})


def map_of(name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
"""


@pytest.fixture(name="shops")
def _shops(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The path of the Shops of a namespace."""
    yield from served(cluster, definition_of("night.dev", "shops", "Shop"), namespace)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _replayed(recording: Path, *words: str) -> tuple[int, dict[str, Any]]:
    ended = run("replay", str(recording), *words, "-o", "json")
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


@pytest.mark.scenario
def test_a_night_is_the_same_again(cluster: Cluster, namespace: str, shops: str, tmp_path: Path) -> None:
    """The code of then makes all calls and writes again; today's differs where it was changed alone."""
    bundle = BundleDir(
        tmp_path / "bundle",
        {
            "manifest.yaml": MANIFEST.format(namespace=namespace),
            "handlers.py": HANDLERS.replace("NAMESPACE", namespace),
        },
    )
    rest, recording = cluster.rest, tmp_path / "night.rec"

    def create(name: str, **spec: Any) -> None:
        shop = {"apiVersion": "night.dev/v1", "kind": "Shop", "metadata": {"name": name}, "spec": spec}
        rest.request("POST", shops, shop)

    def edit(name: str, **spec: Any) -> None:
        rest.request("PATCH", f"{shops}/{name}", {"spec": spec}, media=MERGE)

    def ready(name: str) -> Any:
        return rest.request("GET", f"{shops}/{name}").get("status", {}).get("ready")

    def is_tallied_by(edition: str) -> bool:
        found = rest.list("configmaps", namespace)
        return any(each.get("data", {}).get("by") == edition for each in found)

    login = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}}
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    rest.request("POST", secrets, login | {"data": {"password": _encoded("mark-by-watch")}})
    create("a", maps=2)
    create("b", maps=1)
    with between(cluster) as (line, through):
        kubeconfig = tmp_path / "through"
        kubeconfig.write_text(yaml.safe_dump(through))
        with Declctl(bundle.path, "--record", str(recording), kubeconfig=kubeconfig) as declctl:
            until("they are served", lambda: [ready(name) for name in "ab"] == [2, 1])
            create("c", maps=1, fails=2)
            edit("a", maps=1)
            until("one is pruned", lambda: not rest.is_there("configmaps", "a-1", namespace))
            rest.patch("configmaps", "a-0", {"metadata": {"labels": {"refused": "x"}}}, namespace)
            until("the third is served", lambda: ready("c") == 1)
            until("the schedule is called", lambda: is_tallied_by("one"))
            bundle.edit("handlers.py", '"by": "one"', '"by": "two"')
            until("the new code is in use", lambda: is_tallied_by("two"))
            line.cut()
            rest.request("DELETE", f"{shops}/b")
            edit("c", maps=3)
            line.mend()
            until("the line is there", lambda: ready("c") == 3)
            rest.request(
                "PATCH", f"{secrets}/login", {"data": {"more": _encoded("mark-by-watch-too")}}, media=MERGE
            )
            until("it is finalized", lambda: not rest.is_there("secrets", "b-login", namespace))
            cluster.forget()  # all lists come again
            edit("a", maps=2)
            until("it goes on", lambda: ready("a") == 2)
            for name in "ac":
                rest.request("DELETE", f"{shops}/{name}")
            until("they are gone", lambda: not rest.request("GET", shops)["items"])
            assert declctl.stop() == 0
    assert b"mark-by" not in recording.read_bytes()
    code, found = _replayed(recording)
    assert found["differences"] == []
    assert (code, found["notes"], found["reloads"]) == (0, [], 1)
    assert found["calls"] == found["same"] > 20
    assert found["writes"] == found["writesAlike"] > 20
    # Today's code is that of the end of the night, but for two handlers.
    bundle.edit("handlers.py", 'raise declctl.Terminal("refused")', "pass")
    bundle.edit("handlers.py", '{"n": str(n)}', '{"n": str(n) if shop.name != "c" else "x"}')
    code, found = _replayed(recording, str(bundle.path))
    assert (code, found["notes"]) == (1, [])
    details: dict[tuple[str, str], set[str]] = {}
    for each in found["differences"]:
        details.setdefault((each["handler"], each["key"]), set()).update(each["details"])
    path = f"PATCH /api/v1/namespaces/{namespace}/configmaps/"
    written = {f"{path}c-{n}: data.n was {n} and is x" for n in range(3)}
    noted = {"outcome: retried (Terminal: refused) then, succeeded now"}
    retried = "not made now: then, the call before failed, to be retried in "
    again = {f"{path}c-{n}: only now" for n in range(3)}  # it was there already then
    assert written <= details.pop(("shop", f"{namespace}/c")) <= written | again
    found_notes = details.pop(("note", f"{namespace}/a-0"))
    assert noted == {each for each in found_notes if not each.startswith(retried)}
    assert {handler for handler, _ in details} == {"tally"}
    assert set.union(*details.values()) == {f"{path}tally: data.by was one and is two"}
