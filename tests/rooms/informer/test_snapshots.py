"""CacheSnapshot: all objects at one moment, for any number of reads."""

import pytest

from declctl.errors import NotSynced, UnknownIndex
from declctl.informer import Indexer, Lister, field_index, namespace_index, snapshots_of
from declctl.informer.applier import Applier
from declctl.informer.queues.real_fifo import Replacement
from tests.rooms.informer.shapes import record


class Unsynced:
    """A store that nobody fills yet."""

    name = "pods"
    has_synced = False

    def why_not_synced(self):
        return "403"


def store(*records):
    made = Indexer({"byNode@1": field_index("spec.nodeName"), "namespace": namespace_index()})
    made.replace(records, "1")
    return made


def lister(*stores, filled_by=()):
    return Lister(stores, index_names={"byNode": "byNode@1"}, name="pods", filled_by=filled_by)


def test_every_read_is_of_the_moment_at_which_it_was_taken():
    """Whatever is added, changed or deleted after it."""
    team = store(record("a", namespace="team", node="n1"), record("b", namespace="team", node="n1"))
    other = store(record("c", namespace="other", node="n2", labels={"app": "web"}))
    reads = lister(team, other)
    taken = reads.snapshot()
    team.update(record("a", 2, namespace="team", node="n9"))
    team.delete(record("b", 3, namespace="team"))
    other.add(record("d", 4, namespace="other", node="n2", labels={"app": "web"}))
    assert sorted(each.key for each in taken) == ["other/c", "team/a", "team/b"]
    assert (len(taken), "team/b" in taken, "other/d" in taken) == (3, True, False)
    assert taken.get("team/a").resource_version == "1"
    assert [each.key for each in taken.list(namespace="other", selector="app=web")] == ["other/c"]
    assert sorted(each.key for each in taken.by_index("byNode", "n1")) == ["team/a", "team/b"]
    assert [*taken.by_index("byNode", "n9")] == []
    assert sorted(taken.index_values("byNode")) == ["n1", "n2"]
    assert sorted(map(str, taken.keys())) == ["other/c", "team/a", "team/b"]
    assert taken.has_synced
    assert repr(taken) == "<snapshot of 3 pods>"
    assert sorted(each.key for each in reads.snapshot()) == ["other/c", "other/d", "team/a"]


def test_what_a_snapshot_keeps_is_bounded_however_long_a_call_takes():
    """Objects that came and went after it are not kept; of changed ones, their state of then is."""
    pods = store(record("old"))
    taken = pods.snapshot()
    for number in range(200):
        pods.add(record(f"new{number}"))
        pods.delete(record(f"new{number}"))
        pods.update(record("old", number))
    assert taken.noted == 1
    assert [each.resource_version for each in taken.list()] == ["1"]


def test_an_unknown_index_is_named_and_an_unsynced_cache_too():
    """As by a lister; and a snapshot that was taken never raises NotSynced."""
    with pytest.raises(UnknownIndex, match="there are: byNode"):
        lister(store()).snapshot().by_index("byZone", "z")
    with pytest.raises(NotSynced, match=r"pods has not synced \(403\)") as caught:
        lister(store(), filled_by=[Unsynced()]).snapshot()
    assert not caught.value.is_relisted


def test_no_snapshot_is_taken_in_the_middle_of_a_list():
    """A later list is put into the cache in slices, in the order of keys: a part of it never existed."""
    pods = store(record("a"), record("b"), record("gone"))
    reads, before = lister(pods), lister(pods).snapshot()
    applier = Applier(pods)
    applier.slice_size = 1
    seen = []
    for _ in applier.replace(Replacement([record("a", 7), record("b", 8)], "9", False), 7.0):
        with pytest.raises(NotSynced, match="a new list is being put into its cache") as caught:
            reads.snapshot()
        assert caught.value.is_relisted
        seen.append(sorted((each.name, each.resource_version) for each in reads.list()))
    assert seen[1] == [("a", "7"), ("b", "1")]  # a lister reads what is there
    assert sorted(each.resource_version for each in before) == ["1", "1", "1"]
    assert sorted(each.resource_version for each in reads.snapshot()) == ["7", "8"]


def test_snapshots_of_several_resources_are_of_one_moment_of_the_process():
    """Nothing is written to any of them while they are taken; one that can't be read prevents all."""
    pods, nodes = store(record("p")), store(record("n"))
    taken = snapshots_of([lister(pods), lister(nodes), lister(pods)])
    assert [[each.name for each in one] for one in taken] == [["p"], ["n"], ["p"]]
    with pytest.raises(NotSynced):
        snapshots_of([lister(pods), lister(nodes, filled_by=[Unsynced()])])
    pods.update(record("p", 2))  # no lock is held any more
    assert taken[0].get("demo/p").resource_version == "1"
