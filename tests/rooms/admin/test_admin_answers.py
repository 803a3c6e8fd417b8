"""What is asked and ordered on the admin address: answers, refusals in sentences, and who may ask."""

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from declctl.admin import serve
from declctl.admin.access import redacted
from declctl.admin.metrics import StatusCollector
from declctl.errors import Forbidden, NotFound, UsageError
from declctl.kit import ManualClock
from declctl.kit.pending import ItemState
from declctl.objects import FieldPathError
from declctl.runtime.handling.dead_letters import DeadLetter, RequeueResult
from declctl.runtime.handling.queue_listing import ListedItem, QueueListing
from declctl.runtime.log import LogLevelControl
from declctl.runtime.reporting.why import ExplainedWrite, OwnedField, WriteExplanation
from declctl.runtime.scheduling.schedules import TriggerResult
from declctl.testing import Logged
from tests.rooms.admin.conftest import EVERYWHERE, GUARDED, LOOPBACK, NIGHTLY, NOTIFY, request, values_of

THEN = datetime(2026, 1, 2, 2, tzinfo=UTC)
WRITE = ExplainedWrite(
    time=THEN,
    verb="apply",
    result="succeeded",
    manager="declctl/guard/web",
    handler="web",
    generation=3,
    called_for="team-a/shop",
    request_id="r1",
    causes=("Modified webapps team-a/shop (Watch)",),
    resource_version="7",
    seconds=0.01,
    retries=0,
    error="",
)
FOUND = WriteExplanation(
    kind="v1 ConfigMap",
    resource="configmaps",
    key="team-a/settings",
    exists=True,
    uid="u",
    resource_version="9",
    fields=(OwnedField("data.a", "declctl/guard/web", "Apply", "", "2026-01-02T02:00:00Z", "web", WRITE),),
    writes=(WRITE,),
)
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


@pytest.fixture(name="applied")
def _applied(runtime) -> list[str]:
    """The levels that the process was given."""
    applied: list[str] = []
    runtime.log_level = LogLevelControl("info", applied.append)
    return applied


@pytest.fixture(name="asked")
def _asked(runtime, applied) -> Callable[[], list]:
    """What the controller was asked for; it has an answer to everything."""
    runtime.told_running = SimpleNamespace(document=lambda: {"generation": 6})
    runtime.told_why, runtime.told_queues, runtime.told_letters = FOUND, {"notify": LISTING}, [LETTER]
    return lambda: runtime.asked_why + runtime.asked_queues + runtime.requeued + runtime.triggered + applied


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *GUARDED,
        *(("GET", path) for path in ("/plan", "/why/configmaps/a/b", "/queue/notify", "/deadletters")),
        *(("POST", path) for path in ("/-/requeue?all=true", "/-/loglevel?level=debug")),
    ],
)
def test_names_texts_and_orders_are_behind_the_token(
    ask: Callable, runtime, asked, method: str, path: str
) -> None:
    """On other addresses than loopback there has to be one, and where there is one it is needed.

    In a cluster nobody reads Secrets or reloads through an address that was opened for probes; a token counts
    on a machine that others use, too. That of `kubectl create secret --from-file` may end in a newline.
    """
    for given in ({}, {"Authorization": "Bearer "}):
        answer = ask(path, method=method, address=EVERYWHERE, **given)
        assert answer.status == 403
        assert "DECLCTL_ADMIN_TOKEN" in answer.json["error"]
    for address in (EVERYWHERE, LOOPBACK):
        assert ask(path, method=method, address=address, token="right").status == 401
    assert (asked(), runtime.reloads) == ([], 0)
    for address in (EVERYWHERE, LOOPBACK):
        shown = ask(path, method=method, address=address, token="right\n", Authorization="Bearer right")
        assert shown.status == (404 if path == "/cache/pods/a" else 200)


@pytest.mark.parametrize("path", ["/plan", "/why/configmaps/a/b", "/queue/notify"])
def test_before_the_first_generation_the_answer_is_to_wait(ask: Callable, runtime, path: str) -> None:
    """The names of the manifest are not known yet."""
    runtime.say(generation=0)
    answer = ask(path)
    assert answer.status == 503
    assert "starting" in answer.json["error"]


