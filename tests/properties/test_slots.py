"""The slot of a handler as a whole, of either mode, against a model.

Slots, queues, workers and their loop are those of the program; clock and loop are turned by hand. A call goes
on until a rule ends it. After each rule all has happened that can happen then: so the model knows which calls
may have begun, and which must have.
"""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from declctl.errors import Terminal
from declctl.hooks.calls import EventTarget, Implementation, ReconcileTarget
from declctl.kit import ManualClock
from declctl.kit.key_queue import LONGEST_REST, EpochCounter
from declctl.kit.worker_budget import WorkerBudget
from declctl.manifest.model import Delivery, QueueSpec, RetrySpec
from declctl.manifest.plan import HandlerPlan
from declctl.objects import ChangeType, Notification, ObjectView, Requeue, merge
from declctl.runtime.handling.calls_under_way import CANCEL_SECONDS
from declctl.runtime.handling.handler_slot import HandlerBinding
from declctl.runtime.reconciling.mapping import KeySource
from declctl.runtime.reconciling.reconcile_slot import ReconcileBinding
from declctl.runtime.reconciling.unseen_writes import OTHERS_SECONDS, OWN_SECONDS
from declctl.writes import WriteOrigin
from tests.rooms.runtime.conftest import PLAN, make_record
from tests.rooms.runtime.test_unseen_writes import MAP, POD, Cache, applied

NEVER, REQUEUE_SECONDS = float("inf"), 3.0
PICKS = st.integers(0, 5)
ENDS = st.sampled_from(["returns", "returns", "raises", "raises", "Terminal", "Requeue"])
CHANGES = st.sampled_from([ChangeType.MODIFIED, ChangeType.MODIFIED, ChangeType.DELETED, ChangeType.RESYNC])


def plan_of(options: tuple[Any, ...]) -> HandlerPlan:
    """A plan with some options; the buffer is full with one change, or never."""
    debounce, is_small, concurrency, most, timeout, delivery = options
    return replace(
        PLAN,
        debounce=debounce,
        buffer_bytes=1 if is_small else 1 << 30,
        queue=QueueSpec(concurrency=concurrency),
        retry=RetrySpec(most, 2.0, 4.0),
        timeout=timeout,
        delivery=delivery,
    )


# One draw for all options: draws take most of the time.
OPTIONS = [[0.0, 1.0, 3.0], [False, True], [1, 2], [None, 2], [None, 1.5], Delivery]
PLANS = st.sampled_from(tuple(itertools.product(*OPTIONS))).map(plan_of)


