"""`declctl graph`: the tree, Mermaid, DOT and JSON of a manifest."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.rooms.cli.conftest import Command

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: shop}
spec:
  namespaces: [team-a, team-b]
  resources:
    - name: webapps
      apiVersion: example.dev/v1
      kind: WebApp
      indexers: [{name: bySettings, fieldPath: spec.settings}]
    - {name: sites, apiVersion: example.dev/v1, kind: WebApp}
    - {name: deployments, apiVersion: apps/v1, kind: Deployment, labelSelector: app=web, namespaces: [team-a]}
    - {name: settings, apiVersion: v1, kind: ConfigMap, namespaces: [team-a]}
  handlers:
    - name: web
      resourceRef: {name: webapps}
      mode: Reconcile
      entryPoint: "handlers:web"
      finalizer: example.dev/web
      applies: [{apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: Service}]
      status: true
      watches:
        - {resourceRef: {name: deployments}, mapTo: {owner: Controller}}
        - {resourceRef: {name: settings}, mapTo: {index: bySettings}}
    - name: tell
      resourceRef: {name: sites}
      entryPoint: "handlers:tell"
      events: [Added]
      filter: {labelSelector: 'tier in (a,b)', changedPaths: ['metadata.annotations["a/b"]']}
      includeSnapshotsFrom: [settings]
  schedules:
    - {name: nightly, entryPoint: "handlers:nightly", cron: "0 2 * * *", includeSnapshotsFrom: [settings]}
"""


@pytest.fixture(name="shop")
def _shop(folder: Path) -> Path:
    """The current folder, with a manifest; its handlers are not there, because no graph reads them."""
    (folder / "manifest.yaml").write_text(MANIFEST)
    return folder


@pytest.fixture(name="graph")
def _graph(declctl: Command, shop: Path) -> dict[str, Any]:
    ended = declctl("graph", "-o", "json")
    assert (ended.status, ended.err) == (0, "")
    return ended.document


def edges(graph: dict[str, Any], kind: str) -> set[tuple[str, str]]:
    """The edges of a kind, by the names of their ends."""
    names = {node["id"]: node["name"] for node in graph["nodes"]}
    return {(names[e["from"]], names[e["to"]]) for e in graph["edges"] if e["kind"] == kind}


TEAM_A = "example.dev/v1 WebApp in team-a"
TEAM_B = "example.dev/v1 WebApp in team-b"
DEPLOYMENTS = "apps/v1 Deployment in team-a [app=web]"
SETTINGS = "v1 ConfigMap in team-a"


def test_two_resources_share_an_informer(graph):
    """One LIST and WATCH for each namespace, and both resources lead to it: who looks sees what is shared."""
    shared = {(r, i) for r in ("webapps", "sites") for i in (TEAM_A, TEAM_B)}
    assert shared <= edges(graph, "watches")
    informers = [node for node in graph["nodes"] if node["kind"] == "informer"]
    assert [node["name"] for node in informers] == [TEAM_A, TEAM_B, DEPLOYMENTS, SETTINGS]
    assert informers[0]["details"] == ["shared by webapps, sites"]


STATUS = "status of example.dev/v1 WebApp"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("delivers", {(TEAM_A, "web"), (TEAM_B, "web"), (TEAM_A, "tell"), (TEAM_B, "tell")}),
        ("maps", {(DEPLOYMENTS, "web"), (SETTINGS, "bySettings"), ("bySettings", "web")}),
        ("indexes", {(TEAM_A, "bySettings"), (TEAM_B, "bySettings")}),
        ("reads", {(SETTINGS, "tell"), (SETTINGS, "nightly")}),
        ("writes", {("web", "apps/v1 Deployment"), ("web", "v1 Service"), ("web", STATUS)}),
        ("observes", {("apps/v1 Deployment", DEPLOYMENTS), (STATUS, TEAM_A), (STATUS, TEAM_B)}),
    ],
)
def test_a_change_leads_to_handlers_and_what_they_write(graph, kind, expected):
    """Deliveries, mappings by owner and by index, snapshots, children, and the status."""
    assert edges(graph, kind) == expected


