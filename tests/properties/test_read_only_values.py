"""What stands in an object is read like any dictionary or list, and refuses each write."""

import copy
import json
import operator
import pickle
from collections import ChainMap
from collections.abc import Callable
from pprint import pformat
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.objects import ObjectCodec, ObjectView, Record, field_view
from declctl.objects.read_only import ReadOnlyDict, ReadOnlyList

KEYS = st.sampled_from("abc")
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("xy", max_size=2)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=3)

# A read, by the method that it is made with. What it gives is compared, and all in it is written into.
READS_OF_A_DICT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "__contains__": lambda of, key, _: key in of,
    "__eq__": lambda of, _, other: (of == other, of == copy.deepcopy(of), operator.eq(other, of)),
    "__getitem__": lambda of, key, _: of[key],
    "__iter__": lambda of, *_: (list(of), dict(of), {**of}, ChainMap({}, of)["a"]),
    "__len__": lambda of, *_: (len(of), bool(of)),
    "__ne__": lambda of, _, other: of != other,
    "__or__": lambda of, _, other: of | other,
    "__ror__": lambda of, _, other: other | of,
    "__repr__": lambda of, *_: (repr(of), f"{of}", "%s" % (of,)),  # noqa: UP031 - somebody's
    "__reversed__": lambda of, *_: list(reversed(of)),
    "copy": lambda of, *_: (of.copy(), copy.copy(of)),
    "fromkeys": lambda of, key, _: of.fromkeys([key], 1),
    "get": lambda of, key, other: (of.get(key), of.get(key, other)),
    "items": lambda of, *_: (list(of.items()), len(of.items())),
    "keys": lambda of, key, _: (list(of.keys()), of.keys() & {key}, list(of.keys().mapping.values())),
    "values": lambda of, *_: list(of.values()),
    "match": lambda of, *_: _matched_mapping(of),
    "update": lambda of, *_: _updated(of),
}
READS_OF_A_LIST: dict[str, Callable[[Any, Any, Any], Any]] = {
    "__add__": lambda of, *_: (of + [1], [1] + of, of + of),  # noqa: RUF005 - this is what is tested
    "__contains__": lambda of, _, other: other in of,
    "__eq__": lambda of, _, other: (of == other, of == copy.deepcopy(of), operator.eq(other, of)),
    "__ge__": lambda of, *_: of >= [*of],
    "__getitem__": lambda of, *_: (of[0], of[-1], of[:1], of[::-1]),
    "__gt__": lambda of, *_: of > [*of],
    "__iter__": lambda of, *_: ([*of], list(of), tuple(of), [each for each in of]),  # noqa: C416 - as above
    "__le__": lambda of, *_: of <= [*of],
    "__len__": lambda of, *_: (len(of), bool(of)),
    "__lt__": lambda of, *_: of < [*of],
    "__mul__": lambda of, *_: of * 2,
    "__ne__": lambda of, _, other: of != other,
    "__repr__": lambda of, *_: (repr(of), f"{of}"),
    "__reversed__": lambda of, *_: list(reversed(of)),
    "__rmul__": lambda of, *_: 2 * of,
    "copy": lambda of, *_: (of.copy(), copy.copy(of)),
    "count": lambda of, _, other: of.count(other),
    "index": lambda of, *_: of.index(of[-1]),
    "sorted": lambda of, *_: sorted(of, key=str),
    "match": lambda of, *_: _matched_sequence(of),
    "extend": lambda of, *_: _extended(of),
}
WRITES_INTO_A_DICT: dict[str, Callable[[Any], Any]] = {
    "__delitem__": lambda of: operator.delitem(of, "a"),
    "__ior__": lambda of: operator.ior(of, {"a": 1}),
    "__setitem__": lambda of: operator.setitem(of, "a", 1),
    "clear": lambda of: of.clear(),
    "pop": lambda of: of.pop("a", None),
    "popitem": lambda of: of.popitem(),
    "setdefault": lambda of: of.setdefault("z", []),
    "update": lambda of: of.update({"a": 1}, b=2),
}
WRITES_INTO_A_LIST: dict[str, Callable[[Any], Any]] = {
    "__delitem__": lambda of: operator.delitem(of, 0),
    "__iadd__": lambda of: operator.iadd(of, [1]),
    "__imul__": lambda of: operator.imul(of, 2),
    "__setitem__": lambda of: operator.setitem(of, slice(None), []),
    "append": lambda of: of.append(1),
    "clear": lambda of: of.clear(),
    "extend": lambda of: of.extend([1]),
    "insert": lambda of: of.insert(0, 1),
    "pop": lambda of: of.pop(),
    "remove": lambda of: of.remove(1),
    "reverse": lambda of: of.reverse(),
    "sort": lambda of: of.sort(),
}
NOT_OF_THE_TYPE = {"__copy__", "__deepcopy__", "__module__", "__orig_bases__", "__slots__"}
ENCODERS: list[Callable[[Any], Any]] = [
    json.dumps,
    lambda value: json.dumps(value, indent=1, sort_keys=True),
    msgspec.json.encode,
    msgspec.msgpack.encode,
    msgspec.to_builtins,
    lambda value: [yaml.safe_dump(each) for each in value],
    lambda value: [yaml.dump(each) for each in value],
    pformat,
    copy.deepcopy,
    lambda value: pickle.loads(pickle.dumps(value)),
]
# How somebody gets a field of a view.
FIELDS: list[Callable[[ObjectView, str], Any]] = [
    lambda view, key: view[key],
    lambda view, key: view.get(key),
    lambda view, key: dict(view.items())[key],
    lambda view, key: view.values() and {**view}[key],
]


