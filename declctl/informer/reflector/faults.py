"""What a fault leads to: the reflector's policy, as pure functions.

Each row has a fault, what follows it during a watch, and what follows it during a LIST or a streaming list.
"wait" is the back-off (`backoff`). Every watch begins at the last version that was seen, if there is one.

    fault                   during a watch                        during a list
    ----------------------  ------------------------------------  ------------------------------------------
    silence                 watch, without a wait                 streaming list: LIST instead, without a
                                                                  wait; the second time, for good
                                                                  LIST: wait, list
    unreachable, 429        wait, watch                           wait, list
    401, 403                wait, watch                           wait, list
    404                     wait, list                            wait, list
    410                     list                                  list the most recent state, without a wait
    version too large       wait, list the most recent state      list the most recent state, without a wait
    5xx                     wait, watch; at the sixth time from   wait, list; after a streaming list, LIST
                            one version: wait, list
    malformed, foreign      wait, watch; at the second time from  wait, list; after a streaming list, LIST
                            one version: wait, list
    400, 405, 422           wait, list the most recent state      streaming list: LIST from now on
                                                                  LIST: wait, list
    streaming list without  -                                     as silence
    an end
    the cache differs from  wait, LIST the most recent state      -
    the server
    a list was requested    list the most recent state, without   -
                            a wait
    another history         LIST the most recent state, within    LIST the most recent state, within 2 s
                            2 s

"list" is a streaming list where the server has them, else a LIST. No request is repeated without a wait
unless the second one can't fail in the same way: a 410 is waited for if no watch has brought anything since
the last list.
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


class HistoryReplaced(ApiError):
    """The server was put back to a backup: its history is not the one that the cache is from."""


class RelistRequested(ApiError):
    """Somebody wants the most recent state: no fault, but the end of a watch."""


class Inconsistent(ApiError):
    """What a streaming list brought is not what a LIST at its version has."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the policy takes into account besides the fault and the state.

    - `version` is the last one that was seen.
    - `fruitless`: no watch has brought a change since the last list.
    - `repeated`: so many watches in a row from this version failed before this one.
    - `unfinished`: so many streaming lists in a row did not become complete before this one.
    """

    version: str
    fruitless: bool = False
    repeated: int = 0
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state that follows, whether the reflector waits before it, and whether it streams no more lists."""

    then: State
    waits: bool = True
    gives_up_streaming: bool = False


def judge(fault: Exception, state: State, about: Circumstances) -> Verdict:
    """What follows a fault in a state."""
    if isinstance(fault, HistoryReplaced):
        return Verdict(Listing(quorum=True))
    if isinstance(fault, RelistRequested):
        return Verdict(Starting(quorum=True), waits=False)
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
    # Without a version nothing can be resumed: only a list tells what is gone since.
    again = Watching(about.version) if about.version else Starting()
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


def doubts_server(fault: Exception) -> bool:
    """Whether the fault is maybe not of this request alone: the server, or the network, may be away."""
    return isinstance(fault, Unreachable | ServerError | WatchSilent)


def unreadable(fault: Exception) -> bool:
    """Whether the fault is an answer that could not be read, or an error inside the source."""
    known = StatusError | Unreachable | ShortWatch | WatchSilent
    ours = Inconsistent | HistoryReplaced | RelistRequested
    return not isinstance(fault, known | ours)


def forget_frames(fault: BaseException | None) -> None:
    """Drop the tracebacks of a fault and of those that led to it: frames refer to all that was being read."""
    seen: set[int] = set()
    while fault is not None and id(fault) not in seen:
        seen.add(id(fault))
        fault.__traceback__ = None
        fault = fault.__cause__ or fault.__context__


class Streak:
    """Counts faults in a row: of watches from one version, and of streaming lists that were not completed.

    The first count begins anew with another version, or after ten minutes without such a fault. The reflector
    sets the second one, `unfinished`, to 0 when a streaming list is complete.
    """

    def __init__(self) -> None:
        self.unfinished = 0
        self._version = ""
        self._times = 0
        self._last = float("-inf")

    def repeated(self, version: str, now: float) -> int:
        """How many watches in a row from `version` have failed. `now` is in seconds on the clock."""
        return self._times if version == self._version and now - self._last <= _STREAK_SECONDS else 0

    def note(self, fault: Exception, state: State, version: str, now: float) -> None:
        """Count a fault. `now` is in seconds on the clock."""
        if isinstance(state, Streaming):
            self.unfinished += isinstance(fault, NoInitialEventsEnd | WatchSilent)
        elif isinstance(state, Watching) and (unreadable(fault) or isinstance(fault, ServerError)):
            self._times = self.repeated(version, now) + 1
            self._version, self._last = version, now
