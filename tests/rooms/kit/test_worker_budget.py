"""Worker budgets: several queues share a number of workers, and none of them waits for ever."""

import threading

import pytest

from declctl.kit import KeyedQueue, ManualClock
from declctl.kit.worker_budget import TURN_SECONDS, WorkerBudget


class Member:
    """A queue in the budget, with how often it was woken."""

    def __init__(self, budget: WorkerBudget, clock: ManualClock) -> None:
        self.woken = 0
        self.queue: KeyedQueue[int] = KeyedQueue(
            clock=clock, weigh=lambda _: 1, merge=lambda waiting, new, _: [waiting, new], merge_above=1 << 30
        )
        self.queue.share_workers(budget, self.wake)

    def wake(self) -> None:
        self.woken += 1

    def fill(self, number: int) -> None:
        self.queue.add_all([(f"k{each}", each) for each in range(number)])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def _members(clock: ManualClock, limit: int, number: int) -> tuple[WorkerBudget, list[Member]]:
    budget = WorkerBudget(limit, clock=clock)
    return budget, [Member(budget, clock) for _ in range(number)]


def test_all_queues_together_have_so_many_items(clock: ManualClock) -> None:
    """The third worker gets nothing until one of the two is done, whichever queue it asks."""
    _, (a, b) = _members(clock, 2, 2)
    a.fill(5)
    b.fill(5)
    first, second = a.queue.take(), b.queue.take()
    assert first is not None
    assert second is not None
    assert a.queue.take() is None
    assert b.queue.take() is None
    assert a.queue.next_due() is None
    a.queue.done(first)
    assert a.woken == 1
    assert a.queue.take() is not None


def test_a_queue_with_much_to_do_does_not_starve_another(clock: ManualClock) -> None:
    """One change behind ten thousand of another handler is next but one."""
    _, (busy, quiet) = _members(clock, 1, 2)
    busy.fill(10_000)
    item = busy.queue.take()
    assert item is not None
    quiet.fill(1)
    assert quiet.queue.take() is None
    busy.queue.done(item)
    assert quiet.woken == 1
    assert busy.queue.take() is None
    item = quiet.queue.take()
    assert item is not None
    quiet.queue.done(item)
    assert busy.woken == 1
    assert busy.queue.take() is not None


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_queues_that_all_have_much_to_do_get_equal_parts(clock: ManualClock, limit: int) -> None:
    """However eager the workers of one are: it asks again at once, the others when they are woken."""
    _, members = _members(clock, limit, 3)
    for member in members:
        member.fill(1000)
    running: list[tuple[Member, object]] = []
    taken = dict.fromkeys(range(3), 0)
    for step in range(600):
        for number in (0, 0, 0, 1, 2, step % 3):  # the first asks most often
            item = members[number].queue.take()
            if item is not None:
                taken[number] += 1
                running.append((members[number], item))
        assert len(running) <= limit
        if running:
            member, item = running.pop(0)
            member.queue.done(item)  # type: ignore[arg-type]
    # A few more for the first, which began alone.
    assert max(taken.values()) - min(taken.values()) <= 2 * limit + 2


def test_a_queue_whose_workers_are_stuck_holds_nobody_up(clock: ManualClock) -> None:
    """It has a turn and does not come: after a tenth of a second others go on, and it is still the first."""
    _, (a, stuck) = _members(clock, 1, 2)
    a.fill(3)
    stuck.fill(1)
    item = a.queue.take()
    assert item is not None
    assert stuck.queue.take() is None
    a.queue.done(item)
    assert a.queue.take() is None
    assert a.queue.next_due() == pytest.approx(TURN_SECONDS)
    clock.set(TURN_SECONDS)
    assert a.queue.next_due() == 0.0
    item = a.queue.take()
    assert item is not None
    a.queue.done(item)
    assert stuck.queue.take() is not None


def test_a_queue_without_work_gives_up_its_turn(clock: ManualClock) -> None:
    """What it waited for was dropped meanwhile: the next one is woken, without a wait."""
    _, (a, b, c) = _members(clock, 1, 3)
    for member in (a, b, c):
        member.fill(1)
    item = a.queue.take()
    assert item is not None
    assert b.queue.take() is None
    assert c.queue.take() is None
    b.queue.clear()
    a.queue.done(item)
    assert (b.woken, c.woken) == (0, 1)
    assert c.queue.take() is not None


