"""`declctl graph`: what a manifest connects, from its plan, without a cluster and without its handlers.

The graph follows the way of a change: a resource, its informers (one LIST and WATCH each, which resources
share), the indexes in their caches, the handlers, and the kinds and statuses that these declare to write. A
written kind that is watched, too, leads back to its informer. Forms: a tree for people, Mermaid and DOT for
pages, and JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import msgspec

from declctl.cli.terminal import block, line, print_json
from declctl.manifest import Plan, plan
from declctl.manifest.model import (
    ALL_EVENTS,
    DROPPED_BY_DEFAULT,
    FilterSpec,
    HandlerSpec,
    IndexerSpec,
    Mode,
    ScheduleSpec,
)
from declctl.manifest.plan import HandlerPlan, ResourcePlan, WatchKey
from declctl.objects import GroupVersionKind
from declctl.runtime.checking.inputs import load_beside

_LONGEST = 80  # characters of an expression in a node


class NodeKind(StrEnum):
    """What a node stands for."""

    RESOURCE = "resource"
    INFORMER = "informer"
    INDEX = "index"
    HANDLER = "handler"
    RECONCILER = "reconciler"
    SCHEDULE = "schedule"
    CHILD = "child"  # a kind that a handler applies
    STATUS = "status"


class EdgeKind(StrEnum):
    """How two nodes are connected."""

    WATCHES = "watches"  # resource → informer
    INDEXES = "indexes"  # informer → index
    DELIVERS = "delivers"  # informer → handler: its changes
    MAPS = "maps"  # informer → reconciler, or informer → index → reconciler: changes that lead to keys
    READS = "reads"  # informer → handler or schedule: snapshots
    WRITES = "writes"  # handler → kind or status
    OBSERVES = "observes"  # written kind or status → informer: the process sees its own writes


class GraphNode(msgspec.Struct, frozen=True):
    """One node. `details` are facts in words, in an order for people."""

    id: str
    kind: NodeKind
    name: str
    details: tuple[str, ...] = ()


class GraphEdge(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One edge. `resource` is the resource of the manifest by which the informer is used, if there is one."""

    source: str  # the id of a node
    target: str  # the id of a node
    kind: EdgeKind
    label: str = ""
    resource: str = ""


class PlanGraph(msgspec.Struct, frozen=True):
    """The graph of one manifest. Nodes and edges are in the order of the manifest, each once."""

    name: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    def node(self, id: str) -> GraphNode:  # noqa: A002 - the field of that name
        """The node with an id."""
        return next(each for each in self.nodes if each.id == id)

    def below(self, id: str, *kinds: EdgeKind) -> Iterator[tuple[GraphEdge, GraphNode]]:  # noqa: A002
        """The edges of these kinds that begin at a node, with the nodes at which they end."""
        for edge in self.edges:
            if edge.source == id and edge.kind in kinds:
                yield edge, self.node(edge.target)


def show_graph(manifest: str, form: str, *, at: Path | None) -> None:
    """Print the graph of a manifest as `text`, `mermaid`, `dot` or `json`. It is read `at` a path.

    Raises ManifestErrors.
    """
    graph = graph_of(plan(load_beside(manifest, at=at).controller))
    if form == "json":
        print_json(msgspec.to_builtins(graph))
    elif form == "mermaid":
        block(as_mermaid(graph))
    elif form == "dot":
        block(as_dot(graph))
    else:
        for each in as_tree(graph):
            line(each)


def graph_of(planned: Plan) -> PlanGraph:
    """The graph of a plan."""
    return _GraphBuilder(planned).build()


