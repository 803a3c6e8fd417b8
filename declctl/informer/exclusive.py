"""An informer for one user: a cache and a handler, without sharing (client-go's NewInformer).

One change is worked on at a time: the cache changes, the handler is called, and then comes the next change.
For handlers that are slow, that fail, or that come and go there is the shared informer.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import cast

from declctl.informer.applying import Applier, UidChange, resync_of
from declctl.informer.controller import Config, Controller, QueueKind, make_queue
from declctl.informer.event_handlers import ResourceEventHandler
from declctl.informer.indexing import AnyIndexFunc, index_functions
from declctl.informer.listener import call_handler
from declctl.informer.queues import Bookmark, Entry, Replacement, SyncAll
from declctl.informer.reflector import DEFAULT_OPTIONS, ReflectorOptions
from declctl.informer.source import Source
from declctl.informer.stores import Indexer, Lister
from declctl.kit import Clock, SystemClock
from declctl.objects import Delta, Notification

_BREATH = 64  # calls of the handler until the loop may do something else


def new_informer(  # noqa: PLR0913 - a contract of its own, keyword by keyword
    source: Source,
    handler: ResourceEventHandler,
    *,
    resync_period: float = 0.0,
    indexers: Mapping[str, AnyIndexFunc] | None = None,
    queue: QueueKind = "RealFIFO",
    options: ReflectorOptions = DEFAULT_OPTIONS,
    on_fault: Callable[[Exception], None] | None = None,
    uid_change: UidChange = "recreate",
    clock: Clock | None = None,
    name: str = "",
    require_sync: bool = True,
) -> tuple[Lister, Controller]:
    """A cache to read, and the controller that fills it while it runs (NewInformer, NewIndexerInformer).

    The handler is called on the loop of `Controller.run`, and awaited if it is asynchronous. When it
    is called for a change that the watch brought, the cache stands exactly there (client-go 172). A
    handler that raises ends `run`, which raises the same, so that no change is missed unnoticed
    (client-go 166). `has_synced` says that the handler was called for all of the first list.
    `resync_period` is in seconds, 0 for never. A read before `has_synced` raises NotSynced; a handler that
    reads the cache while the first list comes in asks for it without `require_sync`.
    """
    indexer = Indexer(index_functions(indexers or {}))
    made = make_queue(queue, indexer.known)
    clock = clock or SystemClock()
    applier = Applier(indexer, uid_change=uid_change, in_order=queue == "RealFIFO")
    config = Config(
        queue=made,
        source=source,
        process=_Inline(indexer, applier, handler, clock).process,
        options=options,
        full_resync_period=resync_period,
        on_fault=on_fault,
        known=indexer.known().get,
        clock=clock,
        name=name,
    )
    controller = Controller(config)
    lister = Lister([indexer], name=controller.name, filled_by=(controller,) if require_sync else ())
    return lister, controller


class _Inline:
    """Changes the cache and calls the handler, one change after the other."""

    def __init__(
        self, indexer: Indexer, applier: Applier, handler: ResourceEventHandler, clock: Clock
    ) -> None:
        self._indexer = indexer
        self._applier = applier
        self._handler = handler
        self._clock = clock
        self._calls = 0

    async def process(self, batch: Sequence[Entry]) -> None:
        for told in self._applied(batch, self._clock.now().timestamp()):
            for notification in told:
                await self._tell(notification)

    def _applied(self, batch: Sequence[Entry], now: float) -> Iterable[Iterable[Notification]]:
        match batch:
            case [Replacement() as replacement]:
                yield from self._applier.replace(replacement, now)
            case [Bookmark() as bookmark]:
                self._indexer.bookmark(bookmark.resource_version)
            case [SyncAll()]:
                yield [resync_of(record, now) for record in self._indexer.list()]
            case _:
                for delta in batch:
                    yield self._applier.apply((cast("Delta", delta),), now)

    async def _tell(self, notification: Notification) -> None:
        result = call_handler(self._handler, notification)
        if inspect.isawaitable(result):
            await cast("Awaitable[object]", result)
        self._calls += 1
        if self._calls % _BREATH == 0:
            await asyncio.sleep(0)
