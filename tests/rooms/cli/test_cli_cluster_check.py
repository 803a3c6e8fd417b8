"""`validate --cluster`: what the server says to a manifest."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pytest
from msgspec.structs import replace

from declctl.cli.validate import ask_cluster
from declctl.errors import ApiError, Forbidden, GroupUnavailable, InvalidRequest, NotFound, Unreachable
from declctl.manifest import Diagnostic, ManifestSource, load
from declctl.manifest.rights import HandlerCode
from declctl.objects import GroupVersionKind, KubeObject, Resource

MANIFEST = """\
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


def kind_of(api_version: str, kind: str, namespaced: bool = True) -> Resource:
    return Resource(GroupVersionKind.of(api_version, kind), f"{kind.lower()}s", namespaced)


class Server:
    """A server that has kinds and allows things."""

    def __init__(
        self,
        *refuses: tuple[str, str, str],
        error: ApiError | None = None,
        forbidden: str = "",  # the name of an object that may not be read
        missing: str = "",
        selected: Sequence[str] = (),  # the namespaces that every selector matches
        schemas: Mapping[str, Any] | None = None,
        selects: ApiError | None = None,  # what it says to every field selector
    ) -> None:
        self._selects = selects or Forbidden(403, "Forbidden", "no")
        self._refuses, self._error, self._forbidden, self._missing = refuses, error, forbidden, missing
        self._selected, self._schemas = selected, schemas
        self.kinds: dict[str, Resource | ApiError] = {
            "Pod": kind_of("v1", "Pod"),
            "Node": kind_of("v1", "Node", namespaced=False),
        }
        self.asked: list[tuple[str, str, str]] = []
        self.names: dict[tuple[str, str, str], list[str]] = {}  # of the objects that were asked about
        self.selectors: list[str] = []

    async def discover(self, gvk: GroupVersionKind) -> Resource:
        if self._error:
            raise self._error
        if isinstance(known := self.kinds.get(gvk.kind), ApiError):
            raise known
        if known is None or gvk.api_version != known.gvk.api_version:
            raise NotFound(404, "NotFound", f"the server does not serve {gvk}")
        return known

    async def request_json(self, method: str, path: str, *, body: KubeObject | None = None) -> KubeObject:
        if path == "/apis":
            return {"groups": [{"preferredVersion": {"groupVersion": "apps/v1"}}]}
        if method == "GET":
            if path == "/openapi/v3/api/v1":
                self.asked.append(("get", "schemas", ""))
                return {"components": {"schemas": self._schemas or {}}}
            if "?limit=1&fieldSelector=" in path:
                self.selectors.append(unquote(path))
                raise self._selects
            if path.startswith("/api/v1/namespaces?labelSelector="):
                self.selectors.append(unquote(path.partition("=")[2]))
                return {"items": [{"metadata": {"name": name}} for name in self._selected]}
            if path.rpartition("/")[2] == self._forbidden:
                raise Forbidden(403, "Forbidden", "it may not be read")
            if path.rpartition("/")[2] == self._missing:
                raise NotFound(404, "NotFound", "namespaces not found")
            return {}
        assert body is not None
        wanted: dict[str, Any] = body["spec"]["resourceAttributes"]
        below = f"/{wanted['subresource']}" if "subresource" in wanted else ""
        asked = (wanted["verb"], wanted["resource"] + below, wanted["namespace"])
        self.asked.append(asked)
        self.names.setdefault(asked, []).append(wanted.get("name", ""))
        return {"status": {"allowed": asked not in self._refuses}}


def faults(
    server: Server, text: str = MANIFEST, *methods: str, code: HandlerCode | None = None
) -> list[Diagnostic]:
    """What the server has against a manifest whose handler `h` uses these methods of ctx."""
    loaded = load(ManifestSource("manifest.yaml", text.encode()), environ={})
    used = {"h": code or HandlerCode(frozenset(methods))}
    return list(asyncio.run(ask_cluster(loaded, server, code=used)).faults)


def rule(group: str, resource: str, verbs: str) -> str:
    """A rule as advice has it."""
    quoted = ", ".join(f'"{verb}"' for verb in verbs.split())
    return f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: [{quoted}]}}'


