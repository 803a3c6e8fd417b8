"""Sources: what a reflector lists and watches. `Source` is a protocol, so that informers know no HTTP.

`ListWatch` is a source made of two functions (client-go's listwatch.go). `Decoding` sums the figures of all
projections that a source has used.
"""

import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec.structs import replace

from declctl.decoding.projection import Known, Projection, ProjectionStatistics
from declctl.objects import GroupVersionKind, ListOptions, ListPage, Resource, WatchEvent, WatchOptions

_Options = TypeVar("_Options", ListOptions, WatchOptions)
ListAnswer = ListPage | Mapping[str, Any] | bytes
WatchAnswer = Sequence[WatchEvent] | Mapping[str, Any] | bytes
ListFunc = Callable[[ListOptions], Awaitable[ListAnswer]]
WatchFunc = Callable[[WatchOptions], AsyncIterator[WatchAnswer]]
Progress = Callable[[], object]
DecodeRunner = Callable[[Callable[[], Any]], Awaitable[Any]]


def no_progress() -> None:
    """The default for `progress`: does nothing."""


class Source(Protocol):
    """One resource of one server, or the part of it in a namespace or behind selectors (ListerWatcher).

    Used on one loop. Both methods raise the ApiError family and nothing else. A source may also have:

    - `is_watch_list_semantics_unsupported()`: see WatchListSemantics.
    - `has_selector`: whether it selects objects by labels or fields.
    - `health`: the ServerMonitor of its server.
    - `decode_runner`: see SupportsDecodeRunner.
    """

    projection: Projection  # the decoder; it may be replaced between two events

    @property
    def description(self) -> str:
        """The resource in the words of a log line, such as `pods in team-a`."""
        ...

    async def list(self, options: ListOptions, *, known: Known, progress: Progress = no_progress) -> ListPage:
        """One page of a LIST.

        `known` returns the cached record of a key; an unchanged object is returned as that record. `progress`
        is called whenever a part of the answer was received, so that a long answer does not time out while it
        comes. The answers of a source without a `progress` parameter have to be complete within two minutes.
        """
        ...

    def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncIterator[Sequence[WatchEvent]]:
        """Events in batches until the server ends the watch.

        An empty batch says that the watch is open. The caller ends the watch by `aclose` of the iterator, if
        it has that method; then the connection is closed. `known` is for streaming lists, as in `list`.
        """
        ...


def takes_progress(source: Source) -> bool:
    """Whether `list` of a source has the parameter `progress`, which is optional."""
    return "progress" in inspect.signature(source.list).parameters


async def stop_listening(watch: AsyncIterator[object]) -> None:
    """Close a watch, and with it its connection, if the iterator has `aclose`."""
    close = getattr(watch, "aclose", None)
    if close is not None:
        await close()


@runtime_checkable
class WatchListSemantics(Protocol):
    """A source that says whether it can stream lists (client-go's IsWatchListSemanticsUnSupported)."""

    def is_watch_list_semantics_unsupported(self) -> bool:
        """Whether the watches can't begin with all existing objects."""
        ...


def supports_watch_list(source: object) -> bool:
    """Whether streaming lists may be requested: true unless the source says otherwise."""
    return not (isinstance(source, WatchListSemantics) and source.is_watch_list_semantics_unsupported())


def has_selector(source: object) -> bool:
    """Whether a source selects objects by labels or fields; True for a source without this attribute.

    With a selector, the server may have to read all objects of the resource for a LIST with a limit.
    """
    return bool(getattr(source, "has_selector", True))


@runtime_checkable
class SupportsDecodeRunner(Protocol):
    """A source that can decode in another thread than that of the loop.

    `decode_runner` takes a function that decodes, runs it in that thread, and returns its result or raises
    its exception. One function runs at a time. The attribute may be set between two events; None lets the
    loop decode.
    """

    @property
    def decode_runner(self) -> DecodeRunner | None:
        """Runs a function in a thread; None where the loop decodes."""
        ...

    @decode_runner.setter
    def decode_runner(self, runner: DecodeRunner | None) -> None: ...


class ServerMonitor(Protocol):
    """Watches whether a server can be reached, for all its reflectors. Used on one loop."""

    def suspect(self) -> None:
        """Check whether the server is away, because a request failed as if it were."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Return after `seconds`, but not while the server is away.

        Returns True if the server was away and is back; then `seconds` may not have passed yet.
        """
        ...

    def subscribe(self, call: Callable[[str], None]) -> Callable[[], None]:
        """Call a function with the reason when the server's history was replaced; returns an unsubscriber."""
        ...

    def history_replaced(self, why: str) -> None:
        """Call all subscribers, because the server has another history than before."""
        ...


def health_of(source: object) -> ServerMonitor | None:
    """The monitor of a source's server; None for a source without one."""
    return getattr(source, "health", None)


class TweakListOptions(Protocol):
    """A function that returns the options to use in the place of those of a LIST or WATCH (client-go).

    `lambda options: dataclasses.replace(options, label_selector="app=web")`
    """

    def __call__(self, options: _Options, /) -> _Options:
        """The options to use."""
        ...


