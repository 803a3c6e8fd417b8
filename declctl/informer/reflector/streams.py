"""Watches of a reflector: one that is open, and the objects with which a streaming list begins."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from declctl.informer.reflector.deadline import Deadline
from declctl.informer.reflector.faults import NoInitialEventsEnd
from declctl.informer.reflector.statistics import Figures
from declctl.informer.source import stop_listening
from declctl.objects import EventType, Record, WatchEvent

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every object.
_ADDED, _MODIFIED = EventType.ADDED, EventType.MODIFIED


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """A watch that is open, and events of it that were read and not given to the store yet.

    `since` is the time of the request, on the clock; `streamed` says that it has brought everything.
    """

    batches: AsyncIterator[Sequence[WatchEvent]]
    since: float
    rest: Sequence[WatchEvent] = ()
    streamed: bool = False

    async def close(self) -> None:
        """End the watch, which closes its connection."""
        await stop_listening(self.batches)


class InitialEvents:
    """Collects the objects of a streaming list until it is complete (client-go's temporary store)."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._records: dict[str, Record] = {}

    async def gather(
        self, batches: AsyncIterator[Sequence[WatchEvent]], deadline: Deadline
    ) -> tuple[Sequence[Record], str, Sequence[WatchEvent]]:
        """The objects, their version, and the events read beyond their end.

        Raises NoInitialEventsEnd where the watch ends first.
        """
        self._figures.items = 0
        records = self._records
        async for batch in batches:
            self._figures.last_event_at = deadline.touch()
            for position, event in enumerate(batch):
                record = event.record
                if record is not None and (event.type is _ADDED or event.type is _MODIFIED):
                    records[record.key] = record
                elif event.initial_events_end:
                    return list(records.values()), event.resource_version, batch[position + 1 :]
                elif record is not None:
                    records.pop(record.key, None)
                if event.oddity:
                    stored = record is not None and event.type is not EventType.DROPPED
                    self._figures.odd(event.oddity, stored=stored)
            self._figures.items = len(self._records)
            await asyncio.sleep(0)
        raise NoInitialEventsEnd("the streaming list ended before it was complete")
