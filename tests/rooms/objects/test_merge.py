"""The table of the contract: what becomes of two pending changes of one key."""

import msgspec
import pytest

from declctl.objects import ChangeReason, ChangeType, Notification, merge
from tests.rooms.objects.made_objects import pod, record


def version(n):
    obj = pod()
    obj["metadata"]["resourceVersion"] = str(n)
    return record(obj)


V1, V2, V3 = version(1), version(2), version(3)
ADDED = Notification(ChangeType.ADDED, V1, initial=True, reason=ChangeReason.INITIAL, received_at=1.0)
MODIFIED = Notification(ChangeType.MODIFIED, V2, V1, received_at=2.0)
MODIFIED_AGAIN = Notification(ChangeType.MODIFIED, V3, V2, received_at=3.0)
DELETED = Notification(ChangeType.DELETED, V3, final_state_unknown=True, received_at=3.0)
ADDED_AGAIN = Notification(ChangeType.ADDED, V3, received_at=4.0)
RESYNC = Notification(ChangeType.RESYNC, V2, reason=ChangeReason.RESYNC)


def test_added_and_modified_is_added_with_the_new_object():
    """The handler hears once of the object as it is; that it belongs to the first sync stays true."""
    (merged,) = merge(ADDED, MODIFIED, False)
    assert (merged.type, merged.record, merged.old, merged.initial, merged.reason) == (
        ChangeType.ADDED,
        V2,
        None,
        True,
        ChangeReason.INITIAL,
    )


def test_modified_twice_is_modified_from_the_first_old_to_the_last_new():
    """Nothing between is lost for who compares `old` and `obj`."""
    (merged,) = merge(MODIFIED, MODIFIED_AGAIN, False)
    assert (merged.type, merged.old, merged.record, merged.received_at) == (ChangeType.MODIFIED, V1, V3, 3.0)


@pytest.mark.parametrize("attempted", [False, True])
def test_modified_and_deleted_is_deleted(attempted):
    """Only the end counts; how it was at first is kept for filters."""
    (merged,) = merge(MODIFIED, DELETED, attempted)
    assert merged == msgspec.structs.replace(DELETED, old=V1)


def test_added_and_deleted_is_nothing_unless_the_handler_has_seen_it():
    """Nobody hears of what came and went; who failed on Added hears of Deleted."""
    assert merge(ADDED, DELETED, False) == []
    assert merge(ADDED, DELETED, True) == [DELETED]


def test_deleted_and_added_are_both_told_in_order():
    """An object made anew is another object; of two deletions the newest known state is told."""
    assert merge(DELETED, ADDED_AGAIN, False) == [DELETED, ADDED_AGAIN]
    assert merge(Notification(ChangeType.DELETED, V1), DELETED, False) == [DELETED]


@pytest.mark.parametrize("other", [ADDED, MODIFIED, DELETED, RESYNC])
def test_resync_gives_way_to_anything(other):
    assert merge(RESYNC, other, False) == [other]
    assert merge(other, RESYNC, False) == [other]


def test_pending_change_weighs_its_frames():
    """`bufferBytes` counts what waiting costs."""
    assert MODIFIED.weight() == 256 + len(V2.frame) + len(V1.frame)
    assert ADDED.weight() == 256 + len(V1.frame)
    assert ADDED.key == "team-a/web-1"
