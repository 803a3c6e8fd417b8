"""`validate --cluster`: what the server says to a manifest."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pytest
from msgspec.structs import replace

from declctl.cli.validate import ask_cluster
from declctl.errors import ApiError, Forbidden, NotFound, Unreachable
from declctl.manifest import Diagnostic, LoadedManifest, ManifestSource, load
from declctl.manifest.rights import HandlerCode
from declctl.objects import GroupVersionKind, KubeObject, Resource

MANIFEST = b"""\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: hello}
spec:
  namespaces: [team-a, team-b]
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
    - name: nodes
      apiVersion: v1
      kind: Node
  handlers:
    - {name: h, resourceRef: {name: pods}, entryPoint: "handlers:f"}
"""


class Server:
    """A server that has kinds and allows things."""

    def __init__(
        self,
        *,
        refuses: set[tuple[str, str, str]] = frozenset(),
        error: ApiError | None = None,
        forbidden: str = "",
    ) -> None:
        self._forbidden = forbidden  # the name of an object that may not be read
        self.kinds = {"Pod": Resource(GroupVersionKind.of("v1", "Pod"), "pods", True)}
        self.kinds["Node"] = Resource(GroupVersionKind.of("v1", "Node"), "nodes", False)
        self.asked: list[tuple[str, str, str]] = []
        self.missing: set[str] = set()
        self.names: dict[tuple[str, str, str], list[str]] = {}  # of the objects that were asked about
        self.selected: Sequence[str] = ()  # the namespaces that every selector matches
        self.selectors: list[str] = []
        self.schemas: dict[str, Any] = {}
        self._refuses, self._error = refuses, error

    async def discover(self, gvk: GroupVersionKind) -> Resource:
        if self._error:
            raise self._error
        if gvk.kind not in self.kinds or gvk.api_version != self.kinds[gvk.kind].gvk.api_version:
            raise NotFound(404, "NotFound", f"the server does not serve {gvk}")
        return self.kinds[gvk.kind]

    async def request_json(self, method: str, path: str, *, body: KubeObject | None = None) -> KubeObject:
        if path == "/apis":
            return {"groups": [{"preferredVersion": {"groupVersion": "apps/v1"}}]}
        if method == "GET":
            if path == "/openapi/v3/api/v1":
                self.asked.append(("get", "schemas", ""))
                return {"components": {"schemas": self.schemas}}
            if path.startswith("/api/v1/namespaces?labelSelector="):
                self.selectors.append(unquote(path.partition("=")[2]))
                return {"items": [{"metadata": {"name": name}} for name in self.selected]}
            if path.rpartition("/")[2] == self._forbidden:
                raise Forbidden(403, "Forbidden", "it may not be read")
            if path.rpartition("/")[2] in self.missing:
                raise NotFound(404, "NotFound", "namespaces not found")
            return {}
        assert body is not None
        wanted: dict[str, Any] = body["spec"]["resourceAttributes"]
        below = f"/{wanted['subresource']}" if "subresource" in wanted else ""
        asked = (wanted["verb"], wanted["resource"] + below, wanted["namespace"])
        self.asked.append(asked)
        self.names.setdefault(asked, []).append(wanted.get("name", ""))
        return {"status": {"allowed": asked not in self._refuses}}


def asked_of(server: Server, loaded: LoadedManifest, *methods: str) -> list[Diagnostic]:
    """What the server has against a manifest whose handler `h` uses these methods of ctx."""
    code = {"h": HandlerCode(frozenset(methods))}
    return list(asyncio.run(ask_cluster(loaded, server, code=code)).faults)


def faults(server: Server) -> list[Diagnostic]:
    """What the server has against the manifest."""
    loaded = load(ManifestSource("manifest.yaml", MANIFEST), environ={})
    return asked_of(server, loaded)


def test_every_watch_is_asked_for_once():
    """List and watch are asked for in each namespace, and without one for what is cluster-scoped."""
    server = Server()
    assert faults(server) == []
    assert server.asked == [
        (verb, resource, namespace)
        for resource, namespace in (("pods", "team-a"), ("pods", "team-b"), ("nodes", ""))
        for verb in ("list", "watch")
    ]


def test_a_kind_that_the_server_lacks_is_shown_at_its_line():
    """A custom kind whose definition is missing is told before anything runs."""
    server = Server()
    del server.kinds["Node"]
    (fault,) = faults(server)
    assert (fault.code, fault.line, fault.column) == ("DCL050", 12, 13)
    assert "does not serve Node in v1" in fault.message


def test_a_missing_permission_names_verb_and_namespace():
    """A Role that lacks a verb is told with what it lacks, at the resource."""
    (fault,) = faults(Server(refuses={("watch", "pods", "team-b")}))
    assert (fault.code, fault.line) == ("DCL051", 7)
    assert fault.message == "you may not watch pods in the namespace team-b"


def test_a_silent_cluster_is_one_fault():
    """When the cluster doesn't answer, that is said once and not for each resource."""
    (fault,) = faults(Server(error=Unreachable("connection refused")))
    assert fault.code == "DCL052"
    assert "connection refused" in fault.message


