"""Failed calls of a handler: how often they are tried, what the log has, and when a handler is unhealthy."""

import asyncio
import itertools
from datetime import timedelta

import pytest

from declctl.errors import NotSynced
from declctl.manifest.model import Delivery, OnFailure, QueueSpec, RetrySpec
from declctl.objects import ChangeType
from declctl.runtime.handling.failure_log import FailureLog
from declctl.runtime.handling.handler_counts import LASTING_SECONDS, HandlerProblem
from declctl.runtime.handling.handler_figures import STREAK_CALLS, STREAK_SECONDS
from declctl.runtime.reporting.reporter import named_handlers
from declctl.testing import until
from tests.rooms.runtime.conftest import EVERY_SECOND, ONCE, SOON, Hanging, errors, fails
from tests.unreadable import Unreadable

FOREVER = OnFailure.RETRY


@pytest.mark.parametrize(
    ("policy", "waits", "succeeds"),
    [
        pytest.param({}, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300], True, id="by default"),
        pytest.param({"retry": RetrySpec(max_attempts=5)}, [1, 2, 4, 8], False, id="5 attempts"),
        pytest.param(
            {"retry": RetrySpec(initial_backoff=1.0, max_backoff=5.0), "on_failure": FOREVER},
            [1, 2, 4, 5, 5],
            True,
            id="maxBackoff",
        ),
        pytest.param(
            {"retry": RetrySpec(max_attempts=2), "on_failure": FOREVER},
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 300],
            True,
            id="onFailure: Retry",
        ),
    ],
)
def test_a_failing_change_is_tried_when_it_is_due(bench, clock, log, policy, waits, succeeds) -> None:
    """Waits double from `initialBackoff` to `maxBackoff`; after `maxAttempts` the change counts as failed.

    Each failure is logged with handler, key and numbers, the first with its traceback.
    """
    tries = []

    def notify(change) -> None:
        tries.append(clock.monotonic())
        if not succeeds or len(tries) <= len(waits):
            raise ValueError("no")

    slot = bench.slot(notify, adds="a", **policy)
    while bench.work():
        due = slot.queue.next_due() or 60.0
        clock.set(due - 0.1)
        assert bench.work() == 0
        clock.set(0.1)
    assert [late - early for early, late in itertools.pairwise(tries)] == pytest.approx(waits)
    figures = slot.statistics()
    assert (figures.delivered, figures.retried, figures.queued) == (1, len(waits), 0)
    assert (figures.succeeded, figures.failed) == ((1, 0) if succeeds else (0, 1))
    assert figures.last_error == "default/a: ValueError: no"
    told = errors(log)
    count = len(waits) + (not succeeds)
    limit = None if succeeds else policy["retry"].max_attempts
    assert [line.fields["attempt"] for line in told] == [*range(1, count + 1)]
    assert [line.fields["times"] for line in told] == [*range(1, count + 1)]
    assert [line.fields["retry_in"] for line in told] == [*waits, None][:count]
    assert {
        tuple(line.fields[name] for name in ("handler", "key", "max_attempts", "error_type")) for line in told
    } == {("notify", "default/a", limit, "ValueError")}
    assert ["traceback" in line.fields for line in told] == [True] + [False] * (count - 1)
    assert "ValueError: no" in told[0].fields["traceback"]
    assert succeeds or told[-1].event.endswith(f"; attempt {count} of {count}, given up")


@pytest.mark.parametrize(
    ("attempts", "later"), [(None, ["a Added", "a Modified"]), (1, [])], ids=["retried", "given up"]
)
def test_a_failing_change_holds_its_own_key_only(bench, added, clock, attempts, later) -> None:
    """Other objects go on; its own later changes wait until it succeeds or is given up, and no longer."""
    heard = []

    def fails_once(change) -> None:
        heard.append(f"{change.obj.name} {change.type}")
        if len(heard) == 1:
            raise ValueError

    slot = bench.slot(fails_once, adds="a", retry=RetrySpec(max_attempts=attempts))
    slot.add_all([added("a", ChangeType.MODIFIED), added("b")])
    bench.work()
    assert sorted(heard) == ["a Added", *([] if later else ["a Modified"]), "b Added"]
    assert heard[0] == "a Added"
    first = len(heard)
    clock.set(1.0)
    bench.work()
    assert heard[first:] == later
    figures = slot.statistics()
    assert (figures.failed, figures.succeeded) == ((0, 3) if later else (1, 2))


