"""Lists: in pages (client-go's tools/pager), as a stream (WatchList), and the check that a stream was right.

`list_options` and `PagePolicy` decide at which version a reflector lists, and in which pages (client-go's
ListAndWatch). `ConsistencyDetector` compares a streaming list with a LIST at the same version (client-go's
consistencydetector). Where they differ, client-go ends the process. Here the keys that differ are logged, and
everything is listed anew.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from declctl.decoding.projection import Known
from declctl.errors import ApiError, Expired, InvalidRequest, MalformedAnswer
from declctl.informer.reflector.faults import Deadline, ExponentialBackoff, Inconsistent, NoInitialEventsEnd
from declctl.informer.reflector.statistics import ReflectorMetrics
from declctl.informer.source import Source, stop_listening
from declctl.kit import Clock
from declctl.kit.callbacks import plain, refuse_async
from declctl.objects import EventType, ListOptions, ListPage, Record, WatchEvent

_ATTEMPTS = 5  # LISTs for one comparison
_SHOWN = 10  # keys that a message names
_log = logging.getLogger("declctl.informer")
_Identity = tuple[str, str]  # uid and version
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every object.
_ADDED, _MODIFIED = EventType.ADDED, EventType.MODIFIED

PAGE_SIZE, BUFFER = 500, 10  # objects on a page and pages ahead, as in client-go
PageFunc = Callable[[ListOptions], Awaitable[ListPage]]


@dataclass(frozen=True, slots=True)
class WholeList:
    """A list that is complete: its objects in order, its version, and whether it came in pages."""

    records: Sequence[Record]
    resource_version: str
    paged: bool


class ListPager:
    """Asks `page_func` for one page after the other.

    `page_size` None asks for everything at once. `buffer` is how many pages `pages` keeps ready. Of
    what is asked for, version and match go with the first page only: a continue token has them.
    """

    def __init__(
        self,
        page_func: PageFunc,
        *,
        page_size: int | None = PAGE_SIZE,
        buffer: int = BUFFER,
        full_list_if_expired: bool = True,
    ) -> None:
        self._page_func = page_func
        self._page_size = page_size
        self._buffer = buffer
        self._full_list_if_expired = full_list_if_expired

    async def list(self, options: ListOptions) -> WholeList:
        """Everything, in one value; no page is asked for ahead.

        Where the pages outlive their version (Expired on the second or a later one), everything is
        asked for at once instead, at the version that was asked for first, if `full_list_if_expired`.
        Raises what `page_func` raises, and MalformedAnswer for pages that would never end.
        """
        records: list[Record] = []
        first: ListPage | None = None
        paged = False
        try:
            async for page in self._one_by_one(options):
                records += page.records
                first, paged = first or page, first is not None
        except Expired:
            if first is None or not self._full_list_if_expired:
                raise
            first = await self._page_func(replace(options, limit=None))
            if first.continue_token:
                raise MalformedAnswer(
                    "a LIST without a limit was answered with one page of several"
                ) from None
            return WholeList(first.records, first.resource_version, paged=False)
        return WholeList(records, "" if first is None else first.resource_version, paged)

    async def pages(self, options: ListOptions) -> AsyncGenerator[ListPage, None]:
        """Page by page, while a task fetches the next ones, up to `buffer` of them and one more.

        Raises as `list` does, after the pages before; there is no full list in the place of pages
        that were given out. Close it (`contextlib.aclosing`) when leaving it early: the task ends
        with it.
        """
        ahead = _PageBuffer(self._buffer)
        fetching = asyncio.create_task(ahead.fetch(self._one_by_one(options)))
        try:
            while (page := await ahead.next()) is not None:
                yield page
            await fetching  # to raise what ended it
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def each_list_item(self, options: ListOptions, fn: Callable[[Record], object]) -> None:
        """Call `fn` with each object, while the next pages are fetched.

        What `fn` raises ends it, and is raised. It is a plain function: an asynchronous one raises
        TypeError, before anything is asked for where it can be recognised.
        """
        refuse_async(fn, "the function of each_list_item")
        async with aclosing(self.pages(options)) as pages:
            async for page in pages:
                for record in page.records:
                    plain(fn(record), "the function of each_list_item")

    async def _one_by_one(self, options: ListOptions) -> AsyncGenerator[ListPage, None]:
        if options.limit is None:
            options = replace(options, limit=self._page_size)
        while True:
            page = await self._page_func(options)
            yield page
            if not page.continue_token:
                return
            # A token says where the next page begins: the same one twice would bring this page for ever.
            if page.continue_token == options.continue_token:
                raise MalformedAnswer("a LIST gave the same continue token twice: it would never end")
            # The token has the version of the first page, and servers refuse a second version beside it.
            options = replace(
                options,
                resource_version=None,
                resource_version_match=None,
                continue_token=page.continue_token,
            )


class _PageBuffer:
    """Pages that were fetched and not taken yet. `fetch` waits while there are more than `buffer` of them."""

    def __init__(self, buffer: int) -> None:
        self._buffer = buffer
        self._pages: deque[ListPage] = deque()
        self._ended = False
        self._changed = asyncio.Condition()

    async def fetch(self, pages: AsyncGenerator[ListPage, None]) -> None:
        try:
            async with aclosing(pages):
                async for page in pages:
                    async with self._changed:
                        self._pages.append(page)
                        self._changed.notify_all()
                        await self._changed.wait_for(lambda: len(self._pages) <= self._buffer)
        finally:
            self._ended = True
            async with self._changed:
                self._changed.notify_all()

    async def next(self) -> ListPage | None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._pages or self._ended)
            page = self._pages.popleft() if self._pages else None
            self._changed.notify_all()
            return page


def relist_resource_version(version: str, *, quorum: bool) -> str:
    """The version to list at (client-go's relistResourceVersion).

    Empty is the most recent, "0" any; else none older than what was seen: the cache does not go
    back in time.
    """
    return "" if quorum else version or "0"


def list_options(version: str, *, quorum: bool) -> ListOptions:
    """What the first page of a list is asked with, where `version` is the last one seen."""
    version = relist_resource_version(version, quorum=quorum)
    return ListOptions(
        resource_version=version or None,
        resource_version_match=None if version in ("", "0") else "NotOlderThan",
    )


class PagePolicy:
    """How many objects are asked for at once. It learns whether the server has a watch cache.

    - A read of the storage comes in pages.
    - A list that the watch cache can answer is asked for at once: a limit would send it to the storage.
    - "Any version" is asked for in pages. A watch cache ignores that, and a server without one is spared from
      writing everything at once. If pages do come, there is no watch cache, and everything is asked for in
      pages from then on.
    """

    def __init__(self) -> None:
        self._no_watch_cache = False  # the server has shown that it has none

    def page_size(self, options: ListOptions, forced: int | None) -> int | None:
        """Objects on a page; None for all of them."""
        if forced is not None:
            return forced
        cached = options.resource_version not in (None, "", "0")
        return None if cached and not self._no_watch_cache else PAGE_SIZE

    def learn(self, options: ListOptions, *, paged: bool) -> None:
        """Note that such a list came in one page or in several."""
        self._no_watch_cache |= paged and options.resource_version == "0"


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """A watch that is open."""

    batches: AsyncIterator[Sequence[WatchEvent]]
    since: float  # when it was requested, on the clock
    rest: Sequence[WatchEvent] = ()  # events that were read and not given to the store yet
    streamed: bool = False  # it began with everything, and has brought that

    async def close(self) -> None:
        """End the watch, which closes its connection."""
        await stop_listening(self.batches)


async def initial_events(
    batches: AsyncIterator[Sequence[WatchEvent]], deadline: Deadline, metrics: ReflectorMetrics
) -> tuple[Sequence[Record], str, Sequence[WatchEvent]]:
    """Read a streaming list to its end: its objects, their version, and the events read beyond its end.

    Raises NoInitialEventsEnd where the watch ends before the list is complete.
    """
    records: dict[str, Record] = {}  # client-go's temporary store
    metrics.counts.items_listed = 0
    async for batch in batches:
        metrics.counts.last_event_at = deadline.touch()
        for position, event in enumerate(batch):
            record = event.record
            if record is not None and (event.type is _ADDED or event.type is _MODIFIED):
                records[record.key] = record
            elif event.initial_events_end:
                return list(records.values()), event.resource_version, batch[position + 1 :]
            elif record is not None:
                records.pop(record.key, None)  # it was deleted, or dropped, while the list came
            if event.decode_warning:
                stored = record is not None and event.type is not EventType.DROPPED
                metrics.decode_warning(event.decode_warning, stored=stored)
        metrics.counts.items_listed = len(records)
        await asyncio.sleep(0)  # a large list comes in one go: let the loop do something else
    raise NoInitialEventsEnd("the streaming list ended before it was complete")


class ConsistencyDetector:
    """Compares a streaming list with a LIST at exactly its version, beside the watch that goes on.

    `difference` is what the last comparison found, until `close` or the next `begin`; `on_difference` is
    called with it. A LIST that fails is repeated, up to five times in all. If all fail, or if the version has
    expired, nothing is compared, and that is no error.
    """

    def __init__(
        self,
        source: Source,
        metrics: ReflectorMetrics,
        on_difference: Callable[[Inconsistent], None],
        *,
        clock: Clock,
    ) -> None:
        self.difference: Inconsistent | None = None
        self._source = source
        self._metrics = metrics
        self._on_difference = on_difference
        self._clock = clock
        self._checking: asyncio.Task[None] | None = None  # the comparison that is under way

    async def begin(self, records: Sequence[Record], version: str, *, known: Known) -> None:
        """Check the objects of a streaming list, in a task of its own; a check that is under way ends."""
        await self.close()
        if version in ("", "0"):
            return  # no LIST can be at exactly such a version
        streamed = {record.key: (record.uid, record.resource_version) for record in records}
        self._checking = asyncio.create_task(self._check(streamed, version, known), name="consistency check")

    async def close(self) -> None:
        """End the check that is under way, and forget the difference."""
        self.difference = None
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.cancel()
            await asyncio.wait([checking])

    async def _check(self, streamed: Mapping[str, _Identity], version: str, known: Known) -> None:
        projection = self._source.projection
        listed = await self._listed(version, known)
        if listed is None or self._source.projection is not projection:
            return  # another transform may leave out other objects
        self._metrics.counts.consistency_checks += 1
        keys = sorted(key for key in streamed.keys() | listed.keys() if streamed.get(key) != listed.get(key))
        if not keys:
            return
        self._metrics.counts.inconsistencies += 1
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        self.difference = Inconsistent(
            f"the streaming list differs from a LIST at its version {version} in "
            f"{', '.join(keys[:_SHOWN])}{more}"
        )
        _log.error("%s", self._metrics.sentence(self.difference))
        self._on_difference(self.difference)

    async def _listed(self, version: str, known: Known) -> Mapping[str, _Identity] | None:
        """What a LIST has at that version; None if it can't be had."""
        exactly = ListOptions(resource_version=version, resource_version_match="Exact")
        pager = ListPager(lambda options: self._source.list(options, known=known), buffer=0)
        backoff = ExponentialBackoff(self._clock, first=1.0)
        for _ in range(_ATTEMPTS):
            found: dict[str, _Identity] = {}
            try:
                async with aclosing(pager.pages(exactly)) as pages:
                    async for page in pages:
                        found.update((r.key, (r.uid, r.resource_version)) for r in page.records)
            except (Expired, InvalidRequest) as fault:
                # The version is gone, or the server does not know `Exact`: to ask again would not help.
                _log.info("%s; it can't be compared", self._metrics.sentence(fault))
                return None
            except ApiError as fault:
                await self._clock.sleep(backoff.seconds(fault))
            else:
                return found
        failed = Inconsistent("the streaming list was not compared: every LIST failed")
        _log.info("%s", self._metrics.sentence(failed))
        return None
