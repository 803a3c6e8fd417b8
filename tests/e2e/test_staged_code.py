"""Index functions and transforms that do not return: what the probes, SIGTERM and the log make of it."""

import time
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
