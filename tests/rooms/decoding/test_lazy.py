"""Lazy dictionaries: to whoever uses one as a dictionary it is one, whatever was decoded of it before."""

import collections
import copy
import json
import marshal
import operator
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding.lazy import LazyDict, Source, lazily

_BODY = {"a": 1, "b": [1, {"x": None}], "c": {"d": "é"}, "e": None}


_RAW = dict[str, msgspec.Raw]


def lazy(*sought) -> LazyDict:
    """A dictionary of which nothing was decoded, or of which some keys were looked for, and found or not."""
    text = msgspec.json.encode({"spec": _BODY})
    source = Source("spec", frozenset(sought), msgspec.json.Decoder(dict[str, _RAW]).decode)
    raw = msgspec.json.decode(text, type=dict[str, _RAW])["spec"]
    found = {key: value for key, value in _BODY.items() if key in sought} if sought else raw
    return lazily(source, copy.deepcopy(found), text)


SOUGHT = [(), ("a",), ("c", "b"), ("none",), tuple(_BODY)]


def _never(plain):
    raise AssertionError


def _raised(kind, call):
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value).replace("LazyDict", "dict")


def _given(**arguments):
    return arguments


def _matched(obj):
    match obj:
        case {"a": one, "c": {"d": other}, **rest}:
            return one, other, rest
    return None


def _merged(obj):
    made = {"z": 1, "a": 2}
    made.update(obj)
    made |= obj
    return made


USES = {
    "item": lambda obj: obj["c"]["d"],
    "no item": lambda obj: _raised(KeyError, lambda: obj["none"]),
    "get": lambda obj: (obj.get("a"), obj.get("none"), obj.get("none", 3), obj.get("e", 3)),
    "in": lambda obj: ("a" in obj, "none" in obj, 3 in obj),
    "length": lambda obj: (len(obj), bool(obj)),
    "keys": lambda obj: (list(obj), list(obj.keys()), sorted(set(obj)), sorted(obj), list(reversed(obj))),
    "values": lambda obj: list(obj.values()),
    "items": lambda obj: list(obj.items()),
    "equal": lambda obj: (obj == _BODY, operator.eq(_BODY, obj), obj == {}, operator.eq({}, obj), obj == 3),
    "different": lambda obj: (obj != _BODY, operator.ne(_BODY, obj), obj != {}),
    "text": lambda obj: (repr(obj), str(obj), f"{obj}"),
    "percent": lambda obj: "%(a)s %(b)s" % obj,  # noqa: UP031 - somebody's
    "copied": lambda obj: (dict(obj), obj.copy(), {**obj}, copy.copy(obj), copy.deepcopy(obj)),
    "pickled": lambda obj: pickle.loads(pickle.dumps(obj)),
    "merged": lambda obj: (_merged(obj), obj | {"z": 1}, {"z": 1} | obj),
    "arguments": lambda obj: _given(**obj),
    "json": lambda obj: (json.dumps(obj), json.dumps(obj, indent=1), json.dumps(obj, sort_keys=True)),
    "matched": _matched,
    "chained": lambda obj: dict(collections.ChainMap({"z": 1}, obj)),
    "ordered": lambda obj: list(collections.OrderedDict(obj).items()),
    "itemgetter": operator.itemgetter("a", "e"),
    "made anew": lambda obj: obj.fromkeys(["a"], 2),
    "hashed": lambda obj: _raised(TypeError, lambda: {obj}),
    "kind": lambda obj: (isinstance(obj, dict), isinstance(obj, collections.abc.Mapping)),
}


@pytest.mark.parametrize("sought", SOUGHT)
@pytest.mark.parametrize("use", USES)
def test_it_is_used_like_any_other(use, sought) -> None:
    """With the same result, in one go or after something of it was read."""
    plain = USES[use](copy.deepcopy(_BODY))
    assert USES[use](lazy(*sought)) == plain
    read_before = lazy(*sought)
    assert read_before["c"] == {"d": "é"}
    assert USES[use](read_before) == plain


@given(st.lists(st.sampled_from(sorted(USES)), max_size=4), st.sampled_from(SOUGHT))
def test_it_is_used_again_and_again(uses, sought) -> None:
    """What was decoded of it before changes nothing for who comes after."""
    mine, theirs = lazy(*sought), copy.deepcopy(_BODY)
    for use in uses:
        assert repr(_outcome(use, mine)) == repr(_outcome(use, theirs))


