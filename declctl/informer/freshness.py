"""Freshness: the proof that a cache has all changes that the server had at some moment, without a full LIST.

A process that takes over from another one needs it: its caches may lag behind, and the other process has
acted on newer objects (kubernetes#137308).

1. `present_version` asks the server for its present version by a consistent LIST of one object.
2. A cache that has seen this version is fresh. Bookmarks count.
3. A cache of objects that seldom change is at an older version until the next bookmark, which may take a
   minute. So `prove_fresh` opens a second, short watch from the version of the cache. It brings the changes
   that the cache may lack, and a bookmark at its end: API servers send one two seconds before a watch ends.
   Without changes up to the version of step 1, the cache is fresh. Else it is fresh when it has the last one.
4. Where that shows nothing within ten seconds, the cache is listed anew, by a consistent LIST.

A namespace of a set that this process may not read is passed over: nothing of it is in the cache.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import NamedTuple

from declctl.decoding.projection import nothing_known
from declctl.errors import ApiError, Expired, Forbidden, NotFound, Unauthorized
from declctl.informer.informer import SharedIndexInformer
from declctl.informer.reflector.faults import Deadline
from declctl.informer.reflector.reflector import Reflector
from declctl.informer.source import Source, stop_listening
from declctl.kit import Clock
from declctl.objects import NO_ORDER, EventType, ListOptions, WatchOptions, version_order

LIST_SECONDS = 30.0  # without an answer, until the LIST of one object is given up
WATCH_SECONDS = 3  # of the short watch: the bookmark comes two seconds before its end
RELIST_SECONDS = 10.0  # after which a cache that is not proven is listed anew
_SILENCE_SECONDS = 6.0  # without anything from the short watch, until it is given up
_PAUSE_SECONDS = 0.5  # between two short watches
_LOOK_SECONDS = 0.01  # between two looks at the version of a cache

_Order = tuple[int, str]


class ChangesAhead(NamedTuple):
    """What a short watch has brought. Both are `NO_ORDER` if there is none."""

    last: _Order  # the version of the last change of an object
    until: _Order  # up to this version there are no further changes


async def present_version(source: Source, *, clock: Clock) -> str:
    """The present version of the server, by a consistent LIST of one object. Raises the ApiError family."""
    async with Deadline(clock, idle=LIST_SECONDS, what="the LIST of the present version"):
        page = await source.list(ListOptions(limit=1), known=nothing_known)
    return page.resource_version


async def changes_ahead(source: Source, since: str, until: str, *, clock: Clock) -> ChangesAhead:
    """The changes after the version `since`, as far as a short watch brings them.

    Ends when it has come to the version `until`. Raises the ApiError family.
    """
    last = seen = NO_ORDER
    goal = version_order(until)
    batches = source.watch(WatchOptions(resource_version=since, timeout_seconds=WATCH_SECONDS))
    try:
        async with Deadline(clock, idle=_SILENCE_SECONDS, what="the watch that proves a cache") as deadline:
            async for batch in batches:
                deadline.touch()
                for event in batch:
                    seen = max(seen, version_order(event.resource_version))
                    if event.type is not EventType.BOOKMARK:
                        last = max(last, version_order(event.resource_version))
                if seen >= goal:
                    break
    finally:
        await stop_listening(batches)
    return ChangesAhead(last, seen)


def provable_reflectors(informer: SharedIndexInformer) -> Mapping[str | None, Reflector]:
    """The reflectors by namespace, without the namespaces of a set that this process may not read."""
    return {
        namespace: reflector
        for namespace, reflector in informer.reflectors().items()
        if namespace is None or not _is_unreadable(reflector)
    }


def _is_unreadable(reflector: Reflector) -> bool:
    """Whether its first list was refused."""
    refused = isinstance(reflector.fault, Forbidden | NotFound | Unauthorized)
    return refused and not reflector.last_sync_resource_version


async def prove_fresh(informer: SharedIndexInformer, version: str, *, clock: Clock) -> int:
    """Return when the cache has all changes up to a version of the server; waits as long as that takes.

    Returns how many lists were necessary. The informer runs, and has synced.
    """
    while not informer.follows_all:  # a namespace has come into its set, and gets a reflector
        await clock.sleep(_LOOK_SECONDS)
    parts = [_CachePart(informer, *each, clock=clock) for each in provable_reflectors(informer).items()]
    return sum(await asyncio.gather(*(part.prove(version) for part in parts)))


class _CachePart:
    """The objects of one reflector in a cache: all of them, or those of one namespace of a set."""

    def __init__(
        self, informer: SharedIndexInformer, namespace: str | None, reflector: Reflector, *, clock: Clock
    ) -> None:
        self._informer = informer
        self._namespace = namespace
        self._reflector = reflector
        self._clock = clock

    async def prove(self, version: str) -> bool:
        """Return when it has all changes up to a version; returns whether it was listed for that."""
        goal = version_order(version)
        if goal == NO_ORDER:  # versions that can't be compared: an aggregated API, maybe
            await self._listed_anew()
            return True
        works = self._reached(goal), self._shown(version)
        if await _first_within(RELIST_SECONDS, *works, clock=self._clock):
            return False
        self._reflector.request_relist()
        await self._reached(goal)
        return True

    @property
    def _version(self) -> str:
        """The version up to which it has all changes; empty before its first list."""
        return self._informer.version_in(self._namespace) or ""

    @property
    def _has_left(self) -> bool:
        """Whether its namespace has left the set, or can't be read."""
        if self._namespace is None:
            return False
        return not self._informer.follows(self._namespace) or _is_unreadable(self._reflector)

    async def _shown(self, version: str) -> None:
        """Return when short watches show that it has all changes up to a version."""
        goal, clock = version_order(version), self._clock
        while not self._has_left:
            if since := self._version:
                try:
                    ahead = await changes_ahead(self._reflector.source, since, version, clock=clock)
                except Expired:
                    self._reflector.request_relist()  # its own watch would find the same
                    return await self._reached(goal)
                except ApiError:  # the informer meets it, too, and reports it
                    ahead = ChangesAhead(NO_ORDER, NO_ORDER)
                if ahead.until >= goal:
                    return await self._reached(ahead.last)
            await clock.sleep(_PAUSE_SECONDS)
        return None

    async def _reached(self, version: _Order) -> None:
        """Return when it has all changes up to a version."""
        while version_order(self._version) < version and not self._has_left:
            await self._clock.sleep(_LOOK_SECONDS)

    async def _listed_anew(self) -> None:
        """Return when another list is in the cache."""
        before = self._reflector.statistics().relists
        self._reflector.request_relist()
        while not self._has_left and (
            self._reflector.statistics().relists == before or len(self._informer.controller.queue)
        ):
            await self._clock.sleep(_LOOK_SECONDS)


async def _first_within(seconds: float, *works: Awaitable[None], clock: Clock) -> bool:
    """Wait for the first of several works; returns False if none is done within `seconds`."""
    tasks = [asyncio.ensure_future(work) for work in works]
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait([*tasks, timer], return_when=asyncio.FIRST_COMPLETED)
        done = [task for task in tasks if task.done()]
        for task in done:
            task.result()  # raises what the work has raised
        return bool(done)
    finally:
        for task in (*tasks, timer):
            task.cancel()
        await asyncio.wait([*tasks, timer])