SHARED = MANIFEST + "  sharding: {slots: 16}\n"
WATCHES = "mode: Reconcile, watches: [{resourceRef: {name: %s}, mapTo: {label: app}}]"


@pytest.mark.parametrize(
    ("resource", "fields", "whole"),
    [
        ("pods", WATCHES % "nodes", "nodes"),
        ("nodes", WATCHES % "pods", "pods"),
        ("pods", "includeSnapshotsFrom: [nodes]", "nodes"),
        ("nodes", "includeSnapshotsFrom: [pods]", "pods"),
        ("pods", "includeSnapshotsFrom: [pods]", None),
        ("nodes", "timeout: 1s", None),
    ],
)
def test_what_has_no_namespace_is_in_other_slots(resource, fields, whole):
    """The server alone knows that: it is cut by uid, and what it leads to is not where it is."""
    text = SHARED.replace("resourceRef: {name: pods}", f"resourceRef: {{name: {resource}}}, {fields}")
    found = faults(Server(), text)
    assert [(each.code, each.line) for each in found] == ([("DCL017", 14)] if whole else [])
    assert all(f"write sharded: false for {whole}" in str(each.suggestion) for each in found)


def test_of_many_leases_two_are_asked_for():
    """A right to some names alone is one for all of them; 8,192 questions would take minutes."""
    server = Server()
    assert faults(server, SHARED) == []
    assert server.names["update", "leases", "default"] == ["hello-shard-0", "hello-member-15"]
    (lacking,) = faults(Server(("update", "leases", "default")), SHARED)
    assert 'resourceNames: ["hello-shard-0", …, "hello-member-15"]' in lacking.suggestion
    assert "`declctl generate rbac` prints all names" in lacking.suggestion


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
    """A custom kind whose definition is missing is told before anything runs; of another group, with it."""
    server = Server()
    del server.kinds["Node"]
    (fault,) = faults(server)
    assert (fault.code, fault.line, fault.column) == ("DCL050", 12, 13)
    assert "does not serve Node in v1" in fault.message
    server.kinds["Node"] = kind_of("apps/v1", "Node", namespaced=False)
    (fault,) = faults(server)
    assert fault.suggestion == 'did you mean "apiVersion: apps/v1"? The cluster serves Node there'


def test_a_field_selector_that_the_server_refuses_is_shown_at_its_line():
    """It would never sync, and no other place of the manifest shows that; a missing right is told alone."""
    text = MANIFEST.replace("kind: Pod\n", 'kind: Pod\n      fieldSelector: "spec.size=1"\n')
    server = Server(selects=InvalidRequest(400, "BadRequest", "field label not supported: spec.size"))
    (fault,) = faults(server, text)
    assert (fault.code, fault.line, fault.column) == ("DCL033", 10, 22)
    refused = (
        "the server refuses the field selector spec.size=1 of a Pod: field label not supported: spec.size"
    )
    assert fault.message == refused
    assert server.selectors == ["/api/v1/namespaces/team-a/pods?limit=1&fieldSelector=spec.size=1"]
    assert faults(Server(), text) == []


def test_a_group_that_does_not_answer_is_shown_at_its_kind_and_the_rest_is_checked():
    """A metrics API without a backend does not keep the mistake in another line from being found."""
    away = GroupUnavailable(503, "ServiceUnavailable", "the API service of x does not answer")
    server = Server(("list", "pods", "team-a"))
    server.kinds["Node"] = away
    found = faults(server)
    assert [(fault.code, fault.line) for fault in found] == [("DCL052", 12), ("DCL051", 7)]
    assert found[0].message == away.message


def test_a_missing_permission_names_verb_and_namespace():
    """A Role that lacks a verb is told with what it lacks, at the resource; nodes need a ClusterRole."""
    (fault,) = faults(Server(("watch", "pods", "team-b")))
    told = "you may not watch pods in the namespace team-b"
    assert (fault.code, fault.line, fault.message) == ("DCL051", 7, told)
    (fault,) = faults(Server(("list", "nodes", "")))
    assert fault.message == "you may not list nodes in the whole cluster"
    assert fault.suggestion == (
        f"grant it by a ClusterRole with the rule {rule('', 'nodes', 'list watch')}; "
        "nodes are in no namespace, so that a Role can't grant it"
    )