def _matched_mapping(of: Any) -> Any:
    match of:
        case {"a": found, **rest}:
            return found, rest
    return None


def _matched_sequence(of: Any) -> Any:
    match of:
        case [first, *rest]:
            return first, rest
    return None


def _updated(of: Any) -> Any:
    made: dict[str, Any] = {"z": 1}
    made.update(of)
    return made


def _extended(of: Any) -> Any:
    made: list[Any] = [1]
    made.extend(of)
    made[:1] = of
    return made


NESTED = {"a": {"a": {"b": [[{}]]}, "b": 1}, "b": [[1], {"a": []}]}
EACH_READ = [(which, read, "a", 1) for which in range(2) for read in range(len(READS_OF_A_LIST))]


def outcome(read: Callable[..., Any], *arguments: Any) -> Any:
    """What it gives or the error that it raises."""
    try:
        return read(*arguments)
    except (KeyError, IndexError, TypeError) as fault:
        return type(fault), str(fault).replace("ReadOnlyDict", "dict").replace("ReadOnlyList", "list")


def write_everywhere(found: Any) -> list[Any]:
    """Write into all that a read gave: into what is plain, which must be a copy. What refuses is returned."""
    if isinstance(found, dict):
        inner: list[Any] = list(found.values())
    elif isinstance(found, list | tuple):
        inner = list(found)
    else:
        return []
    refusing = [each for value in inner for each in write_everywhere(value)]
    if type(found) is dict:
        found["written"] = 1
    elif type(found) is list:
        found.append("written")
    elif type(found) is not tuple:
        refuses(found)
        refusing.append(found)
    return refusing


def view_of(obj: dict[str, Any], view: Callable[[Record], ObjectView], *, held: bool) -> ObjectView:
    """A view of an object with these fields, in a cache that holds frames or objects."""
    codec = ObjectCodec(api_version="v1", kind="Thing") if held else None
    projection = Projection(api_version="v1", kind="Thing", codec=codec)
    record = projection.record(msgspec.json.encode({**obj, "metadata": {"name": "x"}}))
    assert record is not None
    return view(record)


@pytest.mark.client_go(108, 324, "Reader options")
@given(
    obj=OBJECTS,
    how=st.lists(st.tuples(st.integers(0), st.integers(0), KEYS, VALUES), min_size=1, max_size=6),
    held=st.booleans(),
    field=st.sampled_from(FIELDS),
    kind=st.sampled_from([ObjectView, field_view]),
)
@example(obj=NESTED, how=EACH_READ, held=False, field=FIELDS[0], kind=field_view)
@example(obj=NESTED, how=EACH_READ, held=False, field=FIELDS[1], kind=ObjectView)
@example(obj=NESTED, how=EACH_READ, held=True, field=FIELDS[2], kind=ObjectView)
@example(obj=NESTED, how=EACH_READ, held=False, field=FIELDS[3], kind=field_view)
def test_what_is_inside_an_object_reads_as_plain_values_do_and_refuses_writes(
    obj: dict[str, Any],
    how: list[tuple[int, int, str, Any]],
    held: bool,
    field: Callable[[ObjectView, str], Any],
    kind: Callable[[Record], ObjectView],
) -> None:
    """Whatever was read of it before, at every depth. A write is refused, or goes into one's own copy."""
    view, plain = view_of(obj, kind, held=held), copy.deepcopy(obj)
    mine, theirs = [field(view, key) for key in obj], list(plain.values())
    for which, read, key, other in how:
        of, of_plain = mine[which % len(mine)], theirs[which % len(theirs)]
        reads = READS_OF_A_DICT if isinstance(of, dict) else READS_OF_A_LIST if isinstance(of, list) else None
        if reads is None:
            continue
        method = [*reads.values()][read % len(reads)]
        others = copy.deepcopy((other, other))
        found, found_plain = (
            outcome(method, it, key, o) for it, o in zip((of, of_plain), others, strict=True)
        )
        assert repr(found) == repr(found_plain)
        refusing = write_everywhere(found)
        assert repr(of) == repr(of_plain)
        mine += refusing
        theirs += copy.deepcopy(refusing)
    for encode in ENCODERS:
        assert encode(mine) == encode(theirs)
        assert write_everywhere(encode(mine)) == [], "what is made is plain"
    assert dict(view) == {**view.to_dict(), **obj}


def refuses(value: Any) -> None:
    """Each method that writes raises, says what to do, and changes nothing."""
    before = repr(value)
    writes = WRITES_INTO_A_DICT if isinstance(value, dict) else WRITES_INTO_A_LIST
    for write in writes.values():
        with pytest.raises(TypeError, match=r"read-only.*obj\.to_dict\(\)"):
            write(value)
    assert repr(value) == before


@pytest.mark.parametrize(
    ("kind", "plain", "known"),
    [
        (ReadOnlyDict, dict, {**READS_OF_A_DICT, **WRITES_INTO_A_DICT}),
        (ReadOnlyList, list, {**READS_OF_A_LIST, **WRITES_INTO_A_LIST}),
    ],
)
def test_no_method_of_dictionaries_and_lists_is_forgotten(
    kind: type, plain: type, known: dict[str, Any]
) -> None:
    """Nor one that a later Python adds: it is read through above, or refused."""
    of_any = {*dir(object), "__class_getitem__"}
    assert set(dir(plain)) - of_any <= set(known)
    assert set(dir(kind)) - set(dir(plain)) == NOT_OF_THE_TYPE