def _outcome(use, obj):
    try:
        return USES[use](obj)
    except KeyError as missing:
        return missing


@pytest.mark.parametrize("sought", SOUGHT)
def test_copies_are_plain(sought) -> None:
    """Whoever keeps one keeps nothing of where it came from."""
    of = lazy(*sought)
    for made in (of.copy(), of | {}, copy.copy(of), pickle.loads(pickle.dumps(of))):
        assert type(made) is dict
        assert made == _BODY


def test_it_tells_what_was_done_with_it() -> None:
    """Its maker sees whether it was read, and whether all of it was."""
    made = lazy()
    assert (made.source.field, made.read, made.walked) == ("spec", None, False)
    assert "none" not in made
    assert made["b"] is made["b"], "a value is decoded once"
    assert (made.read, made.walked) == (True, False)
    assert made.keys_read() == {"b", "none"}
    assert list(made)
    assert made.walked


def test_other_keys_are_fetched_when_they_are_looked_for() -> None:
    """And not for those of which it is known that they are there, or that they are not."""
    made = lazy("a", "none")
    assert (made["a"], "a" in made, made.get("none"), "none" in made) == (1, True, None, False)
    assert made.plain is not None
    assert made.get("b") == _BODY["b"]
    assert (made.plain, made.also, made.walked) == (None, "b", False)
    assert made.keys_read() == {"a", "b"}
    assert type(dict.get(made, "c")) is msgspec.Raw
    counted = lazy("a")
    assert len(counted) == len(_BODY)
    assert (counted.plain, counted.also) == (None, None)


WRITES = {
    "item": lambda obj: operator.setitem(obj, "b", 3),
    "deleted": lambda obj: operator.delitem(obj, "b"),
    "update": lambda obj: obj.update(b=3),
    "merged": lambda obj: operator.ior(obj, {"b": 3}),
    "pop": lambda obj: obj.pop("b"),
    "popitem": lambda obj: obj.popitem(),
    "setdefault": lambda obj: obj.setdefault("z", 3),
    "clear": lambda obj: obj.clear(),
    "nested": lambda obj: operator.setitem(obj["c"], "d", 3),
    "nested, by get": lambda obj: obj.get("c").clear(),
    "nested, by values": lambda obj: next(each for each in obj.values() if isinstance(each, dict)).clear(),
    "nested, by items": lambda obj: dict(obj.items())["b"].append(3),
    "nested, in a copy": lambda obj: {**obj}["b"].append(3),
    "nested, in a merged copy": lambda obj: (obj | {})["b"].append(3),
    "nested, from the other side": lambda obj: ({} | obj)["b"].append(3),
    "nested in a list": lambda obj: obj["b"][1].clear(),
}


@pytest.mark.parametrize("sought", SOUGHT)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_are_refused(write, sought) -> None:
    """As in any other dictionary of a view: index functions and filters read."""
    made = lazy(*sought)
    with pytest.raises(TypeError, match="to_dict"):
        write(made)
    assert made == _BODY


def test_code_that_looks_past_its_methods_finds_no_wrong_value() -> None:
    """Not a part of it as if it were all, but the text of a value where there should be one."""
    made = lazy()
    assert made["a"] == 1
    assert msgspec.json.encode(made) == msgspec.json.encode(_BODY)  # it knows what raw is
    assert type(dict.get(made, "b")) is msgspec.Raw
    assert dict.keys(made) == _BODY.keys()


@pytest.mark.parametrize("looks", [msgspec.json.encode, msgspec.msgpack.encode, marshal.dumps])
def test_code_that_looks_past_its_methods_refuses_a_part_of_it(looks) -> None:
    """Be it JSON or not, a part doesn't pass for all."""
    with pytest.raises((TypeError, ValueError)):
        looks(lazy("a"))


def test_a_value_that_can_not_be_decoded_says_so_when_it_is_read() -> None:
    """And stays unread."""
    made = lazily(Source("spec", frozenset(), _never), {"a": msgspec.Raw(b"]")}, b"")
    for _ in range(2):
        with pytest.raises(msgspec.DecodeError):
            made["a"]
