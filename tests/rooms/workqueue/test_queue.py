"""The queue: each key at most once, and never with two workers."""

import asyncio
import gc
import threading
import weakref

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from declctl.kit import ManualClock
from declctl.kit.key_queue import LIVE_IN_A_ROW
from declctl.objects import Cause
from declctl.workqueue import DURATION_BOUNDS, MOST_CAUSES, Priority, QueueEmpty, QueueShutDown, WorkQueue


@pytest.fixture(name="clock")
def _clock():
    return ManualClock()


@pytest.fixture(name="queue")
def _queue(clock):
    return WorkQueue(clock=clock)


@pytest.mark.client_go(307)
async def test_a_worker_waits_for_an_item(queue):
    """It is woken also from another thread; the item of one that was cancelled goes to the next."""
    cancelled, waiting = asyncio.ensure_future(queue.get()), asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    cancelled.cancel()
    queue.add("a")
    assert await waiting == "a"
    assert cancelled.cancelled()
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.to_thread(queue.add, "b")
    assert await waiting == "b"


@pytest.mark.client_go(239, 301, "ShutDown")
async def test_shutdown_does_not_wait_for_work(queue):
    """It returns while an item is still worked on (client-go 239), and wakes the workers that wait."""
    queue.add("a")
    queue.get_nowait()
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.shut_down()
    with pytest.raises(QueueShutDown):
        await waiting


@pytest.mark.client_go(238, 241, "ShutDownWithDrain")
async def test_draining_waits_until_all_is_done(queue, clock):
    """Also for what is added again while it is worked on, which runs once more (client-go 238, 241)."""
    for item in "ab":
        queue.add(item)
        queue.get_nowait()
    queue.add("a")
    drained, waiting = asyncio.ensure_future(queue.shut_down_with_drain()), asyncio.ensure_future(queue.get())
    await clock.settle()
    queue.done("a")
    assert await waiting == "a"
    for item in "ba":
        await clock.settle()
        assert not drained.done()
        queue.done(item)
    await drained


async def test_a_plain_shutdown_ends_a_drain(queue, clock):
    """Who loses patience need not wait for work that hangs."""
    queue.add("a")
    queue.get_nowait()
    drained = asyncio.ensure_future(queue.shut_down_with_drain())
    await clock.settle()
    assert not drained.done()
    queue.shut_down()
    await drained


@pytest.mark.client_go(242)
def test_nothing_keeps_an_item_that_is_done(queue):
    """Memory does not grow with what was worked on (client-go 242)."""

    class Item: ...

    item = Item()
    alive = weakref.ref(item)
    queue.add(item)
    queue.done(queue.get_nowait())
    del item
    gc.collect()
    assert alive() is None


@pytest.mark.client_go("Work queue metrics")
def test_statistics_have_client_gos_names(queue, clock):
    """`workqueue_depth` is adds minus gets, as client-go's; `len` is what a worker could take now."""
    for item in "aab":
        queue.add(item)
    clock.set(2)
    queue.get_nowait()
    clock.set(3)
    running = queue.statistics()
    assert (running.depth, running.adds_total) == (1, 2)
    assert (running.queue_duration_seconds_count, running.queue_duration_seconds_sum) == (1, 2)
    assert (running.unfinished_work_seconds, running.longest_running_processor_seconds) == (3, 3)
    queue.add("a")
    queue.add("a")
    assert (queue.statistics().depth, len(queue)) == (2, 1)
    queue.done("a")
    done = queue.statistics()
    assert (done.depth, len(queue), done.adds_total) == (2, 2, 3)
    assert (done.work_duration_seconds_count, done.work_duration_seconds_sum) == (1, 3)
    # Up to 1 s none, up to 10 s one: the buckets are client-go's, from 10 ns to 1000 s, and +Inf.
    assert done.work_duration_seconds_bucket == (0,) * 9 + (1,) * 4
    assert DURATION_BOUNDS[8:10] == (1.0, 10.0)
    assert done.unfinished_work_seconds == 0
    queue.get_nowait()
    assert (queue.get_nowait(), queue.statistics().depth) == ("a", 0)