class _GraphBuilder:
    """Collects the nodes and edges of one plan."""

    def __init__(self, planned: Plan) -> None:
        self._plan = planned
        self._resources = {each.name: each for each in planned.resources}
        self._informers = {each.key: f"informer/{n}" for n, each in enumerate(planned.watches, start=1)}
        self._nodes: dict[str, GraphNode] = {}  # by id
        self._edges: dict[GraphEdge, None] = {}  # a set in the order of the manifest

    def build(self) -> PlanGraph:
        """Add everything, and return the graph."""
        for resource in self._plan.resources:
            self._add_resource(resource)
        for handler in self._plan.handlers:
            self._add_handler(handler)
        for schedule in self._plan.schedules:
            self._add_schedule(schedule)
        self._add_observations()
        return PlanGraph(self._plan.name, tuple(self._nodes.values()), tuple(self._edges))

    def _node(self, id: str, kind: NodeKind, name: str, *details: str) -> str:  # noqa: A002 - as in GraphNode
        self._nodes.setdefault(id, GraphNode(id, kind, name, tuple(filter(None, details))))
        return id

    def _edge(self, source: str, target: str, kind: EdgeKind, label: str = "", resource: str = "") -> None:
        self._edges[GraphEdge(source, target, kind, label, resource)] = None

    def _add_resource(self, resource: ResourcePlan) -> None:
        first = resource.watches[0]
        own = self._node(
            f"resource/{resource.name}", NodeKind.RESOURCE, resource.name, f"{first.api_version} {first.kind}"
        )
        for watch in self._plan.watches:
            if watch.key not in resource.watches:
                continue
            shared = len(watch.resources) > 1
            sharing = f"shared by {', '.join(watch.resources)}" if shared else ""
            informer = self._node(
                self._informers[watch.key],
                NodeKind.INFORMER,
                str(watch.key),
                sharing,
                *_transform_details(watch.key),
            )
            self._edge(own, informer, EdgeKind.WATCHES, resource=resource.name)
        for indexer in resource.indexers:
            index = self._node(
                self._index(resource.name, indexer.name), NodeKind.INDEX, indexer.name, _way(indexer)
            )
            for informer in self._informers_of(resource.name):
                self._edge(informer, index, EdgeKind.INDEXES, resource=resource.name)

    def _add_handler(self, handler: HandlerPlan) -> None:
        reconciles = handler.mode is Mode.RECONCILE
        kind = NodeKind.RECONCILER if reconciles else NodeKind.HANDLER
        own = self._node(f"handler/{handler.name}", kind, handler.name, *_handler_details(handler))
        for informer in self._informers_of(handler.resource):
            self._edge(informer, own, EdgeKind.DELIVERS, _filtered(handler.filter), handler.resource)
        for watch in handler.watches:
            label = "; ".join(filter(None, (f"by {watch.map_to}", _filtered(watch.filter))))
            index = watch.map_to.index
            target = own if index is None else self._index(handler.resource, index)
            if index is not None:
                # An index that a plugin adds is not in the manifest.
                self._node(target, NodeKind.INDEX, index, "of a plugin")
                self._edge(target, own, EdgeKind.MAPS, resource=handler.resource)
            for informer in self._informers_of(watch.resource):
                self._edge(informer, target, EdgeKind.MAPS, label, watch.resource)
        for resource in handler.include_snapshots_from:
            for informer in self._informers_of(resource):
                self._edge(informer, own, EdgeKind.READS, "snapshot", resource)
        for child in handler.applies:
            target = self._node(_child_id(child), NodeKind.CHILD, f"{child.api_version} {child.kind}")
            self._edge(own, target, EdgeKind.WRITES)
        if handler.status:
            watch = self._resources[handler.resource].watches[0]
            name = f"status of {watch.api_version} {watch.kind}"
            target = self._node(f"status/{watch.api_version}/{watch.kind}", NodeKind.STATUS, name)
            self._edge(own, target, EdgeKind.WRITES)

    def _add_schedule(self, schedule: ScheduleSpec) -> None:
        when = (
            f"cron {schedule.cron} ({schedule.time_zone})" if schedule.cron else f"every {schedule.every:g} s"
        )
        own = self._node(
            f"schedule/{schedule.name}", NodeKind.SCHEDULE, schedule.name, str(schedule.entry_point), when
        )
        for resource in schedule.include_snapshots_from:
            for informer in self._informers_of(resource):
                self._edge(informer, own, EdgeKind.READS, "snapshot", resource)

    def _add_observations(self) -> None:
        for node in tuple(self._nodes.values()):
            if node.kind not in (NodeKind.CHILD, NodeKind.STATUS):
                continue
            for key, informer in self._informers.items():
                if node.id in (_child_id(key), f"status/{key.api_version}/{key.kind}"):
                    self._edge(node.id, informer, EdgeKind.OBSERVES)

    def _informers_of(self, resource: str) -> Sequence[str]:
        return [self._informers[key] for key in self._resources[resource].watches]

    @staticmethod
    def _index(resource: str, name: str) -> str:
        return f"index/{resource}/{name}"


