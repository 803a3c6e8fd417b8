"""A handler moves from some caches to others: what it hears (G15). When it may move: `test_freshness`."""

from declctl.objects import ChangeType
from declctl.runtime.handling.relocation import Move
from tests.rooms.runtime.moving_caches import CLOCK, MadeUpCache, begun


def _told(gone, come):
    return [(str(n.type), n.key, str(n.reason)) for n in begun(Move(gone, come, clock=CLOCK)).notifications]


def test_only_true_differences_are_told(record) -> None:
    """New is Added, newer Modified, gone Deleted with OutOfScope, equal nothing."""
    before = MadeUpCache(record("same", version=1), record("newer", version=2), record("gone", version=3))
    after = MadeUpCache(record("same", version=1), record("newer", version=5), record("new", version=4))
    assert _told([before], [after]) == [
        ("Modified", "default/newer", "Relist"),
        ("Deleted", "default/gone", "OutOfScope"),
        ("Added", "default/new", "Initial"),
    ]


def test_differences_have_the_time_at_which_they_were_found(record) -> None:
    """`change.received_at` is a time of today, whatever makes the change."""
    before = MadeUpCache(record("newer", version=2), record("gone", version=3))
    after = MadeUpCache(record("newer", version=5), record("new", version=4))
    notifications = begun(Move([before], [after], clock=CLOCK)).notifications
    assert [n.received_at for n in notifications] == [CLOCK.now().timestamp()] * 3


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
    move = begun(Move([before], [after], clock=CLOCK))
    assert move.notifications == []
    after.put(record("a", version=2))
    assert [n.type for n in move.notifications] == [ChangeType.MODIFIED]
    before.put(record("a", version=2))
    assert move.notifications == []
    before.put(record("b", version=3))
    assert [(n.type, n.key) for n in move.notifications] == [(ChangeType.DELETED, "default/b")]
    before.remove("default/b")
    assert move.notifications == []
    move.close()
    assert before.listeners == after.listeners == []


def test_caches_that_stay_are_not_compared(record) -> None:
    """Namespaces of several: one that is watched before and after tells the same before and after."""
    stays, goes = MadeUpCache(record("a", version=1)), MadeUpCache(record("b", version=1, namespace="b"))
    assert _told([stays, goes], [stays]) == [("Deleted", "b/b", "OutOfScope")]
