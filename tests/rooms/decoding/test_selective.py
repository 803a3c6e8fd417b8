"""Functions of which only what they read is decoded: they say what they say of a plain view."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.decoding.projection import decompressed
from declctl.decoding.selective import SelectiveReader
from declctl.errors import MalformedAnswer
from declctl.objects import FrameCodec, ObjectCodec, ObjectView, frame

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


def _reads(obj, how, field):  # noqa: C901
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
            case "text":
                return str(obj[field])
            case "inner":
                return obj[field]["x"]
            case "other":
                return obj[field].get("z", "none")
            case "inside":
                return "q" in obj[field], "z" in obj[field]
            case "length":
                return len(obj[field])
            case "walk":
                return list(obj[field])
            case "past":
                found = dict.get(obj[field], "x")
                if type(found) is msgspec.Raw:
                    raise ValueError("what is no JSON is refused, as C code does")
                return found
            case "spoil":
                value = obj[field]
                if isinstance(value, dict):
                    value["spoilt"] = True
                return value
            case "nothing":
                return obj[field] is None
            case _:
                return obj[field]
    except (KeyError, TypeError, AttributeError) as missing:
        return f"{type(missing)}"


_HOWS = [
    "item",
    "get",
    "in",
    "text",
    "inner",
    "other",
    "inside",
    "length",
    "walk",
    "past",
    "nothing",
    "spoil",
    "annotations",
    "all",
]
_LOOKS = st.lists(st.tuples(st.sampled_from(_HOWS), st.sampled_from(_FIELDS)), max_size=5)


@given(objects=st.lists(st.tuples(_OBJECTS, _LOOKS, st.booleans()), max_size=6))
def test_whoever_reads_what_sees_what_a_plain_view_shows(objects) -> None:
    """Also what it has changed itself; and the next object is as untouched as ever."""
    reader = SelectiveReader()
    for body, looks, at_hand in objects:
        record = _record(body)
        plain = decompressed([record])[0] if at_hand else None

        def function(obj, looks=looks):
            seen = [_reads(obj, how, field) for how, field in looks]
            assert obj.key == "m"
            assert obj.to_dict() == ObjectView(record)  # noqa: B023 - called at once
            return json.loads(json.dumps(seen, default=str))

        assert reader.ask(function, record, plain) == function(ObjectView(record))


def _asked(reader, record, *fields):
    return reader.ask(lambda obj: [obj[field] for field in fields], record)


def test_it_learns_what_is_read() -> None:
    """One field, then two; at the fourth, and wherever all is looked at, objects are decoded in one go."""
    record, reader = _record({"spec": {"a": 1}, "status": 1, "data": {}, "x": {}}), SelectiveReader()
    assert reader.fields == {}
    assert not reader.reads
    for field in ("spec", "status", "data"):
        assert _asked(reader, record, field)
    assert reader.fields == {"spec": set(), "status": "whole", "data": set()}
    assert reader.reads
    assert _asked(reader, record, "x") == [{}]
    assert reader.fields is None
    assert reader.ask(type, record) is ObjectView
    other = SelectiveReader()
    assert "spec" in other.ask(list, record)
    assert other.fields is None


def test_only_what_is_read_is_decoded(monkeypatch) -> None:
    """Nothing else of an object becomes a Python object: that is what it is for."""
    record, reader = _record({"spec": {"a": 1, "b": [2]}, "status": {}}), SelectiveReader()
    assert reader.ask(lambda obj: obj["spec"]["a"], record) == 1
    monkeypatch.setattr(type(record), "read", lambda _: pytest.fail("all of it was decoded"))
    seen = []
    for number in range(3):
        assert reader.ask(lambda obj: seen.append(obj["spec"]) or obj["spec"]["a"], record) == 1
        assert reader.fields == {"spec": {"a"}}
        assert type(dict.get(seen[number], "b", msgspec.Raw())) is msgspec.Raw
    assert "b" not in dict.keys(seen[2])
    assert reader.ask(lambda obj: obj.name, record) == "m"


@pytest.mark.parametrize(
    "function",
    [
        lambda obj: dict.get(obj["spec"], "a") + 1,
        lambda obj: type(obj["spec"]).__name__,
        lambda obj: [value for value in dict.values(obj["spec"]) if type(value) is int],
        lambda obj: sum(value for _, value in sorted(obj["spec"].items())),
    ],
    ids=["raises", "reads nothing", "misreads", "walks"],
)
@pytest.mark.parametrize("learned", [False, True])
def test_a_function_that_needs_all_of_a_field_gets_it_from_then_on(function, learned) -> None:
    """Be it that it looks past a dictionary's methods, or at all that is in it."""
    record, reader = _record({"spec": {"a": 1, "b": 2}}), SelectiveReader()
    right = function(ObjectView(record))
    assert reader.ask(lambda obj: obj["spec"]["a"], record) == 1
    assert reader.fields == {"spec": set()}
    if learned:
        assert reader.ask(lambda obj: obj["spec"]["a"], record) == 1
        assert reader.fields == {"spec": {"a"}}
    assert reader.ask(function, record) == right
    assert reader.fields == {"spec": "whole"}
    assert reader.ask(function, record) == right


