"""Indexer: the store of an informer, where each record is found under its own key."""

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.errors import CacheError, NoKey, TransactionError
from declctl.informer import Indexer, field_index
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.shapes import record


def test_records_know_their_keys():
    """Add, get by example and by key, delete with the final state (client-go 87)."""
    made = Indexer({"byNode": field_index("spec.nodeName")})
    known = made.known()
    made.add(record("a", 3, node="n1"))
    assert list(known) == ["demo/a"], "what is known is live, and cannot be written"
    assert not hasattr(known, "__setitem__")
    assert made.get(record("a")).resource_version == "3"
    assert made.get_by_key("demo/a") is made.get(record("a"))
    assert made.delete(record("a", 4)).resource_version == "3"
    assert made.last_store_sync_resource_version == "4"
    assert made.get_by_key("demo/a") is None


@pytest.mark.client_go(83)
def test_a_delete_reaches_its_version_when_the_object_is_gone():
    """Who waits for a version and then looks does not find what was deleted at it."""
    made = Indexer()
    made.add(record("a", 3))
    seen = []
    made.take = lambda key: seen.append(made.last_store_sync_resource_version)
    made.delete(record("a", 4))
    assert (seen, made.last_store_sync_resource_version) == (["3"], "4")


NAMELESS = msgspec.structs.replace(record("a", 9), key="")


@pytest.mark.client_go(91)
@pytest.mark.parametrize("write", ["add", "update", "delete", "replace"])
def test_a_record_without_a_key_is_refused_and_can_be_looked_at(write):
    """The error has the record; nothing has changed, the version neither."""
    made = Indexer()
    made.add(record("a", 3))
    with pytest.raises(NoKey) as caught:
        getattr(made, write)([record("b"), NAMELESS] if write == "replace" else NAMELESS)
    assert caught.value.obj is NAMELESS
    assert list(made.list_keys()) == ["demo/a"]
    assert made.last_store_sync_resource_version == "3"


def put(name, version):
    return Delta(DeltaType.ADDED, f"demo/{name}", record(name, version))


KEYLESS = Delta(DeltaType.ADDED, "", NAMELESS)


@pytest.mark.client_go(92, "Transactions")
@pytest.mark.parametrize(
    ("changes", "succeeded"),
    [
        ([KEYLESS, KEYLESS], ()),
        ([put("a", 1), KEYLESS, put("b", 2), KEYLESS], (0, 2)),
        ([KEYLESS, put("a", 1), Delta(DeltaType.DELETED, "", None), put("b", 2)], (1, 3)),
    ],
    ids=["all bad", "good, bad, good, bad", "bad, good, bad, good"],
)
def test_changes_without_a_key_keep_none_of_the_others_from_being_made(changes, succeeded):
    """The error says which were made, how many of how many failed, and what was wrong first."""
    made = Indexer()
    with pytest.raises(TransactionError, match=f"2 of {len(changes)} changes failed") as caught:
        made.transaction(changes)
    assert (caught.value.succeeded, caught.value.total) == (succeeded, len(changes))
    assert list(made.list_keys()) == [changes[position].key for position in succeeded]
    first = caught.value.__cause__
    assert isinstance(first, NoKey)
    assert first.obj is KEYLESS
    assert caught.value.faults[0] is first
    assert len(caught.value.faults) == 2
    assert made.last_store_sync_resource_version == ("2" if succeeded else "")


def test_a_record_can_not_be_put_under_the_key_of_another():
    """Each record is found under its own key, whatever a change says."""
    made = Indexer()
    with pytest.raises(TransactionError) as caught:
        made.transaction([Delta(DeltaType.ADDED, "demo/b", record("a"))])
    assert str(caught.value.__cause__) == "a change of demo/b has the record of demo/a"
    assert isinstance(caught.value, CacheError)
    assert len(made) == 0


@pytest.mark.client_go(89)
@pytest.mark.parametrize("write", ["add", "update", "replace", "transaction"])
def test_what_is_stored_is_what_the_transform_made(write):
    """Records are transformed where they are made, so that no store can hold the whole object."""
    projection = Projection(
        api_version="v1", kind="Pod", transform=lambda obj: {**obj, "spec": {"nodeName": "hidden"}}
    )
    made, whole = Indexer(), record("a", node="n1", projection=projection)
    if write == "transaction":
        made.transaction([Delta(DeltaType.ADDED, whole.key, whole)])
    else:
        getattr(made, write)([whole] if write == "replace" else whole)
    assert made.list()[0].decode()["spec"] == {"nodeName": "hidden"}
