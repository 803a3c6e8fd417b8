"""Whatever way a value of a Secret takes, it does not reach a recording, which can be replayed."""

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from declctl.recording.entries import CallRequest, Entry
from declctl.replay.replay import ReplayOptions, replay
from declctl.replay.tape import read_tape
from declctl.testing import BundleDir, Logged, running
from declctl.testing.controller import CHILDREN

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: keeper}
spec:
  reload: {preflight: "Off"}
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
    - {name: secrets, apiVersion: v1, kind: Secret, names: [login, other]}
    - {name: heads, apiVersion: v1, kind: Secret, names: [login], cache: {mode: MetadataOnly}}
  handlers:
    - name: keep
      mode: Reconcile
      resourceRef: {name: pods}
      entryPoint: "handlers:keep"
      retry: {maxAttempts: 1}
    - {name: fail, resourceRef: {name: secrets}, entryPoint: "handlers:fail", retry: {maxAttempts: 1}}
"""
HANDLERS = """
import asyncio
import base64
import json

import kubernetes
from kubernetes.aio.client import CoreV1Api

import declctl

MARK = "mark" + "write"  # the code is in the recording
VALUES = [shape.format(MARK, MARK) for shape in SHAPES_OF_THE_TEST]
JSON_PATCH, APPLY_YAML = "application/json-patch+json", "application/apply-patch+yaml"


def encoded(text):
    return base64.b64encode(text.encode()).decode()


async def send(client, expected, method, path, body=None, media="application/json"):
    headers = {"Content-Type": media, "Accept": "application/json"}
    how = {"header_params": headers, "body": body, "auth_settings": ["BearerToken"]}
    answer = await client.call_api(*await client.param_serialize(method, path, **how))
    await answer.read()
    if answer.status != expected:
        raise RuntimeError(f"{method} {path} {media}: {answer.status} {answer.data}")


async def keep(request, ctx):
    if request.obj is None:
        return
    login = ctx.listers["secrets"].get("default/login")
    seen = [base64.b64decode(value).decode() for value in login["data"].values()]
    secrets, core, client = "/api/v1/namespaces/default/secrets", CoreV1Api(ctx.client), ctx.client
    head = {"apiVersion": "v1", "kind": "Secret"}
    last = "kubectl.kubernetes.io/last-applied-configuration"
    for number, value in enumerate(VALUES):
        name = f"written-{number}"
        data = {"data": {"p": encoded(value)}, "stringData": {"q": value}}
        annotated = {"name": name, "annotations": {last: json.dumps(data)}}
        await ctx.apply({**head, "metadata": {"name": name}, **data})
        await ctx.get("v1/Secret", name)
        made = {**head, "metadata": {**annotated, "name": f"made-{number}"}, **data}
        await send(client, 201, "POST", secrets, made)
        await send(client, 200, "PUT", f"{secrets}/made-{number}", made)
        for media in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
            await send(client, 200, "PATCH", f"{secrets}/{name}", {"metadata": annotated, **data}, media)
        patch = [
            {"op": "add", "path": "/data/more", "value": encoded(value)},
            {"op": "test", "path": "/data/more", "value": encoded(value)},
            {"op": "replace", "path": "/data", "value": {"p": encoded(value)}},
            {"op": "add", "path": f"/metadata/annotations/{last.replace('/', '~1')}", "value": value},
        ]
        await send(client, 200, "PATCH", f"{secrets}/{name}", patch, JSON_PATCH)
        yaml = f"{{apiVersion: v1, kind: Secret, metadata: {{name: {name}}}, data: {{y: {encoded(value)}}}}}"
        await send(client, 400, "PATCH", f"{secrets}/{name}?fieldManager=me", yaml, APPLY_YAML)  # not as such
        await send(client, 422, "POST", secrets, {**made, "metadata": {"name": f"Not_{number}"}})
        await send(client, 400, "PATCH", f"{secrets}/{name}", [1, patch[0]], JSON_PATCH)
    await send(client, 200, "GET", secrets)
    await asyncio.to_thread(kubernetes.client.CoreV1Api(ctx.sync_client).list_namespaced_secret, "default")
    # Quoted elsewhere: as it is, in a file in JSON, in a label, in a path and in a query.
    for number, value in enumerate(seen):
        quoted = {"as": value, "json": json.dumps({"password": value}), "coded": encoded(value)}
        found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c-{number}"}}
        await ctx.apply({**found, "data": quoted})
    plain = seen[0]
    found = await core.list_namespaced_config_map("default", label_selector=f"of={plain}")
    assert not found.items
    await ctx.delete("v1/ConfigMap", plain)
    raise ValueError(f"refused {seen} {VALUES}")


def fail(change, ctx):
    data = change.obj["data"]
    raise ValueError(dict(data), [base64.b64decode(each) for each in data.values()])
"""
SHAPES = ["{}-plain-word", 'quo"ted\\{}', "first {}\nsecond {}\n", "ünï{}"]


def _shaped(mark: str) -> list[str]:
    return [shape.format(mark, mark) for shape in SHAPES]


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _secret(name: str, mark: str) -> dict[str, Any]:
    data = {f"k{number}": _encoded(value) for number, value in enumerate(_shaped(mark))}
    last = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"data": data})}
    metadata = {"name": name, "namespace": "default", "annotations": last}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


def _traces(mark: str) -> list[str]:
    """Parts of the values in the forms that a recording must not have."""
    return [mark, *(_encoded(value)[8:20] for value in _shaped(mark))]


def _decoded(entry: Entry) -> Any:
    """An entry with all that is in its frames and bodies."""
    return {
        name: value.decode("latin-1") if isinstance(value, bytes) else value
        for name, value in msgspec.structs.asdict(entry).items()
    }


def test_no_value_of_a_secret_reaches_a_recording(tmp_path: Path) -> None:
    bundle = BundleDir(tmp_path / "bundle", {"manifest.yaml": MANIFEST, "handlers.py": ""})
    bundle.write("handlers.py", HANDLERS.replace("SHAPES_OF_THE_TEST", repr(SHAPES)))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}}
    pod |= {"spec": {"containers": [{"name": "a", "image": "b"}]}}
    recording = tmp_path / "night.rec"
    objects = [_secret("login", "marklisted"), pod]
    with running(bundle.path, objects=objects, record=recording) as controller:
        controller.wait_idle()
        assert "ValueError: refused" in str(controller.handler("keep").last_error)
        controller.sandbox.create(_secret("other", "markwatched"))
        controller.sandbox.patch("Secret", "login", {"data": {"n": _encoded("markwatched")}})
        controller.wait_idle()
        controller.sandbox.delete("Secret", "other", "default")
        controller.wait_idle()
    tape = read_tape(recording)
    traces = [trace for mark in ("listed", "watched", "write") for trace in _traces(f"mark{mark}")]
    leaks = [
        (
            type(entry).__name__,
            getattr(entry, "method", ""),
            getattr(entry, "path", ""),
            text[max(0, at - 80) : at + 80],
        )
        for entry in tape.entries
        for text in [msgspec.json.encode(_decoded(entry)).decode()]
        for at in [text.find(trace) for trace in traces]
        if at >= 0
    ]
    assert leaks == []
    requests = Counter((each.method, each.status) for each in tape.entries if isinstance(each, CallRequest))
    assert requests["POST", 201] == requests["PUT", 200] == len(SHAPES)
    log = Logged()
    found = replay(tape, ReplayOptions(), log=log, user_log=log.user_logger(), children=CHILDREN)
    assert (found.differences, found.notes) == ([], [])
    assert found.same >= 3
    assert found.writes_alike > 8 * len(SHAPES)