def _child_id(kind: GroupVersionKind | WatchKey) -> str:
    return f"child/{kind.api_version}/{kind.kind}"


def _transform_details(key: WatchKey) -> Sequence[str]:
    dropped, function = key.transform.drop_fields, key.transform.entry_point
    is_usual = dropped == DROPPED_BY_DEFAULT
    return [
        f"without {', '.join(dropped)}" if dropped and not is_usual else "",
        f"transform {function}" if function is not None else "",
    ]


def _way(indexer: IndexerSpec) -> str:
    return str(indexer.field_path if indexer.entry_point is None else indexer.entry_point)


def _handler_details(handler: HandlerSpec) -> Sequence[str]:
    code = f"plugin {handler.plugin}" if handler.entry_point is None else str(handler.entry_point)
    events = "" if handler.events == ALL_EVENTS else f"events {', '.join(handler.events)}"
    queue = f"queue {handler.queue.name}" if handler.queue.is_shared else ""
    finalizer = f"finalizer {handler.finalizer}" if handler.finalizer else ""
    return [code, events, queue, finalizer]


def _filtered(spec: FilterSpec | None) -> str:
    """The filter in words; empty if every change passes."""
    if spec is None:
        return ""
    expression = spec.expression
    shown = expression if len(expression) <= _LONGEST else f"{expression[: _LONGEST - 1]}…"
    parts = [
        f"labels {spec.label_selector}" if spec.label_selector else "",
        f"changes of {', '.join(spec.changed_paths)}" if spec.changed_paths else "",
        f"{spec.entry_point}" if spec.entry_point is not None else "",
        shown,
    ]
    found = "; ".join(filter(None, parts))
    return f"if {found}" if found else ""


def as_tree(graph: PlanGraph) -> Iterator[str]:
    """The graph as the lines of a tree: by resource, then by schedule."""
    roots = [node for node in graph.nodes if node.kind is NodeKind.RESOURCE]
    schedules = [node for node in graph.nodes if node.kind is NodeKind.SCHEDULE]
    yield graph.name
    tops = [*roots, *schedules]
    for number, top in enumerate(tops):
        is_last = number == len(tops) - 1
        yield f"{'└── ' if is_last else '├── '}{_titled(top)}"
        below = _of_resource(graph, top) if top.kind is NodeKind.RESOURCE else ()
        yield from _indented(below, "    " if is_last else "│   ")


_Branch = tuple[str, Sequence[str]]
"""A line of the tree, and the lines below it."""


def _of_resource(graph: PlanGraph, resource: GraphNode) -> Sequence[_Branch]:
    branches: dict[_Branch, None] = {}  # a handler that listens to several informers is one line
    informers = [node for _, node in graph.below(resource.id, EdgeKind.WATCHES)]
    for informer in informers:
        branches[_titled(informer), ()] = None
    for informer in informers:
        for edge, index in graph.below(informer.id, EdgeKind.INDEXES):
            if edge.resource == resource.name:
                branches[_titled(index), ()] = None
    for informer in informers:
        found = graph.below(informer.id, EdgeKind.DELIVERS, EdgeKind.MAPS, EdgeKind.READS)
        for edge, target in found:
            if edge.resource != resource.name:
                continue
            # By an index, the change leads to the reconcilers behind it.
            ends = [target]
            if target.kind is NodeKind.INDEX:
                ends = [node for _, node in graph.below(target.id, EdgeKind.MAPS)]
            for end in ends:
                label = f" [{edge.label}]" if edge.label else ""
                if edge.kind is EdgeKind.DELIVERS:
                    branches[f"{_titled(end)}{label}", _writes(graph, end)] = None
                else:
                    branches[f"{end.kind} {end.name}{label}", ()] = None
    return list(branches)


