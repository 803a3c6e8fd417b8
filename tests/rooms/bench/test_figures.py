"""What was written down, as figures."""

from dataclasses import replace
from typing import Any

import pytest

from declctl.bench.cluster import RecordedChange
from declctl.bench.recorder import RecordedCall
from declctl.bench.reload import ReloadRecording, Subscriptions, figures
from declctl.sandbox import LedgerEntry

SAVED = 100.0
OLD, NEW, SAME = (1, 1), (2, 1), (1, 2)  # process and generation: before, restarted, reloaded


def call(
    whose: tuple[int, int] = OLD,
    at: float = 50.0,
    *,
    key="a",
    kind="Modified",
    memo=(None, None),
    **known: Any,
) -> RecordedCall:
    told = {"type": kind.removeprefix("initial "), "initial": kind.startswith("initial "), "began": at}
    of = {"handler": "h", "resource": "pods", "key": key, "uid": f"uid of {key}", "version": 1}
    end = {"received": at, "failed": False, "memo": memo[0], "memo_after": memo[1]}
    return RecordedCall(*whose, **{**told, **of, **end, **known})


def made(at: float, version: int, *, key: str = "a", kind: str = "Modified") -> RecordedChange:
    return RecordedChange(kind, "pods", key, version, at)


def request(at: float, verb: str, **params: str) -> LedgerEntry:
    return LedgerEntry(verb, "pods", "", "", params, at, 1, "declctl/0.1 (test)")


HEARING = Subscriptions({"h": frozenset({"Added", "Modified", "Deleted"})}, {"h": "pods"})
RELOADED = ReloadRecording(
    saved=SAVED,
    old=OLD,
    calls=[call(), call(SAME, 101.0, version=9)],
    changes=[made(100.5, 9)],
    requests=[],
    hearing=HEARING,
)


def with_calls(*calls: RecordedCall, observed: ReloadRecording = RELOADED) -> ReloadRecording:
    """The same with more calls, before and after those that are there."""
    return replace(observed, calls=[*observed.calls, *calls])


def test_the_effect_is_that_of_the_slowest_handler():
    """A change counts for new code when it was made after the save and the new code was called for it."""
    hearing = Subscriptions(dict.fromkeys("hg", frozenset({"Modified"})), dict.fromkeys("hg", "pods"))
    observed = with_calls(
        call(SAME, 100.2, version=8, handler="g"),  # made before the save
        call(SAME, 103.0, version=9, handler="g"),
    )
    assert figures(replace(observed, hearing=hearing)).effect == pytest.approx(3.0)


def test_new_code_that_is_never_called_has_no_effect():
    observed = replace(RELOADED, calls=[call(), call(OLD, 101.0, version=9)])
    with pytest.raises(ValueError, match="the new code of h received no change"):
        figures(observed)


def test_a_wait_ends_with_the_first_call_for_that_state_or_a_later_one():
    """A later state stands for an earlier one; the old code counts as well, it is part of the way."""
    changes = [made(100.1, 5, key="b"), made(100.2, 6, key="b"), made(100.5, 9)]
    found = figures(replace(with_calls(call(OLD, 100.9, key="b", version=6)), changes=changes))
    assert found.longest_wait == pytest.approx(0.8)
    assert (found.changes, found.undelivered) == (3, 0)


def test_what_comes_and_goes_while_nobody_watches_is_never_heard():
    """Neither that it came nor that it went; a change of something else is not it."""
    changes = [made(100.1, 5, key="b", kind="Added"), made(100.2, 6, key="b", kind="Deleted"), made(100.5, 9)]
    observed = replace(RELOADED, changes=changes)
    assert (figures(observed).changes, figures(observed).undelivered) == (3, 2)
    told = with_calls(call(SAME, 101.0, key="b", version=5, kind="Added"), observed=observed)
    assert figures(told).undelivered == 1


def test_what_waits_behind_a_retry_is_not_lost():
    """The object's next change is held until the one before has succeeded, and will be told."""
    changes = [made(100.1, 5, key="b"), made(100.5, 9)]
    observed = replace(with_calls(call(SAME, 100.0, key="b", version=4, failed=True)), changes=changes)
    assert figures(observed).undelivered == 0
    ended = replace(observed, calls=[call(OLD, 99.0, key="b", failed=True), call(NEW, 101.0, version=9)])
    assert figures(ended).undelivered == 1


