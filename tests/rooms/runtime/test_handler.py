"""A slot: what is delivered, what waits, what a new binding changes, and how long changes and calls take."""

import asyncio
import json
import threading
import timeit
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from declctl.errors import Conflict, ObjectGone
from declctl.kit.documents import document_of
from declctl.kit.histogram import Histogram, HistogramFigures
from declctl.manifest.model import Delivery, FilterSpec, InitialSync, OnFailure, RetrySpec
from declctl.objects import ChangeReason, ChangeType, Notification
from declctl.runtime.handling.binding import Filter
from declctl.runtime.handling.handler_figures import HANDLER_BOUNDS
from tests.rooms.runtime.conftest import EVERY_SECOND, ONCE, fails, make_record, rebind

A, M, D, R = ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED, ChangeType.RESYNC


def test_changes_are_delivered_in_order_and_counted(bench, added) -> None:
    """Each one while there is room; a Resync is an update from the object to itself (client-go: OnUpdate)."""
    heard = []
    slot = bench.slot(
        lambda change, obj, old: heard.append((change.type, str(change.key), obj.name, old and old == obj))
    )
    kinds = (A, M, M, D, A, D)
    slot.add_all([added("a", kind) for kind in kinds] + [added("b"), added("b", R)])
    assert bench.work() == 8
    assert heard == [
        *((str(kind), "default/a", "a", None) for kind in kinds),
        ("Added", "default/b", "b", None),
        ("Resync", "default/b", "b", True),
    ]
    figures = slot.statistics()
    assert (figures.delivered, figures.succeeded, figures.queued, figures.running) == (8, 8, 0, 0)
    assert figures.merged == 0


def test_synchronous_and_asynchronous_hooks_of_one_handler_hear_in_turn(bench) -> None:
    """`def` and `async def` in one module: each change goes to both, one after the other."""
    heard = []

    def first(change) -> None:
        heard.append(("first", change.obj.name, threading.current_thread().name))

    async def second(change) -> None:
        await asyncio.sleep(0)
        heard.append(("second", change.obj.name, threading.current_thread().name))

    bench.slot(first, second, adds="ab")
    bench.work()
    assert [row[:2] for row in heard] == [("first", "a"), ("second", "a"), ("first", "b"), ("second", "b")]
    assert {row[2] for row in heard if row[0] == "second"} == {"test-handlers"}


def official(reason: str, name: str = "a", kind: str = "pods") -> Exception:
    """The exception of an official client for a refusal; none of its classes are imported here."""
    details = {"name": name, "kind": kind}
    return _Official(json.dumps({"kind": "Status", "reason": reason, "details": details}))


class _Official(Exception):
    @property
    def body(self) -> str:
        return str(self)


@pytest.mark.parametrize(
    ("error", "cached", "is_gone"),
    [
        (ObjectGone(404, "NotFound", "a is gone"), "uid-default-a", True),  # of a write of ctx
        (official("NotFound"), None, True),
        (official("NotFound", kind="Pod"), "another", True),
        (official("Conflict"), "another", True),
        (ExceptionGroup("both", [official("NotFound"), official("Conflict")]), "another", True),
        (official("NotFound"), "uid-default-a", False),  # the cache lags
        (official("Conflict"), None, False),  # it may be out of scope alone
        (official("AlreadyExists"), "another", False),
        (official("NotFound", name="child"), None, False),
        (official("NotFound", kind="secrets"), None, False),  # a child of its name
        (ExceptionGroup("both", [official("NotFound"), official("NotFound", "child")]), None, False),
    ],
)
def test_a_call_whose_object_is_gone_is_not_repeated_and_the_next_change_comes(
    bench, added, error, cached, is_gone
) -> None:
    """It can never succeed: the Deleted does not wait behind it for ever. Another object may still come."""
    heard = []

    def writes(change) -> None:
        heard.append(change.type)
        if change.type == "Added":
            raise error

    binding = bench.binding(writes, retry=EVERY_SECOND, on_failure=OnFailure.RETRY)
    record = None if cached is None else make_record("a", uid=cached)
    cache = SimpleNamespace(indexer=SimpleNamespace(get_by_key={"default/a": record}.get))
    managed = SimpleNamespace(identity=SimpleNamespace(group_kind=("", "Pod")), informer=cache)
    slot = bench.bound(replace(binding, informers=(managed,), plural=lambda: "pods"))
    slot.add_all([added("a")])
    item = slot.queue.take()
    slot.add_all([added("a", D)])
    slot.work(item)
    bench.work()
    assert heard == ([A, D] if is_gone else [A])
    figures = slot.statistics()
    assert (figures.gone, figures.succeeded, figures.retried) == ((1, 1, 0) if is_gone else (0, 0, 1))


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "modified"), official("Conflict")])
def test_a_conflict_that_is_retried_is_a_line_for_a_search_and_a_count(bench, error) -> None:
    """Others have written meanwhile, and the next call reads it; what stays in conflict is an error."""

    def writes() -> None:
        raise error

    slot = bench.slot(writes, adds="a", retry=EVERY_SECOND, on_failure=OnFailure.RETRY)
    for second in range(1, 7):
        bench.work()
        bench.clock.set(bench.clock.monotonic() + second)
    assert [line.level for line in bench.log.lines] == ["debug"] * 5 + ["error"]
    assert (slot.statistics().conflicts, slot.statistics().retried) == (5, 6)


