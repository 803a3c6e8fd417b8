"""A living handler's filter has changed: who enters it is Added, who leaves it Deleted, nobody else is told.

Both filters are asked of every cached object while a reload is staged, and again of what changes
meanwhile: always in a thread, as they are foreign code. For the last few objects, which would go on
changing, their caches take in nothing for a moment. At the commit, what is told stands ready.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from declctl.decoding.selective import SelectiveReader
from declctl.errors import FilterFailed, ReloadRefused
from declctl.objects import ChangeType, Record
from declctl.runtime.caching.caches import Cached
from declctl.runtime.handling.filtering import Filter
from declctl.runtime.handling.moving import Move, Told, difference
from declctl.runtime.threads import in_thread

_BATCH = 2000  # objects that a thread is asked of at once; a reload that is given up waits for no more
_MOST_BATCHES = 10  # of what has changed meanwhile; then caches are held, so that it comes to an end
_LONGEST_HOLD = 1.0  # seconds


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
        before: Iterable[Cached],
        after: Iterable[Cached],
    ) -> None:
        super().__init__(before, after)
        self.name = name
        self._leaving = old
        self._entering = new
        self._reader = SelectiveReader()
        self._heard = frozenset(ChangeType) if new is None else new.events
        self._stale: dict[str, None] = {}  # objects of which the filters have not been asked as they are

    def compare(self, keys: Iterable[str]) -> None:
        """The filters have to be asked of these objects."""
        for key in keys:
            old, new = self.held(key)
            self.doubt(key, old, new)
            if old is None and new is None:
                self.tell(key, ())
                self._stale.pop(key, None)
            else:
                self._stale[key] = None

    @property
    def stale(self) -> int:
        """How many objects there are of which the filters have not been asked as they are now."""
        return len(self._stale)

    def unjudged(self) -> list[Pair]:
        """Some of those."""
        return [Pair(key, *self.held(key)) for key in islice(self._stale, _BATCH)]

    def judge(self, pairs: Iterable[Pair]) -> Sequence[tuple[Pair, Told]]:
        """What is told of these; raises ReloadRefused where the new filter raises."""
        return [(pair, self._judged(pair)) for pair in pairs]

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


async def ask(refilters: Iterable[Refilter], *, timeout: float) -> None:
    """Have all judged that is cached; little is left that has changed meanwhile.

    Raises ReloadRefused where a filter raises, or after `timeout` seconds in all.
    """
    try:
        async with asyncio.timeout(timeout):
            for refilter in refilters:
                late = 0  # batches of what has changed meanwhile
                while refilter.stale and late < _MOST_BATCHES:
                    late += refilter.stale < _BATCH
                    await _judge_some(refilter)
    except TimeoutError as error:
        message = f"asking filters of what is cached took longer than {timeout:g} s"
        raise ReloadRefused("FilterTimeout", message) from error


async def ask_the_rest(refilters: Sequence[Refilter]) -> None:
    """Have all that is left judged, while its caches take in nothing: until the next turn of the loop.

    So whoever commits in this turn, does so with nothing stale. Raises as `ask` does, after a second.
    """
    with ExitStack() as held:
        for cached in dict.fromkeys(c for r in refilters if r.stale for c in (*r.before, *r.after)):
            held.enter_context(cached.informer.held())
        try:
            async with asyncio.timeout(_LONGEST_HOLD):
                for refilter in refilters:
                    while refilter.stale:
                        await _judge_some(refilter)
        except TimeoutError as error:
            message = f"objects change faster than filters can be asked: {_LONGEST_HOLD:g} s were too short"
            raise ReloadRefused("FilterTimeout", message) from error


async def _judge_some(refilter: Refilter) -> None:
    judge = partial(refilter.judge, refilter.unjudged())
    refilter.settle(await in_thread(judge, name="declctl-filter"))


def may_differ(old: Filter | None, new: Filter | None, *, same_code: bool) -> bool:
    """Whether two filters may say something else of an object; `changedPaths` judge pairs alone."""
    before, after = (_what_judges(each) for each in (old, new))
    return before != after or (before[1] is not None and not same_code)


def _what_judges(judge: Filter | None) -> tuple[str, object]:
    return ("", None) if judge is None else (judge.spec.label_selector, judge.spec.entry_point)
