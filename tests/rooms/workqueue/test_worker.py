"""Workers: they call, retry and give up as they are told."""

import asyncio

import pytest

from declctl.kit import ManualClock
from declctl.objects import Cause, Requeue
from declctl.workqueue import ItemExponentialFailureRateLimiter, Priority, RateLimitingQueue, run_workers


class Odd(BaseException):
    """What test tools and other frameworks derive from."""


class Scene:
    """A queue with workers on a manual clock, and what was heard of failures."""

    def __init__(self, reconcile, *, concurrency=1, max_retries=3):
        self.clock = ManualClock()
        self.queue = RateLimitingQueue(clock=self.clock, limiter=ItemExponentialFailureRateLimiter(1, 60))
        self.failures = []
        self.workers = lambda: run_workers(
            self.queue,
            reconcile,
            concurrency=concurrency,
            max_retries=max_retries,
            on_failure=lambda item, error, delay: self.failures.append((item, str(error), delay)),
        )

    @classmethod
    def of(cls, outcome, **options):
        """Its calls return or raise what `outcome(item, number)` says: the number is that of the call."""

        async def reconcile(item):
            scene.seen.append(item)
            scene.moments.append(scene.clock.monotonic())
            if isinstance(found := outcome(item, len(scene.seen)), BaseException):
                raise found
            return found

        scene = cls(reconcile, **options)
        scene.seen, scene.moments = [], []
        return scene

    async def __aenter__(self):
        self._task = asyncio.ensure_future(self.workers())
        await self.clock.settle()
        return self

    async def __aexit__(self, *_):
        self.queue.shut_down()
        await self._task


async def test_a_failure_is_tried_again_and_then_given_up():
    """Each failure is told with the time to the next try, the last one without."""
    async with Scene.of(lambda *_: ValueError("no"), max_retries=2) as scene:
        scene.queue.add("a")
        await scene.clock.advance(100)
    assert scene.seen == ["a"] * 3
    assert scene.failures == [("a", "no", 1), ("a", "no", 2), ("a", "no", None)]
    assert scene.queue.num_requeues("a") == 0


async def test_success_forgets_the_failures():
    """The next failure waits as briefly as the first."""
    async with Scene.of(lambda _, number: ValueError(f"{number}") if number % 2 else None) as scene:
        scene.queue.add("a")
        await scene.clock.advance(10)
        scene.queue.add("a")
        await scene.clock.advance(10)
    assert scene.failures == [("a", "1", 1), ("a", "3", 1)]


@pytest.mark.parametrize("result", [5.0, Requeue(after=5)])
async def test_a_result_asks_for_another_run(result):
    """Seconds, or a reconciler's Requeue, are waited for, as a controller's RequeueAfter."""
    async with Scene.of(lambda *_: result) as scene:
        scene.queue.add("a")
        await scene.clock.advance(11)
    assert [moment - scene.moments[0] for moment in scene.moments] == [0, 5, 10]
    assert scene.failures == []


@pytest.mark.client_go(315)
async def test_an_item_that_comes_again_has_its_priority():
    """Items of a first sync that are looked at again every few seconds don't delay what changes."""
    async with Scene.of(lambda item, _: 5.0 if scene.seen.count(item) == 1 else None) as scene:
        scene.queue.add("old", priority=Priority.BACKGROUND)
        await scene.clock.settle()
        scene.queue.add("live")
        await scene.clock.settle()
        await scene.clock.advance(5)
    assert scene.seen == ["old", "live", "live", "old"]


@pytest.mark.client_go(318)
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_as_many_items_are_worked_on_as_there_are_workers(concurrency):
    """Never more, and never one item twice at a time."""
    active, most = set(), []

    async def reconcile(item):
        assert item not in active
        active.add(item)
        most.append(len(active))
        await scene.clock.sleep(1)
        active.discard(item)

    async with Scene(reconcile, concurrency=concurrency) as scene:
        for item in "abcde":
            scene.queue.add(item)
        await scene.clock.settle()
        scene.queue.add("a")
        await scene.clock.advance(20)
    assert max(most) == concurrency
    assert len(most) == 6


async def test_shutdown_finishes_what_waits():
    """What was added before is worked on, and then the workers leave."""
    async with Scene.of(lambda *_: None) as scene:
        for item in "abc":
            scene.queue.add(item)
    assert scene.seen == ["a", "b", "c"]


