"""The in-order queue: nothing is merged, nothing overtakes, a replacement is one entry."""

import pytest

from tests.rooms.informer.lines import Line, play, records

# Stored before, done to the queue, what listeners hear, and then what is stored, at which version.
# More of them: `RealMachine` of the properties.
TOLD = [
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
    # a resync replays each object once, as it is
    ("a 1 b 2", "resync", "Resync a 1, Resync b 2", "a 1, b 2", "2"),
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
