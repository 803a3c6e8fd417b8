"""The rights of a plan: as narrow as the requests that a process sends."""

from collections.abc import Mapping

import pytest

from declctl.manifest import ManifestSource, load, plan
from declctl.manifest.rights import HandlerCode, Right, kinds_of, rights_of
from declctl.objects import GroupVersionKind, Resource

HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: guard}\nspec:\n"
PODS = "  resources: [{name: pods, apiVersion: v1, kind: Pod}]\n"
APPS = """\
  resources:
    - {name: apps, apiVersion: example.dev/v1, kind: App}
    - {name: pods, apiVersion: v1, kind: Pod}
"""
KINDS: Mapping[str, tuple[str, bool]] = {
    "Pod": ("pods", True),
    "Node": ("nodes", False),
    "App": ("apps", True),
    "Cluster": ("clusters", False),
    "ConfigMap": ("configmaps", True),
    "Namespace": ("namespaces", False),
}


def rights(spec: str, *methods: str, is_known: bool = True) -> list[Right]:
    found = plan(load(ManifestSource("manifest.yaml", (HEAD + spec).encode())).controller)
    kinds = {gvk: Resource(gvk, *KINDS[gvk.kind]) for gvk in kinds_of(found)}
    code = HandlerCode(frozenset(methods), is_known)
    return list(rights_of(found, kinds, {"h": code}, namespace="own"))


def granted(*args, **options) -> set[tuple[str | None, str, str]]:
    """Namespace, resource and verb of each."""
    found = rights(*args, **options)
    return {(right.scope.namespace, right.resource, verb) for right in found for verb in right.verbs}


def every(namespace: str | None, resource: str, verbs: str) -> set[tuple[str | None, str, str]]:
    return {(namespace, resource, verb) for verb in verbs.split()}


def handler(more: str = "", resource: str = "pods") -> str:
    entry = f'{{name: h, resourceRef: {{name: {resource}}}, entryPoint: "handlers:f"'
    return f"  handlers: [{entry}{more}}}]\n"


def test_a_resource_is_listed_and_watched_where_it_is():
    assert granted(PODS) == every(None, "pods", "list watch")
    named = granted("  namespaces: [a, b]\n" + PODS)
    assert named == every("a", "pods", "list watch") | every("b", "pods", "list watch")


def test_a_kind_without_namespaces_ignores_those_of_the_spec():
    """They are those of other resources."""
    spec = "  namespaces: [a]\n  resources: [{name: nodes, apiVersion: v1, kind: Node}]\n"
    assert granted(spec) == every(None, "nodes", "list watch")


def test_names_limit_the_right_unless_a_finalizer_looks_for_others():
    """RBAC compares metadata.name of a field selector; objects that left the names have to be found."""
    spec = "  resources: [{name: pods, apiVersion: v1, kind: Pod, names: [x, y]}]\n"
    assert [right.names for right in rights(spec)] == [("x", "y")]
    finalized = rights(spec + handler(", mode: Reconcile, finalizer: example.dev/h"))
    assert [right.names for right in finalized if "watch" in right.verbs] == [()]


def test_a_selector_of_namespaces_follows_their_labels():
    """Once for each selector."""
    selector = "namespaces: {labelSelector: {matchLabels: {team: web}}}"
    spec = f"  {selector}\n{APPS}"
    found = rights(spec)
    assert [(right.resource, str(right.scope)) for right in found] == [
        ("namespaces", "in the whole cluster"),
        ("apps", "in namespaces with team=web"),
        ("pods", "in namespaces with team=web"),
    ]


def test_apply_creates_and_patches_and_a_set_does_more():
    """A set is read, listed and pruned, and its owner is marked."""
    spec = "  namespaces: [a]\n" + PODS
    declared = handler(", applies: [{apiVersion: v1, kind: ConfigMap}]")
    watched = every("a", "pods", "list watch")
    assert granted(spec + declared, "apply") == watched | every("a", "configmaps", "create patch")
    in_set = every("a", "configmaps", "get list create patch delete") | every("a", "pods", "get patch")
    assert granted(spec + declared, "apply_set") == watched | in_set
    # The source of a plugin is not read.
    plugin = "  plugins: [{name: p}]\n" + spec
    entry = "name: h, resourceRef: {name: pods}, pluginRef: {name: p}"
    plugged = f"  handlers: [{{{entry}, applies: [{{apiVersion: v1, kind: ConfigMap}}]}}]\n"
    assert granted(plugin + plugged, is_known=False) == watched | in_set


def test_single_objects_are_read_where_their_kinds_are_named_and_deleted_if_they_are_written():
    """`ctx.get` of the resources of a handler and of what it writes; `ctx.delete` of what it writes."""
    watch = ", mode: Reconcile, watches: [{resourceRef: {name: apps}, mapTo: {owner: Controller}}]"
    spec = "  namespaces: [a]\n" + APPS + handler(f"{watch}, applies: [{{apiVersion: v1, kind: ConfigMap}}]")
    watched = every("a", "pods", "list watch") | every("a", "apps", "list watch")
    deletes = watched | every("a", "configmaps", "get create patch delete")
    assert granted(spec, "delete") == deletes
    reads = every("a", "pods", "get") | every("a", "apps", "get")
    assert granted(spec, "delete", "get") == deletes | reads
    assert granted(spec.replace("kind: ConfigMap", "kind: ConfigMap, onImmutable: Recreate")) == deletes
    assert {right.declared for right in rights(spec, "get") if right.verbs == ("get",)} == {False}


