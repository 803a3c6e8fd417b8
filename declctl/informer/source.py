"""Sources: where a reflector lists and watches. A protocol, so that the informers know no HTTP.

`ListWatch` is a pair of functions as a source (client-go's listwatch.go). `Decoding` has the figures of the
projections that a source has decoded with.
"""

import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from declctl.decoding.projection import Known, Projection, ProjectionStatistics
from declctl.objects import GroupVersionKind, ListOptions, ListPage, Resource, WatchEvent, WatchOptions

_Options = TypeVar("_Options", ListOptions, WatchOptions)
ListAnswer = ListPage | Mapping[str, Any] | bytes
WatchAnswer = Sequence[WatchEvent] | Mapping[str, Any] | bytes
ListFunc = Callable[[ListOptions], Awaitable[ListAnswer]]
WatchFunc = Callable[[WatchOptions], AsyncIterator[WatchAnswer]]
Progress = Callable[[], object]


def no_progress() -> None:
    """Progress of an answer that nobody wants to know."""


class Source(Protocol):
    """One resource of one server, or what a namespace and selectors leave of it. Used on one loop.

    Both methods raise the ApiError family and nothing else. A source may also have:

    - `is_watch_list_semantics_unsupported()`: see WatchListSemantics.
    - `has_selector`: whether it selects objects by labels or fields.
    - `health`: the ServerMonitor of its server.
    - `decode_runner`: see SupportsDecodeRunner.
    """

    projection: Projection  # which decodes; it may be exchanged between two events

    @property
    def description(self) -> str:
        """What is listed and watched, as people call it: `pods in team-a`."""
        ...

    async def list(self, options: ListOptions, *, known: Known, progress: Progress = no_progress) -> ListPage:
        """One page of a LIST.

        `known` is what the cache holds, so that what has not changed is given back as it is. `progress` is
        called whenever more of the answer has come: then a long answer may take as long as it goes on coming.
        A source that does not take it is given none; its answers have to be complete within two minutes.
        """
        ...

    def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncIterator[Sequence[WatchEvent]]:
        """Events in batches until the server ends the watch.

        An empty batch says that the watch is open. The caller ends a watch by its `aclose`, if it has one,
        which closes the connection. `known` is given for a streaming list, as for `list`.
        """
        ...


def takes_progress(source: Source) -> bool:
    """Whether `list` of a source takes `progress`. One that was written without it works, too."""
    return "progress" in inspect.signature(source.list).parameters


async def stop_listening(watch: AsyncIterator[object]) -> None:
    """Leave a watch, which closes its connection, if it is one that can be closed."""
    close = getattr(watch, "aclose", None)
    if close is not None:
        await close()


@runtime_checkable
class WatchListSemantics(Protocol):
    """A source that says whether it can stream lists (client-go's IsWatchListSemanticsUnSupported)."""

    def is_watch_list_semantics_unsupported(self) -> bool:
        """Whether its watches can't begin with everything there is."""
        ...


def supports_watch_list(source: object) -> bool:
    """Whether streaming lists may be asked for: unless the source says that it can't do them."""
    return not (isinstance(source, WatchListSemantics) and source.is_watch_list_semantics_unsupported())


def has_selector(source: object) -> bool:
    """Whether a source selects objects by labels or fields; True for a source that does not say.

    Then, to answer a LIST with a limit, the server may have to read all objects of the resource.
    """
    return bool(getattr(source, "has_selector", True))


@runtime_checkable
class SupportsDecodeRunner(Protocol):
    """A source that can decode in another thread than that of the loop.

    `decode_runner` takes a function that decodes, runs it in that thread, and returns its result or raises
    its exception. One function runs at a time. The attribute may be set between two events; None lets the
    loop decode.
    """

    decode_runner: Callable[[Callable[[], Any]], Awaitable[Any]] | None


class ServerMonitor(Protocol):
    """Whether a server can be reached, for all reflectors that list and watch there. Used on one loop."""

    def suspect(self) -> None:
        """Find out whether the server is away: a request failed as if it were."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Return after `seconds`, but not while the server is away.

        Returns True if the server was away and is back, which may be before `seconds` have passed.
        """
        ...

    def subscribe(self, call: Callable[[str], None]) -> Callable[[], None]:
        """Call a function with the reason when the server's history was replaced; returns what ends that."""
        ...

    def history_replaced(self, why: str) -> None:
        """Call all subscribers: the server's history was found to be another one than before."""
        ...


def health_of(source: object) -> ServerMonitor | None:
    """The monitor of a source's server; None for a source that has none."""
    return getattr(source, "health", None)


class TweakListOptions(Protocol):
    """Changes what is asked for: given the options of a LIST or of a WATCH, returns those to be used.

    `lambda options: dataclasses.replace(options, label_selector="app=web")`
    """

    def __call__(self, options: _Options, /) -> _Options:
        """The options to be used."""
        ...