@pytest.mark.client_go("Workers")
@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, GeneratorExit, Odd])
async def test_nothing_that_is_raised_ends_a_worker(raised):
    """Items would wait for ever, and `run_workers` return as if the queue had been shut down."""
    async with Scene.of(lambda _, number: raised("of its own") if number == 1 else None) as scene:
        scene.queue.add("a")
        scene.queue.add("b")
        await scene.clock.advance(10)
    assert scene.seen == ["a", "b", "a"]
    assert scene.failures == [("a", f"it raised {raised.__name__}: of its own", 1)]


async def test_a_worker_that_is_cancelled_by_what_it_calls_is_replaced(caplog):
    """The queue is worked on, and the log of the item's next attempt says what the first was for."""
    cause, seen = Cause("Added", "pods", "a", "Initial"), []

    async def reconcile(item):
        seen.append((item, scene.queue.causes_of(item), scene.queue.priority_of(item)))
        if len(seen) == 1:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    async with Scene(reconcile) as scene:
        scene.queue.add("a", cause=cause, priority=Priority.BACKGROUND)
        scene.queue.add("b", priority=Priority.BACKGROUND)
        await scene.clock.advance(10)
    first, other, second = seen
    assert first == second == ("a", (cause,), Priority.BACKGROUND)
    assert other[0] == "b"
    assert [item for item, _, _ in scene.failures] == ["a"]
    assert "another one takes its place" in caplog.text


async def test_workers_that_are_cancelled_end_and_hold_no_item():
    """The queue can be drained, and worked on by others."""
    begun = asyncio.Event()

    async def reconcile(item):
        begun.set()
        await asyncio.sleep(3600)

    scene = Scene(reconcile)
    task = asyncio.ensure_future(scene.workers())
    scene.queue.add("a")
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    await asyncio.wait_for(scene.queue.shut_down_with_drain(), 5)
    assert task.cancelled()
    assert scene.failures == []


@pytest.mark.client_go("Workers")
async def test_by_default_an_item_is_tried_for_ever_and_each_failure_is_logged(caplog):
    """A reconcile function that fails for a day works again when its reason is gone."""
    tried = []

    async def reconcile(item):
        tried.append(item)
        if len(tried) < 40:
            raise ValueError("not yet")

    clock = ManualClock()
    queue = RateLimitingQueue(clock=clock, limiter=ItemExponentialFailureRateLimiter(1, 60))
    workers = asyncio.ensure_future(run_workers(queue, reconcile))
    queue.add("a")
    await clock.advance(3600)
    queue.shut_down()
    await workers
    assert len(tried) == 40
    assert len(caplog.records) == 39
    assert "the work on a failed, the next attempt is in 60 s" in caplog.text
    assert "ValueError: not yet" in caplog.text


@pytest.mark.parametrize("result", ["5", object(), True, [], 10**400, float("nan"), Requeue])
async def test_a_result_that_is_none_is_a_failure_of_that_call(result):
    """The workers go on with other items, and the item is tried again, also when it fails later."""
    async with Scene.of(lambda _, number: [result, None, ValueError("no"), None][number - 1]) as scene:
        scene.queue.add("a")
        scene.queue.add("b")
        await scene.clock.advance(1)
        await scene.clock.advance(2)
    assert scene.seen == ["a", "b", "a", "a"]
    assert [(item, delay) for item, _, delay in scene.failures] == [("a", 1), ("a", 2)]
    assert scene.failures[0][1].startswith("reconcile returned ")
    assert scene.queue.delayed == 0


@pytest.mark.parametrize("endless", ["0 is returned", "items are added"])
def test_functions_that_never_wait_let_other_tasks_run(endless):
    """A probe is answered, and a shutdown is possible, while there is always something to do."""
    calls = 0

    async def reconcile(item):
        nonlocal calls
        calls += 1
        assert calls < 10_000, "no other task has run"
        if endless == "0 is returned":
            return 0
        queue.add(item + 1)
        return None

    queue = RateLimitingQueue(clock=ManualClock())

    async def scenario():
        workers = asyncio.ensure_future(run_workers(queue, reconcile, on_failure=fail))
        queue.add(0)
        while not calls:
            await asyncio.sleep(0)
        queue.shut_down()
        await workers

    def fail(item, error, delay):
        raise error

    asyncio.run(scenario())
    assert calls < 1000