class HandLoop(asyncio.SelectorEventLoop):
    """A loop at the time of a manual clock, which runs when it is turned."""

    def __init__(self, clock: ManualClock) -> None:
        self.time, self.moments = clock.monotonic, list[float]()
        super().__init__()

    def call_at(self, when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
        heapq.heappush(self.moments, when)
        return super().call_at(when, *args, **more)

    def turn(self) -> None:
        self.call_soon(int)
        for _ in range(1000):
            self.stop()
            self.run_forever()
            if not self._ready:  # type: ignore[attr-defined]
                return
        raise AssertionError("the workers go on for ever")


@dataclass(eq=False)
class Call:
    """A call of a hook, which ends when it is told how."""

    key: str
    given: tuple[Any, ...]
    generation: int
    limit: float  # the moment of its timeout
    how: str = ""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    item: Any = None  # of the model
    budget: WorkerBudget | None = None
    cancelled_at: float = NEVER  # the end of its drain
    is_zombie: bool = False
    timed_out: bool = False


@dataclass(eq=False)
class Item:
    """A change, or a key of a reconciler: it rests, waits, runs or backs off."""

    key: str
    value: Any = None  # the change
    due: float = 0.0  # the end of a back-off; for a key 0.0 if it waits, and NEVER if nothing has led to it
    epoch: int | None = None  # whose code is called; None: the newest one when its turn comes
    rests_until: float = 0.0  # 0.0 if it does not rest
    latest: float = 0.0  # the end of the longest rest
    attempts: int = 0
    is_out: bool = False
    since: int = 0  # the step in which it began to wait
    was_first: bool = False  # of its key, from then on


class Handler:
    """A slot beside its model. Here is what both modes share: calls, their ends and limits.

    A mode has `add`, for a change; `look`, by which rests end; `is_ready`, whether an item may be called now;
    `taken`, what its call must receive; `done` and `retry`, what becomes of an item whose call has ended.
    """

    names: tuple[str, str]  # of the hook and its argument

    def __init__(self, world: "Slots", plan: HandlerPlan) -> None:
        self.world, self.epoch, self.budget, self.is_closed = world, 0, None, False
        self.plans, self.counts, self.objects = dict[int, HandlerPlan](), Counter[str](), dict[str, Any]()
        self.calls, self.items = list[Call](), list[Item]()
        self.script = list[str]()  # how the next calls end, the last one first
        # What caches lack: the version, the key that wrote it, whether to its own status, when, in what step.
        self.writes = list[tuple[int, str, bool, float, int]]()
        self.owners: dict[int | None, int] = {}  # by epoch, the one to which what waits was handed over
        self.caches: Any = (Cache(POD), Cache(MAP))
        self.advance(world.version)
        log: Any = SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), lambda *_, **__: None))
        made, clock, loop = self.bind_next(plan), world.clock, world.loop
        self.slot: Any = made.make_slot(clock=clock, log=log, loop=loop, epochs=world.epochs)
        self.slot.connect()

    now = property(lambda self: self.world.clock.monotonic())
    plan = property(lambda self: self.plans[self.epoch])

    def bind_next(self, plan: HandlerPlan) -> HandlerBinding:
        """The binding of the next epoch; without debounce if workers are shared, as any may look then."""
        generation, world = self.epoch + 1, self.world
        self.plans[generation] = plan = replace(plan, debounce=0.0) if world.shares else plan

        async def hook(change: Any = None, request: Any = None) -> Requeue | None:
            given = (request.attempt,) if request else (change.type, change.obj, change.old)
            limit = self.now + (plan.timeout or NEVER)
            call = Call(str((request or change).key), given, generation, limit)
            call.how = self.script.pop() if self.script else ""
            world.events.append((self, call, ""))
            if call.how:
                world.events.append((self, call, call.how))
            while not call.how:
                try:
                    await call.gate.wait()
                except asyncio.CancelledError:
                    if not world.is_stubborn:
                        world.events.append((self, call, "cancelled"))
                        raise
            if call.how in ("raises", "Terminal"):
                raise Terminal("never") if call.how == "Terminal" else ValueError("no")
            return Requeue(after=REQUEUE_SECONDS) if call.how == "Requeue" else None

        made = (Implementation(self.names[0], "p", hook, self.names[1:], is_async=True),)
        loop: Any = SimpleNamespace(is_blocked=False, loop=world.loop)
        if isinstance(self, Events):
            return HandlerBinding(generation, plan, EventTarget(made), lambda *_: None, loop)
        own: Any = {"informers": self.caches[:1], "lister": SimpleNamespace(get=lambda key: None)}
        own["sources"] = (KeySource("pods", self.caches[:1], frozenset(ChangeType)),)
        return ReconcileBinding(generation, plan, ReconcileTarget(made), lambda *_: None, loop, **own)

    @property
    def is_full(self) -> bool:
        """Whether no further call may begin."""
        out = sum(not call.is_zombie for call in self.calls)
        permits = sum(c.budget is self.budget and not c.is_zombie for _, c in self.world.calls())
        has_permit = self.budget is None or permits < self.budget.limit
        return self.is_closed or out >= self.plan.queue.concurrency or not has_permit

    def begins(self, call: Call) -> None:
        """The program has begun a call: it must be one that may begin now."""
        assert not self.is_full, "too many calls, or one after the end"
        assert all(other.key != call.key for other in self.calls), "two calls of one key"
        self.look()
        found = [item for item in self.items if item.key == call.key and self.is_ready(item)]
        assert found, "what must not be called"
        call.item = item = found[0]
        assert (call.given, call.generation) == self.taken(item)
        item.is_out, item.was_first, item.due, call.budget = True, False, NEVER, self.budget
        self.calls.append(call)

    def ends(self, call: Call, how: str) -> None:
        """A call has ended: its item is done, or comes again."""
        self.calls.remove(call)
        retry, item, counts = self.plans[call.generation].retry, call.item, self.counts
        if how == "cancelled":
            assert self.now in (call.limit, call.cancelled_at), "it was cancelled at no limit"
            counts["timeouts"] += call.cancelled_at == NEVER
        item.is_out, item.since = False, self.world.step
        has_failed = call.timed_out or how not in ("returns", "Requeue")
        is_terminal = how == "Terminal" and isinstance(self, Keys)
        counts["terminal_failures"] += is_terminal
        item.attempts += has_failed
        is_last = is_terminal or self.is_closed or item.attempts >= (retry.max_attempts or NEVER)
        if has_failed and not is_last:
            counts["retried"] += 1
            self.retry(item, self.now + min(retry.max_backoff, 2.0**item.attempts))
            return
        counts["failed" if has_failed else "succeeded"] += 1
        item.attempts = 0
        self.done(item, self.now + REQUEUE_SECONDS if how == "Requeue" and not has_failed else NEVER)

    def rest(self, item: Item, least: float = 0.0) -> None:
        """Something new has come for an item, which rests, or begins to."""
        if not item.rests_until:
            item.latest = max(self.now + LONGEST_REST * self.plan.debounce, least)
        item.rests_until = max(item.rests_until, least, min(self.now + self.plan.debounce, item.latest))

    def hand_over(self, epoch: int, *, is_late: bool) -> None:
        """What waits goes to the newest code; at the end of a drain, what runs is not waited for."""
        self.owners |= {each: self.epoch for each, owner in self.owners.items() if owner == epoch}
        self.owners[epoch] = self.epoch
        self.slot.hand_over(epoch)
        if is_late:
            stuck = [call for call in self.calls if call.generation == epoch and not call.is_zombie]
            for call in stuck:
                call.cancelled_at = min(call.cancelled_at, self.now)
            assert self.slot.abandon(epoch) == len(stuck)
            self.slot.drained()

    def owner(self, item: Item) -> int | None:
        """Whose code is called: what runs stays with the code that has begun it."""
        return item.epoch if item.is_out else self.owners.get(item.epoch, item.epoch)

    def outstanding(self, epoch: int) -> int:
        return sum(self.owner(item) == epoch for item in self.items)

    def advance(self, version: int) -> None:
        """The watches bring what was written, up to a version."""
        self.writes = [write for write in self.writes if write[0] > version]
        for cache in self.caches:
            cache.bookmark(version)

    def pass_limits(self) -> None:
        """Calls that go on after their cancellation become zombies."""
        limit = self.now - CANCEL_SECONDS
        for call in self.calls if self.world.is_stubborn else ():
            self.counts["timeouts"] += call.limit <= limit and not call.timed_out
            call.timed_out |= call.limit <= limit
            call.is_zombie |= min(call.limit, call.cancelled_at) <= limit

    def check(self) -> None:
        """No worker leaves what it may take; figures and epochs are those of the model."""
        if not self.is_full:
            self.look()
            assert not any(self.is_ready(item, surely=True) for item in self.items), "no worker takes it"
        seen, counts = self.slot.statistics(), self.counts
        for name in ("succeeded", "failed", "retried", "timeouts", "terminal_failures", "dropped"):
            assert getattr(seen, name) == counts[name], name
        assert (seen.running, seen.zombies) == (len(self.calls), sum(call.is_zombie for call in self.calls))
        retries = sum(item.attempts > 0 and not item.is_out for item in self.items)
        assert self.is_closed or seen.delivered == seen.succeeded + seen.failed + seen.running + retries
        if isinstance(self, Events):
            fresh = sum(not (item.is_out or item.attempts) for item in self.items)
            assert (seen.merged, seen.queued) == (counts["merged"], len(self.items) - len(self.calls))
            assert self.slot.queue.statistics().weight == sum(item.value.weight() for item in self.items)
            assert seen.delivered + seen.merged + seen.dropped + fresh == counts["added"]
        for epoch in range(1, self.epoch + 1):
            assert self.slot.outstanding(epoch) == self.outstanding(epoch), f"of epoch {epoch}"


