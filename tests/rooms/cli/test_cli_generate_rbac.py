"""`declctl generate rbac`: what is printed, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from declctl.cli.main import status_of as main

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  namespaces: [team-a]
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
  handlers:
    - {name: notify, resourceRef: {name: pods}, entryPoint: "handlers:notify"}
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a manifest and handlers into the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(handlers: str, manifest: str = MANIFEST) -> None:
        (tmp_path / "handlers.py").write_text(dedent(handlers), "utf-8")
        (tmp_path / "manifest.yaml").write_text(manifest, "utf-8")

    return write


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The objects."""
    assert main(["generate", "rbac", *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def rules(objects: list[dict[str, Any]]) -> dict[str | None, list[str]]:
    """The rules by namespace, as `groups/resources: verbs`."""
    return {
        each["metadata"].get("namespace"): [
            f"{'+'.join(rule['apiGroups'])}/{'+'.join(rule['resources'])}: {' '.join(rule['verbs'])}"
            for rule in each["rules"]
        ]
        for each in objects
        if "rules" in each
    }


def test_roles_are_bound_to_the_account_in_each_namespace(bundle, capsys) -> None:
    """And have names that two controllers of one name do not share."""
    bundle("def notify(obj): ...", MANIFEST.replace("[team-a]", "[team-a, team-b]"))
    objects = printed(capsys, ".", "-n", "team-a", "--name", "other")
    assert [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects] == [
        ("ServiceAccount", "team-a", "other"),
        ("Role", "team-a", "other"),
        ("RoleBinding", "team-a", "other"),
        ("Role", "team-b", "declctl:team-a:other"),
        ("RoleBinding", "team-b", "declctl:team-a:other"),
    ]
    for each in objects:
        if "roleRef" in each:
            assert each["subjects"] == [{"kind": "ServiceAccount", "name": "other", "namespace": "team-a"}]
            assert each["roleRef"]["name"] == each["metadata"]["name"]
    assert rules(objects) == {"team-a": ["/pods: list watch"], "team-b": ["/pods: list watch"]}


def test_names_of_roles_are_those_of_one_controller(bundle, capsys) -> None:
    """`a-b` of the namespace `c` and `b` of `c-a` would share a ClusterRole if a dash joined both."""
    bundle("def notify(obj): ...", MANIFEST.replace("[team-a]", '["*"]'))
    names = [
        each["metadata"]["name"]
        for namespace, name in (("a", "b-c"), ("a-b", "c"))
        for each in printed(capsys, ".", "-n", namespace, "--name", name)
        if each["kind"].startswith("ClusterRole")
    ]
    assert names == ["declctl:a:b-c"] * 2 + ["declctl:a-b:c"] * 2


def test_explain_names_the_line_of_each_reason(bundle, capsys) -> None:
    """As comments, so that the output stays YAML."""
    bundle("def notify(obj, ctx): ctx.record_event(obj, 'R', 'm')")
    assert main(["generate", "rbac", ".", "--explain"]) == 0
    text = capsys.readouterr().out
    assert "  # manifest.yaml:7: the informer of the resource pods\n  - {apiGroups: ['']" in text
    assert "  # manifest.yaml:9: notify calls ctx.record_event\n  - {apiGroups: [events.k8s.io]" in text
    assert main(["generate", "rbac", "."]) == 0
    plain = capsys.readouterr().out
    assert list(yaml.safe_load_all(plain)) == list(yaml.safe_load_all(text))


def test_a_wider_rule_is_not_repeated(capsys) -> None:
    """What a ClusterRole has is in no Role."""
    example = EXAMPLES / "09-custom-resource-operator"
    objects = printed(capsys, str(example), "--crds", str(example / "crd.yaml"))
    (role,) = [each for each in objects if "rules" in each]
    assert role["kind"] == "ClusterRole"
    resources = [rule["resources"][0] for rule in role["rules"]]
    assert len(resources) == len(set(resources))


def test_a_hook_adds_what_no_manifest_declares(bundle, capsys) -> None:
    """In its own namespaces, in those of the handlers, or in the whole cluster."""
    bundle(
        """
        import declctl

        def notify(obj, ctx):
            ctx.client

        @declctl.hookimpl
        def declctl_rbac():
            secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
            return [
                {**secrets, "namespaces": ["vault"], "reason": "reads the key"},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["watch", "delete"]},
                {**secrets, "resources": ["nodes"], "namespaces": ["*"]},
                {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
            ]
        """
    )
    assert main(["generate", "rbac", ".", "--explain"]) == 0
    captured = capsys.readouterr()
    objects = list(yaml.safe_load_all(captured.out))
    urls = [rule for each in objects for rule in each.get("rules", ()) if "nonResourceURLs" in rule]
    assert urls == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    for each in objects:
        if "rules" in each:
            each["rules"] = [rule for rule in each["rules"] if rule not in urls]
    assert rules(objects) == {
        None: ["/nodes: get"],
        "team-a": ["/pods: list watch delete"],
        "vault": ["/secrets: get"],
    }
    assert "# declctl_rbac of handlers: reads the key" in captured.out
    assert captured.err == ""


def test_a_hook_of_a_resource_of_the_whole_cluster_holds_there(bundle, capsys) -> None:
    """Also if other handlers of its module have namespaces: the calls for the rest would be refused."""
    handlers = """
        import declctl

        def notify(obj): ...

        @declctl.hookimpl
        def declctl_rbac():
            return [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
        """
    maps = "    - {name: maps, apiVersion: v1, kind: ConfigMap}\n"
    manifest = MANIFEST.replace("Pod}\n", f"Pod}}\n{maps}")
    manifest += '    - {name: all, resourceRef: {name: maps}, entryPoint: "handlers:notify"}\n'
    bundle(
        handlers,
        manifest.replace("  namespaces: [team-a]\n", "").replace("Pod}", "Pod, namespaces: [team-a]}"),
    )
    assert rules(printed(capsys, ".")) == {
        None: ["/configmaps: list watch", "/secrets: get"],
        "team-a": ["/pods: list watch"],
    }


def test_the_hook_of_a_plugin_holds_where_its_handlers_are(bundle, capsys, tmp_path, monkeypatch) -> None:
    """An installed plugin, whose secrets are in the cluster; other resources give it no rights."""
    info = tmp_path / "site" / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text("[declctl]\nacme = acme\n", "utf-8")
    source = """
        import declctl

        @declctl.hookimpl
        def declctl_config_schema():
            return {"type": "object", "required": ["token"]}

        @declctl.hookimpl
        def declctl_event(obj): ...

        @declctl.hookimpl
        def declctl_rbac():
            return [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
        """
    (tmp_path / "site" / "acme.py").write_text(dedent(source), "utf-8")
    plugin = "  plugins:\n    - {name: acme, configFrom: [{name: token, env: DECLCTL_NO_SUCH}]}\n"
    manifest = MANIFEST.replace("spec:\n", f"spec:\n{plugin}")
    manifest = manifest.replace(
        "Pod}\n", "Pod}\n    - {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [b]}\n"
    )
    manifest += "    - {name: chat, resourceRef: {name: maps}, pluginRef: {name: acme}}\n"
    bundle("def notify(obj): ...", manifest)
    command = [sys.executable, "-m", "declctl", "generate", "rbac", "."]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert rules(list(yaml.safe_load_all(done.stdout))) == {
        "b": ["/configmaps: list watch", "/secrets: get"],
        "team-a": ["/pods: list watch"],
    }


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "returned a NoneType"),
        ("['get secrets']", "returned a str in its list"),
        ("[{'resources': ['secrets'], 'verbs': ['get']}]", "without apiGroups"),
        ("[{'apiGroups': [''], 'verbs': ['get']}]", "without resources"),
        ("[{'apiGroups': [''], 'resources': 'secrets', 'verbs': ['get']}]", "whose resources is 'secrets'"),
        ("[{'apigroups': [''], 'resources': ['secrets'], 'verbs': ['get']}]", "a rule with 'apigroups'"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_hook_that_returns_no_rules_is_an_error(bundle, capsys, returned: str, said: str) -> None:
    """With the place and what to do."""
    bundle(
        f"import declctl\ndef notify(obj): ...\n@declctl.hookimpl\ndef declctl_rbac(): return {returned}\n"
    )
    assert main(["generate", "rbac", "."]) == 1
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_writes_that_nothing_declares_are_told(bundle, capsys) -> None:
    """Their rights can't be known."""
    bundle("def notify(obj, ctx): ctx.sync.apply(ctx.client)")
    printed(capsys, ".")
    assert main(["generate", "rbac", "."]) == 0
    said = capsys.readouterr().err
    assert "notify writes objects, and declares no `applies`" in said
    assert "notify uses ctx.client" in said


def test_a_plural_that_is_not_known_is_refused(bundle, capsys) -> None:
    """A guess would be a right to something else."""
    bundle("def notify(obj): ...", MANIFEST.replace("v1, kind: Pod", "example.dev/v1, kind: Fox"))
    assert main(["generate", "rbac", "."]) == 2
    said = capsys.readouterr().err
    assert "example.dev/v1 Fox (manifest.yaml:7)" in said
    assert "--crds FILE" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be read"),
        ("a: [", "is not YAML"),
        ("a: 2026-13-01", "is not YAML"),
        ("kind: Pod", "has no CustomResourceDefinition"),
        ("kind: List", "has no CustomResourceDefinition"),
    ],
)
def test_a_file_without_definitions_is_refused(bundle, capsys, text: str | None, said: str) -> None:
    """With its name."""
    bundle("def notify(obj): ...")
    if text is not None:
        Path("crds.yaml").write_text(text, "utf-8")
    assert main(["generate", "rbac", ".", "--crds", "crds.yaml"]) == 2
    assert said in capsys.readouterr().err


