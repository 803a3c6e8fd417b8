"""Worker pools: what is raised beside a call ends no worker."""

import asyncio
import threading

import pytest

from declctl.kit import KeyedQueue, LoopThread, SystemClock
from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool

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
