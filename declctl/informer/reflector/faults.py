"""The reflector's policy: its states, and a table of the reaction to each fault.

    Starting ──► Streaming ───┐     asks for a watch that begins with everything, where the server has them
        │            │        ├──► Watching ──► Watching    the server ends each watch after some minutes
        ├───────► Listing ────┤                             without a version to go on from: Starting
        └─◄─── Resuming ──────┘     begins in the place of Starting, with the objects of an earlier process

States are values, and `transition_after` is a pure function of a fault, a state and the circumstances. Each
row of the table has a fault, the reaction during a watch, and the reaction during a LIST or a streaming list.
"wait" is the back-off (`ExponentialBackoff`). Every watch begins at the last version that was seen, if there
is one. "malformed, other" is an answer that can't be read, and every exception of a source that is no
ApiError.

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
    503 of a group alone    wait, watch                           wait, list
    5xx                     wait, watch; at the sixth time from   wait, list; after a streaming list, LIST
                            one version: wait, list
    malformed, other        wait, watch; at the second time from  wait, list; after a streaming list, LIST
                            one version: wait, list
    400, 405, 422           wait, list the most recent state      streaming list: LIST from now on
                                                                  LIST: wait, list
    a shard selector is     the same request without it, from     as during a watch
    refused                 now on, without a wait
    streaming list without  -                                     as silence
    an end
    the cache differs from  wait, LIST the most recent state      -
    the server
    a list was requested    list the most recent state, without   -
                            a wait
    another history         LIST the most recent state, within    LIST the most recent state, within 2 s
                            2 s

While a reflector resumes, a fault after which a watch is repeated is waited for. After any other one, the
kept objects are dropped, and listed.

"list" is a streaming list where the server has them, else a LIST. A request without a wait never repeats one
that could fail in the same way. So there is a wait after a 410, too, if no watch has brought a change since
the last list.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec

from declctl.errors import (
    ApiError,
    Expired,
    Forbidden,
    GroupUnavailable,
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
from declctl.objects import Record

_UNREADABLE, _FAILING = 1, 5  # repetitions at one version, after which a list takes the place of the watch
_STREAK_SECONDS = 600.0  # between two faults of one streak; longer than the wait that a server may ask for
_UNFINISHED = 1  # unfinished streaming lists; after a further one no more are requested
FIRST, FACTOR, LONGEST, QUIET = 0.8, 2.0, 30.0, 120.0  # seconds, as in client-go
_LONGEST_WHILE_MISSING = 10.0  # seconds between two requests for a kind that the server does not have
_LONGEST_RETRY_AFTER = 300.0  # seconds: the longest wait that a server can ask for
_WAIT_SECONDS = 10.0  # between two calls of `on_wait`, as client-go's wait for a bookmark
_LATE_SECONDS = 0.1  # a deadline that is seen later than this is looked at once more …
_GRACE_SECONDS = 5.0  # … after so many seconds


class Starting(msgspec.Struct, frozen=True):
    """Request all objects, by a streaming list if the server has them. `quorum` is as in Listing."""

    quorum: bool = False


class Streaming(msgspec.Struct, frozen=True):
    """Open a watch that begins with all objects (WatchList). `quorum` is as in Listing."""

    quorum: bool = False


class Listing(msgspec.Struct, frozen=True):
    """List all objects, page by page, then watch from the version of the list.

    `quorum` requests the most recent state. Without it, any state is accepted that is not older than the last
    version that was seen.
    """

    quorum: bool = False


class Watching(msgspec.Struct, frozen=True):
    """Watch from a version."""

    resource_version: str


class Resuming(msgspec.Struct, frozen=True, eq=False):
    """Prove that the server still has the history of kept objects, and bring them to the present state."""

    records: Sequence[Record]  # as an earlier process has kept them
    resource_version: str  # up to which they have all changes


class BackingOff(msgspec.Struct, frozen=True):
    """Wait `seconds` because of `reason`, then go on with `then`.

    `shared`: the server or the network has failed. All watches wait together until the server is back.
    """

    reason: str
    seconds: float
    then: "State"
    shared: bool = False


State = Starting | Streaming | Listing | Watching | Resuming | BackingOff


class ShortWatch(ApiError):
    """A watch that ended at once and brought nothing (client-go's VeryShortWatchError)."""


class NoInitialEventsEnd(ApiError):
    """A streaming list ended without the bookmark that marks it as complete."""


class HistoryReplaced(ApiError):
    """The server was restored from a backup: the cache was filled from another history."""


class RelistRequested(ApiError):
    """A list of the most recent state was requested. It is no fault, but ends the watch."""


class Inconsistent(ApiError):
    """A streaming list brought other objects than a LIST at its version."""


class Circumstances(msgspec.Struct, frozen=True):
    """The inputs of the policy besides the fault and the state."""

    version: str  # the last one that was seen
    fruitless: bool = False  # no watch has brought a change since the last list
    repeated: int = 0  # watches from this version that failed in a row before this one
    unfinished: int = 0  # streaming lists in a row that did not become complete before this one


class Transition(msgspec.Struct, frozen=True):
    """The reaction to a fault."""

    then: State  # the next state
    waits: bool = True  # the reflector backs off before it
    gives_up_streaming: bool = False  # the reflector requests no streaming list any longer


def transition_after(fault: Exception, state: State, about: Circumstances) -> Transition:
    """The reaction to a fault in a state, by the table in the module's docstring."""
    if isinstance(fault, HistoryReplaced):
        return Transition(Listing(quorum=True))
    if isinstance(fault, RelistRequested):
        return Transition(Starting(quorum=True), waits=False)
    match state:
        case Watching():
            return _after_watching(fault, about)
        case Streaming(quorum):
            return _after_streaming(fault, about, quorum=quorum)
        case Resuming():
            return _after_resuming(fault, state)
        case Listing(quorum) if isinstance(fault, Expired | TooLargeResourceVersion) and not quorum:
            return Transition(Listing(quorum=True), waits=False)
        case Listing(quorum):
            return Transition(Starting(quorum))
        case _:
            return Transition(state)


def _after_watching(fault: Exception, about: Circumstances) -> Transition:
    # Without a version no watch can be resumed, and only a list shows which objects were deleted meanwhile.
    again = Watching(about.version) if about.version else Starting()
    match fault:
        case WatchSilent():
            # The connection may be dead while the server is well: the next watch has a new connection.
            return Transition(again, waits=False)
        case Expired():
            # A list that is not older than the last version is enough, and is cheap for the server. The wait
            # prevents a busy loop with a server whose lists are expired at once.
            return Transition(Starting(), waits=about.fruitless)
        case TooLargeResourceVersion() | InvalidRequest():
            # The server may reject the version itself: request a list without one.
            return Transition(Starting(quorum=True))
        case Inconsistent():
            # A LIST, because a streaming list was wrong.
            return Transition(Listing(quorum=True))
        case NotFound() | ServerError(reason="StoreReadError"):
            # The server can't read an object from its storage: a list skips it (client-go 142).
            return Transition(Starting())
        case (
            Unreachable()
            | ShortWatch()
            | TooManyRequests()
            | Forbidden()
            | Unauthorized()
            | GroupUnavailable()
        ):
            return Transition(again)
        case ServerError():
            # Some servers answer like this for a lost version, such as an aggregated API whose etcd has
            # compacted it. Then only a list helps. Not at the first time: all watches of a failing server
            # would list at once.
            return Transition(Starting() if about.repeated >= _FAILING else again)
        case _:
            # One broken line may be an accident. A second one at the same version comes back for ever.
            lost = not unreadable(fault) or about.repeated >= _UNREADABLE
            return Transition(Starting() if lost else again)


def _after_resuming(fault: Exception, state: Resuming) -> Transition:
    match fault:
        case (
            Unreachable()
            | TooManyRequests()
            | Forbidden()
            | Unauthorized()
            | GroupUnavailable()
            | WatchSilent()
        ):
            return Transition(state)
        case Expired():
            return Transition(Starting(), waits=False)
        case ServerError(reason=reason) if reason != "StoreReadError":
            return Transition(state)
        case _:
            return Transition(Starting())


def _after_streaming(fault: Exception, about: Circumstances, *, quorum: bool) -> Transition:
    match fault:
        case Expired() | TooLargeResourceVersion() if not quorum:
            # The requested version is the reason. A request without one can't fail like this.
            return Transition(Streaming(quorum=True), waits=False)
        case InvalidRequest():
            # The server has no streaming lists.
            return Transition(Listing(quorum), waits=False, gives_up_streaming=True)
        case NoInitialEventsEnd() | WatchSilent():
            # Some proxies and old servers ignore the parameter and send a plain watch, without a final
            # bookmark.
            for_good = about.unfinished >= _UNFINISHED
            return Transition(Listing(quorum), waits=False, gives_up_streaming=for_good)
        case (
            Unreachable() | TooManyRequests() | Forbidden() | Unauthorized() | NotFound() | GroupUnavailable()
        ):
            # A LIST would fail in the same way.
            return Transition(Starting(quorum))
        case _:
            return Transition(Listing(quorum))


def doubts_server(fault: Exception) -> bool:
    """Whether the server or the network may be down, so that other requests fail, too."""
    away = isinstance(fault, Unreachable | ServerError | WatchSilent)
    return away and not isinstance(fault, GroupUnavailable)


def is_waited_for(fault: Exception | None) -> bool:
    """Whether a cache whose LIST has this fault is worth waiting for.

    Not while the server does not serve the kind or its group, which may last for years, and not if it refuses
    the request itself: only another manifest, or another definition of the kind, changes that.
    """
    return not isinstance(fault, NotFound | GroupUnavailable | InvalidRequest)


def refuses_shard_selector(fault: Exception) -> bool:
    """Whether a server refuses a request because of its `shardSelector`, such as by `invalid shard selector`.

    kube-apiserver 1.36 answers that with 500, which would otherwise be repeated for ever. A server that does
    not know the parameter ignores it.
    """
    text = fault.message.lower() if isinstance(fault, InvalidRequest | ServerError) else ""
    return "shardselector" in text or "shard selector" in text


def unreadable(fault: Exception) -> bool:
    """Whether the fault is an answer that could not be read, or an error inside the source."""
    known = StatusError | Unreachable | ShortWatch | WatchSilent
    ours = Inconsistent | HistoryReplaced | RelistRequested
    return not isinstance(fault, known | ours)


def forget_frames(fault: BaseException | None) -> None:
    """Drop the tracebacks of a fault and of its causes: their frames keep large answers alive."""
    seen: set[int] = set()
    while fault is not None and id(fault) not in seen:
        seen.add(id(fault))
        fault.__traceback__ = None
        fault = fault.__cause__ or fault.__context__


class Streak:
    """Counts faults in a row: of watches from one version, and of streaming lists. Used on one loop.

    The count of watches begins anew with another version, and after ten minutes without such a fault.
    """

    def __init__(self) -> None:
        self.unfinished = 0  # streaming lists in a row; the reflector sets it to 0 after a complete one
        self._version = ""  # from which the counted watches began
        self._times = 0  # watches that failed in a row
        self._last = float("-inf")  # monotonic seconds of the last failure

    def repeated(self, version: str, now: float) -> int:
        """How many watches from `version` have failed in a row. `now` is in monotonic seconds."""
        return self._times if version == self._version and now - self._last <= _STREAK_SECONDS else 0

    def note(self, fault: Exception, state: State, version: str, now: float) -> None:
        """Count a fault. `now` is in monotonic seconds."""
        if isinstance(state, Streaming):
            self.unfinished += isinstance(fault, NoInitialEventsEnd | WatchSilent)
        elif isinstance(state, Watching) and (unreadable(fault) or isinstance(fault, ServerError)):
            self._times = self.repeated(version, now) + 1
            self._version, self._last = version, now


class BackoffManager(Protocol):
    """A schedule of waits after faults (client-go's BackoffManager). Each reflector has its own."""

    def seconds(self, fault: Exception) -> float:
        """The wait after this fault, in seconds. Called once for each fault, on the reflector's loop."""
        ...


BackoffFactory = Callable[[Clock], BackoffManager]
"""Makes the schedule of one reflector."""


class ExponentialBackoff:
    """Waits that grow by `factor` after each fault, from `first` up to `longest` seconds (client-go).

    Each wait is multiplied by a random number in [1, 2). After `quiet` seconds without a fault the schedule
    begins at `first` again. If a server asks for a longer wait (Retry-After), that wait is used, up to five
    minutes. While the server does not have the kind, a wait is at most ten seconds before the random factor.
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
        self._next = first  # seconds of the next wait, without the random factor
        self._last = float("-inf")  # monotonic seconds of the end of the last wait

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
        self._what = what  # the subject of the message of WatchSilent
        self._heard = self._began = clock.monotonic()  # the times of the last `touch` and of the beginning
        self._interrupted = False  # this deadline has cancelled the body
        self._fault: Exception | None = None  # that of `interrupt`; None for WatchSilent
        self._body: asyncio.Task[object] | None = None  # the task of the body, while it runs
        self._watchdog: asyncio.Task[None] | None = None  # sleeps until the deadline
        self._cancelling = 0  # cancellations of the task that were pending when the body began

    def touch(self) -> float:
        """Note that something was received; returns the present monotonic time."""
        self._heard = self._clock.monotonic()
        return self._heard

    def interrupt(self, fault: Exception) -> None:
        """End the body; leaving it raises `fault`. No effect outside of the body."""
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
        # As in asyncio.timeout: a cancellation by other code takes precedence.
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
        doubted = None  # a deadline that was seen late
        # A `touch` only stores the time, so the deadline is computed again after each pause.
        while (left := self._left()) > 0 or (left < -_LATE_SECONDS and doubted != self._until):
            if left <= 0:
                # The process has not run, or a test has advanced the time: what has come is not read yet.
                doubted, left = self._until, _GRACE_SECONDS
            if self._on_wait is None:
                await self._clock.pause(left)
                continue
            await self._clock.pause(min(left, _WAIT_SECONDS))
            now = self._clock.monotonic()
            if self._left() > 0:
                self._on_wait(now - self._began, now - self._heard)
        if not self._interrupted:
            self._interrupted = True
            body.cancel()

    @property
    def _until(self) -> float:
        return min(self._heard + self._idle, self._began + self._overall)

    def _left(self) -> float:
        return self._until - self._clock.monotonic()
