"""Lister: a read-only view of the cache."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from declctl.errors import NotSynced, UnknownIndex, UnknownNamespace
from declctl.informer import NAMESPACE_INDEX, Indexer, Lister, field_index, namespace_index
from declctl.informer.stores.indices import index_functions
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


@pytest.mark.client_go(109, "Listers")
def test_an_object_is_found_in_whichever_store_has_it():
    """One view over several namespaces; a key in either form. What is not there is None, and no error.

    `team-a` is not a prefix of `team-ab`; selectors and namespaces work together (client-go 109).
    """
    found = lister()
    assert keys(found.list(namespace="team-a")) == ["team-a/a", "team-a/b"]
    assert keys(found.list(namespace="team-a", selector="tier")) == ["team-a/a"]
    all_keys = found.keys()
    parts = sorted((key.namespace or "", key.name) for key in all_keys)
    assert parts == [("", "n"), ("team-a", "a"), ("team-a", "b"), ("team-ab", "a")]
    assert found.get("team-a/nobody") is None
    assert found.get("team-ab/a").namespace == "team-ab"
    assert found.get("n").namespace is None
    assert found.get("nobody") is None
    assert "team-a/a" in found
    assert "team-b/a" not in found
    assert len(found) == 4


@pytest.mark.client_go(109, "Listers")
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


class Unread(bytes):
    """Labels that nobody may look at."""

    def __hash__(self):
        raise AssertionError("labels were looked at")


@pytest.mark.client_go("Listers")
@pytest.mark.parametrize("selector", [None, "", {}, {"matchLabels": {}}, LabelSelector()])
def test_a_selector_that_selects_everything_looks_at_nothing(selector):
    """A whole list costs no matching."""
    store = indexer(msgspec.structs.replace(record("a", labels={"app": "web"}), labels_json=Unread()))
    assert keys(Lister([store]).list(selector=selector)) == ["demo/a"]


def of_two_teams(**indexers):
    made = Indexer(indexers)
    made.replace(
        [
            record("a", namespace="team-a", labels={"app": "web"}),
            record("b", namespace="team-a"),
            record("c", namespace="team-b", labels={"app": "web"}),
            record("n", namespace=None),
        ],
        "1",
    )
    return made


@pytest.mark.client_go(327, "Namespace index", "Listers")
def test_a_namespace_is_listed_by_its_index_if_there_is_one():
    """Nothing else is looked at; the answer is the same as without.

    A cluster-scoped object is found under the empty string.
    """
    fast, slow = of_two_teams(**{NAMESPACE_INDEX: namespace_index()}), of_two_teams()
    fast.list = lambda: pytest.fail("every object was looked at")
    for namespace, expected in {"team-a": ["team-a/a", "team-a/b"], "nowhere": []}.items():
        for store in (fast, slow):
            assert keys(Lister([store]).list(namespace=namespace)) == expected
    assert keys(Lister([fast]).list(namespace="team-a", selector="app")) == ["team-a/a"]
    assert sorted(fast.list_index_func_values(NAMESPACE_INDEX)) == ["", "team-a", "team-b"]
    assert list(fast.index_keys(NAMESPACE_INDEX, "")) == ["n"]


@pytest.mark.client_go("Namespace index")
def test_a_namespace_index_may_come_late_and_go():
    """Lists are right before, with and after it, also if something else has that name."""
    made = of_two_teams()
    for change in (
        lambda: None,
        lambda: made.add_indexers({NAMESPACE_INDEX: namespace_index()}),
        lambda: made.add(record("d", namespace="team-b")),
        lambda: made.remove_indexers([NAMESPACE_INDEX]),
        lambda: made.add(record("e", namespace="team-b")),
        lambda: made.add_indexers({NAMESPACE_INDEX: field_index("metadata.name")}),
    ):
        change()
        listed = keys(Lister([made]).list(namespace="team-b"))
        assert listed == sorted(key for key in made.list_keys() if key.startswith("team-b/"))


def test_an_index_is_asked_by_its_public_name():
    """Two generations may define one name differently: the names in the store stay hidden."""
    found = lister()
    assert keys(found.by_index("byNode", "n1")) == ["team-a/a", "team-ab/a"]
    assert sorted(found.index_values("byNode")) == ["n1", "n2", "n3"]
    assert found.index_names() == ["byNode"]
    with pytest.raises(UnknownIndex, match=r"no index 'byNode@1'; there are: byNode"):
        found.by_index("byNode@1", "n1")
    with pytest.raises(TypeError, match=r"texts: write by_index\('byNode', '3'\) instead of 3"):
        found.by_index("byNode", 3)


def test_without_names_the_ones_in_the_store_count():
    """The library's own lister needs no table; nothing is known of what fills a bare store."""
    found = Lister([indexer(record("a", node="n1"))])
    assert found.has_synced
    assert found.index_names() == ["byNode@1"]
    assert keys(found.by_index("byNode@1", "n1")) == ["demo/a"]
    with pytest.raises(UnknownIndex, match="byNode@1"):
        found.index_values("nothing")
    assert Lister([indexer()]).list() == []