class Events(Handler):
    """`mode: Event`: the items are all changes, in the order in which they came."""

    names = "declctl_event", "change"

    def add(self, value: Notification) -> None:
        self.slot.add_all([value])
        self.counts["added"] += 1
        if not self.plan.debounce:
            self.look()
        new, tail = Item(value.key, value), [None, *self.of(value.key)][-1]
        is_keyed = self.plan.delivery is Delivery.KEYED
        is_full = self.plan.buffer_bytes == 1 and bool(self.items)
        if tail is not None and (is_keyed or is_full or tail.rests_until):
            is_free = not tail.is_out and (is_keyed or not tail.attempts)
            if is_free and self.owner(tail) in (None, self.epoch) and self.merge(tail, value):
                if tail.rests_until:
                    self.rest(tail)
                return
        self.items.append(new)
        if self.plan.debounce and not is_full:
            self.rest(new, 0.0 if tail is None else tail.rests_until)
        else:
            self.look(NEVER)
            self.set_epoch(new)

    def merge(self, first: Item, value: Notification) -> bool:
        remaining = merge(first.value, value, first.attempts > 0)
        if len(remaining) < 2:
            self.counts["merged"] += 2 - len(remaining)
            if remaining:
                first.value = remaining[0]
            else:
                self.items.remove(first)
        return len(remaining) < 2

    def of(self, key: str) -> list[Item]:
        return [item for item in self.items if item.key == key]

    def set_epoch(self, item: Item) -> None:
        """What comes to wait belongs to the newest code, unless it is behind a retry."""
        head = self.of(item.key)[0]
        item.epoch = None if head.attempts and head.epoch is None else self.epoch
        item.since, item.was_first = self.world.step, head is item

    def join(self, head: Item, epoch: int | None) -> None:
        for item in self.of(head.key):
            item.epoch = None if item.rests_until else epoch

    def look(self, until: float = 0.0) -> None:
        """Rests end: what has rested for long enough waits."""
        until = until or (self.now if self.plan.debounce else NEVER)
        for item in self.items:
            if 0.0 < item.rests_until <= until:
                item.rests_until = 0.0
                self.set_epoch(item)

    def is_ready(self, item: Item, *, surely: bool = False) -> bool:
        is_head = self.of(item.key)[0] is item
        return is_head and not (item.is_out or item.rests_until) and item.due <= self.now

    def taken(self, item: Item) -> tuple[Any, ...]:
        """What a call receives, and which code is called."""
        before = [each for each in self.items if each.since < item.since and each.was_first]
        assert item.attempts or not any(map(self.is_ready, before)), "it has overtaken a change"
        if item.epoch is None:
            self.join(item, self.epoch)
        value, item.epoch = item.value, self.owner(item)
        old = {ChangeType.MODIFIED: value.old, ChangeType.RESYNC: value.record}.get(value.type)
        old = None if old is None else ObjectView(old)
        return (value.type, ObjectView(value.record), old), item.epoch

    def done(self, item: Item, due: float) -> None:
        self.items.remove(item)

    def retry(self, item: Item, due: float) -> None:
        item.due = due
        self.join(item, None)
        for newer in self.of(item.key)[1:] if self.plan.delivery is Delivery.KEYED else ():
            if not self.merge(item, newer.value):
                return
            self.items.remove(newer)


