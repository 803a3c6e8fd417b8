"""The steps from one manifest to the next, the line that a person reads, and what decoding costs."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.manifest import ManifestSource, load, plan
from declctl.manifest.model import FilterSpec, IndexerSpec, LifecycleStep, PluginSpec, ScheduleSpec, TlsFiles
from declctl.manifest.values import Address, EntryPoint
from declctl.objects import FieldPath
from declctl.runtime.checking.declaration import FromHooks
from declctl.runtime.planning.costs import Cost, Price, costs, filter_costs
from declctl.runtime.reloading.changes import PlanSnapshot, changes, summary

BASE = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
      indexers: [{name: byNode, fieldPath: spec.nodeName}]
    - {name: maps, apiVersion: v1, kind: ConfigMap}
  schedules: [{name: nightly, cron: "0 2 * * *", entryPoint: "jobs:nightly"}]
  handlers:
    - {name: notify, resourceRef: {name: pods}, entryPoint: "h:notify"}
    - {name: audit, resourceRef: {name: maps}, entryPoint: "h:audit"}
"""


def _side(text: str = BASE, code: str = "1") -> PlanSnapshot:
    return PlanSnapshot(plan(load(ManifestSource.of([("m.yaml", text.encode())])).controller), code)


def _line(old: str, new: str, *, code: str = "1") -> str:
    assert old in BASE
    return summary(changes(_side(), _side(BASE.replace(old, new), code)))


def test_nothing_changed() -> None:
    """Plans that are equal have no steps between them. Where something stands in the text doesn't count."""
    assert changes(_side(), _side("# more\n" + BASE)) == ()
    assert summary(()) == "nothing changed"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("  handlers:\n", "  handlers:\n    - {name: more, resourceRef: {name: maps}, entryPoint: 'h:m'}\n",
         "+handler more"),
        ('    - {name: audit, resourceRef: {name: maps}, entryPoint: "h:audit"}\n', "", "-handler audit"),
        ("schedules: [", "schedules: [{name: hourly, every: 1h, entryPoint: 'h:m'}, ", "+schedule hourly"),
        ("{name: nightly, ", "{name: late, ", "-schedule nightly +schedule late"),
        ('"0 2 * * *"', '"0 3 * * *", missedRuns: Skip', "~schedule nightly (cron, missedRuns)"),
        ('cron: "0 2 * * *"', "every: 1h", "~schedule nightly (cron, every)"),
        ("h:notify", "h:other", "~handler notify (entryPoint)"),
        ('"h:notify"', '"h:notify", timeout: 5s, events: [Added]', "~handler notify (events, timeout)"),
        ('"h:notify"', '"h:notify", filter: {labelSelector: "a=b"}', "~handler notify (filter)"),
        ('"h:notify"', '"h:notify", filter: {}', "nothing changed"),
        ('"h:notify"', '"h:notify", resyncPeriod: 1m', "~handler notify (resync)"),
        ('notify, resourceRef: {name: pods}', 'notify, resourceRef: {name: maps}',
         "-/+handler notify (resourceRef)"),
        ("kind: ConfigMap", "kind: Secret", "-/+resource maps (kind)"),
        ("kind: ConfigMap", "kind: ConfigMap, namespaces: [a]", "-/+resource maps (namespace)"),
        ("kind: ConfigMap", "kind: ConfigMap, labelSelector: a=b", "-/+resource maps (labelSelector)"),
        ("kind: ConfigMap", "kind: ConfigMap, fieldSelector: metadata.name=b",
         "-/+resource maps (fieldSelector)"),
        ("kind: ConfigMap", "kind: ConfigMap, transform: {dropFields: [data.x]}",
         "-/+resource maps (transform)"),
        ("kind: ConfigMap", "kind: ConfigMap, transform: {dropFields: [data.x, metadata.managedFields]}",
         "~resource maps (reproject: transform)"),
        ("kind: ConfigMap", "kind: ConfigMap, cache: {mode: Objects}", "~resource maps (reproject: cache)"),
        ("kind: ConfigMap", "kind: ConfigMap, cache: {mode: Objects}, labelSelector: a=b",
         "-/+resource maps (labelSelector, cache)"),
        ("fieldPath: spec.nodeName", "fieldPath: spec.hostIP",
         "~index pods.byNode ~resource pods (reproject: spec.hostIP)"),
        ("kind: ConfigMap", "kind: ConfigMap, cache: {mode: MetadataOnly}", "-/+resource maps (cache)"),
        ("kind: ConfigMap", "kind: ConfigMap, idleTimeout: 50s", "~resource maps (idleTimeout)"),
        ("kind: ConfigMap", "kind: ConfigMap, type: 'models:Settings'",
         "~resource maps (type) ~handler audit (onInvalid)"),
        ("kind: ConfigMap", "kind: ConfigMap, resyncPeriod: 1m",
         "~resource maps (resync) ~handler audit (resync)"),
        ("[{name: byNode, fieldPath: spec.nodeName}]", "[]", "-index pods.byNode"),
        ("fieldPath: spec.nodeName", "fieldPath: metadata.labels.x", "~index pods.byNode"),
        ("[{name: byNode", "[{name: byApp, fieldPath: metadata.labels.app}, {name: byNode",
         "+index pods.byApp"),
        ("{name: guard}\nspec:\n", "{name: guard}\nspec:\n  admin: {bindAddress: '127.0.0.1:9999'}\n",
         "!admin.bindAddress"),
        ("{name: guard}\nspec:\n", "{name: guard}\nspec:\n  metrics: {bindAddress: '127.0.0.1:9999'}\n",
         "!metrics.bindAddress"),
        ("{name: guard}\nspec:\n", "{name: guard}\nspec:\n  state: {path: /data}\n", "!state"),
        ("name: guard", "name: other", "!metadata.name"),
        ("spec:\n", "spec:\n  reload: {settle: 1s}\n", "~reload"),
    ],
)  # fmt: skip
def test_each_difference_is_one_step(old: str, new: str, line: str) -> None:
    """What a reload says of each edit: what is added, removed, changed, moved, or wants a restart."""
    assert _line(old, new) == line


