"""A controller that runs over an API server in memory, with the plugin and a real receiver."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from declctl import ManifestErrors
from declctl.testing import running, until
from prometheus_client import CollectorRegistry
from receiver import Receiver

import declctl_webhook
from declctl_webhook.metrics import REQUEST_SECONDS

pytestmark = pytest.mark.thorough

SRC = Path(__file__).parent.parent / "src"
README = Path(__file__).parent.parent / "README.md"

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata:
  name: webhook-test
spec:
  plugins:
    - name: webhook
      config:
        url: {url}
        spool: {{path: {spool}}}
        retry: {{initialBackoff: 20ms, maxBackoff: 100ms}}
        timeout: 1s
        flushTimeout: 1s
        {more}
  resources:
    - {{name: configmaps, apiVersion: v1, kind: ConfigMap}}
    - {{name: secrets, apiVersion: v1, kind: Secret}}
  handlers:
    - {{name: configmaps, resourceRef: {{name: configmaps}}, pluginRef: {{name: webhook}}}}
    - {{name: secrets, resourceRef: {{name: secrets}}, pluginRef: {{name: webhook}}}}
  reload: {{preflightTimeout: 60s}}
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin is installed, for this process and for the one that checks manifests."""
    info = tmp_path / "site" / "declctl_webhook-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declctl-webhook\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[declctl]\nwebhook = declctl_webhook\n")
    site = str(info.parent)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, str(SRC), os.environ.get("PYTHONPATH", "")]))
    importlib.invalidate_caches()


def write_manifest(folder: Path, url: str, more: str = "") -> Path:
    """A controller in a folder, whose changes go to a URL."""
    path = folder / "controller" / "manifest.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(MANIFEST.format(url=url, spool=folder / "spool", more=more), "utf-8")
    return path


def _config_map(name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _seen(receiver: Receiver) -> list[tuple[str, str]]:
    return [(event["type"].rsplit(".", 1)[1], event["subject"]) for event in receiver.accepted]


def test_changes_of_a_cluster_arrive(tmp_path: Path, receiver: Receiver) -> None:
    """A manifest, and nothing else: what is there, what changes, what goes, and no value of a Secret."""
    secret = {**_config_map("db", password="aHVudGVyMg=="), "kind": "Secret"}
    manifest = write_manifest(tmp_path, receiver.url)
    with running(manifest, objects=[_config_map("a", x="1"), secret]) as controller:
        controller.wait_idle()
        controller.sandbox.patch("ConfigMap", "a", {"data": {"x": "2"}}, namespace="default")
        controller.wait_idle()
        controller.sandbox.delete("ConfigMap", "a", namespace="default")
        controller.wait_idle()
        until("all is sent", lambda: len(receiver.accepted) == 4)
    of_map = [event for event in receiver.accepted if event["kind"] == "ConfigMap"]
    assert [event["type"] for event in of_map] == [
        "dev.declctl.object.added",
        "dev.declctl.object.modified",
        "dev.declctl.object.deleted",
    ]
    assert [event["data"]["object"]["data"] for event in of_map] == [{"x": "1"}, {"x": "2"}, {"x": "2"}]
    assert of_map[0]["initial"] is True
    (of_secret,) = (event for event in receiver.accepted if event["kind"] == "Secret")
    assert of_secret["data"]["object"]["data"] == {"password": None}


def test_a_live_edit_of_the_url_sends_what_waits(tmp_path: Path, receiver: Receiver) -> None:
    """The receiver of the first config refuses connections; nothing is lost, nothing comes twice."""
    manifest = write_manifest(tmp_path, "http://127.0.0.1:9/")
    with running(manifest, objects=[_config_map("a"), _config_map("b")]) as controller:
        controller.wait_idle()
        write_manifest(tmp_path, receiver.url, more="mode: Batched")
        outcome = controller.reload()
        assert outcome.result == "Applied"
        controller.sandbox.create(_config_map("c"))
        controller.wait_idle()
        until("all is sent", lambda: len(receiver.accepted) == 3)
        assert controller.handler("configmaps").failed == 0
    assert sorted(_seen(receiver)) == [("added", f"v1/ConfigMap/default/{name}") for name in "abc"]
    assert len({event["id"] for event in receiver.accepted}) == 3


def test_a_restart_sends_what_the_first_process_could_not(tmp_path: Path, receiver: Receiver) -> None:
    """The deletion is in the spool: the second process could not know of it."""
    manifest = write_manifest(tmp_path, "http://127.0.0.1:9/", more="logEvery: 1s")
    with running(manifest, objects=[_config_map("a")]) as controller:
        controller.wait_idle()
        controller.sandbox.delete("ConfigMap", "a", namespace="default")
        controller.wait_idle()
    assert any("events stay in the spool" in line for line in controller.log.events("warning"))
    write_manifest(tmp_path, receiver.url)
    with running(manifest) as controller:
        controller.wait_ready()
        until("all is sent", lambda: len(receiver.accepted) == 2)
    assert _seen(receiver) == [("added", "v1/ConfigMap/default/a"), ("deleted", "v1/ConfigMap/default/a")]


def test_a_full_spool_loses_nothing(tmp_path: Path, receiver: Receiver) -> None:
    """Declctl keeps what the spool refuses, and calls the handler again."""
    receiver.always = 503
    spool = f"spool: {{path: {tmp_path / 'spool'}, maxBytes: 8192}}"
    text = MANIFEST.replace("spool: {{path: {spool}}}", "").replace(
        "- {{name: configmaps, res", "- {{name: m, res"
    )
    handler = "pluginRef: {{name: webhook}}}}"
    text = text.replace(
        handler, handler.replace("}}}}", "}}, retry: {{initialBackoff: 50ms, maxBackoff: 200ms}}}}")
    )
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(text.format(url=receiver.url, spool="", more=spool), "utf-8")
    with running(manifest, objects=[_config_map(f"m{number}") for number in range(60)]) as controller:
        until("some calls have failed", lambda: controller.handler("m").retried > 10)
        receiver.always = 204
        until("all is sent", lambda: len({subject for _, subject in _seen(receiver)}) == 60, timeout=30)
        controller.wait_idle(30)
        assert controller.handler("m").succeeded == 60


def test_an_edit_that_can_not_work_is_refused(tmp_path: Path, receiver: Receiver) -> None:
    """The old config goes on, and the outcome says what is missing."""
    manifest = write_manifest(tmp_path, receiver.url)
    with running(manifest) as controller:
        controller.wait_ready()
        write_manifest(tmp_path, receiver.url, more="headersFrom: [{name: X-A, file: /not/there}]")
        outcome = controller.reload()
        assert outcome.result == "Refused"
        assert "the file /not/there can't be read" in outcome.message
        controller.sandbox.create(_config_map("a"))
        until("the event is sent", lambda: receiver.accepted)


def test_a_spool_that_can_not_be_used_ends_the_start(tmp_path: Path, receiver: Receiver) -> None:
    """A read-only root file system, or a volume that is missing."""
    manifest = write_manifest(tmp_path, receiver.url)
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(Exception, match=r"the spool .* can't be used"), running(manifest) as controller:
        controller.wait_ready()
    assert declctl_webhook.lifetimes.pipeline is None


@pytest.mark.parametrize("more", ["headers: {Authorization: Bearer x}", "tiemout: 3s", "mode: batched"])
def test_a_wrong_config_is_an_error_of_the_manifest(tmp_path: Path, receiver: Receiver, more: str) -> None:
    """With its place, before anything starts."""
    with (
        pytest.raises(ManifestErrors, match="DCL082"),
        running(write_manifest(tmp_path, receiver.url, more=more)),
    ):
        pass


def test_the_manifest_of_the_readme_runs(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With files of the test's own, and the receiver of the test."""
    text = README.read_text("utf-8")
    match = re.search(r"```yaml\n(apiVersion.*?)```", text, re.DOTALL)
    assert match is not None
    manifest = match[1]
    (tmp_path / "token").write_text("abc")
    (tmp_path / "signing-key").write_text("whsec_" + "A" * 40)
    for old, new in (
        ("https://events.example.com/kubernetes", receiver.url),
        ("/etc/webhook", str(tmp_path)),
        ("/var/spool/declctl-webhook", str(tmp_path / "spool")),
    ):
        assert old in manifest
        manifest = manifest.replace(old, new)
    path = tmp_path / "manifest.yaml"
    path.write_text(manifest, "utf-8")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}},
    }
    with running(path, objects=[deployment]) as controller:
        controller.wait_idle()
        until("it is sent", lambda: receiver.accepted)
    assert receiver.accepted[0]["data"]["object"]["spec"] == {
        "replicas": 2,
        "template": {"spec": {"containers": [{"image": "x"}]}},
    }
    assert receiver.requests[0].headers["authorization"] == "Bearer abc"


