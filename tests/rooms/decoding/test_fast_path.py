"""The reader of usual objects: what it reads, and that whatever else there is comes out the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.decoding.decoders import InternTables, PartialDecoder
from declctl.decoding.projection import fast_reader
from declctl.objects import Record
from declctl.objects.record import nothing_known
from tests.rooms.objects.made_objects import NODE_NAME, compact, pod, projection

APPLIED = json.dumps({"apiVersion": "v1", "metadata": {"name": "web-1"}, "spec": {"args": ["a]", '"[']}})
MANAGED = [
    {
        "manager": "kubectl",
        "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {"f:spec": {'k:{"name":"a"}': {".": {}}}},
    },
    {"manager": "kubelet", "fieldsV1": {"f:status": {'v:"x"': {}}}},
]


def read(raw: bytes, *, before: bytes = b"", after: bytes = b"") -> Record | None:
    made = projection(NODE_NAME)
    parts = PartialDecoder([NODE_NAME]), InternTables(), made.layout
    reader = fast_reader(*parts, drops_managed_fields=True, seen=made.finalizers)
    return reader(before + raw + after, len(before), len(before) + len(raw), nothing_known)


def custom_resource() -> dict[str, object]:
    """The fields of a custom resource come in the order of their names."""
    obj = pod()
    obj["metadata"] = dict(sorted((obj["metadata"] | {"managedFields": MANAGED}).items()))
    return dict(sorted(obj.items()))


def usual_objects() -> dict[str, dict[str, object]]:
    whole = pod()
    whole["metadata"]["managedFields"] = MANAGED
    applied = pod()
    applied["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = APPLIED
    applied["metadata"]["managedFields"] = MANAGED
    only = pod()
    only["metadata"] = {"managedFields": MANAGED} | only["metadata"]
    return {
        "pod": whole,
        "applied with kubectl": applied,
        "custom resource": custom_resource(),
        "first of its fields": only,
        "nothing managed": pod(),
        "of the cluster": {"metadata": {"name": "a", "resourceVersion": "1"}},
    }


@pytest.mark.parametrize("name", usual_objects())
def test_what_api_servers_write_is_usual(name: str) -> None:
    """It is read the short way, and its frame is the object without managedFields."""
    obj = usual_objects()[name]
    record = read(compact(obj), before=b'{"type":"ADDED","object":', after=b"}")
    assert record is not None
    expected = json.loads(compact(obj))
    expected["metadata"].pop("managedFields", None)
    assert json.loads(record.layout.codec.decode(record.frame)) == expected
    assert record.resource_version == expected["metadata"]["resourceVersion"]
    assert record.field(NODE_NAME) == (("node-1",) if "spec" in obj else ())


@pytest.mark.parametrize(
    "raw",
    [
        b'{"metadata":{"resourceVersion":"1"}}',
        b'{"metadata":{"name":"a","resourceVersion":""}}',
        b'{"metadata":{"name":"a","uid":"u\\nv","resourceVersion":"1"}}',
        b'{"metadata":{"name":"a","resourceVersion":1}}',
        b'{"metadata":{"name":"a","resourceVersion":"1"},"spec":[]}',
        b'{"metadata":{"name":"a","resourceVersion":"1"}},{}',
        b'{"metadata":{"name":"a","resourceVersion":"1","managedFields":[[1]]}}',
        b'{"metadata":{"name":"a","resourceVersion":"1","managedFields":7}}',
        b'{"metadata":{"name":"a","resourceVersion":"1","managed\\u0046ields":[1]}}',
        b'{"metadata":{"name":"a","resourceVersion":"1","managed\\u0046ields":[1],"managedFields":[2]}}',
        b'{"metadata":{"name":"a","resourceVersion":"1","managedFields":[1],"managedFields":[2]}}',
        b'{"metadata":{"name":"a","resourceVersion":"1", "managedFields":[1] }}',
        b'{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"managedFields":[1]}}',
        b'{"spec":{"managedFields":[1]},"metadata":{"name":"a","resourceVersion":"1","managedFields":[1]}}',
        b'{"metadata":{"name":"a","resourceVersion":"1","managedFields":[{"a":"]"}],"b":"c"}}',
        b'{"metadata":{"name":"a","resourceVersion":"1","managedFields":[{"]":1,":":2}],"b":"c"}}',
        b'{"metadata":{"managedFields":[1]},"metadata":{"name":"a","resourceVersion":"1"}}',
    ],
)
def test_what_is_not_quite_so_is_left_to_those_who_take_care(raw: bytes) -> None:
    assert read(raw) is None


TEXTS = st.text(alphabet='[]{}":,\\\u00e9a', max_size=6) | st.sampled_from(["managedFields", "a", "f:spec"])
VALUES = st.recursive(
    TEXTS | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.lists(
    st.dictionaries(TEXTS, TEXTS | st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=3), max_size=3
)


@st.composite
def nearly_usual(draw: st.DrawFn) -> bytes:
    """An object of which everything is usual, or nearly everything, with its fields in any order."""
    metadata = {"name": "a", "resourceVersion": "1", "uid": "u", "labels": {"x": draw(TEXTS)}}
    metadata["annotations"] = {"note": draw(TEXTS), draw(TEXTS): "x"}
    fields = [*metadata.items(), ("managedFields", draw(ENTRIES | ENTRIES | VALUES))]
    spec = {"nodeName": "n", draw(TEXTS): draw(VALUES), "managedFields": draw(VALUES)}
    whole = [("metadata", dict(draw(st.permutations(fields)))), ("spec", spec), (draw(TEXTS), draw(VALUES))]
    return compact(dict(draw(st.permutations(whole))))


@settings(max_examples=200)
@given(raw=nearly_usual())
def test_both_ways_give_the_same(raw: bytes) -> None:
    """Where the short way reads an object, it reads what the long way reads."""
    short = read(raw)
    if short is None:
        return
    whole = json.loads(raw)
    whole["metadata"].pop("managedFields", None)
    assert short.decode() == {"apiVersion": "v1", "kind": "Pod"} | whole
    assert short.labels == {"x": whole["metadata"]["labels"]["x"]}
    assert short.field(NODE_NAME) == ("n",)