def test_the_plan_and_the_cache_are_read(ask: Callable, asked) -> None:
    """What `declctl plan` compares with; keys, an object as handlers see it, and what an index has."""
    assert ask("/plan").json == {"generation": 6}
    keys = ["default/web-1", "team-a/web-2"]
    assert ask("/cache/pods").json == {"resource": "pods", "count": 2, "keys": keys}
    assert ask("/cache/pods?namespace=team-a").json["keys"] == ["team-a/web-2"]
    assert ask("/cache/pods/team-a/web-2").json["spec"] == {"nodeName": "node-1"}
    assert ask("/index/pods/byNode/node-1").json["keys"] == ["team-a/web-2"]
    assert ask("/index/pods/byNode/").json["values"] == ["node-1", "node-2"]


NOBODY = "No handler is named nobody; the manifest declares notify."


@pytest.mark.parametrize(
    ("order", "status", "told"),
    [
        ("GET /cache/nodes", 404, "the manifest declares pods"),
        ("GET /cache/nodes/a", 404, "the manifest declares pods"),
        ("GET /index/nodes/byNode/a", 404, "the manifest declares pods"),
        ("GET /cache/pods/default/gone", 404, "a key is namespace/name"),
        ("GET /index/pods/byTeam/a", 404, "there is: byNode"),
        ("GET /cache/pods?labelSelector=((", 400, "labelSelector: "),
        ("GET /deadletters?handler=nobody", 404, NOBODY),
        *(
            (f"GET /queue/notify?limit={limit}", 400, "is no number from 1 to 1,000.")
            for limit in ("0", "1001", "-1", "1.5", "x", "", "9" * 100)
        ),
        ("POST /-/requeue?", 400, "Name a handler"),
        ("POST /-/requeue?all=no", 400, "Name a handler"),
        ("POST /-/loglevel?", 400, "level: '' is none of debug, info, warning, error."),
        ("POST /-/loglevel?level=loud", 400, "level: 'loud' is none of debug, info, warning, error."),
        ("POST /-/loglevel?level=debug&for=soon", 400, 'for: "soon" is not a duration'),
        ("POST /-/loglevel?level=debug&for=10ms", 400, "for: write a duration from 1s to 24h."),
        ("POST /-/loglevel?level=debug&for=25h", 400, "for: write a duration from 1s to 24h."),
    ],
)
def test_what_there_is_not_is_told(ask: Callable, asked, order: str, status: int, told: str) -> None:
    """A name that the manifest or the cache doesn't have, and a parameter that can't be read."""
    method, path = order.split()
    answer = ask(path, method=method)
    assert answer.status == status
    error = answer.json["error"]
    assert error.startswith(told) if method == "POST" else told in error
    assert asked() == []


WHY, REQUEUE = "GET /why/configmaps/team-a/settings", "POST /-/requeue?handler="


@pytest.mark.parametrize(
    ("order", "result", "status", "told"),
    [
        ("GET /queue/nobody", None, 404, NOBODY),
        (WHY, UsageError("'a b' is no name of a resource"), 400, "'a b' is no name of a resource"),
        (WHY, FieldPathError("'spec[' has a bracket without its end", 5), 400, "bracket"),
        (WHY, NotFound(404, "NotFound", "the server serves no shoes"), 404, "serves no shoes"),
        (WHY, Forbidden(403, "Forbidden", "may not get"), 502, "may not get"),
        (WHY, replace(FOUND, exists=False, fields=(), writes=()), 404, "The cluster has no v1 ConfigMap"),
        (f"{REQUEUE}notify&key=a/b", {RequeueResult.PENDING: 1}, 409, "A newer change of a/b waits or runs"),
        (f"{REQUEUE}notify&key=a/b", {RequeueResult.NONE: 1}, 404, "notify has no dead letter of a/b;"),
        (f"{REQUEUE}notify", {}, 404, "notify has no dead letter;"),
        (f"{REQUEUE}nobody", {}, 404, NOBODY),
        (f"{REQUEUE}notify", None, 503, "The process ends"),
    ],
)
def test_what_the_controller_can_not_do_is_told(
    ask: Callable, runtime, asked, order: str, result, status: int, told: str
) -> None:
    """No such object or letter, a right that the controller lacks, a change that has to wait."""
    runtime.told_why, runtime.requeue_results = result, result
    method, path = order.split()
    answer = ask(path, method=method)
    assert answer.status == status
    error = answer.json["error"]
    assert error.startswith(told) if method == "POST" else told in error


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (TriggerResult.BEGUN, 202),
        (TriggerResult.BUSY, 409),
        (TriggerResult.UNKNOWN, 404),
        (TriggerResult.NOT_STARTED, 503),
    ],
)
def test_a_schedule_is_called_on_request(ask: Callable, runtime, result: TriggerResult, status: int) -> None:
    """The answer says whether the call has begun, and why not."""
    runtime.trigger_result = result
    answer = ask("/-/trigger?schedule=nightly", method="POST")
    assert (answer.status, runtime.triggered) == (status, ["nightly"])
    assert answer.json["message" if status == 202 else "error"]


