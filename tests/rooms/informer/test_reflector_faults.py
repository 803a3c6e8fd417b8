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
    Verdict,
    Watching,
    judge,
)

AT = Circumstances("10")
AGAIN = Watching("10")


def status(kind, code=0, reason="", **more):
    return kind(code, reason, "", **more)


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (WatchSilent("x"), Verdict(AGAIN, waits=False)),
        (Unreachable("x"), Verdict(AGAIN)),
        (ShortWatch("x"), Verdict(AGAIN)),
        (status(TooManyRequests, 429), Verdict(AGAIN)),
        (status(Forbidden, 403), Verdict(AGAIN)),
        (status(Unauthorized, 401), Verdict(AGAIN)),
        (status(ServerError, 503), Verdict(AGAIN)),
        (status(Expired, 410), Verdict(Starting(), waits=False)),
        (status(TooLargeResourceVersion, 504), Verdict(Starting(quorum=True))),
        (status(InvalidRequest, 400), Verdict(Starting(quorum=True))),
        (status(NotFound, 404), Verdict(Starting())),
        (status(Conflict, 409), Verdict(Starting())),
        (MalformedAnswer("x"), Verdict(AGAIN)),
        (RuntimeError("x"), Verdict(AGAIN)),
        (Inconsistent("x"), Verdict(Listing(quorum=True))),
        (RelistRequested("x"), Verdict(Starting(quorum=True), waits=False)),
    ],
)
def test_a_watch_is_resumed_wherever_that_can_help(fault, verdict):
    """A list is made only when the watch can't be resumed (client-go 125, 127, 128)."""
    assert judge(fault, Watching("9"), AT) == verdict


def test_an_object_that_cannot_be_read_leads_to_a_list():
    """A corrupt object that was deleted by force is found missing by a list (client-go 142)."""
    fault = status(ServerError, 500, "StoreReadError")
    assert judge(fault, AGAIN, AT) == Verdict(Starting())


@pytest.mark.parametrize("fault", [MalformedAnswer("x"), RuntimeError("x")])
def test_what_cannot_be_read_twice_is_gone_around(fault):
    """A broken line at the same version is not asked for again and again: a list goes around it."""
    assert judge(fault, AGAIN, Circumstances("10", repeated=1)) == Verdict(Starting())


@pytest.mark.parametrize(("times", "then"), [(4, AGAIN), (5, Starting())])
def test_a_server_that_keeps_failing_at_a_version_is_asked_for_everything(times, then):
    """A server that has lost a version and says 500 instead of 410 doesn't keep the cache old for ever."""
    fault = ServerError(500, "InternalError", "required revision has been compacted")

    assert judge(fault, AGAIN, Circumstances("10", repeated=times)) == Verdict(then)


def test_a_server_whose_lists_expire_at_once_is_not_asked_in_a_circle():
    """410 right after a list is waited out."""
    assert judge(status(Expired, 410), AGAIN, Circumstances("10", fruitless=True)) == Verdict(Starting())


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (status(Expired, 410), Verdict(Streaming(quorum=True), waits=False)),
        (status(TooLargeResourceVersion, 504), Verdict(Streaming(quorum=True), waits=False)),
        (status(InvalidRequest, 422), Verdict(Listing(), waits=False, gives_up_streaming=True)),
        (NoInitialEventsEnd("x"), Verdict(Listing(), waits=False)),
        (WatchSilent("x"), Verdict(Listing(), waits=False)),
        (Unreachable("x"), Verdict(Starting())),
        (status(TooManyRequests, 429), Verdict(Starting())),
        (status(Forbidden, 403), Verdict(Starting())),
        (status(NotFound, 404), Verdict(Starting())),
        (status(ServerError, 500), Verdict(Listing())),
        (MalformedAnswer("x"), Verdict(Listing())),
        (RuntimeError("x"), Verdict(Listing())),
    ],
)
def test_a_stream_that_fails_becomes_a_list_where_that_can_help(fault, verdict):
    """Some servers do not stream lists, and none is asked twice whether it does (client-go 149, 150, 153)."""
    assert judge(fault, Streaming(), AT) == verdict


@pytest.mark.parametrize("fault", [NoInitialEventsEnd("x"), WatchSilent("x")])
def test_the_second_stream_without_an_end_is_the_last(fault):
    """The first may have been an accident: it costs this list only. Two in a row are how the server is."""
    second = Circumstances("10", unfinished=1)
    assert judge(fault, Streaming(), second) == Verdict(Listing(), waits=False, gives_up_streaming=True)


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
    assert judge(fault, Streaming(quorum=True), AT) == Verdict(Listing(quorum=True))
    assert judge(fault, Listing(quorum=True), AT) == Verdict(Starting(quorum=True))


@pytest.mark.parametrize("kind", [Expired, TooLargeResourceVersion])
def test_a_list_at_a_useless_version_asks_for_the_most_recent(kind):
    """At once, and once (client-go 135, 137)."""
    assert judge(status(kind, 410), Listing(), AT) == Verdict(Listing(quorum=True), waits=False)


@pytest.mark.parametrize(
    "fault", [Unreachable("x"), status(Forbidden, 403), status(NotFound, 404), OSError()]
)
def test_a_list_that_fails_is_waited_for(fault):
    """And what it was asked to be, most recent or not, is kept."""
    assert judge(fault, Listing(), AT) == Verdict(Starting())
    assert judge(fault, Listing(quorum=True), AT) == Verdict(Starting(quorum=True))


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
                verdict = judge(fault, state, Circumstances("10", fruitless=fruitless))
                assert verdict.waits or verdict.then != state
