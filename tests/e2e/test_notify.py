"""declctl-notify, installed with pip, in a process: a change in a cluster becomes a message of a service."""

import sys
from pathlib import Path

import pytest
from clusters import SandboxCluster, make_namespace
from packages import NOTIFY, install
from processes import Declctl
from rest import pod
from waiting import until

sys.path.append(str(NOTIFY / "tests" / "support"))

from notify_receiver import Receiver

SECRET = "s3cr3t-path"
MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: notify}
spec:
  reload: {preflightTimeout: 60s}
  plugins:
    - name: notify
      config:
        targets:
          - name: team
            urlFrom: {file: URL_FILE}
        rules:
          - name: placed
            targets: [team]
            severity: warning
            when: changed('spec.nodeName')
            groupWait: 0s
            groupBy: [name]
          - name: gone
            targets: [team]
            events: [Deleted]
            groupWait: 1h
            groupBy: [namespace]
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
  handlers:
    - name: tell
      resourceRef: {name: pods}
      pluginRef: {name: notify}
"""


@pytest.fixture(scope="module")
def notify(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which declctl-notify is installed."""
    return install(NOTIFY, tmp_path_factory.mktemp("site"))


def _manifest(folder: Path, url: str) -> Path:
    (folder / "url").write_text(url)
    path = folder / "manifest.yaml"
    path.write_text(MANIFEST.replace("URL_FILE", str(folder / "url")))
    return path


def test_changes_become_messages(
    sandbox_cluster: SandboxCluster, notify: dict[str, str], tmp_path: Path
) -> None:
    """A change is sent after a quiet start; SIGTERM sends what waits; the most verbose log has no secret."""
    cluster, receiver = sandbox_cluster, Receiver()
    make_namespace(cluster, "demo")
    for number in range(5):
        cluster.rest.create(pod(f"web-{number}", "demo"))
    manifest = _manifest(tmp_path, f"json://user:{SECRET}@{receiver.address}/{SECRET}")
    arguments = ["--log-level", "debug"]
    with Declctl(manifest, *arguments, kubeconfig=cluster.kubeconfig, env=notify) as declctl:
        declctl.wait_until_synced()
        receiver.status = 500
        cluster.rest.patch("pods", "web-1", {"spec": {"nodeName": "node-1"}}, "demo")
        until("the failure is logged", lambda: [line for line in declctl.err if "HTTP 500" in line])
        receiver.status = 200
        until("it arrives", lambda: receiver.messages)
        for number in (2, 3):
            cluster.rest.delete("pods", f"web-{number}", "demo")
        until("both are handled", lambda: _handled(declctl) >= 8)
        assert declctl.stop() == 0
        log = "\n".join([*declctl.err, *declctl.out])
    assert receiver.texts[0] == "[warning] Modified Pod demo/web-1\nspec.nodeName: unset → node-1"
    assert receiver.messages[1]["title"] == "[info] 2 changes: gone, namespace demo"
    assert len(receiver.messages) == 2
    assert SECRET not in log
    assert receiver.address not in log
    receiver.close()


def _handled(declctl: Declctl) -> int:
    (handler,) = declctl.status()["handlers"]
    return handler["succeeded"]


@pytest.mark.scenario
def test_a_dry_run_needs_no_url(
    sandbox_cluster: SandboxCluster, notify: dict[str, str], tmp_path: Path
) -> None:
    """`declctl run --dry-run` prints the messages."""
    cluster = sandbox_cluster
    make_namespace(cluster, "demo")
    cluster.rest.create(pod("web-1", "demo"))
    manifest = _manifest(tmp_path, "")
    with Declctl(manifest, "--dry-run", kubeconfig=cluster.kubeconfig, env=notify) as declctl:
        declctl.wait_until_synced()
        cluster.rest.patch("pods", "web-1", {"spec": {"nodeName": "node-1"}}, "demo")
        until("it is printed", lambda: "    spec.nodeName: unset → node-1" in declctl.out)
        assert "to team: [warning] Modified Pod demo/web-1" in declctl.out
        assert declctl.stop() == 0
