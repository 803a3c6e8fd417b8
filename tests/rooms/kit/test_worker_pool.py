"""Worker pools: what is raised beside a call ends no worker; and budgets that several queues share."""

import asyncio
import contextlib
import threading

import pytest

from declctl.kit import LoopThread, ManualClock, SystemClock
from declctl.kit.change_queue import ChangeQueue
from declctl.kit.key_queue import QueueItem
from declctl.kit.worker_budget import TURN_SECONDS, WorkerBudget
from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool, end_cancellation, ends_worker

SOON = 10.0  # seconds after which a test that waits for another thread gives up


class Odd(BaseException):
    """What no `except Exception` catches."""


def queue_of(clock: SystemClock | ManualClock) -> ChangeQueue[int]:
    return ChangeQueue(clock=clock, weigh=lambda _: 1, merge=lambda a, b, _: [a, b], merge_above=1 << 30)


class Scene:
    """A pool with one worker, whose work raises for the key `bad`, as a fault of our own would."""

    def __init__(self, raised: type[BaseException], *, recovers: bool = True) -> None:
        self.queue = queue_of(SystemClock())
        self.raised, self.recovers = raised, recovers
        self.faults: list[BaseException] = []
        self.worked: list[str] = []
        self.finished = threading.Event()

    def work(self, item) -> bool:
        if item.key == "bad" and not item.attempts:
            raise self.raised("beside a call")
        self.worked.append(item.key)
        self.queue.done(item)
        if len(self.worked) == (2 if self.recovers else 1):
            self.finished.set()
        return True

    async def work_async(self, item) -> bool:
        await asyncio.sleep(0)
        return self.work(item)

    def recover(self, item, fault) -> bool:
        self.faults.append(fault)
        if not self.recovers:
            raise RuntimeError("no way back")
        self.queue.retry(item, 0.0)
        return True

    def play(self, loop: LoopThread | None) -> None:
        """Let the pool work on the bad key and a good one; `loop` for a pool of tasks."""
        more = {"recover": self.recover, "name": "workers", "on_left": lambda: None}
        if loop is None:
            pool = ThreadWorkerPool(self.queue, self.work, **more)
        else:
            pool = AsyncWorkerPool(self.queue, self.work_async, loop=loop.loop, **more)
        pool.start()
        self.queue.add_all([("bad", 1), ("good", 2)])
        pool.wake()
        assert self.finished.wait(SOON)
        pool.dismiss()


@pytest.fixture(name="loop", params=["threads", "tasks"])
def _loop(request):
    """The loop of a pool of tasks; None for a pool of threads."""
    loop = LoopThread("test-workers").start() if request.param == "tasks" else None
    yield loop
    if loop is not None:
        loop.stop()


@pytest.mark.parametrize("raised", [ValueError, OverflowError, SystemExit, asyncio.CancelledError, Odd])
def test_a_fault_beside_a_call_ends_no_worker(loop, raised):
    """The handler is called for its other keys, and again for the key of the fault."""
    scene = Scene(raised)
    scene.play(loop)
    assert sorted(scene.worked) == ["bad", "good"]
    assert [type(fault) for fault in scene.faults] == [raised]


def test_a_fault_of_the_recovery_ends_no_worker(loop, caplog):
    """One key is held, which the log says, and the others are worked on."""
    scene = Scene(ValueError, recovers=False)
    scene.play(loop)
    assert scene.worked == ["good"]
    assert "an internal fault of declctl: the work on bad has failed" in caplog.text
    assert "no way back" in caplog.text


class Cancelled:
    """A pool with one worker, whose work for the key `bad` cancels the worker's task, or hangs."""

    def __init__(self, cancel=None) -> None:
        self.queue = queue_of(SystemClock())
        self.cancel = cancel or self.hang
        self.hangs = asyncio.Event()
        self.outcomes: list[tuple[str, str]] = []
        self.left = 0
        self.finished = asyncio.Event()

    async def work(self, item) -> bool:
        outcome = "returned"
        try:
            if item.key == "bad":
                await self.cancel()
        except BaseException as error:
            if ends_worker(error):
                raise
            outcome = type(error).__name__
        self.outcomes.append((item.key, outcome))
        self.queue.done(item)
        if item.key == "last":
            self.finished.set()
        return True

    async def hang(self) -> None:
        self.hangs.set()
        await asyncio.Event().wait()

    def recover(self, item, fault) -> bool:
        raise AssertionError from fault

    def leave(self) -> None:
        self.left += 1

    def begin(self, *keys: str) -> AsyncWorkerPool:
        """The pool, on the running loop, with these keys to work on."""
        loop = asyncio.get_running_loop()
        pool = AsyncWorkerPool(
            self.queue, self.work, recover=self.recover, name="tasks", loop=loop, on_left=self.leave
        )
        self.queue.add_all([(key, 1) for key in keys])
        pool.wake()
        return pool