RECONCILES = """
    - name: web
      mode: Reconcile
      resourceRef: {name: maps}
      entryPoint: "h:web"
      watches:
        - {resourceRef: {name: pods}, mapTo: {owner: Controller}}
        - {resourceRef: {name: pods}, mapTo: {label: app}}
"""
OWNED, LABELLED = "watch web: pods → owner (Controller)", "watch web: pods → label (app)"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("mapTo: {label: app}", "mapTo: {index: byApp}", f"-{LABELLED} +watch web: pods → index (byApp)"),
        ("mapTo: {label: app}", "mapTo: {label: app}, filter: {labelSelector: a=b}", f"~{LABELLED} (filter)"),
        ("        - {resourceRef: {name: pods}, mapTo: {label: app}}\n", "", f"-{LABELLED}"),
    ],
)
def test_each_watch_of_a_reconciler_that_changes_is_named(old: str, new: str, line: str) -> None:
    """What leads to its keys is read off the plan, and not only that something is different."""
    before = BASE + RECONCILES
    steps = summary(changes(_side(before), _side(before.replace(old, new))))
    assert steps == f"~handler web (watches) {line}"
    assert summary(changes(_side(), _side(before))) == f"+handler web +{OWNED} +{LABELLED}"
    assert summary(changes(_side(before), _side())) == "-handler web"


def test_another_order_of_handlers_is_told() -> None:
    """It is the order in which they hear; a handler that comes or goes changes none."""
    first, second = BASE.splitlines()[-2:]
    swapped = "\n".join([*BASE.splitlines()[:-2], second, first])
    assert summary(changes(_side(), _side(swapped))) == "~handlers (order)"
    assert summary(changes(_side(), _side(BASE.replace(first, "")))) == "-handler notify"


def test_new_code_is_told_for_all_that_it_makes() -> None:
    """Handlers and schedules, indexes that are functions, and resources with a transform, which move."""
    assert (
        _line("guard", "guard", code="2")
        == "~handler notify (code) ~handler audit (code) ~schedule nightly (code)"
    )
    text = BASE.replace("fieldPath: spec.nodeName", "entryPoint: 'h:index'")
    steps = changes(_side(text), _side(text, "2"))
    assert "~index pods.byNode (code)" in summary(steps)
    text = BASE.replace("kind: ConfigMap", "kind: ConfigMap, transform: {entryPoint: 'h:slim'}")
    assert "-/+resource maps (code of the transform)" in summary(changes(_side(text), _side(text, "2")))


def test_steps_back_are_as_many_as_steps_forth() -> None:
    other = _side(BASE.replace("kind: ConfigMap", "kind: Secret").replace("h:notify", "h:other"))
    forth, back = changes(_side(), other), changes(other, _side())
    assert len(forth) == len(back) > 1
    assert [_with(step, "detail", "") for step in forth] == [_with(step, "detail", "") for step in back]


