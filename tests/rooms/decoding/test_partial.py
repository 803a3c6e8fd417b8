"""Partial decoders: they read what a path reads, or leave it to a whole decode, and never something else."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding.decoders import PartialDecoder
from declctl.objects import FieldPath
from tests.rooms.objects.made_objects import compact

META = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"}


def test_metadata_is_read_and_the_rest_is_skipped():
    """Identity comes from one pass over the bytes."""
    meta, values = PartialDecoder([]).decode(
        compact({"metadata": META | {"labels": {"a": "b"}}, "spec": {"x": [1]}})
    )
    assert (meta.name, meta.namespace, meta.uid, meta.resourceVersion, values) == ("a", "n", "u", "1", ())
    assert (bytes(meta.labels), bytes(meta.managedFields)) == (b'{"a":"b"}', b"")


@pytest.mark.parametrize(
    ("texts", "projected"),
    [
        (["spec.nodeName", "status.phase"], ["spec.nodeName", "status.phase"]),
        (
            ["spec.containers[*].image", "spec.containers[*].name"],
            ["spec.containers[*].image", "spec.containers[*].name"],
        ),
        (["spec.args[0]"], []),
        (["spec['a.b']"], []),
        (["metadata.name"], []),
        (["spec.__class__"], []),
        (["spec.a[*][*]"], []),
        (["spec.a", "spec.a.b"], ["spec.a"]),
        (["spec.a[*].b", "spec.a.b"], ["spec.a[*].b"]),
        (["spec.a[*]", "spec.a[*].b"], ["spec.a[*]"]),
        (["spec.class", "spec.from"], ["spec.class", "spec.from"]),
    ],
)
def test_paths_that_no_struct_can_name_are_left_out(texts, projected):
    """Two paths that want different things of one field do not spoil each other."""
    decoder = PartialDecoder([FieldPath.parse(text) for text in texts])
    assert [str(path) for path in decoder.positions] == projected


def test_broken_bytes_and_odd_shapes_are_told_apart():
    """Broken JSON is the server's fault, an odd shape is read whole."""
    decoder = PartialDecoder([FieldPath.parse("spec.a.b")])
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(compact({"metadata": META, "spec": {"a": None}}))
    with pytest.raises(msgspec.DecodeError) as caught:
        decoder.decode(b'{"metadata":')
    assert not isinstance(caught.value, msgspec.ValidationError)


PATHS = [
    FieldPath.parse(t) for t in ("a", "b.a", "b.c", "l[*].a", "l[*].b.c", "b.l[*]", "m[*].l[*].a", "c.l[*].a")
]
NAMES = st.sampled_from(["a", "b", "c", "l", "m"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@given(paths=st.lists(st.sampled_from(PATHS), unique=True), obj=st.dictionaries(NAMES, VALUES))
def test_value_is_the_one_that_the_path_finds(paths, obj):
    """An index says of an object what a look at the object says."""
    decoder = PartialDecoder(paths)
    raw = compact({"metadata": META} | obj)
    try:
        _, values = decoder.decode(raw)
    except msgspec.ValidationError:
        return
    assert decoder.values(raw) == values
    seen = msgspec.json.decode(raw)
    for path, position in decoder.positions.items():
        value = values[position]
        found = () if value is None else (value,) if isinstance(value, str) else value
        assert found == path.values(seen)
