"""A handler goes to another watch of a server that is in trouble, and hears nothing of the past."""

from pathlib import Path
from typing import Any

import pytest
from bundles import telling
from clusters import Cluster
from front import front
from processes import Declctl
from waiting import until

_TWO = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: e2e}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: wide, apiVersion: v1, kind: ConfigMap, labelSelector: "tier in (api,web)"}}
    - {{name: narrow, apiVersion: v1, kind: ConfigMap, labelSelector: tier=web}}
  handlers:
    - {{name: tell, resourceRef: {{name: wide}}, entryPoint: "handlers:tell"}}
    - {{name: silent, resourceRef: {{name: narrow}}, entryPoint: "handlers:silent"}}
  reload: {{settle: 50ms, warmTimeout: 5s}}
"""
_CODE = """\
def tell(change): print(f"{change.type} {change.obj.name} {change.reason}")
def silent(change): pass
"""
_WEB = "labelSelector=tier=web"  # what is in the address of the narrow watch


def _map(name: str, namespace: str, tier: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"tier": tier}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


@pytest.mark.guarantee("G15")
@pytest.mark.timeout(180)
def test_a_handler_goes_to_a_cache_that_lagged_when_it_has_caught_up(
    cluster: Cluster, tmp_path: Path, namespace: str
) -> None:
    """Its watch gets 503: refused, said, and tried again by itself; then true differences are told."""
    rest = cluster.rest
    bundle = telling(tmp_path / "bundle", _TWO, namespace=namespace)
    bundle.write("handlers.py", _CODE)
    for name, tier in (("stays", "web"), ("goes", "web"), ("api", "api")):
        rest.create(_map(name, namespace, tier))
    with front(rest) as way, Declctl(bundle.path, kubeconfig=way.kubeconfig(tmp_path)) as declctl:
        declctl.wait_until_synced()
        until("it is told", lambda: len(declctl.out) == 3)
        way.refuse(_WEB)
        until("it fails", lambda: "503" in (declctl.resource("narrow")["error"] or ""))
        rest.patch("configmaps", "stays", {"data": {"new": "yes"}}, namespace)
        rest.delete("configmaps", "goes", namespace)
        rest.create(_map("comes", namespace, "web"))
        rest.create(_map("short", namespace, "web"))
        rest.delete("configmaps", "short", namespace)
        until("the handler hears it", lambda: len(declctl.out) == 8)
        text = (tmp_path / "bundle" / "manifest.yaml").read_text("utf-8")
        bundle.write("manifest.yaml", text.replace('"tier in (api,web)"', "tier=web"))
        until("it is refused", lambda: declctl.condition("Reloaded")["reason"] == "CacheLags")
        message = declctl.condition("Reloaded")["message"]
        assert "manifest.yaml:7: wide: tell would go back in time" in message
        assert "503" in message
        way.mend()
        until("it is tried again", lambda: declctl.status()["generation"] == 2, seconds=90)
        rest.create(_map("after", namespace, "web"))
        until("it is told", lambda: "Added after Watch" in declctl.out)
        assert list(declctl.out)[8:] == ["Deleted api OutOfScope", "Added after Watch"]
        assert declctl.stop() == 0
