"""The figures of the last 15 minutes: how they are sampled, and `GET /figures`."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from declctl.kit import ManualClock
from declctl.kit.histogram import Histogram
from declctl.runtime.handling.handler_figures import HANDLER_BOUNDS
from declctl.runtime.reporting.recent_figures import SAMPLES, FigureKey, RecentFigures, marks
from declctl.runtime.reporting.status import Conditions, ControllerCondition, ControllerStatus
from tests.rooms.admin.conftest import HEALTHY, NOTIFY, PODS, WELL

START = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "s3cr3t"
CALLS = FigureKey("handlers", "notify", "callsPerSecond")


class Recording:
    """Samples of a handler `notify`, whose calls a test makes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.recent = RecentFigures(self.clock)
        self.status = WELL
        self._lag, self._duration, self._durations = Histogram(HANDLER_BOUNDS), Histogram(HANDLER_BOUNDS), []

    def calls(self, *seconds: float, lag: float = 0.002, failed: int = 0) -> None:
        """Calls that take so long, of which some have failed."""
        for each in seconds:
            self._duration.add(each)
            self._lag.add(lag)
        self._durations += seconds
        before = self.status.handlers[0]
        handler = replace(
            before,
            succeeded=before.succeeded + len(seconds) - failed,
            retried=before.retried + failed,
            lag=self._lag.figures(),
            duration=self._duration.figures(),
            durations=tuple(self._durations),
        )
        self.status = replace(self.status, handlers=(handler,))

    def sample(self, times: int = 1, **changes: object) -> None:
        """Take samples, ten seconds apart."""
        self.status = replace(self.status, **changes)
        for _ in range(times):
            self.clock.set(10.0)
            self.recent.sample(self.status)

    def of(self, figure: str, group: str = "handlers", name: str = "notify") -> list[float | None]:
        return list(self.recent.values(FigureKey(group, name, figure)))


def test_a_slow_minute_is_seen_where_it_was() -> None:
    """Each sample has the calls and percentiles of its own ten seconds, and the queue as it was."""
    recording = Recording()
    recording.calls(0.001)
    recording.sample()
    recording.calls(*[0.002] * 200, failed=50)
    recording.sample()
    recording.calls(0.002, 3.0, lag=4.0)
    recording.sample(resources=(replace(PODS, objects=7, events={"ADDED": 15, "BOOKMARK": 9}),))
    recording.sample()
    assert recording.of("callsPerSecond") == [None, 20.0, 0.2, 0.0]
    assert recording.of("unsuccessfulPerSecond") == [None, 5.0, 0.0, 0.0]
    assert recording.of("p99Seconds") == [0.001, 0.002, 3.0, None]
    assert recording.of("lagSeconds") == pytest.approx([0.002485, 0.002485, 4.975, None])
    assert recording.of("waiting") == [4.0] * 4
    assert recording.of("objects", "resources", "pods") == [2.0, 2.0, 7.0, 7.0]
    assert recording.of("eventsPerSecond", "resources", "pods") == [None, 0.0, 0.8, 0.0]


def test_handlers_come_and_go_with_reloads() -> None:
    """A new one begins at 0, also under an old name; what a removed one has shown stays for 15 minutes."""
    recording = Recording()
    recording.sample()
    recording.sample(handlers=())
    recording.sample(handlers=(replace(HEALTHY, succeeded=47),))
    recording.sample(handlers=(replace(HEALTHY, succeeded=17),))
    assert recording.of("callsPerSecond") == [None, None, 5.0, 2.0]
    recording.sample(SAMPLES - 1, handlers=())
    assert recording.recent.document([])["handlers"][0]["waiting"][:2] == [4.0, None]
    recording.sample()
    assert recording.recent.document([])["handlers"] == []


def test_fifteen_minutes_are_kept_and_no_more() -> None:
    """A process that runs for days has 90 samples, each with its time."""
    recording = Recording()
    recording.sample(3 * SAMPLES)
    document = recording.recent.document([])
    assert len(document["times"]) == len(document["handlers"][0]["running"]) == SAMPLES
    assert document["times"][-1] - document["times"][0] == pytest.approx((SAMPLES - 1) * 10)
    assert document["times"][-1] == recording.clock.now().timestamp()
    assert document["controller"]["waiting"] == [4.0] * SAMPLES


