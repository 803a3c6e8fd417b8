"""Index functions and transforms that do not return: what the probes, SIGTERM and the log make of it."""

import time
import urllib.request
from pathlib import Path

import pytest
from bundles import TELLING, telling
from clusters import Cluster
from processes import Declctl
from rest import pod
from waiting import until

from declctl.testing import BundleDir

INDEX = "indexers: [{name: byNode, fieldPath: spec.nodeName}]"
STAGED = {
    "index": 'indexers: [{name: byName, entryPoint: "handlers:stuck"}]',
    "transform": 'transform: {entryPoint: "handlers:stuck"}',
}
STUCK = "def stuck(obj):\n    while {condition}: pass\n    return [obj['metadata']['name']]\n"


@pytest.fixture
def bundle(tmp_path: Path, namespace: str) -> BundleDir:
    """A handler that tells every change of the pods of the test's namespace."""
    return telling(tmp_path / "bundle", namespace=namespace)


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("edit", STAGED)
def test_a_staged_function_that_computes_for_ever_stops_nothing(
    edit: str, cluster: Cluster, bundle: BundleDir, namespace: str
) -> None:
    """Probes answer, changes are told, the reload is refused in time, and SIGTERM ends the process."""
    cluster.rest.create(pod("before", namespace))
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        bundle.edit("manifest.yaml", "reload: {settle: 50ms}", "reload: {settle: 50ms, warmTimeout: 3s}")
        declctl.wait_for_generation(2)
        bundle.write("handlers.py", TELLING + STUCK.format(condition="True"))
        declctl.wait_for_generation(3)
        bundle.edit("manifest.yaml", INDEX, STAGED[edit])
        for number in range(3):
            cluster.rest.create(pod(f"meanwhile{number}", namespace))
            told = f"Added pods {namespace}/meanwhile{number}"
            until("it is told", lambda: any(told in line for line in tuple(declctl.out)))  # noqa: B023
            with urllib.request.urlopen(f"{declctl.admin()}/healthz", timeout=60.0) as answer:
                assert answer.status == 200
        until("it is refused", lambda: declctl.condition("Reloaded")["status"] == "False")
        assert declctl.condition("Reloaded")["reason"] == f"{edit.capitalize()}Timeout"
        (call,) = declctl.status()["abandonedCalls"]
        assert call["place"].endswith(" in stuck")
        assert declctl.status()["generation"] == 3
        assert declctl.stop() == 0


def test_a_live_function_that_computes_for_ever_is_named_and_sigterm_is_obeyed(
    cluster: Cluster, bundle: BundleDir, namespace: str
) -> None:
    """It is called where events pass: nothing goes on, but the log says why, and the process ends."""
    condition = "obj['metadata']['name'] == 'bad'"
    bundle.write("handlers.py", TELLING + STUCK.format(condition=condition))
    bundle.edit("manifest.yaml", INDEX, STAGED["index"])
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        cluster.rest.create(pod("bad", namespace))
        said = f"the machinery has been blocked for 5 s at {bundle.path / 'handlers.py'}:4 in stuck"
        until("the log says so", lambda: any(said in line for line in tuple(declctl.err)))
        began = time.monotonic()
        assert declctl.stop(seconds=60) == 1
        assert time.monotonic() - began < 45
        assert any("ending without it" in line for line in declctl.err)
