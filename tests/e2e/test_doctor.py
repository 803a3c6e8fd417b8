"""`declctl doctor` against a server: what it says of the credentials, the clock and the rights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from clusters import Cluster
from processes import environment
from test_rights import HANDLERS, MANIFEST, Rights

from declctl.testing import BundleDir


def _doctor(folder: Path, kubeconfig: Path) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """The exit status, and the checks by name."""
    command = [sys.executable, "-m", "declctl", "doctor", ".", "--kubeconfig", str(kubeconfig), "-o", "json"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment(), check=False, timeout=60
    )
    assert done.stderr == ""
    found: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(done.stdout)["checks"]:
        found.setdefault(check["name"], []).append(check)
    return done.returncode, found


@pytest.fixture
def folder(namespace: str, tmp_path: Path) -> Path:
    """A manifest that reads pods and deployments, with an admin port of its own."""
    manifest = f"{MANIFEST.format(namespace=namespace)}  admin: {{bindAddress: '127.0.0.1:0'}}\n"
    return BundleDir(tmp_path / "bundle", {"manifest.yaml": manifest, "handlers.py": HANDLERS}).path


def test_an_administrator_may_do_all(cluster: Cluster, folder: Path) -> None:
    """The server says its version and its time, and every right is there."""
    status, found = _doctor(folder, cluster.kubeconfig)
    states = {name: {check["state"] for check in checks} for name, checks in found.items()}
    assert status == 0, found
    assert states["credentials"] == states["cluster"] == states["clock"] == states["rights"] == {"ok"}
    assert found["cluster"][0]["found"].startswith("v1.")


def test_a_user_without_a_right_is_told_which(
    cluster: Cluster, namespace: str, folder: Path, tmp_path: Path
) -> None:
    """The right that is there is not named; the one that is missing is, and the exit status is 1."""
    rights = Rights(cluster, namespace)
    kubeconfig = tmp_path / "kubeconfig-of-the-user"
    kubeconfig.write_text(yaml.safe_dump(rights.kubeconfig))
    status, found = _doctor(folder, kubeconfig)
    refused = [check["found"] for check in found["rights"] if check["state"] == "failed"]
    assert status == 1
    assert len(refused) == 1
    assert f"you may not list or watch deployments in the namespace {namespace}" in refused[0]
    rights.grant()
    assert _doctor(folder, kubeconfig)[0] == 0
