"""Whatever JSON a server sends: views show it, projections and indexes find in it what a look at it finds."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from declctl.decoding import Projection
from declctl.errors import MalformedAnswer
from declctl.informer import Indexer, field_index, function_index
from declctl.objects import FieldPath, FrameCodec, ObjectCodec, ObjectView, Record
from tests.rooms.objects.json_texts import Fields, objects

NAMES = ["spec", "status", "nodeName", "containers", "image", "managedFields", "labels", "a"]
VALUES = ["n1", "n2", "managedFields", 7, None]
CONTAINERS = [
    Fields([("image", "i1"), ("a", Fields([("nodeName", 5)]))]),
    Fields([("image", "i2"), ("image", "i3")]),
]
USUAL = [
    (
        "spec",
        Fields([("nodeName", "n1"), ("a", 1), ("containers", CONTAINERS), ("labels", ["x", 1.5, True])]),
    ),
    ("status", Fields([("a", Fields([("a", False)])), ("nodeName", "n2")])),
]
OBJECTS = objects([*NAMES, "metadata", "name"], VALUES, usual=USUAL)
NAMED = st.sampled_from("abc").flatmap(lambda name: objects(NAMES, VALUES, called=name, usual=USUAL))
DROPPED = [
    FieldPath.parse(text)
    for text in (
        "metadata.managedFields",
        "status",
        "spec.nodeName",
        "spec.containers[*].image",
        "spec.status",
        "metadata.labels",
        "metadata.labels.a",
        "metadata",
        "spec.containers[0]",
        "spec[*]",
        "deep",
        "a",
    )
]
PROJECTED = [
    FieldPath.parse(text)
    for text in (
        "spec.nodeName",
        "spec.a",
        "spec.containers",
        "spec.containers[*].image",
        "spec.containers[*].a.nodeName",
        "spec.labels[*]",
        "spec.containers[1].image",
        "status.a.a",
        "status",
        "metadata.a",
        "metadata.labels[*]",
        "a",
    )
]
SOME = st.lists(st.sampled_from(PROJECTED), max_size=4, unique=True)
DROPS = st.just([DROPPED[0]]) | st.lists(st.sampled_from(DROPPED), max_size=3, unique=True)


def exactly(obj: Any) -> str:
    """A text that two values share only if they are equal, and of the same types."""
    return json.dumps(obj, sort_keys=True)


def as_python_reads(raw: bytes, drops: Sequence[FieldPath]) -> dict[str, Any]:
    """The reference: what the standard library makes of the bytes, less what is dropped."""
    obj = json.loads(raw)
    for path in drops:
        path.remove_from(obj)
    return {"apiVersion": "v1", "kind": "Pod"} | obj


def has_a_name(raw: bytes) -> bool:
    metadata = json.loads(raw).get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("name"))


def sent_alone(projection: Projection, raw: bytes) -> Record | None:
    return projection.record(raw)


def sent_in_a_list(projection: Projection, raw: bytes) -> Record | None:
    body = b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[' + raw + b"]}"
    (record,) = projection.page(body).records
    return record


def sent_in_a_watch(projection: Projection, raw: bytes) -> Record | None:
    return projection.event(b'{"type":"MODIFIED","object":' + raw + b"}").record


WAYS = st.sampled_from([sent_alone, sent_in_a_list, sent_in_a_watch])


def trained() -> FrameCodec:
    """A codec whose dictionary knows the names, and nothing of the values."""
    codec = FrameCodec()
    for n in range(400):
        obj = {"metadata": {"name": str(n), "managedFields": []}, "spec": dict.fromkeys(NAMES, n), "n": n}
        codec.encode(msgspec.json.encode(obj))
    assert codec.trained
    return codec


TRAINED = trained()
CODECS = st.sampled_from([FrameCodec, lambda: TRAINED, lambda: ObjectCodec(api_version="v1", kind="Pod")])


@given(
    raw=OBJECTS,
    drops=DROPS,
    codec=CODECS,
    way=WAYS,
    transform=st.sampled_from([None, lambda obj: obj]),
    paths=SOME,
)
@settings(max_examples=150)
def test_view_shows_what_came_over_the_wire_less_what_is_dropped(raw, drops, codec, way, transform, paths):
    """Unicode, big integers, exponents, repeated names, null, depth: nothing is lost, changed or added."""
    projection = Projection(
        api_version="v1", kind="Pod", paths=paths, drop_fields=drops, transform=transform, codec=codec()
    )
    if not has_a_name(raw):
        with pytest.raises(MalformedAnswer):
            way(projection, raw)
        return
    record = way(projection, raw)
    expected = as_python_reads(raw, drops)
    assert record is not None
    assert exactly(dict(ObjectView(record))) == exactly(ObjectView(record).to_dict()) == exactly(expected)
    assert projection.statistics().objects == 1


@given(raw=OBJECTS, drops=DROPS, paths=SOME, way=WAYS)
@settings(max_examples=150)
def test_what_is_projected_is_what_the_path_finds_in_the_object(raw, drops, paths, way):
    """Read in part or whole, before or after the cut: the same as a look at the decoded object."""
    assume(has_a_name(raw))
    projection = Projection(api_version="v1", kind="Pod", paths=paths, drop_fields=drops)
    record = way(projection, raw)
    assert record is not None
    obj = as_python_reads(raw, drops)
    assert {path: record.field(path) for path in PROJECTED} == {path: path.values(obj) for path in PROJECTED}


def finds(path: FieldPath) -> Callable[[ObjectView], Sequence[str]]:
    """An index function that looks at the object."""
    return path.values


def lookup(store: Indexer, name: str) -> Mapping[str, Mapping[str, int]]:
    """All that is in an index: by value, the keys and their records."""
    return {
        value: {
            key: id(found)
            for key, found in zip(store.index_keys(name, value), store.by_index(name, value), strict=True)
        }
        for value in store.list_index_func_values(name)
    }


class IndexMachine(RuleBasedStateMachine):
    """Whatever is put, replaced and deleted: two stores that index the same by path and by function."""

    @initialize(paths=SOME, drops=DROPS)
    def start(self, paths: list[FieldPath], drops: list[FieldPath]) -> None:
        self.projection = Projection(api_version="v1", kind="Pod", paths=paths, drop_fields=drops)
        self.store = Indexer(
            {f"path {path}": field_index(str(path)) for path in PROJECTED}
            | {f"function {path}": function_index(finds(path)) for path in PROJECTED}
        )

    def record(self, raw: bytes) -> list[Record]:
        if not has_a_name(raw):
            return []
        record = self.projection.record(raw)
        assert record is not None
        return [record]

    @rule(raw=NAMED)
    def put(self, raw: bytes) -> None:
        for record in self.record(raw):
            self.store.update(record)

    @rule(raws=st.lists(NAMED, max_size=3))
    def replace(self, raws: list[bytes]) -> None:
        self.store.replace([record for raw in raws for record in self.record(raw)])

    @rule(key=st.sampled_from("abc"))
    def delete(self, key: str) -> None:
        self.store.take(key)

    @invariant()
    def indexes_agree(self) -> None:
        for path in PROJECTED:
            assert lookup(self.store, f"path {path}") == lookup(self.store, f"function {path}")
        assert not self.store.index_faults()


class TestIndexes(IndexMachine.TestCase):
    """An index by projection is the one that a Python function builds."""

    settings = settings(max_examples=20, stateful_step_count=12)


def test_objects_that_are_made_here_are_of_every_kind():
    """So that the tests above say something: read in part and whole, cut, refused."""
    seen: set[str] = set()

    @given(raw=OBJECTS)
    @settings(max_examples=150, derandomize=True)
    def look(raw: bytes) -> None:
        projection = Projection(
            api_version="v1", kind="Pod", paths=PROJECTED[:4], drop_fields=[DROPPED[0], DROPPED[1]]
        )
        if not has_a_name(raw):
            seen.add("refused")
            return
        record = projection.record(raw)
        assert record is not None
        seen.add("whole" if projection.statistics().decoded_whole else "in part")
        obj = json.loads(raw)
        seen.update(what for what in ("managedFields",) if what in obj["metadata"])
        seen.update(what for what in ("status", "spec", "deep") if what in obj)
        seen.update(f"indexed {n}" for n, path in enumerate(PROJECTED[:2]) if record.field(path))

    look()
    assert seen == {
        *("refused", "whole", "in part", "managedFields", "status", "spec", "deep"),
        *("indexed 0", "indexed 1"),
    }
