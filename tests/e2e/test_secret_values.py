"""The values of Secrets are shown nowhere: handlers quote what they have read and written, in all they can.

In the log, by the admin address, in the stream of calls, in last errors, in Events and in a status.
"""

import base64
import json
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from clusters import Cluster
from processes import Declctl
from rest import pod
from test_tap import Tap
from waiting import until

from declctl.testing import BundleDir

MARKER = "mark-7f3e9a-er"
QUOTED = 'quo"ted\\mark-4b1-er'  # whose repr and JSON differ from it
LINES = "-----BEGIN KEY-----\nmark-line-one-er\nmark-line-two-er\n-----END KEY-----\n"
NUMBER = 7304518629
TRACES = ("mark-7f3e9a", "mark-4b1", "mark-line", "mark-by", str(NUMBER), "bWFyay03ZjNlOWE", "bWFyay1ieS")
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: keeper}
spec:
  namespaces: [NAMESPACE]
  reload: {watch: "Off", preflight: "Off"}
  resources:
    - name: secrets
      apiVersion: v1
      kind: Secret
      names: [key, other]
      indexers:
        - {name: byPassword, fieldPath: data.password}
        - {name: byFunction, entryPoint: "handlers:by_password"}
      cache: {mode: MODE}
    - {name: settings, apiVersion: v1, kind: ConfigMap, names: [settings]}
    - {name: pods, apiVersion: v1, kind: Pod}
  handlers:
    - name: fails
      resourceRef: {name: secrets}
      entryPoint: handlers:fails
      retry: {maxAttempts: 2, initialBackoff: 1ms, maxBackoff: 1ms}
      onFailure: DeadLetter
      replay: OnCodeChange
    - name: logs
      resourceRef: {name: secrets}
      entryPoint: handlers:logs
    - name: reads
      resourceRef: {name: settings}
      entryPoint: handlers:reads
      retry: {maxAttempts: 1}
    - name: keyed
      mode: Reconcile
      resourceRef: {name: secrets}
      entryPoint: handlers:keyed
      retry: {maxAttempts: 1}
    - name: filtered
      resourceRef: {name: secrets}
      entryPoint: handlers:logs
      filter: {entryPoint: "handlers:choose"}
    - name: writes
      resourceRef: {name: pods}
      entryPoint: handlers:writes
      events: [Added]
      status: true
      retry: {maxAttempts: 1}
"""
HANDLERS = f"""\
import asyncio
import base64
import logging

import kubernetes
from kubernetes.aio.client import CoreV1Api


def password(obj):
    return base64.b64decode(obj["data"]["password"]).decode()


def by_password(obj):
    if obj["metadata"]["name"] == "other":
        raise ValueError(f"not indexed: {{obj['data']['password']}} {{password(obj)}}")
    return [obj["data"]["password"]]


def choose(obj):
    raise LookupError(f"not chosen: {{password(obj)}}")


def fails(change, ctx):
    value = password(change.obj)
    try:
        {{}}[value]
    except KeyError as error:
        raise RuntimeError(f"refused {{value!r}}: {{change.obj.to_dict()}} {{dict(change.obj)}}") from error


def logs(change, ctx):
    values = {{name: base64.b64decode(text) for name, text in change.obj["data"].items()}}
    ctx.log.info(f"the password is {{password(change.obj)}}", values=values, all=dict(change.obj["data"]))
    logging.getLogger("mine").warning("from the library: %s", password(change.obj))
    logging.getLogger("mine").warning("whole: %r %s", change.obj, change)
    try:
        raise OSError(password(change.obj))
    except OSError:
        ctx.log.exception("with a traceback")


def reads(change, ctx):
    found = ctx.listers["secrets"].get(f"{{change.obj.namespace}}/key")
    raise ValueError("read of another object: " + base64.b64decode(found["data"]["pem"]).decode())


def keyed(request, ctx):
    raise ValueError([base64.b64decode(value) for value in request.obj["data"].values()])


async def writes(obj, ctx):
    written = {{"number": {NUMBER}, "deep": {{"er": "mark-by-apply"}}, "token": "mark-by-apply-too"}}
    body = {{"metadata": {{"name": "Not_A_Name"}}, "stringData": {{"token": "mark-by-client"}}}}
    child = {{"apiVersion": "v1", "kind": "Secret", "metadata": {{"name": "child"}}, "stringData": written}}
    api, sync_api = CoreV1Api(ctx.client), kubernetes.client.CoreV1Api(ctx.sync_client)
    calls = (
        ctx.apply(child),
        asyncio.to_thread(sync_api.create_namespaced_secret, obj.namespace, body),
        api.read_namespaced_secret("read", obj.namespace),
        asyncio.to_thread(sync_api.read_namespaced_secret, "read-too", obj.namespace),
    )
    applied, created, one, other = await asyncio.gather(*calls, return_exceptions=True)
    found = [base64.b64decode(each.data["password"]) for each in (one, other)]
    text = f"it is {{found}} {{written}} {{body}} {{applied!r}} {{created!r}}"
    ctx.record_event(obj, "Quoted", text)
    condition = {{"type": "example.dev/Quoted", "status": True, "reason": "Quoted", "message": text}}
    await ctx.patch_status([condition], message=text)
    raise ValueError(text) from created
