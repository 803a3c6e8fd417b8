"""Dead letters on the admin address: the list, and requests to queue them again."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from declctl.admin.metrics import StatusCollector
from declctl.runtime.handling.dead_letters import DeadLetter, RequeueResult
from tests.rooms.admin.conftest import EVERYWHERE, NOTIFY

THEN = datetime(2026, 1, 2, 2, tzinfo=UTC)
LETTER = DeadLetter(
    handler="notify",
    key="default/web-0",
    type="Modified",
    error="KeyError: 'secret'",
    error_type="KeyError",
    traceback="Traceback: KeyError: 'secret'",
    attempts=5,
    first_failed_at=THEN,
    failed_at=THEN,
    generation=6,
    changes=2,
)


def test_the_letters_are_listed(ask: Callable, runtime) -> None:
    """With all that is known of each; one handler's on request."""
    runtime.told_letters = [LETTER, replace(LETTER, handler="audit")]
    assert ask("/deadletters").json["count"] == 2
    listed = ask("/deadletters?handler=notify").json
    assert listed == {
        "count": 1,
        "deadLetters": [
            {
                "handler": "notify",
                "key": "default/web-0",
                "type": "Modified",
                "error": "KeyError: 'secret'",
                "errorType": "KeyError",
                "traceback": "Traceback: KeyError: 'secret'",
                "attempts": 5,
                "firstFailedAt": "2026-01-02T02:00:00Z",
                "failedAt": "2026-01-02T02:00:00Z",
                "generation": 6,
                "changes": 2,
            }
        ],
    }
    unknown = ask("/deadletters?handler=nobody")
    assert (unknown.status, unknown.json["error"]) == (
        404,
        "No handler is named nobody; the manifest declares notify.",
    )


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("handler=notify&key=default/web-0", ("notify", "default/web-0")),
        ("handler=notify", ("notify", None)),
        ("all=true", (None, None)),
    ],
)
def test_letters_are_requeued_on_request(ask: Callable, runtime, query: str, asked: tuple) -> None:
    """One, those of a handler, or all; the answer says how many."""
    answer = ask(f"/-/requeue?{query}", method="POST")
    assert (answer.status, answer.json) == (200, {"message": "1 requeued", "requeued": 1, "pending": 0})
    assert runtime.requeued == [asked]


@pytest.mark.parametrize(
    ("query", "results", "status", "words"),
    [
        ("handler=notify&key=a/b", {RequeueResult.PENDING: 1}, 409, "A newer change of a/b waits or runs"),
        ("handler=notify&key=a/b", {RequeueResult.NONE: 1}, 404, "notify has no dead letter of a/b;"),
        ("handler=notify", {}, 404, "notify has no dead letter;"),
        ("handler=nobody", {}, 404, "No handler is named nobody; the manifest declares notify."),
        ("handler=notify", None, 503, "The process ends"),
        ("", {}, 400, "Name a handler"),
        ("all=no", {}, 400, "Name a handler"),
    ],
)
def test_a_request_that_requeues_nothing_says_why(
    ask: Callable, runtime, query: str, results: dict | None, status: int, words: str
) -> None:
    """Each refusal is a sentence."""
    runtime.requeue_results = results
    answer = ask(f"/-/requeue?{query}", method="POST")
    assert answer.status == status
    assert answer.json["error"].startswith(words)


def test_of_several_letters_those_that_wait_are_counted(ask: Callable, runtime) -> None:
    """Newer changes of some keys go first: the others are requeued."""
    runtime.requeue_results = {RequeueResult.REQUEUED: 3, RequeueResult.PENDING: 2}
    answer = ask("/-/requeue?all=true", method="POST")
    assert answer.status == 200
    assert answer.json["message"] == "3 requeued; 2 not, as newer changes of their keys wait or run"


@pytest.mark.parametrize(("path", "method"), [("/deadletters", "GET"), ("/-/requeue?all=true", "POST")])
def test_letters_are_behind_the_token(ask: Callable, runtime, path: str, method: str) -> None:
    """They have texts of exceptions, and a requeue changes state: as reads of the cache and triggers."""
    assert ask(path, method=method, address=EVERYWHERE).status in (401, 403)
    assert ask(path, method=method, token="secret").status in (401, 403)
    assert not runtime.requeued


def test_the_numbers_are_metrics(runtime) -> None:
    """An alert can say that there are dead letters, and that some were dropped."""
    runtime.say(handlers=(replace(NOTIFY, dead_letters=4, dead_letters_dropped=2),))
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in StatusCollector(runtime.status, {}).collect()
        for sample in family.samples
    }
    assert found["declctl_handler_dead_letters", "notify"] == 4
    assert found["declctl_handler_dead_letters_dropped_total", "notify"] == 2
