"""declctl-webhook, installed with pip: what is killed and what is down loses no event."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import packages
import pytest
from clusters import Cluster
from processes import Declctl
from waiting import until

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata:
  name: webhook
spec:
  namespaces: [{namespace}]
  plugins:
    - name: webhook
      config:
        url: {url}
        mode: Batched
        spool: {{path: {spool}}}
        retry: {{initialBackoff: 50ms, maxBackoff: 500ms}}
  resources:
    - {{name: configmaps, apiVersion: v1, kind: ConfigMap, labelSelector: test=webhook}}
  handlers:
    - name: send
      resourceRef: {{name: configmaps}}
      pluginRef: {{name: webhook}}
      events: [Added, Modified, Deleted]
  reload: {{preflightTimeout: 60s}}
"""


class Receiver(ThreadingHTTPServer):
    """Takes batches of events, or answers 503."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 503
        self.asked = 0
        self.events: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def distinct(self) -> list[tuple[str, str]]:
        """Type and name of the events, without repeated ids, as a receiver keeps them."""
        events = {event["id"]: event for event in list(self.events)}
        return [(event["type"].rsplit(".", 1)[1], event["name"]) for event in events.values()]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if server.status < 300:
            server.events += json.loads(body)
        server.asked += 1
        self.send_response(server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that is down at first."""
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the plugin is installed."""
    return packages.install(packages.WEBHOOK, tmp_path_factory.mktemp("site"))


def _config_map(name: str, namespace: str, value: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"test": "webhook"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": str(value)}}


def test_kill_9_while_the_receiver_is_down_loses_no_event(
    cluster: Cluster, namespace: str, receiver: Receiver, webhook: dict[str, str], tmp_path: Path
) -> None:
    """Events wait on the disk; the next process sends them, those of objects that are gone by then, too."""
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(MANIFEST.format(namespace=namespace, url=receiver.url, spool=tmp_path / "spool"))
    with Declctl(manifest, kubeconfig=cluster.kubeconfig, env=webhook) as first:
        first.wait_until_synced()
        for name in ("a", "b"):
            cluster.rest.create(_config_map(name, namespace, 1))
        cluster.rest.patch("configmaps", "a", {"data": {"value": "2"}}, namespace)
        cluster.rest.delete("configmaps", "b", namespace)
        until("all is in the spool", lambda: sum(h["succeeded"] for h in first.status()["handlers"]) == 4)
        until("it was tried", lambda: receiver.asked > 1)
        first.kill()
    assert receiver.events == []
    with Declctl(manifest, kubeconfig=cluster.kubeconfig, env=webhook) as second:
        second.wait_until_synced()
        receiver.status = 204
        until("all is sent", lambda: len(receiver.distinct()) == 5)
        assert second.stop() == 0
    seen = receiver.distinct()
    assert [each for each in seen if each[1] == "b"] == [("added", "b"), ("deleted", "b")]
    # The second process finds `a` in a state that was a Modified before.
    assert [each for each in seen if each[1] == "a"] == [("added", "a"), ("modified", "a"), ("added", "a")]
    ids = [event["id"] for event in receiver.events]
    assert len(ids) == len(set(ids))


@pytest.mark.scenario
def test_the_end_of_the_process_sends_what_waits(
    cluster: Cluster, namespace: str, receiver: Receiver, webhook: dict[str, str], tmp_path: Path
) -> None:
    """SIGTERM: a batch that is not full is sent before the process ends."""
    receiver.status = 204
    text = MANIFEST.replace("mode: Batched", "mode: Batched\n        batch: {{maxAge: 1h}}")
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(text.format(namespace=namespace, url=receiver.url, spool=tmp_path / "spool"))
    with Declctl(manifest, kubeconfig=cluster.kubeconfig, env=webhook) as declctl:
        declctl.wait_until_synced()
        cluster.rest.create(_config_map("a", namespace, 1))
        until("it is in the spool", lambda: sum(h["succeeded"] for h in declctl.status()["handlers"]) == 1)
        assert receiver.events == []
        assert declctl.stop() == 0
    assert receiver.distinct() == [("added", "a")]
    assert not list((tmp_path / "spool").glob("segment-*"))
