"""The in-order queue: nothing is merged, nothing overtakes, a replacement is one entry."""

import pytest

from declctl.informer import RealFIFO
from declctl.informer.applier import Applier
from declctl.informer.queues.real_fifo import Bookmark, Replacement, SyncAll
from declctl.objects import Delta
from tests.rooms.informer.lines import Line, entries, play, records, words


def batches(queue, limit=100):
    found = []
    while batch := queue.pop_batch_nowait(limit):
        found.append(batch)
        queue.processed(batch)
    return found


def shown(batch):
    found = []
    for entry in entries(batch):
        match entry:
            case Replacement(listed, version):
                found.append(f"list {' '.join(r.key.removeprefix('demo/') for r in listed)} at {version}")
            case Bookmark(version):
                found.append(f"bookmark {version}")
            case SyncAll():
                found.append("resync")
            case Delta(kind, key, held):
                found.append(f"{kind} {key.removeprefix('demo/')} {held.resource_version}")
    return found


@pytest.mark.client_go(37, 41, 44, 49, 53, 56, 58, 59, 61, 62, 63)
@pytest.mark.client_go("RealFIFO global order", "RealFIFO AtomicEvents", "RealFIFO batch pop")
@pytest.mark.parametrize("limit", [1, 2, 10])
def test_everything_is_handed_out_in_its_order(limit):
    """Each change for itself; a list, however long, a bookmark and a resync are one entry and one batch.

    A batch is never larger than asked for, so that whoever applies it can bound how long that takes.
    """
    queue = RealFIFO()
    play(queue, "add a 1", "add b 1", "pop", "update a 2", "delete a 3", "bookmark 5", "resync")
    play(queue, "list a 6 c 6 d 6", "add a 7")
    assert len(queue) == 7
    found = [", ".join(shown(batch)) for batch in batches(queue, limit)]
    changes = ["Added b 1", "Updated a 2", "Deleted a 3"]
    changes = [", ".join(changes[at : at + limit]) for at in range(0, 3, limit)]
    assert found == [*changes, "bookmark 5", "resync", "list a c d at 6", "Added a 7"]
    assert (len(queue), queue.pop_batch_nowait(10), queue.pop_nowait()) == (0, [], None)


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


@pytest.mark.client_go(54, "RealFIFO batch pop")
def test_only_the_first_list_is_initial_and_no_batch_mixes_it_with_what_comes_after():
    """Neither a change after it nor a relist is part of the first sync (client-go 171)."""
    queue = RealFIFO()
    play(queue, "list a 1 b 1", "update a 2", "update b 3", "list")
    first, changes, relist = batches(queue, 10)
    assert first == Replacement(records("a", "1", "b", "1"), "1", initial=True)
    assert [(e.key, e.initial) for e in changes] == [("demo/a", False), ("demo/b", False)]
    assert (list(relist.records), relist.initial) == ([], False)


@pytest.mark.client_go(48, 50, 62, "RealFIFO HasSynced")
@pytest.mark.parametrize(
    ("stored", "listed", "told"),
    [
        ("a 1 b 1 c 1", "a 2", ["Deleted b 1 tombstone", "Deleted c 1 tombstone", "Modified a 2"]),
        ("", "a 1 b 1 a 2", ["Added a 1", "Added b 1", "Modified a 2"]),
        ("", "", []),
    ],
    ids=["one is listed, two are missing", "one is listed twice", "none is listed"],
)
def test_it_has_synced_when_the_first_list_is_processed(monkeypatch, stored, listed, told):
    """Popped is not applied: all of it is in the store first; what comes behind it is not waited for."""
    monkeypatch.setattr(Applier, "slice_size", 1)
    line, opened = Line(*records(*stored.split())), []
    line.queue.synced.on_open(lambda: opened.append(True))
    play(line.queue, f"list {listed}", "add z 1")
    batch = line.queue.pop_batch_nowait(10)
    assert words(line.apply(batch)) == told
    assert (line.queue.has_synced, opened) == (False, [])
    line.queue.processed(batch)
    assert (line.queue.has_synced, opened, len(line.queue)) == (True, [True], 1)
