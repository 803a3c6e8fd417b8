"""The values of Secrets are shown nowhere: not by the admin address, nor in the log, nor in last errors."""

import base64
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from declctl.testing import until

pytestmark = pytest.mark.thorough

MARKER = "mark-7f3e9a-er"
QUOTED = 'quo"ted\\mark-4b1-er'  # whose repr and JSON differ from it
LINES = "-----BEGIN KEY-----\nmark-line-one-er\nmark-line-two-er\n-----END KEY-----\n"
TRACES = ("mark-7f3e9a", "mark-4b1", "mark-line", "bWFyay03ZjNlOWE")
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: keeper}
spec:
  reload: {watch: "Off"}
  resources:
    - name: secrets
      apiVersion: v1
      kind: Secret
      indexers:
        - {name: byPassword, fieldPath: data.password}
        - {name: byFunction, entryPoint: "handlers:by_password"}
      cache: {mode: MODE}
    - {name: settings, apiVersion: v1, kind: ConfigMap}
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
"""
HANDLERS = """\
import base64
import logging


def password(obj):
    return base64.b64decode(obj["data"]["password"]).decode()


def by_password(obj):
    if obj["metadata"]["name"] == "other":
        raise ValueError(f"not indexed: {obj['data']['password']} {password(obj)}")
    return [obj["data"]["password"]]


def choose(obj):
    raise LookupError(f"not chosen: {password(obj)}")


def fails(change, ctx):
    value = password(change.obj)
    try:
        {}[value]
    except KeyError as error:
        raise RuntimeError(f"refused {value!r}: {change.obj.to_dict()} {dict(change.obj)}") from error


def logs(change, ctx):
    values = {name: base64.b64decode(text) for name, text in change.obj["data"].items()}
    ctx.log.info(f"the password is {password(change.obj)}", values=values, all=dict(change.obj["data"]))
    logging.getLogger("mine").warning("from the library: %s", password(change.obj))
    logging.getLogger("mine").warning("whole: %r %s", change.obj, change)
    try:
        raise OSError(password(change.obj))
    except OSError:
        ctx.log.exception("with a traceback")


def reads(change, ctx):
    found = ctx.listers["secrets"].get("default/key")
    raise ValueError("read of another object: " + base64.b64decode(found["data"]["pem"]).decode())


def keyed(request, ctx):
    raise ValueError([base64.b64decode(value) for value in request.obj["data"].values()])
"""


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(name: str) -> dict:
    data = {"password": encoded(MARKER), "quoted": encoded(QUOTED), "pem": encoded(LINES)}
    applied = json.dumps({"data": data, "stringData": {"password": MARKER}})
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": applied}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


SETTINGS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "default"},
    "data": {"colour": "shown-as-it-is"},
}


class Keeper:
    """A process that caches Secrets, and all that it has said."""

    def __init__(self, process: subprocess.Popen[str], said: list[str]) -> None:
        self._process, self.said = process, said

    def ask(self, path: str, method: str = "GET") -> str:
        pattern = re.compile(r"admin address http://(127\.0\.0\.1:\d+)")
        found = until("the address", lambda: pattern.search("".join(self.said)), timeout=30)
        request = urllib.request.Request(f"http://{found[1]}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.read().decode()
        except HTTPError as error:
            return error.read().decode()


@pytest.fixture(name="keeper", params=["Frames", "Objects"])
def _keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Keeper]:
    (tmp_path / "manifest.yaml").write_text(MANIFEST.replace("MODE", request.param))
    (tmp_path / "handlers.py").write_text(HANDLERS)
    objects = [secret("key"), secret("other"), SETTINGS]
    (tmp_path / "objects.json").write_text("\n---\n".join(map(json.dumps, objects)))
    arguments = ["--sandbox", "--objects", str(tmp_path / "objects.json"), "--admin", "127.0.0.1:0"]
    environment = {name: value for name, value in os.environ.items() if "TOKEN" not in name}
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "declctl", "run", str(tmp_path), *arguments, "--log-level", "debug"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        said: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=said.extend, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            yield Keeper(process, said)
        finally:
            process.terminate()
            process.wait(30)
            reader.join(10)


@pytest.mark.timeout(180)
def test_no_text_has_a_value_of_a_secret(keeper: Keeper, tmp_path: Path):
    """Handlers that quote what they have read do not publish it, and reads of the cache hide it."""

    def status() -> dict:
        return json.loads(keeper.ask("/status"))

    until("the handlers have failed", lambda: _failed(status()) >= {"fails", "reads", "keyed"}, timeout=60)
    until("the log", lambda: "with a traceback" in "".join(keeper.said), timeout=30)
    code = (tmp_path / "handlers.py").read_text()
    (tmp_path / "handlers.py").write_text(code + "\n\nEDITED = True\n")
    shown = {"refused": keeper.ask("/-/reload", "POST")}
    assert "not chosen: (hidden)" in shown["refused"]  # a filter that fails refuses a reload
    (tmp_path / "handlers.py").write_text(code.replace("raise LookupError", "return bool"))
    shown["reload"] = keeper.ask("/-/reload", "POST")
    assert '"Applied"' in shown["reload"]
    until("the replay", lambda: sum(each["replayed"] for each in status()["handlers"]) >= 2, timeout=30)
    paths = ["/", "/status", "/metrics", "/history", "/plan", "/deadletters", "/readyz"]
    paths += ["/cache/secrets", "/cache/secrets/default/key", "/cache/settings/default/settings"]
    paths += ["/index/secrets/byPassword/", "/index/secrets/byFunction/", "/index/secrets/byNothing/"]
    paths += ["/why/secrets/default/key"]
    shown |= {path: keeper.ask(path) for path in paths}
    shown["log"] = "".join(keeper.said)
    leaks = {
        where: [text[max(0, at - 200) : at + 50] for at in [text.find(trace)] if at >= 0]
        for where, text in shown.items()
        for trace in TRACES
        if trace in text
    }
    assert not leaks, leaks
    # It was there to be hidden, and all that is harmless is shown.
    assert "refused '(hidden)'" in shown["/status"] + shown["log"]
    assert "read of another object: " in shown["log"]
    assert "the password is (hidden)" in shown["log"]
    assert json.loads(shown["/cache/secrets/default/key"])["data"] == dict.fromkeys(
        ("password", "quoted", "pem"), "(hidden)"
    )
    assert "shown-as-it-is" in shown["/cache/settings/default/settings"]
    assert "are not listed" in shown["/index/secrets/byPassword/"]
    assert "default/key" in keeper.ask(f"/index/secrets/byPassword/{encoded(MARKER)}")


def _failed(document: dict) -> set[str]:
    return {each["name"] for each in document["handlers"] if each["failed"]}