def test_a_silent_cluster_is_one_fault_and_a_missing_namespace_is_a_warning():
    """It is said once and not for each resource. A mistyped namespace would be watched in vain."""
    (fault,) = faults(Server(error=Unreachable("connection refused")))
    assert (fault.code, "connection refused" in fault.message) == ("DCL052", True)
    (fault,) = faults(Server(missing="team-b"))
    assert (fault.code, fault.severity) == ("DCL053", "warning")
    told = "the namespace team-b is not in the cluster: there is nothing to watch until it is"
    assert fault.message == told


def test_events_need_a_right_where_handlers_record_them():
    """`ctx.record_event` would fail unseen; without `patch`, only the first of a series is recorded."""
    server = Server(("create", "events", "team-a"))
    assert faults(server) == []
    (fault,) = faults(server, MANIFEST, "record_event")
    assert (fault.code, fault.severity) == ("DCL051", "warning")
    assert fault.message == "you may not create events in the namespace team-a, and h calls ctx.record_event"
    needed = rule("events.k8s.io", "events", "create patch")
    assert fault.suggestion == f"grant it by a Role of the namespace team-a with the rule {needed}"
    (fault,) = faults(Server(("patch", "events", "team-a")), MANIFEST, "record_event")
    assert fault.message.startswith("you may not patch events in the namespace team-a")


REF = "#/components/schemas/"
POD_SCHEMAS = {
    "io.k8s.api.core.v1.Pod": {
        "type": "object",
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}],
        "properties": {
            "metadata": {"allOf": [{"$ref": f"{REF}Meta"}], "default": {}},
            "status": {"$ref": f"{REF}Status"},
            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"a": {}}},
        },
    },
    "Meta": {
        "properties": {"labels": {"additionalProperties": {"type": "string"}}, "name": {"type": "string"}}
    },
    "Status": {
        "properties": {
            "phase": {"type": "string"},
            "conditions": {"type": "array", "items": {"$ref": f"{REF}Status"}},
            "ring": {"$ref": f"{REF}Ring"},
        }
    },
    "Ring": {"allOf": [{"$ref": f"{REF}Ring"}]},
}


def expression_faults(expression: str, schemas: dict[str, Any] = POD_SCHEMAS) -> list[Diagnostic]:
    """What the server has against a handler's expression."""
    server = Server(schemas=schemas)
    filtered = f'"handlers:f", filter: {{expression: "{expression}"}}'
    found = faults(server, MANIFEST.replace('"handlers:f"', filtered))
    assert server.asked.count(("get", "schemas", "")) == 1
    return found


def test_a_field_that_the_kind_lacks_is_shown_in_the_expression():
    """The fault stands at the name, with the name that was meant, or with those that there are."""
    (fault,) = expression_faults("obj.metadata.name != '' && obj.status.phaze == 'x'")
    assert (fault.code, fault.severity) == ("DCL054", "error")
    assert fault.message == "a Pod has no field phaze in obj.status"
    assert fault.suggestion == 'did you mean "phase"?'
    assert fault.source_line[fault.column - 1 :].startswith("phaze == 'x'")
    (fault,) = expression_faults("old == null || old.quite.other == obj.spec.any")
    assert fault.message == "a Pod has no field quite in old"
    assert fault.suggestion == "it has metadata, spec and status"


def test_a_field_that_the_kind_of_a_watch_lacks_is_shown_in_its_expression():
    """The kind is that of the watched resource, and not that of the handler."""
    watch = "{resourceRef: {name: pods}, mapTo: {label: x}, filter: {expression: obj.status.phaze == 'x'}}"
    handler = f"{{name: a, mode: Reconcile, resourceRef: {{name: nodes}}, entryPoint: m, watches: [{watch}]}}"
    manifest = MANIFEST.partition("    - {name: h")[0] + f"    - {handler}\n"
    (fault,) = faults(Server(schemas=POD_SCHEMAS), manifest)
    assert (fault.code, fault.message) == ("DCL054", "a Pod has no field phaze in obj.status")
    assert fault.source_line[fault.column - 1 :].startswith("phaze == 'x'")


