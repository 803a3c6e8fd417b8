"""Indexer: the store of an informer, where each record is found under its own key."""

from declctl.informer import Indexer, field_index
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.shapes import record


def test_records_know_their_keys():
    """Add, get by example and by key, delete with the final state (client-go 87)."""
    made = Indexer({"byNode": field_index("spec.nodeName")})
    made.add(record("a", 3, node="n1"))
    assert made.get(record("a")).resource_version == "3"
    assert made.get_by_key("demo/a") is made.get(record("a"))
    assert made.delete(record("a", 4)).resource_version == "3"
    assert made.last_store_sync_resource_version == "4"
    assert made.get_by_key("demo/a") is None


def test_a_replacement_takes_a_list():
    """What a LIST gives, at its version."""
    made = Indexer()
    made.add(record("old"))
    made.replace([record("a"), record("b")], "7")
    assert sorted(made.list_keys()) == ["demo/a", "demo/b"]
    assert made.last_store_sync_resource_version == "7"


def test_a_reflector_can_feed_it_without_a_queue():
    """Changes are applied in their order."""
    made = Indexer()
    made.extend(
        [
            Delta(DeltaType.ADDED, "demo/a", record("a")),
            Delta(DeltaType.UPDATED, "demo/a", record("a", 2)),
            Delta(DeltaType.ADDED, "demo/b", record("b", 3)),
            Delta(DeltaType.DELETED, "demo/b", record("b", 4)),
            Delta(DeltaType.ADDED, "demo/c", record("c", 5)),
            Delta(DeltaType.DELETED, "demo/c", record("c", 6), out_of_scope=True),
        ]
    )
    assert [(r.key, r.resource_version) for r in made.list()] == [("demo/a", "2")]


def test_resync_changes_nothing():
    """A store is in sync with itself (client-go 87)."""
    made = Indexer()
    made.add(record("a"))
    made.resync()
    assert len(made) == 1


def test_known_is_live_and_cannot_be_written():
    """The loop that writes compares with it without a copy."""
    made = Indexer()
    known = made.known()
    made.add(record("a"))
    assert list(known) == ["demo/a"]
    assert not hasattr(known, "__setitem__")
