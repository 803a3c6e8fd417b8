"""A filter changes under a living handler: what it hears, whatever happens meanwhile (G16)."""

import asyncio
import itertools
import threading
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.errors import FilterFailed, ReloadRefused
from declctl.kit import ManualClock
from declctl.manifest.model import FilterSpec, filters_differ
from declctl.manifest.values import EntryPoint
from declctl.objects import ChangeType, ObjectView
from declctl.runtime.caching.managed_informer import call_for_last_objects
from declctl.runtime.handling.binding import Filter
from declctl.runtime.handling.handler_slot import EventSlot
from declctl.runtime.handling.moves import Refilter
from declctl.testing import Logged
from tests.rooms.runtime.conftest import Bench, rebind, stored
from tests.rooms.runtime.moving_caches import CLOCK, MadeUpCache, begun

ADDED, MODIFIED, DELETED, RESYNC = ChangeType
EVENTS = ("Added", "Modified", "Deleted", "Resync")
_versions = itertools.count(1)


def pod(name, app, size=0):
    """A pod with a label, and something that only a function looks at."""
    metadata = {"name": name, "uid": name, "resourceVersion": str(next(_versions)), "labels": {"app": app}}
    return stored(metadata, spec={"size": size})


def labels(text):
    return Filter(FilterSpec(text), EVENTS)


def at_least(size):
    spec = FilterSpec(entry_point=EntryPoint("m", "f"))
    return Filter(spec, EVENTS, lambda obj: obj["spec"]["size"] >= size)


def cel(text):
    return Filter(FilterSpec(expression=text), EVENTS)


def _raises(obj):
    raise FilterFailed("the filter m:f raised KeyError: 'x'")


BROKEN = Filter(FilterSpec(entry_point=EntryPoint("m", "f")), EVENTS, _raises)


def asked(refilter):
    """The filters have been asked of all that is stale."""
    while refilter.stale:
        refilter.enter_judged(refilter.judge(refilter.unjudged()))
    return refilter


def told(old, new, before, after=None):
    """What a handler hears at once when its filter changes."""
    first = [MadeUpCache(*before)]
    then = first if after is None else [MadeUpCache(*after)]
    made = asked(begun(Refilter("notify", old, new, before=first, after=then, clock=CLOCK))).notifications
    assert all(each.judged for each in made)
    return [(str(each.type), each.key, str(each.reason), each.initial) for each in made]


def test_who_enters_is_added_and_who_leaves_is_deleted() -> None:
    """As when a scope changes, maybe at once with it. Without a filter all are in it; `events` narrow it."""
    store = [pod("a", "web"), pod("b", "api"), pod("c", "db")]
    assert told(labels("app in (web,db)"), labels("app in (api,db)"), store) == [
        ("Deleted", "a", "OutOfScope", False),
        ("Added", "b", "Initial", True),
    ]
    store = [pod("a", "web"), pod("b", "api")]
    assert told(None, labels("app=web"), store) == [("Deleted", "b", "OutOfScope", False)]
    assert told(labels("app=web"), None, store) == [("Added", "b", "Initial", True)]
    assert told(labels("app=web"), Filter(FilterSpec("app=api"), ("Added",)), store) == [
        ("Added", "b", "Initial", True)
    ]
    both, newer = pod("both", "web"), pod("newer", "web")
    before = [both, newer, pod("gone", "web"), pod("never", "api"), pod("out", "db")]
    after = [both, pod("newer", "web"), pod("new", "web"), pod("out", "db"), pod("other", "api")]
    assert told(labels("app in (web,db)"), labels("app=web"), before, after) == [
        ("Modified", "newer", "Relist", False),
        ("Deleted", "gone", "OutOfScope", False),
        ("Deleted", "out", "OutOfScope", False),
        ("Added", "new", "Initial", True),
    ]


def test_the_last_objects_are_asked_of_while_their_caches_take_in_nothing() -> None:
    """So the user's function is asked in a thread, and still nothing is stale when the wait is over."""
    cache = MadeUpCache(pod("a", "web", 5))
    threads = []

    def accepts(obj):
        assert cache.pauses == 1
        threads.append(threading.current_thread().name)
        return False

    new = Filter(FilterSpec(entry_point=EntryPoint("m", "f")), EVENTS, accepts)
    refilter = begun(Refilter("notify", None, new, before=[cache], after=[cache], clock=CLOCK))
    asyncio.run(call_for_last_objects([refilter]))
    assert threads == ["declctl-filter"]
    assert cache.pauses == refilter.stale == 0
    assert [str(n.type) for n in refilter.notifications] == ["Deleted"]


def test_what_a_filter_fails_on() -> None:
    """A new one that raises refuses the reload. Nobody knows of what the old one failed on."""
    with pytest.raises(ReloadRefused) as refused:
        told(labels("app=web"), BROKEN, [pod("a", "web")])
    assert refused.value.reason == "FilterFailed"
    assert refused.value.message == "notify: the filter m:f raised KeyError: 'x' on a"
    assert told(BROKEN, at_least(3), [pod("a", "web", 5), pod("b", "web", 0)]) == []


