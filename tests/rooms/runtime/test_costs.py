"""What decodes objects is told before it does, and what is told is what happens."""

import json

import pytest

from declctl.decoding import Projection
from declctl.manifest import ManifestSource, load, plan
from declctl.objects import FieldPath
from declctl.runtime.checking.declaration import FromHooks
from declctl.runtime.planning.costs import Cost, Price, costs, filter_costs

TEXT = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
"""


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
    """Labels and identity are in every record, fields are projected, functions and odd paths decode."""
    assert told(INDEXERS) == {
        "index byNode": "Projected",
        "index byImage": "Projected",
        "index first": "Decodes",
        "index byApp": "InRecord",
        "index byNamespace": "InRecord",
        "index byNote": "Decodes",
        "index byTeam": "Decodes",
    }


def test_objects_that_are_kept_decoded_cost_no_index_anything():
    """With `mode: Objects` a function reads what is there."""
    prices = told(f"{INDEXERS}cache: {{mode: Objects}}")
    assert (prices["index byTeam"], prices["index first"], prices["index byNode"]) == (
        "Held",
        "Held",
        "Projected",
    )


def test_managed_fields_are_cut_and_a_transform_writes_every_object():
    """The default costs next to nothing; a function decodes, and writes again what it gives back."""
    assert told("") == {"drop metadata.managedFields": "Cut"}
    assert told("transform: {entryPoint: 'm:slim', dropFields: []}") == {"transform m:slim": "Rewrites"}


def test_a_field_that_metadata_has_not_costs_nothing():
    """MetadataOnly has no status that could be dropped."""
    assert told("cache: {mode: MetadataOnly}\ntransform: {dropFields: [status]}") == {}


def test_hooks_cost_as_much_as_entry_points():
    """What a plugin or a handler class adds is told beside what the manifest says."""
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


POD = {
    "metadata": {
        "name": "web",
        "namespace": "a",
        "labels": {"app": "web"},
        "annotations": {"note": "x"},
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i", "env": [{"name": "A"}]}]},
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