async def _turns() -> None:
    """Whatever can happen now has happened."""
    for _ in range(10):
        await asyncio.sleep(0)


async def _itself() -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def _swallowed() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await _itself()


async def _unseen() -> None:
    asyncio.current_task().cancel()


async def _later() -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    loop.call_soon(lambda: loop.call_soon(lambda: loop.call_soon(task.cancel)))


async def _all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        if task.get_name() == "tasks":
            task.cancel()


async def test_an_item_wakes_one_task_and_a_burst_as_many_as_it_needs() -> None:
    """Eight workers that sleep do not all look for one change; the last one that is woken finds nothing."""
    queue, takes, gate, running, left = queue_of(ManualClock()), [], asyncio.Event(), [], []

    class Counted:
        next_due = staticmethod(queue.next_due)

        def take(self) -> QueueItem[int] | None:
            takes.append(item := queue.take())
            return item

    async def work(item: QueueItem[int]) -> bool:
        running.append(item.key)
        await gate.wait()
        queue.done(item)
        return True

    pool = AsyncWorkerPool(
        Counted(),
        work,
        recover=lambda item, fault: False,
        name="w",
        loop=asyncio.get_running_loop(),
        size=8,
        on_left=lambda: left.append(1),
    )

    async def add(keys: str) -> int:
        takes.clear()
        queue.add_all([(key, 1) for key in keys])
        thread = threading.Thread(target=lambda: [pool.wake() for _ in range(3)])
        thread.start()
        thread.join()  # the loop does not turn meanwhile
        for _ in range(20):
            await asyncio.sleep(0)
        return len(takes)

    assert await add("") == 8
    assert (await add("a"), running) == (2, ["a"])
    assert await add("bcdefghij") == 7
    assert running == list("abcdefgh")
    gate.set()
    assert await add("") >= 10
    assert (running, queue.idle) == (list("abcdefghij"), True)
    pool.dismiss()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(left) == 8


@pytest.mark.parametrize(
    ("cancel", "outcome"),
    [
        (_itself, "CancelledError"),
        (_swallowed, "returned"),
        (_unseen, "returned"),
        (_later, "returned"),
        (_all, "returned"),
    ],
)
def test_user_code_that_cancels_a_worker_ends_its_call_only(cancel, outcome):
    """In whatever way a call cancels the task in which it runs, the handler is called for the next key."""

    async def scenario():
        scene = Cancelled(cancel)
        pool = scene.begin("bad", "good")
        while len(scene.outcomes) < 2 or scene.queue.statistics().running:
            await asyncio.sleep(0)
        await _turns()  # until a later cancellation has reached a worker that waits
        scene.queue.add("last", 3)
        pool.wake()
        await asyncio.wait_for(scene.finished.wait(), SOON)
        assert scene.outcomes == [("bad", outcome), ("good", "returned"), ("last", "returned")]
        assert scene.left == 0
        pool.dismiss()
        await _turns()
        assert scene.left == 1

    asyncio.run(scenario())


def test_a_pool_that_gives_up_its_calls_starts_no_other_worker():
    """The cancellation of the pool ends the call and its worker; what a call leaves reaches no other."""

    async def scenario():
        scene = Cancelled()
        pool = scene.begin("bad", "good")
        await asyncio.wait_for(scene.hangs.wait(), SOON)
        pool.cancel()
        await _turns()
        assert (scene.outcomes, scene.left) == ([], 1)

    asyncio.run(scenario())

    async def scenario():
        counts = []

        async def calls() -> None:
            await _unseen()
            await end_cancellation()
            await asyncio.sleep(0)  # raises nothing
            counts.append(asyncio.current_task().cancelling())

        scene = Cancelled(calls)
        pool = scene.begin("bad", "last")
        await asyncio.wait_for(scene.finished.wait(), SOON)
        assert (counts, scene.outcomes) == ([0], [("bad", "returned"), ("last", "returned")])
        pool.dismiss()

    asyncio.run(scenario())