@pytest.mark.parametrize(
    ("old", "new", "same_code", "differ"),
    [
        (None, None, False, False),
        (labels("a=b"), labels("a=b"), False, False),
        (labels("a=b"), labels("a=c"), True, True),
        (None, labels("a=b"), True, True),
        (at_least(1), at_least(1), True, False),
        (at_least(1), at_least(1), False, True),
        (None, Filter(FilterSpec(changed_paths=("spec",)), EVENTS), True, False),
        (None, cel("obj.spec.size > 1"), True, True),
        (cel("obj.spec.size > 1"), cel("obj.spec.size > 2"), True, True),
        (cel("obj.spec.size > 1"), cel("obj.spec.size > 1"), False, False),
        (None, cel("change.type == 'Added'"), True, False),
        (cel("obj.spec.size > 1"), cel("obj.spec.size > 1 && !change.initial"), True, True),
    ],
)
def test_filters_are_asked_only_if_they_may_say_something_else(old, new, same_code, differ) -> None:
    """Labels and entry points are compared; a function counts as changed with the code."""
    specs = [None if each is None else each.spec for each in (old, new)]
    assert filters_differ(*specs, same_code=same_code) is differ


@pytest.mark.parametrize(
    "name", [each.name for each in fields(FilterSpec) if each.name not in ("path", "changed_paths")]
)
def test_each_field_that_judges_objects_makes_a_difference(name) -> None:
    """A field that is new counts by itself; otherwise its edit would deliver no Added and no Deleted."""
    changed = replace(FilterSpec(), **{name: "obj.other" if name == "expression" else "other"})
    assert filters_differ(FilterSpec(), changed, same_code=True)
    assert filters_differ(None, changed, same_code=True)
    assert Filter(FilterSpec(), EVENTS).judges_objects is False


class World:
    """A cache, a handler with a filter, and what an observer makes of what the handler is told."""

    def __init__(self, old: Filter | None) -> None:
        self.clock, self.log, self.loop = ManualClock(), Logged(), asyncio.new_event_loop()
        self.bench = Bench(self.clock, self.log, SimpleNamespace(loop=self.loop))
        self.cache = MadeUpCache()
        self.store = self.cache.store
        self.known: dict[str, str] = {}
        self.handler: EventSlot = self.bench.bound(self.bench.binding(self.hear), old)
        self.filter = old
        self.cache.add_listener(self.handler, resync_period=0.0, initial=False)

    def hear(self, change) -> None:
        """Check that each change makes sense after those before it."""
        key, version = str(change.key), change.obj.resource_version
        if change.type == ADDED:
            assert key not in self.known, "it is told twice that an object is new"
        else:
            assert key in self.known, f"{change.type} of an object that the handler does not know"
        if change.type == DELETED:
            del self.known[key]
        else:
            self.known[key] = version

    def happen(self, name: str, app: str | None, size: int) -> None:
        """An object is made, changed or deleted."""
        if app is None:
            self.cache.remove(name)
        else:
            self.cache.put(pod(name, app, size))

    def expected(self) -> dict[str, str]:
        """What a handler knows that has always had the present filter."""
        passes = self.filter.passes if self.filter is not None else lambda obj: True
        return {key: r.resource_version for key, r in self.store.items() if passes(ObjectView(r))}

    def work(self, most: int = 1000) -> None:
        """Deliver that much of what waits."""
        for _ in range(most):
            item = self.handler.queue.take()
            if item is None:
                return
            self.handler.work(item)


_FILTERS = st.one_of(
    st.none(),
    st.sampled_from(["app=web", "app=api", "app!=web", "app in (web,api)", "app"]).map(labels),
    st.integers(0, 3).map(at_least),
)
_HAPPENING = st.tuples(
    st.sampled_from("abcd"), st.sampled_from(["web", "api", "db", None]), st.integers(0, 3)
)
_HAPPENINGS = st.lists(_HAPPENING, max_size=12)


@given(
    first=_FILTERS,
    start=_HAPPENINGS,
    reloads=st.lists(
        st.tuples(_FILTERS, _HAPPENINGS, _HAPPENINGS, st.integers(0, 6)), min_size=1, max_size=3
    ),
    keyed=st.booleans(),
)
@pytest.mark.guarantee("G16")
def test_a_handler_knows_what_the_newest_filter_lets_pass(first, start, reloads, keyed) -> None:
    """Objects come, change and go before, during and after each reload; a part of it waits across the cut.

    The handler hears of no object twice, of nothing that it does not know, and ends knowing the newest
    state of exactly those objects that are in the newest filter.
    """
    world = World(first)
    world.handler.queue.keyed = keyed
    try:
        for happening in start:
            world.happen(*happening)
        for new, while_staging, after, delivered in reloads:
            caches = [world.cache]
            refilter = begun(Refilter("notify", world.filter, new, before=caches, after=caches, clock=CLOCK))
            some = refilter.judge(refilter.unjudged())
            for happening in while_staging:
                world.happen(*happening)
            refilter.enter_judged(some)
            world.work(delivered)
            differences = asked(refilter).notifications
            refilter.close()
            binding = world.bench.binding(world.hear, generation=2)
            rebind(world.handler, replace(binding, filter=new))
            world.handler.queue.keyed = keyed
            world.handler.add_all(differences)
            world.filter = new
            for happening in after:
                world.happen(*happening)
        world.work()
        assert world.log.lines == []
        assert world.known == world.expected()
    finally:
        world.loop.close()
