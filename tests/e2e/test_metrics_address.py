"""A metrics address of its own: Prometheus scrapes it while the admin address needs a token."""

import re
import socket
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from clusters import Cluster
from processes import Declctl
from waiting import until

from declctl.testing import BundleDir

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: scraped}}
spec:
  namespaces: [{namespace}]
  resources: [{{name: settings, apiVersion: v1, kind: ConfigMap}}]
  handlers: [{{name: look, resourceRef: {{name: settings}}, entryPoint: "handlers:look"}}]
  reload: {{settle: 50ms}}
  metrics: {{bindAddress: "{address}"}}
"""
HANDLERS = "def look(change): ...\n"
TOKEN = "t" * 32
_NAMED = re.compile(r"metrics address (http://[\d.]+:\d+): /metrics")


def _bundle(folder: Path, namespace: str, address: str) -> BundleDir:
    text = MANIFEST.format(namespace=namespace, address=address)
    return BundleDir(folder / "bundle", {"manifest.yaml": text, "handlers.py": HANDLERS})


def _status(url: str, *, method: str = "GET", token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method=method, headers=headers), timeout=10
        ) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


def test_the_metrics_are_scraped_beside_a_guarded_admin_address(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """One port shows the figures of the process and nothing else, also to a client with the token."""
    bundle = _bundle(tmp_path, namespace, "127.0.0.1:0")
    env = {"DECLCTL_ADMIN_TOKEN": TOKEN}
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig, env=env) as declctl:
        declctl.wait_until_synced()
        found = _NAMED.search("\n".join(declctl.err))
        assert found is not None
        metrics, admin = found[1], declctl.admin()
        assert metrics != admin
        assert _status(f"{admin}/plan") == 401
        with urllib.request.urlopen(f"{metrics}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        assert 'declctl_synced{resource="settings"} 1.0' in text
        assert 'declctl_admin_refused_total{reason="Token"} 1.0' in text  # the request above
        assert _status(f"{metrics}/plan", token=TOKEN) == 404
        assert _status(f"{metrics}/-/reload", method="POST", token=TOKEN) == 404
        # An edit of the address waits for a new process, and the present one stays where it listens.
        bundle.write("manifest.yaml", MANIFEST.format(namespace=namespace, address="127.0.0.1:9"))
        until(
            "it is told", lambda: any("!metrics.bindAddress" in line for line in [*declctl.out, *declctl.err])
        )
        assert _status(f"{metrics}/metrics") == 200
        assert declctl.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(metrics.rpartition(":")[2])), timeout=60).close()
