"""The queue of changes: all values of a key in their order, one at a time.

Every notification that waits for a handler or a listener is an `Item` of such a queue. The caller defines the
weight of a value, and the merge of two values of one key, which limits the weight of the queue.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, takewhile
from typing import Any, TypeVar

from declctl.kit.clock import Clock
from declctl.kit.key_queue import NO_EPOCH, EpochCounter, Item, KeyQueue
from declctl.kit.pending import ItemState

T = TypeVar("T")

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every change.
_WAITING, _BEHIND, _RESTING = ItemState.WAITING, ItemState.BEHIND, ItemState.RESTING
_BACKING_OFF = ItemState.BACKING_OFF


class ChangeQueue(KeyQueue[str, T]):
    """Values in order of arrival, one at a time for each key. From any thread; no method waits.

    - The values of one key are handed out in the order in which they were added, never two at a time.
    - Values of different keys are handed out in the order in which they were added; a value whose key is held
      is passed over until the key is free.
    - After `retry`, a key stays held until the value was due, taken and done. What waits behind it belongs to
      the epoch of the retry, as its turn can't come before.
    - Up to the weight `merge_above` of all values, none is merged. Beyond it, and always if `keyed`, a new
      value is merged with the waiting one of its key and epoch. `merge(waiting, new, attempted)` returns the
      values that remain: none, one, or both. A value that was attempted before can't be merged to none.
    - A value that rests is merged with newer ones of its key. It will belong to the epoch in which its rest
      ends. While all values together have the weight `merge_above` or more, none rests.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        weigh: Callable[[T], int],
        merge: Callable[[T, T, bool], Sequence[T]],
        merge_above: int,
        keyed: bool = False,
        max_running: int | None = None,
        epochs: EpochCounter | None = None,
    ) -> None:
        super().__init__(clock=clock, epochs=epochs, max_running=max_running)
        self.merge_above = merge_above
        self.keyed = keyed
        self._weigh = weigh
        self._merge = merge
        # By key: its first item, which runs, backs off, waits in the row of turns, or rests.
        self._heads: dict[str, Item[str, T]] = {}
        self._parted = False  # no further epoch will begin

    def add(self, key: str, value: T) -> None:
        """Append a value of `key`."""
        self.add_all([(key, value)])

    def add_all(self, values: Sequence[tuple[str, T]]) -> None:
        """Append several values, in their order."""
        with self._lock:
            now = self._now()
            self._added += len(values)
            if self._number[_RESTING] and not self.debounce:
                self._end_rests()
            for key, value in values:
                head = self._heads.get(key)
                if head is not None:
                    tail = head.behind[-1] if head.behind else head
                    full = self.keyed or self._weight >= self.merge_above
                    # Only the last value of a key may be merged with a newer one, so that the order is kept.
                    if (full or tail.state is _RESTING) and self._merge_into(head, tail, value, now):
                        continue
                rests = self.debounce > 0
                if rests and self._weight >= self.merge_above:
                    rests = False
                    self._end_rests()
                self._append(key, value, now, rests=rests)

    def add_if_free(self, key: str, values: Sequence[tuple[T, Any]]) -> bool:
        """Append values of `key`, each with its `retry_state`, unless the key has a pending value.

        Returns whether they were appended. None of them is merged with another. A value that has a
        `retry_state` was attempted before.
        """
        with self._lock:
            if key in self._heads:
                return False
            for value, state in values:
                self._append(key, value, self._now(), rests=False).retry_state = state
            self._added += len(values)
            return True

    def go_on(self, key: str, value: T, *, attempts: int, seconds: float) -> None:
        """Append a value that an earlier process has attempted, and let it come in `seconds`.

        If its key has a pending value, it is appended as any other.
        """
        with self._lock:
            self._added += 1
            if key in self._heads:
                self._append(key, value, self._now(), rests=False)
                return
            self._note(key)
            item = Item(key, value, self._now(), NO_EPOCH, weight=self._weigh(value), attempts=attempts)
            self._heads[key] = item
            self._weight += item.weight
            self._pending[NO_EPOCH] += 1
            self._taken += 1
            self._wait_until(item, _BACKING_OFF, item.added_at + max(0.0, seconds))

    def retry(self, item: Item[str, T], delay: float) -> None:
        """Hand an item out again in `delay` seconds; its key stays held.

        With `keyed`, a newer value takes its place and its attempts.
        """
        with self._lock:
            self._come_back(item)
            item.attempts += 1
            self._join(item, NO_EPOCH)
            self._wait_until(item, _BACKING_OFF, self._now() + delay)
            while self.keyed and item.behind:
                remaining = self._merge(item.value, item.behind[0].value, True)
                if len(remaining) != 1:
                    return
                self._merged += 1
                self._replace(item, remaining[0])
                self._vanish(item.behind.pop(0))

    def part(self) -> None:
        """Stop sharing the counter, as no other code will come.

        What is behind a retry, and retries that are due, count as outstanding from now on.
        """
        super().part()
        self._parted = True

    def outstanding(self, epoch: int) -> int:
        """How many values the code of an epoch has to process, or has begun.

        After `part`, those that will belong to it are among them, but for what backs off or rests.
        """
        with self._lock:
            due = 0
            if self._parted and epoch == self._epochs.newest:
                self._look_at_later()
                due = self._pending.get(NO_EPOCH, 0) - sum(self._number.values())
        return due + super().outstanding(epoch)

    def keep_resting(self) -> tuple[bool, int]:
        """End all rests, and drop all other waiting values but those of the same keys. O(n).

        Returns whether a value has rested, and the number of dropped values. If none has rested, nothing is
        dropped. Retries stay.
        """
        with self._lock:
            self.debounce = 0.0
            keys = {item.key for item in self._until(_RESTING)}
            if not keys:
                return False, 0
            dropped = self._drop_unnoted(lambda: self._drop(lambda head: head.key not in keys, retries=False))
            self._end_rests()
            self._dropped += dropped
            return True, dropped

    # The methods below are called under the lock.

    def _append(self, key: str, value: T, now: float, *, rests: bool) -> Item[str, T]:
        self._note(key)
        head, weight = self._heads.get(key), self._weigh(value)
        behind_retry = head is not None and _is_retry(head)
        epoch = NO_EPOCH if rests or behind_retry else self._epochs.newest
        item = Item(key, value, now, epoch, weight=weight)
        self._weight += weight
        self._pending[epoch] += 1
        before = head
        if head is None:
            self._heads[key] = item
        elif head.behind:
            before = head.behind[-1]
            head.behind.append(item)
        else:
            head.behind = [item]
        if rests:
            # Values of one key end their rests in their order.
            until = before.due if before is not None and before.state is _RESTING else None
            self._rest(item, now, not_before=until or 0.0)
        else:
            self._rows[0].add(item, _WAITING if head is None else _BEHIND)
        return item

    def _merge_into(self, head: Item[str, T], waiting: Item[str, T], value: T, now: float) -> bool:
        """Merge a value with the last one of its key; returns False if it has to be appended."""
        # What was attempted keeps its value for the next attempt, unless the newest value is all that counts.
        if waiting.is_taken or (waiting.attempts and not self.keyed):
            return False
        if self._owner(waiting.epoch) not in (NO_EPOCH, self._epochs.newest):
            return False
        attempted = waiting.attempts > 0 or waiting.retry_state is not None
        remaining = self._merge(waiting.value, value, attempted)
        if len(remaining) > 1 or (attempted and not remaining):
            return False
        if remaining:
            self._merged += 1
            self._replace(waiting, remaining[0])
            if waiting.state is _RESTING:
                self._rest_longer(waiting, now)
        else:
            self._merged += 2  # neither of the two is handed out
            if head.behind:
                head.behind.pop()
            else:
                del self._heads[head.key]
            self._vanish(waiting)
        return True

    def _replace(self, item: Item[str, T], value: T) -> None:
        weight = self._weigh(value)
        self._weight += weight - item.weight
        item.value, item.weight = value, weight

    def _vanish(self, item: Item[str, T]) -> None:
        """Let an item leave that no worker has."""
        if item.due is not None:
            self._end_delay(item)
        if item.in_row:
            self._rows[0].leave(item)
            del item.value  # its entry stays in the row for a while, and must not keep the value alive
        self._leave(item)

    def _took(self, item: Item[str, T]) -> None:
        if item.epoch == NO_EPOCH:
            self._join(item, self._epochs.newest)
        elif self._adopted:
            self._move(item, self._owner(item.epoch))  # from here on it stays with the code that has begun it

    def _join(self, head: Item[str, T], epoch: int) -> None:
        """Let the item that holds its key belong to an epoch, with the values that wait behind it."""
        self._move(head, epoch)
        for item in head.behind or ():
            # A value that rests gets its epoch when that ends.
            if item.state is not _RESTING:
                self._move(item, epoch)

    def _freed(self, item: Item[str, T]) -> bool:
        del self._heads[item.key]
        if not item.behind:
            return False
        following = self._heads[item.key] = item.behind.pop(0)
        following.behind, item.behind = item.behind, None
        if following.state is _BEHIND:
            self._rows[0].free(following)
        return True

    def _came_due(self, item: Item[str, T], state: ItemState) -> None:
        head = self._heads[item.key]
        if state is _BACKING_OFF:
            self._rows[0].free(item)
            return
        self._rows[0].add(item, _WAITING if head is item else _BEHIND)
        if not _is_retry(head):
            self._move(item, self._epochs.newest)

    def _drop_all(self) -> int:
        return self._drop(lambda _: True, retries=True)

    def _drop_chosen(self, chosen: Callable[[Item[str, T]], bool]) -> int:
        return self._drop(chosen, retries=True)

    def _drop(self, chosen: Callable[[Item[str, T]], bool], *, retries: bool) -> int:
        """Drop what waits of the keys whose first items are chosen; returns the number."""
        dropped = 0
        for key, head in tuple(self._heads.items()):
            if not chosen(head):
                continue
            items, head.behind = head.behind or [], None
            if not head.is_taken and (retries or not head.attempts):
                items.append(self._heads.pop(key))
            for item in items:
                self._taken -= item.attempts > 0
                self._vanish(item)
            dropped += len(items)
        return dropped

    def _pending_of(self, key: str) -> Item[str, T] | None:
        head = self._heads.get(key)
        return None if head is None or head.is_taken else head

    def _all_of(self, key: str) -> Iterable[Item[str, T]]:
        head = self._heads.get(key)
        return () if head is None else (head, *(head.behind or ()))

    def _keys(self) -> Iterable[str]:
        return list(self._heads)

    def _in_order(self) -> Iterator[Item[str, T]]:
        yield from self._out.values()
        # What was passed over comes before all others, one value of each key after the other.
        line = deque[Iterator[Item[str, T]]]()
        line.extend(chain((item,), self._behind(item, _is_passed)) for item in self._rows[0].passed())
        line.extend(self._behind(item, _is_passed) for item in self._out.values())
        while line:
            if (item := next(line[0], None)) is not None:
                yield item
                line.append(line[0])
            line.popleft()
        for item in self._rows[0].line():
            if self._heads[item.key].state is not _BACKING_OFF:
                yield item
        for item in self._soonest():
            yield item
            if item.state is _BACKING_OFF:
                yield from self._behind(item, _is_behind)

    def _behind(self, item: Item[str, T], which: Callable[[Item[str, Any]], bool]) -> Iterator[Item[str, T]]:
        """The first values behind one that holds its key."""
        return takewhile(which, self._heads[item.key].behind or ())


def _is_behind(item: Item[str, Any]) -> bool:
    return item.state is _BEHIND


def _is_passed(item: Item[str, Any]) -> bool:
    return item.state is _BEHIND and not item.in_row


def _is_retry(head: Item[str, Any]) -> bool:
    """Whether the first item of a key is to be retried."""
    return head.epoch == NO_EPOCH and head.attempts > 0
