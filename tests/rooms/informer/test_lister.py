"""Lister: a read-only view of the cache."""

import pytest

from declctl.errors import UnknownIndex
from declctl.informer import Indexer, Lister, field_index
from declctl.objects import LabelSelector
from tests.rooms.informer.shapes import record


def indexer(*records):
    made = Indexer({"byNode@1": field_index("spec.nodeName")})
    made.replace(records, "1")
    return made


def lister():
    one = indexer(
        record("a", namespace="team-a", node="n1", labels={"app": "web", "tier": "front"}),
        record("b", namespace="team-a", node="n2", labels={"app": "web"}),
    )
    other = indexer(
        record("a", namespace="team-ab", node="n1", labels={"app": "db"}),
        record("n", namespace=None, node="n3"),
    )
    return Lister([one, other], index_names={"byNode": "byNode@1"})


def keys(views):
    return sorted(str(view.key) for view in views)


def test_an_object_is_found_in_whichever_store_has_it():
    """One view over several namespaces; a key in either form."""
    found = lister()
    assert found.get("team-ab/a").namespace == "team-ab"
    assert found.get("n").namespace is None
    assert found.get("nobody") is None
    assert "team-a/a" in found
    assert "team-b/a" not in found
    assert len(found) == 4


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, ["n", "team-a/a", "team-a/b", "team-ab/a"]),
        ("", ["n", "team-a/a", "team-a/b", "team-ab/a"]),
        ("app=web,!tier", ["team-a/b"]),
        ({"app": "web"}, ["team-a/a", "team-a/b"]),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, ["n", "team-ab/a"]),
        (LabelSelector.parse("app=nothing"), []),
    ],
)
def test_labels_select(selector, expected):
    """As kubectl, as metav1 or as plain labels; an empty selector selects everything (client-go 109)."""
    assert keys(lister().list(selector=selector)) == expected


def test_a_namespace_selects_itself_only():
    """`team-a` is not a prefix of `team-ab`; selectors and namespaces work together (client-go 109)."""
    assert keys(lister().list(namespace="team-a")) == ["team-a/a", "team-a/b"]
    assert keys(lister().list(namespace="team-a", selector="tier")) == ["team-a/a"]


def test_an_index_is_asked_by_its_public_name():
    """Two generations may define one name differently: the names in the store stay hidden."""
    found = lister()
    assert keys(found.by_index("byNode", "n1")) == ["team-a/a", "team-ab/a"]
    assert sorted(found.index_values("byNode")) == ["n1", "n2", "n3"]
    assert found.index_names() == ["byNode"]
    with pytest.raises(UnknownIndex, match=r"no index 'byNode@1'; there are: byNode"):
        found.by_index("byNode@1", "n1")


def test_without_names_the_ones_in_the_store_count():
    """The library's own lister needs no table."""
    found = Lister([indexer(record("a", node="n1"))])
    assert found.index_names() == ["byNode@1"]
    assert keys(found.by_index("byNode@1", "n1")) == ["demo/a"]
    with pytest.raises(UnknownIndex, match="byNode@1"):
        found.index_values("nothing")


def test_keys_have_their_parts():
    """Namespace and name without taking the key apart."""
    keys_there = lister().keys()
    assert sorted((key.namespace or "", key.name) for key in keys_there) == [
        ("", "n"),
        ("team-a", "a"),
        ("team-a", "b"),
        ("team-ab", "a"),
    ]


def test_what_is_read_is_the_readers_own():
    """Changing what one got changes nothing in the cache."""
    found = lister()
    mine = found.get("team-a/a").to_dict()
    mine["spec"]["nodeName"] = "elsewhere"
    assert found.get("team-a/a")["spec"]["nodeName"] == "n1"