class ListWatch:
    """A source made of two functions (client-go's ListWatch). Used on one loop.

    - `list_func`: a coroutine function that returns a page: as `{"metadata": …, "items": […]}`, as the bytes
      of that, or as a ListPage.
    - `watch_func`: returns an async iterator of events, each as `{"type": …, "object": …}` or its bytes, or
      of batches of WatchEvents.
    - `projection`: decodes mappings and bytes.
    - `description`: for logs; by default the kind.
    - `tweak_list_options`: applied to the options of every LIST and WATCH (NewFilteredListWatchFromClient).
    - `watch_list`: False if the watches can't begin with all existing objects; then that is never requested.

    Both functions raise the ApiError family.
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
        """Whether the watches can't begin with all existing objects."""
        return not self._watch_list

    async def list(
        self,
        options: ListOptions,
        *,
        known: Known,
        progress: Progress = no_progress,  # noqa: ARG002 - the function returns its answer as a whole
    ) -> ListPage:
        """One page of a LIST, as in `Source`."""
        answer = await self._list(self._tweaked(options))
        if isinstance(answer, ListPage):
            return answer
        return self.projection.page(_bytes(answer), known=known)

    async def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """Events in batches until the iterator of `watch_func` ends, as in `Source`."""
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
    """A source that passes other options to another one (client-go's FilteredListWatch). Used on one loop.

    `tweak_list_options` is applied to the options of every LIST and WATCH.
    """

    def __init__(self, source: Source, tweak_list_options: TweakListOptions) -> None:
        self._source = source
        self._takes_progress = takes_progress(source)
        self._tweak = tweak_list_options

    @property
    def projection(self) -> Projection:
        """The projection of the other source."""
        return self._source.projection

    @projection.setter
    def projection(self, projection: Projection) -> None:
        self._source.projection = projection

    @property
    def description(self) -> str:
        """The description of the other source."""
        return self._source.description

    @property
    def health(self) -> ServerMonitor | None:
        """The server monitor of the other source."""
        return health_of(self._source)

    def is_watch_list_semantics_unsupported(self) -> bool:
        """Whether the other source can't stream lists."""
        return not supports_watch_list(self._source)

    async def list(self, options: ListOptions, *, known: Known, progress: Progress = no_progress) -> ListPage:
        """One page of a LIST, as in `Source`."""
        tweaked = self._tweak(options)
        if self._takes_progress:
            return await self._source.list(tweaked, known=known, progress=progress)
        return await self._source.list(tweaked, known=known)

    def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncIterator[Sequence[WatchEvent]]:
        """Events in batches until the server ends the watch, as in `Source`."""
        return self._source.watch(self._tweak(options), known=known)


def _bytes(answer: Mapping[str, Any] | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


class DecodingSource(Protocol):
    """What has a projection, which may be replaced: a source, or several that decode alike."""

    @property
    def projection(self) -> Projection:
        """The decoder."""
        ...

    @projection.setter
    def projection(self, projection: Projection) -> None: ...


class Decoding:
    """Sums the figures of all projections that a source has used, so that no count ever decreases.

    `exchange` is called by one thread, `statistics` by any.
    """

    def __init__(self, source: DecodingSource) -> None:
        self._source = source
        # Projections that were replaced, the oldest first. A tuple, which other threads read while it
        # changes.
        self._former: tuple[_FormerProjection, ...] = ()

    def exchange(self, projection: Projection) -> None:
        """Let the source decode with another projection from now on.

        The previous projection finishes the LIST that is under way, and its figures still grow until then.
        """
        before = self._source.projection
        others = [former for former in self._former if not former.is_of(before)]
        # The figures of deleted projections can't change: they are added up to one entry.
        gone = [former for former in others if former.is_gone]
        alive = [former for former in others if former not in gone]
        ended = [_FormerProjection(_together([former.statistics() for former in gone]))] if gone else []
        self._former = (*ended, *alive, _FormerProjection(before.statistics(), before))
        self._source.projection = projection

    def statistics(self) -> ProjectionStatistics:
        """The sums so far; the figures of frames are those of the present projection."""
        former, current = self._former, self._source.projection
        # During `exchange`, the last former projection is the present one for a moment.
        figures = [each.statistics() for each in former if not each.is_of(current)]
        return _together([*figures, current.statistics()])


class _FormerProjection:
    """The figures of a projection that was replaced, or the sums of several that were deleted.

    It has a weak reference: a projection may hold user code of a generation that has to be freed.
    """

    def __init__(self, figures: ProjectionStatistics, projection: Projection | None = None) -> None:
        self._figures = figures  # the last ones that were read
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
    """The sums. Frames are those of the last entry; the fault is that of the last entry which has one."""
    return replace(
        figures[-1],
        objects=sum(each.objects for each in figures),
        decoded_whole=sum(each.decoded_whole for each in figures),
        dropped=sum(each.dropped for each in figures),
        failed=sum(each.failed for each in figures),
        last_fault=next((each.last_fault for each in reversed(figures) if each.last_fault), None),
    )


class SourceProvider(Protocol):
    """Makes sources: a client of a cluster. Used on one loop."""

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
        """A source of one kind."""
        ...

    async def find_resource(self, name: str) -> Resource:
        """The resource of a name such as `deployments.apps`; raises NotFound while it is not served."""
        ...
