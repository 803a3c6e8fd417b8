"""The rate limit of all writes of a process, whose tokens handlers take in turns.

client-go gives the tokens of its bucket to requests in their order: one caller that sends many lets all
others wait.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from declctl.kit import Clock
from declctl.kit.token_bucket import TokenBucket

QPS, BURST = 50.0, 100  # of the client-side rate limit


class WaitingWrites(msgspec.Struct, frozen=True):
    """The writes of one handler that wait for the rate limit."""

    handler: str
    waiting: int
    oldest_seconds: float  # for which the first of them has waited


_Line = OrderedDict[asyncio.Future[None], float]
"""The writes of a handler that wait, in their order, each with the monotonic time of its begin."""


class WriteBudget:
    """`burst` writes at once, and then `qps` each second; no limit with `qps` 0.

    The writes of a handler that have to wait stand in a line of its own, and each token goes to the next
    handler in turn. So a handler has its turn after one write of each other handler that waits. In a line,
    the first write goes first.

    Used on one loop, but for `try_take` and `waiting`, which may be called from any thread.
    """

    def __init__(self, qps: float = QPS, burst: int = BURST, *, clock: Clock) -> None:
        self._clock = clock
        self._rate = (qps, burst)
        self._bucket = TokenBucket(qps, burst, clock=clock) if qps else None
        self._lock = threading.Lock()  # guards the lines
        # By handler that waits, in their turns. None of them is empty.
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._granting: asyncio.Task[None] | None = None  # gives tokens to the lines, while there are any

    def limit(self, qps: float, burst: int) -> None:
        """Change the rate, also for the writes that wait. Another rate begins with a full bucket."""
        if (qps, burst) == self._rate:
            return
        self._rate = (qps, burst)
        self._bucket = TokenBucket(qps, burst, clock=self._clock) if qps else None
        if self._granting is not None:
            self._granting.cancel()
            self._granting = asyncio.ensure_future(self._grant())

    def try_take(self) -> bool:
        """Take a token if there is one, and no write waits for it; returns whether there was."""
        return not self._lines and (self._bucket is None or self._bucket.try_take())

    async def take(self, handler: str) -> None:
        """Wait for a token in the line of a handler. A wait that is cancelled costs none."""
        if self.try_take():
            return
        write: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._lines.setdefault(handler, _Line())[write] = self._clock.monotonic()
        if self._granting is None:
            self._granting = asyncio.ensure_future(self._grant())
        try:
            await write
        except asyncio.CancelledError:
            if write.cancelled():
                self._leave(handler, write)
            else:  # the token came in the turn of the loop that has cancelled the wait
                self._keep_turn(handler)
                self._spend(self._bucket)
            self._end_granting()
            raise

    def waiting(self) -> Sequence[WaitingWrites]:
        """The writes that wait, by handler; the handler that has waited longest comes first."""
        now = self._clock.monotonic()
        with self._lock:
            found = [
                WaitingWrites(handler, len(line), now - next(iter(line.values())))
                for handler, line in self._lines.items()
            ]
        return sorted(found, key=lambda each: -each.oldest_seconds)

    async def _grant(self) -> None:
        """Give each token to the next handler in turn, until no write waits."""
        while self._lines:
            bucket = self._bucket
            if bucket is not None and (seconds := bucket.reserve()):
                try:
                    await self._clock.sleep(seconds)
                except asyncio.CancelledError:
                    bucket.give_back()
                    raise
            self._spend(bucket)
        self._granting = None

    def _spend(self, bucket: TokenBucket | None) -> None:
        """Give a token to the next handler in turn, or back to its bucket if no write waits any longer."""
        if not self._give_next() and bucket is not None:
            bucket.give_back()

    def _give_next(self) -> bool:
        """Let the first write of the next handler go on; the handler has its next turn after all others."""
        with self._lock:
            while self._lines:
                handler, line = self._lines.popitem(last=False)
                while line:
                    write, _ = line.popitem(last=False)
                    if not write.done():  # else it was cancelled in this turn of the loop
                        if line:
                            self._lines[handler] = line
                        write.set_result(None)
                        return True
        return False

    def _keep_turn(self, handler: str) -> None:
        """Let a handler that has not used its turn have the next one, if it has another write."""
        with self._lock:
            if handler in self._lines:
                self._lines.move_to_end(handler, last=False)

    def _leave(self, handler: str, write: asyncio.Future[None]) -> None:
        """Remove a write that does not wait any longer, and the line of its handler with the last one."""
        with self._lock:
            line = self._lines.get(handler)
            if line is not None:
                line.pop(write, None)
                if not line:
                    del self._lines[handler]

    def _end_granting(self) -> None:
        """Do not wait for a token for which no write waits."""
        if not self._lines and self._granting is not None:
            self._granting.cancel()
            self._granting = None