"""


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(name: str, password: str) -> dict:
    data = {"password": encoded(password), "quoted": encoded(QUOTED), "pem": encoded(LINES)}
    applied = json.dumps({"data": data, "stringData": {"password": password}})
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": applied}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


SETTINGS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings"},
    "data": {"colour": "shown-as-it-is"},
}


def _text(declctl: Declctl, path: str) -> str:
    try:
        with urllib.request.urlopen(f"{declctl.admin()}{path}", timeout=20) as answer:
            return answer.read().decode()
    except HTTPError as error:
        return error.read().decode()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["Frames", "Objects"])
def test_no_text_has_a_value_of_a_secret(mode: str, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Handlers that quote what they have read or written do not publish it; reads of the cache hide it."""
    core = f"/api/v1/namespaces/{namespace}"
    passwords = {"key": MARKER, "other": MARKER, "read": "mark-by-read", "read-too": "mark-by-thread"}
    for name, password in passwords.items():
        cluster.rest.request("POST", f"{core}/secrets", secret(name, password))
    cluster.rest.request("POST", f"{core}/configmaps", SETTINGS)
    manifest = MANIFEST.replace("MODE", mode).replace("NAMESPACE", namespace)
    bundle = BundleDir(tmp_path / "bundle", {"manifest.yaml": manifest, "handlers.py": HANDLERS})
    with Declctl(bundle.path, "--log-level", "debug", kubeconfig=cluster.kubeconfig) as declctl:
        with Tap(declctl) as tap:
            cluster.rest.create(pod("web", namespace))
            failing = {"fails", "reads", "keyed", "writes"}
            until("the handlers have failed", lambda: _failed(declctl) >= failing)
            until("the log", lambda: "with a traceback" in "\n".join(declctl.err))
            bundle.edit("handlers.py", "import asyncio", "import asyncio  # edited")
            shown = {"refused": json.dumps(declctl.reload())}
            assert "not chosen: (hidden)" in shown["refused"]  # a filter that fails refuses a reload
            bundle.edit("handlers.py", "raise LookupError", "return bool")
            shown["reload"] = json.dumps(declctl.reload())
            assert '"Applied"' in shown["reload"]
            until("the replay", lambda: sum(h["replayed"] for h in declctl.status()["handlers"]) >= 2)
            until("the Event", lambda: _notes(cluster, namespace))
            until("the call is told", lambda: any("it is " in each["error"] for each in tap.kinds("call")))
        key = f"{namespace}/key"
        paths = ["/", "/status", "/metrics", "/history", "/plan", "/deadletters", "/readyz"]
        paths += ["/cache/secrets", f"/cache/secrets/{key}", f"/cache/settings/{namespace}/settings"]
        paths += ["/index/secrets/byPassword/", "/index/secrets/byFunction/", "/index/secrets/byNothing/"]
        paths += [f"/why/secrets/{key}", f"/why/pods/{namespace}/web"]
        shown |= {path: _text(declctl, path) for path in paths}
        assert key in _text(declctl, f"/index/secrets/byPassword/{encoded(MARKER)}")
        assert declctl.stop() == 0
    status = cluster.rest.request("GET", f"{core}/pods/web")["status"]
    shown |= {"log": "\n".join(declctl.err), "tap": json.dumps(tap.lines), "status": json.dumps(status)}
    shown["event"] = "\n".join(_notes(cluster, namespace))
    leaks = {
        where: [text[max(0, at - 200) : at + 50] for at in [text.find(trace)] if at >= 0]
        for where, text in shown.items()
        for trace in TRACES
        if trace in text
    }
    assert not leaks, leaks
    # It was there to be hidden, and all that is harmless is shown.
    assert "refused '(hidden)'" in shown["/status"] + shown["log"]
    for where in ("/status", "log", "tap", "status", "event"):
        assert "it is [b'(hidden)', b'(hidden)'] {'number': (hidden), " in shown[where]
    assert "read of another object: " in shown["log"]
    assert "the password is (hidden)" in shown["log"]
    assert json.loads(shown[f"/cache/secrets/{key}"])["data"] == dict.fromkeys(
        ("password", "quoted", "pem"), "(hidden)"
    )
    assert "shown-as-it-is" in shown[f"/cache/settings/{namespace}/settings"]
    assert "are not listed" in shown["/index/secrets/byPassword/"]


def _failed(declctl: Declctl) -> set[str]:
    return {each["name"] for each in declctl.status()["handlers"] if each["failed"]}


def _notes(cluster: Cluster, namespace: str) -> list[str]:
    found = cluster.rest.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return [each["note"] for each in found if each["reason"] == "Quoted"]
