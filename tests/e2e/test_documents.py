"""`declctl test`: the same documents pass on the API server in memory and on a real one, and fail on both."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import packages
import pytest
from clusters import Cluster
from processes import Ended, environment, run
from waiting import until

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = """
---
apiVersion: declctl.dev/v1alpha1
kind: ControllerTest
metadata: {name: NAME}
spec:
  objects: [{file: ../sandbox/sample.yaml}]
  steps: [{STEP}]
"""


@pytest.fixture(scope="module", name="plane")
def _plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server without controllers, as envtest: nothing else writes the status of a Deployment."""
    with clusters.real(tmp_path_factory.mktemp("bare"), "--max-requests-inflight=400") as cluster:
        yield cluster


@pytest.fixture(name="scaffold")
def _scaffold(tmp_path: Path) -> Path:
    """An operator as `declctl new operator` makes it."""
    made = run("new", "operator", "preview", "--group", "acme.dev", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    return tmp_path / "preview"


def _outcomes(ended: Ended) -> dict[str, str]:
    return {each["name"]: each["outcome"] for each in _tests(ended)}


def _tests(ended: Ended) -> list[dict[str, Any]]:
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)["tests"]


def _left_over(cluster: Cluster) -> list[str]:
    """The namespaces and definitions of tests."""
    found = [each["metadata"]["name"] for each in cluster.rest.list("namespaces")]
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    found += [each["metadata"]["name"] for each in cluster.rest.request("GET", definitions)["items"]]
    return [
        name for name in found if name.startswith("declctl-test-") or "acme.dev" in name or name == "other"
    ]


@pytest.mark.scenario
@pytest.mark.real
def test_documents_say_the_same_on_both_servers(plane: Cluster, scaffold: Path) -> None:
    """Those of the scaffold pass; an operator with a mistake fails the same ones, and all is removed."""
    on_cluster = ("--cluster", "--kubeconfig", str(plane.kubeconfig), "--timeout", "3s")
    for where in ((), on_cluster):
        ended = run("test", str(scaffold), "-o", "json", *where)
        assert set(_outcomes(ended).values()) == {"passed"}, ended.stdout
        assert ended.returncode == 0
    handlers = scaffold / "handlers.py"
    handlers.write_text(handlers.read_text().replace('"replicas": obj.spec.replicas', '"replicas": 1'))
    found: list[Any] = []
    for where in ((), on_cluster):
        ended = run("test", str(scaffold), "-o", "json", *where)
        assert ended.returncode == 1
        found.append([each["reasons"] for each in _tests(ended)])
    assert found[0] == found[1]
    assert found[0][0][0]["details"] == ["sample: spec.replicas: expected 2, found 1"]
    assert _left_over(plane) == []


@pytest.mark.real
def test_a_document_that_needs_another_server_is_skipped(plane: Cluster, scaffold: Path) -> None:
    """A fault, and namespaces that are there already, are reasons that are told; none of them is a pass."""
    documents = scaffold / "tests" / "operator.yaml"
    steps = {
        "fault": "fault: {fault: compact}",
        "elsewhere": "expect: [{absent: {kind: ConfigMap, metadata: {namespace: kube-public}}}]",
        "its-own": "patch: {kind: Namespace, name: default, patch: {metadata: {labels: {a: b}}}}",
    }
    fine = "expect: [{match: {kind: Deployment}}]"
    more = [
        DOCUMENT.replace("NAME", name).replace("{STEP}", f"{{{step}}}, {{{fine}}}")
        for name, step in steps.items()
    ]
    documents.write_text(documents.read_text() + "".join(more))
    ended = run("test", str(scaffold), "-o", "json", "--cluster", "--kubeconfig", str(plane.kubeconfig))
    assert ended.returncode == 0, ended.stdout
    skipped = {
        each["name"]: each["reasons"][0]["message"] for each in _tests(ended) if each["outcome"] == "skipped"
    }
    assert skipped.keys() == steps.keys()
    assert "kube-public already" in skipped["elsewhere"]


@pytest.mark.real
def test_namespaces_and_uids_of_a_document_are_those_of_its_own(plane: Cluster, scaffold: Path) -> None:
    """Those of other documents are waited for; an owner is found by the uid that the document gives it."""
    first = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: other, uid: b}}"
    owner = "{apiVersion: v1, kind: ConfigMap, name: a, uid: b}"
    child = f"kind: ConfigMap, metadata: {{name: c, namespace: other, ownerReferences: [{owner}]}}"
    steps = f"{{apply: {{apiVersion: v1, {child}}}, expect: [{{match: {{{child}}}}}]}}"
    names = ("one", "two")
    document = DOCUMENT.replace("{STEP}", steps).replace("{file: ../sandbox/sample.yaml}", first)
    both = [document.replace("NAME", name) for name in names]
    (scaffold / "tests" / "operator.yaml").write_text("".join(both))
    on_cluster = ("--cluster", "--kubeconfig", str(plane.kubeconfig), "-j", "2")
    for where in ((), on_cluster):
        ended = run("test", str(scaffold), "-o", "json", *where)
        assert _outcomes(ended) == dict.fromkeys(names, "passed"), ended.stdout
    assert _left_over(plane) == []


@pytest.mark.real
def test_the_documents_of_examples_and_plugins_pass_on_a_real_server(plane: Cluster, tmp_path: Path) -> None:
    """Three need what a shared cluster can't give: faults, labels of its namespaces, and its `default`."""
    where = ("--cluster", "--kubeconfig", str(plane.kubeconfig), "-j", "2", "-o", "json")
    ended = run(
        "test", "examples", "plugins", *where, cwd=ROOT, seconds=180, **packages.install_all(tmp_path)
    )
    assert ended.returncode == 0, ended.stdout
    skipped = {name for name, outcome in _outcomes(ended).items() if outcome == "skipped"}
    assert skipped == {
        "a-refused-claim-is-told-once",
        "a-namespace-comes-in-and-leaves-with-its-label",
        "a-fence-follows-its-service-and-the-settings",
    }
    assert _left_over(plane) == []


@pytest.mark.real
def test_what_an_interrupted_test_has_made_is_removed(plane: Cluster, scaffold: Path) -> None:
    """SIGTERM, as of a CI system that gives up, while a step waits for what never comes."""
    step = "{expect: [{match: {kind: ConfigMap}, count: 9}]}"
    never = DOCUMENT.replace("NAME", "never").replace("{STEP}", step)
    (scaffold / "tests" / "operator.yaml").write_text(never)
    words = ("test", str(scaffold), "--cluster", "--kubeconfig", str(plane.kubeconfig))
    with subprocess.Popen([sys.executable, "-m", "declctl", *words], env=environment()) as child:
        until("its namespace is there", lambda: len(_left_over(plane)) == 2)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) != 0
    assert _left_over(plane) == []


def test_the_controllers_of_a_cluster_would_write_the_status(cluster: Cluster, scaffold: Path) -> None:
    """Where something else writes the status of a Deployment, the document can't: it says so."""
    if not cluster.has_controllers:
        pytest.skip("nothing else writes here")
    until("they work", lambda: cluster.rest.is_there("serviceaccounts", "default", "default"))
    ended = run("test", str(scaffold), "-o", "json", "--cluster", "--kubeconfig", str(cluster.kubeconfig))
    assert sorted(_outcomes(ended).values()) == ["passed", "passed", "skipped"], ended.stdout
    until("its namespaces are removed", lambda: not _left_over(cluster), seconds=60)
