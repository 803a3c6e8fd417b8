"""Watches for programs: events one by one, without a handler (client-go's tools/watch).

`RetryWatcher` is a watch that survives the end of its connection. `InformerWatcher` reads an informer as a
watch. The `until` functions wait until conditions are met.

A condition is a plain function of an event that returns whether the event meets it. The conditions are met in
their order, each by a later event than the one before. The functions return the event that meets the last
condition; without conditions they return None at once. They raise what a condition raises, and TypeError for
an asynchronous one, whose coroutine would count as true. `timeout` is in seconds, None for no limit.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from declctl.errors import Expired, Forbidden, MalformedAnswer, TimedOut, Unauthorized, UsageError, WatchEnded
from declctl.informer.informer import AnyIndexFunc, SharedIndexInformer
from declctl.informer.processor import Registration
from declctl.informer.reflector.faults import Deadline, ExponentialBackoff
from declctl.informer.source import Source, stop_listening
from declctl.informer.stores.lister import Lister
from declctl.kit import Clock, SystemClock
from declctl.kit.callbacks import plain, refuse_async
from declctl.kit.change_queue import ChangeQueue
from declctl.objects import ChangeType, EventType, Notification, ObjectView, WatchEvent, WatchOptions, merge

_SHORTEST_ROUND = 1.0  # seconds from the start of a watch to that of the next, as in client-go
_SHORTEST_WATCH, _WATCH_SPREAD = 300, 300  # seconds that the server is asked to keep a watch open
_T = TypeVar("_T")
_log = logging.getLogger("declctl.informer")
_LIMIT = 64 * 1024 * 1024  # bytes of frames that wait for the reader
_TYPES = {
    ChangeType.ADDED: EventType.ADDED,
    ChangeType.MODIFIED: EventType.MODIFIED,
    ChangeType.RESYNC: EventType.MODIFIED,
    ChangeType.DELETED: EventType.DELETED,
}


class ObjectEvent(NamedTuple):
    """One event of a watch (client-go's watch.Event).

    `type` is ADDED, MODIFIED or DELETED. It is DROPPED for an object that the transform of the source left
    out. `obj` is the state after the event; for DELETED, the last known state.
    """

    type: EventType
    obj: ObjectView


class RetryWatcher:
    """The events after a version, each once, over any number of connections (client-go's RetryWatcher).

    An async iterator for one reader, and a context manager whose end stops it. Used on one loop.

    - `source`: the resource, such as `Client.list_watch` returns.
    - `resource_version`: the version after which events are read, such as that of a list. Raises UsageError
      for "" and "0", from which no watch can be resumed.
    - `idle_timeout`: seconds; a watch without any event or bookmark for so long is opened anew.

    When the server ends a watch, the next one continues after the last event. It begins 1 s after the start
    of the one before, or later. After a fault the wait grows up to a minute, or to the wait that the server
    asks for.

    Reading raises Expired if the server says within an open watch that the version is too old; Forbidden and
    Unauthorized; and MalformedAnswer for an event without a version. After these the watcher has ended. Every
    other fault is logged, and the watch is resumed.

    There is no task, and no buffer beyond one read of the connection. A slow reader slows the server down,
    and costs no memory.
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
        self._ready: deque[WatchEvent] = deque()  # received and not read yet
        self._watch: AsyncIterator[Sequence[WatchEvent]] | None = None  # the present one; None between two
        self._open = False  # the server has accepted the present watch
        self._next_round = float("-inf")  # monotonic seconds: the next watch does not begin before this
        self._reading: asyncio.Future[Any] | None = None  # the wait of the reader, which `stop` cancels
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
        """Whether the watcher was stopped, or has ended with an error."""
        return self._stopped

    async def stop(self) -> None:
        """End the watch and a read that waits; returns when the connection is closed. May be repeated."""
        self._stopped = True
        self._ready.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._close()

    async def _read(self) -> None:
        """Receive one batch into `_ready`, with a new watch if there is none."""
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
        except Exception as fault:  # noqa: BLE001 - a source may raise anything; `_failed` decides
            await self._failed(fault)
        finally:
            if (
                batch is None
            ):  # the watch ended or failed, or the reader was cancelled: the next read resumes it
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
        # A server that is just starting may answer 410 to the request: only one within the stream is final
        # (client-go 219).
        if isinstance(fault, Forbidden | Unauthorized) or (isinstance(fault, Expired) and self._open):
            await self.stop()
            raise fault
        # Any other fault may pass: the watch goes on from the newest version that was read.
        wait = self._backoff.seconds(fault)
        self._next_round = max(self._next_round, self._clock.monotonic() + wait)
        _log.warning("%s: %s; the watch is resumed", self._source.description, fault)

    async def _unless_stopped(self, work: Awaitable[_T]) -> _T | None:
        """The result of `work`; None if the watcher is stopped meanwhile."""
        reading = self._reading = asyncio.ensure_future(work)
        try:
            return await reading
        except asyncio.CancelledError:
            reader = asyncio.current_task()
            if self._stopped and (reader is None or not reader.cancelling()):
                return None
            if reader is not None and not reader.cancelling():
                # A task that the source awaits was cancelled. Raised as it is, it would end the reader
                # silently.
                raise MalformedAnswer("the source raised CancelledError") from None
            raise
        finally:
            self._reading = None

    async def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            await stop_listening(watch)


class InformerWatcher:
    """An informer as a watch: ADDED for each existing object, then the changes (NewIndexerInformerWatcher).

    An async context manager, and within its block an async iterator for one reader. Used on one loop.

    - `informer`: where the events come from.
    - `runs`: False for an informer that is run by other code. True lets the block run the informer, from its
      beginning to its end.

    Unlike a watch it needs no version, and survives an expired version: the informer lists again, and the
    differences are events. A delete that the watch missed is DELETED with the last known state.

    The iteration ends when the informer ends. With `runs`, it raises the exception that ended the informer.
    Beyond 64 MiB of events that wait for the reader, the events of one object are merged.
    """

    def __init__(
        self, informer: SharedIndexInformer, *, runs: bool = False, clock: Clock | None = None
    ) -> None:
        self.informer = informer
        self._runs = runs
        self._queue: ChangeQueue[Notification] = ChangeQueue(
            clock=clock or SystemClock(), weigh=Notification.weight, merge=merge, merge_above=_LIMIT
        )
        self._changed = asyncio.Event()  # set when the reader has to look again
        self._registration: Registration | None = None  # at the informer, from the beginning of the block
        self._task: asyncio.Task[None] | None = None  # runs the informer, with `runs`
        self._stopped = False

    async def __aenter__(self) -> Self:
        # Without resyncs: a watch has no such event.
        self._registration = self.informer.add_listener(self, resync_period=0.0)
        self.informer.ended.on_open(self._changed.set)
        if self._runs:
            self._task = asyncio.create_task(self.informer.run(), name=f"watch {self.informer.name}")
            self._task.add_done_callback(lambda _: self._changed.set())  # it may fail before it runs
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ObjectEvent:
        while not self._stopped:
            item = self._queue.take()
            if item is not None:
                self._queue.done(item)
                return ObjectEvent(_TYPES[item.value.type], ObjectView(item.value.record))
            # `result` raises the exception that ended the informer. A normal end ends the iteration below.
            if self._task is not None and self._task.done():
                self._task.result()
            if self.informer.is_stopped:
                break
            self._changed.clear()
            await self._changed.wait()
        raise StopAsyncIteration

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Queue notifications for the reader (`Listener`). Called by the informer on its loop."""
        self._queue.add_all([(each.key, each) for each in notifications])
        self._changed.set()

    @property
    def lister(self) -> Lister:
        """The cache of the informer, which may be newer than the events read so far."""
        return self.informer.lister

    async def stop(self) -> None:
        """End the iteration, drop pending events, and with `runs` end the informer. May be repeated."""
        self._stopped = True
        self._queue.clear()
        self._changed.set()
        if self._registration is not None:
            self._registration.remove()
            self.informer.ended.forget(self._changed.set)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])


def informer_watcher(
    source: Source, *, indexers: Mapping[str, AnyIndexFunc] | None = None, clock: Clock | None = None
) -> InformerWatcher:
    """A watcher with an informer of its own, which the block runs (client-go's NewIndexerInformerWatcher).

    `source` is the resource, such as `Client.list_watch` returns. `indexers` are the index functions of the
    cache, by name. Raises TypeError for an index that is no plain function. Used on one loop.
    """
    informer = SharedIndexInformer(source, name=source.description, clock=clock, indexers=indexers)
    return InformerWatcher(informer, runs=True, clock=clock)


Condition = Callable[[ObjectEvent], bool]


async def until(
    resource_version: str,
    source: Source,
    *conditions: Condition,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> ObjectEvent | None:
    """Watch after a version until every condition is met (client-go's Until). Used on one loop.

    `source` and `resource_version` are as for RetryWatcher, conditions and `timeout` as in the module's
    docstring. Returns the event that met the last condition; None without conditions. Raises TimedOut, and
    the exceptions of RetryWatcher.
    """
    progress = _Progress(conditions)
    async with RetryWatcher(source, resource_version, clock=clock) as events:
        return await _within(progress.consume(events), timeout, clock or SystemClock(), progress.missing)


async def until_with_sync(
    source: Source,
    precondition: Callable[[Lister], bool] | None,
    *conditions: Condition,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> ObjectEvent | None:
    """List and watch until every condition is met (client-go's UntilWithSync). Used on one loop.

    The objects of the list are events, too; an expired version is listed anew. `precondition` is called once,
    with a lister of the synced cache: if it returns true, the result is None. Without a precondition nothing
    waits for the sync. Conditions and `timeout` are as in the module's docstring. Returns the event that met
    the last condition; None without conditions. Raises TimedOut.
    """
    progress = _Progress(conditions)
    refuse_async(precondition, "the precondition of until_with_sync")
    async with informer_watcher(source, clock=clock) as events:

        async def work() -> ObjectEvent | None:
            if precondition is not None and await _met(precondition, events):
                return None
            return await progress.consume(events)

        def late() -> str:
            if precondition is not None and not events.informer.has_synced:
                return f"{source.description} had not synced ({events.informer.why_not_synced()})"
            return progress.missing()

        return await _within(work(), timeout, clock or SystemClock(), late)


async def until_without_retry(
    events: AsyncIterator[ObjectEvent],
    *conditions: Condition,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> ObjectEvent | None:
    """Read events until every condition is met (client-go's UntilWithoutRetry).

    Returns the event that met the last condition; None without conditions. Raises WatchEnded if the events
    end before, and TimedOut.
    """
    progress = _Progress(conditions)
    return await _within(progress.consume(events), timeout, clock or SystemClock(), progress.missing)


class _Progress:
    """The conditions of one call, and how many of them were met."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        for number, condition in enumerate(conditions, 1):
            refuse_async(condition, f"condition {number}")
        self._conditions = conditions
        self._met = 0

    async def consume(self, events: AsyncIterator[ObjectEvent]) -> ObjectEvent | None:
        if not self._conditions:
            return None
        async for event in events:
            if plain(self._conditions[self._met](event), f"condition {self._met + 1}"):
                self._met += 1
                if self._met == len(self._conditions):
                    return event
        raise WatchEnded(f"the watch has ended: {self.missing()}")

    def missing(self) -> str:
        """The condition that was not met, as a sentence."""
        return f"condition {self._met + 1} of {len(self._conditions)} was not met"


async def _met(precondition: Callable[[Lister], bool], events: InformerWatcher) -> bool:
    await events.informer.synced.wait()
    return bool(plain(precondition(events.lister), "the precondition of until_with_sync"))


async def _within(
    work: Coroutine[Any, Any, _T], timeout: float | None, clock: Clock, missing: Callable[[], str]
) -> _T:
    if timeout is None:
        return await work
    task, late = asyncio.create_task(work), asyncio.create_task(clock.sleep(timeout))
    try:
        await asyncio.wait({task, late}, return_when="FIRST_COMPLETED")
        if task.done():
            return task.result()
    finally:
        task.cancel()
        late.cancel()
        await asyncio.wait({task, late})
    raise TimedOut(f"{missing()} within {timeout:g} s")
