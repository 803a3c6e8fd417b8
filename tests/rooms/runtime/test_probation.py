"""When a new generation is taken back."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.manifest.model import ReloadSpec
from declctl.runtime.handling.handler_counts import CallTally as Tally
from declctl.runtime.reloading.earlier import KEPT_BYTES, EarlierGenerations
from declctl.runtime.reloading.probation import CallComparison, ProbationPeriod, Verdict, what_failed

POLICY = ReloadSpec(probation_period=60.0, min_calls=20, max_error_ratio=0.5)


def _period(policy: ReloadSpec = POLICY) -> ProbationPeriod:
    return ProbationPeriod(cast("Any", SimpleNamespace(number=1)), policy, began=100.0)


def _verdict(period: ProbationPeriod, now: float, *handlers: CallComparison) -> Verdict:
    return period.verdict({f"h{number}": each for number, each in enumerate(handlers)}, now=now)[0]


@pytest.mark.parametrize(
    ("new", "old", "now", "verdict"),
    [
        (Tally(19, 19), Tally(), 101.0, Verdict.UNDECIDED),  # too few calls
        (Tally(20, 20), Tally(), 101.0, Verdict.BREACHED),
        (Tally(20, 10), Tally(), 101.0, Verdict.UNDECIDED),  # just as many as may fail
        (Tally(20, 11), Tally(100, 60), 101.0, Verdict.UNDECIDED),  # the old one fails more often
        (Tally(20, 11), Tally(100, 50), 101.0, Verdict.BREACHED),
        (Tally(20, 20), Tally(100, 100), 101.0, Verdict.UNDECIDED),
        (Tally(20, 0), Tally(), 159.9, Verdict.UNDECIDED),
        (Tally(20, 0), Tally(), 160.0, Verdict.PASSED),
        (Tally(0, 0), Tally(), 160.0, Verdict.PASSED),
        (Tally(20, 20), Tally(), 160.0, Verdict.BREACHED),  # looked at late: it has failed all the same
    ],
)
@pytest.mark.guarantee("G21")
def test_the_verdict(new: Tally, old: Tally, now: float, verdict: Verdict):
    """After enough calls it goes if it fails more than the old code; else it stays after the period."""
    assert _verdict(_period(), now, CallComparison(new, old)) is verdict


TALLIES = st.builds(
    lambda calls, failed: Tally(calls, min(calls, failed)), st.integers(0, 60), st.integers(0, 60)
)
WELL = CallComparison(Tally(5000, 0), Tally(5000, 0))


@given(st.lists(st.tuples(TALLIES, st.none() | TALLIES), max_size=4), st.floats(100, 500))
@pytest.mark.guarantee("G21")
def test_code_is_never_taken_back_for_nothing(handlers: list[tuple[Tally, Tally | None]], now: float):
    """Whatever the figures: what is taken back fails more than the old code, together or one by itself."""
    each = [CallComparison(new, old) for new, old in handlers]
    if _verdict(_period(), now, *each) is not Verdict.BREACHED:
        return
    together = CallComparison(
        sum((one.new for one in each), Tally()), sum((one.old for one in each if one.old), Tally())
    )
    known = [together, *(one for one in each if one.old is not None)]
    assert any(
        one.old is not None
        and one.new.ratio > max(POLICY.max_error_ratio, one.old.ratio)
        and (one.new.calls >= POLICY.min_calls or (one.all_failed and one.new.calls >= 5))
        for one in known
    )


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (CallComparison(Tally(20, 20), Tally(50, 0)), Verdict.BREACHED),
        (CallComparison(Tally(20, 11), Tally(50, 0)), Verdict.BREACHED),
        (CallComparison(Tally(5, 5), Tally(50, 0)), Verdict.BREACHED),  # all of several calls
        (CallComparison(Tally(5, 5), Tally(50, 25)), Verdict.BREACHED),  # half of them may fail
        (CallComparison(Tally(4, 4), Tally(50, 0)), Verdict.UNDECIDED),
        (CallComparison(Tally(6, 5), Tally(50, 0)), Verdict.UNDECIDED),  # one has succeeded, and they are few
        (CallComparison(Tally(19, 19), Tally(0, 0)), Verdict.UNDECIDED),  # of the old code nothing is known
        (CallComparison(Tally(19, 19), Tally(50, 26)), Verdict.UNDECIDED),  # it was not well before
        (CallComparison(Tally(20, 20), Tally(50, 50)), Verdict.UNDECIDED),
        (CallComparison(Tally(40, 40), None), Verdict.UNDECIDED),  # there was no such handler
    ],
)
@pytest.mark.guarantee("G21")
def test_a_handler_that_fails_is_not_hidden_by_those_that_succeed(one: CallComparison, verdict: Verdict):
    """Beside a handler with thousands of calls, one that was good and fails all of its calls is seen."""
    assert _verdict(_period(), 101.0, WELL, one) is verdict


BEGAN = 110.0
STUCK = (BEGAN, True)
TIMED_OUT = (BEGAN, False)


@pytest.mark.parametrize(
    ("one", "seconds", "verdict"),
    [
        (CallComparison(Tally(), Tally(9, 0), [STUCK]), 30.0, Verdict.UNDECIDED),
        (CallComparison(Tally(), Tally(9, 0), [STUCK]), 30.1, Verdict.BREACHED),
        # it came to nothing more
        (CallComparison(Tally(900, 0), Tally(9, 0), [STUCK]), 30.1, Verdict.BREACHED),
        (CallComparison(Tally(9, 0), Tally(9, 0), [STUCK], concurrency=2), 30.1, Verdict.UNDECIDED),
        (CallComparison(Tally(9, 0), Tally(9, 0), [STUCK] * 2, concurrency=2), 30.1, Verdict.BREACHED),
        (CallComparison(Tally(), Tally(9, 0, longest=4.0), [STUCK]), 40.0, Verdict.UNDECIDED),  # usually slow
        (CallComparison(Tally(), Tally(9, 0, longest=4.0), [STUCK]), 40.1, Verdict.BREACHED),
        (CallComparison(Tally(), Tally(9, 0), [STUCK], timeout=35.0), 35.0, Verdict.UNDECIDED),
        # the old code hangs, too
        (CallComparison(Tally(), Tally(9, 0), [STUCK], [STUCK]), 45.0, Verdict.UNDECIDED),
        (CallComparison(Tally(), None, [STUCK]), 45.0, Verdict.UNDECIDED),  # there was no such handler
        # few, and all hang
        (CallComparison(Tally(2, 2), Tally(9, 0), [TIMED_OUT] * 2), 30.1, Verdict.BREACHED),
        # others get through
        (CallComparison(Tally(3, 2), Tally(9, 0), [TIMED_OUT] * 2), 30.1, Verdict.UNDECIDED),
    ],
)
@pytest.mark.guarantee("G21")
def test_a_handler_that_hangs_is_taken_back(one: CallComparison, seconds: float, verdict: Verdict):
    """As many calls hang as it may make at once: it makes no more, so that `minCalls` would never come."""
    assert _verdict(_period(), BEGAN + seconds, WELL, one) is verdict


@pytest.mark.guarantee("G21")
def test_what_hangs_at_the_end_of_the_probation_is_waited_for():
    """A call that began within it; for half of a short probation, and never more than 30 s."""
    late = CallComparison(Tally(9, 0), Tally(9, 0), [(159.0, True)])
    assert _verdict(_period(), 160.0, late) is Verdict.UNDECIDED
    assert _verdict(_period(), 189.0, late) is Verdict.UNDECIDED
    assert _verdict(_period(), 189.1, late) is Verdict.BREACHED
    after = CallComparison(Tally(10, 0), Tally(9, 0), [(161.0, True)])
    assert _verdict(_period(), 170.0, after) is Verdict.PASSED
    assert _verdict(_period(), 160.0, CallComparison(Tally(9, 0), None, [(159.0, True)])) is Verdict.PASSED
    stuck = CallComparison(Tally(), Tally(9, 0), [(100.0, True)])
    assert _verdict(_period(replace(POLICY, probation_period=4.0)), 102.0, stuck) is Verdict.UNDECIDED
    assert _verdict(_period(replace(POLICY, probation_period=4.0)), 102.1, stuck) is Verdict.BREACHED
    assert _verdict(_period(replace(POLICY, probation_period=3600.0)), 130.1, stuck) is Verdict.BREACHED


def test_some_probations_only_end():
    """With `maxErrorRatio: 1` no share is greater; once going back was refused, it is not tried for ever."""
    period = _period(replace(POLICY, max_error_ratio=1.0))
    bad = CallComparison(Tally(90, 90), Tally(90, 0), [STUCK])
    assert _verdict(period, 159.0, bad) is Verdict.UNDECIDED
    assert _verdict(period, 200.0, bad) is Verdict.PASSED
    period = _period()
    period.refused = True
    assert _verdict(period, 101.0, CallComparison(Tally(20, 20), Tally())) is Verdict.UNDECIDED
    assert _verdict(period, 160.0, CallComparison(Tally(20, 20), Tally())) is Verdict.PASSED


def test_what_had_failed_before_is_not_the_fault_of_new_code():
    """A retry counts if it succeeds; workers count in their threads while the tally is read."""
    tally = Tally(10, 6, inherited={1: 2, 3: 1, 4: 2})
    without = tally.without_inherited(3)
    assert (without.calls, without.failed) == (7, 3)
    tally = Tally(3, 3, inherited={1: 1})

    class Growing(int):
        def __ge__(self, other: int) -> bool:
            tally.inherited[len(tally.inherited) + 1] = 1
            return int(self) >= other

    assert tally.without_inherited(Growing(1)) == Tally(2, 2)


def test_what_failed_is_told_worst_first():
    """Handler, figures and last error, and what was before: for the log, the status and the history."""
    each = {"ok": Tally(9, 0), "some": Tally(9, 1, "a: no"), "all": Tally(4, 4, "b: never")}
    assert what_failed(each) == "all 4 of 4 calls (b: never); some 1 of 9 calls (a: no)"
    failing = CallComparison(Tally(6, 6, "default/a: KeyError: 'x'"), Tally(50, 1))
    _, why = _period().verdict({"well": WELL, "notify": failing}, now=101.0)
    assert why == "notify 6 of 6 calls (default/a: KeyError: 'x'); of generation 1 1 of 50 calls"
    hanging = CallComparison(Tally(), Tally(50, 0, longest=0.2), [STUCK])
    _, why = _period().verdict({"well": WELL, "notify": hanging}, now=145.0)
    assert why == (
        "notify: 1 call hangs for more than 30 s, and nothing else gets through; of generation 1 none took "
        "longer than 0.2 s"
    )


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [([1] * 5, (3, 4, 5)), ([1, 1, 2 * KEPT_BYTES], (3,)), ([1, KEPT_BYTES // 2, KEPT_BYTES // 2], (2, 3))],
)
def test_three_are_kept_and_fewer_if_they_are_large(sizes: list[int], kept: tuple[int, ...]) -> None:
    """The one before can always come back, and none is kept that is older than one that is not."""
    earlier = EarlierGenerations()
    for number, size in enumerate(sizes, 1):
        earlier.add(number, cast("Any", SimpleNamespace(memory=size)))
    assert earlier.numbers == kept