class Keys(Handler):
    """`mode: Reconcile`: an item is a key, which waits until caches have what the handler has written."""

    names = "declctl_reconcile", "request"

    def add(self, value: Notification) -> None:
        self.slot.add_from(self.caches[0], [value])
        item = next((item for item in self.items if item.key == value.key), None)
        if item is None:
            item = Item(value.key, due=NEVER)
            self.items.append(item)
        (self.rest if self.plan.debounce else self.wait)(item)

    def wait(self, item: Item) -> None:
        if item.due:
            item.due, item.since = 0.0, self.world.step

    def look(self) -> None:
        for item in self.items:
            is_over = item.rests_until <= self.now or not self.plan.debounce
            if item.due <= self.now or (item.rests_until and is_over):
                self.wait(item)
            if is_over:
                item.rests_until = 0.0

    def is_ready(self, item: Item, *, surely: bool = False) -> bool:
        """Whether caches lack no write from before the key began to wait; for `surely`, none at all.

        While held keys have all places, no worker looks: a rest that is over goes on with the next change.
        """
        if surely and item.rests_until:
            return False
        for _, by, is_status, at, step in self.writes:
            until = at + OWN_SECONDS if by == item.key else 0.0 if is_status else at + OTHERS_SECONDS
            if self.now < until and (surely or step < item.since):
                return False
        return not item.due and not item.is_out

    def taken(self, item: Item) -> tuple[Any, ...]:
        item.epoch = self.epoch
        return (item.attempts + 1,), self.epoch

    def done(self, item: Item, due: float) -> None:
        item.epoch = None
        if item.due or self.is_closed:  # else it waits already, as something has led to it meanwhile
            item.due = NEVER if self.is_closed else due

    retry = done


