"""What a fault leads to: the reflector's policy, as pure functions, and how long it waits.

    fault               while watching                      while everything is asked for
    ------------------  ----------------------------------  --------------------------------------
    silence             watch again at once                 stream: list instead; list: back off
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
from declctl.informer.reflector_states import Listing, Starting, State, Streaming, Watching
from declctl.kit import Clock

_FIRST_BACKOFF, _LONGEST_BACKOFF, _FACTOR = 0.8, 30.0, 2.0  # seconds, as in client-go
_LONGEST_WHILE_MISSING = 10.0  # a kind may appear at any moment, and shall start soon after that
_LONGEST_RETRY_AFTER = 300.0  # a server that asks for more is asked again then
_QUIET_SECONDS = 120.0  # without a fault for so long, back-off begins anew
_UNREADABLE, _FAILING = 1, 5  # repetitions at one version after which a list goes around it


class ShortWatch(ApiError):
    """A watch that ended at once and brought nothing (client-go's VeryShortWatchError)."""


class NoInitialEventsEnd(ApiError):
    """A streaming list that ended without saying that it was complete."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the policy has to know besides the fault.

    `version` is the last one seen; `fruitless` says that no watch has brought anything since
    everything was asked for; `repeated` how often in a row a watch from this version failed like
    this before.
    """

    version: str
    fruitless: bool = False
    repeated: int = 0


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
            return _after_streaming(fault, quorum=quorum)
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
        case NotFound():
            return Verdict(Starting())
        case ServerError(reason="StoreReadError"):
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


def _after_streaming(fault: Exception, *, quorum: bool) -> Verdict:
    match fault:
        case Expired() | TooLargeResourceVersion() if not quorum:
            return Verdict(Streaming(quorum=True), waits=False)
        case InvalidRequest() | NoInitialEventsEnd() | WatchSilent():
            return Verdict(Listing(quorum), waits=False, gives_up_streaming=True)
        case Unreachable() | TooManyRequests() | Forbidden() | Unauthorized() | NotFound():
            return Verdict(Starting(quorum))
        case _:
            return Verdict(Listing(quorum))


def unreadable(fault: Exception) -> bool:
    """Whether an answer came that could not be read, or that the source itself stumbled over."""
    return not isinstance(fault, StatusError | Unreachable | ShortWatch | WatchSilent)


def relist_resource_version(version: str, *, quorum: bool) -> str:
    """The version to list at (client-go's relistResourceVersion).

    Empty is the most recent, "0" any; else none older than what was seen: the cache does not go
    back in time.
    """
    return "" if quorum else version or "0"


class Backoff:
    """How long to wait after a fault: 0.8 s, doubled up to 30 s, less up to a half by chance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._in_a_row = 0
        self._last = float("-inf")

    def seconds(self, fault: Exception) -> float:
        """The wait after this fault; what the server asks for, if that is longer."""
        now = self._clock.monotonic()
        self._in_a_row = 0 if now - self._last > _QUIET_SECONDS else self._in_a_row
        longest = _LONGEST_WHILE_MISSING if isinstance(fault, NotFound) else _LONGEST_BACKOFF
        base = min(_FIRST_BACKOFF * _FACTOR ** min(self._in_a_row, 10), longest)
        self._in_a_row += 1
        asked = fault.retry_after if isinstance(fault, StatusError) else None
        wait = max(base * (1 - self._clock.random() / 2), min(asked or 0.0, _LONGEST_RETRY_AFTER))
        self._last = now + wait
        return wait