def _write_into_a_sum(obj):
    sum(each.setdefault("n", 0) for each in obj["spec"].values() if isinstance(each, dict))


@pytest.mark.parametrize(
    "codec", [None, ObjectCodec(api_version="v1", kind="Thing")], ids=["frames", "objects"]
)
@pytest.mark.parametrize("keys", [(), ("a",), ("a", "b", "c")])
@pytest.mark.parametrize(
    "write",
    [
        lambda obj: obj["spec"].update(a=2),
        lambda obj: obj["spec"].pop("a"),
        lambda obj: obj["spec"]["b"].append(2),
        lambda obj: obj["spec"].get("b")[1].clear(),
        lambda obj: obj["spec"]["c"].setdefault("z", 2),
        lambda obj: obj["other"]["x"].append(2),
        lambda obj: obj.get("list").sort(),
        _write_into_a_sum,
    ],
)
def test_a_function_that_writes_fails_at_that_line(write, keys, codec) -> None:
    """Whatever was learned before, in whatever way it gets there: index functions and filters read."""
    body = {"spec": {"a": 1, "b": [1, {"x": 1}], "c": {"y": 1}}, "other": {"x": [1]}, "list": [2, 1]}
    record, reader = _record(body, codec), SelectiveReader()
    before = record.decode()
    for _ in range(3):
        if keys:
            reader.ask(lambda obj: ([obj["spec"].get(key) for key in keys], obj["list"]), record)
        with pytest.raises(TypeError, match=r"read-only.*obj\.to_dict\(\)"):
            reader.ask(write, record)
    assert dict(ObjectView(record)) == record.decode() == before


def _looked(reader, record, *keys):
    return reader.ask(lambda obj: [obj["spec"].get(key) for key in keys], record)


def test_keys_are_learned_one_after_the_other() -> None:
    """Those that are there, and those that are not; and where they are many, all are given."""
    body = {f"k{number}": number for number in range(9)}
    record, reader = _record({"spec": body}), SelectiveReader()
    assert _looked(reader, record, "k0") == [0]
    assert reader.fields == {"spec": set()}
    assert _looked(reader, record, "k0") == [0]
    assert reader.fields == {"spec": {"k0"}}
    assert _looked(reader, record, "k1", "none") == [1, None]
    assert reader.fields == {"spec": {"k0", "k1", "none"}}
    assert _looked(reader, record, *body) == list(range(9))
    assert reader.fields == {"spec": "each"}
    assert _looked(reader, record, "k8") == [8]
    assert reader.fields == {"spec": "each"}


def test_keys_that_are_not_ascii_are_found() -> None:
    """Also from the third object on, when msgspec would have to find them."""
    record, reader = _record({"spec": {"é": 1}, "ü": {"a": 1}}), SelectiveReader()
    for _ in range(3):
        assert reader.ask(lambda obj: (obj["spec"]["é"], obj["spec"].get("ß")), record) == (1, None)
    assert reader.fields == {"spec": "each"}
    for _ in range(3):
        assert reader.ask(lambda obj: obj["ü"]["a"], record) == 1


