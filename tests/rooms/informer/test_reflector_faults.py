"""What a fault leads to, as a table."""

import pytest

from declctl.errors import (
    Conflict,
    Expired,
    Forbidden,
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


def status(kind, code=0, reason="", **more):
    return kind(code, reason, "", **more)


@pytest.mark.parametrize(
    ("fault", "transition"),
    [
        (WatchSilent("x"), Transition(AGAIN, waits=False)),
        (Unreachable("x"), Transition(AGAIN)),
        (ShortWatch("x"), Transition(AGAIN)),
        (status(TooManyRequests, 429), Transition(AGAIN)),
        (status(Forbidden, 403), Transition(AGAIN)),
        (status(Unauthorized, 401), Transition(AGAIN)),
        (status(ServerError, 503), Transition(AGAIN)),
        (status(Expired, 410), Transition(Starting(), waits=False)),
        (status(TooLargeResourceVersion, 504), Transition(Starting(quorum=True))),
        (status(InvalidRequest, 400), Transition(Starting(quorum=True))),
        (status(NotFound, 404), Transition(Starting())),
        (status(Conflict, 409), Transition(Starting())),
        (MalformedAnswer("x"), Transition(AGAIN)),
        (RuntimeError("x"), Transition(AGAIN)),
        (Inconsistent("x"), Transition(Listing(quorum=True))),
        (RelistRequested("x"), Transition(Starting(quorum=True), waits=False)),
    ],
)
def test_a_watch_is_resumed_wherever_that_can_help(fault, transition):
    """A list is made only when the watch can't be resumed (client-go 125, 127, 128)."""
    assert transition_after(fault, Watching("9"), AT) == transition


def test_an_object_that_cannot_be_read_leads_to_a_list():
    """A corrupt object that was deleted by force is found missing by a list (client-go 142)."""
    fault = status(ServerError, 500, "StoreReadError")
    assert transition_after(fault, AGAIN, AT) == Transition(Starting())


@pytest.mark.parametrize("fault", [MalformedAnswer("x"), RuntimeError("x")])
def test_what_cannot_be_read_twice_is_gone_around(fault):
    """A broken line at the same version is not asked for again and again: a list goes around it."""
    assert transition_after(fault, AGAIN, Circumstances("10", repeated=1)) == Transition(Starting())


@pytest.mark.parametrize(("times", "then"), [(4, AGAIN), (5, Starting())])
def test_a_server_that_keeps_failing_at_a_version_is_asked_for_everything(times, then):
    """A server that has lost a version and says 500 instead of 410 doesn't keep the cache old for ever."""
    fault = ServerError(500, "InternalError", "required revision has been compacted")

    assert transition_after(fault, AGAIN, Circumstances("10", repeated=times)) == Transition(then)


def test_a_server_whose_lists_expire_at_once_is_not_asked_in_a_circle():
    """410 right after a list is waited out."""
    assert transition_after(status(Expired, 410), AGAIN, Circumstances("10", fruitless=True)) == Transition(
        Starting()
    )


@pytest.mark.parametrize(
    ("fault", "transition"),
    [
        (status(Expired, 410), Transition(Streaming(quorum=True), waits=False)),
        (status(TooLargeResourceVersion, 504), Transition(Streaming(quorum=True), waits=False)),
        (status(InvalidRequest, 422), Transition(Listing(), waits=False, gives_up_streaming=True)),
        (NoInitialEventsEnd("x"), Transition(Listing(), waits=False)),
        (WatchSilent("x"), Transition(Listing(), waits=False)),
        (Unreachable("x"), Transition(Starting())),
        (status(TooManyRequests, 429), Transition(Starting())),
        (status(Forbidden, 403), Transition(Starting())),
        (status(NotFound, 404), Transition(Starting())),
        (status(ServerError, 500), Transition(Listing())),
        (MalformedAnswer("x"), Transition(Listing())),
        (RuntimeError("x"), Transition(Listing())),
    ],
)
def test_a_stream_that_fails_becomes_a_list_where_that_can_help(fault, transition):
    """Some servers do not stream lists, and none is asked twice whether it does (client-go 149, 150, 153)."""
    assert transition_after(fault, Streaming(), AT) == transition


@pytest.mark.parametrize("fault", [NoInitialEventsEnd("x"), WatchSilent("x")])
def test_the_second_stream_without_an_end_is_the_last(fault):
    """The first may have been an accident: it costs this list only. Two in a row are how the server is."""
    second = Circumstances("10", unfinished=1)
    assert transition_after(fault, Streaming(), second) == Transition(
        Listing(), waits=False, gives_up_streaming=True
    )


def test_streaks_end_with_success_another_version_or_time():
    """What happened long ago, or elsewhere, does not count against a server."""
    streak, fault = Streak(), status(ServerError, 500)
    for now in (0.0, 599.0):
        streak.note(fault, AGAIN, "10", now)
    assert [streak.repeated("10", 600.0), streak.repeated("11", 600.0), streak.repeated("10", 1300.0)] == [
        2,
        0,
        0,
    ]
    streak.note(Unreachable("x"), AGAIN, "10", 600.0)
    assert streak.repeated("10", 600.0) == 2
    streak.note(WatchSilent("x"), AGAIN, "10", 600.0)
    assert streak.unfinished == 0
    streak.note(WatchSilent("x"), Streaming(), "10", 600.0)
    assert streak.unfinished == 1


def test_the_most_recent_state_that_expires_is_waited_for():
    """There is nothing newer to ask for."""
    fault = status(Expired, 410)
    assert transition_after(fault, Streaming(quorum=True), AT) == Transition(Listing(quorum=True))
    assert transition_after(fault, Listing(quorum=True), AT) == Transition(Starting(quorum=True))


@pytest.mark.parametrize("kind", [Expired, TooLargeResourceVersion])
def test_a_list_at_a_useless_version_asks_for_the_most_recent(kind):
    """At once, and once (client-go 135, 137)."""
    assert transition_after(status(kind, 410), Listing(), AT) == Transition(Listing(quorum=True), waits=False)


@pytest.mark.parametrize(
    "fault", [Unreachable("x"), status(Forbidden, 403), status(NotFound, 404), OSError()]
)
def test_a_list_that_fails_is_waited_for(fault):
    """And what it was asked to be, most recent or not, is kept."""
    assert transition_after(fault, Listing(), AT) == Transition(Starting())
    assert transition_after(fault, Listing(quorum=True), AT) == Transition(Starting(quorum=True))


def test_nothing_is_repeated_at_once():
    """No fault leads to the same question without a wait, so that nothing ever spins."""
    faults = [
        kind(0, "", "") for kind in (Expired, TooLargeResourceVersion, InvalidRequest, ServerError, NotFound)
    ]
    faults += [
        Unreachable("x"),
        NoInitialEventsEnd("x"),
        MalformedAnswer("x"),
        RuntimeError("x"),
        ShortWatch("x"),
        Inconsistent("x"),
    ]
    states = [Watching("10"), *(s(q) for s in (Streaming, Listing, Starting) for q in (False, True))]
    for fault in faults:
        for state in states:
            for fruitless in (False, True):
                transition = transition_after(fault, state, Circumstances("10", fruitless=fruitless))
                assert transition.waits or transition.then != state
