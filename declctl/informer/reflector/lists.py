"""Lists: in pages (client-go's tools/pager), as a stream (WatchList), and the check of a stream.

`list_options` and `PagePolicy` decide the version and the page size of a LIST (client-go's ListAndWatch).
`ConsistencyDetector` compares a streaming list with a LIST at the same version (client-go's
consistencydetector). If they differ, client-go ends the process; here the keys are logged, and all objects
are listed anew.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

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
_ADDED_EVENT, _MODIFIED_EVENT, _OUTSIDE_EVENT = EventType.ADDED, EventType.MODIFIED, EventType.OUTSIDE

PAGE_SIZE, BUFFER = 500, 10  # objects on a page and pages ahead, as in client-go
PageFunc = Callable[[ListOptions], Awaitable[ListPage]]


class WholeList(msgspec.Struct, frozen=True):
    """A complete list."""

    records: Sequence[Record]  # in the order of the server
    resource_version: str
    paged: bool  # it came in more than one page


class ListPager:
    """Lists page by page (client-go's ListPager). Used on one loop.

    - `page_func`: returns the page for some options.
    - `page_size`: objects on a page, 500 by default; None for all objects at once.
    - `buffer`: the number of pages that `pages` fetches ahead, 10 by default.
    - `full_list_if_expired`: True, the default, lets `list` repeat an expired list without pages.

    Version and match of the options go with the first page only, because a continue token contains them.
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
        """All pages in one value. No page is fetched ahead.

        If the version expires after the first page, all objects are requested at once, at the version of
        `options`; without `full_list_if_expired`, Expired is raised. Raises the exceptions of `page_func`,
        and MalformedAnswer for pages that would never end.
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
        """The pages one by one, while a task fetches the next ones: up to `buffer` pages and one more.

        Raises the exceptions of `list`, after the pages before; an expired list is not repeated. If the
        caller leaves early, the generator has to be closed (`contextlib.aclosing`), which ends the task.
        """
        ahead = _PageBuffer(self._buffer)
        fetching = asyncio.create_task(ahead.fetch(self._one_by_one(options)))
        try:
            while (page := await ahead.next()) is not None:
                yield page
            await fetching  # raises the exception that ended it
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def each_list_item(self, options: ListOptions, fn: Callable[[Record], object]) -> None:
        """Call a plain function with each object, while the next pages are fetched (EachListItem).

        Raises the exceptions of `fn` and of `pages`, and TypeError for an asynchronous function; if that can
        be recognised, before the first request.
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
            # The same token again would bring the same page again, for ever.
            if page.continue_token == options.continue_token:
                raise MalformedAnswer("a LIST gave the same continue token twice: it would never end")
            # The token contains the version of the first page, and servers refuse a version beside it.
            options = replace(
                options,
                resource_version=None,
                resource_version_match=None,
                continue_token=page.continue_token,
            )


class _PageBuffer:
    """Pages that were fetched and not read yet. `fetch` waits while there are more than `buffer` of them."""

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
    """The version for a LIST (client-go's relistResourceVersion). `version` is the last one that was seen.

    Empty is the most recent version, and "0" is any. Otherwise the list must not be older than `version`, so
    that the cache does not go back in time.
    """
    return "" if quorum else version or "0"


def list_options(version: str, *, quorum: bool, shard_selector: str = "") -> ListOptions:
    """The options for the first page of a LIST. `version` is the last one that was seen."""
    version = relist_resource_version(version, quorum=quorum)
    return ListOptions(
        resource_version=version or None,
        resource_version_match=None if version in ("", "0") else "NotOlderThan",
        shard_selector=shard_selector,
    )


class PagePolicy:
    """The page size of each LIST. It learns whether the server has a watch cache.

    - A list that the server reads from its storage is requested in pages.
    - A list that the watch cache can answer is requested without a limit, which would bypass the cache.
    - A list at any version ("0") is requested in pages. A watch cache ignores the limit. If pages come all
      the same, the server has no watch cache, and all later lists are requested in pages.
    """

    def __init__(self) -> None:
        self._no_watch_cache = False  # the server has answered a list at any version in pages

    def page_size(self, options: ListOptions, forced: int | None) -> int | None:
        """The objects on a page; None for all at once. `forced` is the size that the user has chosen."""
        if forced is not None:
            return forced
        cached = options.resource_version not in (None, "", "0")
        return None if cached and not self._no_watch_cache else PAGE_SIZE

    def learn(self, options: ListOptions, *, paged: bool) -> None:
        """Note whether a list with these options came in several pages."""
        self._no_watch_cache |= paged and options.resource_version == "0"


class OpenWatch(msgspec.Struct, frozen=True):
    """An open watch."""

    batches: AsyncIterator[Sequence[WatchEvent]]
    since: float  # monotonic seconds of the request
    rest: Sequence[WatchEvent] = ()  # events that were read together with the end of the streaming list
    streamed: bool = False  # it began with a streaming list, which is complete

    async def close(self) -> None:
        """End the watch, which closes its connection."""
        await stop_listening(self.batches)


async def initial_events(
    batches: AsyncIterator[Sequence[WatchEvent]], deadline: Deadline, metrics: ReflectorMetrics
) -> tuple[Sequence[Record], str, Sequence[WatchEvent]]:
    """Read a streaming list; returns its objects, their version, and the events that were read after its end.

    Raises NoInitialEventsEnd if the watch ends before the list is complete.
    """
    records: dict[str, Record] = {}  # client-go's temporary store
    metrics.counts.items_listed = metrics.counts.items_outside = 0
    async for batch in batches:
        metrics.counts.last_event_at = deadline.touch()
        for position, event in enumerate(batch):
            record = event.record
            if record is not None and (event.type is _ADDED_EVENT or event.type is _MODIFIED_EVENT):
                records[record.key] = record
            elif event.initial_events_end:
                metrics.counts.items_listed = len(records)
                return list(records.values()), event.resource_version, batch[position + 1 :]
            elif record is not None:
                records.pop(record.key, None)  # deleted or dropped while the list came
            elif event.type is _OUTSIDE_EVENT:
                metrics.counts.items_outside += 1
            if event.decode_warning:
                stored = record is not None and event.type is not EventType.DROPPED
                metrics.decode_warning(event.decode_warning, stored=stored)
        metrics.counts.items_listed = len(records)
        await asyncio.sleep(0)  # a large list can come without a wait: other tasks of the loop run here
    raise NoInitialEventsEnd("the streaming list ended before it was complete")


class ConsistencyDetector:
    """Compares a streaming list with a LIST at exactly its version, while the watch goes on.

    `difference` is the result of the last comparison, None without a difference, until `close` or the next
    `begin`; `on_difference` is called with it. A LIST that fails is repeated, up to five times in all. If all
    fail, or the version has expired, nothing is compared; that is no error.
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
        self._checking: asyncio.Task[None] | None = None  # the last comparison

    async def begin(
        self,
        records: Sequence[Record],
        version: str,
        *,
        known: Known,
        shard_selector: str = "",
        comparable: Callable[[], bool] = lambda: True,
    ) -> None:
        """Compare the objects of a streaming list in a task, in the place of the present comparison.

        `comparable` says whether a LIST that is complete may be compared: the scope may have changed.
        """
        await self.close()
        if version in ("", "0"):
            return  # a LIST can't be exactly at these
        streamed = {record.key: (record.uid, record.resource_version) for record in records}
        exactly = ListOptions(
            resource_version=version, resource_version_match="Exact", shard_selector=shard_selector
        )
        self._checking = asyncio.create_task(
            self._check(streamed, exactly, known, comparable), name="consistency check"
        )

    async def close(self) -> None:
        """End the present comparison, and drop the difference."""
        self.difference = None
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.cancel()
            await asyncio.wait([checking])

    async def _check(
        self,
        streamed: Mapping[str, _Identity],
        exactly: ListOptions,
        known: Known,
        comparable: Callable[[], bool],
    ) -> None:
        projection = self._source.projection
        listed = await self._listed(exactly, known)
        if listed is None or self._source.projection is not projection or not comparable():
            return  # the new projection, or the new scope, may leave out other objects
        self._metrics.counts.consistency_checks += 1
        keys = sorted(key for key in streamed.keys() | listed.keys() if streamed.get(key) != listed.get(key))
        if not keys:
            return
        self._metrics.counts.inconsistencies += 1
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        self.difference = Inconsistent(
            f"the streaming list differs from a LIST at its version {exactly.resource_version} in "
            f"{', '.join(keys[:_SHOWN])}{more}"
        )
        _log.error("%s", self._metrics.sentence(self.difference))
        self._on_difference(self.difference)

    async def _listed(self, exactly: ListOptions, known: Known) -> Mapping[str, _Identity] | None:
        """Uid and version of each object of a LIST with these options; None if there is no such list."""
        pager = ListPager(lambda options: self._source.list(options, known=known), buffer=0)
        backoff = ExponentialBackoff(self._clock, first=1.0)
        for _ in range(_ATTEMPTS):
            found: dict[str, _Identity] = {}
            try:
                async with aclosing(pager.pages(exactly)) as pages:
                    async for page in pages:
                        found.update((r.key, (r.uid, r.resource_version)) for r in page.records)
            except (Expired, InvalidRequest) as fault:
                # The version is compacted, or the server does not know `Exact`: a repetition would not help.
                _log.info("%s; it can't be compared", self._metrics.sentence(fault))
                return None
            except ApiError as fault:
                await self._clock.sleep(backoff.seconds(fault))
            else:
                return found
        failed = Inconsistent("the streaming list was not compared: every LIST failed")
        _log.info("%s", self._metrics.sentence(failed))
        return None
