"""Where a reflector lists and watches: a protocol, so that the line knows no HTTP."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, cast, runtime_checkable

from declctl.objects import Known, ListOptions, ListPage, Projection, WatchEvent, WatchOptions

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

        An empty batch says that the watch is open. Whoever stops listening calls `aclose` if there is
        one, which closes the connection. `known` is given for a streaming list, as for `list`.
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
