"""Whether a server can be reached: one question for all watches.

In client-go each watch asks for itself, with a back-off of its own: after an outage of minutes the last
watches return a minute after the server. Here one request is sent for all watches, about once a second, and
its answer lets all of them go on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from declctl.errors import ApiError, MalformedAnswer, ServerError, Unreachable
from declctl.kit import Clock
from declctl.kit.callbacks import must_propagate

SPREAD_SECONDS = 2.0  # over which those who wait go on after an outage
_FOR_EACH = 0.02  # seconds that each watch adds to the spread, so that a few watches wait less
_PAUSE = 1.0  # seconds between two questions, and up to as much again by chance
_ONE_ROLLBACK = 60.0  # seconds within which all findings are of the same rollback
_ANSWER_SECONDS = 5.0  # seconds until a question counts as unanswered
_AWAY = (Unreachable, ServerError, MalformedAnswer)  # any other answer shows that the server is there
_log = logging.getLogger("declctl.transport")


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of a server. While it is away, `unreachable_since` is when that was found, and `error` why.

    `outages` counts how often it could not be reached; `rollbacks` how often its history was found to be
    another one than before, as after a restore from a backup.
    """

    url: str
    unreachable_since: datetime | None = None
    error: str | None = None
    outages: int = 0
    rollbacks: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        since = self.unreachable_since
        return {
            "url": self.url,
            "unreachableSince": None if since is None else since.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "error": self.error,
            "outages": self.outages,
            "rollbacks": self.rollbacks,
        }


class ServerHealth:
    """Whether one server can be reached. Used on one loop.

    `ask` sends it a small request and raises the ApiError family. A watch whose connection has failed calls
    `suspect`: then the server is asked and, if it does not answer, asked again every one to two seconds
    until it does. Until then, calls of `wait` do not return, and the watches send nothing.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]], *, url: str, clock: Clock) -> None:
        self._ask = ask
        self._url = url
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None  # until it is known whether the server is there
        self._asked_at = self._rolled_back_at = float("-inf")  # monotonic times
        self._since: datetime | None = None  # when the current outage was found
        self._error: str | None = None  # why the last question had no answer
        self._outages = self._returns = self._rollbacks = 0
        self._changed = asyncio.Event()  # another one after each change
        self._closed = False
        self._waiting = 0  # calls of `wait` that have not returned
        # Since the last return of the server: how many waits have their slot, and how many waited then.
        self._slots = (0, 0)
        self._on_rollback: dict[Callable[[str], None], None] = {}

    def status(self) -> ServerStatus:
        """The state at this moment."""
        return ServerStatus(self._url, self._since, self._error, self._outages, self._rollbacks)

    def suspect(self) -> None:
        """A request failed as if the server were away: ask whether it is, unless it is being asked.

        If it was asked less than a second ago, it is asked when that second has passed.
        """
        if not self._closed and self._asking is None:
            self._asking = asyncio.create_task(self._ask_until_answered(), name=f"is {self._url} there?")

    async def wait(self, seconds: float) -> bool:
        """Return after `seconds`, and not before it is known that the server answers.

        When the server returns from an outage, all waits end within two seconds, evenly spread, whatever is
        left of their `seconds`. Then True is returned.
        """
        if seconds <= 0 and self._asking is None:
            return False
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        returns, came_back = self._returns, False
        self._waiting += 1
        try:
            while True:
                # The server is back: from here on the slot decides, and not the `seconds`.
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
        """Call this with a sentence when the server's history was replaced; returns what ends that."""
        self._on_rollback[call] = None

        def unsubscribe() -> None:
            self._on_rollback.pop(call, None)

        return unsubscribe

    def history_replaced(self, why: str) -> None:
        """A watch has found that the server's history is another one: call all subscribers, who list anew.

        Further calls within a minute are of the same rollback, and do nothing.
        """
        now = self._clock.monotonic()
        if now - self._rolled_back_at < _ONE_ROLLBACK:
            return
        self._rolled_back_at = now
        self._rollbacks += 1
        for call in tuple(self._on_rollback):
            call(why)

    async def close(self) -> None:
        """Stop asking. From now on a wait takes its `seconds` and no longer."""
        self._closed = True
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.wait([asking])
        self._tell()

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
        self._tell()

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
            return None  # it refuses, so it is there
        except BaseException as fault:
            if must_propagate(fault):
                raise
            _log.exception("it can't be found out whether %s answers", self._url)
        return None

    def _slot(self) -> float:
        """The seconds until the next wait ends after an outage: the waits are spread evenly."""
        taken, waits = self._slots
        self._slots = (taken + 1, waits)
        spread = min(SPREAD_SECONDS, waits * _FOR_EACH)
        # A wait that began later than the return has no slot of its own.
        place = (taken + self._clock.random()) / waits if taken < waits else self._clock.random()
        return spread * place

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