@pytest.mark.client_go(232, 301)
async def test_many_producers_and_consumers_lose_nothing(queue):
    """Everything added before shutdown is worked on, never one item by two workers (client-go 232)."""
    done: list[int] = []
    active: set[int] = set()

    async def worker():
        while True:
            try:
                item = await queue.get()
            except QueueShutDown:
                return
            assert item not in active
            active.add(item)
            await asyncio.sleep(0)
            active.discard(item)
            done.append(item)
            queue.done(item)

    workers = [asyncio.ensure_future(worker()) for _ in range(10)]
    threads = [
        threading.Thread(target=lambda n=n: [queue.add(n * 20 + i) for i in range(20)]) for n in range(10)
    ]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    await queue.shut_down_with_drain()
    await asyncio.gather(*workers)
    assert sorted(done) == list(range(200))


@pytest.mark.client_go(232, 233, 234, 235, 237, 295, 307, "Dedup")
class QueueMachine(RuleBasedStateMachine):
    """First in, first out, each item once and with one worker: the queue against a model of sets."""

    def __init__(self):
        super().__init__()
        self.queue = WorkQueue(clock=ManualClock())
        self.waiting: list[int] = []
        self.again: set[int] = set()
        self.working: set[int] = set()
        self.closed = False
        self.finished = 0

    @rule(item=st.integers(0, 4))
    def add(self, item):
        self.queue.add(item)
        if self.closed:
            return
        if item in self.working:
            self.again.add(item)
        elif item not in self.waiting:
            self.waiting.append(item)

    @precondition(lambda self: self.waiting)
    @rule()
    def take(self):
        item = self.queue.get_nowait()
        assert item == self.waiting.pop(0)
        assert item not in self.working
        self.working.add(item)

    @precondition(lambda self: not self.waiting)
    @rule()
    def take_nothing(self):
        """Nobody is told to leave while something may come back."""
        expected = QueueShutDown if self.closed and not self.again else QueueEmpty
        with pytest.raises(expected):
            self.queue.get_nowait()

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def finish(self, data):
        item = data.draw(st.sampled_from(sorted(self.working)))
        self.queue.done(item)
        self.finished += 1
        self.working.discard(item)
        if item in self.again:
            self.again.discard(item)
            self.waiting.append(item)

    @rule(item=st.integers(0, 4))
    def finish_what_nobody_has(self, item):
        if item not in self.working:
            self.queue.done(item)

    @rule()
    def shut_down(self):
        self.queue.shut_down()
        self.closed = True
        assert self.queue.shutting_down

    @invariant()
    def counts_agree(self):
        assert len(self.queue) == len(self.waiting)
        assert self.queue.statistics().work_duration_seconds_count == self.finished


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def taken(queue, count):
    """The next items, each worked on to its end."""
    found = []
    for _ in range(count):
        found.append(queue.get_nowait())
        queue.done(found[-1])
    return found


@pytest.mark.client_go(295, "Priority queue (controller-runtime)")
def test_live_items_go_first_and_the_others_have_a_turn_after_four(queue):
    """A restart with 10,000 objects does not delay a change, and changes do not starve the 10,000."""
    for number in range(3):
        queue.add(f"old{number}", priority=Priority.BACKGROUND)
    for number in range(6):
        queue.add(f"new{number}")
    assert LIVE_IN_A_ROW == 4
    order = ["new0", "new1", "new2", "new3", "old0", "new4", "new5", "old1", "old2"]
    assert taken(queue, 9) == order


@pytest.mark.client_go(297, "Touch hook", "Priority queue (controller-runtime)")
def test_an_object_that_changes_while_it_waits_in_the_background_goes_first(queue):
    """It is one item, at the end of the live ones; another add in the background does not push it back."""
    for item in ("a", "b"):
        queue.add(item, priority=Priority.BACKGROUND)
    queue.add("c")
    queue.add("b")
    queue.add("b", priority=Priority.BACKGROUND)
    assert taken(queue, 3) == ["c", "b", "a"]
    assert queue.statistics().adds_total == 3