def _writes(graph: PlanGraph, handler: GraphNode) -> tuple[str, ...]:
    lines: list[str] = []
    for _, target in graph.below(handler.id, EdgeKind.WRITES):
        # A handler always sees the status that it writes: it is part of the objects of its resource.
        observed = target.kind is NodeKind.CHILD and any(graph.below(target.id, EdgeKind.OBSERVES))
        lines.append(f"writes {target.name}{', which is watched' if observed else ''}")
    return tuple(lines)


def _titled(node: GraphNode) -> str:
    name = node.name if node.kind is NodeKind.RESOURCE else f"{node.kind} {node.name}"
    return f"{name}: {', '.join(node.details)}" if node.details else name


def _indented(branches: Sequence[_Branch], indent: str) -> Iterator[str]:
    for number, (text, below) in enumerate(branches):
        is_last = number == len(branches) - 1
        yield f"{indent}{'└── ' if is_last else '├── '}{text}"
        inner = [(each, ()) for each in below]
        yield from _indented(inner, indent + ("    " if is_last else "│   "))


_MERMAID_SHAPES: Mapping[NodeKind, tuple[str, str]] = MappingProxyType(
    {
        NodeKind.RESOURCE: ("[", "]"),
        NodeKind.INFORMER: ("[(", ")]"),
        NodeKind.INDEX: ("{{", "}}"),
        NodeKind.HANDLER: ("(", ")"),
        NodeKind.RECONCILER: ("([", "])"),
        NodeKind.SCHEDULE: (">", "]"),
        NodeKind.CHILD: ("[/", "/]"),
        NodeKind.STATUS: ("[/", "/]"),
    }
)
# Within quotes, Mermaid reads #…; as an entity, tags as HTML, and a backtick as the begin of Markdown.
_MERMAID_LETTERS = str.maketrans(
    {
        "#": "#35;",
        '"': "#quot;",
        "<": "#lt;",
        ">": "#gt;",
        "&": "#amp;",
        "`": "#96;",
        "\\": "#92;",
        "\n": " ",
        "\r": " ",
    }
)
_DOT_SHAPES: Mapping[NodeKind, str] = MappingProxyType(
    {
        NodeKind.RESOURCE: "box",
        NodeKind.INFORMER: "cylinder",
        NodeKind.INDEX: "hexagon",
        NodeKind.HANDLER: "ellipse",
        NodeKind.RECONCILER: "ellipse",
        NodeKind.SCHEDULE: "cds",
        NodeKind.CHILD: "note",
        NodeKind.STATUS: "note",
    }
)
_DOT_LETTERS = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": " ", "\r": " "})
_DOTTED = (EdgeKind.OBSERVES, EdgeKind.READS)


def as_mermaid(graph: PlanGraph) -> str:
    """The graph as a Mermaid flowchart."""
    names = {node.id: f"n{number}" for number, node in enumerate(graph.nodes, start=1)}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        begin, end = _MERMAID_SHAPES[node.kind]
        text = "<br/>".join(each.translate(_MERMAID_LETTERS) for each in (node.name, *node.details))
        lines.append(f'  {names[node.id]}{begin}"{text}"{end}')
    for edge in graph.edges:
        arrow = "-.->" if edge.kind in _DOTTED else "-->"
        label = f'|"{edge.label.translate(_MERMAID_LETTERS)}"|' if edge.label else ""
        lines.append(f"  {names[edge.source]} {arrow}{label} {names[edge.target]}")
    return "\n".join(lines) + "\n"


def as_dot(graph: PlanGraph) -> str:
    """The graph in the language of Graphviz."""
    lines = [f"digraph {_dot_text(graph.name)} {{", "  rankdir=LR;"]
    for node in graph.nodes:
        text = "\\n".join(each.translate(_DOT_LETTERS) for each in (node.name, *node.details))
        lines.append(f'  {_dot_text(node.id)} [shape={_DOT_SHAPES[node.kind]}, label="{text}"];')
    for edge in graph.edges:
        label = f"label={_dot_text(edge.label)}" if edge.label else ""
        attributes = ", ".join(filter(None, (label, "style=dashed" if edge.kind in _DOTTED else "")))
        ends = f"{_dot_text(edge.source)} -> {_dot_text(edge.target)}"
        lines.append(f"  {ends} [{attributes}];" if attributes else f"  {ends};")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_text(text: str) -> str:
    return f'"{text.translate(_DOT_LETTERS)}"'