@pytest.mark.parametrize("busy", [False, True])
def test_the_end_of_the_loop_ends_the_workers(busy):
    """`asyncio.run` returns, and no other worker begins."""
    left = []

    async def scenario():
        scene = Cancelled()
        left.append(scene)
        scene.begin("bad" if busy else "good")
        while not (scene.hangs.is_set() if busy else scene.outcomes):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    (scene,) = left
    assert scene.outcomes == ([] if busy else [("good", "returned")])
    assert scene.left == 1


class Member:
    """A queue in the budget, with how often it was woken."""

    def __init__(self, budget: WorkerBudget, clock: ManualClock) -> None:
        self.woken = 0
        self.queue = queue_of(clock)
        self.queue.share_workers(budget, self.wake)

    def wake(self) -> None:
        self.woken += 1

    def take(self) -> QueueItem[int]:
        """An item, which it gets."""
        item = self.queue.take()
        assert item is not None
        return item

    def is_refused(self) -> bool:
        """Asks, and gets nothing."""
        return self.queue.take() is None

    def fill(self, number: int) -> None:
        self.queue.add_all([(f"k{each}", each) for each in range(number)])


def _members(clock: ManualClock, limit: int, number: int) -> tuple[WorkerBudget, list[Member]]:
    budget = WorkerBudget(limit, clock=clock)
    return budget, [Member(budget, clock) for _ in range(number)]


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


def test_stuck_workers_hold_nobody_up(clock: ManualClock) -> None:
    """After a tenth of a second others go on."""
    _, (a, stuck) = _members(clock, 1, 2)
    a.fill(3)
    stuck.fill(1)
    item = a.take()
    assert stuck.is_refused()
    a.queue.done(item)
    assert a.is_refused()
    assert a.queue.next_due() == pytest.approx(TURN_SECONDS)
    clock.set(TURN_SECONDS)
    assert a.queue.next_due() == 0.0
    item = a.take()
    a.queue.done(item)
    stuck.take()


def test_a_queue_without_work_gives_up_its_turn(clock: ManualClock) -> None:
    """What it waited for was dropped, before or after it was woken: the next one is woken, without a wait."""
    for before in (True, False):
        _, (a, b, c) = _members(clock, 1, 3)
        for member in (a, b, c):
            member.fill(1)
        item = a.take()
        assert b.is_refused()
        assert c.is_refused()
        if before:
            b.queue.clear()
        a.queue.done(item)
        assert (b.woken, c.woken) == ((0, 1) if before else (1, 0))
        b.queue.clear()
        assert c.woken == 1
        c.take()


def test_a_queue_that_may_take_no_more_gives_up_its_turn(clock: ManualClock) -> None:
    """Its own limit was lowered while it waited: the next one is woken, without a wait."""
    _, (a, b, c) = _members(clock, 2, 3)
    a.fill(2)
    b.fill(1)
    c.fill(1)
    _, running = a.take(), b.take()
    assert a.is_refused()
    assert c.is_refused()
    a.queue.max_running = 1
    b.queue.done(running)
    assert (a.woken, c.woken) == (1, 0)
    assert a.is_refused()
    assert c.woken == 1
    c.take()


def test_the_number_and_the_members_may_change_while_items_run(clock: ManualClock) -> None:
    """More: those that were refused are woken. Fewer: nothing is handed out until enough are done.

    A queue that leaves needs no permit, and what runs returns the old one.
    """
    budget, (a, b) = _members(clock, 1, 2)
    a.fill(3)
    b.fill(3)
    first = a.take()
    assert b.is_refused()
    budget.resize(2)
    assert b.woken == 1
    second = b.take()
    budget.resize(1)
    a.queue.done(first)
    assert a.is_refused()
    b.queue.done(second)
    a.take()
    _, (a, b) = _members(clock, 1, 2)
    a.fill(2)
    b.fill(1)
    item = a.take()
    assert b.is_refused()
    a.queue.share_workers(None, a.wake)
    a.take()
    a.queue.done(item)
    b.take()


def test_threads_never_exceed_the_budget() -> None:
    """Four threads for each of three queues, and all work is done by two at a time."""
    clock, lock = SystemClock(), threading.Lock()
    budget = WorkerBudget(2, clock=clock)
    running, most, left = [0], [0], [300]
    done = threading.Event()
    pools: list[ThreadWorkerPool[int]] = []
    queues: list[ChangeQueue[int]] = []
    for _ in range(3):
        queue = queue_of(clock)

        def work(item: QueueItem[int], queue: ChangeQueue[int] = queue) -> bool:
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