def test_what_is_not_asked_for_is_not_queued(bench, added) -> None:
    """`events: [Deleted]` and `initialSync: Skip`: nothing else takes room or time."""
    slot = bench.slot(print, events=("Deleted",))
    slot.add_all([added("a", kind) for kind in (A, M, R)])
    assert slot.statistics().queued == 0
    slot.add_all([added("a", D)])
    assert slot.statistics().queued == 1
    slot = bench.slot(print, initial_sync=InitialSync.SKIP)
    slot.add_all([added("a", initial=True), added("b")])
    assert slot.statistics().queued == 1


def test_a_handler_has_synced_when_it_is_through_with_the_first_list(bench, added) -> None:
    """Changes that come later do not keep it from that, nor do first ones that were merged away."""
    slot = bench.slot(lambda obj: fails(obj) if obj.name == "fails" else None, delivery=Delivery.KEYED)
    slot.add_all([added(name, initial=True) for name in ("fails", "gone", "a")])
    slot.add_all([added("gone", D), added("a", M), added("later")])
    slot.work(slot.queue.take())  # it fails, and backs off
    slot.initial_complete()
    assert not slot.statistics().synced
    slot.add_all([added("fails", D)])  # takes the place of what backs off
    assert not slot.statistics().synced  # `a` is left
    slot.work(slot.queue.take())
    assert slot.statistics().synced
    assert slot.statistics().queued == 2  # the failed one and `later`
    slot.add_all([added("a", initial=True)])  # of a namespace that was added to the manifest
    assert slot.statistics().synced


@pytest.mark.parametrize(
    ("pending", "heard"),
    [
        ((A, M), ["Added 2"]),
        ((M, M), ["Modified 2 from 0"]),
        ((M, D), ["Deleted 2"]),
        ((A, D), []),
        ((D, A), ["Deleted 1", "Added 2"]),
        ((R, M), ["Modified 2 from 1"]),
        ((M, R), ["Modified 1 from 0"]),
        ((R, R), ["Resync 2 from 2"]),
        ((A, M, M, D, A, M), ["Added 6"]),
    ],
)
@pytest.mark.parametrize(
    "policy", [{"delivery": Delivery.KEYED}, {"buffer_bytes": 1}], ids=["keyed", "full buffer"]
)
def test_pending_changes_of_one_key_are_merged_by_the_table(bench, record, pending, heard, policy) -> None:
    """What waits and what comes become what the table says; delivered + merged + dropped = changes.

    A buffer counts what waits, so it takes a change of another object to be full from the first one on.
    Changes of other objects are not merged.
    """
    versions = [record("a", version=number) for number in range(len(pending) + 1)]
    told = [
        Notification(kind, new, old if kind is M else None)
        for kind, old, new in zip(pending, versions, versions[1:], strict=False)
    ]
    lines = []

    def handle(change) -> None:
        if change.obj.name == "a":
            old = f" from {change.old.resource_version}" if change.old is not None else ""
            lines.append(f"{change.type} {change.obj.resource_version}{old}")

    slot = bench.slot(handle, adds=["other"], **policy)
    slot.add_all(told)
    assert slot.statistics().queued == len(heard) + 1
    bench.work()
    assert lines == heard
    figures = slot.statistics()
    assert (figures.delivered, figures.queued) == (len(heard) + 1, 0)
    assert figures.merged + figures.dropped == len(pending) - len(heard)
    assert figures.merged == 1 or pending != (A, M)