class Filling:
    """What fills a store, as far as a lister asks it."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self.has_synced = False
        self.why = why

    def why_not_synced(self) -> str:
        return "" if self.has_synced else self.why


READS: dict[str, Callable[[Lister], Any]] = {
    "get": lambda lister: lister.get("team-a/a"),
    "list": lambda lister: lister.list(),
    "by_index": lambda lister: lister.by_index("byNode", "n1"),
    "index_values": lambda lister: lister.index_values("byNode"),
    "keys": lambda lister: lister.keys(),
    "len": len,
    "in": lambda lister: "team-a/a" in lister,
}


@pytest.mark.client_go(330)
@pytest.mark.parametrize("read", READS)
def test_a_cache_that_has_not_synced_is_not_taken_for_an_empty_one(read):
    """No read says "nothing" before every namespace has been listed: the error names resource and reason."""
    forbidden = Filling("v1 Pod in team-b", "403 Forbidden: pods is forbidden")
    other = Filling("v1 Pod in team-a", "Listing: 0 objects so far")
    stores = [indexer(record("a", namespace="team-a", node="n1")), indexer()]
    found = Lister(stores, index_names={"byNode": "byNode@1"}, name="pods", filled_by=[other, forbidden])
    with pytest.raises(NotSynced, match=r"^pods has not synced \(Listing: .*; 403 Forbidden: ") as raised:
        READS[read](found)
    assert raised.value.resource == "pods"
    assert not found.has_synced

    other.has_synced = True
    with pytest.raises(NotSynced, match=r"^pods has not synced \(403 Forbidden: pods is forbidden\)"):
        READS[read](found)
    assert not found.has_synced

    forbidden.has_synced = True
    assert READS[read](found)
    assert found.has_synced


@pytest.mark.client_go(323, "Multi-namespace cache")
@pytest.mark.parametrize("read_by", ["lister", "snapshot"])
def test_a_namespace_that_is_not_watched_is_not_taken_for_an_empty_one(read_by):
    """What is in it is not known: the error names the resource and its namespaces."""
    stores = [indexer(record("a", namespace="team-a", node="n1")), indexer()]
    found = Lister(stores, index_names={"byNode": "byNode@1"}, name="pods", namespaces=("team-a", "team-b"))
    found = found if read_by == "lister" else found.snapshot()
    for read in (
        lambda: found.get("team-c/a"),
        lambda: "team-c/a" in found,
        lambda: found.list(namespace="team-c"),
    ):
        with pytest.raises(UnknownNamespace, match=r"^pods is not watched in .*'team-c'.* team-a, team-b$"):
            read()
    assert keys(found.list()) == keys(found.list(namespace="team-a")) == ["team-a/a"]
    assert (found.get("team-b/a"), found.get("a"), "team-b/a" in found) == (None, None, False)
    assert (list(found.list(namespace="team-b")), len(found.by_index("byNode", "n1"))) == ([], 1)


@pytest.mark.client_go(325, "Reader options")
def test_a_part_of_a_list_is_a_slice_of_it():
    """It is of the same moment; there is no limit, and no token to continue with, as nothing is sent."""
    found = lister().list()
    pages = [found[:3], found[3:6], found[6:]]
    assert [len(page) for page in pages] == [3, 1, 0]
    assert [*pages[0], *pages[1]] == list(found)
    for options in ({"limit": 3}, {"continue_": "token"}):
        with pytest.raises(TypeError, match="unexpected keyword"):
            lister().list(**options)


@pytest.mark.client_go(327, "Field index")
def test_an_index_is_combined_with_namespaces_labels_and_other_indexes():
    """An index of a function finds by several values at once; of what is found, a reader takes a part."""

    def by_both(obj):
        return [f"{obj['spec'].get('nodeName')}/{obj.labels.get('app')}"]

    stored = indexer(
        record("a", namespace="team-a", node="n1", labels={"app": "web"}),
        record("b", namespace="team-b", node="n1", labels={"app": "web"}),
        record("c", namespace="team-a", node="n1", labels={"app": "db"}),
        record("d", namespace="team-a", node="n2", labels={"app": "web"}),
        record("n", namespace=None, node="n1", labels={"app": "web"}),
    )
    stored.add_indexers(index_functions({"byBoth": by_both}))
    found = Lister([stored])
    assert keys(found.by_index("byNode@1", "n1")) == ["n", "team-a/a", "team-a/c", "team-b/b"]
    assert keys(found.by_index("byBoth", "n1/web")) == ["n", "team-a/a", "team-b/b"]
    assert found.by_index("byBoth", "n1") == []
    in_one = [obj for obj in found.by_index("byBoth", "n1/web") if obj.namespace == "team-a"]
    assert keys(in_one) == ["team-a/a"]
    assert sorted(found.index_values("byNode@1")) == ["n1", "n2"]
