"""The reflector's policy: its states, and the table of what follows each fault.

    Starting ──► Streaming ───┐     asks for a watch that begins with everything, where the server has them
        │            │        ├──► Watching ──► Watching    the server ends each watch after some minutes
        └───────► Listing ────┘                             without a version to go on from: Starting

After a fault the table says which state follows, in most cases after BackingOff. The states are values, and
`transition_after` is a pure function of a fault, a state and the circumstances. Each row has a fault, what
follows it during a watch, and what follows it during a LIST or a streaming list. "wait" is the back-off
(`ExponentialBackoff`). Every watch begins at the last version that was seen, if there is one.

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

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

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
from declctl.kit import Clock

_UNREADABLE, _FAILING = 1, 5  # repetitions at one version after which a list goes around it
_STREAK_SECONDS = 600.0  # between two faults of one streak; longer than what a server may ask us to wait
_UNFINISHED = 1  # streaming lists that came to no end before the one with which they are given up
FIRST, FACTOR, LONGEST, QUIET = 0.8, 2.0, 30.0, 120.0  # seconds, as in client-go
_LONGEST_WHILE_MISSING = 10.0  # seconds: a kind that appears is listed soon after that
_LONGEST_RETRY_AFTER = 300.0  # seconds: the longest wait that a server can ask for
_WAIT_SECONDS = 10.0  # between two calls of `on_wait`, as client-go's wait for a bookmark


@dataclass(frozen=True, slots=True)
class Starting:
    """Ask for everything, by a streaming list if the server has them. `quorum` as in Listing."""

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Streaming:
    """Open a watch that brings everything first (WatchList), and goes on as a watch."""

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """List everything, page by page, then watch from the version of the list.

    `quorum` asks for the most recent state. Without it, a state is enough that is not older than the version
    that was seen.
    """

    quorum: bool = False


@dataclass(frozen=True, slots=True)
class Watching:
    """Watch from a version."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class BackingOff:
    """Wait `seconds` because of `reason`, then go on with `then`.

    `shared`: the server, or the network, has failed. All watches wait for it together, and go on when it is
    back.
    """

    reason: str
    seconds: float
    then: "State"
    shared: bool = False


State = Starting | Streaming | Listing | Watching | BackingOff


class ShortWatch(ApiError):
    """A watch that ended at once and brought nothing (client-go's VeryShortWatchError)."""


class NoInitialEventsEnd(ApiError):
    """A streaming list ended, and the server had not said that it was complete."""


class HistoryReplaced(ApiError):
    """The server was put back to a backup: its history is not the one that the cache is from."""


class RelistRequested(ApiError):
    """A list of the most recent state was requested: no fault, but the end of a watch."""


class Inconsistent(ApiError):
    """A streaming list brought other objects than a LIST at its version."""


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
class Transition:
    """The state that follows, whether the reflector waits before it, and whether it streams no more lists."""

    then: State
    waits: bool = True
    gives_up_streaming: bool = False


def transition_after(fault: Exception, state: State, about: Circumstances) -> Transition:
    """What follows a fault in a state."""
    if isinstance(fault, HistoryReplaced):
        return Transition(Listing(quorum=True))
    if isinstance(fault, RelistRequested):
        return Transition(Starting(quorum=True), waits=False)
    match state:
        case Watching():
            return _after_watching(fault, about)
        case Streaming(quorum):
            return _after_streaming(fault, about, quorum=quorum)
        case Listing(quorum) if isinstance(fault, Expired | TooLargeResourceVersion) and not quorum:
            return Transition(Listing(quorum=True), waits=False)
        case Listing(quorum):
            return Transition(Starting(quorum))
        case _:
            return Transition(state)


def _after_watching(fault: Exception, about: Circumstances) -> Transition:
    # Without a version no watch can be resumed: only a list tells what is gone since.
    again = Watching(about.version) if about.version else Starting()
    match fault:
        case WatchSilent():
            # The connection is dead, and the server is maybe not: the next watch has a connection of its own.
            return Transition(again, waits=False)
        case Expired():
            # A list that is not older than what was seen is enough, and cheaper for the server. A server
            # whose lists are expired at once is not asked in a circle.
            return Transition(Starting(), waits=about.fruitless)
        case TooLargeResourceVersion() | InvalidRequest():
            # The version itself may be what the server does not accept: ask without one.
            return Transition(Starting(quorum=True))
        case Inconsistent():
            # No stream again: a stream is what was wrong.
            return Transition(Listing(quorum=True))
        case NotFound() | ServerError(reason="StoreReadError"):
            # An object can't be read: a list goes around it (client-go 142).
            return Transition(Starting())
        case ServerError():
            # Some servers answer so to a version that they have lost (an aggregated one whose etcd has
            # compacted it): a list, but not at the first time, when every watch of a server that is down
            # would list.
            return Transition(Starting() if about.repeated >= _FAILING else again)
        case Unreachable() | ShortWatch() | TooManyRequests() | Forbidden() | Unauthorized():
            return Transition(again)
        case _:
            # A broken line may be chance. If it comes twice from one version, the server sends it for ever.
            lost = not unreadable(fault) or about.repeated >= _UNREADABLE
            return Transition(Starting() if lost else again)


