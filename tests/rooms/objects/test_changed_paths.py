"""Whether something changed at a path: what is looked at, and that it is what decoding would have said."""

import copy
import json
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from declctl.decoding import MANAGED_FIELDS, MetadataCodec, Projection
from declctl.errors import MalformedAnswer
from declctl.objects import FieldPath, FrameCodec, ObjectCodec
from declctl.objects.differences import ChangedPaths, changed_paths
from tests.rooms.objects.json_texts import objects
from tests.rooms.objects.made_objects import pod, projection, record

_NAMES = ("spec", "status", "metadata", "labels", "annotations", "name", "kind", "a.b/c", "é", 'q"', "")
_LABELS = ("metadata", "labels")


def _paths(*texts):
    return ChangedPaths(FieldPath.parse(text) for text in texts)


class _Counted:
    """A codec that counts who looks at a text."""

    def __init__(self):
        self.decoded, self._frames = 0, FrameCodec()
        self.encode, self.statistics = self._frames.encode, self._frames.statistics

    def decode(self, frame):
        self.decoded += 1
        return self._frames.decode(frame)


def _changed(**fields):
    """Two states of a pod: as it was, and with other top-level fields and another version."""
    after = pod(**fields)
    after["metadata"] = {**after["metadata"], "resourceVersion": "8"}
    return record(pod()), record(after)


@pytest.mark.parametrize(
    ("path", "fields", "differs"),
    [
        ("spec", {"spec": {"nodeName": "node-2"}}, True),
        ("spec", {"status": {"phase": "Failed"}}, False),
        ("spec.nodeName", {"spec": {**pod()["spec"], "nodeName": "node-2"}}, True),
        ("spec.nodeName", {"spec": {**pod()["spec"], "containers": []}}, False),
        ("spec.containers[*].image", {"spec": {**pod()["spec"], "containers": []}}, True),
        ("spec.containers[0].image", {"spec": {**pod()["spec"], "nodeName": "node-2"}}, False),
        ("spec.absent", {"spec": {"absent": None}}, True),
        ("status.phase", {"status": None}, True),
        ("status", {"status": {"phase": "Running", "ready": 1}}, True),
        ("metadata.labels", {"metadata": {**pod()["metadata"], "labels": {"app": "api"}}}, True),
        ("metadata.labels.app", {"metadata": {**pod()["metadata"], "labels": {"app": "web"}}}, False),
        ("metadata.labels.tier", {"metadata": {**pod()["metadata"], "labels": {"app": "web"}}}, True),
        ("metadata.annotations.note", {"metadata": {**pod()["metadata"], "annotations": {}}}, True),
        ("metadata.resourceVersion", {}, True),
        ("kind", {"spec": {}}, False),
    ],
)
def test_only_what_stands_at_the_path_counts(path, fields, differs):
    """At or below: a change beside it is none."""
    before, after = _changed(**fields)
    assert _paths(path).differ(before, after) is differs
    assert _paths(path).differ(after, before) is differs


def test_true_is_not_one():
    """Python says that they are equal, JSON does not."""
    assert _paths("spec.a").differ(record(pod(spec={"a": True})), record(pod(spec={"a": 1})))
    assert not _paths("spec.a").differ(record(pod(spec={"a": 1})), record(pod(spec={"a": 1.0})))


def test_labels_and_what_is_the_same_are_compared_without_a_look_at_the_text():
    """Labels stand in every record; in the same record, and the same frame, nothing can have changed."""
    codec = _Counted()
    before, again = record(pod(), codec=codec), record(pod(), codec=codec)
    after = record(pod(metadata={"name": "web-1"}), codec=codec)
    assert _paths("metadata.labels").differ(before, after)
    assert _paths("metadata.labels['app']").differ(before, after)
    assert not _paths("metadata.labels.other").differ(before, after)
    assert not _paths("spec", "status").differ(before, before)
    assert not _paths("spec", "status").differ(before, again)
    assert codec.decoded == 0


def test_what_cannot_be_read_counts_as_changed():
    broken = projection().record(b'{"metadata":{"name":"web-1"},"spec":{"a":\xff}}')
    assert broken is not None
    assert _paths("spec").differ(record(pod()), broken)


@pytest.mark.parametrize(
    "codec", [FrameCodec, MetadataCodec, lambda: ObjectCodec(api_version="v1", kind="Pod")]
)
def test_however_objects_are_kept(codec):
    """Frames, objects that are kept decoded (whatever readers did to them), and metadata alone."""
    kept = codec()
    before = record(pod(), codec=kept)
    after = record(pod(metadata={"name": "web-1", "annotations": {"note": "x"}}), codec=kept)
    before.read().get("metadata", {})["finalizers"] = ["changed by a reader"]
    assert _paths("metadata.annotations").differ(before, after)
    assert not _paths("metadata.finalizers").differ(before, after)