def test_figures_of_schedules_and_dead_letters_are_metrics(runtime) -> None:
    """An alert can say that no night has succeeded lately; what is not known yet is absent."""
    runtime.say(schedules=[NIGHTLY], handlers=(replace(NOTIFY, dead_letters=4, dead_letters_dropped=2),))
    found = values_of(StatusCollector(runtime.status, {}).collect())
    expected = {
        ("declctl_schedule_results_total", "nightly", "failed"): 2,
        ("declctl_schedule_results_total", "nightly", "skipped"): 1,
        ("declctl_schedule_next_run_timestamp_seconds", "nightly"): THEN.timestamp(),
        ("declctl_handler_dead_letters", "notify"): 4,
        ("declctl_handler_dead_letters_dropped_total", "notify"): 2,
    }
    assert expected.items() <= found.items()
    assert ("declctl_schedule_last_success_timestamp_seconds", "nightly") not in found


def test_without_the_token_a_schedule_has_times_and_no_texts(runtime) -> None:
    """An exception may name a secret; the class of it, and the times, may not."""
    (shown,) = redacted(replace(runtime.now, schedules=[NIGHTLY]).document())["schedules"]
    assert (shown["name"], shown["nextRun"]) == ("nightly", "2026-01-02T02:00:00Z")
    assert (shown["lastOutcome"], shown["lastError"]) == ("Failed", "KeyError")


def test_why_has_fields_and_writes(ask: Callable, runtime, asked) -> None:
    """Each field with its manager, its handler, its generation and the cause of the call."""
    answer = ask("/why/configmaps/team-a/settings?field=data.a")
    (field,), (write,) = answer.json["fields"], answer.json["writes"]
    assert (field["path"], field["handler"], field["write"]["generation"]) == ("data.a", "web", 3)
    assert field["write"]["causes"] == ["Modified webapps team-a/shop (Watch)"]
    assert (write["calledFor"], write["time"]) == ("team-a/shop", "2026-01-02T02:00:00Z")
    # A resource may have its group and version, as kubectl's full form, whose slashes are escaped.
    assert (answer.status, ask("/why/apps%2Fv1%2Fdeployments/team-a/web").status) == (200, 200)
    assert asked() == [("configmaps", "team-a/settings", "data.a"), ("apps/v1/deployments", "team-a/web", "")]
    # Of an object that is gone, the delete is a write.
    runtime.told_why = replace(FOUND, exists=False, fields=())
    assert ask("/why/configmaps/team-a/settings").status == 200


def test_what_waits_is_listed(ask: Callable, runtime, asked) -> None:
    """The counts, how many are left out, and what is known of each item."""
    then = "2026-01-02T02:00:00Z"
    item = {
        "key": "default/web-0",
        "state": "BackingOff",
        "type": "Modified",
        "priority": None,
        "since": then,
    }
    item |= {"attempts": 2, "due": then, "lastErrorType": "KeyError", "generation": None, "again": False}
    counts = {"waiting": 1233, "running": 0, "backingOff": 1, "unmapped": 0, "leftOut": 1233}
    answer = ask("/queue/notify")
    expected = {"handler": "notify", "mode": "Event", **counts, "items": [item], "writeLoops": []}
    assert (answer.status, answer.json) == (200, expected)
    assert ask("/queue/notify?limit=1000").status == 200
    assert runtime.asked_queues == [("notify", 100), ("notify", 1000)]


