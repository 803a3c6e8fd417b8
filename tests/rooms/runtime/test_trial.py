"""When a new generation is taken back."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.manifest.model import ReloadSpec
from declctl.runtime.handling.figures import Tally
from declctl.runtime.reloading.trial import Kept, Trial, Verdict, total, what_failed

POLICY = ReloadSpec(probation_period=60.0, min_calls=20, max_error_ratio=0.5)


def _trial(policy: ReloadSpec = POLICY) -> Trial:
    return Trial(Kept(cast("Any", SimpleNamespace(number=1))), policy, began=100.0)


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
    assert _trial().verdict(new, old, now=now) is verdict


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.floats(100, 500))
@pytest.mark.guarantee("G21")
def test_code_is_never_taken_back_for_nothing(calls: int, failed: int, before: int, now: float):
    """Whatever the figures: who is taken back has made its calls and failed more often than the old one."""
    new, old = Tally(calls, min(calls, failed)), Tally(500, before)
    if _trial().verdict(new, old, now=now) is Verdict.BREACHED:
        assert new.calls >= POLICY.min_calls
        assert new.ratio > max(POLICY.max_error_ratio, old.ratio)


def test_what_could_not_be_taken_back_is_not_tried_for_ever():
    """Once going back was refused, the period goes on to its end."""
    trial = _trial()
    trial.refused = True
    assert trial.verdict(Tally(20, 20), Tally(), now=101.0) is Verdict.UNDECIDED
    assert trial.verdict(Tally(20, 20), Tally(), now=160.0) is Verdict.PASSED


def test_what_failed_is_told_worst_first():
    """By handler, with its last error; those without failures are not named."""
    each = {"ok": Tally(9, 0), "some": Tally(9, 1, "a: no"), "all": Tally(4, 4, "b: never")}
    assert what_failed(each) == "all 4 of 4 calls (b: never); some 1 of 9 calls (a: no)"
    assert (total(each).calls, total(each).failed) == (22, 5)
