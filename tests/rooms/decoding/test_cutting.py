"""Cutting managedFields out of bytes: exactly that field of the metadata, whatever else is called so."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding.decoders import cut_managed_fields
from tests.rooms.objects.made_objects import compact, pod, projection, record

MANAGED = [{"manager": "kubectl", "fieldsV1": {"f:spec": {'k:{"name":"a"}': {}}}}]


def slow(raw: bytes) -> object:
    """The reference: decode, remove, compare."""
    obj = json.loads(raw)
    obj["metadata"].pop("managedFields", None)
    return obj


def kept(raw: bytes) -> object:
    made = projection().record(raw)
    assert made is not None
    return json.loads(made.layout.codec.decode(made.frame))


def with_managed(obj):
    obj["metadata"] |= {"managedFields": MANAGED}
    return obj


@pytest.mark.parametrize(
    "raw",
    [
        b'{"metadata":{"name":"a","managedFields": [1]},"spec":{"managedFields":[1]}}',
        b'{"spec":{"managedFields":[1]},"metadata":{"managedFields" :[1],"name":"a"}}',
        b'{"spec":{"managedFields":[1]},"metadata":{"managed\\u0046ields":[1],"name":"a"}}',
        b'{"metadata":{"managed\\u0046ields":[1],"name":"a"},"spec":{"managedFields":[1]}}',
        b'{"metadata":{"name":"a","managedFields":null}}',
        b'{"metadata":{"name":"a","managedFields":1},"spec":{"managedFields":12}}',
        b'{"spec":{"managedFields":12},"metadata":{"name":"a","managedFields":1}}',
        b'{"metadata":{"managedFields":[]},"metadata":{"name":"a","managedFields":[]}}',
        b'{"metadata":{"name":"a","managedFields":[1],"managedFields":[1]}}',
        b'{ "metadata" : { "name" : "a" , "managedFields" : [ 1 ] } }',
        b'{"metadata":{"managedFields":[{"a":"\\\\"}],"name":"a\\"b"}}',
        b'{"spec":{"a\\"managedFields":[1]},"metadata":{"name":"a","managedFields":[1]}}',
    ],
)
def test_spelling_that_no_api_server_uses_is_read_all_the_same(raw):
    """Spaces, escapes, null and repeated fields cost time and never a wrong field."""
    assert kept(raw) == slow(raw)


def test_usual_object_is_cut_without_being_decoded():
    """What kubectl and controllers write takes the fast way."""
    made = projection()
    assert made.record(compact(with_managed(pod()))) is not None
    assert made.record(compact(with_managed(pod(spec={"note": 'with "quotes"'})))) is not None
    assert made.statistics().decoded_whole == 0
    assert b"managedFields" not in record(with_managed(pod())).layout.codec.decode(
        record(with_managed(pod())).frame
    )


TEXTS = st.sampled_from(
    ["a", "managedFields", '"managedFields":', 'x"managedFields', "\\", '"', "m\u00e9", "<&>"]
) | st.text(max_size=4)
MANAGED_VALUES = st.sampled_from([[], [1], [{"managedFields": [1]}], MANAGED, None, {}, "x"])
TREES = st.recursive(
    TEXTS | st.integers() | MANAGED_VALUES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("metadata"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    metadata=st.dictionaries(TEXTS, TREES, max_size=3),
    fields=st.dictionaries(TEXTS, TREES, max_size=3),
    value=MANAGED_VALUES,
    order=st.randoms(use_true_random=False),
    encode=st.sampled_from([compact, msgspec.json.encode, lambda o: json.dumps(o).encode()]),
)
def test_any_object_is_cut_as_decoding_would_cut_it(metadata, fields, value, order, encode):
    """However hostile the object: what the cache keeps is the object without that one field."""
    inner = list((metadata | {"name": "a", "managedFields": value}).items())
    order.shuffle(inner)
    outer = list((fields | {"metadata": dict(inner)}).items())
    order.shuffle(outer)
    raw = encode(dict(outer))
    assert kept(raw) == slow(raw)


@pytest.mark.parametrize(
    ("metadata", "left", "sure"),
    [
        (rb'"managedFields":[1],"name":"a"', rb'"name":"a"', True),
        (rb'"name":"a","managedFields":[1]', rb'"name":"a"', True),
        (rb'"managedFields":[1]', rb"", True),
        (rb'"managedFields":[1],"name":"a\n\"\\"', rb'"name":"a\n\"\\"', True),
        (rb'"managedFields":[1],"name":"\u0061"', rb'"name":"\u0061"', False),
        (rb'"managedFields":[1],"name":"managedFields"', rb'"name":"managedFields"', False),
        (rb'"managedFields":[2]', None, None),
        (rb' "managedFields":[1]', None, None),
    ],
)
def test_cut_says_whether_it_can_only_be_that_field(metadata, left, sure):
    """A double anywhere, or a letter that is spelled with an escape, makes it unsure."""
    expected = None if left is None else (b'{"metadata":{%b}}' % left, sure)
    assert cut_managed_fields(b'{"metadata":{%b}}' % metadata, b"[1]") == expected