def test_who_needs_all_keys_and_reads_few_gets_all() -> None:
    """They are not fetched for every object one after the other, nor is anything learned again and again."""
    record, reader = _record({"spec": {"a": 1, "b": 2}}), SelectiveReader()

    def function(obj):
        return obj["spec"]["a"], len(obj["spec"])

    for fields in ({"spec": set()}, {"spec": {"a"}}, {"spec": "each"}, {"spec": "each"}):
        assert reader.ask(function, record) == (1, 2)
        assert reader.fields == fields


def test_a_function_that_fails_fails_as_ever() -> None:
    """It is asked once more, in case it was for what it was given; and nothing is learned of that."""
    record, reader, asked = _record({"spec": {"a": 1}}), SelectiveReader(), []

    def fails(obj):
        asked.append(obj["spec"].get("a"))
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no") as raised:
            reader.ask(fails, record)
        assert raised.value.__context__ is None
    assert asked == [1, 1, 1]
    assert reader.fields == {"spec": set()}


def test_a_generator_reads_before_it_is_asked_for_no_longer() -> None:
    """So that what it can't read in part it is given whole."""
    record, reader = _record({"spec": {"a": 1}}), SelectiveReader()

    def function(obj):
        yield dict.get(obj["spec"], "a") + 1

    for _ in range(3):
        assert list(reader.ask(function, record)) == [2]


def test_a_field_that_is_an_object_in_some_only() -> None:
    """It is decoded whole from then on; where it is null or missing nothing changes."""
    reader = SelectiveReader()

    def function(obj):
        found = obj.get("spec", "none")
        return found["a"] if isinstance(found, dict) else found

    assert reader.ask(function, _record({"spec": {"a": 1}})) == 1
    assert reader.ask(function, _record({"spec": None})) is None
    assert reader.ask(function, _record({})) == "none"
    assert reader.ask(function, _record({"spec": {"a": 2}})) == 2
    assert reader.fields == {"spec": {"a"}}
    assert reader.ask(function, _record({"spec": None})) is None
    assert reader.ask(function, _record({"spec": [1]})) == [1]
    assert reader.fields == {"spec": "whole"}
    assert reader.ask(function, _record({"spec": {"a": 1}})) == 1


def test_objects_that_a_cache_holds_are_shared() -> None:
    """They are decoded already."""
    record = _record({"spec": {"a": 1}}, ObjectCodec(api_version="v1", kind="Thing"))
    assert SelectiveReader().ask(lambda obj: (type(obj), obj["spec"]), record) == (ObjectView, {"a": 1})
    assert decompressed([record]) == [None]


def test_an_object_that_is_no_json_says_so() -> None:
    """In the words of a plain view."""
    good, reader = _record({"spec": 1}), SelectiveReader()
    assert _asked(reader, good, "spec") == [1]
    broken = msgspec.structs.replace(good, frame=b'{"spec": ]')
    with pytest.raises(MalformedAnswer, match="m can't be decoded"):
        _asked(reader, broken, "spec")


def test_a_value_that_can_not_be_decoded_is_a_fault_of_the_object() -> None:
    """Where it is read; and in the words of a plain view."""
    good, reader = _record({"spec": {"a": "x"}}), SelectiveReader()
    assert reader.ask(lambda obj: obj["spec"]["a"], good) == "x"
    broken = msgspec.structs.replace(good, frame=b'{"spec": {"a": 1e999, "b": 1}}')
    assert reader.ask(lambda obj: obj["spec"]["b"], broken) == 1
    with pytest.raises(MalformedAnswer, match="m can't be decoded"):
        reader.ask(lambda obj: obj["spec"]["a"], broken)


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
        patch.setattr(frame, "_TOGETHER", False)  # as where the library can't
        assert decompressed(records) == alone
    assert decompressed([]) == []
    nothing = [None] * 201
    assert decompressed([*records[1:], _record({})]) == nothing
    assert decompressed([*records[1:], msgspec.structs.replace(records[0], frame=b"x" * 70_000)]) == nothing
    assert decompressed([*records[1:], msgspec.structs.replace(records[0], frame=b"\x20broken")]) == nothing
