"""Worker pools: what is raised beside a call ends no worker."""

import asyncio
import contextlib
import threading

import pytest

from declctl.kit import KeyedQueue, LoopThread, SystemClock
from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool, ends_worker, settle_cancellation

SOON = 10.0  # seconds after which a test that waits for another thread gives up


class Odd(BaseException):
    """What no `except Exception` catches."""


class Scene:
    """A pool with one worker, whose work raises for the key `bad`, as a fault of our own would."""

    def __init__(self, raised: type[BaseException], *, recovers: bool = True) -> None:
        self.queue: KeyedQueue[int] = KeyedQueue(
            clock=SystemClock(), weigh=lambda _: 1, merge=lambda a, b, _: [a, b], merge_above=1 << 30
        )
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
    """A pool with one worker, whose work cancels the worker's task in some way for the key `bad`."""

    def __init__(self, cancel) -> None:
        self.queue: KeyedQueue[int] = KeyedQueue(
            clock=SystemClock(), weigh=lambda _: 1, merge=lambda a, b, _: [a, b], merge_above=1 << 30
        )
        self.cancel = cancel
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

    def recover(self, item, fault) -> bool:
        raise AssertionError from fault

    def leave(self) -> None:
        self.left += 1

    def pool(self) -> AsyncWorkerPool:
        """On the running loop."""
        loop = asyncio.get_running_loop()
        return AsyncWorkerPool(
            self.queue, self.work, recover=self.recover, name="tasks", loop=loop, on_left=self.leave
        )


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
        pool = scene.pool()
        scene.queue.add_all([("bad", 1), ("good", 2)])
        pool.wake()
        while len(scene.outcomes) < 2 or scene.queue.statistics().running:
            await asyncio.sleep(0)
        for _ in range(10):  # until a later cancellation has reached a worker that waits
            await asyncio.sleep(0)
        scene.queue.add("last", 3)
        pool.wake()
        await asyncio.wait_for(scene.finished.wait(), SOON)
        assert scene.outcomes == [("bad", outcome), ("good", "returned"), ("last", "returned")]
        assert scene.left == 0
        pool.dismiss()
        for _ in range(10):
            await asyncio.sleep(0)
        assert scene.left == 1

    asyncio.run(scenario())


def test_a_pool_that_gives_up_its_calls_starts_no_other_worker():
    """The cancellation of the pool itself ends the call and its worker."""

    async def scenario():
        began = asyncio.Event()

        async def hang() -> None:
            began.set()
            await asyncio.Event().wait()

        scene = Cancelled(hang)
        pool = scene.pool()
        scene.queue.add_all([("bad", 1), ("good", 2)])
        pool.wake()
        await asyncio.wait_for(began.wait(), SOON)
        pool.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (scene.outcomes, scene.left) == ([], 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("busy", [False, True])
def test_the_end_of_the_loop_ends_the_workers(busy):
    """`asyncio.run` returns, and no other worker begins."""
    left = []

    async def scenario():
        began = asyncio.Event()

        async def hang() -> None:
            began.set()
            await asyncio.Event().wait()

        scene = Cancelled(hang)
        left.append(scene)
        pool = scene.pool()
        scene.queue.add_all([("bad" if busy else "good", 1)])
        pool.wake()
        while not (began.is_set() if busy else scene.outcomes):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    (scene,) = left
    assert scene.outcomes == ([] if busy else [("good", "returned")])
    assert scene.left == 1


def test_what_a_call_leaves_behind_does_not_reach_the_next_call():
    """For a worker that makes several calls for one item."""

    async def scenario():
        counts = []

        async def calls() -> None:
            await _unseen()
            await settle_cancellation()
            await asyncio.sleep(0)  # raises nothing
            counts.append(asyncio.current_task().cancelling())

        scene = Cancelled(calls)
        pool = scene.pool()
        scene.queue.add_all([("bad", 1), ("last", 2)])
        pool.wake()
        await asyncio.wait_for(scene.finished.wait(), SOON)
        assert (counts, scene.outcomes) == ([0], [("bad", "returned"), ("last", "returned")])
        pool.dismiss()

    asyncio.run(scenario())