def test_under_keyed_a_newer_change_takes_the_place_and_the_attempts_of_a_failing_one(
    bench, added, clock
) -> None:
    """It doesn't wait for the old one to be given up, nor does it get more attempts than were left."""
    heard = []

    def notify(change) -> None:
        heard.append((str(change.type), change.obj.resource_version))
        raise ValueError

    slot = bench.slot(notify, delivery=Delivery.KEYED, retry=RetrySpec(max_attempts=3))
    old, new = added("a"), added("a", ChangeType.MODIFIED)
    slot.add_all([old])
    bench.work()
    slot.add_all([new])
    for _ in range(5):
        clock.set(60.0)
        bench.work()
    first, newest = old.record.resource_version, new.record.resource_version
    assert heard == [("Added", first), ("Added", newest), ("Added", newest)]
    figures = slot.statistics()
    assert (figures.failed, figures.retried, figures.merged, figures.delivered) == (1, 2, 1, 1)


def test_a_back_off_begins_when_the_failure_is_counted(bench, clock, log) -> None:
    """What takes time between the count and the queue, such as a log on a slow disk, delays no retry."""
    bench.slot(fails, adds="a", retry=RetrySpec(initial_backoff=10.0, max_backoff=10.0))
    written = log.error

    def slowly(event: str, **fields) -> None:
        clock.set(8.0)
        written(event, **fields)

    log.error = slowly
    bench.work()
    clock.set(1.9)
    assert bench.work() == 0
    clock.set(0.2)
    assert bench.work() == 1


# Whatever is raised


class _Errors(Exception):
    """Several errors in one, whose number can't be told before they are set: nor whether it is true."""

    def __len__(self) -> int:
        return len(self.errors)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        asyncio.CancelledError(),
        GeneratorExit(),
        RecursionError(),
        _Errors(),
        _Unprintable(),
        Unreadable(),
        ValueError("x" * 1_000_000),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_whatever_is_raised_is_a_failure_and_no_more(bench, log, error, asynchronous) -> None:
    """`sys.exit()` in a handler ends neither the process nor the worker, and a broken exception does not.

    It is given up as any other, and the next change is delivered; a huge text does not fill log and status.
    """
    heard = []

    def raises(change) -> None:
        heard.append(change.obj.name)
        raise error

    async def raises_async(change) -> None:
        await asyncio.sleep(0)
        raises(change)

    slot = bench.slot(raises_async if asynchronous else raises, adds="ab", retry=ONCE)
    for _ in range(2):
        assert bench.begin(asynchronous=asynchronous).result(SOON)
    assert heard == ["a", "b"]
    figures = slot.statistics()
    assert (figures.failed, figures.last_error_type) == (2, type(error).__name__)
    assert figures.last_error_time == bench.clock.now()
    assert len(figures.last_error or "") < 3000
    assert [line.level for line in log.lines] == ["error", "error"]
    assert sum(len(str(line.fields)) for line in log.lines) < 50_000
    if not isinstance(error, Unreadable):
        assert "raise error\n" in log.lines[0].fields["traceback"]


# The log


def test_one_traceback_for_each_distinct_fault_then_a_line_with_a_count(bench, log) -> None:
    """A handler that fails on a thousand objects in two ways writes two tracebacks, not a thousand."""

    def notify(obj) -> None:
        if obj.name == "k1":
            raise KeyError("team")
        raise ValueError(f"no {obj.name}")

    bench.slot(notify, adds=[f"k{number}" for number in range(4)])
    bench.work()
    failures = errors(log)
    assert ["traceback" in line.fields for line in failures] == [True, True, False, False]
    assert [line.fields["times"] for line in failures] == [1, 1, 2, 3]
    assert failures[0].event == (
        "notify failed on Added default/k0: ValueError: no k0; attempt 1, again in 1 s"
    )
    place = f"{__file__}:{notify.__code__.co_firstlineno + 3}"
    assert failures[3].event == (
        f"notify failed on Added default/k3: ValueError: no k3 ({place}, 3 times by now; the first has the "
        "traceback); attempt 1, again in 1 s"
    )


def test_a_fault_that_thousands_of_objects_meet_does_not_fill_the_log(bench, log, clock) -> None:
    """Twenty lines a minute about one fault; the next line has the number of those that were left out.

    Lines about lost changes have a limit of their own: retries of others do not use it up.
    """

    def notify(obj) -> None:
        raise ValueError(f"no {obj.name}")

    slot = bench.slot(notify, adds=[f"k{number}" for number in range(1000)], retry=RetrySpec(max_attempts=3))
    bench.work()
    assert len(errors(log)) == 20
    clock.set(61.0)
    bench.work()
    failures = errors(log)
    assert len(failures) == 40
    assert failures[20].fields["left_out"] == 980
    assert "980 lines like this were left out" in failures[20].event
    assert [line for line in failures[21:] if "left_out" in line.fields] == []
    assert (failures[20].fields["times"], slot.statistics().retried) == (1001, 2000)
    clock.set(2.0)
    bench.work()
    assert len([line for line in errors(log)[40:] if line.event.endswith("given up")]) == 20
    assert slot.statistics().failed == 1000


