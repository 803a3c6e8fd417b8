"""What a fault leads to: the reflector's policy, as pure functions. `backoff` says how long it waits.

    fault               while watching                      while everything is asked for
    ------------------  ----------------------------------  --------------------------------------
    silence             watch again at once                 stream: list instead, at once, and for good
                                                            if it is the second; list: back off
    unreachable, 429    back off, watch again               back off
    401, 403            back off, watch again               back off
    404                 back off, ask for everything        back off
    410                 ask for everything                  ask for the most recent, at once
    version too large   back off, ask for the most recent   ask for the most recent, at once
    5xx                 back off, watch again; if it is     back off; after a stream, list
                        the same version for long:
                        everything
    malformed, foreign  back off, watch again; if it is     back off; after a stream, list
                        the same version again: everything
    400, 405, 422       back off, ask for the most recent   stream: list from now on; list: back off
    a stream that ends                                      as silence
    too early
    a cache that is     back off, list the most recent
    not the server's

Watching again is from the last version, without a list. So nothing is asked twice without a wait
unless the second question can't fail in the same way.
"""

from dataclasses import dataclass

from declctl.errors import (
    ApiError,
    Expired,
    Forbidden,
    InvalidRequest,
    NotFound,
    ServerError,
    StatusError,
    TooLargeResourceVersion,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    WatchSilent,
)
from declctl.informer.reflector.states import Listing, Starting, State, Streaming, Watching

_UNREADABLE, _FAILING = 1, 5  # repetitions at one version after which a list goes around it
_STREAK_SECONDS = 600.0  # between two faults of one streak; longer than what a server may ask us to wait
_UNFINISHED = 1  # streaming lists that came to no end before the one with which they are given up


class ShortWatch(ApiError):
    """A watch that ended at once and brought nothing (client-go's VeryShortWatchError)."""


class NoInitialEventsEnd(ApiError):
    """A streaming list that ended without saying that it was complete."""


class Inconsistent(ApiError):
    """What a streaming list brought is not what a LIST at its version has."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the policy has to know besides the fault.

    `version` is the last one seen; `fruitless` says that no watch has brought anything since
    everything was asked for; `repeated` how often in a row a watch from this version failed like
    this before; `unfinished` how many streaming lists in a row came to no end before this one.
    """

    version: str
    fruitless: bool = False
    repeated: int = 0
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which state follows, whether after a wait, and whether streaming lists are given up for good."""

    then: State
    waits: bool = True
    gives_up_streaming: bool = False


def judge(fault: Exception, state: State, about: Circumstances) -> Verdict:
    """What follows a fault in a state."""
    match state:
        case Watching():
            return _after_watching(fault, about)
        case Streaming(quorum):
            return _after_streaming(fault, about, quorum=quorum)
        case Listing(quorum) if isinstance(fault, Expired | TooLargeResourceVersion) and not quorum:
            return Verdict(Listing(quorum=True), waits=False)
        case Listing(quorum):
            return Verdict(Starting(quorum))
        case _:
            return Verdict(state)


def _after_watching(fault: Exception, about: Circumstances) -> Verdict:
    again = Watching(about.version)
    match fault:
        case WatchSilent():
            return Verdict(again, waits=False)  # the connection is dead, not the server
        case Expired():
            # Not older than what was seen is enough, and cheaper for the server. A server whose
            # lists are expired at once is not asked in a circle.
            return Verdict(Starting(), waits=about.fruitless)
        case TooLargeResourceVersion() | InvalidRequest():
            return Verdict(Starting(quorum=True))
        case Inconsistent():
            return Verdict(Listing(quorum=True))
        case NotFound() | ServerError(reason="StoreReadError"):
            return Verdict(Starting())  # an object can't be read: a list goes around it (client-go 142)
        case ServerError():
            # Some servers answer so to a version that they have lost (an aggregated one whose etcd
            # has compacted it): a list, which must not be made by everybody while a server is down.
            return Verdict(Starting() if about.repeated >= _FAILING else again)
        case Unreachable() | ShortWatch() | TooManyRequests() | Forbidden() | Unauthorized():
            return Verdict(again)
        case _:
            lost = not unreadable(fault) or about.repeated >= _UNREADABLE
            return Verdict(Starting() if lost else again)


def _after_streaming(fault: Exception, about: Circumstances, *, quorum: bool) -> Verdict:
    match fault:
        case Expired() | TooLargeResourceVersion() if not quorum:
            return Verdict(Streaming(quorum=True), waits=False)
        case InvalidRequest():
            return Verdict(Listing(quorum), waits=False, gives_up_streaming=True)
        case NoInitialEventsEnd() | WatchSilent():
            for_good = about.unfinished >= _UNFINISHED
            return Verdict(Listing(quorum), waits=False, gives_up_streaming=for_good)
        case Unreachable() | TooManyRequests() | Forbidden() | Unauthorized() | NotFound():
            return Verdict(Starting(quorum))
        case _:
            return Verdict(Listing(quorum))


def unreadable(fault: Exception) -> bool:
    """Whether an answer came that could not be read, or that the source itself stumbled over."""
    return not isinstance(fault, StatusError | Unreachable | ShortWatch | WatchSilent | Inconsistent)


class Streak:
    """What came again and again: faults of watches from one version, and streams without an end.

    Ten minutes without such a fault end a streak of watches, a stream that is complete ends the
    other.
    """

    def __init__(self) -> None:
        self.unfinished = 0
        self._version = ""
        self._times = 0
        self._last = float("-inf")

    def repeated(self, version: str, now: float) -> int:
        """How often in a row watches from `version` failed so far."""
        return self._times if version == self._version and now - self._last <= _STREAK_SECONDS else 0

    def note(self, fault: Exception, state: State, version: str, now: float) -> None:
        """This happened now, in seconds on the clock."""
        if isinstance(state, Streaming):
            self.unfinished += isinstance(fault, NoInitialEventsEnd | WatchSilent)
        elif isinstance(state, Watching) and (unreadable(fault) or isinstance(fault, ServerError)):
            self._times = self.repeated(version, now) + 1
            self._version, self._last = version, now
