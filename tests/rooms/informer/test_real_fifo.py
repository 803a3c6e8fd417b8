"""The in-order queue: nothing is merged, nothing overtakes, a replacement is one entry."""

import pytest

from tests.rooms.informer.lines import Line, play, records

# Stored before, done to the queue, what listeners hear, and then what is stored, at which version.
TOLD = [
    # every delete is queued: unknown, known, and twice
    ("a 1", "delete ghost 2, delete a 2, delete a 2", "Deleted a 2", "", "2"),
    # a pending delete is told before the list that has the object again
    ("a 1", "delete a 2, list a 3", "Deleted a 2, Added a 3", "a 3", "3"),
    # something only queued is not forgotten by a list
    ("", "add a 1, list", "Added a 1, Deleted a 1 tombstone", "", "99"),
    # a real delete gets no tombstone behind it
    ("", "add a 1, delete a 2, list", "Added a 1, Deleted a 2", "", "99"),
    # something made again is deleted again by a list, with its newest state
    (
        "",
        "add a 1, delete a 2, add a 3, list",
        "Added a 1, Deleted a 2, Added a 3, Deleted a 3 tombstone",
        "",
        "99",
    ),
    # pending changes come first, then tombstones with the newest state that is known, then the list
    (
        "a 1 b 2 c 3",
        "update c 30, add d 31, list a 32",
        (
            "Modified c 30, Added d 31, Deleted b 2 tombstone, Deleted c 30 tombstone, "
            "Deleted d 31 tombstone, Modified a 32"
        ),
        "a 32",
        "32",
    ),
    # a bookmark is told to nobody, and moves the version of the store
    ("a 1", "bookmark 9", "", "a 1", "9"),
    # a resync does not bring back what is about to be deleted
    ("a 1", "delete a 2, resync", "Deleted a 2", "", "2"),
    # a resync replays each object once, as it is
    ("a 1 b 2", "resync", "Resync a 1, Resync b 2", "a 1, b 2", "2"),
    # a resync never tells an older state than what is pending
    ("a 1", "update a 2, resync", "Modified a 2, Resync a 2", "a 2", "2"),
]


@pytest.mark.client_go(34, 35, 36, 39, 40, 42, 43, 45, 47)
@pytest.mark.client_go("RealFIFO global order", "RealFIFO Replace (non atomic)", "RealFIFO AtomicEvents")
@pytest.mark.parametrize(("stored", "steps", "told", "left", "version"), TOLD)
def test_what_is_applied_is_told_as_it_was_queued(stored, steps, told, left, version):
    """The queue does not judge what the store knows: that is found when an entry is applied."""
    line = Line(*records(*stored.split()))
    play(line.queue, *steps.split(", "))
    assert len(line.queue) == len(steps.split(", "))
    assert ", ".join(line.drained()) == told
    assert ", ".join(f"{name} {at}" for name, at in line.versions.items()) == left
    assert line.store.last_store_sync_resource_version == version