@pytest.mark.client_go(297)
def test_an_item_that_is_worked_on_comes_back_with_its_highest_priority(queue):
    """What changes meanwhile is live."""
    queue.add("a", priority=Priority.BACKGROUND)
    assert queue.priority_of(queue.get_nowait()) is Priority.BACKGROUND
    for item in "ab":
        queue.add(item, priority=Priority.BACKGROUND)
    queue.add("a")
    queue.done("a")
    assert taken(queue, 2) == ["a", "b"]


@pytest.mark.client_go("Dedup")
def test_a_worker_is_told_why_it_has_an_item(queue):
    """Each cause once, the oldest first; those that come meanwhile belong to the next turn."""
    first, second = Cause("Modified", "pods", "demo/a", "Watch"), Cause("Deleted", "nodes", "n1", "Watch")
    for cause in (first, second, first):
        queue.add("a", cause=cause)
    assert queue.causes_of("a") == ()
    queue.get_nowait()
    queue.add("a", cause=second)
    assert queue.causes_of("a") == (first, second)
    queue.done("a")
    assert queue.causes_of("a") == ()
    queue.get_nowait()
    assert queue.causes_of("a") == (second,)


@pytest.mark.client_go("Generic item types")
def test_an_item_is_anything_with_a_hash():
    """A key with its cluster, for example; equal items are one."""
    queue: WorkQueue[tuple[str, int]] = WorkQueue(clock=ManualClock())
    for item in [("a", 1), ("b", 2), ("a", 1)]:
        queue.add(item)
    assert taken(queue, 2) == [("a", 1), ("b", 2)]
    with pytest.raises(TypeError, match="unhashable"):
        queue.add(["a"])  # type: ignore[arg-type]


def test_causes_of_one_item_are_bounded(queue):
    """A node that changes brings all its pods: 10,000 causes would be a leak."""
    for number in range(10 * MOST_CAUSES):
        queue.add("a", cause=Cause("Modified", "pods", f"demo/{number}", "Watch"))
    queue.get_nowait()
    assert [cause.key for cause in queue.causes_of("a")] == [f"demo/{n}" for n in range(MOST_CAUSES)]


@pytest.mark.client_go("Priority queue (controller-runtime)")
class Fairness(RuleBasedStateMachine):
    """However items come, each is handed out after a bounded number of others (ageing)."""

    def __init__(self):
        super().__init__()
        self.queue = WorkQueue(clock=ManualClock())
        self.rows = {Priority.LIVE: [], Priority.BACKGROUND: []}
        self.bounds = {}  # by item in a row: how many others may still be handed out before it
        self.number = 0

    @rule(priority=st.sampled_from(Priority), count=st.integers(1, 12))
    def add(self, priority, count):
        for _ in range(count):
            self.number += 1
            self.enter(self.number, priority)
            self.queue.add(self.number, priority=priority)

    @precondition(lambda self: self.rows[Priority.BACKGROUND])
    @rule(data=st.data())
    def change(self, data):
        """An item that waits in the background changes."""
        item = data.draw(st.sampled_from(self.rows[Priority.BACKGROUND]))
        self.rows[Priority.BACKGROUND].remove(item)
        self.enter(item, Priority.LIVE)
        self.queue.add(item)

    @rule(count=st.integers(1, 12))
    def take(self, count):
        """The queue hands out the first of a row, and never one whose bound is used up too late."""
        for _ in range(min(count, len(self.queue))):
            item = self.queue.get_nowait()
            self.queue.done(item)
            row = next(row for row in self.rows.values() if item in row)
            assert row[0] == item
            row.remove(item)
            del self.bounds[item]
            for other in self.bounds:
                self.bounds[other] -= 1
                assert self.bounds[other] >= 0, f"{other} waits for too many others"

    def enter(self, item, priority):
        """The bounds that the queue promises."""
        before = len(self.rows[priority])
        self.rows[priority].append(item)
        if priority is Priority.LIVE:
            self.bounds[item] = before + before // LIVE_IN_A_ROW + 1
        else:
            self.bounds[item] = before + (before + 1) * LIVE_IN_A_ROW


TestFairness = Fairness.TestCase
TestFairness.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
