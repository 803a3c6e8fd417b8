"""A living handler's filter has changed: who enters it is Added, who leaves it Deleted, nobody else is told.

Both filters are asked of every cached object while a reload is staged, away from the machinery loop; what
changes meanwhile is asked again. At the commit, what is told stands ready.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec

from declctl.errors import FilterFailed, ReloadRefused
from declctl.objects import ChangeReason, ChangeType, Notification, ObjectView, Record
from declctl.runtime.caches import Cached
from declctl.runtime.filtering import Filter
from declctl.runtime.moving import differences_between
from declctl.runtime.slots import Place
from declctl.runtime.threads import in_thread

# What has changed while filters were asked in a thread is asked on the machinery loop, if it is so little.
_FEW_OBJECTS, _MOST_ROUNDS = 20, 10


class _Verdict(NamedTuple):
    """Whether an object was in the old filter (None: nobody knows, as it raised), and is in the new one."""

    record: Record
    was: bool | None
    now: bool


class Refilter:
    """What the filters of two generations say of the objects of one handler. Either may be missing.

    `before` are the caches that it listens to, `after` those that it will listen to. `judge` may be
    called by any thread, all else by the machinery loop.
    """

    def __init__(
        self,
        name: str,
        old: Filter | None,
        new: Filter | None,
        *,
        before: Sequence[Cached],
        after: Sequence[Cached],
    ) -> None:
        self.name = name
        self._old = old
        self._new = new
        self._before = before
        self._after = after
        self._verdicts: dict[int, _Verdict] = {}  # by the identity of records, which are kept alive in it

    def stale(self) -> list[Record]:
        """The cached objects, as they are now, of which the filters have not been asked."""
        known = self._verdicts
        caches = dict.fromkeys((*self._before, *self._after))
        return [record for record in _records(caches) if id(record) not in known]

    def judge(self, records: Iterable[Record]) -> None:
        """Ask both filters; raises ReloadRefused where the new one raises."""
        for record in records:
            obj = ObjectView(record)
            try:
                now = self._new is None or self._new.passes(obj)
            except FilterFailed as failure:
                message = f"{self.name}: {failure} on {record.key}"
                raise ReloadRefused("FilterFailed", message) from failure
            self._verdicts[id(record)] = _Verdict(record, self._was(obj), now)

    def told(self, untold: Mapping[Cached, Collection[str]]) -> list[Notification]:
        """What the handler hears at the commit; asks the filters of what is stale.

        `untold` has the objects that it has still to hear of, as it joined a moment ago: from a cache that it
        goes on listening to it will, by the new filter.
        """
        self.judge(self.stale())
        coming = {key for cached, keys in untold.items() if cached in self._after for key in keys}
        going = {key for cached, keys in untold.items() if cached not in self._after for key in keys}
        same = list(self._before) == list(self._after)
        found = self._crossing(coming) if same else self._moving(coming, going)
        heard = ChangeType if self._new is None else self._new.events
        return [msgspec.structs.replace(each, judged=True) for each in found if each.type in heard]

    def _was(self, obj: ObjectView) -> bool | None:
        try:
            return self._old is None or self._old.passes(obj)
        except FilterFailed:
            return None

    def _crossing(self, coming: Collection[str]) -> list[Notification]:
        told: list[Notification] = []
        for record in _records(self._before):
            _, was, now = self._verdicts[id(record)]
            if record.key in coming:
                continue
            if was and not now:
                told.append(Notification(ChangeType.DELETED, record, reason=ChangeReason.OUT_OF_SCOPE))
            elif now and was is False:
                told.append(Notification(ChangeType.ADDED, record, initial=True, reason=ChangeReason.INITIAL))
        return told

    def _moving(self, coming: Collection[str], going: Collection[str]) -> list[Notification]:
        """The same where caches change as well: some that are left may hold what others come with."""
        verdicts = self._verdicts
        synced = [cached for cached in self._after if cached.informer.has_synced]
        before = {r.key: r for r in _records(self._before) if verdicts[id(r)].was is not False}
        after = {r.key: r for r in _records(synced) if verdicts[id(r)].now}
        for key in going:
            before.pop(key, None)
        told = differences_between(before, after)
        return [n for n in told if verdicts[id(n.record)].was is not None and n.key not in coming]


def changed_filters(
    before: Mapping[str, Place], after: Mapping[str, Place], *, same_code: bool
) -> Sequence[Refilter]:
    """One for each handler in both whose filter may say something else of some object."""
    return [
        Refilter(name, old.binding.filter, new.binding.filter, before=old.informers, after=new.informers)
        for name, new in after.items()
        if (old := before.get(name)) is not None
        and may_differ(old.binding.filter, new.binding.filter, same_code=same_code)
    ]


async def ask(refilters: Iterable[Refilter], *, timeout: float) -> None:
    """Judge what is cached, in a thread, until little is left that has changed meanwhile.

    Raises ReloadRefused where a filter raises, or after `timeout` seconds in all.
    """
    try:
        async with asyncio.timeout(timeout):
            for refilter in refilters:
                await _ask(refilter)
    except TimeoutError as error:
        message = f"asking filters of what is cached took longer than {timeout:g} s"
        raise ReloadRefused("FilterTimeout", message) from error


async def _ask(refilter: Refilter) -> None:
    stale = refilter.stale()
    for _ in range(_MOST_ROUNDS):
        if stale:
            await in_thread(partial(refilter.judge, stale), name="declctl-filter")
        stale = refilter.stale()
        if len(stale) <= _FEW_OBJECTS:
            return


def may_differ(old: Filter | None, new: Filter | None, *, same_code: bool) -> bool:
    """Whether two filters may say something else of an object; `changedPaths` judge pairs alone."""
    before, after = (_what_judges(each) for each in (old, new))
    return before != after or (before[1] is not None and not same_code)


def _what_judges(judge: Filter | None) -> tuple[str, object]:
    return ("", None) if judge is None else (judge.spec.label_selector, judge.spec.entry_point)


def _records(caches: Iterable[Cached]) -> Iterable[Record]:
    return chain.from_iterable(cached.informer.indexer.list() for cached in caches)
