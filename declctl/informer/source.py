"""Where a reflector lists and watches: a protocol, so that the line knows no HTTP."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from declctl.decoding import Known, Projection
from declctl.objects import ListOptions, ListPage, WatchEvent, WatchOptions

Progress = Callable[[], object]


class Source(Protocol):
    """One resource of one server, or what a namespace and selectors leave of it.

    Both methods raise the ApiError family and nothing else. `projection` is what decodes; it may be
    exchanged between two events.
    """

    projection: Projection

    @property
    def description(self) -> str:
        """What is listed and watched, as people call it: `pods in team-a`."""
        ...

    async def list(self, options: ListOptions, *, known: Known) -> ListPage:
        """One page of a LIST.

        `known` is what the cache holds, so that what has not changed is given back as it is.

        A source may take `progress` as well, a function without arguments, and call it whenever more of
        the answer has come: then a long answer may take as long as it goes on coming. Without that, an
        answer has to be complete within two minutes.
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


class _ListWithProgress(Protocol):
    def __call__(self, options: ListOptions, *, known: Known, progress: Progress) -> Awaitable[ListPage]: ...


def list_page(
    source: Source, options: ListOptions, *, known: Known, progress: Progress
) -> Awaitable[ListPage]:
    """One page of a LIST; `progress` is called while it comes, by a source that takes it."""
    # Asked of the function and not of the class, so that one that is put in its place is judged by itself.
    if "progress" in inspect.signature(source.list).parameters:
        return cast("_ListWithProgress", source.list)(options, known=known, progress=progress)
    return source.list(options, known=known)


async def stop_listening(watch: AsyncIterator[object]) -> None:
    """Leave a watch, which closes its connection, if it is one that can be closed."""
    close = getattr(watch, "aclose", None)
    if close is not None:
        await close()


@runtime_checkable
class WatchListSemantics(Protocol):
    """What a source may say about streaming lists (client-go's IsWatchListSemanticsUnSupported)."""

    def is_watch_list_semantics_unsupported(self) -> bool:
        """Whether its watches can't begin with everything there is."""
        ...


def supports_watch_list(source: object) -> bool:
    """Whether streaming lists may be asked for: unless the source says that it can't do them."""
    return not (isinstance(source, WatchListSemantics) and source.is_watch_list_semantics_unsupported())


@runtime_checkable
class SelectsObjects(Protocol):
    """A source that says whether it selects objects by labels or fields."""

    @property
    def has_selector(self) -> bool:
        """True: to answer a LIST with a limit, the server may have to read all objects of the resource."""
        ...


def has_selector(source: object) -> bool:
    """Whether a source selects objects by labels or fields; True for a source that does not say."""
    return source.has_selector if isinstance(source, SelectsObjects) else True


@runtime_checkable
class DecodesElsewhere(Protocol):
    """A source that can decode in another thread than that of the loop.

    `elsewhere` runs what decodes, and gives back what that returns or raises; one at a time. It may be set
    between two events, also to None: then the loop decodes.
    """

    elsewhere: Callable[[Callable[[], Any]], Awaitable[Any]] | None


class ServerHealth(Protocol):
    """Whether a server can be reached, for all reflectors that list and watch there. Used on one loop."""

    def suspect(self) -> None:
        """A request failed as if the server were away: find out whether it is."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Return after `seconds`, but not while the server is away.

        True if it was away and has returned; then this is sooner than `seconds`, maybe.
        """
        ...

    def subscribe(self, call: Callable[[str], None]) -> Callable[[], None]:
        """Call this with a sentence when the server's history was replaced; returns what ends that."""
        ...

    def history_replaced(self, why: str) -> None:
        """The server's history was found to be another one than before: tell all who subscribed."""
        ...


@runtime_checkable
class SharedHealth(Protocol):
    """A source that knows how its server is, as all sources of one client do."""

    @property
    def health(self) -> ServerHealth | None:
        """How the server is; None if nobody knows."""
        ...


def health_of(source: object) -> ServerHealth | None:
    """How the server of a source is; None for a source that does not say."""
    return source.health if isinstance(source, SharedHealth) else None