def test_a_kind_of_another_apiversion_is_suggested():
    """`kind: Node` in v1 where the cluster has it in apps/v1: the help has the line to write."""
    server = Server()
    server.kinds["Node"] = Resource(GroupVersionKind.of("apps/v1", "Node"), "nodes", False)
    (fault,) = faults(server)
    assert fault.suggestion == 'did you mean "apiVersion: apps/v1"? The cluster serves Node there'


def test_what_is_in_no_namespace_needs_a_clusterrole():
    """Who grants list and watch of nodes in a Role grants nothing."""
    (fault,) = faults(Server(refuses={("list", "nodes", "")}))
    assert fault.message == "you may not list nodes in the whole cluster"
    assert fault.suggestion == (
        'grant it by a ClusterRole with the rule {apiGroups: [""], resources: ["nodes"], verbs: ["list", '
        '"watch"]}; nodes are in no namespace, so that a Role can\'t grant it'
    )


def test_a_namespace_that_is_not_there_is_a_warning():
    """A mistyped namespace would be watched in vain; one that comes later is seen then."""
    server = Server()
    server.missing = {"team-b"}
    (fault,) = faults(server)
    assert (fault.code, fault.severity) == ("DCL053", "warning")
    assert fault.message == (
        "the namespace team-b is not in the cluster: there is nothing to watch until it is"
    )


def test_events_need_a_right_where_handlers_record_them():
    """`ctx.record_event` would fail in the background, where few people look."""
    server = Server(refuses={("create", "events", "team-a")})
    assert faults(server) == []
    loaded = load(ManifestSource("manifest.yaml", MANIFEST), environ={})
    (fault,) = asked_of(server, loaded, "record_event")
    assert (fault.code, fault.severity) == ("DCL051", "warning")
    assert fault.message == (
        "you may not create events in the namespace team-a, and h calls ctx.record_event"
    )
    assert fault.suggestion == (
        'grant it by a Role of the namespace team-a with the rule {apiGroups: ["events.k8s.io"], resources: '
        '["events"], verbs: ["create", "patch"]}'
    )


def test_a_series_of_events_needs_another_right():
    """Who may create an Event but not patch it would see the first one only."""
    loaded = load(ManifestSource("manifest.yaml", MANIFEST), environ={})
    server = Server(refuses={("patch", "events", "team-a")})
    (fault,) = asked_of(server, loaded, "record_event")
    assert fault.message.startswith("you may not patch events in the namespace team-a")


POD_SCHEMAS = {
    "io.k8s.api.core.v1.Pod": {
        "type": "object",
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}],
        "properties": {
            "metadata": {"allOf": [{"$ref": "#/components/schemas/Meta"}], "default": {}},
            "status": {"$ref": "#/components/schemas/Status"},
            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"a": {}}},
        },
    },
    "Meta": {
        "properties": {"labels": {"additionalProperties": {"type": "string"}}, "name": {"type": "string"}}
    },
    "Status": {
        "properties": {
            "phase": {"type": "string"},
            "conditions": {"type": "array", "items": {"$ref": "#/components/schemas/Status"}},
            "ring": {"$ref": "#/components/schemas/Ring"},
        }
    },
    "Ring": {"allOf": [{"$ref": "#/components/schemas/Ring"}]},
}


def expression_faults(expression: str, schemas: dict[str, Any]) -> list[Diagnostic]:
    """What the server has against a handler's expression."""
    filtered = f'"handlers:f", filter: {{expression: "{expression}"}}'
    text = MANIFEST.decode().replace('"handlers:f"', filtered)
    server = Server()
    server.schemas = schemas
    loaded = load(ManifestSource("manifest.yaml", text.encode()), environ={})
    found = asked_of(server, loaded)
    assert server.asked.count(("get", "schemas", "")) == 1
    return found