def test_the_tree(declctl, shop):
    """What a person reads: each resource with its informers, indexes and handlers."""
    ended = declctl("graph")
    assert ended.out == (
        "shop\n"
        "├── webapps: example.dev/v1 WebApp\n"
        f"│   ├── informer {TEAM_A}: shared by webapps, sites\n"
        f"│   ├── informer {TEAM_B}: shared by webapps, sites\n"
        "│   ├── index bySettings: spec.settings\n"
        "│   └── reconciler web: handlers:web, finalizer example.dev/web\n"
        "│       ├── writes apps/v1 Deployment, which is watched\n"
        "│       ├── writes v1 Service\n"
        "│       └── writes status of example.dev/v1 WebApp\n"
        "├── sites: example.dev/v1 WebApp\n"
        f"│   ├── informer {TEAM_A}: shared by webapps, sites\n"
        f"│   ├── informer {TEAM_B}: shared by webapps, sites\n"
        "│   └── handler tell: handlers:tell, events Added "
        "[if labels tier in (a,b); changes of metadata.annotations['a/b']]\n"
        "├── deployments: apps/v1 Deployment\n"
        f"│   ├── informer {DEPLOYMENTS}\n"
        "│   └── reconciler web [by owner (Controller)]\n"
        "├── settings: v1 ConfigMap\n"
        f"│   ├── informer {SETTINGS}\n"
        "│   ├── reconciler web [by index (bySettings)]\n"
        "│   ├── handler tell [snapshot]\n"
        "│   └── schedule nightly [snapshot]\n"
        "└── schedule nightly: handlers:nightly, cron 0 2 * * * (UTC)\n"
    )


_MERMAID = (
    r'  n\d+(?:\[\(|\[/|\(\[|\{\{|\[|\(|>)"[^"`<>]*(?:<br/>[^"`<>]*)*"(?:\)\]|/\]|\]\)|\}\}|\]|\))',
    r'  n\d+ (?:-->|-\.->)(?:\|"[^"`<>]*"\|)? n\d+',
)
_TEXT = r'"(?:[^"\\]|\\.)*"'
_DOT = (
    rf"  {_TEXT} \[shape=\w+, label={_TEXT}\];",
    rf"  {_TEXT} -> {_TEXT}(?: \[(?:label={_TEXT})?(?:, )?(?:style=dashed)?\])?;",
)


@pytest.mark.parametrize(
    ("form", "head", "statements", "tail"),
    [
        # No text has a letter that Mermaid reads as an end, a tag or Markdown.
        ("mermaid", ["flowchart LR"], _MERMAID, []),
        # Each line is a statement of Graphviz; quotes within a text have a backslash.
        ("dot", ['digraph "shop" {', "  rankdir=LR;"], _DOT, ["}"]),
    ],
    ids=["mermaid", "dot"],
)
def test_each_node_and_edge_is_there_once_and_names_are_escaped(declctl, graph, form, head, statements, tail):
    lines = declctl("graph", "-o", form).lines
    body = lines[len(head) : len(lines) - len(tail)]
    assert lines == [*head, *body, *tail]
    found = [sum(bool(re.fullmatch(statement, line)) for line in body) for statement in statements]
    assert found == [len(graph["nodes"]), len(graph["edges"])]
    assert len(body) == sum(found)


@pytest.mark.parametrize(
    ("expression", "mermaid", "dot"),
    [
        ("obj.metadata.name == '#1<b>`&'", "#35;1#lt;b#gt;#96;#amp;", "#1<b>`&"),
        (r"obj.metadata.name == 'a\\b'", "a#92;#92;b", r"a\\\\b"),
        ('obj.metadata.name == "web"', "== #quot;web#quot;", r"== \"web\""),
    ],
)
def test_an_expression_can_hold_any_letter(declctl, shop, expression, mermaid, dot):
    """It stands in the label of an edge, which would break the whole graph."""
    old = "{labelSelector: 'tier in (a,b)', changedPaths: ['metadata.annotations[\"a/b\"]']}"
    filtered = f"\n        expression: >-\n          {expression}"
    assert old in MANIFEST
    (shop / "manifest.yaml").write_text(MANIFEST.replace(old, filtered))
    assert mermaid in declctl("graph", "-o", "mermaid").out
    assert dot in declctl("graph", "-o", "dot").out


def test_a_graph_needs_neither_a_cluster_nor_the_handlers(declctl, shop):
    """It is drawn while the code is still to be written; faults are shown as `validate` shows them."""
    assert not (shop / "handlers.py").exists()
    assert declctl("graph", str(shop)).status == 0
    (shop / "manifest.yaml").write_text(MANIFEST.replace("resourceRef: {name: sites}", "resource: sites"))
    assert "manifest.yaml:" in declctl.refused("graph", "-o", "dot", status=1)