@pytest.mark.parametrize(
    ("seconds", "count", "over", "rate"),
    [
        (0.5, 52, 10, 40 / 10.5),  # the newest sample is too young: from the one before on
        (9.0, 57, 10, 45 / 19),
        (10.0, 32, 10, 2.0),
        (1.0, 57, 60, 45 / 11),  # nothing older is known
        (2.0, 3, 10, 1.5),  # a new handler under the name
    ],
)
def test_a_rate_is_the_mean_of_the_last_seconds(seconds: float, count: int, over: float, rate: float) -> None:
    """It is of this moment, and does not wait for the next sample."""
    recording = Recording()
    recording.sample(2)
    recording.clock.set(seconds)  # there were 12 calls so far
    assert recording.recent.rate(CALLS, count, over=over) == pytest.approx(rate)


def test_without_a_sample_there_is_no_rate() -> None:
    """A process that has just begun shows no figure that means nothing."""
    recording = Recording()
    assert recording.recent.rate(CALLS, 12) is None
    recording.recent.sample(recording.status)
    assert recording.recent.rate(CALLS, 12) is None
    assert recording.recent.document([])["controller"]["callsPerSecond"] == [None]


def test_reloads_and_conditions_are_marks() -> None:
    """Each at its time: what was tried, and what turned bad and good again; also between two samples."""
    clock = ManualClock()
    conditions = Conditions(clock)
    conditions.set("Degraded", holds=False, reason="AsExpected")
    for holds, reason in ((True, "ResourceError"), (False, "AsExpected")):
        clock.set(1.0)
        conditions.set("Degraded", holds=holds, reason=reason, message=SECRET)
    conditions.set("Reloaded", holds=True, reason="Started")
    conditions.set("Reloaded", holds=False, reason="Invalid")
    attempts = [
        {"time": "2026-01-01T00:00:00Z", "result": "Applied", "generation": 2, "reason": "Applied"},
        {"time": "2026-01-01T00:00:01Z", "result": "Superseded", "generation": 2, "reason": "Superseded"},
        {
            "time": "2026-01-01T00:00:02Z",
            "result": "Refused",
            "generation": 2,
            "reason": f"{SECRET} {SECRET}",
        },
        {"time": "2026-01-01T00:00:03Z", "result": "Refused", "generation": 2, "reason": "Invalid"},
    ]
    found = marks(replace(WELL, condition_changes=conditions.changes()), attempts)
    assert [((each.time - START).total_seconds(), each.text, each.good) for each in found] == [
        (0, "Generation 2 applied", True),
        (1, "Degraded is True: ResourceError", False),
        (2, "Degraded is False: AsExpected", True),
        (2, "Reload refused", False),
        (3, "Reload refused: Invalid", False),
    ]
    recent = RecentFigures(clock)
    assert recent.recent(found) == []
    clock.set(9.5)  # the first sample is of the ten seconds before it
    recent.sample(WELL)
    assert [each.time - START for each in recent.recent(found)] == [timedelta(seconds=s) for s in (2, 2, 3)]


def test_the_document_has_no_text_and_needs_no_token(ask: Callable, runtime) -> None:
    """It has the names and counts that `/status` shows to everybody; a wrong token is refused as there."""
    text = f"KeyError: {SECRET}"
    bad = ControllerCondition("Degraded", "True", "WriteLoop", SECRET, datetime.now(UTC))
    runtime.say(
        handlers=(replace(NOTIFY, last_error=text),),
        resources=(replace(PODS, error=text),),
        condition_changes=(bad,),
    )
    attempt = {"time": "2026-01-01T00:00:00Z", "result": "Refused", "reason": text, "message": text}
    runtime.told_history["attempts"] = [attempt]
    shown = ask("/figures", token="right")
    assert shown.status == 200
    assert SECRET not in shown.text
    assert [each["name"] for group in ("handlers", "resources") for each in shown.json[group]] == [
        "notify",
        "pods",
    ]
    assert [each["text"] for each in shown.json["marks"]] == ["Degraded is True: WriteLoop"]
    assert ask("/figures", token="right", Authorization="Bearer wrong").status == 401


def test_samples_are_taken_while_the_address_is_served(runtime) -> None:
    """By the process itself: no page has to be open."""

    async def scenario() -> None:
        clock, asked = ManualClock(), []

        def status() -> ControllerStatus:
            asked.append(clock.monotonic())
            return runtime.now

        task = asyncio.create_task(RecentFigures(clock).run(status))
        await clock.advance(30.0)
        task.cancel()
        assert asked == [1000.0, 1010.0, 1020.0, 1030.0]

    asyncio.run(scenario())