def test_a_field_that_the_kind_lacks_is_shown_in_the_expression():
    """The fault stands at the name, with the name that was meant."""
    (fault,) = expression_faults("obj.metadata.name != '' && obj.status.phaze == 'x'", POD_SCHEMAS)
    assert (fault.code, fault.severity) == ("DCL054", "error")
    assert fault.message == "a Pod has no field phaze in obj.status"
    assert fault.suggestion == 'did you mean "phase"?'
    assert fault.source_line[fault.column - 1 :].startswith("phaze == 'x'")


def test_a_field_that_the_kind_of_a_watch_lacks_is_shown_in_its_expression():
    """The kind is that of the watched resource, and not that of the handler."""
    watch = "{resourceRef: {name: pods}, mapTo: {label: x}, filter: {expression: obj.status.phaze == 'x'}}"
    manifest = (
        "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: c}\nspec:\n  resources:\n"
        "    - {name: apps, apiVersion: apps/v1, kind: Deployment}\n"
        "    - {name: pods, apiVersion: v1, kind: Pod}\n  handlers:\n"
        "    - {name: a, mode: Reconcile, resourceRef: {name: apps}, entryPoint: m, "
        f"watches: [{watch}]}}\n"
    )
    server = Server()
    server.schemas = POD_SCHEMAS
    loaded = load(ManifestSource("manifest.yaml", manifest.encode()), environ={})
    faults = asked_of(server, loaded)
    (fault,) = [each for each in faults if each.code == "DCL054"]
    assert fault.message == "a Pod has no field phaze in obj.status"
    assert fault.source_line[fault.column - 1 :].startswith("phaze == 'x'")


def test_a_field_that_resembles_none_is_told_which_there_are():
    (fault,) = expression_faults("old == null || old.quite.other == obj.spec.any", POD_SCHEMAS)
    assert fault.message == "a Pod has no field quite in old"
    assert fault.suggestion == "it has metadata, spec and status"


@pytest.mark.parametrize(
    "expression",
    [
        "obj.metadata.labels.anything == 'x'",  # a map
        "obj.spec.unknown.x == 1",  # preserves unknown fields
        "obj.status.conditions.exists(c, c.nope == 1)",  # elements of lists are not checked
        "obj.status.phase.x == 1",  # no object: an error when it is evaluated
        "obj.status.ring.x == 1",
        "change.type == 'Added' && old == null",
    ],
)
def test_what_is_there_or_not_known_is_fine(expression):
    assert expression_faults(expression, POD_SCHEMAS) == []


def test_a_server_without_schemas_refuses_nothing():
    """As before 1.24, or where the schemas may not be read."""
    assert expression_faults("obj.quite.other == 1", {}) == []


WRITER = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: hello}
spec:
  namespaces: [team-a]
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
    - {name: nodes, apiVersion: v1, kind: Node}
  handlers:
    - name: h
      resourceRef: {name: RESOURCE}
      entryPoint: "handlers:f"
      applies:
        - {apiVersion: apps/v1, kind: Deployment}
        - {apiVersion: v1, kind: Node}
      status: true