def test_a_field_that_code_writes_to_a_status_and_the_kind_lacks_is_a_warning_at_the_code():
    """The server would drop it in silence: the condition Ready would never be there."""
    server, code = Server(schemas=POD_SCHEMAS), HandlerCode(status_fields=frozenset({"phase", "phaze"}))
    (fault,) = faults(server, MANIFEST, code=code)
    assert (fault.code, fault.severity, fault.line) == ("DCL054", "warning", 14)
    assert fault.message == "h writes status.phaze, and a Pod has no field status.phaze"
    assert (fault.suggestion or "").startswith('did you mean "phase"? The server drops it')


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
    """Without schemas, as before 1.24 or where they may not be read, nothing is known."""
    assert expression_faults(expression) == []
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


def writing(server: Server, resource: str = "pods", *methods: str, status: bool = True) -> list[Diagnostic]:
    """What the server has against a handler that declares its writes; with the subresource `status`."""
    server.kinds["Deployment"] = kind_of("apps/v1", "Deployment")
    for kind, found in server.kinds.items():
        server.kinds[kind] = replace(found, subresources=frozenset({"status"} if status else ()))
    return faults(server, WRITER.replace("RESOURCE", resource), *methods)


def test_a_missing_right_to_write_is_named_with_the_rule_that_gives_it():
    """The rule can be pasted into a Role; the fault stands at the kind in `applies`, or at the status."""
    refuses = [(verb, "deployments", "team-a") for verb in ("create", "delete")]
    (fault,) = writing(Server(*refuses), "pods", "apply_set")
    told = "you may not create or delete deployments in the namespace team-a"
    assert (fault.code, fault.line, fault.message) == ("DCL051", 14, told)
    needed = rule("apps", "deployments", "get list create patch delete")
    assert fault.suggestion == f"grant it by a Role of the namespace team-a with the rule {needed}"
    (fault,) = writing(Server(("patch", "pods/status", "team-a")))
    assert (fault.code, fault.line) == ("DCL051", 16)
    assert 'resources: ["pods/status"], verbs: ["patch"]' in str(fault.suggestion)


def test_a_kind_without_a_status_or_that_is_not_served_is_told():
    """`status: true` of a kind without the subresource, and a kind in `applies` that is not installed."""
    server = Server()
    del server.kinds["Node"]
    found = {(fault.code, fault.line): fault.message for fault in writing(server, status=False)}
    assert found["DCL050", 15] == "the cluster does not serve Node in v1"
    assert found["DCL055", 16] == "pods have no status subresource, and h writes their status"


def test_a_finalizer_needs_a_right_to_the_object():
    """Two verbs of the kind itself; the fault stands at the finalizer."""
    text = WRITER.replace("RESOURCE", "pods").replace("status: true", "finalizer: example.dev/h")
    server = Server(("patch", "pods", "team-a"))
    server.kinds["Deployment"] = kind_of("apps/v1", "Deployment")
    (fault,) = faults(server, text.replace("entryPoint", "mode: Reconcile\n      entryPoint"))
    told = "you may not patch pods in the namespace team-a"
    assert (fault.code, fault.line, fault.message) == ("DCL051", 17, told)
    assert 'resources: ["pods"], verbs: ["get", "patch"]' in str(fault.suggestion)


def test_the_owner_of_a_set_has_to_be_marked():
    """`apply_set` patches the parent: a warning, as only the code says that it is called."""
    refused = ("patch", "pods", "team-a")
    assert writing(Server(refused)) == []
    (fault,) = writing(Server(refused), "pods", "apply_set")
    assert (fault.code, fault.severity, fault.line) == ("DCL051", "warning", 14)
    assert "ctx.apply_set of h marks the owner" in fault.message
    assert 'resources: ["pods"], verbs: ["get", "patch"]' in str(fault.suggestion)


def selecting(server: Server) -> tuple[list[Diagnostic], list[str]]:
    """What the server has against a selector of namespaces, and the lines about what it matches."""
    text = MANIFEST.replace("[team-a, team-b]", "{labelSelector: 'team in (web,api)'}")
    loaded = load(ManifestSource("manifest.yaml", text.encode()), environ={})
    found = asyncio.run(ask_cluster(loaded, server))
    return list(found.faults), [line for lines in found.notes.values() for line in lines]


