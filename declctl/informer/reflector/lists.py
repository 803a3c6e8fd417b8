"""How a reflector lists: at which version, and in which pages (client-go's ListAndWatch and its pager)."""

from declctl.informer.reflector.pager import PAGE_SIZE
from declctl.objects import ListOptions


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