def _values(collector: Any) -> dict[str, float]:
    return {sample.name: sample.value for metric in collector.collect() for sample in metric.samples}


def test_metrics_say_what_became_of_events(tmp_path: Path, receiver: Receiver) -> None:
    """A refused event, failed requests, and what waits; an edit of the config loses none of it."""
    receiver.answers = [403]
    manifest = write_manifest(tmp_path, receiver.url, "circuit: {failures: 1}")
    requests = "declctl_webhook_request_duration_seconds_count"
    before = _values(REQUEST_SECONDS)[requests]
    with running(manifest, objects=[_config_map("a", x="1")]) as controller:
        until("it is refused", lambda: receiver.statuses == [403])
        letters = 'declctl_webhook_dead_letters_total{reason="Status403"}'
        until("it is a dead letter", lambda: controller.metrics().get(letters) == 1)
        receiver.always = 503
        controller.sandbox.create(_config_map("b", x="1"))
        until("requests fail", lambda: controller.metrics()["declctl_webhook_failed_requests_total"] >= 1)
        shown = controller.metrics()
        assert shown["declctl_webhook_circuit_open"] == 1
        assert shown["declctl_webhook_waiting_events"] == 1
        assert shown["declctl_webhook_oldest_event_age_seconds"] < 60
        assert shown["declctl_webhook_spool_bytes"] > 100
        receiver.always = 200
        write_manifest(tmp_path, receiver.url, "logEvery: 2m")
        assert controller.reload().result == "Applied"
        until("it is sent", lambda: controller.metrics()["declctl_webhook_sent_total"] == 1)
        after = controller.metrics()
        assert after["declctl_webhook_received_total"] == 2
        assert after[letters] == 1
        assert after["declctl_webhook_circuit_open"] == 0
        assert after['declctl_webhook_dropped_total{reason="SpoolFull"}'] == 0
        assert after[requests] - before >= 3


def test_the_readme_has_every_metric() -> None:
    """With its type and its meaning; who writes an alert needs both."""
    registry = CollectorRegistry()
    declctl_webhook.declctl_metrics(registry)
    kinds = {
        f"{each.name}_total" if each.type == "counter" else each.name: each.type
        for each in registry.collect()
    }
    rows = re.findall(r"^\| `(declctl_webhook_\w+)` \| (\w+) \|", README.read_text("utf-8"), re.MULTILINE)
    assert dict(rows) == kinds
    named = set(re.findall(r"expr: .*?(declctl_webhook_\w+)", README.read_text("utf-8")))
    assert named - {"declctl_webhook_"} <= kinds.keys()
