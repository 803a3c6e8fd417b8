"""Small controllers that stand whole on a page: its blocks are written into a folder, which then runs."""

from pathlib import Path

import processes
from markdown import ROOT, blocks
from walkthrough import DIRECTIVE, edit, section

from declctl.testing import running

Body = dict[str, object]


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
