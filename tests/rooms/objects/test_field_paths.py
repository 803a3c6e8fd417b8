"""Field paths: what `fieldPath:` reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects import FieldPath, FieldPathError
from declctl.objects.fields import ALL

OBJECT = {
    "metadata": {"labels": {"app.kubernetes.io/name": "web"}},
    "spec": {
        "nodeName": "n1",
        "replicas": 3,
        "paused": False,
        "args": ["x", 1, True, None, ["deep"], {"a": 1}],
        "containers": [{"image": "a"}, {}, {"image": "b"}],
        "nothing": None,
        "nested": [["x", "y"], ["z"]],
    },
}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("spec.nodeName", ("n1",)),
        (".spec.nodeName", ("n1",)),
        ("spec.replicas", ("3",)),
        ("spec.paused", ("false",)),
        ("spec.args", ("x", "1", "true")),
        ("spec.args[*]", ("x", "1", "true", "deep")),
        ("spec.args[1]", ("1",)),
        ("spec.args[9]", ()),
        ("spec.containers[*].image", ("a", "b")),
        ("spec.containers[2].image", ("b",)),
        ("spec.nested[*]", ("x", "y", "z")),
        ("metadata.labels['app.kubernetes.io/name']", ("web",)),
        ('metadata.labels["app.kubernetes.io/name"]', ("web",)),
        ("metadata.labels[app.kubernetes.io/name]", ("web",)),
        ("metadata['labels'][app.kubernetes.io/name]", ("web",)),
        ("metadata.labels[*]", ("web",)),
        ("spec.nothing", ()),
        ("spec.absent.deeper", ()),
        ("spec.nodeName.deeper", ()),
        ("spec", ()),
    ],
)
def test_path_reads_the_scalars_there(text, values):
    """Scalars come as strings, lists are read through, and what is absent is nothing."""
    assert FieldPath.parse(text).values(OBJECT) == values


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 0),
        (".", 1),
        ("a.", 2),
        ("a..b", 2),
        ("a b", 1),
        ("a[", 1),
        ("a[x]", 1),
        ("a[x.y", 1),
        ("a[x.y z]", 1),
        ("a[]", 1),
        ("a['b]", 1),
        ("1a", 0),
        ("a.[*]]", 5),
        ("a.-b", 2),
    ],
)
def test_fault_is_pointed_at(text, column):
    """A mistyped path says at which column it stops being one."""
    with pytest.raises(FieldPathError) as caught:
        FieldPath.parse(text)
    assert caught.value.column == column


NAME = st.from_regex(r"[A-Za-z_$][A-Za-z0-9_$-]{0,5}", fullmatch=True)
QUOTED = st.text(
    st.characters(blacklist_characters="'\"]", blacklist_categories=["Cs"]), min_size=1, max_size=8
)
STEP = NAME | QUOTED | st.integers(0, 99) | st.just(ALL)


@given(st.lists(STEP, min_size=1, max_size=6).map(tuple))
def test_printed_path_is_read_back_as_itself(steps):
    """Paths in `plan` and in messages can be pasted into a manifest."""
    path = FieldPath(steps)
    assert FieldPath.parse(str(path)) == path


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a.b", {"a": {"c": 1}, "l": [{"x": 1}, {"x": 2}]}),
        ("l[*].x", {"a": {"b": 0, "c": 1}, "l": [{}, {}]}),
        ("l[0]", {"a": {"b": 0, "c": 1}, "l": [{"x": 2}]}),
        ("l[*]", {"a": {"b": 0, "c": 1}, "l": []}),
        ("a[*]", {"a": {}, "l": [{"x": 1}, {"x": 2}]}),
        ("absent.b", {"a": {"b": 0, "c": 1}, "l": [{"x": 1}, {"x": 2}]}),
        ("l[7]", {"a": {"b": 0, "c": 1}, "l": [{"x": 1}, {"x": 2}]}),
    ],
)
def test_dropped_field_is_gone_and_nothing_else(text, left):
    """`dropFields` removes what it names and is silent about what is absent."""
    obj = {"a": {"b": 0, "c": 1}, "l": [{"x": 1}, {"x": 2}]}
    FieldPath.parse(text).remove_from(obj)
    assert obj == left