def _canonical(value):
    """Equal for the same JSON."""
    if isinstance(value, dict):
        return ("map", sorted((name, _canonical(each)) for name, each in value.items()))
    if isinstance(value, list):
        return ("list", [_canonical(each) for each in value])
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, str(value))
    return ("number", repr(float(value) + 0.0) if abs(value) < 1e15 else repr(value))


def _sorted(value):
    """The same, with the keys of each map in order: `[*]` over a map means its values, not their order."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _expected(path, before, after):
    """What the definition says: whether the values that are found differ."""
    if path.steps == _LABELS:
        return before.labels != after.labels
    if path.steps[:2] == _LABELS and len(path.steps) == 3 and isinstance(path.steps[2], str):
        return before.labels.get(path.steps[2]) != after.labels.get(path.steps[2])
    found = [[_canonical(value) for value in path.find(_sorted(each.decode()))] for each in (before, after)]
    return found[0] != found[1]


def _made(reader, text):
    """The record of an object that has a name and can be decoded; no others are of interest here."""
    try:
        found = reader.record(text)
        found.decode()
    except MalformedAnswer:
        assume(False)
    return found


_STEPS = st.sampled_from([*_NAMES, 0, 1]) | st.just(FieldPath.parse("a[*]").steps[1])


@st.composite
def _some_paths(draw):
    first = st.sampled_from(["spec", "status", "metadata", "kind", "a.b/c", "é"])
    tails = draw(st.lists(st.tuples(first, st.lists(_STEPS, max_size=3)), min_size=1, max_size=4))
    return [FieldPath((head, *tail)) for head, tail in tails]


def _edited(chance, value):
    """The same with a few values removed, added or replaced, anywhere in it."""
    if isinstance(value, dict):
        made = {name: _edited(chance, each) for name, each in value.items() if chance.random() > 0.05}
        if chance.random() < 0.1:
            made[chance.choice(_NAMES)] = chance.choice([None, True, 1, {}, [], "x"])
        names = list(made)
        chance.shuffle(names)
        return {name: made[name] for name in names}
    if isinstance(value, list):
        return [_edited(chance, each) for each in value if chance.random() > 0.1]
    return chance.choice([None, False, 0, "y", value]) if chance.random() < 0.1 else value


@given(objects(_NAMES), _some_paths(), st.integers(0, 2**32))
def test_it_says_what_decoding_both_would_say(text, paths, seed):
    """Whatever the objects are, however they are edited and written, and whatever is asked."""
    chance = random.Random(seed)
    reader = Projection(api_version="v1", kind="Pod", drop_fields=[MANAGED_FIELDS])
    before = _made(reader, text)
    obj = _edited(chance, copy.deepcopy(before.decode()))
    metadata = obj.get("metadata")
    obj["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), "name": "a"}
    written = json.dumps(obj, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1]))
    after = _made(reader, written.encode("utf-8", "surrogatepass"))
    expected = any(_expected(path, before, after) for path in paths)
    assert ChangedPaths(paths).differ(before, after) is expected


@given(objects(_NAMES), objects(_NAMES), _some_paths())
def test_it_says_what_decoding_two_strangers_would_say(one, other, paths):
    """Two objects that have nothing to do with each other, and are spelled in every way."""
    before, after = _made(projection(), one), _made(projection(), other)
    expected = any(_expected(path, before, after) for path in paths)
    assert ChangedPaths(paths).differ(before, after) is expected


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        ({"spec": {"a": 1}}, {"spec": {"a": 1}}, []),
        ({"spec": {"a": 1}}, {"spec": {"a": True}}, ["spec.a"]),
        ({"spec": {"a": 1}}, {"status": {"b": {"c": 1}}}, ["spec", "status"]),
        ({"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 1}, {"x": 3}, 4]}, ["a[1].x", "a[2]"]),
        ({"metadata": {"labels": {"a/b": "1"}}}, {"metadata": {"labels": {}}}, ["metadata.labels['a/b']"]),
        (
            {"metadata": {"resourceVersion": "1", "managedFields": [], "generation": 1}},
            {"metadata": {"resourceVersion": "2", "managedFields": [1], "generation": 2}},
            ["metadata.generation"],
        ),
        ({"a": None}, {}, ["a"]),
    ],
)
def test_the_paths_at_which_two_states_differ(before, after, paths):
    """What a user reads as the change; what differs in every two states is left out."""
    assert changed_paths(before, after, most=10) == (paths, 0)
    for path in map(FieldPath.parse, paths):  # it can be pasted into a filter
        assert repr(list(path.find(before))) != repr(list(path.find(after)))


def test_further_paths_are_counted_up_to_a_limit():
    """An object that is replaced as a whole takes no long line."""
    after = {f"f{number:04d}": number for number in range(5000)}
    assert changed_paths({}, after, most=2) == (["f0000", "f0001"], 998)