@pytest.mark.guarantee("G11")
def test_a_memo_is_kept_for_each_object_until_it_is_deleted(bench, added) -> None:
    """`ctx.memo` is the same at the next change of an object; it refuses what would carry old code along."""
    seen = []

    class Mine:
        pass

    def counts(change, ctx) -> None:
        ctx.memo["n"] = ctx.memo.get("n", 0) + 1
        seen.append((change.obj.name, ctx.memo["n"]))
        if change.obj.name == "mine":
            ctx.memo["it"] = Mine()

    slot = bench.slot(counts, adds="ab", retry=ONCE)
    slot.add_all([added("a", M), added("a", D), added("a"), added("mine")])
    bench.work()
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 1), ("mine", 1)]
    assert "can't hold a Mine" in slot.statistics().last_error


# A new binding


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_new_binding_gets_what_comes_and_the_old_one_what_was_there(bench, added, handed_over) -> None:
    """The cut of a reload: what was queued before goes to the old code, or is handed over to the new.

    After a hand-over the old binding is forgotten. A listing has the generation that handles each change.
    """
    heard = []
    slot = bench.slot(lambda change: heard.append(("old", change.obj.name, change.generation)), adds="a")
    ended = rebind(
        slot,
        bench.binding(lambda change: heard.append(("new", change.obj.name, change.generation)), generation=2),
    )
    slot.add_all([added("b"), added("a", M)])
    assert slot.outstanding(ended) == 1
    assert [item.generation for item in slot.listing(10).items] == [1, 2, 2]
    if handed_over:
        slot.hand_over(ended)
        assert slot.outstanding(ended) == 0
        assert [item.generation for item in slot.listing(10).items] == [2, 2, 2]
        slot.forget(ended)
    bench.work()
    first = ("new", "a", 2) if handed_over else ("old", "a", 1)
    assert heard == [first, ("new", "b", 2), ("new", "a", 2)]
    assert slot.outstanding(ended) == 0


def test_failures_of_what_had_failed_before_are_told_apart(bench, added, clock) -> None:
    """A retry that fails on new code as on the old one is inherited; what fails there first is its own."""
    slot = bench.slot(fails, adds="a")
    bench.work()
    newer = bench.binding(fails, generation=2)
    slot.forget(rebind(slot, newer))
    slot.add_all([added("b")])
    clock.set(5)
    bench.work()
    assert (newer.tally.calls, newer.tally.failed, newer.tally.inherited) == (2, 2, {1: 1})
    without = newer.tally.without_inherited(1)
    assert (without.calls, without.failed) == (1, 1)
    clock.set(20)
    bench.work()
    assert (newer.tally.calls, newer.tally.inherited) == (4, {1: 2})


# The histograms


def _in(figures: HistogramFigures) -> dict[float, int]:
    """The durations by their buckets; empty buckets are left out."""
    before, found = 0, {}
    for bound, number in zip((*figures.bounds, float("inf")), figures.cumulative, strict=True):
        if number > before:
            found[bound] = number - before
        before = number
    return found


def test_a_histogram_counts_up_to_each_bound_and_beyond_the_last() -> None:
    """A duration that equals a bound belongs to it, as Prometheus has it (`le`); bounds are sorted."""
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 99.0):
        histogram.add(seconds)
    assert histogram.figures() == HistogramFigures((1.0, 2.0), (2, 3, 4), 102.0)
    assert histogram.figures().total == 4
    assert list(HANDLER_BOUNDS) == sorted(set(HANDLER_BOUNDS))