class ListWatch:
    """A Source made of two functions.

    `list_func` returns a page, as `{"metadata": …, "items": […]}`, as its bytes, or as a ListPage.
    `watch_func` gives events, each as `{"type": …, "object": …}` or as its bytes, or batches of
    WatchEvents. What is plain is decoded by `projection`. Both raise the ApiError family.

    `tweak_list_options` is applied to the options of every LIST and every WATCH (client-go's
    NewFilteredListWatchFromClient). `watch_list` False says that the watches can't begin with
    everything there is: then they are never asked to.
    """

    def __init__(
        self,
        list_func: ListFunc,
        watch_func: WatchFunc,
        *,
        projection: Projection,
        description: str = "",
        tweak_list_options: TweakListOptions | None = None,
        watch_list: bool = True,
    ) -> None:
        self.projection = projection
        self.description = description or projection.layout.kind
        self._list = list_func
        self._watch = watch_func
        self._tweak = tweak_list_options
        self._watch_list = watch_list

    def is_watch_list_semantics_unsupported(self) -> bool:
        """Whether its watches can't begin with everything there is."""
        return not self._watch_list

    async def list(
        self,
        options: ListOptions,
        *,
        known: Known,
        progress: Progress = no_progress,  # noqa: ARG002 - the function gives its answer as a whole
    ) -> ListPage:
        """One page of a LIST."""
        answer = await self._list(self._tweaked(options))
        if isinstance(answer, ListPage):
            return answer
        return self.projection.page(_bytes(answer), known=known)

    async def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """Events in batches until the function ends."""
        answers = self._watch(self._tweaked(options))
        try:
            async for answer in answers:
                if isinstance(answer, bytes | Mapping):
                    line = _bytes(answer)
                    yield [self.projection.event(line, known=known) if known else self.projection.event(line)]
                else:
                    yield answer
        finally:
            await stop_listening(answers)

    def _tweaked(self, options: _Options) -> _Options:
        return options if self._tweak is None else self._tweak(options)


class FilteredListWatch:
    """Another source, asked with other options: `tweak_list_options` is applied to every LIST and WATCH."""

    def __init__(self, source: Source, tweak_list_options: TweakListOptions) -> None:
        self._source = source
        self._takes_progress = takes_progress(source)
        self._tweak = tweak_list_options

    @property
    def projection(self) -> Projection:
        """The other source's."""
        return self._source.projection

    @projection.setter
    def projection(self, projection: Projection) -> None:
        self._source.projection = projection

    @property
    def description(self) -> str:
        """The other source's."""
        return self._source.description

    @property
    def health(self) -> ServerMonitor | None:
        """The other source's."""
        return health_of(self._source)

    def is_watch_list_semantics_unsupported(self) -> bool:
        """What the other source says."""
        return not supports_watch_list(self._source)

    async def list(self, options: ListOptions, *, known: Known, progress: Progress = no_progress) -> ListPage:
        """One page of a LIST."""
        tweaked = self._tweak(options)
        if self._takes_progress:
            return await self._source.list(tweaked, known=known, progress=progress)
        return await self._source.list(tweaked, known=known)

    def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncIterator[Sequence[WatchEvent]]:
        """Events in batches until the server ends the watch."""
        return self._source.watch(self._tweak(options), known=known)


def _bytes(answer: Mapping[str, Any] | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


class Decoding:
    """The figures of all projections that a source has decoded with: no count ever goes back.

    `exchange` is for one thread, `statistics` for any.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._former: tuple[_FormerProjection, ...] = ()  # projections that were exchanged, the oldest first

    def exchange(self, projection: Projection) -> None:
        """Let the source decode with another projection from now on.

        The one before finishes the LIST that is under way, and its figures are read until then.
        """
        before = self._source.projection
        others = [former for former in self._former if not former.is_of(before)]
        # The figures of projections that are gone can't change any more: they become one.
        gone = [former for former in others if former.is_gone]
        alive = [former for former in others if former not in gone]
        ended = [_FormerProjection(_together([former.statistics() for former in gone]))] if gone else []
        self._former = (*ended, *alive, _FormerProjection(before.statistics(), before))
        self._source.projection = projection

    def statistics(self) -> ProjectionStatistics:
        """What was decoded so far; the frames are those of the present projection."""
        former, current = self._former, self._source.projection
        # The last of them is the present one for a moment, while they are exchanged.
        figures = [each.statistics() for each in former if not each.is_of(current)]
        return _together([*figures, current.statistics()])


class _FormerProjection:
    """A projection that was exchanged, or the figures of some that are gone.

    A projection is not kept alive for its figures: it may hold the code of a generation that is to be
    forgotten.
    """

    def __init__(self, figures: ProjectionStatistics, projection: Projection | None = None) -> None:
        self._figures = figures
        self._projection = None if projection is None else weakref.ref(projection)

    @property
    def is_gone(self) -> bool:
        return self._projection is None or self._projection() is None

    def is_of(self, projection: Projection) -> bool:
        return self._projection is not None and self._projection() is projection

    def statistics(self) -> ProjectionStatistics:
        projection = None if self._projection is None else self._projection()
        if projection is not None:
            self._figures = projection.statistics()
        return self._figures


def _together(figures: Sequence[ProjectionStatistics]) -> ProjectionStatistics:
    """The sums; the frames are those of the last one, and so is the fault where it has one."""
    return replace(
        figures[-1],
        objects=sum(each.objects for each in figures),
        decoded_whole=sum(each.decoded_whole for each in figures),
        dropped=sum(each.dropped for each in figures),
        failed=sum(each.failed for each in figures),
        last_fault=next((each.last_fault for each in reversed(figures) if each.last_fault), None),
    )


class SourceProvider(Protocol):
    """What gives sources: a client."""

    def source(
        self,
        gvk: GroupVersionKind,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        projection: Projection,
    ) -> Source:
        """Lists and watches one resource."""
        ...

    async def find_resource(self, name: str) -> Resource:
        """The resource that people call `deployments.apps`; raises NotFound while it is not served."""
        ...
