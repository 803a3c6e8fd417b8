"""Resuming: a cache that begins with the objects that an earlier process has kept, and no LIST.

The kept objects are brought to the present state before the store receives them, by the watch that goes on
afterwards. So what is in the cache when it has synced is as new as after a LIST, and no handler is called for
an object that was deleted while no process was there.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from declctl.informer.reflector.faults import Deadline
from declctl.informer.reflector.statistics import ReflectorMetrics
from declctl.informer.source import stop_listening
from declctl.kit import Clock
from declctl.objects import EventType, Record, WatchEvent, version_order

_QUIET_SECONDS = 0.2  # without a change, after which all that has happened meanwhile is known to have come
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every event.
_ADDED_EVENT, _MODIFIED_EVENT, _DELETED_EVENT = EventType.ADDED, EventType.MODIFIED, EventType.DELETED


class PendingBatches:
    """The batches of a watch. `wait` looks for the next one without taking it. Used on one loop."""

    def __init__(self, batches: AsyncIterator[Sequence[WatchEvent]]) -> None:
        self._batches = batches
        # The read of the next batch, which goes on when a wait for it has ended; None at the end.
        self._next: asyncio.Task[Sequence[WatchEvent] | None] | None = None

    async def wait(self, clock: Clock, seconds: float) -> bool:
        """Whether the next batch, or the end, comes within some seconds."""
        reading, pause = self._reading(), asyncio.ensure_future(clock.sleep(seconds))
        try:
            await asyncio.wait((reading, pause), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
        return reading.done()

    def __aiter__(self) -> "PendingBatches":
        return self

    async def __anext__(self) -> Sequence[WatchEvent]:
        reading, self._next = self._reading(), None
        if (batch := await reading) is None:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """End the watch."""
        reading, self._next = self._next, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        await stop_listening(self._batches)

    def _reading(self) -> "asyncio.Task[Sequence[WatchEvent] | None]":
        if self._next is None:
            self._next = asyncio.ensure_future(self._read())
        return self._next

    async def _read(self) -> Sequence[WatchEvent] | None:
        return await anext(self._batches, None)


class CaughtUp(NamedTuple):
    """The present objects, their version, and the last states of those that have come and gone meanwhile."""

    records: Sequence[Record]
    resource_version: str
    passed: Sequence[Record]


async def caught_up(
    kept: Sequence[Record],
    version: str,
    batches: PendingBatches,
    *,
    until: str,
    clock: Clock,
    deadline: Deadline,
    metrics: ReflectorMetrics,
) -> CaughtUp:
    """Apply the changes of a watch from `version` to kept objects, as long as they are of the past.

    The past ends with a change of the version `until` or a newer one, or when nothing has come for a moment
    after the watch was opened: a server sends what has happened before at once.
    """
    records, passed = {record.key: record for record in kept}, dict[str, Record]()
    uids = {record.key: record.uid for record in kept}
    is_open, end = False, version_order(until)
    while not is_open or (version_order(version) < end and await batches.wait(clock, _QUIET_SECONDS)):
        batch = await anext(batches, None)
        if batch is None:
            break  # the server has ended the watch: the next one goes on
        is_open = True
        metrics.counts.last_event_at = deadline.touch()
        for event in batch:
            record = event.record
            if record is not None and (event.type is _ADDED_EVENT or event.type is _MODIFIED_EVENT):
                records[record.key] = record
            elif record is not None:
                records.pop(record.key, None)  # deleted or dropped
                if event.type is _DELETED_EVENT and uids.get(record.key) != record.uid:
                    passed[record.key] = record
            if event.decode_warning:
                stored = record is not None and event.type is not EventType.DROPPED
                metrics.decode_warning(event.decode_warning, stored=stored)
            version = event.resource_version or version
        if batch:
            metrics.batch(batch)
    return CaughtUp(list(records.values()), version, list(passed.values()))