def test_secrets_of_plugins_need_not_be_there(bundle, capsys) -> None:
    """They are in the cluster, and this is a laptop."""
    plugin = "  plugins:\n    - name: changelog\n      onError: Disable\n"
    plugin += "      configFrom: [{name: token, env: DECLCTL_NO_SUCH}]\n"
    bundle("def notify(obj): ...", MANIFEST.replace("spec:\n", f"spec:\n{plugin}"))
    assert main(["generate", "rbac", "."]) == 0
    assert "DECLCTL_NO_SUCH" not in capsys.readouterr().err
    assert main(["validate", "."]) == 1
    assert "DECLCTL_NO_SUCH" in capsys.readouterr().err


def test_options_that_contradict_are_refused(bundle, capsys) -> None:
    """Before anything is read."""
    assert main(["generate", "rbac", ".", "--kubeconfig", "x"]) == 2
    assert main(["generate", "rbac", ".", "--cluster", "--crds", "x"]) == 2


@pytest.mark.parametrize("option", ["--name", "--namespace"])
def test_a_name_that_labels_can_not_have_is_refused(bundle, capsys, option: str) -> None:
    """The server would refuse the objects, one after the other."""
    bundle("def notify(obj): ...")
    assert main(["generate", "rbac", ".", option, "Guard_1"]) == 2
    assert f'{option} "Guard_1" is no name' in capsys.readouterr().err
    assert capsys.readouterr().out == ""
