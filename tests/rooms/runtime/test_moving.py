"""A handler moves from some caches to others: what it hears, and when it may move (G15)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects import ChangeType
from declctl.runtime.handling.moving import Move
from tests.rooms.runtime.conftest import make_record
from tests.rooms.runtime.moving_caches import MadeUpCache, begun


def _told(gone, come):
    return [(str(n.type), n.key, str(n.reason)) for n in begun(Move(gone, come)).told]


def test_only_true_differences_are_told(record) -> None:
    """New is Added, newer Modified, gone Deleted with OutOfScope, equal nothing."""
    before = MadeUpCache(record("same", version=1), record("newer", version=2), record("gone", version=3))
    after = MadeUpCache(record("same", version=1), record("newer", version=5), record("new", version=4))
    assert _told([before], [after]) == [
        ("Modified", "default/newer", "Relist"),
        ("Deleted", "default/gone", "OutOfScope"),
        ("Added", "default/new", "Initial"),
    ]


def test_an_object_that_was_made_again_is_two_changes(record) -> None:
    """Another uid under the same name: Deleted, then Added."""
    before, after = MadeUpCache(record("a", uid="1")), MadeUpCache(record("a", uid="2"))
    assert [row[0] for row in _told([before], [after])] == ["Deleted", "Added"]


def test_nothing_goes_back_in_time(record) -> None:
    """A new cache that is older than the old one takes nothing back."""
    assert _told([MadeUpCache(record("a", version=9))], [MadeUpCache(record("a", version=8))]) == []


def test_what_happens_meanwhile_is_compared_as_it_comes(record) -> None:
    """Nothing is left to compare when the handler moves; then the caches tell the move no more."""
    before, after = MadeUpCache(record("a", version=1)), MadeUpCache(record("a", version=1))
    move = begun(Move([before], [after]))
    assert move.told == []
    after.put(record("a", version=2))
    assert [n.type for n in move.told] == [ChangeType.MODIFIED]
    before.put(record("a", version=2))
    assert move.told == []
    before.put(record("b", version=3))
    assert [(n.type, n.key) for n in move.told] == [(ChangeType.DELETED, "default/b")]
    before.remove("default/b")
    assert move.told == []
    move.close()
    assert before.listeners == after.listeners == []


def test_caches_that_stay_are_not_compared(record) -> None:
    """Namespaces of several: one that is watched before and after tells the same before and after."""
    stays, goes = MadeUpCache(record("a", version=1)), MadeUpCache(record("b", version=1, namespace="b"))
    assert _told([stays, goes], [stays]) == [("Deleted", "b/b", "OutOfScope")]


@pytest.mark.parametrize(
    ("before", "after", "behind"),
    [
        ([("a", 5)], [("a", 5)], False),
        ([("a", 5)], [("a", 4)], True),
        ([("a", 5)], [("a", 6)], False),
        ([("a", 1005)], [], True),  # made after what the new cache has seen
        ([("a", 5)], [], False),  # deleted: the new cache has seen more
        ([], [("a", 5)], True),  # deleted in the old cache, not yet in the new one
        ([], [("a", 1005)], False),  # made after what the old cache has seen
    ],
)
def test_a_cache_that_has_to_catch_up_is_waited_for(before, after, behind, record) -> None:
    """Two watches of the same scope: the new one may not lack what the old one has told."""
    gone = MadeUpCache(*(record(name, version=version) for name, version in before))
    come = MadeUpCache(*(record(name, version=version) for name, version in after))
    assert begun(Move([gone], [come])).is_behind is behind


def test_it_is_not_behind_any_longer_when_it_has_caught_up(record) -> None:
    """By an event of that object, or by the version that the cache is at."""
    gone = MadeUpCache(record("a", version=5), record("b", version=1005), record("c", version=3))
    come = MadeUpCache(record("a", version=4), record("c", version=3), record("d", version=2))
    move = begun(Move([gone], [come]))
    assert move.is_behind
    come.put(record("a", version=5))
    assert move.is_behind
    come.at(1005)  # b was deleted again before this cache has seen it
    assert move.is_behind
    come.remove("default/d")
    assert not move.is_behind
    gone.remove("default/c")
    assert move.is_behind
    come.remove("default/c")
    assert not move.is_behind


def test_what_is_only_in_the_new_scope_is_not_waited_for(record) -> None:
    """Namespaces are widened: objects that the old watch never saw are no sign of a delay."""
    gone, come = MadeUpCache(namespace="a"), MadeUpCache(record("x", version=5, namespace="b"))
    assert not begun(Move([gone], [come])).is_behind


def test_what_is_only_in_the_old_scope_is_not_waited_for(record) -> None:
    """Namespaces are narrowed: objects that the new watch will never see are no sign of a delay."""
    gone, come = MadeUpCache(record("x", version=2000, namespace="b")), MadeUpCache(namespace="a")
    assert not begun(Move([gone], [come])).is_behind


_EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "remove", "remake"])), max_size=15
)
_STEPS = st.lists(st.sampled_from(["old", "new"]), max_size=40)


def _history(events):
    """What a server tells, each with its version: the object, or None where it is gone."""
    uids, live = dict.fromkeys("abc", 0), set()
    for version, (name, what) in enumerate(events, 1):
        if what == "remove" and name not in live:
            continue
        if what == "remake" and name in live:
            uids[name] += 1
        if what == "remove":
            live.remove(name)
            uids[name] += 1
            yield version, f"default/{name}", None
        else:
            live.add(name)
            yield version, f"default/{name}", make_record(name, uid=f"{name}{uids[name]}", version=version)


@pytest.mark.guarantee("G15")
@given(events=_EVENTS, head_start=st.integers(0, 15), steps=_STEPS, begins=st.integers(0, 40))
def test_a_handler_that_moves_knows_what_the_new_cache_holds(events, head_start, steps, begins) -> None:
    """Two watches of one server get on at different times; what is told closes exactly the gap between them.

    Once the new one is not behind, nothing that is told is older than what the handler knew.
    """
    history = list(_history(events))
    old, new = MadeUpCache(seen=0), MadeUpCache(seen=0)
    positions = {id(old): 0, id(new): 0}

    def advance(cache):
        if positions[id(cache)] < len(history):
            version, key, record = history[positions[id(cache)]]
            positions[id(cache)] += 1
            cache.remove(key) if record is None else cache.put(record)
            cache.at(version)

    for _ in range(head_start):
        advance(old)
    move = Move([old], [new])
    for number, step in enumerate(steps):
        if number == begins:
            begun(move)
        advance(old if step == "old" else new)
    if begins >= len(steps):
        begun(move)
    while move.is_behind:
        assert positions[id(new)] < len(history)  # it waits for something that comes
        advance(new)
    knows = {key: record.revision for key, record in old.store.items()}
    for n in move.told:
        if n.type == ChangeType.DELETED:
            assert knows.pop(n.key) == n.record.revision
        elif n.type == ChangeType.ADDED:
            assert n.key not in knows
            knows[n.key] = n.record.revision
        else:
            assert n.old is not None
            assert knows[n.key] == n.old.revision
            knows[n.key] = n.record.revision
    assert knows == {key: record.revision for key, record in new.store.items()}
