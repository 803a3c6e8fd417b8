"""From deltas to the store, and from the store to notifications."""

import msgspec
import pytest

from declctl.informer import DeltaFIFO, Indexer, RealFIFO, RelistDifferences
from declctl.informer.applier import Applier
from declctl.informer.queues.real_fifo import Replacement
from declctl.objects import ChangeReason, ChangeType, Delta, DeltaType
from tests.rooms.informer.broken_input import deep_pod
from tests.rooms.informer.lines import Line as QueuedLine
from tests.rooms.informer.shapes import fresh_projection, record

ADDED, UPDATED, DELETED = DeltaType.ADDED, DeltaType.UPDATED, DeltaType.DELETED


class Line:
    """An applier, its store, and what it tells."""

    def __init__(self, *records):
        self.store = Indexer()
        self.applier = Applier(self.store)
        for each in records:
            self.store.add(each)

    def apply(self, *deltas):
        return self.applier.apply([Delta(kind, r.key, r, **more) for kind, r, more in deltas], 7.0)

    def replace(self, *records, initial=False, version="99"):
        slices = list(self.applier.replace(Replacement(records, version, initial), 7.0))
        return [n for told in slices for n in told]

    @property
    def versions(self):
        return {r.key.removeprefix("demo/"): r.resource_version for r in self.store.list()}


def shown(told):
    return [f"{n.type} {n.key.removeprefix('demo/')} {n.record.resource_version} {n.reason}" for n in told]


def one(kind, made, **more):
    return (kind, made, more)


# Stored before, what is applied, and what is told of it; then what is stored, at which version.
APPLIED = {
    "what is not known is added": ([], [(ADDED, 5)], ["Added a 5 Watch"], "5", "5"),
    "whatever the server calls it": ([], [(UPDATED, 5)], ["Added a 5 Watch"], "5", "5"),
    "what is known is modified": ([1], [(UPDATED, 2)], ["Modified a 2 Watch"], "2", "2"),
    "also by an add": ([1], [(ADDED, 2)], ["Modified a 2 Watch"], "2", "2"),
    "the same version is no change (client-go 179)": ([3], [(UPDATED, 3)], [], "3", "3"),
    "a delete tells the final state (client-go 172)": ([1], [(DELETED, 9)], ["Deleted a 9 Watch"], None, "9"),
    "a delete of what is not known is nothing": ([], [(DELETED, 9)], [], None, "9"),
}


@pytest.mark.client_go("Unchanged-RV suppression")
@pytest.mark.parametrize("case", APPLIED)
def test_the_cache_decides_what_a_change_is(case):
    """With the state that was stored as the old one; nobody is told of what changes nothing."""
    stored, changes, expected, left, version = APPLIED[case]
    before = [record("a", each) for each in stored]
    line = Line(*before)
    told = line.apply(*(one(kind, record("a", each)) for kind, each in changes))
    assert shown(told) == expected
    for n in told:
        assert (n.initial, n.final_state_unknown, n.received_at) == (False, False, 7.0)
        assert n.old is (before[0] if n.type is ChangeType.MODIFIED else None)
    assert line.versions.get("a") == left
    assert line.store.last_store_sync_resource_version == version


@pytest.mark.client_go("Delete+recreate gap")
@pytest.mark.parametrize("kind", [ADDED, UPDATED])
def test_another_uid_is_another_object(kind):
    """Deleted and made again while nobody saw: two changes, not one update (pitfall 4)."""
    line = Line(record("a", 1, uid="first"))
    told = line.apply(one(kind, record("a", 5, uid="second")))
    assert shown(told) == ["Deleted a 1 Watch", "Added a 5 Watch"]
    assert [n.final_state_unknown for n in told] == [True, False]


@pytest.mark.client_go("Tombstones")
def test_what_is_gone_without_its_last_state_is_told_with_the_cached_one():
    """A tombstone says that it may not be the last (client-go 17); what a transform drops is out of scope.

    If it was not cached, it is not told at all.
    """
    line = Line(record("a", 4), record("b", 4))
    told = line.apply(
        one(DELETED, record("a", 2), final_state_unknown=True),
        one(DELETED, record("b", 5), out_of_scope=True),
        one(DELETED, record("c", 6), out_of_scope=True),
    )
    assert shown(told) == ["Deleted a 4 Relist", "Deleted b 4 OutOfScope"]
    assert [n.final_state_unknown for n in told] == [True, False]


def test_a_sync_tells_the_cache_as_it_is():
    """A resync is not a change (client-go 15)."""
    held = record("a", 4)
    line = Line(held)
    [told] = line.apply(one(DeltaType.SYNC, record("a", 1)))
    assert told.type is ChangeType.RESYNC
    assert told.record is held
    assert line.apply(one(DeltaType.SYNC, record("gone"))) == []


@pytest.mark.client_go(171, "isInInitialList")
def test_first_lists_and_relists_are_told_apart():
    """Also by the accumulating queue (client-go 171); what is new is told the same whoever reads it."""
    line = Line()
    told = line.apply(
        one(DeltaType.REPLACED, record("a"), initial=True),
        one(DeltaType.REPLACED, record("b"), initial=False),
    )
    assert shown(told) == ["Added a 1 Initial", "Added b 1 Relist"]
    assert [n.initial for n in told] == [True, False]

    line = Line()
    [told] = line.applier.replace(Replacement([record("a"), record("b", 2)], "99", True), 7.0)
    assert len(told) == 2
    assert list(told) == list(told)
    assert shown(told) == ["Added a 1 Initial", "Added b 2 Initial"]
    assert [(n.initial, n.received_at) for n in told] == [(True, 7.0), (True, 7.0)]
    assert line.store.last_store_sync_resource_version == "99"
    [relisted] = line.applier.replace(Replacement([*line.store.list(), record("c")], "100", False), 8.0)
    assert shown(relisted) == ["Added c 1 Relist"]