"""


def written_faults(server: Server, resource: str = "pods", *methods: str) -> list[Diagnostic]:
    """What the server has against a handler that declares its writes."""
    server.kinds["Deployment"] = Resource(GroupVersionKind.of("apps/v1", "Deployment"), "deployments", True)
    text = WRITER.replace("RESOURCE", resource).encode()
    loaded = load(ManifestSource("manifest.yaml", text), environ={})
    return asked_of(server, loaded, *methods)


def _with_status(server: Server) -> Server:
    for kind, found in list(server.kinds.items()):
        server.kinds[kind] = replace(found, subresources=frozenset({"status"}))
    return server


def test_the_rights_to_write_are_asked_for_where_the_handler_writes():
    """A namespaced kind in the namespaces of the resource, another one in the whole cluster."""
    server = _with_status(Server())
    assert written_faults(server, "pods", "apply_set") == []
    assert server.asked[4:] == [
        *((verb, "deployments", "team-a") for verb in ("get", "list", "create", "patch", "delete")),
        *((verb, "nodes", "") for verb in ("create", "patch")),  # which are in no set of a pod
        ("get", "pods", "team-a"),
        ("patch", "pods", "team-a"),
        ("patch", "pods/status", "team-a"),
    ]
    server.asked.clear()
    assert written_faults(server, "pods", "apply") == []
    verbs = [verb for verb, resource, _ in server.asked if resource == "deployments"]
    assert verbs == ["create", "patch"]


def test_a_handler_of_a_cluster_scoped_kind_writes_anywhere():
    """Nothing says in which namespace a handler of nodes writes, so a ClusterRole is needed."""
    server = _with_status(Server(refuses={("create", "deployments", "")}))
    (fault,) = written_faults(server, "nodes")
    assert fault.suggestion is not None
    assert fault.suggestion.startswith("grant it by a ClusterRole with the rule")


def test_a_missing_right_to_write_is_named_with_the_rule_that_gives_it():
    """The rule can be pasted into a Role; the fault stands at the kind in `applies`."""
    refuses = {("create", "deployments", "team-a"), ("delete", "deployments", "team-a")}
    (fault,) = written_faults(_with_status(Server(refuses=refuses)), "pods", "apply_set")
    assert (fault.code, fault.line) == ("DCL051", 14)
    assert fault.message == "you may not create or delete deployments in the namespace team-a"
    assert fault.suggestion == (
        'grant it by a Role of the namespace team-a with the rule {apiGroups: ["apps"], resources: '
        '["deployments"], verbs: ["get", "list", "create", "patch", "delete"]}'
    )


def test_a_status_needs_a_right_of_its_own():
    """`patch` of `pods/status` is another right than `patch` of pods."""
    (fault,) = written_faults(_with_status(Server(refuses={("patch", "pods/status", "team-a")})))
    assert (fault.code, fault.line) == ("DCL051", 16)
    assert fault.suggestion is not None
    assert 'resources: ["pods/status"], verbs: ["patch"]' in fault.suggestion


def test_a_kind_without_a_status_or_that_is_not_served_is_told():
    """`status: true` of a kind without the subresource, and a kind in `applies` that is not installed."""
    server = Server()
    del server.kinds["Node"]
    found = {(fault.code, fault.line): fault.message for fault in written_faults(server)}
    assert found["DCL050", 15] == "the cluster does not serve Node in v1"
    assert found["DCL055", 16] == "pods have no status subresource, and h writes their status"


def test_a_finalizer_needs_a_right_to_the_object():
    """Two verbs of the kind itself; the fault stands at the finalizer."""
    text = WRITER.replace("RESOURCE", "pods").replace("      status: true", "      finalizer: example.dev/h")
    text = text.replace("entryPoint", "mode: Reconcile\n      entryPoint")
    server = Server(refuses={("patch", "pods", "team-a")})
    server.kinds["Deployment"] = Resource(GroupVersionKind.of("apps/v1", "Deployment"), "deployments", True)
    loaded = load(ManifestSource("manifest.yaml", text.encode()), environ={})
    (fault,) = asked_of(server, loaded)
    assert (fault.code, fault.line) == ("DCL051", 17)
    assert fault.message == "you may not patch pods in the namespace team-a"
    assert fault.suggestion is not None
    assert 'resources: ["pods"], verbs: ["get", "patch"]' in fault.suggestion


SELECTING = MANIFEST.replace(b"[team-a, team-b]", b"{labelSelector: 'team in (web,api)'}")


def selecting(server: Server, text: bytes = SELECTING) -> tuple[list[Diagnostic], list[str]]:
    """What the server has against a selector of namespaces, and the lines about what it matches."""
    loaded = load(ManifestSource("manifest.yaml", text), environ={})
    found = asyncio.run(ask_cluster(loaded, server))
    return list(found.faults), [line for lines in found.notes.values() for line in lines]


def test_rights_are_asked_for_in_each_namespace_that_a_selector_matches():
    """Once for each resource and verb, and in no other namespace; a line says which namespaces there are."""
    server = Server(refuses={("watch", "pods", "b")})
    server.selected = ["b", "a"]
    (fault,), notes = selecting(server)
    assert fault.message == "you may not watch pods in the namespace b"
    assert notes == ["namespaces with team in (api,web): 2 now (a, b)"]
    assert server.selectors == ["team in (api,web)"]
    assert {namespace for _, resource, namespace in server.asked if resource == "pods"} == {"a", "b"}
    assert ("list", "nodes", "") in server.asked


def test_a_selector_needs_the_right_to_list_namespaces():
    """Told at the selector, with the rule; namespaces are not listed without it."""
    server = Server(refuses={("watch", "namespaces", "")})
    (fault,), notes = selecting(server)
    assert (fault.code, fault.line) == ("DCL051", 5)
    assert fault.message == (
        "you may not watch namespaces in the whole cluster, which a selector of namespaces needs"
    )
    assert fault.suggestion == (
        'grant it by a ClusterRole with the rule {apiGroups: [""], resources: ["namespaces"], '
        'verbs: ["list", "watch"]}'
    )
    assert (server.selectors, notes) == ([], [])


def test_a_selector_that_matches_nothing_is_a_warning():
    """It may be a mistake; if it is none, what comes later is watched."""
    (fault,), notes = selecting(Server())
    assert (fault.code, fault.severity, fault.line) == ("DCL053", "warning", 5)
    assert fault.message == (
        "no namespace has the labels team in (api,web): there is nothing to watch until one has"
    )
    assert notes == ["namespaces with team in (api,web): 0 now"]


def test_of_many_namespaces_some_are_named_and_the_first_are_asked_about():
    """A cluster with thousands is not asked for each of them."""
    server = Server()
    server.selected = [f"n{number:04}" for number in range(1000)]
    found, notes = selecting(server)
    assert (found, notes) == (
        [],
        ["namespaces with team in (api,web): 1,000 now (n0000, n0001, n0002, n0003, n0004, …)"],
    )
    assert len([asked for asked in server.asked if asked[1] == "pods"]) == 100


def test_the_owner_of_a_set_has_to_be_marked():
    """`apply_set` patches the parent: a warning, as only the code says that it is called."""
    refuses = {("patch", "pods", "team-a")}
    assert written_faults(_with_status(Server(refuses=refuses))) == []
    (fault,) = written_faults(_with_status(Server(refuses=refuses)), "pods", "apply_set")
    assert (fault.code, fault.severity, fault.line) == ("DCL051", "warning", 14)
    assert "ctx.apply_set of h marks the owner" in fault.message
    assert fault.suggestion is not None
    assert 'resources: ["pods"], verbs: ["get", "patch"]' in fault.suggestion


def test_a_right_to_one_object_is_asked_for_by_its_name():
    """A rule with resourceNames is enough for a resource with names, and for a Lease."""
    text = MANIFEST.replace(b"      kind: Pod\n", b"      kind: Pod\n      names: [a, b]\n")
    text += b"  leaderElection: {enabled: true, namespace: own}\n"
    server = Server(refuses={("update", "leases", "own")})
    (fault,) = asked_of(server, load(ManifestSource("manifest.yaml", text), environ={}))
    assert [asked for asked in server.asked if asked[1] == "leases"] == [
        (verb, "leases", "own") for verb in ("create", "get", "update")
    ]
    assert server.names["list", "pods", "team-a"] == ["a", "b"]
    assert fault.suggestion is not None
    assert 'resourceNames: ["hello"], verbs: ["get", "update"]' in fault.suggestion


_WITH_SECRET = MANIFEST.replace(
    b"spec:\n",
    b"spec:\n  plugins:\n    - name: slack\n      configFrom:\n"
    b"        - {name: token, secretKeyRef: {name: chat, key: token}}\n",
)


def test_a_secret_of_a_config_has_to_be_there():
    """In the namespace of the process, with the key, and with the right to get this one."""
    loaded = load(ManifestSource("manifest.yaml", _WITH_SECRET), environ={})
    server = Server()
    (fault,) = asked_of(server, loaded)
    assert (fault.code, fault.line, fault.column) == ("DCL057", 8, 57)
    assert fault.message == "the Secret default/chat has no key token"
    assert server.names["get", "secrets", "default"] == ["chat"]
    server.missing = {"chat"}
    (fault,) = asked_of(server, loaded)
    assert (fault.code, fault.line, fault.column) == ("DCL057", 8, 46)
    create = "kubectl create secret generic chat --namespace default --from-file token=FILE"
    assert fault.suggestion == f"create it: `{create}`"


def test_a_secret_that_may_not_be_read_is_told_with_the_rule():
    """The rule has no other Secret."""
    loaded = load(ManifestSource("manifest.yaml", _WITH_SECRET), environ={})
    server = Server(refuses={("get", "secrets", "default")}, forbidden="chat")
    (fault,) = asked_of(server, loaded)
    assert (fault.code, fault.line) == ("DCL051", 8)
    assert fault.message == "you may not get secrets in the namespace default"
    assert 'resources: ["secrets"], resourceNames: ["chat"], verbs: ["get"]' in str(fault.suggestion)
