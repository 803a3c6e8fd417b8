"""Held objects: decoded once, given back as they came, and counted by the bytes of their JSON."""

import gc
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects.frame import ObjectCodec
from tests.rooms.objects.made_objects import JSON, TEXTS, compact, pod


def codec() -> ObjectCodec:
    return ObjectCodec(api_version="v1", kind="Pod")


@given(obj=st.dictionaries(TEXTS, JSON, max_size=4))
def test_any_object_is_held_as_json_reads_it(obj):
    """A reader sees what `json.loads` makes of the wire bytes, with the kind that a list leaves out."""
    made = codec()
    plain = json.dumps(obj).encode()
    held = made.encode(plain)
    with_kind = obj if "kind" in obj and "apiVersion" in obj else {"apiVersion": "v1", "kind": "Pod", **obj}
    assert held.body == with_kind == made.pristine(held)
    assert made.decode(held) == plain
    assert len(held) == len(plain)


def test_a_private_copy_is_made_from_what_nobody_can_change():
    """Whatever becomes of the shared object, decoding gives what the server sent."""
    made = codec()
    held = made.encode(compact(pod()))
    held.body["spec"].clear()
    assert msgspec.json.decode(made.decode(held)) == pod()


@pytest.mark.parametrize("plain", [b'{"metadata":{"name":"a"},"spec":1e999}', b"{" * 3000])
def test_what_cannot_be_decoded_is_kept_all_the_same(plain):
    """Its bytes are there for whoever can make something of them."""
    made = codec()
    held = made.encode(plain)
    assert held.body is None
    assert made.decode(held) == plain


def test_the_codec_knows_what_is_held_and_keeps_nothing_alive():
    """An object that nobody holds any longer is forgotten: ten thousand changes leave no trace."""
    made = codec()
    kept = made.encode(compact(pod("kept")))
    for number in range(10_000):
        made.encode(compact(pod("web", metadata={"name": "web", "resourceVersion": str(number)})))
    gc.collect()
    assert [ref() for ref in made.alive()] == [kept]
