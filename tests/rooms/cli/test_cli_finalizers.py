"""`declctl finalizers`: the objects that have one, and their release; and what `plan` says of a lost one."""

import sys

import pytest

from declctl.sandbox import SandboxThread
from declctl.sandbox.faults import Match

NAME = "example.dev/cleanup"
OF_CLUSTER = ("manifest.yaml", "--kubeconfig", "kubeconfig")
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: cleaner}
spec:
  namespaces: [default]
  resources:
    - {name: maps, apiVersion: v1, kind: ConfigMap}
  handlers:
    - name: keys
      mode: Reconcile
      resourceRef: {name: maps}
      entryPoint: "handlers"
      finalizer: example.dev/cleanup
  admin: {bindAddress: "127.0.0.1:0"}
"""
HANDLERS = """\
import declctl
@declctl.hookimpl
def declctl_reconcile(request): ...
@declctl.hookimpl
def declctl_finalize(request): ...
"""


def _map(name: str, namespace: str, *finalizers: str) -> dict:
    metadata = {"name": name, "namespace": namespace, "finalizers": [*finalizers]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


@pytest.fixture(name="cluster")
def _cluster(write, sandbox: SandboxThread) -> SandboxThread:
    """A cluster with objects in two namespaces, and a manifest for one of them."""
    write("handlers.py", HANDLERS)
    write("manifest.yaml", MANIFEST)
    sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-b"}})
    sandbox.create(_map("a", "default", NAME))
    sandbox.create(_map("b", "team-b", "other.dev/x", NAME))
    sandbox.create(_map("c", "default", "other.dev/x"))
    sandbox.delete("ConfigMap", "b", namespace="team-b")
    return sandbox


def _finalizers(server: SandboxThread, name: str) -> list[str] | None:
    found = [each["metadata"] for each in server.objects("ConfigMap") if each["metadata"]["name"] == name]
    return found[0].get("finalizers", []) if found else None


def test_objects_are_listed_wherever_they_are(declctl, cluster):
    """Also outside of the namespaces of the manifest, and since when they are being deleted."""
    ended = declctl.done("finalizers", "list", *OF_CLUSTER)
    header, first, second = (line.split() for line in ended.lines)
    assert header == ["HANDLER", "FINALIZER", "KIND", "OBJECT", "DELETED"]
    assert first == ["keys", NAME, "ConfigMap", "default/a", "-"]
    assert second[:4] == ["keys", NAME, "ConfigMap", "team-b/b"]
    assert ended.err == f"2 objects have {NAME} (ConfigMap), 1 of them being deleted\n"
    found = declctl("finalizers", "list", *OF_CLUSTER, "-o", "json").document["objects"]
    assert [row["key"] for row in found] == ["default/a", "team-b/b"]
    assert found[0]["deletionTimestamp"] is None
    # A Role of a namespace is enough for its objects, and it is told that others were not looked at.
    cluster.faults.refuse(403, Match("list", "configmaps"), times=1)
    ended = declctl("finalizers", "list", *OF_CLUSTER)
    left_out = "not looked at: v1 ConfigMap outside of default (no right to list it in the whole cluster)"
    assert ended.err == f"{left_out}\n1 object has {NAME} (ConfigMap)\n"


def test_a_release_takes_only_ours(declctl, cluster):
    """A script does not release by accident; with --yes there is no question; a second one finds nothing."""
    assert "Add --yes to release them" in declctl.refused("finalizers", "release", *OF_CLUSTER)
    assert _finalizers(cluster, "a") == [NAME]
    arguments = ("finalizers", "release", *OF_CLUSTER, "--yes")
    ended = declctl.done(*arguments)
    assert ended.lines == [f"released ConfigMap {key} of {NAME}" for key in ("default/a", "team-b/b")]
    assert "adds the finalizer again: stop it" in ended.err
    assert _finalizers(cluster, "a") == []
    assert _finalizers(cluster, "b") == _finalizers(cluster, "c") == ["other.dev/x"]
    assert declctl(*arguments).err == f"0 objects have {NAME} (ConfigMap)\n"


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_asks(declctl, cluster, monkeypatch, answer):
    """No leaves everything as it is, and exits 1."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text) or answer == "y")
    ended = declctl("finalizers", "release", *OF_CLUSTER)
    assert asked == ["Release 2 objects? declctl_finalize is not called for them"]
    assert "ConfigMap default/a" in ended.err
    assert (ended.status, _finalizers(cluster, "a")) == ((0, []) if answer == "y" else (1, [NAME]))


@pytest.mark.parametrize("options", [(), ("--all-kinds",)], ids=["its kinds", "all kinds"])
def test_what_earlier_manifests_have_left_is_found_and_released(declctl, cluster, folder, options):
    """By the field managers of objects; without `--all-kinds`, of the kinds that the manifest has."""
    kind = "Secret" if options else "ConfigMap"
    for name, manager in (("left", "declctl/cleaner/old"), ("others", "declctl/cleaner-2/old")):
        obj = _map(name, "team-b", "example.dev/old") | {"kind": kind}
        owned = {"f:metadata": {"f:finalizers": {".": {}, 'v:"example.dev/old"': {}}}}
        entry = {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
        obj["metadata"]["managedFields"] = [entry | {"fieldsV1": owned}]
        cluster.create(obj)
    (folder / "new.yaml").write_text(MANIFEST.replace("      finalizer: example.dev/cleanup\n", ""))
    arguments = ("new.yaml", *OF_CLUSTER[1:], *options)
    ended = declctl.done("finalizers", "list", *arguments)
    assert [each.split()[:4] for each in ended.lines[1:]] == [["old", "example.dev/old", kind, "team-b/left"]]
    ended = declctl.done("finalizers", "release", *arguments, "--yes")
    assert ended.lines == [f"released {kind} team-b/left of example.dev/old"]
    assert "adds the finalizer again" not in ended.err
    ended = declctl.done("finalizers", "list", *arguments)
    assert ended.err.startswith("no object has a finalizer of a handler of cleaner")


def test_a_finalizer_that_a_manifest_lacks_is_told(declctl, cluster, folder):
    """With what to do; by a plan against a file, too, which does not know whether objects have it."""
    said = declctl.refused("finalizers", "list", *OF_CLUSTER, "--handler", "other")
    assert "no object has a finalizer of the handler other of cleaner; only kinds of the manifest" in said
    (folder / "new.yaml").write_text(MANIFEST.replace("      finalizer: example.dev/cleanup\n", ""))
    ended = declctl("plan", "new.yaml", "--against", "manifest.yaml")
    assert ended.status == 2
    assert "~handler keys (finalizer)" in ended.out
    assert "new.yaml:9:7: warning DCL056: the finalizer example.dev/cleanup of the handler keys" in ended.err