def test_a_queue_that_loses_its_work_after_it_was_woken_passes_its_turn_on(clock: ManualClock) -> None:
    """It was woken, and finds nothing: the next one is woken then."""
    _, (a, b, c) = _members(clock, 1, 3)
    for member in (a, b, c):
        member.fill(1)
    item = a.queue.take()
    assert item is not None
    assert b.queue.take() is None
    assert c.queue.take() is None
    a.queue.done(item)
    assert (b.woken, c.woken) == (1, 0)
    b.queue.clear()
    assert c.woken == 1


def test_a_retry_and_a_stuck_call_return_their_permits(clock: ManualClock) -> None:
    """An item in back-off, and a call that is not waited for any longer, take no worker from others."""
    _, (a, b) = _members(clock, 1, 2)
    a.fill(2)
    b.fill(1)
    item = a.queue.take()
    assert item is not None
    assert b.queue.take() is None
    a.queue.retry(item, 60.0)
    item = b.queue.take()
    assert item is not None
    b.queue.exclude_from_limit(item)
    other = a.queue.take()
    assert other is not None
    b.queue.done(item)  # it has returned its permit before
    assert a.queue.take() is None
    a.queue.done(other)


def test_the_number_may_change_while_items_run(clock: ManualClock) -> None:
    """More: those that were refused are woken. Fewer: nothing is handed out until enough are done."""
    budget, (a, b) = _members(clock, 1, 2)
    a.fill(3)
    b.fill(3)
    items = [a.queue.take()]
    assert b.queue.take() is None
    budget.resize(2)
    assert b.woken == 1
    items.append(b.queue.take())
    assert None not in items
    budget.resize(1)
    assert items[0] is not None
    a.queue.done(items[0])
    assert a.queue.take() is None
    assert items[1] is not None
    b.queue.done(items[1])
    assert a.queue.take() is not None


def test_a_queue_may_leave_the_budget_while_its_items_run(clock: ManualClock) -> None:
    """An edit gives it workers of its own: it needs no permit, and what runs returns the old one."""
    _, (a, b) = _members(clock, 1, 2)
    a.fill(2)
    b.fill(1)
    item = a.queue.take()
    assert item is not None
    assert b.queue.take() is None
    a.queue.share_workers(None, a.wake)
    assert a.queue.take() is not None
    a.queue.done(item)
    assert b.queue.take() is not None


def test_threads_never_exceed_the_budget() -> None:
    """Four threads for each of three queues, and all work is done by two at a time."""
    from declctl.kit import SystemClock
    from declctl.kit.keyed_queue import QueueItem
    from declctl.kit.worker_pool import ThreadWorkerPool

    clock, lock = SystemClock(), threading.Lock()
    budget = WorkerBudget(2, clock=clock)
    running, most, left = [0], [0], [300]
    done = threading.Event()
    pools: list[ThreadWorkerPool[int]] = []
    queues: list[KeyedQueue[int]] = []
    for _ in range(3):
        queue: KeyedQueue[int] = KeyedQueue(
            clock=clock, weigh=lambda _: 1, merge=lambda waiting, new, _: [waiting, new], merge_above=1 << 30
        )

        def work(item: QueueItem[int], queue: KeyedQueue[int] = queue) -> bool:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.0005)
            with lock:
                running[0] -= 1
                left[0] -= 1
                if not left[0]:
                    done.set()
            queue.done(item)
            return True

        def recover(item: QueueItem[int], fault: BaseException) -> bool:
            raise fault

        pool = ThreadWorkerPool(queue, work, recover=recover, name="shares", size=4, on_left=lambda: None)
        queue.share_workers(budget, pool.wake)
        queues.append(queue)
        pools.append(pool)
        pool.start()
    for queue, pool in zip(queues, pools, strict=True):
        queue.add_all([(f"k{number}", number) for number in range(100)])
        pool.wake()
    assert done.wait(60.0), left
    assert most[0] <= 2
    for pool in pools:
        pool.dismiss()
        pool.join()
