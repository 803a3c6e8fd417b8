"""Tables: the columns that `kubectl get` shows.

The columns of the kinds that people look at in a sandbox are named and filled as Kubernetes' own printers do
(source: pkg/printers/internalversion); other built-in kinds have name and age. Those of custom kinds are in
their definition, as JSONPaths (additionalPrinterColumns): `.spec.x`, `.status.items[0].y`, `['a.b']`, `[*]`,
`[?(@.type=="Ready")].status`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from declctl.objects import KubeObject
from declctl.sandbox.kinds import ResourceId, ServedKind

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}
_SCALE: Final = (  # below so many seconds: the unit, and the smaller one that still matters
    (2 * 60, "s", ""),
    (10 * 60, "m", "s"),
    (3 * 3600, "m", ""),
    (8 * 3600, "h", "m"),
    (48 * 3600, "h", ""),
    (8 * 86400, "d", "h"),
    (2 * 365 * 86400, "d", ""),
    (8 * 365 * 86400, "y", "d"),
)
Cell = Callable[[KubeObject, datetime], Any]
_STEP: Final = re.compile(
    r"""\.(?P<name>[A-Za-z_$][\w$/-]*) | \[(?P<index>-?\d+)\] | \[(?P<all>\*)\] | \.(?P<star>\*)
    | \['(?P<quoted>[^']+)'\] | \["(?P<double>[^"]+)"\]
    | \[\?\(@\.(?P<field>[\w.]+)\s*==\s*(?P<quote>["'])(?P<value>[^"']*)(?P=quote)\)\]""",
    re.VERBOSE,
)


def age(timestamp: Any, now: datetime) -> str:
    """How long ago an RFC 3339 timestamp was; `<unknown>` if it isn't one."""
    moment = parse(timestamp)
    return "<unknown>" if moment is None else human((now - moment).total_seconds())


def parse(timestamp: Any) -> datetime | None:
    """An RFC 3339 timestamp as an aware datetime."""
    if not isinstance(timestamp, str):
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def human(seconds: float) -> str:
    """A duration, in the two units that matter (apimachinery's HumanDuration)."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    for below, large, small in _SCALE:
        if whole < below:
            return _written(max(0, whole), large, small)
    return _written(whole, "y", "")


def _written(whole: int, large: str, small: str) -> str:
    text = f"{whole // _SECONDS[large]}{large}"
    rest = whole % _SECONDS[large] // _SECONDS[small] if small else 0
    return f"{text}{rest}{small}" if rest else text


def pod_ready(pod: KubeObject, _: datetime) -> str:
    """Ready containers of all, such as `1/2`."""
    wanted = (pod.get("spec") or {}).get("containers") or []
    ready = [each for each in _containers(pod) if each.get("ready")]
    return f"{len(ready)}/{len(wanted)}"


def pod_status(pod: KubeObject, _: datetime) -> str:
    """The phase, or the reason that says more than it."""
    status: KubeObject = pod.get("status") or {}
    word = status.get("reason") or status.get("phase") or "Unknown"
    word = _initialising(pod) or _container_word(pod) or word
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(word)


def pod_restarts(pod: KubeObject, now: datetime) -> str:
    """How often containers restarted, and when last."""
    count = sum(each.get("restartCount", 0) for each in _containers(pod))
    ended = [(each.get("lastState") or {}).get("terminated") or {} for each in _containers(pod)]
    last: list[str] = [each["finishedAt"] for each in ended if each.get("finishedAt")]
    return f"{count} ({age(max(last), now)} ago)" if count and last else str(count)


def _containers(pod: KubeObject) -> list[KubeObject]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _initialising(pod: KubeObject) -> str | None:
    states = (pod.get("status") or {}).get("initContainerStatuses") or []
    for at, each in enumerate(states):
        state: dict[str, Any] = each.get("state") or {}
        if (state.get("terminated") or {}).get("exitCode") == 0:
            continue
        reason = (state.get("waiting") or {}).get("reason") or (state.get("terminated") or {}).get("reason")
        return f"Init:{reason}" if reason and reason != "PodInitializing" else f"Init:{at}/{len(states)}"
    return None


def _container_word(pod: KubeObject) -> str | None:
    word: str | None = None
    running = False
    for each in reversed(_containers(pod)):
        state: dict[str, Any] = each.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            word = waiting["reason"]
        elif ended is not None:
            word = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
        elif each.get("ready") and "running" in state:
            running = True
    return "Running" if word == "Completed" and running else word


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column; `priority` above 0 shows only with `-o wide`."""

    name: str
    cell: Cell
    type: str = "string"
    format: str = ""
    priority: int = 0


def _column(name: str, path: str, otherwise: Any = "<none>", *, wide: bool = False) -> TableColumn:
    """What stands at a JSONPath; `otherwise` if it is empty or missing."""
    of_type = "integer" if type(otherwise) is int else "string"

    def cell(obj: KubeObject, _: datetime) -> Any:
        value = next(iter(evaluate(path, obj)), None)
        return otherwise if value is None or value == "" else value

    return TableColumn(name, cell, type=of_type, priority=int(wide))


def _every(path: str) -> Cell:
    return lambda obj, _: ",".join(map(str, evaluate(path, obj))) or "<none>"


def _spec(obj: KubeObject) -> KubeObject:
    return obj.get("spec") or {}


def _status(obj: KubeObject) -> KubeObject:
    return obj.get("status") or {}


def _node_status(obj: KubeObject, _: datetime) -> str:
    ready = evaluate('status.conditions[?(@.type=="Ready")].status', obj)
    word = "Unknown" if not ready else "Ready" if ready[0] == "True" else "NotReady"
    return f"{word},SchedulingDisabled" if _spec(obj).get("unschedulable") else word


def _node_roles(obj: KubeObject, _: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = obj["metadata"].get("labels") or ()
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or "<none>"


def _service_ports(obj: KubeObject, _: datetime) -> str:
    ports: list[str] = []
    for entry in _spec(obj).get("ports") or ():
        node = f":{entry['nodePort']}" if entry.get("nodePort") else ""
        ports.append(f"{entry.get('port')}{node}/{entry.get('protocol', 'TCP')}")
    return ",".join(ports) or "<none>"


def _involved(obj: KubeObject, _: datetime) -> str:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _last_seen(obj: KubeObject, now: datetime) -> str:
    # Events of both APIs come here; each has its times under names of its own.
    series = (obj.get("series") or {}).get("lastObservedTime")
    stamps = (series, obj.get("lastTimestamp"), obj.get("deprecatedLastTimestamp"), obj.get("eventTime"))
    return age(next((stamp for stamp in stamps if stamp), None), now)


def _job_duration(obj: KubeObject, now: datetime) -> str:
    start = parse(_status(obj).get("startTime"))
    if start is None:
        return ""
    end = parse(_status(obj).get("completionTime")) or now
    return human((end - start).total_seconds())


def _job_status(obj: KubeObject, _: datetime) -> str:
    true = {c.get("type") for c in _status(obj).get("conditions") or () if c.get("status") == "True"}
    return next((word for word in ("Complete", "Failed", "Suspended") if word in true), "Running")


NAME: Final = TableColumn("Name", lambda obj, _: obj["metadata"]["name"], format="name")
AGE: Final = TableColumn("Age", lambda obj, now: age(obj["metadata"].get("creationTimestamp"), now))
GENERIC: Final = (NAME, AGE)
_DATA: Final = TableColumn(
    "Data", lambda obj, _: len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
)
_CONTAINERS: Final = tuple(
    TableColumn(name, _every(f"spec.template.spec.containers[*].{field}"), priority=1)
    for name, field in (("Containers", "name"), ("Images", "image"))
)
_READY: Final = TableColumn(
    "Ready", lambda obj, _: f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}"
)
_REPLICATED: Final = (
    NAME,
    _column("Desired", "spec.replicas", 0),
    _column("Current", "status.replicas", 0),
    _column("Ready", "status.readyReplicas", 0),
    AGE,
    *_CONTAINERS,
)
_EVENT: Final = (
    TableColumn("Last Seen", _last_seen),
    _column("Type", "type", ""),
    _column("Reason", "reason", ""),
    TableColumn("Object", _involved),
    TableColumn("Message", lambda obj, _: str(obj.get("message") or obj.get("note") or "").strip()),
    TableColumn("Name", lambda obj, _: obj["metadata"]["name"], format="name", priority=1),
)

BUILT_IN: Final[Mapping[ResourceId, Sequence[TableColumn]]] = {
    ("", "pods"): (
        NAME,
        TableColumn("Ready", pod_ready),
        TableColumn("Status", pod_status),
        TableColumn("Restarts", pod_restarts),
        AGE,
        _column("IP", "status.podIP", wide=True),
        _column("Node", "spec.nodeName", wide=True),
    ),
    ("", "services"): (
        NAME,
        _column("Type", "spec.type"),
        _column("Cluster-IP", "spec.clusterIP"),
        TableColumn("External-IP", _every("spec.externalIPs[*]")),
        TableColumn("Port(s)", _service_ports),
        AGE,
    ),
    ("", "nodes"): (
        NAME,
        TableColumn("Status", _node_status),
        TableColumn("Roles", _node_roles),
        AGE,
    ),
    ("", "namespaces"): (NAME, _column("Status", "status.phase", "Active"), AGE),
    ("", "configmaps"): (NAME, _DATA, AGE),
    ("", "secrets"): (NAME, _column("Type", "type", "Opaque"), _DATA, AGE),
    ("apps", "replicasets"): _REPLICATED,
    ("apps", "deployments"): (
        NAME,
        _READY,
        _column("Up-to-date", "status.updatedReplicas", 0),
        _column("Available", "status.availableReplicas", 0),
        AGE,
        *_CONTAINERS,
    ),
    ("apps", "statefulsets"): (NAME, _READY, AGE, *_CONTAINERS),
    ("batch", "jobs"): (
        NAME,
        TableColumn("Status", _job_status),
        TableColumn(
            "Completions",
            lambda obj, _: f"{_status(obj).get('succeeded', 0)}/{_spec(obj).get('completions', 1)}",
        ),
        TableColumn("Duration", _job_duration),
        AGE,
        *_CONTAINERS,
    ),
    ("coordination.k8s.io", "leases"): (NAME, _column("Holder", "spec.holderIdentity", ""), AGE),
    ("", "events"): _EVENT,
}


def evaluate(path: str, obj: Any) -> list[Any]:
    """Everything at the path, in order; nothing for a path that can't be read."""
    text = path.strip().removeprefix("{").removesuffix("}").replace("\\.", "\x00")
    if not text.startswith((".", "[")):
        text = f".{text}"
    found = [obj]
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            return []
        found = [value for each in found for value in _take(each, step)]
        at = step.end()
    return found


def _take(value: Any, step: re.Match[str]) -> Iterator[Any]:
    name = step["name"] or step["quoted"] or step["double"]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if name is not None and name in fields:
            yield fields[name]
        elif step["all"] or step["star"]:
            yield from fields.values()
    elif isinstance(value, list):
        yield from _elements(cast("list[Any]", value), step)


def _elements(elements: list[Any], step: re.Match[str]) -> Iterator[Any]:
    if step["all"] or step["star"]:
        yield from elements
    elif step["index"] is not None:
        index = int(step["index"])
        if -len(elements) <= index < len(elements):
            yield elements[index]
    elif step["field"]:
        for element in elements:
            if evaluate(step["field"], element) == [step["value"]]:
                yield element


def columns_of(kind: ServedKind) -> Sequence[TableColumn]:
    """The columns of a kind, in order."""
    if not kind.custom:
        return BUILT_IN.get(kind.resource, GENERIC)
    if not kind.columns:
        return GENERIC
    return (NAME, *(_custom(column) for column in kind.columns))


def definitions(kind: ServedKind) -> list[KubeObject]:
    """The columnDefinitions of a table."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": f"{column.name} of the {kind.kind}.",
            "priority": column.priority,
        }
        for column in columns_of(kind)
    ]


def cells(kind: ServedKind, obj: KubeObject, now: datetime) -> list[Any]:
    """One row. An object of a shape that its kind doesn't have gives `<unknown>` where it can't be read."""
    row: list[Any] = []
    for column in columns_of(kind):
        try:
            row.append(column.cell(obj, now))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            # Schemas are not checked, so a field may be anything.
            row.append("<unknown>")
    return row


def _custom(definition: Mapping[str, Any]) -> TableColumn:
    path, of_type = definition.get("jsonPath", ""), definition.get("type", "string")

    def cell(obj: KubeObject, now: datetime) -> Any:
        found = evaluate(path, obj)
        if not found:
            return None
        if of_type == "date":
            return age(found[0], now)
        if of_type in ("integer", "number", "boolean"):
            return found[0]
        return ",".join(str(value) for value in found)

    return TableColumn(
        definition.get("name", ""),
        cell,
        type=of_type,
        format=definition.get("format", ""),
        priority=definition.get("priority", 0),
    )