def test_a_list_with_an_object_twice_ends_with_the_second():
    """A server may bring an object again on a later page: it is one object, which has changed."""
    line = Line()
    told = line.replace(record("a"), record("b"), record("a", 2), record("b"), initial=True)
    assert shown(told) == ["Added a 1 Initial", "Added b 1 Initial", "Modified a 2 Initial"]
    assert line.versions == {"a": "2", "b": "1"}
    again = line.replace(record("new"), record("a", 3), record("new", 2), record("b"))
    assert shown(again) == ["Added new 1 Relist", "Modified a 3 Relist", "Modified new 2 Relist"]
    assert line.versions == {"new": "2", "a": "3", "b": "1"}


def test_a_relist_is_compared_in_place():
    """Missing, changed, made again, new; what has not changed is not told (client-go 45, 179)."""
    line = Line(record("gone", 1), record("same", 1), record("changed", 1), record("again", 1, uid="first"))
    told = line.replace(
        record("same", 1), record("changed", 6), record("again", 7, uid="second"), record("new", 8)
    )
    missing, changed, *again, new = [each.removesuffix(" Relist") for each in shown(told)]
    assert (missing, changed, new) == ("Deleted gone 1", "Modified changed 6", "Added new 8")
    assert again == ["Deleted again 1", "Added again 7"]
    assert {n.reason for n in told} == {ChangeReason.RELIST}
    assert [n.final_state_unknown for n in told] == [True, False, True, False, False]
    assert not any(n.initial for n in told)
    assert line.versions == {"same": "1", "changed": "6", "again": "7", "new": "8"}


def test_the_same_object_in_a_new_layout_is_kept_but_not_told():
    """A reload that projects more fields exchanges records as they come, silently."""
    line = Line(record("a", 1))
    newer = record("a", 1, projection=fresh_projection())
    assert line.replace(newer) == []
    assert line.store.get_by_key("demo/a") is newer


def test_a_large_replacement_comes_in_slices():
    """After each slice the store has what was told and nothing else, so that the loop can breathe."""
    old = [record(f"old{n}") for n in range(700)]
    new = [record(f"new{n}") for n in range(1200)]
    line = Line(*old)
    seen = {r.key for r in old}
    sizes = []
    for told in line.applier.replace(Replacement(new, "99", False), 7.0):
        sizes.append(len(told))
        for n in told:
            seen.discard(n.key) if n.type is ChangeType.DELETED else seen.add(n.key)
        assert seen == set(line.store.list_keys())
    assert sizes == [500, 200, 500, 500, 200]
    assert seen == {r.key for r in new}


@pytest.mark.client_go(172)
def test_the_version_of_the_store_does_not_go_back_during_a_relist():
    """Objects in a list are older than the list (client-go 172)."""
    line = Line(record("a", 50))
    for _ in line.applier.replace(Replacement([record("b", 3), record("a", 50)], "60", False), 7.0):
        assert line.store.last_store_sync_resource_version == "50"
    assert line.store.last_store_sync_resource_version == "60"


@pytest.mark.parametrize("queue", [RealFIFO, DeltaFIFO])
def test_what_a_relist_finds_is_counted(queue):
    """Somebody can see how much was told by lists, of which the changes in between are not known."""
    line = QueuedLine(make=lambda known: queue() if queue is RealFIFO else queue(known))
    line.queue.replace([record("a", 1), record("b", 2), record("c", 3)], "3")
    line.drained()
    assert line.differences == RelistDifferences()
    line.queue.update(record("a", 4))
    line.queue.delete(record("b", 5))
    line.drained()
    assert line.differences == RelistDifferences()
    line.queue.replace([record("a", 9), record("c", 3), record("d", 8), record("e", 9)], "9")
    line.drained()
    assert line.differences == RelistDifferences(added=2, modified=1)
    line.queue.replace([record("a", 9), record("d", 12, uid="another")], "12")
    line.drained()
    assert line.differences == RelistDifferences(added=3, modified=1, deleted=3)


@pytest.mark.client_go("Store RV")
def test_the_version_of_the_store_does_not_go_back_with_a_delta_fifo():
    """It gives changes by key, and at a resync what has not changed for long."""
    line = QueuedLine(make=DeltaFIFO)
    line.queue.update(record("a", 1))
    line.queue.update(record("b", 2))
    line.queue.update(record("a", 10))
    line.drained()
    reached = [line.store.last_store_sync_resource_version]
    line.queue.resync()
    line.drained()
    reached.append(line.store.last_store_sync_resource_version)
    assert reached == ["10", "10"]


def test_an_object_without_a_version_is_told_when_it_has_changed_and_not_when_it_comes_again():
    """Servers without versions bring everything again with each list: only differences are changes."""
    before, same = record("a", "", node="n1"), record("a", "", node="n1")
    line = Line(before)
    assert line.replace(same) == []
    otherwise = msgspec.structs.replace(same, frame=same.layout.codec.decode(same.frame))
    assert line.replace(otherwise) == [], "the same object, in a frame that is not compressed"
    assert shown(line.replace(record("a", "", node="n2"))) == ["Modified a  Relist"]


def test_an_unreadable_object_that_comes_again_is_no_change():
    """Its content can't be compared; its version says that it is the same."""
    projection = fresh_projection()
    stored, again = (projection.record(deep_pod("a", "5")) for _ in range(2))
    line = Line(stored)
    assert line.replace(again) == []
    assert line.versions == {"a": "5"}
