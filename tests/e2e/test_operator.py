"""examples/09: children, status and finalizer of a custom resource, against both kinds of API server."""

from pathlib import Path
from typing import Any

import operators
import pytest
from clusters import Cluster
from operators import FINALIZER, Operator
from processes import Declctl, run
from rest import MERGE
from waiting import until


@pytest.mark.scenario
def test_a_memcached_has_its_deployment_until_it_goes(
    operator: Operator, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Made, scaled, mended and deleted; its entry in another namespace goes before it."""
    with Declctl(operators.bundle(tmp_path), kubeconfig=cluster.kubeconfig) as declctl:
        operator.create("shop", namespace, size=2)
        until("it has a Deployment", lambda: operator.replicas(namespace) == {"shop": 2})
        until(
            "it has an entry", lambda: operator.entries() == {f"{namespace}.shop": f"shop.{namespace}:11211"}
        )
        assert operator.get("shop", namespace)["metadata"]["finalizers"] == [FINALIZER]
        until("its status is written", lambda: operator.observed(namespace) == {"shop": True})
        (condition,) = operator.get("shop", namespace)["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("Available", "False")
        assert condition["message"] == "0 of 2 replicas are available"
        if not cluster.has_controllers:
            status = {"status": {"availableReplicas": 2}}
            cluster.rest.patch("deployments", "shop", status, namespace, sub="status")
            until("it is available", lambda: _condition(operator, namespace)["status"] == "True")

        operator.patch("shop", namespace, size=3, port=11222)
        until("it is scaled", lambda: operator.replicas(namespace) == {"shop": 3})
        until("the entry follows", lambda: operator.entries()[f"{namespace}.shop"].endswith(":11222"))
        cluster.rest.delete("deployments", "shop", namespace)
        until("it is made again", lambda: operator.replicas(namespace) == {"shop": 3})

        operator.delete("shop", namespace)
        until("it is gone", lambda: operator.get("shop", namespace) is None)
        assert operator.entries() == {}
        if cluster.has_controllers:
            until("its Deployment is collected", lambda: operator.replicas(namespace) == {}, seconds=60)
        until("it says so", lambda: f"{namespace}/shop: out of the directory" in declctl.out)
        assert declctl.stop() == 0


def test_a_volume_has_its_claim(operator: Operator, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """What the server refuses is in the status, and not tried again until it is edited."""
    with Declctl(operators.bundle(tmp_path), kubeconfig=cluster.kubeconfig) as declctl:
        operator.create("scratch", namespace, kind="EphemeralVolumeClaim", size="1Gi")
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"

        def claims() -> dict[str, Any]:
            found = cluster.rest.request("GET", path)["items"]
            return {each["metadata"]["name"]: each for each in found}

        until("it has a claim", lambda: set(claims()) == {"scratch"})
        claim = claims()["scratch"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
        assert claim["metadata"]["ownerReferences"][0]["kind"] == "EphemeralVolumeClaim"
        message = f"{namespace}/scratch: the claim of 1Gi is pending"
        until("its status is told", lambda: message in declctl.out)
        if cluster.has_controllers:  # the sandbox resizes every claim
            path = f"/apis/example.dev/v1/namespaces/{namespace}/ephemeralvolumeclaims/scratch"
            cluster.rest.request("PATCH", path, {"spec": {"size": "2Gi"}}, media=MERGE)

            def refused() -> bool:
                found = operator.get("scratch", namespace, "ephemeralvolumeclaims")
                return found["status"]["conditions"][0]["reason"] == "Refused"

            until("it is refused", refused)
        assert declctl.stop() == 0


def test_a_finalizer_that_an_edit_removes(
    operator: Operator, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """`plan` names the objects, the reload waits, `finalizers release` lets it through."""
    bundle = operators.bundle(tmp_path)
    where = ("--kubeconfig", str(cluster.kubeconfig))
    with Declctl(bundle, kubeconfig=cluster.kubeconfig) as declctl:
        operator.create("shop", namespace, size=1)
        until("its status is written", lambda: operator.observed(namespace) == {"shop": True})
        manifest = bundle / "manifest.yaml"
        new = manifest.read_text("utf-8").replace(f"      finalizer: {FINALIZER}\n", "")
        (tmp_path / "new").mkdir()
        for file in ("models.py", "memcached.py", "volume.py"):
            (tmp_path / "new" / file).write_bytes((bundle / file).read_bytes())
        (tmp_path / "new" / "manifest.yaml").write_text(new, "utf-8")
        admin = ("--admin", declctl.admin().removeprefix("http://"))
        done = run("plan", str(tmp_path / "new"), "--against", "running", *admin)
        assert done.returncode == 1
        assert f"error DCL056: the finalizer {FINALIZER} of the handler memcached" in done.stderr
        assert f"1 object has it ({namespace}/shop)" in done.stderr

        manifest.write_text(new, "utf-8")
        until("it is refused", lambda: declctl.condition("Reloaded")["reason"] == "FinalizersLeft")
        # The manifest does not name it any more, and the running process does.
        done = run("finalizers", "release", str(bundle), "--yes", *where, *admin)
        assert done.stdout == f"released Memcached {namespace}/shop of {FINALIZER}\n", done.stderr
        declctl.wait_for_generation(2)
        assert "finalizers" not in operator.get("shop", namespace)["metadata"]
        operator.delete("shop", namespace)
        until("it goes at once", lambda: operator.get("shop", namespace) is None)
        assert declctl.stop() == 0


def test_a_finalizer_that_a_start_lacks(operator, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The condition names the object, which `finalizers release` finds without an earlier manifest."""
    if not cluster.has_controllers:
        pytest.skip("the sandbox keeps no managers of an object that was never applied")
    bundle = operators.bundle(tmp_path)
    with Declctl(bundle, kubeconfig=cluster.kubeconfig) as declctl:
        operator.create("shop", namespace, size=1)
        until("its status is written", lambda: operator.observed(namespace) == {"shop": True})
        assert declctl.stop() == 0
    manifest = bundle / "manifest.yaml"
    manifest.write_text(manifest.read_text("utf-8").replace(f"      finalizer: {FINALIZER}\n", ""), "utf-8")
    with Declctl(bundle, kubeconfig=cluster.kubeconfig) as declctl:
        until("it is told", lambda: declctl.condition("Degraded")["reason"] == "FinalizersLeft")
        assert f"memcached (Memcached {namespace}/shop)" in declctl.condition("Degraded")["message"]
        options = ("--all-kinds", "--yes", "--kubeconfig", str(cluster.kubeconfig))
        done = run("finalizers", "release", str(bundle), *options)
        assert done.stdout == f"released Memcached {namespace}/shop of {FINALIZER}\n", done.stderr
        until("it is told no more", lambda: declctl.condition("Degraded")["reason"] == "AsExpected")


def _condition(operator: Operator, namespace: str) -> dict[str, Any]:
    return operator.get("shop", namespace)["status"]["conditions"][0]
