"""How many messages a target gets, and what becomes of the others."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

from typing import Any

from declctl.testing import ManualClock
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl_notify.groups import Entry, GroupKey, Message
from declctl_notify.outbox import MOST_WAITING, Outbox
from declctl_notify.settings import RateLimit, RetrySettings

RETRY = RetrySettings(initial_backoff=1.0, max_backoff=4.0, max_attempts=3)


def _message(title: str = "a", severity: str = "info", changes: int = 1) -> Message:
    return Message(GroupKey("rule"), severity, [Entry((title, ""), title, "", changes)])


def _outbox(clock: ManualClock, qps: float = 0.1, burst: int = 2) -> Outbox:
    return Outbox(RateLimit(qps, burst), RETRY, clock=clock)


def _send_all(outbox: Outbox) -> list[str]:
    """The titles of the messages that may be sent now, with the changes that they summarize."""
    found: list[str] = []
    while (delivery := outbox.take()) is not None:
        suppressed = f" +{delivery.suppressed.changes}" if delivery.suppressed.changes else ""
        found.append(f"{delivery.message.entries[0].title}{suppressed}")
        outbox.finish(sent=True)
    return found


def test_a_burst_is_sent_and_then_a_message_each_interval() -> None:
    """Two at once, then one in ten seconds."""
    clock = ManualClock()
    outbox = _outbox(clock)
    for title in "abcd":
        outbox.put(_message(title))
    assert _send_all(outbox) == ["a", "b"]
    clock.set(9.0)
    assert _send_all(outbox) == []
    clock.set(1.0)
    assert _send_all(outbox) == ["c"]
    clock.set(10.0)
    assert _send_all(outbox) == ["d"]
    assert outbox.next_due is None


def test_suppressed_messages_are_a_count_in_the_next_one() -> None:
    """A storm of 60 messages: those that can't wait are counted, and the next message has their number."""
    clock = ManualClock()
    outbox = _outbox(clock, burst=1)
    outbox.put(_message("first"))
    assert _send_all(outbox) == ["first"]
    for number in range(60):
        outbox.put(_message(f"{number}", changes=2))
    assert outbox.waiting == 120
    clock.set(10.0)
    assert _send_all(outbox) == ["0 +100"]
    assert outbox.suppressed_messages == 50
    clock.set(10.0)
    assert _send_all(outbox) == ["1"]


def test_severe_messages_are_sent_first_and_suppressed_last() -> None:
    """Among a hundred messages of little weight, the critical one comes through."""
    clock = ManualClock()
    outbox = _outbox(clock, burst=1)
    outbox.put(_message("first"))
    _send_all(outbox)
    for number in range(MOST_WAITING):
        outbox.put(_message(f"info {number}"))
    outbox.put(_message("warning", "warning"))
    outbox.put(_message("critical", "critical"))
    found: list[str] = []
    for _ in range(3):
        clock.set(10.0)
        found += _send_all(outbox)
    assert found == ["critical +2", "warning", "info 0"]


def test_a_failed_message_is_tried_again_with_growing_delays() -> None:
    """A service that is away for some seconds loses nothing."""
    clock = ManualClock()
    outbox = _outbox(clock)
    outbox.put(_message())
    delays: list[float] = []
    for _ in range(2):
        assert outbox.take() is not None
        outbox.finish(sent=False)
        delays.append((outbox.next_due or 0.0) - clock.monotonic())
        assert outbox.take() is None
        clock.set(delays[-1])
    assert delays == [1.0, 2.0]
    assert _send_all(outbox) == ["a"]
    assert (outbox.sent, outbox.failed_attempts, outbox.lost) == (1, 2, 0)


def test_a_lost_message_is_a_count_in_the_next_one() -> None:
    """After maxAttempts the message is given up; the next one that comes through has the number."""
    clock = ManualClock()
    outbox = _outbox(clock, qps=100.0)
    outbox.put(_message("lost", changes=7))
    for _ in range(RETRY.max_attempts):
        assert outbox.take() is not None
        outbox.finish(sent=False)
        clock.set(10.0)
    assert (outbox.lost, outbox.is_empty, outbox.waiting) == (1, True, 7)
    outbox.put(_message("next"))
    assert _send_all(outbox) == ["next +7"]
    assert outbox.waiting == 0


def test_a_lost_summary_is_told_again() -> None:
    """A message is given up that has told of a storm: the next one tells of both."""
    clock = ManualClock()
    outbox = _outbox(clock, qps=100.0)
    for number in range(MOST_WAITING + 5):
        outbox.put(_message(f"{number}", changes=2))
    for _ in range(RETRY.max_attempts):
        assert outbox.take() is not None
        outbox.finish(sent=False)
        clock.set(10.0)
    assert _send_all(outbox)[:2] == ["1 +12", "2"]


def test_an_edited_limit_counts_at_once_and_an_unchanged_one_keeps_its_tokens() -> None:
    """An edit of a template does not give a new burst; an edit of the limit needs no restart."""
    clock = ManualClock()
    outbox = _outbox(clock)
    for title in "abcd":
        outbox.put(_message(title))
    assert _send_all(outbox) == ["a", "b"]
    outbox.configure(RateLimit(0.1, 2), RETRY)
    assert _send_all(outbox) == []
    outbox.configure(RateLimit(100.0, 5), RETRY)
    assert _send_all(outbox) == ["c", "d"]


def test_at_the_end_no_message_waits_for_a_token() -> None:
    """The last seconds of a process are for messages, and not for the rate."""
    clock = ManualClock()
    outbox = _outbox(clock, burst=1)
    for title in "abc":
        outbox.put(_message(title))
    outbox.closing = True
    assert _send_all(outbox) == ["a", "b", "c"]


_STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(["info", "warning", "critical"]), st.sampled_from([1, 2, 12])),
    st.tuples(st.just("take"), st.booleans(), st.none()),
    st.tuples(st.just("wait"), st.floats(0.0, 30.0), st.none()),
    st.tuples(st.just("limit"), st.sampled_from([0.05, 1.0]), st.integers(1, 3)),
)


@settings(deadline=None)
@given(st.lists(_STEPS, max_size=80))
def test_each_change_is_sent_counted_or_waits_and_the_rate_is_kept(steps: list[tuple[str, Any, Any]]) -> None:
    """Whatever fails when: no change is lost, and no more messages are tried than the limit allows."""
    clock = ManualClock()
    outbox = _outbox(clock, qps=1.0, burst=3)
    put = told = 0
    begun: list[float] = []  # first tries since the last edit of the limit
    limit = (1.0, 3)
    for step, what, number in steps:
        if step == "put":
            for _ in range(number):
                outbox.put(_message("a", what, 2))
            put += 2 * number
        elif step == "wait":
            clock.set(what)
        elif step == "limit":
            if (what, number) != limit:
                limit, begun = (what, number), []
            outbox.configure(RateLimit(what, number), RETRY)
        elif (delivery := outbox.take()) is not None:
            if delivery.attempts == 0:
                begun.append(clock.monotonic())
            outbox.finish(sent=what)
            told += delivery.changes if what else 0
        assert told + outbox.waiting == put
        if begun:
            allowed = limit[1] + (clock.monotonic() - begun[0]) * limit[0]
            assert len(begun) <= allowed + 1e-6
    outbox.put(_message("last"))
    outbox.closing = True
    while (delivery := outbox.take()) is not None or not outbox.is_empty:
        if delivery is None:
            clock.set(10.0)
            continue
        told += delivery.changes
        outbox.finish(sent=True)
    assert (told, outbox.waiting) == (put + 1, 0)
