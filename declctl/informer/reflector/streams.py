"""Watches as a reflector holds them: one that is open, and what one that begins with everything brings."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from declctl.informer.reflector.deadline import Deadline
from declctl.informer.reflector.faults import NoInitialEventsEnd
from declctl.informer.reflector.statistics import Figures
from declctl.informer.source import stop_listening
from declctl.objects import EventType, Record, WatchEvent


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """A watch that is open, and the events of it that were read and not told yet.

    `since` is on the clock; `streamed` says that it brought everything already.
    """

    batches: AsyncIterator[Sequence[WatchEvent]]
    since: float
    rest: Sequence[WatchEvent] = ()
    streamed: bool = False

    async def close(self) -> None:
        """Stop listening, which closes the connection."""
        await stop_listening(self.batches)


class InitialEvents:
    """What a streaming list brings before it says that it is complete (client-go's temporary store)."""

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
        async for batch in batches:
            self._figures.last_event_at = deadline.touch()
            for position, event in enumerate(batch):
                if event.initial_events_end:
                    return list(self._records.values()), event.resource_version, batch[position + 1 :]
                self._collect(event)
            self._figures.items = len(self._records)
            await asyncio.sleep(0)
        raise NoInitialEventsEnd("the streaming list ended before it was complete")

    def _collect(self, event: WatchEvent) -> None:
        record = event.record
        if event.oddity:
            self._figures.odd(event.oddity, stored=record is not None and event.type is not EventType.DROPPED)
        if record is None:
            return
        if event.type is EventType.DELETED or event.type is EventType.DROPPED:
            self._records.pop(record.key, None)
        else:
            self._records[record.key] = record
