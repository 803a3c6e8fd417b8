"""The health of a server: one check for all watches.

In client-go each watch has a back-off of its own, so that after an outage of some minutes the last watches
return a minute after the server. Here one small request about each second checks the server for all watches,
and its answer lets all of them go on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec

from declctl.errors import ApiError, MalformedAnswer, ServerError, Unreachable
from declctl.kit import Clock
from declctl.kit.callbacks import must_propagate

SPREAD_SECONDS = 2.0  # over which the waits end after an outage, at most
_FOR_EACH = 0.02  # seconds that each wait adds to the spread, so that few waits end sooner
_PAUSE = 1.0  # seconds between two checks, plus a random time of up to as much
_ONE_ROLLBACK = 60.0  # seconds within which all reports are of the same rollback
_ANSWER_SECONDS = 5.0  # until a check counts as unanswered
_AWAY = (Unreachable, ServerError, MalformedAnswer)  # any other answer shows that the server is there
_log = logging.getLogger("declctl.transport")


class ServerStatus(msgspec.Struct, frozen=True):
    """The state of a server."""

    url: str
    unreachable_since: datetime | None = None  # when the present outage was found; None if the server answers
    error: str | None = None  # why the last check of an outage had no answer
    outages: int = 0  # so far
    rollbacks: int = 0  # changes of the server's history, as by a restore from a backup


class ServerHealth:
    """Checks whether one server can be reached, a `ServerMonitor`. Used on one loop.

    `ask` sends a small request and raises the ApiError family. A watch whose connection has failed calls
    `suspect`, which starts a check. If the server does not answer, the check is repeated every one to two
    seconds. Until the server answers, calls of `wait` do not return, so that watches send no requests.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]], *, url: str, clock: Clock) -> None:
        self._ask = ask
        self._url = url
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None  # the checks, until the server answers
        self._asked_at = self._rolled_back_at = float("-inf")  # monotonic: the last check and rollback
        self._since: datetime | None = None  # when the present outage was found
        self._error: str | None = None  # why the last check had no answer
        self._outages = self._returns = self._rollbacks = 0  # counts; a return is the end of an outage
        self._changed = asyncio.Event()  # set at each change, and then replaced
        self._closed = False
        self._waiting = 0  # calls of `wait` that have not returned
        # Since the last return of the server: the slots that were taken, and the waits at that moment.
        self._slots = (0, 0)
        self._on_rollback: dict[Callable[[str], None], None] = {}  # the subscribers, in order

    def status(self) -> ServerStatus:
        """The state at this moment."""
        return ServerStatus(self._url, self._since, self._error, self._outages, self._rollbacks)

    def suspect(self) -> None:
        """Start a check, because a request failed as if the server were away; no effect during a check.

        The check begins one second after the last one, or at once if that has passed.
        """
        if not self._closed and self._asking is None:
            self._asking = asyncio.create_task(self._ask_until_answered(), name=f"is {self._url} there?")

    async def wait(self, seconds: float) -> bool:
        """Return after `seconds`, and not during a check.

        After an outage, all waits end within two seconds, evenly spread, and return True; the rest of their
        `seconds` does not matter.
        """
        if seconds <= 0 and self._asking is None:
            return False
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        returns, came_back = self._returns, False
        self._waiting += 1
        try:
            while True:
                # The server is back: the slot takes the place of the `seconds`.
                if self._returns != returns:
                    returns, came_back = self._returns, True
                    timer.cancel()
                    timer = asyncio.ensure_future(self._clock.sleep(self._slot()))
                elif timer.done() and self._asking is None:
                    return came_back
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    running = [changed] if timer.done() else [changed, timer]
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        finally:
            self._waiting -= 1
            timer.cancel()

    def subscribe(self, call: Callable[[str], None]) -> Callable[[], None]:
        """Call a function with a sentence when the server's history was replaced; returns an unsubscriber."""
        self._on_rollback[call] = None

        def unsubscribe() -> None:
            self._on_rollback.pop(call, None)

        return unsubscribe

    def history_replaced(self, why: str) -> None:
        """Call all subscribers, which then list anew, because a watch found another history.

        Further calls within a minute are about the same rollback, and have no effect.
        """
        now = self._clock.monotonic()
        if now - self._rolled_back_at < _ONE_ROLLBACK:
            return
        self._rolled_back_at = now
        self._rollbacks += 1
        for call in tuple(self._on_rollback):
            call(why)

    async def close(self) -> None:
        """End the checks. From now on a wait takes its `seconds` and no longer."""
        self._closed = True
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.wait([asking])
        self._notify()

    async def _ask_until_answered(self) -> None:
        await self._clock.sleep(self._asked_at + _PAUSE - self._clock.monotonic())
        while (fault := await self._fault()) is not None:
            if self._since is None:
                self._since = self._clock.now()
                self._outages += 1
                _log.warning("%s is away and is asked once a second until it answers: %s", self._url, fault)
            self._error = str(fault)
            await self._clock.sleep(_PAUSE + self._clock.random() * _PAUSE)
        if self._since is not None:
            away = (self._clock.now() - self._since).total_seconds()
            _log.info("%s answers again after %.0f s", self._url, away)
            self._since = self._error = None
            self._returns += 1
            self._slots = (0, self._waiting)
        self._asking = None
        self._notify()

    async def _fault(self) -> Exception | None:
        """Why the server does not answer; None if it does."""
        self._asked_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._ask()
        except TimeoutError:
            return Unreachable(f"{self._url} did not answer within {_ANSWER_SECONDS:.0f} s.")
        except _AWAY as fault:
            return fault
        except ApiError:
            return None  # a refusal is an answer
        except BaseException as fault:
            if must_propagate(fault):
                raise
            _log.exception("it can't be found out whether %s answers", self._url)
        return None

    def _slot(self) -> float:
        """The seconds until the next wait may end after an outage: the waits are spread evenly."""
        taken, waits = self._slots
        self._slots = (taken + 1, waits)
        spread = min(SPREAD_SECONDS, waits * _FOR_EACH)
        # A wait that began after the return of the server gets a random place.
        place = (taken + self._clock.random()) / waits if taken < waits else self._clock.random()
        return spread * place

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
