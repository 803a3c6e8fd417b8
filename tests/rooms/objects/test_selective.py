"""Views that decode what their reader reads: they say what a plain view says, whoever reads what."""

import json
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.errors import MalformedAnswer
from declctl.objects import FrameCodec, ObjectCodec, ObjectView, Projection
from declctl.objects.selective import SelectiveReader

_FIELDS = ("spec", "status", "metadata", "data", "apiVersion", "kind", "from", "a-b", "é")
_VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just({"x": [1, {"y": 2}]})
_OBJECTS = st.dictionaries(st.sampled_from(_FIELDS[3:] + _FIELDS[:2]), _VALUES, max_size=6)


def _record(rest, codec=None):
    body = {**rest, "metadata": {"name": "m", "uid": "u", "resourceVersion": "1", "annotations": {"a": "b"}}}
    projection = Projection(api_version="v1", kind="Thing", codec=codec or FrameCodec())
    return projection.record(json.dumps(body).encode())


def _reads(obj, how, field):
    """What somebody sees who looks there."""
    try:
        match how:
            case "get":
                return obj.get(field, "none")
            case "in":
                return field in obj
            case "all":
                return dict(obj)
            case "annotations":
                return dict(obj.annotations)
            case "spoil":
                value = obj[field]
                if isinstance(value, dict):
                    value["spoilt"] = True
                return value
            case _:
                return obj[field]
    except KeyError as missing:
        return f"KeyError {missing}"


_LOOKS = st.lists(
    st.tuples(
        st.sampled_from(["item", "get", "in", "spoil", "annotations", "all"]), st.sampled_from(_FIELDS)
    ),
    max_size=5,
)


@given(objects=st.lists(st.tuples(_OBJECTS, _LOOKS), max_size=6))
def test_whoever_reads_what_sees_what_a_plain_view_shows(objects) -> None:
    """Also what it has changed itself; and the next object is as untouched as ever."""
    reader = SelectiveReader()
    for body, looks in objects:
        record = _record(body)
        selective, plain = reader.view(record), ObjectView(record)
        for how, field in looks:
            assert _reads(selective, how, field) == _reads(plain, how, field)
        assert selective.key == plain.key
        assert selective.to_dict() == ObjectView(record)


def test_it_learns_what_is_read() -> None:
    """One field, then two; at the fourth, and wherever all is looked at, objects are decoded in one go."""
    record, reader = _record({"spec": {"a": 1}, "status": {}, "data": {}, "x": {}}), SelectiveReader()
    assert reader.fields == ()
    for field in ("spec", "status", "data"):
        assert reader.view(record)[field] is not None
    assert reader.fields == ("spec", "status", "data")
    assert reader.view(record)["x"] == {}
    assert reader.fields is None
    assert type(reader.view(record)) is ObjectView
    other = SelectiveReader()
    assert "spec" in list(other.view(record))
    assert other.fields is None


def test_only_what_is_read_is_decoded(monkeypatch) -> None:
    """Nothing else of an object becomes a Python object: that is what it is for."""
    record, reader = _record({"spec": {"a": 1}, "status": {}}), SelectiveReader()
    assert reader.view(record)["spec"] == {"a": 1}
    monkeypatch.setattr(type(record), "read", lambda _: pytest.fail("all of it was decoded"))
    assert reader.view(record)["spec"] == {"a": 1}
    assert reader.view(record).name == "m"


def test_objects_that_a_cache_holds_are_shared() -> None:
    """They are decoded already."""
    view = SelectiveReader().view(_record({"spec": {"a": 1}}, ObjectCodec(api_version="v1", kind="Thing")))
    assert type(view) is ObjectView
    assert isinstance(view["spec"], dict | MappingProxyType)


def test_an_object_that_is_no_json_says_so() -> None:
    """In the words of a plain view."""
    good, reader = _record({"spec": 1}), SelectiveReader()
    assert reader.view(good)["spec"] == 1
    broken = msgspec.structs.replace(good, frame=b'{"spec": ]')
    with pytest.raises(MalformedAnswer, match="m can't be decoded"):
        reader.view(broken)["spec"]