@pytest.mark.guarantee("G10")
class Slots(RuleBasedStateMachine):
    """One handler, or two which share their epochs and sometimes their workers."""

    @initialize(
        modes=st.sampled_from([(Events,), (Events,), (Keys,), (Events, Keys)]),
        plans=st.tuples(PLANS, PLANS),
        is_stubborn=st.booleans(),  # hooks swallow their cancellation
        closes=st.booleans(),  # in the end, the handlers are removed
    )
    def start(self, modes: Any, plans: Any, is_stubborn: bool, closes: bool) -> None:
        self.is_stubborn, self.closes, self.shares = is_stubborn, closes, len(modes) > 1
        self.clock, self.epochs, self.version, self.step = ManualClock(), EpochCounter(), 1, 1
        self.loop = HandLoop(self.clock)
        self.events: list[tuple[Handler, Call, str]] = []  # calls that have begun or ended by themselves
        self.drains: list[tuple[Handler, int, Any]] = []
        self.handlers = [make(self, plan) for make, plan in zip(modes, plans, strict=False)]
        self.a_reload(())

    @rule(pick=PICKS, changes=st.lists(st.tuples(st.sampled_from("abc"), CHANGES), min_size=1, max_size=3))
    def objects_change(self, pick: int, changes: list[tuple[str, ChangeType]]) -> None:
        """Several changes may come before a worker looks."""
        handler = self.handlers[pick % len(self.handlers)]
        for name, of_known in changes:
            self.version += 1
            new, old = make_record(name, version=self.version), handler.objects.pop(name, None)
            kind = ChangeType.ADDED if old is None else of_known
            if kind is not ChangeType.DELETED:
                handler.objects[name] = new
            handler.add(Notification(kind, new, old if kind is ChangeType.MODIFIED else None))
        self.settle()

    @rule(pick=PICKS, ends=st.lists(ENDS, min_size=1, max_size=4))
    def next_calls_end_at_once(self, pick: int, ends: list[str]) -> None:
        """Without a turn of the loop in between; later ones go on until `a_call_ends`."""
        self.handlers[pick % len(self.handlers)].script = ends

    @precondition(lambda self: self.calls())
    @rule(pick=PICKS, how=ENDS)
    def a_call_ends(self, pick: int, how: str) -> None:
        handler, call = self.calls()[pick % len(self.calls())]
        handler.ends(call, how)
        call.how = how
        call.gate.set()
        self.settle()

    @precondition(lambda self: any(isinstance(handler, Keys) for handler, _ in self.calls()))
    @rule(pick=PICKS, is_status=st.booleans())
    def a_call_writes(self, pick: int, is_status: bool) -> None:
        """The status of its own object, for which only its key waits, or a child, for which all wait."""
        calls = [(handler, call.key) for handler, call in self.calls() if isinstance(handler, Keys)]
        handler, key = calls[pick % len(calls)]
        self.version += 1
        target, kind = (key, POD) if is_status else (f"{key}-child", MAP)
        written = applied(target, self.version, kind=kind)
        handler.slot.written(written, WriteOrigin("notify", 1, key=key), handler.caches)
        handler.writes.append((self.version, key, is_status, self.clock.monotonic(), self.step))
        self.settle()

    @precondition(lambda self: any(handler.writes for handler in self.handlers))
    @rule(is_first=st.booleans())
    def caches_advance(self, is_first: bool) -> None:
        """By the first write that they lack, or by all."""
        for handler in self.handlers:
            handler.advance(handler.writes[0][0] if is_first and handler.writes else self.version)
        self.settle()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0, 11.0, 121.0]))
    def time_passes(self, seconds: float) -> None:
        """With a stop at each moment for which the program has asked its loop."""
        until, moments = self.clock.monotonic() + seconds, self.loop.moments
        while self.clock.monotonic() < until:
            moment = heapq.heappop(moments) if moments and moments[0] < until else until
            self.clock.set(max(0.0, moment - self.clock.monotonic()))
            self.settle()

    @rule(plans=st.tuples(PLANS, PLANS))
    def a_reload(self, plans: Sequence[HandlerPlan]) -> None:
        """All handlers get new code and settings in one step, as a commit of the program does it."""
        for handler, plan in zip(self.handlers, plans, strict=False):
            handler.slot.expect(handler.bind_next(plan))
            self.drains.append((handler, handler.epoch, handler.slot.end_of(handler.epoch)))
        self.epochs.cut()
        for handler in self.handlers:
            handler.epoch, slot = self.epochs.newest, handler.slot
            slot.apply_policy(slot.binding)
            if not slot.has_workers_for(slot.binding):
                slot.workers.dismiss()
                slot.workers = slot.make_workers(slot.binding)
                slot.connect()
                slot.wake()
        self.settle()

    @precondition(lambda self: self.drains)
    @rule(pick=PICKS, is_late=st.booleans())
    def what_waits_is_handed_over(self, pick: int, is_late: bool) -> None:
        """A drain takes long; or it takes too long, and then its calls are given up."""
        handler, epoch, _ = self.drains[pick % len(self.drains)]
        handler.hand_over(epoch, is_late=is_late)
        self.settle()

    @precondition(lambda self: self.shares)
    @rule(limit=st.sampled_from([None, 1, 2]))
    def workers_are_shared(self, limit: int | None) -> None:
        """By both handlers; None ends that."""
        budget = self.handlers[0].budget or WorkerBudget(1, clock=self.clock)
        budget.resize(limit or 1)
        for handler in self.handlers:
            handler.budget = None if limit is None else budget
            handler.slot.share_workers(handler.budget)
        self.settle()

    def calls(self) -> list[tuple[Handler, Call]]:
        return [(handler, call) for handler in self.handlers for call in handler.calls]

    def settle(self) -> None:
        """Let all happen that can happen now; the model hears of it, and is compared."""
        self.loop.turn()
        self.step += 1
        for handler in self.handlers:
            handler.pass_limits()
        for handler, call, how in self.events:
            handler.ends(call, how) if how else handler.begins(call)
        self.events.clear()
        for handler in self.handlers:
            handler.check()
        for handler, epoch, latch in self.drains:
            assert latch.is_open == (not handler.outstanding(epoch)), f"the drain of epoch {epoch}"
        ended = [drain for drain in self.drains if drain[2].is_open]
        self.drains = [drain for drain in self.drains if drain not in ended]
        for handler, epoch, _ in ended:  # which may end others, of which the loop hears at its next turn
            handler.hand_over(epoch, is_late=True)
            handler.slot.forget(epoch)

    def teardown(self) -> None:
        """In the end all is delivered; or the handlers are removed, and nothing more is called."""
        for handler in self.handlers:
            handler.script = ["returns"] * 99
            if self.closes:
                handler.slot.workers.dismiss()
                handler.counts["dropped"] = handler.slot.close()
                handler.items, handler.is_closed = [item for item in handler.items if item.is_out], True
        while self.calls():
            self.a_call_ends(0, "raises")
        self.time_passes(2 * OWN_SECONDS)
        assert not self.drains
        assert all(handler.slot.is_idle for handler in self.handlers)
        for handler in self.handlers:
            handler.slot.workers.cancel()
        self.loop.turn()
        self.loop.close()


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