def test_the_lines_of_a_failure_have_the_error_apart_and_the_id_of_the_event(bench, added, log) -> None:
    """A program finds class, text and event without parsing the sentence; `ctx.log` has the same id."""

    def notify(change, ctx) -> None:
        ctx.log.info("begins")
        raise KeyError("team")

    bench.slot(notify).add_all([change := added("a")])
    bench.work()
    (failure,) = errors(log)
    assert (failure.fields["error_type"], failure.fields["error"]) == ("KeyError", "'team'")
    assert failure.fields["event_id"] == f"uid-default-a@{change.record.resource_version}"
    assert log.find("begins").fields["event_id"] == failure.fields["event_id"]


def test_distinct_faults_are_remembered_within_bounds(log, clock) -> None:
    """Code that fails in a new place each time costs no memory for ever."""
    failures = FailureLog(log, "notify", clock=clock)
    for number in range(10_000):
        failures.count((number,))
    assert [failures.count((number,)) for number in (9_900, 9_901, 9_899, 9_898)] == [2, 2, 1, 1]


# Caches that have not synced


def _raise_unsynced(how: str) -> None:
    try:
        raise NotSynced("deployments has not synced (403 Forbidden)", resource="deployments")
    except NotSynced as error:
        if how == "raised from it":
            raise RuntimeError("no deployment to compare with") from error
        if how == "in a group":
            raise ExceptionGroup("tasks failed", [error]) from None
        raise RuntimeError("the fallback failed") if how == "beside it" else error  # noqa: B904 - on purpose


@pytest.mark.parametrize("how", ["plain", "raised from it", "in a group"])
def test_a_call_that_reads_a_cache_which_has_not_synced_is_no_attempt(how, bench, clock, log) -> None:
    """It is called again with back-off, past `retry.maxAttempts`; the log has a line a minute."""
    calls: list[str] = []
    synced: list[bool] = []

    def notify(obj):
        calls.append(obj.name)
        if not synced:
            _raise_unsynced(how)

    retry = RetrySpec(max_attempts=2, initial_backoff=1.0, max_backoff=300.0)
    slot = bench.slot(notify, adds="ab", retry=retry)
    for _ in range(70):
        bench.work()
        clock.set(1.0)
    figures = slot.statistics()
    assert (figures.failed, figures.succeeded, figures.retried) == (0, 0, len(calls))
    assert figures.retried > 8
    assert slot.binding.tally.calls == slot.binding.tally.failed == 0
    assert "deployments has not synced" in (figures.last_error or "")
    assert [line.level for line in log.lines] == ["warning", "warning"]  # one a minute, for all objects

    synced.append(True)
    clock.set(30.0)  # the longest that it waits
    assert bench.work() == 2
    assert slot.statistics().succeeded == 2
    assert slot.queue.idle


def test_what_waits_for_a_cache_is_called_when_a_cache_has_synced(bench, clock) -> None:
    """It does not wait out its back-off; what has failed by itself does."""
    calls: list[str] = []

    def notify(obj):
        calls.append(obj.name)
        if obj.name == "fails":
            raise ValueError("no")
        if calls.count(obj.name) < 3:
            _raise_unsynced("plain")

    slot = bench.slot(notify, adds=["a", "fails", "b"], retry=RetrySpec(initial_backoff=20.0))
    assert bench.work() == 3
    assert bench.work() == 0
    for expected in (2, 2, 0):
        slot.cache_synced()
        assert bench.work() == expected
    assert calls == ["a", "fails", "b", "a", "b", "a", "b"]
    assert slot.statistics().succeeded == 2
    clock.set(20.0)
    assert bench.work() == 1


def test_attempts_count_from_the_first_failure_of_its_own(bench, clock) -> None:
    """What waited for a cache has all its attempts left; a fallback that fails beside NotSynced fails."""
    faults: list[Exception] = [NotSynced("maps has not synced")] * 3 + [ValueError("no")] * 9

    def notify():
        raise faults.pop(0)

    retry = RetrySpec(max_attempts=4, initial_backoff=1.0, max_backoff=1.0)
    slot = bench.slot(notify, adds="a", retry=retry)
    while not slot.queue.idle:
        bench.work()
        clock.set(1.0)
    assert (slot.statistics().failed, len(faults)) == (1, 5)
    slot = bench.slot(lambda: _raise_unsynced("beside it"), adds="a", retry=ONCE)
    bench.work()
    assert (slot.statistics().failed, slot.queue.idle) == (1, True)


# Unhealthy handlers: failed calls in a row, over some seconds