def test_the_letters_are_listed(ask: Callable, runtime) -> None:
    """With all that is known of each; one handler's on request."""
    runtime.told_letters = [LETTER, replace(LETTER, handler="audit")]
    assert ask("/deadletters").json["count"] == 2
    error, then = "KeyError: 'secret'", "2026-01-02T02:00:00Z"
    letter = {"handler": "notify", "key": "default/web-0", "type": "Modified", "error": error, "changes": 2}
    letter |= {"errorType": "KeyError", "traceback": f"Traceback: {error}", "attempts": 5, "generation": 6}
    letter |= {"firstFailedAt": then, "failedAt": then}
    assert ask("/deadletters?handler=notify").json == {"count": 1, "deadLetters": [letter]}


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


def test_of_several_letters_those_that_wait_are_counted(ask: Callable, runtime) -> None:
    """Newer changes of some keys go first: the others are requeued."""
    runtime.requeue_results = {RequeueResult.REQUEUED: 3, RequeueResult.PENDING: 2}
    answer = ask("/-/requeue?all=true", method="POST")
    told = "3 requeued; 2 not, as newer changes of their keys wait or run"
    assert (answer.status, answer.json["message"]) == (200, told)


def test_the_level_is_changed(ask: Callable, runtime, applied: list[str]) -> None:
    """The answer has the level before and the new one."""
    answer = ask("/-/loglevel?level=debug", method="POST")
    told = {"message": "the log level is debug, and was info", "before": "info"}
    assert (answer.status, answer.json) == (200, {**told, "level": "debug", "until": None})
    assert ask("/-/loglevel?level=WARNING", method="POST").json["before"] == "debug"
    assert ask("/-/loglevel?level=debug").status == 405  # GET changes nothing
    assert applied == ["debug", "warning"]
    runtime.log_level = None  # in a process that uses the runtime as a library
    assert ask("/-/loglevel?level=debug", method="POST").status == 409


async def test_a_level_for_a_time_is_set_back(runtime, applied: list[str]) -> None:
    """By the clock; a later request replaces the time, and each change is a line with its reason."""
    clock, log = ManualClock(), Logged()
    async with serve(runtime, LOOPBACK, clock=clock, log=log) as bound:

        async def order(query: str) -> dict:
            return (await request(bound, f"/-/loglevel?{query}", method="POST")).json

        answer = await order("level=debug&for=10m")
        assert answer["message"] == "the log level is debug, and was info; info again in 10m"
        assert answer["until"] == "2026-01-01T00:10:00Z"
        changed = runtime.log_level.changed
        assert (changed.level, changed.start) == ("debug", "info")
        await clock.advance(599)
        assert applied == ["debug"]
        await clock.advance(1)
        assert applied == ["debug", "info"]
        assert runtime.log_level.changed is None
        await order("level=error&for=10m")
        await order("level=warning")
        await clock.advance(3600)
        assert applied == ["debug", "info", "error", "warning"]
    said = [line.event for line in log.lines if "log level" in line.event]
    assert said == [
        "the log level is debug from now on, and was info: 127.0.0.1 asked for it; info again in 10m",
        "the log level is info from now on, and was debug: its time is over",
        "the log level is error from now on, and was info: 127.0.0.1 asked for it; info again in 10m",
        "the log level is warning from now on, and was error: 127.0.0.1 asked for it",
    ]


def test_the_status_has_a_level_that_is_not_that_of_the_start(ask: Callable, runtime, applied) -> None:
    """Also without the token: it is no secret."""
    assert ask("/status").json["logLevel"] is None
    runtime.log_level.change("debug")
    runtime.say(log_level=runtime.log_level.changed)
    found = {"level": "debug", "start": "info", "until": None}
    assert ask("/status").json["logLevel"] == found
    assert ask("/status", token="secret").json["logLevel"] == found
