"""LIST: which objects at which version, in pages.

Follows the table of resourceVersion and resourceVersionMatch in the Kubernetes API docs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from declctl.sandbox import status
from declctl.sandbox.history import History, Snapshot, Stored
from declctl.sandbox.kinds import ResourceId
from declctl.sandbox.options import ListOptions
from declctl.sandbox.paging import CURRENT, Token
from declctl.sandbox.status import Refusal


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `remaining` is None where the real server does not count.

    On the last page, and with selectors.
    """

    version: int
    items: Sequence[Stored]
    token: str = ""
    remaining: int | None = None


def list_page(history: History, resource: ResourceId, options: ListOptions) -> Page:
    """The page that is asked for; refused with 400, 410 or 504."""
    snapshot, after = _snapshot(history, resource, options)
    # A watch cache answers version "0" as a whole, whatever the limit: client-go counts on it.
    limit = 0 if options.version == 0 and not options.token else options.limit
    selection = options.selection
    items: list[Stored] = []
    matching = (stored for stored in snapshot.within(selection.namespace, after) if selection.matches(stored))
    for stored in matching:
        items.append(stored)
        if limit and len(items) == limit:
            break
    more = next(matching, None) if limit else None
    if more is None:
        return Page(snapshot.version, items)
    token = Token(snapshot.version, items[-1].key).encode()
    remaining = 1 + sum(1 for _ in matching) if selection.is_everything else None
    return Page(snapshot.version, items, token, remaining)


def check_reached(history: History, version: int | None) -> None:
    """Refuse with 504 a version that the server has not reached."""
    if version is not None and version > history.version:
        raise status.too_large(version, history.version)


def _snapshot(history: History, resource: ResourceId, options: ListOptions) -> tuple[Snapshot, str]:
    collection = history.collection(resource)
    if options.token:
        token = Token.decode(options.token)
        if token.version == CURRENT:
            return collection.present(history.version), token.key
        try:
            return collection.at(token.version), token.key
        except Refusal as refusal:
            raise token.expired() from refusal
    check_reached(history, options.version)
    # A limit with a version and no match is a legacy form of Exact.
    exact = options.match == "Exact" or (not options.match and options.limit > 0 and bool(options.version))
    if not exact or options.version is None:
        return collection.present(history.version), ""
    try:
        return collection.at(options.version), ""
    except Refusal as refusal:
        raise status.compacted() from refusal