# These are computed from what the manifest says, and stands in other fields of a plan.
_COMPUTED = {
    "Plan.watches",
    "ResourcePlan.namespaces",
    "ResourcePlan.namespaces_inherited",
    "ResourcePlan.namespace_selector",
    "HandlerPlan.types",
}
# What may stand where nothing does, and in a list.
_ABSENT = {
    "HandlerPlan.plugin": "p",
    "HandlerPlan.timeout": 1.0,
    "HandlerPlan.status": True,
    "RetrySpec.max_attempts": 5,
    "IsolationSpec.max_memory": 1 << 28,
    "IsolationSpec.max_calls": 1000,
    "ReloadSpec.allowed_digests": "/etc/declctl-allowed/digests",
    "AdminSpec.token_file": "token",
    "StateSpec.folder": "/var/lib/declctl",
    "ShardingSpec.lease_name": "team",
    "ShardingSpec.namespace": "team-a",
    "MetricsSpec.bind_address": Address("127.0.0.1", 9090),
    "AdminSpec.tls": TlsFiles("tls.crt", "tls.key"),
    "HandlerPlan.filter": FilterSpec("a=b"),
    "HandlerPlan.entry_point": EntryPoint("h", "other"),
    "EntryPoint.attribute": "other",
    "ResourcePlan.object_type": EntryPoint("models", "Pod"),
    "WatchKey.namespace": "team-a",
    "FilterSpec.entry_point": EntryPoint("h", "accepts"),
    "TransformId.entry_point": EntryPoint("h", "slim"),
    "IndexerSpec.entry_point": EntryPoint("h", "index"),
    "PluginSpec.version": ">=1",
    "ScheduleSpec.every": 60.0,
    "ScheduleSpec.timeout": 1.0,
    "LeaderElectionSpec.lease_name": "web",
    "LeaderElectionSpec.namespace": "team-a",
}
_EMPTY = {
    "Plan.plugins": PluginSpec("mail"),
    "LifecycleSpec.startup": LifecycleStep(EntryPoint("h", "begin")),
    "LifecycleSpec.shutdown": LifecycleStep(EntryPoint("h", "end")),
    "ResourcePlan.indexers": IndexerSpec("byTeam", "metadata.labels.team"),
    "PluginSpec.config_from": "a source",
    "Plan.schedules": ScheduleSpec("nightly", EntryPoint("h", "report"), cron="0 2 * * *"),
}


def _compared_fields(value: Any) -> list[str] | None:
    """The fields of a dataclass or struct that count when two are compared; None for any other value."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    return (
        [field.name for field in dataclasses.fields(value) if field.compare] if is_dataclass(value) else None
    )


def _with(value: Any, field: str, other: Any) -> Any:
    """A dataclass or struct with another value of one field."""
    replace = msgspec.structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
    return replace(value, **{field: other})


def _others(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Values that differ from a value in one place, each with the names of the fields that lead there."""
    name = where.rsplit("/", maxsplit=1)[-1]
    fields = _compared_fields(value)
    if fields is not None:
        for field in fields:
            step = f"{type(value).__name__}.{field}"
            if step not in _COMPUTED:
                for path, other in _others(getattr(value, field), f"{where}/{step}"):
                    yield path, _with(value, field, other)
    elif isinstance(value, tuple):
        yield where, (*value, _EMPTY.get(name, "metadata.labels.x")) if name in _EMPTY or not value else ()
        for number, each in enumerate(value):
            for path, other in _others(each, where):
                yield path, (*value[:number], other, *value[number + 1 :])
    elif isinstance(value, bool):
        yield where, not value
    elif isinstance(value, Enum):
        yield where, next(member for member in type(value) if member is not value)
    elif isinstance(value, str):
        yield where, f"{value}x"
    elif isinstance(value, (int, float)):
        yield where, value + 1
    else:
        assert value is None, where
        yield where, _ABSENT[name]


FULL = BASE.replace("spec:\n", "spec:\n  plugins: [{name: slack}]\n  sharding: {slots: 4}\n", 1).replace(
    '"h:audit"', '"h:audit", filter: {labelSelector: a=b}'
)


@pytest.mark.client_go(329)
def test_no_field_of_a_plan_changes_without_a_step() -> None:
    """`declctl plan` and the line of a reload overlook nothing that a manifest can say."""
    old = _side(FULL)
    others = list(_others(old.plan))
    assert len(others) > 60
    assert [where for where, other in others if not changes(old, _with(old, "plan", other))] == []


TEXT = BASE.partition("    - name")[0] + "    - name: pods\n      apiVersion: v1\n      kind: Pod\n"


def told(fields: str, hooks: FromHooks | None = None) -> dict[str, str]:
    """The price of each part of a resource of pods."""
    text = TEXT + "".join(f"      {line}\n" for line in fields.splitlines())
    (resource,) = plan(load(ManifestSource.of([("m.yaml", text.encode())])).controller).resources
    return {cost.subject: str(cost.price) for cost in costs(resource, hooks)}