def test_requests_before_the_save_and_of_others_are_not_counted():
    """A list in pages is one list; a list that a watch brings is a list and a watch."""
    requests = [
        request(99.0, "list"),
        request(101.0, "list", limit="500"),
        request(101.1, "list", limit="500", **{"continue": "x"}),
        request(101.2, "watch"),
        request(101.3, "watch", sendInitialEvents="true"),
        request(101.4, "get"),
        replace(request(101.5, "list"), user_agent="kubectl/v1.36"),
    ]
    found = figures(replace(RELOADED, requests=requests))
    assert (found.lists, found.watches) == (2, 2)


def test_told_again_is_what_a_handler_knew():
    """Each handler and object counts once; an object that is new to it does not count."""
    again = [call(NEW, 101.0, key=key, kind="initial Added") for key in ("a", "b", "new")]
    observed = with_calls(call(OLD, 51.0, key="b", kind="initial Added"), *again, call(NEW, 101.0, key="b"))
    assert figures(observed).added_again == 2


FAILED = call(OLD, 99.0, key="b", failed=True, received=98.0)
TRIED = [call(OLD, 98.0, key="b", failed=True, received=98.0), FAILED]


@pytest.mark.parametrize(
    ("calls", "attempts", "lost"),
    [
        # In the same process it goes on; a new process is told the object, and knows of no attempt.
        ([FAILED, call(SAME, 102.0, key="b", received=98.0)], {}, (1, 0)),
        ([FAILED, call(NEW, 102.0, key="b", received=101.0)], {}, (1, 1)),
        # One that is not due yet is not lost, unless the object was told in its place.
        ([FAILED], {}, (1, 0)),
        ([FAILED, call(SAME, 102.0, key="b", received=101.0)], {}, (1, 1)),
        # What succeeded or was given up is no retry.
        (TRIED, {"h": 2}, (0, 0)),
        (TRIED, {"h": 3}, (1, 0)),
        ([*TRIED, call(OLD, 99.5, key="b", received=98.0)], {}, (0, 0)),
    ],
)
def test_a_retry_is_the_same_change_and_not_the_object_anew(calls, attempts, lost):
    """Only what waits can be lost."""
    found = figures(replace(with_calls(*calls), attempts=attempts))
    assert (found.retries, found.retries_lost) == lost


KNEW = call(OLD, 99.0, key="b", memo=(False, True))


@pytest.mark.parametrize(
    ("calls", "lost"),
    [
        ([KNEW, call(SAME, 101.0, key="b", memo=(True, True))], (1, 0)),
        # The first call writes it anew.
        ([KNEW, *(call(NEW, at, key="b", memo=(at > 101, True)) for at in (101.0, 102.0))], (1, 1)),
        ([call(OLD, 99.0, key="b"), call(SAME, 101.0, key="b")], (0, 0)),
    ],
    ids=["kept", "gone", "never"],
)
def test_a_memo_is_looked_for_when_new_code_is_called_for_the_object(calls, lost):
    """What was remembered, and is not there at the first call, is lost."""
    found = figures(with_calls(*calls))
    assert (found.memos, found.memos_lost) == lost


def test_hearing_is_learnt_from_changes_that_were_made():
    """A first sync, and what others change, tell nothing of what a handler hears of."""
    of_b = [call(key="b", kind=kind) for kind in ("Added", "Deleted")]
    calls = [call(kind="initial Added"), *of_b, call(key="elsewhere")]
    changes = [made(1.0, version, key="b", kind=kind) for version, kind in ((1, "Added"), (2, "Deleted"))]
    hearing = Subscriptions.of(
        [*calls, call(handler="deaf", kind="initial Added")], [made(1.0, 1, kind="Added"), *changes]
    )
    assert hearing == Subscriptions({"h": frozenset({"Added", "Deleted"})}, {"h": "pods"})
    assert hearing.handlers == {"h"}


def test_a_handler_is_expected_to_hear_what_it_hears_of():
    """Not of other types, and not of other resources."""
    of_another = RecordedChange("Modified", "nodes", "n", 6, 100.2)
    changes = [made(100.1, 5, key="b", kind="Deleted"), of_another, made(100.5, 9)]
    hearing = Subscriptions({"h": frozenset({"Modified"})}, {"h": "pods"})
    found = figures(replace(RELOADED, changes=changes, hearing=hearing))
    assert (found.changes, found.undelivered) == (1, 0)