def test_the_lag_is_the_time_from_the_queue_to_the_call(bench, added, clock) -> None:
    """However long the call took. A merged change has waited since the oldest unknown one."""
    slot = bench.slot(lambda change: clock.set(7.0), adds="a")
    clock.set(0.2)
    bench.work()
    figures = slot.statistics()
    assert _in(figures.lag) == {0.25: 1}
    assert _in(figures.duration) == {10: 1}
    assert figures.lag.sum == pytest.approx(0.2)
    assert figures.duration.sum == pytest.approx(7.0)

    slot = bench.slot(lambda change: None, adds="a", delivery=Delivery.KEYED)
    clock.set(50.0)
    slot.add_all([added("a", M)])
    clock.set(0.5)
    bench.work()
    assert _in(slot.statistics().lag) == {60: 1}


@pytest.mark.parametrize(
    ("kind", "reason"), [(A, ChangeReason.INITIAL), (R, ChangeReason.RESYNC), (R, ChangeReason.REPLAY)]
)
def test_what_nobody_has_changed_has_no_lag(bench, added, clock, kind, reason) -> None:
    """A restart, a resync or a reload delivers thousands of objects; an alert on the lag stays quiet.

    A retry has none either; what the filter keeps away is no call.
    """
    slot = bench.slot(fails, retry=EVERY_SECOND)
    slot.add_all([added("a", kind, reason=reason, initial=reason is ChangeReason.INITIAL), added("b")])
    for _ in range(3):
        bench.work()
        clock.set(1.0)
    figures = slot.statistics()
    assert (figures.lag.total, figures.duration.total) == (1, 6)

    slot = bench.bound(bench.binding(lambda change: None), Filter(FilterSpec("app=web"), ("Added",)))
    slot.add_all([added("a")])
    bench.work()
    figures = slot.statistics()
    assert (figures.filtered, figures.lag.total, figures.duration.total) == (1, 0, 0)


# The listing of the queue


def test_a_listing_says_what_is_known_of_each_change(bench, added, clock) -> None:
    """A failed change has its attempts, its error and the time of its retry; the next ones their types."""

    def fail(change) -> None:
        raise KeyError("a value of an object")

    slot = bench.slot(fail, adds="a", retry=RetrySpec(initial_backoff=30.0, max_backoff=30.0))
    then = clock.now()
    bench.work()
    clock.set(2.0)
    slot.add_all([added("b", M), added("c"), added("c", D)])
    shown = slot.listing(3)
    assert (shown.handler, shown.mode) == ("notify", "Event")
    assert (shown.waiting, shown.running, shown.backing_off, shown.left_out) == (3, 0, 1, 1)
    assert [(i.key, i.type, str(i.state)) for i in shown.items] == [
        ("default/b", "Modified", "Waiting"),
        ("default/c", "Added", "Waiting"),
        ("default/c", "Deleted", "Behind"),
    ]
    assert {i.since for i in shown.items} == {then + timedelta(seconds=2)}
    whole = slot.listing(100)
    failed = whole.items[-1]
    assert whole.left_out == 0
    assert (failed.key, failed.attempts, failed.last_error_type) == ("default/a", 1, "KeyError")
    assert (failed.since, failed.priority, failed.generation) == (then, None, None)
    assert timedelta(0) < failed.due - then <= timedelta(seconds=33)
    assert "a value of an object" not in str(document_of(slot.listing(100)))


def test_a_running_call_is_listed_first(bench, added) -> None:
    """It is listed while it runs, with the change behind it, and not after that."""
    listed = []
    slot = bench.slot(lambda change: listed.append(slot.listing(10)), adds="a")
    slot.add_all([added("a", M)])
    bench.work()
    assert [str(item.state) for item in listed[0].items] == ["Running", "Behind"]
    assert listed[0].running == 1
    assert slot.listing(10).items == []


def test_a_listing_of_a_long_queue_costs_what_it_shows(bench, added) -> None:
    """A listing of the first hundred costs a small part of one of all, and copies no more than asked for."""
    slot = bench.slot(lambda change: None)
    slot.add_all([added(f"p{number}") for number in range(1000)] * 50)

    def seconds(most: int) -> float:
        return min(timeit.repeat(lambda: slot.listing(most), number=1, repeat=3))

    shown = slot.listing(100)
    assert (len(shown.items), shown.left_out) == (100, 49_900)
    assert seconds(100) * 20 < seconds(50_000)
