"""deploy/admission-policy.yaml on a real API server: who may change the ConfigMaps that hold code."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters import Cluster, new_namespace
from processes import find_kubectl
from waiting import until

POLICY = Path(__file__).parents[2] / "deploy" / "admission-policy.yaml"
CODE = "declctl.dev/code=pod-guard"
Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.real


@pytest.fixture
def kubectl(real_cluster: Cluster) -> Kubectl:
    """Runs kubectl, as one of the cluster's administrators or as somebody with all rights of RBAC."""
    program = find_kubectl()

    def run(*arguments: str, groups: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        who = ["--as=somebody", "--as-group=system:masters", *(f"--as-group={each}" for each in groups)]
        command = [program, f"--kubeconfig={real_cluster.kubeconfig}", *who, *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture
def where(real_cluster: Cluster) -> tuple[str, str]:
    """A namespace of the test, as an option of kubectl."""
    return "-n", new_namespace(real_cluster)


@pytest.fixture
def policy(kubectl: Kubectl, where: tuple[str, str]) -> Iterator[None]:
    """It is in force, and gone for the test after this one: the policy is the whole cluster's."""
    applied = kubectl("apply", "--server-side", "-f", str(POLICY))
    assert applied.returncode == 0, applied.stderr

    def is_in_force() -> bool:
        kubectl("create", "configmap", "probe", *where)
        return kubectl("label", "configmap", "probe", *where, CODE, "--dry-run=server").returncode != 0

    try:
        until("the policy is in force", is_in_force, seconds=60)
        yield
    finally:
        kubectl("delete", "-f", str(POLICY))
        until("nobody is refused any more", lambda: not is_in_force(), seconds=60)


def test_only_reviewers_change_what_has_the_label(
    policy: None, real_cluster: Cluster, kubectl: Kubectl, where: tuple[str, str]
) -> None:
    reviewers = ("declctl-reviewers",)
    for name in ("bundle", "settings"):
        assert kubectl("create", "configmap", name, *where, "--from-literal=a=1").returncode == 0
    edit = ("patch", "configmap", "bundle", *where, "--patch", '{"data": {"a": "2"}}')

    refused = kubectl("label", "configmap", "bundle", *where, CODE)
    assert "declctl-reviewers may change them" in refused.stderr
    assert kubectl("label", "configmap", "bundle", *where, CODE, groups=reviewers).returncode == 0
    for command in (
        edit,
        ("label", "configmap", "bundle", *where, "declctl.dev/code-"),
        ("delete", "configmap", "bundle", *where),
    ):
        refused = kubectl(*command)
        assert "declctl-reviewers may change them" in refused.stderr, command
    assert kubectl(*edit, groups=reviewers).returncode == 0
    # Other ConfigMaps are as they were.
    assert kubectl("delete", "configmap", "settings", *where).returncode == 0
    assert kubectl("delete", "configmap", "bundle", *where, groups=reviewers).returncode == 0
    going = new_namespace(real_cluster)
    kubectl("create", "configmap", "bundle", "-n", going)
    kubectl("label", "configmap", "bundle", "-n", going, CODE, groups=reviewers)
    kubectl("delete", "namespace", going, "--wait=false")  # its controller is no reviewer
    if real_cluster.has_controllers:
        until("it is gone", lambda: kubectl("get", "namespace", going).returncode != 0, seconds=60)
