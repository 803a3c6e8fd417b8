"""Small controllers that stand whole on a page: its blocks are written into a folder, which then runs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
import yaml
from clusters import Cluster
from markdown import ROOT, blocks
from rest import Refused
from walkthrough import DIRECTIVE, edit, section

from declctl.testing import running

Body = dict[str, Any]
WITH_KINDS = """
import declctl
from children import deployment
from kinds import Deployment

async def reconcile(request: declctl.Request, ctx: declctl.Context) -> None:
    await ctx.apply_set([deployment(request.name, "nginx")])
    found = ctx.lister(Deployment).get(request.key)
    if found is not None:
        ctx.log.info("seen", image=found.spec.template.spec.containers[0].image)
"""
OF_KINDS = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: web}
spec:
  resources:
    - {name: owners, apiVersion: v1, kind: ConfigMap}
    - {name: deployments, apiVersion: apps/v1, kind: Deployment, type: "kinds:Deployment"}
  handlers:
    - name: web
      mode: Reconcile
      resourceRef: {name: owners}
      entryPoint: "handlers:reconcile"
      watches: [{resourceRef: {name: deployments}, mapTo: {owner: Controller}}]
"""


def _write(folder: Path, page: str, first: str = "", last: str = "") -> None:
    """The files of a page, or of its section from one heading to before another one."""
    file = ROOT / "docs" / page
    for block in section(file, first, last) if first else blocks(file):
        if DIRECTIVE.fullmatch(block.above):
            edit(folder, block)


def _deployment(namespace: str, config: str) -> Body:
    volume = {"name": "settings", "configMap": {"name": config}}
    pod = {"containers": [{"name": "main", "image": "nginx"}], "volumes": [volume]}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    named = {"name": "web", "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named, "spec": spec}


def test_an_index_leads_from_a_name_to_the_objects_of_its_namespace(tmp_path: Path) -> None:
    """Only the Deployment that mounts the changed ConfigMap of its namespace gets other pods."""
    _write(tmp_path, "manifest.md", "## Mappings", "### Mappings that fail")
    namespaces = ("team-a", "team-b")
    objects: list[Body] = [_deployment(each, "limits") for each in namespaces]
    for each in namespaces:
        named = {"name": "limits", "namespace": each}
        objects += [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named},
        ]
    with running(tmp_path, objects=objects[::-1]) as controller:

        def annotated() -> list[str]:
            found = [controller.sandbox.objects("Deployment", each)[0] for each in namespaces]
            return [
                each["spec"]["template"]["metadata"]["annotations"]["acme.dev/settings"] for each in found
            ]

        controller.wait_idle()
        before = annotated()
        controller.sandbox.patch("ConfigMap", "limits", {"data": {"cpu": "2"}}, namespace="team-a")
        controller.wait_idle()
        after = annotated()
    assert all(before)
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, True]


def test_the_operator_beside_that_of_kopf(tmp_path: Path) -> None:
    """It makes, follows, mends and cleans up what the page says; the other one is Python at least."""
    _write(tmp_path, "coming-from.md", "### One operator in both", "## controller-runtime")
    compile((tmp_path / "kopf_operator.py").read_text("utf-8"), "kopf_operator.py", "exec")
    made = processes.run("generate", "crd", "models:Preview", "-o", "crd.yaml", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    preview = {
        "apiVersion": "acme.dev/v1",
        "kind": "Preview",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"image": "nginx:1"},
    }
    with running(tmp_path, objects=[preview]) as controller:
        sandbox = controller.sandbox

        def images() -> list[str]:
            controller.wait_idle()
            entries = [each["data"]["image"] for each in sandbox.objects("ConfigMap", "default")]
            pods = [each["spec"]["template"]["spec"] for each in sandbox.objects("Deployment", "default")]
            return [*entries, *(pod["containers"][0]["image"] for pod in pods)]

        assert images() == ["nginx:1", "nginx:1"]
        sandbox.patch("Preview", "web", {"spec": {"image": "nginx:2"}}, namespace="default")
        assert images() == ["nginx:2", "nginx:2"]
        sandbox.delete("Deployment", "web", namespace="default")
        assert images() == ["nginx:2", "nginx:2"]
        sandbox.patch("Deployment", "web", {"status": {"readyReplicas": 1}}, namespace="default")
        controller.wait_idle()
        assert sandbox.objects("Preview", "default")[0]["status"]["ready"] == 1
        sandbox.delete("Preview", "web", namespace="default")
        controller.wait_idle()
        assert not sandbox.objects("ConfigMap", "default")
        assert not sandbox.objects("Preview", "default")


def test_a_generated_type_is_written_and_read(tmp_path: Path) -> None:
    """The child of the page is stored with what is set and nothing else, and its lister has the class."""
    _write(tmp_path, "typed.md")
    made = processes.run("generate", "types", "apps/v1/Deployment", "-o", "kinds.py", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "handlers.py").write_text(WITH_KINDS, "utf-8")
    (tmp_path / "manifest.yaml").write_text(OF_KINDS, "utf-8")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "default"}}
    with running(tmp_path, objects=[owner]) as controller:
        controller.wait_idle()
        (child,) = controller.sandbox.objects("Deployment", "default")
        assert controller.log.of("web")[-1].fields["image"] == "nginx"
    (entry,) = child["metadata"]["managedFields"]
    pod = entry["fieldsV1"]["f:spec"]["f:template"]["f:spec"]
    assert entry["fieldsV1"]["f:spec"].keys() == {"f:replicas", "f:selector", "f:template"}
    assert pod.keys() == {"f:containers"}


@pytest.mark.thorough
def test_the_tests_of_bad_days_pass(tmp_path: Path) -> None:
    """In the folder of a new operator, as pytest runs them."""
    made = processes.run("new", "operator", "preview", ".", "--group", "acme.dev", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    _write(tmp_path, "testing-in-python.md")
    command = [sys.executable, "-m", "pytest", "-q", "tests/test_bad_days.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=processes.environment(), capture_output=True, text=True, check=False
    )
    assert "2 passed" in done.stdout, done.stdout


def test_a_definition_with_rules_is_taken_and_kept(tmp_path: Path, cluster: Cluster) -> None:
    """The server accepts what the page says, and names the broken rule as the page has it."""
    _write(tmp_path, "crds.md")
    made = processes.run("generate", "crd", "models:Preview", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    definition = yaml.safe_load(made.stdout)
    cluster.rest.create(definition)
    spec = {"image": "nginx", "branch": "main", "replicas": {"min": 1, "max": 2}}
    preview = {"apiVersion": "acme.dev/v1", "kind": "Preview", "metadata": {"name": "web"}, "spec": spec}
    try:
        stored = cluster.rest.create_first(preview, "default")
        for replicas, words in (({"min": 3, "max": 2}, "min is above it"), ({"max": 1}, "max never shrinks")):
            changed = stored | {"spec": spec | {"replicas": replicas}}
            with pytest.raises(Refused, match=rf"spec\.replicas.*{words}"):
                cluster.rest.request("PUT", "/apis/acme.dev/v1/namespaces/default/previews/web", changed)
    finally:
        cluster.rest.delete("customresourcedefinitions", "previews.acme.dev")
