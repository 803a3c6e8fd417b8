"""Changes of objects that wait until their keys are known, because a filter or a mapping has failed on them.

Others wait because the server has not served the kind of their keys yet: a name may be a key or not.

They wait between cache and queue, each with its back-off. There is one `WaitingChange` for each object: newer
changes of the object are merged into it, so that the newest state is judged, and the last state of an object
that is gone. `ReconcileSlot` judges them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from declctl.kit import Clock, set_within
from declctl.objects import ChangeType, Notification, merge
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.workqueue import Reasons, ReconcileQueue

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.reconciling.mapping import KeySource

MOST_GONE = 10_000  # objects that are gone, and wait; all others are in a cache anyway
_SLICE = 20  # changes that are judged in one turn of the loop
_Id = tuple[ManagedInformer, str]
_NONE = Reasons({})  # it is due, and that is all


class WaitingChange(msgspec.Struct, eq=False):
    """The changes of one object to whose keys some sources could not lead."""

    managed: ManagedInformer
    key: str  # of the object
    changes: tuple[Notification, ...]  # one, or a Deleted and what came after it
    sources: "Sequence[KeySource]"  # that have to judge it
    attempts: int = 0  # that failed since its newest change, or since the newest code
    first_failed: int | None = None  # the generation on which it failed first
    fault: str = ""  # the newest failure, in words; empty while it waits for the kind of its keys

    def merge(self, newer: Notification) -> None:
        """Add a newer change of the object. Its new state is judged at once, as a first attempt."""
        *before, last = self.changes
        self.changes = (*before, *merge(last, newer, True))[-2:]
        self.attempts = 0


class WaitingChanges:
    """The waiting changes of one reconciler. Used on the machinery loop; `len` in any thread.

    `judge` is called with each change that is due, and then calls `wait` or `end` with it. `give_up` is
    called for the oldest object that is gone, if too many of these wait.
    """

    def __init__(
        self,
        judge: Callable[[WaitingChange], None],
        give_up: Callable[[WaitingChange], None],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self._judge = judge
        self._give_up = give_up
        self._loop = loop
        self._clock = clock
        self._changes: dict[_Id, WaitingChange] = {}
        self._gone: dict[_Id, None] = {}  # those of them whose object is gone, the oldest first
        self._due: ReconcileQueue[_Id] = ReconcileQueue(clock=clock)
        self._moved = asyncio.Event()  # a time has come nearer
        self._task: asyncio.Task[None] | None = None  # judges what is due, while anything waits

    def get(self, managed: ManagedInformer, key: str) -> WaitingChange | None:
        """The waiting change of an object of an informer; None if there is none."""
        return self._changes.get((managed, key))

    def wait(self, change: WaitingChange, seconds: float) -> None:
        """Judge a change in `seconds`, or earlier if it is due earlier."""
        identity = (change.managed, change.key)
        self._changes[identity] = change
        if change.changes[-1].type is ChangeType.DELETED:
            self._gone[identity] = None
            if len(self._gone) > MOST_GONE:
                self._give_up(self._changes[next(iter(self._gone))])
        else:
            self._gone.pop(identity, None)
        self._due.add_after(identity, seconds, _NONE)
        self._moved.set()
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._judge_due(), name="waiting changes")

    def end(self, change: WaitingChange) -> None:
        """Let a change wait no longer: its keys are known, or it is given up."""
        self._changes.pop((change.managed, change.key), None)
        self._gone.pop((change.managed, change.key), None)

    def kind_may_be_known(self) -> None:
        """Judge the changes at once that wait for the kind of their keys."""
        for change in self._changes.values():
            if not change.fault:
                self.wait(change, 0.0)

    @property
    def faults(self) -> Sequence[str]:
        """The newest failure of each change on which a filter or a mapping has failed."""
        return [change.fault for change in self._changes.values() if change.fault]

    def use(self, sources: "Mapping[ManagedInformer, Sequence[KeySource]]") -> None:
        """Judge all changes soon, by new sources. Drops the changes of informers without sources."""
        for change in tuple(self._changes.values()):
            change.sources, change.attempts = sources.get(change.managed, ()), 0
            if change.sources:
                self.wait(change, 0.0)
            else:
                self.end(change)

    def drop(self, chosen: Callable[[WaitingChange], bool]) -> int:
        """Drop the chosen changes; returns how many."""
        found = [change for change in self._changes.values() if chosen(change)]
        for change in found:
            self.end(change)
        return len(found)

    def clear(self) -> int:
        """Drop all changes; returns how many."""
        dropped = len(self._changes)
        self._changes.clear()
        self._gone.clear()
        self._due.clear()
        if self._task is not None:
            self._task.cancel()
        return dropped

    def __len__(self) -> int:
        """The number of objects whose changes wait."""
        return len(self._changes)

    async def _judge_due(self) -> None:
        while (seconds := self._due.next_due()) is not None:
            if seconds > 0:
                self._moved.clear()
                await set_within(self._moved, seconds, clock=self._clock)
            for _ in range(_SLICE):
                if (item := self._due.take()) is None:
                    break
                if (change := self._changes.get(item.key)) is not None:
                    self._judge(change)
                self._due.done(item)
            # User code may have judged for long: events go first.
            await asyncio.sleep(0)
