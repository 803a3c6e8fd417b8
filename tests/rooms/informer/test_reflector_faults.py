"""What a fault leads to, as a table."""

import pytest

from declctl.errors import (
    Conflict,
    Expired,
    Forbidden,
    GroupUnavailable,
    InvalidRequest,
    MalformedAnswer,
    NotFound,
    ServerError,
    TooLargeResourceVersion,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    WatchSilent,
)
from declctl.informer.reflector.faults import (
    Circumstances,
    Inconsistent,
    Listing,
    NoInitialEventsEnd,
    RelistRequested,
    ShortWatch,
    Starting,
    Streak,
    Streaming,
    Transition,
    Watching,
    transition_after,
)

AT = Circumstances("10")
AGAIN = Watching("10")
MOST_RECENT = Starting(quorum=True)


def status(kind, code=0, reason="", **more):
    return kind(code, reason, "", **more)


EXPIRED, TOO_LARGE = status(Expired, 410), status(TooLargeResourceVersion, 504)
BUSY, REFUSED, MISSING = status(TooManyRequests, 429), status(Forbidden, 403), status(NotFound, 404)
FAILS, GONE, BROKEN, BUG = status(ServerError, 500), Unreachable("x"), MalformedAnswer("x"), RuntimeError("x")
AWAY = status(GroupUnavailable, 503)
SILENT, ENDLESS = WatchSilent("x"), NoInitialEventsEnd("x")
COMPACTED = ServerError(500, "InternalError", "required revision has been compacted")


def at_once(then, **more):
    return Transition(then, waits=False, **more)


@pytest.mark.parametrize(
    ("fault", "transition"),
    [
        (SILENT, at_once(AGAIN)),
        *((fault, Transition(AGAIN)) for fault in (GONE, ShortWatch("x"), BUSY, REFUSED, BROKEN, BUG)),
        (status(Unauthorized, 401), Transition(AGAIN)),
        (status(ServerError, 503), Transition(AGAIN)),
        (AWAY, Transition(AGAIN)),
        (EXPIRED, at_once(Starting())),
        (TOO_LARGE, Transition(MOST_RECENT)),
        (status(InvalidRequest, 400), Transition(MOST_RECENT)),
        (MISSING, Transition(Starting())),
        (status(Conflict, 409), Transition(Starting())),
        (Inconsistent("x"), Transition(Listing(quorum=True))),
        (RelistRequested("x"), at_once(MOST_RECENT)),
    ],
)
def test_a_watch_is_resumed_wherever_that_can_help(fault, transition):
    """A list is made only when the watch can't be resumed (client-go 125, 127, 128)."""
    assert transition_after(fault, Watching("9"), AT) == transition


@pytest.mark.client_go(142)
@pytest.mark.parametrize(
    ("fault", "at", "then"),
    [
        (status(ServerError, 500, "StoreReadError"), AT, Starting()),
        (BROKEN, Circumstances("10", repeated=1), Starting()),
        (BUG, Circumstances("10", repeated=1), Starting()),
        (COMPACTED, Circumstances("10", repeated=4), AGAIN),
        (COMPACTED, Circumstances("10", repeated=5), Starting()),
        (AWAY, Circumstances("10", repeated=5), AGAIN),
        (EXPIRED, Circumstances("10", fruitless=True), Starting()),
    ],
    ids=[
        "a corrupt object that was deleted by force is found missing by a list (client-go 142)",
        "a broken line at the same version is gone around",
        "so is a bug",
        "a server that fails four times at a version",
        "one that says 500 instead of 410 does not keep the cache old for ever",
        "a group whose API service is away would answer no list either",
        "410 right after a list is waited out",
    ],
)
def test_what_happens_again_at_a_version_leads_to_a_list(fault, at, then):
    """After a wait: no server is asked in a circle."""
    assert transition_after(fault, AGAIN, at) == Transition(then)


@pytest.mark.parametrize(
    ("fault", "transition"),
    [
        (EXPIRED, at_once(Streaming(quorum=True))),
        (TOO_LARGE, at_once(Streaming(quorum=True))),
        (status(InvalidRequest, 422), at_once(Listing(), gives_up_streaming=True)),
        (ENDLESS, at_once(Listing())),
        (SILENT, at_once(Listing())),
        *((fault, Transition(Starting())) for fault in (GONE, BUSY, REFUSED, MISSING, AWAY)),
        *((fault, Transition(Listing())) for fault in (FAILS, BROKEN, BUG)),
    ],
)
def test_a_stream_that_fails_becomes_a_list_where_that_can_help(fault, transition):
    """Some servers do not stream lists, and none is asked twice whether it does (client-go 149, 150, 153)."""
    assert transition_after(fault, Streaming(), AT) == transition


@pytest.mark.parametrize("fault", [ENDLESS, SILENT])
def test_the_second_stream_without_an_end_is_the_last(fault):
    """The first may have been an accident: it costs this list only. Two in a row are how the server is."""
    second = Circumstances("10", unfinished=1)
    assert transition_after(fault, Streaming(), second) == at_once(Listing(), gives_up_streaming=True)


def test_streaks_end_with_success_another_version_or_time():
    """What happened long ago, or elsewhere, does not count against a server."""
    streak = Streak()
    for now in (0.0, 599.0):
        streak.note(FAILS, AGAIN, "10", now)
    repeated = [streak.repeated(*at) for at in (("10", 600.0), ("11", 600.0), ("10", 1300.0))]
    assert repeated == [2, 0, 0]
    streak.note(GONE, AGAIN, "10", 600.0)
    assert streak.repeated("10", 600.0) == 2
    streak.note(SILENT, AGAIN, "10", 600.0)
    assert streak.unfinished == 0
    streak.note(SILENT, Streaming(), "10", 600.0)
    assert streak.unfinished == 1


@pytest.mark.parametrize(
    ("fault", "state", "transition"),
    [
        (EXPIRED, Streaming(quorum=True), Transition(Listing(quorum=True))),
        (EXPIRED, Listing(quorum=True), Transition(MOST_RECENT)),
        (EXPIRED, Listing(), at_once(Listing(quorum=True))),
        (TOO_LARGE, Listing(), at_once(Listing(quorum=True))),
        *((fault, Listing(), Transition(Starting())) for fault in (GONE, REFUSED, MISSING, OSError())),
        *((fault, Listing(quorum=True), Transition(MOST_RECENT)) for fault in (GONE, REFUSED, MISSING)),
        (OSError(), Listing(quorum=True), Transition(MOST_RECENT)),
    ],
)
def test_a_list_at_a_useless_version_asks_for_the_most_recent_once_and_others_wait(fault, state, transition):
    """What a list was asked to be, most recent or not, is kept; there is nothing newer to ask for."""
    assert transition_after(fault, state, AT) == transition


def test_nothing_is_repeated_at_once():
    """No fault leads to the same question without a wait, so that nothing ever spins."""
    faults = [EXPIRED, TOO_LARGE, status(InvalidRequest), FAILS, MISSING, GONE, ENDLESS, BROKEN, BUG]
    faults += [ShortWatch("x"), Inconsistent("x")]
    states = [AGAIN, *(s(q) for s in (Streaming, Listing, Starting) for q in (False, True))]
    for fault in faults:
        for state in states:
            for fruitless in (False, True):
                transition = transition_after(fault, state, Circumstances("10", fruitless=fruitless))
                assert transition.waits or transition.then != state
