"""`declctl generate rbac`: what is printed, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from tests.rooms.cli.conftest import Command, Ended

EXAMPLES = Path(__file__).parents[3] / "examples"
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
PLAIN = "def notify(obj): ..."
SECRETS = '{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}'
HOOK = f"""
import declctl

def notify(obj): ...

@declctl.hookimpl
def declctl_rbac():
    return [{SECRETS}]
"""
MAPS = "    - {name: maps, apiVersion: v1, kind: ConfigMap}\n"


@pytest.fixture(name="rbac")
def _rbac(declctl: Command, write: Callable) -> Callable[..., Ended]:
    """Runs the command for handlers and a manifest."""

    def rbac(handlers: str, *options: str, manifest: str = MANIFEST) -> Ended:
        write("handlers.py", dedent(handlers))
        write("manifest.yaml", manifest)
        return declctl("generate", "rbac", ".", *options)

    return rbac


def printed(ended: Ended) -> list[dict[str, Any]]:
    assert ended.status == 0, ended
    return list(yaml.safe_load_all(ended.out))


def rules(objects: list[dict[str, Any]]) -> dict[str | None, list[str]]:
    """The rules by namespace, as `groups/resources: verbs`, or by its URLs."""
    return {
        each["metadata"].get("namespace"): [
            f"{'+'.join(rule['apiGroups'])}/{'+'.join(rule['resources'])}: {' '.join(rule['verbs'])}"
            if "resources" in rule
            else f"{'+'.join(rule['nonResourceURLs'])}: {' '.join(rule['verbs'])}"
            for rule in each["rules"]
        ]
        for each in objects
        if "rules" in each
    }


def test_roles_are_bound_to_the_account_in_each_namespace(rbac):
    """And have names that two controllers of one name do not share."""
    two = MANIFEST.replace("[team-a]", "[team-a, team-b]")
    objects = printed(rbac(PLAIN, "-n", "team-a", "--name", "other", manifest=two))
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


def test_names_of_roles_are_those_of_one_controller(rbac):
    """`a-b` of the namespace `c` and `b` of `c-a` would share a ClusterRole if a dash joined both."""
    everywhere = MANIFEST.replace("[team-a]", '["*"]')
    names = [
        each["metadata"]["name"]
        for namespace, name in (("a", "b-c"), ("a-b", "c"))
        for each in printed(rbac(PLAIN, "-n", namespace, "--name", name, manifest=everywhere))
        if each["kind"].startswith("ClusterRole")
    ]
    assert names == ["declctl:a:b-c"] * 2 + ["declctl:a-b:c"] * 2


def test_explain_names_the_line_of_each_reason(rbac):
    """As comments, so that the output stays YAML."""
    source = "def notify(obj, ctx): ctx.record_event(obj, 'R', 'm')"
    explained = rbac(source, "--explain")
    resource, method = "the informer of the resource pods", "notify calls ctx.record_event"
    assert f"  # manifest.yaml:7: {resource}\n  - {{apiGroups: ['']" in explained.out
    assert f"  # manifest.yaml:9: {method}\n  - {{apiGroups: [events.k8s.io]" in explained.out
    assert printed(rbac(source)) == printed(explained)


def test_a_wider_rule_is_not_repeated(declctl):
    """What a ClusterRole has is in no Role."""
    example = EXAMPLES / "09-custom-resource-operator"
    objects = printed(declctl("generate", "rbac", str(example)))
    (role,) = [each for each in objects if "rules" in each]
    assert role["kind"] == "ClusterRole"
    resources = [rule["resources"][0] for rule in role["rules"]]
    assert len(resources) == len(set(resources))


def test_a_hook_adds_what_no_manifest_declares(rbac):
    """In its own namespaces, in those of the handlers, or in the whole cluster."""
    ended = rbac(
        f"""
        import declctl

        def notify(obj, ctx):
            ctx.client

        @declctl.hookimpl
        def declctl_rbac():
            secrets = {SECRETS}
            return [
                {{**secrets, "namespaces": ["vault"], "reason": "reads the key"}},
                {{"apiGroups": [""], "resources": ["pods"], "verbs": ["watch", "delete"]}},
                {{**secrets, "resources": ["nodes"], "namespaces": ["*"]}},
                {{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}},
            ]
        """,
        "--explain",
    )
    assert rules(printed(ended)) == {
        None: ["/metrics: get", "/nodes: get"],
        "team-a": ["/pods: list watch delete"],
        "vault": ["/secrets: get"],
    }
    assert "# declctl_rbac of handlers: reads the key" in ended.out
    assert ended.err == ""


def test_a_hook_of_a_resource_of_the_whole_cluster_holds_there(rbac):
    """Also if other handlers of its module have namespaces: the calls for the rest would be refused."""
    manifest = MANIFEST.replace("  namespaces: [team-a]\n", "")
    manifest = manifest.replace("Pod}\n", f"Pod, namespaces: [team-a]}}\n{MAPS}")
    manifest += '    - {name: all, resourceRef: {name: maps}, entryPoint: "handlers:notify"}\n'
    assert rules(printed(rbac(HOOK, manifest=manifest))) == {
        None: ["/configmaps: list watch", "/secrets: get"],
        "team-a": ["/pods: list watch"],
    }


def test_the_hook_of_a_plugin_holds_where_its_handlers_are(rbac, install):
    """An installed plugin, whose secrets are in the cluster; other resources give it no rights."""
    schema = "def declctl_config_schema(): return {'type': 'object', 'required': ['token']}\n"
    event = "def declctl_event(obj): ...\n"
    install("acme", f"{HOOK}@declctl.hookimpl\n{schema}@declctl.hookimpl\n{event}")
    plugin = "  plugins:\n    - {name: acme, configFrom: [{name: token, env: DECLCTL_NO_SUCH}]}\n"
    maps = MAPS.replace("ConfigMap", "ConfigMap, namespaces: [b]")
    manifest = MANIFEST.replace("spec:\n", f"spec:\n{plugin}").replace("Pod}\n", f"Pod}}\n{maps}")
    manifest += "    - {name: chat, resourceRef: {name: maps}, pluginRef: {name: acme}}\n"
    assert rules(printed(rbac(PLAIN, manifest=manifest))) == {
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
def test_a_hook_that_returns_no_rules_is_an_error(rbac, returned, said):
    ended = rbac(HOOK.replace(f"[{SECRETS}]", returned))
    assert (ended.status, ended.out) == (1, "")
    assert said in ended.err


def test_writes_that_nothing_declares_are_told(rbac):
    """Their rights can't be known."""
    ended = rbac("def notify(obj, ctx): ctx.sync.apply(ctx.client)")
    assert ended.status == 0
    assert "notify uses ctx.client" in ended.err
    assert "notify writes objects, and declares no `applies`" in ended.err


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
def test_a_file_without_definitions_is_refused(rbac, write, text, said):
    if text is not None:
        write("crds.yaml", text)
    ended = rbac(PLAIN, "--crds", "crds.yaml")
    assert (ended.status, said in ended.err) == (2, True)


