"""Views that decode each field when it is read: a function says of one what it says of a plain view."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.errors import MalformedAnswer
from declctl.objects import FrameCodec, ObjectCodec, ObjectView, decompressed, field_view, frame

_FIELDS = ("spec", "status", "metadata", "data", "apiVersion", "kind", "from", "a-b", "é")
_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.just({"x": [1, {"y": 2}], "z": None})
    | st.just({})
    | st.just([{"x": 1}])
)
_OBJECTS = st.dictionaries(st.sampled_from(_FIELDS[3:] + _FIELDS[:2]), _VALUES, max_size=6)


def _record(rest, codec=None):
    body = {**rest, "metadata": {"name": "m", "uid": "u", "resourceVersion": "1", "annotations": {"a": "b"}}}
    projection = Projection(api_version="v1", kind="Thing", codec=codec or FrameCodec())
    return projection.record(json.dumps(body).encode())


def _spoil(obj, field):
    value = obj[field]
    if isinstance(value, dict):
        value["spoilt"] = True
    return value


_READS = {
    "item": lambda obj, field: obj[field],
    "get": lambda obj, field: obj.get(field, "none"),
    "in": lambda obj, field: field in obj,
    "text": lambda obj, field: str(obj[field]),
    "inner": lambda obj, field: obj[field]["x"],
    "other": lambda obj, field: obj[field].get("z", "none"),
    "inside": lambda obj, field: ("q" in obj[field], "z" in obj[field]),
    "length": lambda obj, field: len(obj[field]),
    "walk": lambda obj, field: list(obj[field]),
    "past": lambda obj, field: dict.get(obj[field], "x"),
    "nothing": lambda obj, field: obj[field] is None,
    "spoil": _spoil,
    "annotations": lambda obj, _: dict(obj.annotations),
    "all": lambda obj, _: dict(obj),
}


def _reads(obj, how, field):
    """What somebody sees who looks there."""
    try:
        return _READS[how](obj, field)
    except (KeyError, TypeError, AttributeError) as missing:
        return f"{type(missing)}"


_LOOKS = st.lists(st.tuples(st.sampled_from(list(_READS)), st.sampled_from(_FIELDS)), max_size=5)


@given(objects=st.lists(st.tuples(_OBJECTS, _LOOKS, st.booleans()), max_size=6))
def test_whoever_reads_what_sees_what_a_plain_view_shows(objects) -> None:
    """Also what it has changed itself; and the next object is as untouched as ever."""
    for body, looks, at_hand in objects:
        record = _record(body)
        plain = decompressed([record])[0] if at_hand else None

        def function(obj, looks=looks):
            seen = [_reads(obj, how, field) for how, field in looks]
            assert obj.key == "m"
            assert obj.to_dict() == ObjectView(record)  # noqa: B023 - called at once
            return json.loads(json.dumps(seen, default=str))

        assert function(field_view(record, plain)) == function(ObjectView(record))


def test_what_was_read_alone_is_the_same_when_all_is_read() -> None:
    """A value is decoded once, and is one object however it is reached."""
    record = _record({"spec": {"a": 1}, "status": {}})
    view = field_view(record)
    spec = view["spec"]
    assert (view.name, "spec" in view, view.get("absent")) == ("m", True, None)
    assert view == ObjectView(record)
    assert list(view) == list(ObjectView(record))
    assert view["spec"] is spec
    assert dict(view)["spec"] is spec


def test_a_generator_may_read_later() -> None:
    """What it is asked for after its function has returned is there still."""
    view = field_view(_record({"spec": {"a": 1}}))
    assert [*view["spec"].values()] == [1]


def test_objects_that_a_cache_holds_are_shared() -> None:
    """They are decoded already."""
    record = _record({"spec": {"a": 1}}, ObjectCodec(api_version="v1", kind="Thing"))
    assert type(field_view(record)) is ObjectView
    assert decompressed([record]) == [None]


def test_an_object_that_is_no_json_says_so() -> None:
    """In the words of a plain view."""
    broken = msgspec.structs.replace(_record({"spec": 1}), frame=b'{"spec": ]')
    with pytest.raises(MalformedAnswer, match="m can't be decoded"):
        field_view(broken)["spec"]


def test_a_value_that_can_not_be_decoded_is_a_fault_of_the_object() -> None:
    """Where it is read; and in the words of a plain view."""
    good = _record({"spec": {"a": "x"}})
    broken = msgspec.structs.replace(good, frame=b'{"spec": {"a": 1e999}, "status": 1}')
    assert field_view(broken)["status"] == 1
    with pytest.raises(MalformedAnswer, match="m can't be decoded"):
        field_view(broken)["spec"]


def test_many_are_decompressed_together(monkeypatch) -> None:
    """As each would be alone; all alone if they are large, of other makers, or one of them is broken."""
    codec = FrameCodec()
    text = "some text that is worth to be compressed, " * 9
    records = [_record({"spec": {"text": text, "n": n}}, codec) for n in range(200)]
    records.insert(7, _record({}, codec))  # too small for that
    alone = [codec.decode(record.frame) for record in records]
    assert not records[0].frame.startswith(b"{")
    assert [bytes(plain) for plain in decompressed(records)] == alone
    with monkeypatch.context() as patch:
        patch.setattr(frame, "DECOMPRESSES_TOGETHER", False)  # as where the library can't
        assert decompressed(records) == alone
    assert decompressed([]) == []
    nothing = [None] * 201
    assert decompressed([*records[1:], _record({})]) == nothing
    assert decompressed([*records[1:], msgspec.structs.replace(records[0], frame=b"x" * 70_000)]) == nothing
    assert decompressed([*records[1:], msgspec.structs.replace(records[0], frame=b"\x20broken")]) == nothing
