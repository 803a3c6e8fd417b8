"""A plugin gets a value of a Secret, of the sandbox, and of a real server with the generated rights alone."""

import os
from pathlib import Path

import pytest
from accounts import Account, generated, granted
from clusters import Cluster, drop_namespace, new_namespace
from processes import Declctl
from rest import MERGE

from tests.storm import plugin

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: paging}}
spec:
  namespaces: [{namespace}]
  plugins:
    - name: pager
      configFrom:
        - {{name: token, secretKeyRef: {{name: pager, key: token}}}}
  resources: [{{name: settings, apiVersion: v1, kind: ConfigMap, names: [settings]}}]
  handlers: [{{name: page, resourceRef: {{name: settings}}, pluginRef: {{name: pager}}}}]
"""
PLUGIN = """\
import declctl


@declctl.hookimpl
def declctl_config_schema():
    return {"required": ["token"], "properties": {"token": {"type": "string"}}}


@declctl.hookimpl
def declctl_prepare(ctx):
    print("prepared with", ctx.config["token"], flush=True)


@declctl.hookimpl
def declctl_event(obj): ...
"""
FIRST, SECOND = "token-of-monday", "token-of-tuesday"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the manifest; the plugin is installed for all child processes."""
    site = tmp_path / "site"
    plugin.install(site, "pager", PLUGIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    folder = tmp_path / "bundle"
    folder.mkdir()
    return folder


@pytest.mark.real
def test_it_is_read_and_rotated_with_the_generated_rights(real_cluster: Cluster, folder: Path) -> None:
    """`get` of this Secret is enough and needed; without it, a reload waits for it by itself."""
    namespace, rest = new_namespace(real_cluster), real_cluster.rest
    manifest = folder / "manifest.yaml"
    manifest.write_text(MANIFEST.format(namespace=namespace), "utf-8")
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pager"}}
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    rest.request("POST", secrets, {**body, "stringData": {"token": FIRST}})
    account = Account(
        real_cluster,
        objects := generated("rbac", str(manifest), "--namespace", namespace, "--name", "runner"),
    )
    rights = [right for right in granted(objects) if right.resource == "secrets"]
    assert [(each.verb, each.name, each.namespace) for each in rights] == [("get", "pager", namespace)]
    with Declctl(manifest, kubeconfig=account.kubeconfig(folder.parent / "kubeconfig")) as declctl:
        declctl.wait_until_synced()
        assert declctl.out == [f"prepared with {FIRST}"]
        assert declctl.reload()["result"] == "Unchanged"
        with account.without(rights[0]):
            rest.request("PATCH", f"{secrets}/pager", {"stringData": {"token": SECOND}}, media=MERGE)
            refused = declctl.reload()
            assert (refused["result"], refused["reason"]) == ("Refused", "Forbidden")
            (fault,) = refused["diagnostics"]
            assert (fault["code"], fault["line"]) == ("DCL051", 9)
            grant = f"declctl generate rbac MANIFEST --namespace {namespace} --name runner | kubectl apply"
            assert grant in fault["suggestion"]
            assert declctl.status()["generation"] == 1
        declctl.wait_for_generation(2)
        assert declctl.out[1:] == [f"prepared with {SECOND}"]
        assert declctl.stop() == 0
        said = "\n".join(declctl.err)
        assert "~plugin pager (config changed)" in said
        assert FIRST not in said
        assert SECOND not in said
    drop_namespace(real_cluster, namespace)