def test_a_streak_takes_failed_calls_and_time(bench, clock) -> None:
    """Five failures at once are no state of a handler, nor are four over a minute; one success ends it.

    A call that has read an unsynced cache says nothing of the handler.
    """
    raised: list[Exception | None] = [ValueError("no")]

    def notify() -> None:
        if raised[-1] is not None:
            raise raised[-1]

    slot = bench.slot(notify, adds="abcd", retry=EVERY_SECOND, on_failure=FOREVER)
    bench.work()
    assert STREAK_CALLS == 5
    raised.append(NotSynced("nodes"))
    clock.set(1.0)
    bench.work()
    clock.set(STREAK_SECONDS)
    assert slot.invocations.figures.lasting_streak() is None
    raised.append(ValueError("no"))
    slot.work(slot.queue.take())
    streak = slot.invocations.figures.lasting_streak()
    assert (streak.count, streak.key, streak.error) == (5, "default/a", "ValueError: no")
    raised.append(None)
    slot.work(slot.queue.take())  # of another object, too: the handler works
    assert slot.invocations.figures.lasting_streak() is None

    many = bench.slot(fails, adds="abcde", retry=EVERY_SECOND, on_failure=FOREVER)
    bench.work()
    assert many.invocations.figures.lasting_streak() is None
    clock.set(STREAK_SECONDS)
    assert many.invocations.figures.lasting_streak().count == 5


def test_calls_that_hang_count_at_their_timeout(bench, clock) -> None:
    """A handler whose calls never return is as unhealthy as one whose calls raise."""
    hanging = Hanging()
    slot = bench.slot(hanging.hook, adds="abcde", timeout=0.02, retry=ONCE, queue=QueueSpec(concurrency=5))
    calls = [bench.begin() for _ in range(5)]
    until("they have timed out", lambda: slot.statistics().timeouts == 5)
    clock.set(STREAK_SECONDS)
    streak = slot.invocations.figures.lasting_streak()
    hanging.gate.set()
    for call in calls:
        call.result(SOON)
    assert streak.count == 5
    assert "TimeoutError: it ran longer than its timeout of 0.02 s" in streak.error
    assert slot.invocations.figures.lasting_streak().count == 5, "a call that returns late has been counted"


def test_a_call_hangs_after_five_minutes_and_its_timeout(bench, clock) -> None:
    """Also one that has no timeout; its age is known all the time."""
    hanging = Hanging()
    slot = bench.slot(hanging.hook, adds="d", timeout=LASTING_SECONDS + 100)
    call = bench.begin()
    hanging.began.wait(SOON)
    clock.set(LASTING_SECONDS + 90)
    assert (slot.statistics().oldest_call_seconds, slot.problems()) == (LASTING_SECONDS + 90, [])
    clock.set(LASTING_SECONDS + 100)
    (problem,) = slot.problems()
    assert str(problem) == "1 call has not returned, the oldest for default/d since 2026-01-01 00:00:00 UTC"
    hanging.gate.set()
    call.result(SOON)
    assert slot.statistics().oldest_call_seconds == 0


def test_keys_that_fail_for_five_minutes_are_told_while_others_succeed(bench, clock) -> None:
    """Their number, and the one that has failed for the longest time; a success ends it."""
    bad = {"default/a", "default/b"}

    def notify(change) -> None:
        if str(change.key) in bad:
            raise ValueError(str(change.key))

    slot = bench.slot(notify, adds="abc", retry=EVERY_SECOND, on_failure=FOREVER)
    bench.work()
    clock.set(LASTING_SECONDS - 1)
    bench.work()
    assert slot.problems() == []
    clock.set(LASTING_SECONDS)
    (problem,) = slot.statistics().problems
    assert str(problem) == "2 keys fail again and again, default/a since 2026-01-01 00:00:00 UTC: ValueError"
    bad.remove("default/a")
    clock.set(LASTING_SECONDS + 1)
    bench.work()
    assert [each.key for each in slot.problems()] == ["default/b"]


def test_many_unhealthy_handlers_are_named_in_part(clock) -> None:
    """Those that have failed for the longest time come first; the message stays one that can be read."""
    since = [clock.now() - timedelta(minutes=number) for number in range(7)]
    problems = [HandlerProblem("CallsFail", 9, each, "default/a", 3, "ValueError: no") for each in since]
    told = list(named_handlers([(f"h{number}", each) for number, each in enumerate(problems)]))
    assert [each.partition(":")[0] for each in told] == ["h6", "h5", "h4", "h3", "h2", "and 2 more handlers"]
    assert told[0] == (
        "h6: the last 9 calls have failed, since 2025-12-31 23:54:00 UTC, the newest with generation 3 for "
        "default/a: ValueError: no"
    )
