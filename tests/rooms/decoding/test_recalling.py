"""What a function has said is said again of objects that are alike where it looked, and of no others."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.decoding import Projection, recalling
from declctl.decoding.recalling import Recall
from declctl.decoding.selective import SelectiveReader
from declctl.objects import FrameCodec, ObjectView

_TEXTS = st.sampled_from(["a", "b", "é", ""])
_SCALARS = st.sampled_from(["a", "b", None, 1, True, 1.0, ["a"], {"a": "b"}])
_SPECS = st.none() | st.just([]) | st.dictionaries(st.sampled_from(["x", "y", "é", "z"]), _TEXTS | _SCALARS)
_STATUSES = st.dictionaries(st.sampled_from(["x", "y"]), _TEXTS, max_size=2)
_OBJECTS = st.fixed_dictionaries({}, optional={"spec": _SPECS, "status": _STATUSES})


def _record(rest, name="m", **metadata):
    body = {**rest, "metadata": {"name": name, "uid": "u", "resourceVersion": "1", **metadata}}
    projection = Projection(api_version="v1", kind="Thing", codec=FrameCodec())
    return projection.record(json.dumps(body, ensure_ascii=False).encode())


def _answer(recall, record):
    return recall.answer(record, record.layout.codec.decode(record.frame))


def _asked(function, rests):
    """The answers of a function about objects one after the other, and of how many it was asked."""
    asked = []

    def question(view):
        asked.append(1)
        return function(view)

    recall = Recall(SelectiveReader(), question)
    records = [_record(rest, f"m{number}") for number, rest in enumerate(rests)]
    answers = [_answer(recall, record) for record in records]
    assert answers == [function(ObjectView(record)) for record in records]
    return len(asked)


_PODS = [{"spec": {"node": f"n{number % 5}", "zone": f"z{number % 2}", "n": number}} for number in range(300)]


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (lambda obj: [obj["spec"]["node"]], 7),  # of the first two objects it is learned where it looks
        (lambda obj: [obj["spec"].get("node", "none")], 7),
        (lambda obj: [obj["spec"]["node"] + obj["spec"]["zone"]], 12),
        (lambda obj: [obj["spec"]["node"]] if "node" in obj["spec"] else [obj.name], 7),
        (lambda obj: [obj["spec"]["node"]] if obj["spec"]["node"] != "n1" else [obj.name], 7 - 1 + 59),
        (lambda obj: [f"{obj['spec']['node']} {obj.name}"], 300),
        (lambda obj: [f"{obj['spec']['node']} {obj.get('other')}"], 300),
        (lambda obj: [f"{obj['spec']['node']} {obj['spec']['n']}"], 300),
        (lambda obj: [f"{obj['spec']['node']} {len(obj['spec'])}"], 300),
        (lambda obj: [str(obj["spec"]["n"])], 300),
        (lambda obj: [key for key in obj["spec"] if obj["spec"]["node"]], 300),
        (lambda obj: [obj["spec"]["node"], repr(obj)], 300),
        (lambda obj: [obj["spec"]["node"], *obj.labels], 300),
        (lambda obj: [obj["spec"]["node"], *obj.annotations], 300),
        (lambda obj: [obj["spec"]["node"], str(obj.to_dict()["spec"]["n"])], 300),
        (lambda obj: ["all"], 300),
    ],
    ids=[
        "one key",
        "perhaps",
        "two keys",
        "inside",
        "sometimes its name",
        "its name",
        "another field",
        "a number",
        "how many",
        "a number alone",
        "all keys",
        "its text",
        "labels",
        "annotations",
        "a copy",
        "nothing",
    ],
)
def test_a_function_is_asked_once_where_it_sees_no_difference(function, times) -> None:
    """And each time where it looks at anything that is not known to be the same."""
    assert _asked(function, _PODS) == times


@given(st.lists(_OBJECTS, max_size=40), st.lists(st.sampled_from("xyé"), min_size=1, max_size=3))
@settings(max_examples=200)
def test_the_answers_are_those_of_a_plain_view(rests, keys) -> None:
    """Whatever stands where it looks: no text, nothing, or no object at all."""

    def function(obj):
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            return repr(spec)
        found = [spec.get(key) for key in keys]
        if spec.get("x") == "a":
            found.append(obj.get("status", {}).get("y"))
        if spec.get("y") == "b":
            found.append(obj.name)
        return repr(found)

    _asked(function, rests)


def test_whoever_raises_is_asked_each_time() -> None:
    """A fault is one of its object."""
    asked = []

    def fails(obj):
        asked.append(obj["spec"]["node"])
        raise ValueError("no")

    recall = Recall(SelectiveReader(), fails)
    for number in range(5):
        with pytest.raises(ValueError, match="no"):
            _answer(recall, _record({"spec": {"node": "n"}}, f"m{number}"))
    assert len(asked) >= 5


def test_answers_that_are_all_different_are_not_kept(monkeypatch) -> None:
    """It is looked at first what an answer is known for, which is in vain then."""
    monkeypatch.setattr(recalling, "_FEW", 20)
    recall = Recall(SelectiveReader(), lambda obj: [obj["spec"]["ip"]])
    for number in range(40):
        _answer(recall, _record({"spec": {"ip": f"ip{number}"}}))
    reader = recall._reader
    monkeypatch.setattr(SelectiveReader, "signature", lambda *_: pytest.fail("it is looked for"))
    assert _answer(recall, _record({"spec": {"ip": "ip0"}})) == ["ip0"]
    assert reader.fields == {"spec": {"ip"}}


def test_no_more_are_kept_than_memory_is_to_be_had_for(monkeypatch) -> None:
    """Those that are kept go on to be said."""
    monkeypatch.setattr(recalling, "_MOST", 3)
    asked = []
    recall = Recall(SelectiveReader(), lambda obj: asked.append(obj["spec"]["node"]) or obj["spec"]["node"])
    nodes = [f"n{number % 5}" for number in range(52)]
    assert [_answer(recall, _record({"spec": {"node": node}})) for node in nodes] == nodes
    times = {node: asked.count(node) for node in nodes}
    assert times == {"n0": 11, "n1": 11, "n2": 1, "n3": 1, "n4": 1}  # of the first two it is learned


def test_what_is_not_at_hand_as_json_is_asked_of_each() -> None:
    """Frames that are not decompressed together with others."""
    asked = []
    recall = Recall(SelectiveReader(), lambda obj: asked.append(1) or obj["spec"]["node"])
    for _ in range(5):
        assert recall.answer(_record({"spec": {"node": "n"}}), None) == "n"
    assert len(asked) == 5


def test_what_is_no_json_is_told_by_whoever_reads_it() -> None:
    """Not by whoever looks what is known."""
    recall = Recall(SelectiveReader(), lambda obj: obj["spec"]["node"])
    good = _record({"spec": {"node": "n"}})
    for _ in range(3):
        assert _answer(recall, good) == "n"
    broken = msgspec.structs.replace(good, frame=b'{"spec": ]')
    with pytest.raises(Exception, match="can't be decoded"):
        recall.answer(broken, broken.frame)