def test_children_of_a_cluster_scoped_owner_may_be_anywhere():
    """It has no namespace that they could have."""
    spec = "  resources: [{name: clusters, apiVersion: example.dev/v1, kind: Cluster, names: [x]}]\n"
    declared = handler(", applies: [{apiVersion: v1, kind: ConfigMap}]", "clusters")
    assert (None, "configmaps", "delete") in granted(spec + declared, "apply_set")


def test_an_object_of_a_namespace_owns_none_without_one():
    """So there is no set to list and to prune."""
    spec = "  namespaces: [a]\n" + PODS + handler(", applies: [{apiVersion: v1, kind: Namespace}]")
    assert every(None, "namespaces", "create patch") == {
        each for each in granted(spec, "apply_set") if each[1] == "namespaces"
    }


@pytest.mark.parametrize(
    ("declared", "methods", "writes"),
    [
        ("", (), False),
        ("", ("patch_status",), True),
        (", status: true", (), True),
        (", status: false", ("patch_status",), False),
    ],
)
def test_a_status_is_patched_if_it_is_declared_or_called(
    declared: str, methods: tuple[str, ...], writes: bool
):
    """`status: false` refuses it."""
    found = granted("  namespaces: [a]\n" + PODS + handler(declared), *methods)
    assert (("a", "pods/status", "patch") in found, ("a", "pods", "get") in found) == (writes, writes)


def test_a_finalizer_patches_the_object():
    """And reads it after a conflict."""
    found = granted("  namespaces: [a]\n" + PODS + handler(", mode: Reconcile, finalizer: example.dev/h"))
    assert found == every("a", "pods", "get list watch patch")


def test_events_are_posted_where_the_objects_are():
    """An Event about an object without a namespace is in the namespace default."""
    assert every("a", "events", "create patch") <= granted(
        "  namespaces: [a]\n" + PODS + handler(), "record_event"
    )
    spec = "  resources: [{name: nodes, apiVersion: v1, kind: Node}]\n" + handler("", "nodes")
    assert every("default", "events", "create patch") <= granted(spec, "record_event")
    assert "events" not in {each for _, each, _ in granted(PODS + handler())}


def test_a_leader_has_its_lease_and_no_other():
    """RBAC can't compare the name of an object that is created."""
    found = rights(PODS + "  leaderElection: {enabled: true}\n")
    leases = {
        right.verbs: (right.scope.namespace, right.names) for right in found if right.resource == "leases"
    }
    assert leases == {("create",): ("own", ()), ("get", "update"): ("own", ("guard",))}
    spec = "  leaderElection: {enabled: true, leaseName: other, namespace: elsewhere}\n"
    assert {(r.scope.namespace, r.names) for r in rights(PODS + spec) if "get" in r.verbs} == {
        ("elsewhere", ("other",))
    }


def test_processes_that_share_have_their_leases_and_no_others():
    """All Leases have a name beforehand, so that a Role can name them; a list by a label has none."""
    spec = "  sharding: {slots: 2, leaseName: team, namespace: elsewhere}\n"
    assert {r.verbs: (r.scope.namespace, r.names) for r in rights(PODS + spec) if r.resource == "leases"} == {
        ("list", "create"): ("elsewhere", ()),
        ("get", "update"): (
            "elsewhere",
            ("team-shard-0", "team-shard-1", "team-member-0", "team-member-1"),
        ),
    }
    found = rights(PODS + "  sharding: {slots: 1}\n")
    assert {r.scope.namespace for r in found if r.resource == "leases"} == {"own"}
    assert ("guard-shard-0", "guard-member-0") in {right.names for right in found}


def test_tokens_of_kubernetes_are_reviewed_by_the_api_server():
    """The rights of system:auth-delegator, and none of them if the manifest does not ask for it."""
    spec = PODS + "  admin: {authorization: Kubernetes}\n"
    reviews = {(right.group, right.resource, right.verbs, right.scope.namespace) for right in rights(spec)}
    assert reviews >= {
        ("authentication.k8s.io", "tokenreviews", ("create",), None),
        ("authorization.k8s.io", "subjectaccessreviews", ("create",), None),
    }
    assert {right.group for right in rights(PODS)} == {""}


def test_a_kind_that_is_not_known_is_left_out():
    """Its fault is told elsewhere."""
    found = plan(load(ManifestSource("m", (HEAD + APPS).encode())).controller)
    gvk = GroupVersionKind.of("v1", "Pod")
    known = rights_of(found, {gvk: Resource(gvk, "pods", True)}, {}, namespace="own")
    assert [right.resource for right in known] == ["pods"]


def test_a_secret_of_a_config_may_be_read_alone_in_the_namespace_of_the_process():
    """No other Secret, nor those of the namespaces that are watched."""
    sources = "[{name: a, env: A}, {name: b, secretKeyRef: {name: chat, key: b}}]"
    plugins = f"  plugins: [{{name: slack, configFrom: {sources}}}]\n"
    (found,) = [each for each in rights(f"  namespaces: [a]\n{plugins}{PODS}") if each.resource == "secrets"]
    assert (found.group, found.verbs, found.names, found.scope.namespace) == ("", ("get",), ("chat",), "own")
    assert found.path == ("spec", "plugins", 0, "configFrom", 1, "secretKeyRef")
    assert found.reason == "b of the config of the plugin slack"