def test_secrets_of_plugins_need_not_be_there(rbac, declctl):
    """They are in the cluster, and this is a laptop."""
    plugin = "  plugins:\n    - name: changelog\n      onError: Disable\n"
    plugin += "      configFrom: [{name: token, env: DECLCTL_NO_SUCH}]\n"
    ended = rbac(PLAIN, manifest=MANIFEST.replace("spec:\n", f"spec:\n{plugin}"))
    assert (ended.status, "DECLCTL_NO_SUCH" in ended.err) == (0, False)
    assert "DECLCTL_NO_SUCH" in declctl.refused("validate", ".", status=1)


@pytest.mark.parametrize("option", ["--name", "--namespace"])
def test_options_that_contradict_or_no_label_can_have_are_refused(declctl, rbac, option):
    """Before anything is read, or before the server refuses the objects, one after the other."""
    assert "--cluster" in declctl.refused("generate", "rbac", ".", "--kubeconfig", "x")
    assert "--crds" in declctl.refused("generate", "rbac", ".", "--cluster", "--crds", "x")
    ended = rbac(PLAIN, option, "Guard_1")
    assert (ended.status, ended.out) == (2, "")
    assert f'{option} "Guard_1" is no name' in ended.err


def test_a_plural_that_is_not_known_is_refused(rbac):
    """A guess would be a right to something else."""
    ended = rbac(PLAIN, manifest=MANIFEST.replace("v1, kind: Pod", "example.dev/v1, kind: Fox"))
    assert ended.status == 2
    assert "--crds FILE" in ended.err
    assert "example.dev/v1 Fox (manifest.yaml:7)" in ended.err
