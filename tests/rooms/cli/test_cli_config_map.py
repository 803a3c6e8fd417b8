"""`configmap/NAMESPACE/NAME` in place of a path: every command that reads a manifest takes it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from declctl.sandbox import SandboxThread
from declctl.sandbox.faults import Match
from tests.rooms.cli import hello
from tests.rooms.cli.conftest import Ended

MANIFEST = f"{hello.MANIFEST}  admin: {{bindAddress: '127.0.0.1:0'}}\n"
NAMED = "configmap/team-a/bundle"
CLUSTER = ("--kubeconfig", "kubeconfig")
COMMANDS = ["validate", "plan", "graph", "digest", "generate rbac", "generate deploy", "generate image"]


@pytest.fixture(name="server")
def _server(folder, sandbox: SandboxThread, tmp_path_factory, monkeypatch) -> Iterator[SandboxThread]:
    """A cluster that has the bundle in a ConfigMap, and a kubeconfig of it in the current folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    sandbox.load([bundle("bundle", MANIFEST)])
    yield sandbox
    # No command leaves its copy behind.
    assert list(Path(tempfile.gettempdir()).glob("declctl-configmap-*")) == []


def bundle(name: str, manifest: str) -> dict[str, object]:
    """A ConfigMap with a manifest and its handlers."""
    data = {"manifest.yaml": manifest, "handlers.py": hello.HANDLERS}
    metadata = {"name": name, "namespace": "team-a"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture(name="local")
def _local(write) -> str:
    """The same bundle as a folder."""
    write("local/manifest.yaml", MANIFEST)
    write("local/handlers.py", hello.HANDLERS)
    return "local"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_config_map_is_read_as_a_folder_is(declctl, server, local, command):
    """What is printed is the same, but for the name."""
    by_path = declctl(*command.split(), local)
    texts = (text.replace(local, NAMED) for text in (by_path.out, by_path.err))
    assert by_path.out
    assert declctl(*command.split(), NAMED, *CLUSTER) == Ended(by_path.status, *texts)


def test_doctor_reads_it_once_and_has_no_mount_to_look_at(declctl, server):
    """The checks of manifest and rights are those of a path."""
    ended = declctl("doctor", NAMED, *CLUSTER, "-o", "json")
    found = {each["name"]: each for each in ended.document["checks"]}
    assert found["manifest"]["found"] == "hello: 1 resource, 1 handler"
    assert found["mount"]["state"] == "skipped"
    assert found["rights"]["state"] == "ok"
    assert ended.status == 0


def test_a_plan_against_what_the_cluster_has_shows_a_local_edit(declctl, server, local):
    """Before an apply, it says what the apply would change."""
    assert declctl("plan", local, "--against", NAMED, *CLUSTER).status == 0
    Path(local, "handlers.py").write_text(f"{hello.HANDLERS}\nEDITED = True\n")
    ended = declctl("plan", local, "--against", NAMED, *CLUSTER)
    assert ended.status == 2
    assert "code" in ended.out


def test_a_fault_has_its_place_in_the_config_map(declctl, server):
    """The key takes the place of the file."""
    server.load([bundle("faulty", MANIFEST.replace("handlers:", "handler:"))])
    ended = declctl("validate", "configmap/team-a/faulty", *CLUSTER, "-o", "json")
    assert ended.status == 1
    assert {each["file"] for each in ended.document} == {"configmap/team-a/faulty/manifest.yaml"}


@pytest.mark.parametrize("command", [*COMMANDS, "doctor"])
def test_one_that_is_not_there_is_named(declctl, server, command):
    """With the command that lists those that are."""
    ended = declctl(*command.split(), "configmap/team-a/other", *CLUSTER)
    assert ended.status == (1 if command in ("plan", "doctor") else 2)
    assert "configmap/team-a/other is not there" in ended.err + ended.out
    assert "kubectl get configmaps -A" in ended.err + ended.out


def test_a_missing_right_is_named_with_the_command_that_grants_it(declctl, server):
    """One read needs `get`, and neither list nor watch."""
    server.faults.refuse(403, Match(verb="get", resource="configmaps"))
    said = declctl.refused("validate", NAMED, *CLUSTER)
    assert f"{NAMED} may not be read" in said
    assert "kubectl create role read-bundle -n team-a --verb=get --resource=configmaps" in said


def test_without_a_cluster_the_missing_configuration_is_named(declctl, write):
    """Or that it does not answer, with the options that choose another; a folder is written with a dot."""
    assert f"{NAMED} is read from a cluster. No cluster is configured" in declctl.refused("digest", NAMED)
    assert "./configmap/bundle" in declctl.refused("digest", "configmap/bundle")
    with SandboxThread() as gone:
        write("kubeconfig", yaml.safe_dump(gone.kubeconfig()))
    said = declctl.refused("graph", NAMED, *CLUSTER)
    assert f"{NAMED} can't be read from the cluster" in said
    assert "--context" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_a_cluster_that_is_not_asked_are_refused(declctl, hello, command):
    """They would be without effect."""
    assert "configmap/NAMESPACE/NAME" in declctl.refused(*command.split(), ".", "--context", "other")
