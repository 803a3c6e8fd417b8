"""The id of an event: what a handler, the log, a trace and the ledger of writes call it."""

from declctl.objects import Change, ChangeReason, ChangeType, ObjectView, event_id_of
from declctl.writes.writer import CallScope, origin_of
from tests.rooms.runtime.conftest import make_record


def test_the_id_of_a_change_names_the_object_and_its_version() -> None:
    """The same for all handlers and attempts; another version is another event."""
    record = make_record("web", uid="uid-1", version=7)
    change = Change(
        type=ChangeType.ADDED,
        resource="pods",
        obj=ObjectView(record),
        old=None,
        initial=False,
        final_state_unknown=False,
        reason=ChangeReason.WATCH,
        generation=1,
        received=0.0,
    )
    assert change.id == event_id_of(record) == "uid-1@7"
    assert event_id_of(make_record("web", uid="uid-1", version=8)) != change.id


def test_a_write_has_the_id_of_what_its_call_is_for() -> None:
    """That of the change, or of the request; a life-cycle hook is called for nothing."""
    obj = ObjectView(make_record("web", uid="uid-1", version=7))
    assert origin_of("h", 1, CallScope("default/web", obj)).request_id == "uid-1@7"
    assert origin_of("h", 1, CallScope("default/web", obj, "r1")).request_id == "r1"
    assert origin_of("h", 1, CallScope("default/web", None, "r1")).request_id == "r1"
    assert origin_of("h", 1, CallScope()).request_id == ""
