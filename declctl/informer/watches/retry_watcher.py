"""A watch that survives its connection (client-go's RetryWatcher), and its events (watch.Event)."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from declctl.errors import Expired, Forbidden, MalformedAnswer, Unauthorized, UsageError
from declctl.informer.reflector.deadline import Deadline
from declctl.informer.reflector.options import ExponentialBackoff
from declctl.informer.source import Source, stop_listening
from declctl.kit import Clock, SystemClock
from declctl.objects import EventType, ObjectView, WatchEvent, WatchOptions


class ObjectEvent(NamedTuple):
    """One event.

    `type` is ADDED, MODIFIED or DELETED; DROPPED only where the source has a transform that dropped
    the object. Of what is DELETED `obj` is the last state that is known.
    """

    type: EventType
    obj: ObjectView


_SHORTEST_ROUND = 1.0  # seconds from the start of a watch to that of the next, as in client-go
_SHORTEST_WATCH, _WATCH_SPREAD = 300, 300  # seconds that the server is asked to keep a watch open
_T = TypeVar("_T")
_log = logging.getLogger("declctl.informer")


class RetryWatcher:
    """What happens after a version: every event once, however often the server ends the watch.

    An async iterator for one reader; leaving it as a context manager stops it. The next watch goes
    on from the last event, at the earliest 1 s after the last one began, after a fault later and
    later, up to a minute or what the server asks for. Reading raises Expired when the server says in
    the stream that the version is too old, and Forbidden or Unauthorized; then it has ended. Every
    other fault is logged, and the watch tried again.

    There is no task and no buffer beyond what came in one read of the connection: a reader that is
    slow or gone holds up the server, not the memory. While it is read, a watch that says nothing
    for `idle_timeout` seconds, not even a bookmark, is opened anew. Used on one loop.
    """

    def __init__(
        self, source: Source, resource_version: str, *, clock: Clock | None = None, idle_timeout: float = 90.0
    ) -> None:
        if resource_version in ("", "0"):
            raise UsageError(
                f"a RetryWatcher can't begin at version {resource_version!r}: "
                "it needs one from which the watch can be resumed, such as that of a list"
            )
        self.resource_version = resource_version  # of the newest event that was read
        self._source = source
        self._clock: Clock = clock or SystemClock()
        self._idle_timeout = idle_timeout
        self._backoff = ExponentialBackoff(self._clock)
        self._ready: deque[WatchEvent] = deque()
        self._watch: AsyncIterator[Sequence[WatchEvent]] | None = None
        self._open = False  # the server has accepted it
        self._next_round = float("-inf")
        self._reading: asyncio.Future[Any] | None = None
        self._stopped = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ObjectEvent:
        while not self._stopped:
            if not self._ready:
                await self._read()
                continue
            event = self._ready.popleft()
            if not event.resource_version:
                await self.stop()
                raise MalformedAnswer(f"{self._source.description}: an event of a WATCH has no version")
            self.resource_version = event.resource_version
            if event.record is not None:
                return ObjectEvent(event.type, ObjectView(event.record))
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or has ended with an error."""
        return self._stopped

    async def stop(self) -> None:
        """End it, whether somebody reads or not; returns when its connection is closed. Twice is harmless."""
        self._stopped = True
        self._ready.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._close()

    async def _read(self) -> None:
        """One batch, into `_ready`."""
        if self._watch is None:
            await self._unless_stopped(self._clock.sleep(self._next_round - self._clock.monotonic()))
            if self._stopped:
                return
            self._begin()
        assert self._watch is not None
        batch: Sequence[WatchEvent] | None = None
        try:
            async with Deadline(self._clock, idle=self._idle_timeout, what="the watch"):
                batch = await self._unless_stopped(anext(self._watch, None))
        except Exception as fault:  # noqa: BLE001 - what a source raises is judged
            await self._failed(fault)
        finally:
            if batch is None:  # it has ended, failed, or whoever reads was cancelled: it is resumed
                await self._close()
        if batch is not None:
            self._open = True
            self._ready.extend(batch)

    def _begin(self) -> None:
        self._open = False
        self._next_round = self._clock.monotonic() + _SHORTEST_ROUND
        seconds = _SHORTEST_WATCH + int(self._clock.random() * _WATCH_SPREAD)
        self._watch = self._source.watch(
            WatchOptions(resource_version=self.resource_version, timeout_seconds=seconds)
        )

    async def _failed(self, fault: Exception) -> None:
        # A 410 before the watch is open may be that of a server that is just starting (client-go 219).
        if isinstance(fault, Forbidden | Unauthorized) or (isinstance(fault, Expired) and self._open):
            await self.stop()
            raise fault
        wait = self._backoff.seconds(fault)
        self._next_round = max(self._next_round, self._clock.monotonic() + wait)
        _log.warning("%s: %s; the watch is resumed", self._source.description, fault)

    async def _unless_stopped(self, work: Awaitable[_T]) -> _T | None:
        """What `work` gives; None if this is stopped meanwhile."""
        reading = self._reading = asyncio.ensure_future(work)
        try:
            return await reading
        except asyncio.CancelledError:
            reader = asyncio.current_task()
            if self._stopped and (reader is None or not reader.cancelling()):
                return None
            if reader is not None and not reader.cancelling():
                # Something that the source awaits was cancelled: it would end the reader silently.
                raise MalformedAnswer("the source raised CancelledError") from None
            raise
        finally:
            self._reading = None

    async def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await stop_listening(watch)
