"""Schedules on the admin address: a call on request, and the metrics."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from declctl.admin.access import redacted
from declctl.admin.metrics import StatusCollector
from declctl.runtime.scheduling.schedules import RunOutcome, ScheduleStatistics, TriggerResult

NIGHT = datetime(2026, 1, 2, 2, tzinfo=UTC)
NIGHTLY = ScheduleStatistics(
    name="nightly",
    generation=6,
    next_run=NIGHT,
    last_run=None,
    last_outcome=RunOutcome.FAILED,
    last_success=None,
    last_seconds=0.5,
    succeeded=3,
    failed=2,
    skipped=1,
    running=0,
    zombies=0,
    last_error="KeyError: 'secret'",
    last_error_type="KeyError",
)


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
    assert answer.status == status
    assert runtime.triggered == ["nightly"]
    assert answer.json["message" if status == 202 else "error"]


def test_the_figures_of_schedules_are_metrics(runtime) -> None:
    """An alert can say that no night has succeeded lately; what is not known yet is absent."""
    status = replace(runtime.now, schedules=[NIGHTLY])
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in StatusCollector(lambda: status, {}).collect()
        for sample in family.samples
    }
    assert found["declctl_schedule_results_total", "nightly", "failed"] == 2
    assert found["declctl_schedule_results_total", "nightly", "skipped"] == 1
    assert found["declctl_schedule_next_run_timestamp_seconds", "nightly"] == NIGHT.timestamp()
    assert ("declctl_schedule_last_success_timestamp_seconds", "nightly") not in found


def test_without_the_token_a_schedule_has_times_and_no_texts(runtime) -> None:
    """An exception may name a secret; the class of it, and the times, may not."""
    (shown,) = redacted(replace(runtime.now, schedules=[NIGHTLY]).document())["schedules"]
    assert (shown["name"], shown["nextRun"]) == ("nightly", "2026-01-02T02:00:00Z")
    assert (shown["lastOutcome"], shown["lastError"]) == ("Failed", "KeyError")
