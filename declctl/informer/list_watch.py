"""ListWatch: a pair of functions as a source (client-go's listwatch.go)."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from declctl.decoding import Known, Projection
from declctl.informer.source import (
    Progress,
    ServerHealth,
    Source,
    health_of,
    list_page,
    stop_listening,
    supports_watch_list,
)
from declctl.objects import ListOptions, ListPage, WatchEvent, WatchOptions

_Options = TypeVar("_Options", ListOptions, WatchOptions)
ListAnswer = ListPage | Mapping[str, Any] | bytes
WatchAnswer = Sequence[WatchEvent] | Mapping[str, Any] | bytes
ListFunc = Callable[[ListOptions], Awaitable[ListAnswer]]
WatchFunc = Callable[[WatchOptions], AsyncIterator[WatchAnswer]]


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

    async def list(self, options: ListOptions, *, known: Known) -> ListPage:
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
    def health(self) -> ServerHealth | None:
        """The other source's."""
        return health_of(self._source)

    def is_watch_list_semantics_unsupported(self) -> bool:
        """What the other source says."""
        return not supports_watch_list(self._source)

    async def list(
        self, options: ListOptions, *, known: Known, progress: Progress = lambda: None
    ) -> ListPage:
        """One page of a LIST."""
        return await list_page(self._source, self._tweak(options), known=known, progress=progress)

    def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncIterator[Sequence[WatchEvent]]:
        """Events in batches until the server ends the watch."""
        return self._source.watch(self._tweak(options), known=known)


def _bytes(answer: Mapping[str, Any] | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
