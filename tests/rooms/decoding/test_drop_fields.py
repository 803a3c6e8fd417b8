"""Dropping fields: exactly those that a path finds, whatever else is called so."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.decoding.decoders import FieldCutter
from declctl.objects import FieldPath
from tests.rooms.objects.json_texts import objects
from tests.rooms.objects.made_objects import compact, pod

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
PATHS = [
    FieldPath.parse(text)
    for text in (
        "a",
        "a.b",
        "a.b.a",
        "b.c[*].a",
        "b.c[*].b.a",
        "c[*].a",
        "c.a",
        "c[*].c[*].b",
        "a['x/y']",
        "a['é']",
        "metadata.a",
        "metadata.a['é']",
        "a[*]",
        "b[0]",
        "b[*].c",
        "deep",
    )
]
NAMES = ["a", "b", "c", "x/y"]


def without(raw: bytes, paths: list[FieldPath]) -> Any:
    """The reference: decode, remove."""
    obj = json.loads(raw)
    for path in paths:
        path.remove_from(obj)
    return obj


def check(raw: bytes, paths: list[FieldPath]) -> bool:
    """Whether it was cut; that it was cut as it should."""
    cut = FieldCutter(paths).cut(raw)
    if cut is None:
        return False
    assert json.loads(cut) == without(raw, paths)
    return True


@given(raw=objects(NAMES), paths=st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True))
@settings(max_examples=120)
def test_what_is_cut_is_what_the_paths_find(raw, paths):
    """However hostile the object: cut exactly, or left to a whole decode."""
    check(raw, paths)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"c":{"b":1},"a":{"b":1}}',
        b'{"c":{"b":[1]},"a":{"b":[1],"c":"\\n"}}',
        b'{"a":{"b":1,"b":1}}',
        b'{"a":{"b":2,"b":1}}',
        b'{"a":{"b":1},"a":{"b":1}}',
        b'{"a":{"b":1},"a":{"c":1}}',
        b'{"a":{"a":5},"a":5}',
        b'{"a":5,"a":{"a":5}}',
        b'{"a":{"x\\/y":1},"c":{"x/y":1}}',
        b'{"c":{"x/y":1},"a":{"x\\u002fy":1}}',
        '{"a":{"\\u00e9":1},"c":{"é":1}}'.encode(),
        b'{"a":{"\\u0062":1},"c":{"b":1}}',
        b'{"\\u0061":{"b":1},"c":{"b":1}}',
        b'{"a":{"c":"x\\"b","b":1},"c":"{\\"b\\":1}"}',
        b'{"c":{"b" :1},"a":{"b":1}}',
        b'{ "a" : { "b" : 1 } }',
        b'{"a":{"c":2, "b":1}}',
        b'{"a":{"c":2, "b":1 }}',
        b'{"a":null}',
        b'{"a":[{"b":1}]}',
        b'{"c":[{"a":1},{"a":1},{"b":1}],"b":{"c":[{"a":1}]}}',
        b'{"b":{"c":[{"a":1,"b":{"a":1}},{"b":{"a":{"a":1}}}]}}',
        b'{"b":{"c":[]},"c":[[{"b":1}],{"c":[{"b":1}]}]}',
    ],
)
def test_doubles_and_odd_spellings_are_told_apart(raw):
    """A field of the same name and value before the real one, behind it, or in its place."""
    for one in PATHS:
        for other in PATHS:
            check(raw, [one, other])


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["k", "l", "m/n", "é"]), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(
    dropped=TREES,
    others=st.dictionaries(st.sampled_from(["u", "v"]), TREES),
    elements=st.lists(TREES, max_size=3),
)
def test_what_go_writes_is_cut_without_being_decoded(dropped, others, elements):
    """Whatever the fields hold and stand beside, if only nothing else has their names."""
    paths = [FieldPath.parse(text) for text in (f"a['{APPLIED}']", "s", "b.c[*].e")]
    listed = [{"n": element, "e": dropped} if n % 2 else {"e": element} for n, element in enumerate(elements)]
    raw = compact({"a": {APPLIED: dropped} | others, "b": {"c": listed} | others, "s": elements, "z": others})
    assert check(raw, paths)


@pytest.mark.parametrize(
    ("texts", "fields"),
    [
        (["status"], {}),
        (["status", "status.phase"], {}),
        (["data"], {}),
        (["metadata.annotations"], {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}),
        (
            ["spec.containers[*].image"],
            {"spec": {"containers": [{"image": "x"}], "initContainers": [{"image": "y"}]}},
        ),
        (["metadata.annotations.note", "spec.nodeName"], {"status": {"nodeName": "n", "note": "said \\ n"}}),
        (
            [f"metadata.annotations['{APPLIED}']"],
            {"metadata": {"name": "a", "annotations": {APPLIED: '{"a":\n1}'}}},
        ),
        (["spec.n"], {"spec": {"m": {"n": 12}, "n": 1}, "a": {"n": 12}}),
    ],
)
def test_doubles_of_a_field_stay(texts, fields):
    """A pod template's annotations, init containers, and texts that only name the field."""
    paths = [FieldPath.parse(text) for text in texts]
    raw = compact(pod(**fields))
    assert check(raw, paths)


@pytest.mark.parametrize("text", ["spec.containers[0]", "spec[*]", "spec[*].image", "a['\\']"])
def test_paths_that_no_struct_can_name_are_left_to_a_whole_decode(text):
    """An index, all of a map, a name that JSON has to escape."""
    assert not check(compact(pod()), [FieldPath.parse(text)])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b'{"a":',
        b'{"\\u0061":1',
        b'{"a":{"a":1}}x',
        b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_000,
    ],
)
def test_what_is_no_object_is_left_alone(raw):
    """Whoever decodes it says what is wrong."""
    assert FieldCutter([FieldPath.parse("a.a")]).cut(raw) in (None, raw)


def test_object_without_the_field_is_given_back_as_it_is():
    """Nothing is copied where nothing is dropped."""
    raw = compact(pod())
    assert FieldCutter([FieldPath.parse("data"), FieldPath.parse("spec.absent")]).cut(raw) is raw


@pytest.mark.parametrize(
    ("dropped", "read", "changes"),
    [
        ("status", "status.phase", True),
        ("status.phase", "status", True),
        ("status", "spec.nodeName", False),
        ("spec.containers[*].env", "spec.containers[*].image", False),
        ("spec.containers[*].env", "spec.containers[0].env", True),
        ("spec.args[0]", "spec.args[1]", True),
        ("data[*]", "data.a", True),
        ("metadata.annotations", "metadata.labels", False),
    ],
)
def test_cutter_knows_which_paths_read_something_else_afterwards(dropped, read, changes):
    """Whatever is projected from the same place has to be read again."""
    assert FieldCutter([FieldPath.parse(dropped)]).changes(FieldPath.parse(read)) is changes