INDEXERS = """\
indexers:
  - {name: byNode, fieldPath: spec.nodeName}
  - {name: byImage, fieldPath: "spec.containers[*].image"}
  - {name: first, fieldPath: "spec.containers[0].image"}
  - {name: byApp, fieldPath: metadata.labels.app}
  - {name: byNamespace, fieldPath: metadata.namespace}
  - {name: byNote, fieldPath: metadata.annotations.note}
  - {name: byTeam, entryPoint: "m:team"}
transform: {dropFields: []}
"""


def test_each_index_has_its_price():
    """Labels are in every record, fields are projected, functions decode unless objects are kept decoded."""
    prices = {
        "index byNode": "Projected",
        "index byImage": "Projected",
        "index first": "Decodes",
        "index byApp": "InRecord",
        "index byNamespace": "InRecord",
        "index byNote": "Decodes",
        "index byTeam": "Decodes",
    }
    assert told(INDEXERS) == prices
    held = {name: "Held" if price == "Decodes" else price for name, price in prices.items()}
    assert told(f"{INDEXERS}cache: {{mode: Objects}}") == held


def test_transforms_and_hooks_have_their_prices():
    """Managed fields are cut, a function rewrites all; MetadataOnly has no status that could be dropped."""
    assert told("") == {"drop metadata.managedFields": "Cut"}
    assert told("transform: {entryPoint: 'm:slim', dropFields: []}") == {"transform m:slim": "Rewrites"}
    assert told("cache: {mode: MetadataOnly}\ntransform: {dropFields: [status]}") == {}
    hooks = FromHooks({"pods": ("byOwner",)}, {"pods": ("slack",), "others": ("x",)})
    assert told("transform: {dropFields: []}", hooks) == {
        "index byOwner": "Decodes",
        "transform slack": "Rewrites",
    }


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        (None, "decodes every object, about 15 µs each"),
        (0, "decodes every object, about 15 µs each (1 ms for 0)"),
        (2_300, "decodes every object, about 15 µs each (34 ms for 2,300)"),
        (1_000_000, "decodes every object, about 15 µs each (15.0 s for 1,000,000)"),
    ],
)
def test_what_all_of_them_cost_is_told_where_it_is_known_how_many_there_are(objects, words):
    """A person reads milliseconds, not microseconds times thousands."""
    assert Cost("index byTeam", Price.DECODES).text(objects) == words


_CONTAINER = {"name": "c", "image": "i", "env": [{"name": "A"}]}
POD = {
    "metadata": {
        "name": "web",
        "annotations": {"note": "x"},
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}],
    },
    "spec": {"nodeName": "n1", "containers": [_CONTAINER]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready"}]},
}


@pytest.mark.parametrize(
    "path",
    [
        "metadata.managedFields",
        "metadata.annotations",
        "metadata.annotations.note",
        "status",
        "status.conditions",
        "spec.containers[*].env",
        "spec.containers[0].image",
        "spec.nodeName",
    ],
)
def test_the_price_of_a_dropped_field_is_what_happens_to_a_pod(path):
    """Told as cut if and only if a cache decodes no pod for it."""
    projection = Projection(api_version="v1", kind="Pod", drop_fields=[FieldPath.parse(path)])
    record = projection.record(json.dumps(POD, separators=(",", ":")).encode())
    assert list(FieldPath.parse(path).find(record.decode())) == []
    decoded = projection.statistics().decoded_whole > 0
    assert told(f"transform: {{dropFields: ['{path}']}}") == {
        f"drop {path}": "Rewrites" if decoded else "Cut"
    }


def filter_told(fields: str, mode: str = "Frames") -> dict[str, str]:
    """The price of each part of a handler's filter."""
    text = (
        f"{TEXT}      cache: {{mode: {mode}}}\n"
        f"  handlers: [{{name: notify, resourceRef: {{name: pods}}, entryPoint: m, filter: {fields}}}]\n"
    )
    made = plan(load(ManifestSource.of([("m.yaml", text.encode())])).controller)
    found = filter_costs(made.handlers[0], made.resources[0])
    return {cost.subject.removeprefix("filter notify "): str(cost.price) for cost in found}


def test_each_part_of_a_filter_has_its_price():
    """Labels stand in the record, other paths are read in both texts, a function gets a view."""
    parts = "{labelSelector: app=web, changedPaths: [spec, metadata.labels], entryPoint: 'm:f'}"
    assert filter_told(parts) == {"labelSelector": "InRecord", "changedPaths": "Compares", "m:f": "Views"}
    assert filter_told("{changedPaths: [metadata.labels, metadata.labels.a]}") == {"changedPaths": "InRecord"}
    assert filter_told("{entryPoint: 'm:f'}", "Objects") == {"m:f": "Held"}
    assert filter_told("{}") == {}
