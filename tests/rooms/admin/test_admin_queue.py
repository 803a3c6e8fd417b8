"""What waits for a handler, on the admin address: the list, its limit, and who may see it."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from declctl.kit.pending import ItemState
from declctl.runtime.handling.queue_listing import ListedItem, QueueListing
from tests.rooms.admin.conftest import EVERYWHERE

THEN = datetime(2026, 1, 2, 2, tzinfo=UTC)
LISTING = QueueListing(
    handler="notify",
    mode="Event",
    waiting=1233,
    running=0,
    backing_off=1,
    unmapped=0,
    left_out=1233,
    items=[
        ListedItem(
            key="default/web-0",
            state=ItemState.BACKING_OFF,
            type="Modified",
            priority=None,
            since=THEN,
            attempts=2,
            due=THEN,
            last_error_type="KeyError",
            generation=None,
            again=False,
        )
    ],
)


def test_what_waits_is_listed(ask: Callable, runtime) -> None:
    """The counts, how many are left out, and what is known of each item."""
    runtime.told_queues = {"notify": LISTING}
    answer = ask("/queue/notify")
    assert (answer.status, answer.json) == (
        200,
        {
            "handler": "notify",
            "mode": "Event",
            "waiting": 1233,
            "running": 0,
            "backingOff": 1,
            "unmapped": 0,
            "leftOut": 1233,
            "items": [
                {
                    "key": "default/web-0",
                    "state": "BackingOff",
                    "type": "Modified",
                    "priority": None,
                    "since": "2026-01-02T02:00:00Z",
                    "attempts": 2,
                    "due": "2026-01-02T02:00:00Z",
                    "lastErrorType": "KeyError",
                    "generation": None,
                    "again": False,
                }
            ],
        },
    )
    assert ask("/queue/notify?limit=1000").status == 200
    assert runtime.asked_queues == [("notify", 100), ("notify", 1000)]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "1.5", "x", "", "9" * 100])
def test_a_limit_is_a_number_up_to_a_thousand(ask: Callable, runtime, limit: str) -> None:
    """Anything else is refused with the range, before the queue is read."""
    answer = ask(f"/queue/notify?limit={limit}")
    assert answer.status == 400
    assert answer.json["error"].endswith("is no number from 1 to 1,000.")
    assert not runtime.asked_queues


def test_an_unknown_handler_is_told_which_there_are(ask: Callable) -> None:
    """404 with the names of the manifest."""
    answer = ask("/queue/nobody")
    assert answer.status == 404
    assert answer.json["error"] == "No handler is named nobody; the manifest declares notify."


def test_there_is_no_queue_before_the_first_generation(ask: Callable, runtime) -> None:
    """503: ask again in a moment."""
    runtime.say(generation=0)
    assert ask("/queue/notify").status == 503


def test_a_queue_is_behind_the_token(ask: Callable, runtime) -> None:
    """Its keys are names of objects, as those of `/cache`."""
    runtime.told_queues = {"notify": replace(LISTING)}
    assert ask("/queue/notify", address=EVERYWHERE).status == 403
    assert ask("/queue/notify", token="secret").status == 401
    assert not runtime.asked_queues
