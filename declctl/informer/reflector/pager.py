"""Lists in pages (client-go's tools/pager): one page after the other, or some of them ahead.

And at which version a reflector lists, in which pages (client-go's ListAndWatch).
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from declctl.errors import Expired, MalformedAnswer
from declctl.kit.callbacks import plain, refuse_async
from declctl.objects import ListOptions, ListPage, Record

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
        ahead = _Ahead(self._buffer)
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
            if page.continue_token == options.continue_token:
                raise MalformedAnswer("a LIST gave the same continue token twice: it would never end")
            options = replace(
                options,
                resource_version=None,
                resource_version_match=None,
                continue_token=page.continue_token,
            )


class _Ahead:
    """Pages that were fetched and not taken yet. Whoever fetches waits while more than `buffer` are here."""

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

    A read of the storage comes in pages. One that the watch cache can answer is asked for at once,
    because a limit would send it to the storage; "any version" is asked for in pages, because a watch
    cache ignores that, and a server without one shall not have to write everything at once. If pages
    do come then, there is no watch cache, and everything is asked for in pages from then on.
    """

    def __init__(self) -> None:
        self._no_watch_cache = False

    def page_size(self, options: ListOptions, forced: int | None) -> int | None:
        """Objects on a page; None for all of them."""
        if forced is not None:
            return forced
        cached = options.resource_version not in (None, "", "0")
        return None if cached and not self._no_watch_cache else PAGE_SIZE

    def learn(self, options: ListOptions, *, paged: bool) -> None:
        """Such a list came in one page or in several."""
        self._no_watch_cache |= paged and options.resource_version == "0"
