"""kubectl, unchanged, against the sandbox."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from clusters import SandboxCluster
from processes import environment, find_kubectl

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.kubectl


@pytest.fixture
def kubectl(sandbox_cluster: SandboxCluster) -> Callable[..., str]:
    """Runs the one of KUBEBUILDER_ASSETS, or of the PATH; what it writes."""
    kubeconfig = sandbox_cluster.kubeconfig
    # Discovery is cached by server: a test must not meet the cache of another one's.
    env = environment(KUBECACHEDIR=str(kubeconfig.parent / "cache"))

    def run(*arguments: str) -> str:
        command = [find_kubectl(), "--kubeconfig", str(kubeconfig), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_in_cluster_example_is_applied_whole(kubectl: Callable[..., str]) -> None:
    """`kubectl apply -k` makes everything, and the ConfigMap holds manifest and handlers as they are."""
    example = ROOT / "examples" / "07-in-cluster"
    applied = kubectl("apply", "-k", str(example)).split()
    kinds = {name.split("/")[0].split(".")[0] for name in applied if "/" in name}
    assert kinds >= {"namespace", "serviceaccount", "role", "rolebinding", "configmap", "deployment"}
    configmap = json.loads(kubectl("get", "configmap", "restarts", "-n", "declctl-demo", "-o", "json"))
    assert configmap["data"]["handlers.py"] == (example / "handlers.py").read_text("utf-8")
    manifest = yaml.safe_load(configmap["data"]["manifest.yaml"])
    assert manifest["spec"]["namespaces"] == ["declctl-demo"]