def _after_streaming(fault: Exception, about: Circumstances, *, quorum: bool) -> Transition:
    match fault:
        case Expired() | TooLargeResourceVersion() if not quorum:
            # The version that was asked for is the reason; without one the same can't happen.
            return Transition(Streaming(quorum=True), waits=False)
        case InvalidRequest():
            # A server without streaming lists refuses them: it will always.
            return Transition(Listing(quorum), waits=False, gives_up_streaming=True)
        case NoInitialEventsEnd() | WatchSilent():
            # Some proxies and old servers ignore the wish, and send a plain watch that never says its end.
            for_good = about.unfinished >= _UNFINISHED
            return Transition(Listing(quorum), waits=False, gives_up_streaming=for_good)
        case Unreachable() | TooManyRequests() | Forbidden() | Unauthorized() | NotFound():
            # A LIST would meet the same.
            return Transition(Starting(quorum))
        case _:
            return Transition(Listing(quorum))


def doubts_server(fault: Exception) -> bool:
    """Whether the server, or the network, may be away: then the fault is not of this request alone."""
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

    The first count begins anew with another version, or after ten minutes without such a fault.
    """

    def __init__(self) -> None:
        self.unfinished = 0  # streaming lists in a row; the reflector sets it to 0 when one is complete
        self._version = ""  # from which the watches failed
        self._times = 0  # how many of them in a row
        self._last = float("-inf")  # when the last one did, on the clock

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


class BackoffManager(Protocol):
    """A schedule of waits. Each reflector has its own, and calls `seconds` once for each fault."""

    def seconds(self, fault: Exception) -> float:
        """The wait after this fault, in seconds."""
        ...


BackoffFactory = Callable[[Clock], BackoffManager]


class ExponentialBackoff:
    """`first` seconds, multiplied by `factor` after each fault up to `longest`.

    A wait of d becomes a random one in [d, 2d). After `quiet` seconds without a fault the schedule begins at
    `first` again. Where a server asks for a longer wait (Retry-After), that counts, up to five minutes.
    While a kind is missing, d is at most ten seconds.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        first: float = FIRST,
        factor: float = FACTOR,
        longest: float = LONGEST,
        quiet: float = QUIET,
    ) -> None:
        self._clock = clock
        self._first, self._factor, self._longest, self._quiet = first, factor, longest, quiet
        self._next = first  # the wait after the next fault, without its random part
        self._last = float("-inf")  # when the last wait ended

    def seconds(self, fault: Exception) -> float:
        """The wait after this fault, in seconds."""
        now = self._clock.monotonic()
        if now - self._last > self._quiet:
            self._next = self._first
        longest = min(self._longest, _LONGEST_WHILE_MISSING) if isinstance(fault, NotFound) else self._longest
        base = min(self._next, longest)
        self._next = min(self._next * self._factor, self._longest)
        asked = fault.retry_after if isinstance(fault, StatusError) else None
        # A random part, so that a thousand clients do not return at the same moment.
        wait = max(base * (1 + self._clock.random()), min(asked or 0.0, _LONGEST_RETRY_AFTER))
        self._last = now + wait
        return wait


class Deadline:
    """Cancels the body of its `async with`: after `idle` seconds without a `touch`, or `overall` seconds.

    Then leaving the body raises WatchSilent. The body calls `touch` for everything that it receives.
    `interrupt` ends the body at once, and leaving the body raises the exception of the caller. `on_wait` is
    called every 10 s while the body runs, with two times in seconds: since the beginning, and since the last
    `touch`. A deadline costs one task; a `touch` costs none. Used on one loop.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        idle: float,
        overall: float = float("inf"),
        what: str,
        on_wait: Callable[[float, float], None] | None = None,
    ) -> None:
        self._clock = clock
        self._on_wait = on_wait
        self._idle = idle
        self._overall = overall
        self._what = what  # the subject of the message
        self._heard = self._began = clock.monotonic()  # when it was touched last, and when it began
        self._interrupted = False  # the body was cancelled by this deadline
        self._fault: Exception | None = None  # what the body raises then; None for WatchSilent
        self._body: asyncio.Task[object] | None = None  # while it runs
        self._watchdog: asyncio.Task[None] | None = None
        self._cancelling = 0  # requests to cancel the body that were pending when it began

    def touch(self) -> float:
        """Note that something was received now; returns the time of that, on the clock."""
        self._heard = self._clock.monotonic()
        return self._heard

    def interrupt(self, fault: Exception) -> None:
        """End the body, which then raises `fault`. Outside of the body nothing happens."""
        if self._body is not None and not self._interrupted:
            self._fault, self._interrupted = fault, True
            self._body.cancel()

    async def __aenter__(self) -> Self:
        self._body = asyncio.current_task()
        assert self._body is not None
        self._cancelling = self._body.cancelling()
        self._watchdog = asyncio.create_task(self._watch(self._body))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        assert body is not None
        assert self._watchdog is not None
        self._watchdog.cancel()
        if not self._interrupted:
            return
        # As asyncio.timeout does: a cancellation from elsewhere goes first.
        if body.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            if self._fault is not None:
                raise self._fault from error
            silent = self._clock.monotonic() - self._heard
            if silent >= self._idle:
                raise WatchSilent(
                    f"{self._what} said nothing, not even a bookmark, for {silent:.0f} s"
                ) from error
            raise WatchSilent(f"{self._what} was not complete after {self._overall:.0f} s") from error

    async def _watch(self, body: "asyncio.Task[object]") -> None:
        # A touch only writes down the time. So the end is looked for again wherever it was put off.
        while (left := self._left()) > 0:
            if self._on_wait is None:
                await self._clock.sleep(left)
                continue
            await self._clock.sleep(min(left, _WAIT_SECONDS))
            now = self._clock.monotonic()
            if self._left() > 0:
                self._on_wait(now - self._began, now - self._heard)
        if not self._interrupted:
            self._interrupted = True
            body.cancel()

    def _left(self) -> float:
        until = min(self._heard + self._idle, self._began + self._overall)
        return until - self._clock.monotonic()
