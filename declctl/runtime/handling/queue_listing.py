"""What waits for a handler: the document of `GET /queue/{handler}`, without values of objects."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from declctl.kit import Clock
from declctl.kit.key_queue import Item
from declctl.kit.pending import ItemState
from declctl.objects import Notification
from declctl.runtime.handling.invocation import Retry
from declctl.workqueue import Priority, Reasons

DEFAULT_ITEMS, MOST_ITEMS = 100, 1000  # of one listing


class ListedItem(msgspec.Struct, frozen=True):
    """One change, or one key of a reconciler. Times are in UTC."""

    key: str
    state: ItemState
    type: str | None  # of the change; None for a key of a reconciler
    priority: str | None  # of a key of a reconciler: Live or Background; None for a change
    since: datetime | None  # when it was added; of a running or failed key of a reconciler, its last call
    attempts: int  # that have failed
    due: datetime | None  # the time of its retry, or the end of its rest; None if it waits for no time
    last_error_type: str | None  # of the newest failed attempt
    generation: int | None  # whose code handles it; None: the one that runs when its turn comes
    again: bool  # a running key of a reconciler that was added again, and comes once more


class QueueListing(msgspec.Struct, frozen=True):
    """What waits for a handler at one moment; `items` in the order in which they will be handed out."""

    handler: str
    mode: str
    waiting: int  # neither running nor backing off
    running: int
    backing_off: int  # failed, or due at a time that the handler has asked for
    unmapped: int  # changes that lead to no key of a reconciler yet; they are not among the items
    left_out: int  # items beyond the limit
    items: Sequence[ListedItem]
    write_loops: Sequence[str] = ()  # keys whose writes lead to their next call, in words with what to do


def listed_items(
    items: Iterable[Item[Any, Any]], generation_of: Callable[[Item[Any, Any]], int | None], clock: Clock
) -> list[ListedItem]:
    """Items of a queue as they are listed. `generation_of` says whose code handles one."""
    now, wall = clock.monotonic(), clock.now()

    def moment(seconds: float | None) -> datetime | None:
        return None if seconds is None else wall + timedelta(seconds=seconds - now)

    def listed(item: Item[Any, Any]) -> ListedItem:
        retry = item.retry_state if isinstance(item.retry_state, Retry) else None
        waits = 0 if retry is None else retry.waits  # for a cache or a suspended plugin: they are no attempts
        return ListedItem(
            key=item.key,
            state=item.state,
            type=str(item.value.type) if isinstance(item.value, Notification) else None,
            priority=Priority(item.priority).name.capitalize() if isinstance(item.value, Reasons) else None,
            since=moment(item.added_at),
            attempts=max(0, item.attempts - waits),
            due=moment(item.due),
            last_error_type=None if retry is None else retry.error_type,
            generation=generation_of(item),
            again=item.again,
        )

    return [listed(item) for item in items]
