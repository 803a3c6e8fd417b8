"""A living handler's filter has changed: who enters it is Added, who leaves it Deleted, nobody else is told.

Both filters are asked of every cached object while a reload is staged, and again of what changes
meanwhile: always in a thread, as they are foreign code. For the last few objects, which would go on
changing, their caches take in nothing for a moment. At the commit, what is told stands ready.
"""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from declctl.decoding.selective import SelectiveReader
from declctl.errors import FilterFailed, ReloadRefused
from declctl.kit.stacks import foreign_place
from declctl.objects import ChangeType, Record
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.caching.managed_informer import asked_last
from declctl.runtime.caching.questions import BATCH
from declctl.runtime.handling.filtering import Filter
from declctl.runtime.handling.moving import Move, Told, difference
from declctl.runtime.threads import in_thread


class Pair(NamedTuple):
    """An object as the old caches have it, and as the new ones do: the same one, if they are the same."""

    key: str
    old: Record | None
    new: Record | None


class Refilter(Move):
    """A move of one handler from one filter to another, and maybe to other caches.

    Either filter may be missing. `judge` may be called by any thread, all else by the machinery loop.
    """

    def __init__(
        self,
        name: str,
        old: Filter | None,
        new: Filter | None,
        *,
        before: Iterable[ManagedInformer],
        after: Iterable[ManagedInformer],
    ) -> None:
        super().__init__(before, after)
        self.name = name
        self._leaving = old
        self._entering = new
        self._reader = SelectiveReader()
        self._heard = frozenset(ChangeType) if new is None else new.events
        self._stale: dict[str, None] = {}  # objects of which the filters have not been asked as they are
        self._at = ""  # the key of the object of which they were asked last
        self._thread: int | None = None  # the one that asks them, or asked them last
        self._place = ""  # where in foreign code it was when nobody waited for it any longer
        self._given_up = False

    def compare(self, keys: Iterable[str]) -> None:
        """The filters have to be asked of these objects."""
        for key in keys:
            old, new = self.held(key)
            if old is None and new is None:
                self.tell(key, ())
                self._stale.pop(key, None)
            else:
                self._stale[key] = None

    @property
    def stale(self) -> int:
        """How many objects there are of which the filters have not been asked as they are now."""
        return len(self._stale)

    @property
    def caches(self) -> Sequence[ManagedInformer]:
        """Whose objects these are."""
        return (*self.before, *self.after)

    async def ask_some(self) -> None:
        """Have some of those judged in a thread. Cancelling stops it after the object that it is at.

        Raises ReloadRefused where the new filter raises.
        """
        pairs = self.unjudged()

        def judge() -> Sequence[tuple[Pair, Told]]:
            self._thread = threading.get_ident()
            return self.judge(pairs)

        try:
            judged = await in_thread(judge, name="declctl-filter", what=f"the filter of {self.name}")
        except asyncio.CancelledError:
            self._place = foreign_place(self._thread)
            self._given_up = True
            raise
        self.settle(judged)

    def refusal(self, why: str) -> ReloadRefused:
        """FilterTimeout, with the function and the object that it was asked about last."""
        return ReloadRefused(
            "FilterTimeout", f"the filter of {self.name} {why}{asked_last(self._at, self._place)}"
        )

    def unjudged(self) -> list[Pair]:
        """Some of those."""
        return [Pair(key, *self.held(key)) for key in islice(self._stale, BATCH)]

    def judge(self, pairs: Iterable[Pair]) -> Sequence[tuple[Pair, Told]]:
        """What is told of these; raises ReloadRefused where the new filter raises."""
        judged: list[tuple[Pair, Told]] = []
        for pair in pairs:
            if self._given_up:
                break
            self._at = pair.key
            judged.append((pair, self._judged(pair)))
        return judged

    def settle(self, judged: Iterable[tuple[Pair, Told]]) -> None:
        """Take in what was judged, as far as the objects are what they were then."""
        for pair, told in judged:
            if self.held(pair.key) == (pair.old, pair.new):
                self.tell(pair.key, told)
                self._stale.pop(pair.key, None)

    def _judged(self, pair: Pair) -> Told:
        told = difference(
            pair.old,
            pair.new,
            was=pair.old is not None and self._was(pair.old),
            now=pair.new is not None and self._is(pair.new),
        )
        return tuple(msgspec.structs.replace(n, judged=True) for n in told if n.type in self._heard)

    def _was(self, record: Record) -> bool | None:
        try:
            return self._leaving is None or self._reader.ask(self._leaving.passes, record)
        except FilterFailed:
            return None

    def _is(self, record: Record) -> bool:
        try:
            return self._entering is None or self._reader.ask(self._entering.passes, record)
        except FilterFailed as failure:
            message = f"{self.name}: {failure} on {record.key}"
            raise ReloadRefused("FilterFailed", message) from failure


def may_differ(old: Filter | None, new: Filter | None, *, same_code: bool) -> bool:
    """Whether two filters may say something else of an object; `changedPaths` judge pairs alone."""
    before, after = (_what_judges(each) for each in (old, new))
    return before != after or (before[1] is not None and not same_code)


def _what_judges(judge: Filter | None) -> tuple[str, object]:
    return ("", None) if judge is None else (judge.spec.label_selector, judge.spec.entry_point)
