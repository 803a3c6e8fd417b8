"""A third-party package, installed with pip, listens."""

from pathlib import Path

from clusters import SandboxCluster, make_namespace
from processes import Declctl
from rest import pod
from waiting import until

ROOT = Path(__file__).parents[2]


def test_the_changelog_tells_what_changed(sandbox_cluster: SandboxCluster, plugins: dict[str, str]) -> None:
    """examples/06: after `pip install` the plugin prints a line for each change, with a diff."""
    cluster = sandbox_cluster
    make_namespace(cluster, "demo")
    manifest = ROOT / "examples" / "06-third-party-plugin" / "manifest.yaml"
    with Declctl(manifest, kubeconfig=cluster.kubeconfig, env=plugins) as declctl:
        declctl.wait_until_synced()
        cluster.rest.create(pod("web-1", "demo"))
        cluster.rest.patch("pods", "web-1", {"spec": {"nodeName": "node-1"}}, "demo")
        cluster.rest.delete("pods", "web-1", "demo")
        until("all is told", lambda: len(declctl.out) >= 3)
        assert declctl.out == [
            "Added pods demo/web-1",
            "Modified pods demo/web-1  spec.nodeName: unset → node-1",
            "Deleted pods demo/web-1",
        ]
        state = declctl.status()["plugins"]
        assert [(p["name"], p["version"], p["state"]) for p in state] == [("changelog", "0.1.0", "Ready")]
        assert declctl.stop() == 0