def test_rights_are_asked_for_in_each_namespace_that_a_selector_matches():
    """Once for each resource and verb, and in no other namespace; a line says which namespaces there are."""
    server = Server(("watch", "pods", "b"), selected="ba")
    (fault,), notes = selecting(server)
    assert fault.message == "you may not watch pods in the namespace b"
    assert notes == ["namespaces with team in (api,web): 2 now (a, b)"]
    assert server.selectors == ["team in (api,web)"]
    assert {namespace for _, resource, namespace in server.asked if resource == "pods"} == {"a", "b"}
    assert ("list", "nodes", "") in server.asked
    # A cluster with thousands is not asked for each of them.
    server = Server(selected=[f"n{number:04}" for number in range(1000)])
    some = "1,000 now (n0000, n0001, n0002, n0003, n0004, …)"
    assert selecting(server) == ([], [f"namespaces with team in (api,web): {some}"])
    assert len([asked for asked in server.asked if asked[1] == "pods"]) == 100


def test_a_selector_needs_the_right_to_list_namespaces():
    """Told at the selector, with the rule; namespaces are not listed without it."""
    server = Server(("watch", "namespaces", ""))
    (fault,), notes = selecting(server)
    told = "you may not watch namespaces in the whole cluster, which a selector of namespaces needs"
    assert (fault.code, fault.line, fault.message) == ("DCL051", 5, told)
    needed = rule("", "namespaces", "list watch")
    assert fault.suggestion == f"grant it by a ClusterRole with the rule {needed}"
    assert (server.selectors, notes) == ([], [])


def test_a_selector_that_matches_nothing_is_a_warning():
    """It may be a mistake; if it is none, what comes later is watched."""
    (fault,), notes = selecting(Server())
    assert (fault.code, fault.severity, fault.line) == ("DCL053", "warning", 5)
    told = "no namespace has the labels team in (api,web): there is nothing to watch until one has"
    assert (fault.message, notes) == (told, ["namespaces with team in (api,web): 0 now"])


def test_a_right_to_one_object_is_asked_for_by_its_name():
    """A rule with resourceNames is enough for a resource with names, and for a Lease."""
    text = MANIFEST.replace("      kind: Pod\n", "      kind: Pod\n      names: [a, b]\n")
    server = Server(("update", "leases", "own"))
    (fault,) = faults(server, text + "  leaderElection: {enabled: true, namespace: own}\n")
    leases = [asked for asked in server.asked if asked[1] == "leases"]
    assert leases == [(verb, "leases", "own") for verb in ("create", "get", "update")]
    assert server.names["list", "pods", "team-a"] == ["a", "b"]
    assert 'resourceNames: ["hello"], verbs: ["get", "update"]' in str(fault.suggestion)


WITH_SECRET = MANIFEST.replace(
    "spec:\n",
    "spec:\n  plugins:\n    - name: slack\n      configFrom:\n"
    "        - {name: token, secretKeyRef: {name: chat, key: token}}\n",
)


def test_a_secret_of_a_config_has_to_be_there():
    """In the namespace of the process, with the key, and with the right to get this one and no other."""
    server = Server()
    (fault,) = faults(server, WITH_SECRET)
    assert (fault.code, fault.line, fault.column) == ("DCL057", 8, 57)
    assert fault.message == "the Secret default/chat has no key token"
    assert server.names["get", "secrets", "default"] == ["chat"]
    (fault,) = faults(Server(missing="chat"), WITH_SECRET)
    assert (fault.code, fault.line, fault.column) == ("DCL057", 8, 46)
    create = "kubectl create secret generic chat --namespace default --from-file token=FILE"
    assert fault.suggestion == f"create it: `{create}`"
    (fault,) = faults(Server(("get", "secrets", "default"), forbidden="chat"), WITH_SECRET)
    told = "you may not get secrets in the namespace default"
    assert (fault.code, fault.line, fault.message) == ("DCL051", 8, told)
    assert 'resources: ["secrets"], resourceNames: ["chat"], verbs: ["get"]' in str(fault.suggestion)
