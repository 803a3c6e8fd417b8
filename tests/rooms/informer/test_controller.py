"""Controller: a reflector, a queue and a function, without a cache."""

import asyncio
import contextlib
import gc

import pytest

from declctl.informer import Config, Controller, FakeControllerSource, QueueClosed, RealFIFO
from declctl.informer.queues.real_fifo import Replacement, SyncAll
from declctl.kit import ManualClock
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.lines import entries
from tests.rooms.informer.shapes import fresh_projection, pod, rest


def bench(process, queue=None, **more):
    clock, source = ManualClock(), FakeControllerSource(projection=fresh_projection())
    config = Config(
        queue=RealFIFO() if queue is None else queue, source=source, process=process, clock=clock, **more
    )
    return clock, source, Controller(config)


@contextlib.asynccontextmanager
async def running(work, clock):
    task = asyncio.create_task(work())
    await rest(clock)
    yield
    await rest(clock)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.client_go("Low-level controller")
async def test_changes_reach_the_function_in_order():
    """First all there is, then what happens; when it is stopped, who still waits is released."""
    seen = []
    clock, source, controller = bench(lambda batch: seen.extend(entries(batch)))
    source.add(pod("a"))
    async with running(controller.run, clock):
        assert controller.has_synced
        source.add(pod("b"))
        source.delete("demo/a")
    assert isinstance(seen[0], Replacement)
    assert [f"{d.type} {d.key}" for d in seen[1:]] == ["Added demo/b", "Deleted demo/a"]
    assert controller.last_sync_resource_version == "3"
    with pytest.raises(QueueClosed):
        await controller.queue.pop_batch(1)


async def test_a_list_that_was_processed_is_not_kept():
    """Objects that are deleted after a first sync leave the memory, however long no change comes."""
    sizes = []
    clock, source, controller = bench(lambda batch: sizes.append(len(batch.records)))
    source.add(pod("seen-only-here"))
    async with running(controller.run, clock):
        assert sizes == [1]
        gc.collect()
        lists = [value for value in gc.get_objects() if type(value) is Replacement]
        assert not any(record.key == "demo/seen-only-here" for kept in lists for record in kept.records)


async def test_it_has_synced_only_when_the_function_is_through():
    """A first list that is being processed is not in yet; others run meanwhile."""
    seen = []

    def slowly(batch):
        for step in range(3):
            seen.append((step, controller.has_synced))
            yield

    clock, source, controller = bench(slowly)
    source.add(pod("a"))
    async with running(controller.run, clock):
        assert controller.has_synced
    assert seen == [(0, False), (1, False), (2, False)]


@pytest.mark.client_go("RealFIFO unlocked processing")
async def test_the_queue_is_filled_while_a_batch_is_processed():
    """Whoever feeds the queue never waits for processing, however much has come meanwhile."""
    seen, waiting = [], []

    def slowly(batch):
        seen.append(len(entries(batch)))
        for _ in range(5):
            yield
            waiting.append(len(controller.queue))

    clock, source, controller = bench(slowly)
    async with running(controller.run, clock):
        source.add(pod("seen-only-here"))
        await asyncio.sleep(0)
        for number in range(1500):
            source.add(pod(f"p{number}"))
        await rest(clock)
    assert sum(seen[1:]) == 1501
    assert max(waiting) > 2 * 500, "more than two batches came in while one was processed"


@pytest.mark.client_go("Low-level controller", "RealFIFO metrics")
async def test_figures_say_what_waits_and_how_long_processing_took():
    """Each object of a list counts, bookmarks and resyncs do not: they are steps, but no changes.

    Times are those of the steps, not of what others did between.
    """

    def process(batch):
        clock.set(0.03)
        yield
        clock.set(0.05)

    clock, source, controller = bench(process)
    for name in "abc":
        source.add(pod(name))
    async with running(controller.run, clock):
        source.add(pod("d"))
        await rest(clock)
        figures = controller.statistics()
        assert (figures.queued, figures.batches, figures.entries, figures.slow) == (0, 2, 4, 0)
        assert figures.seconds == pytest.approx(0.16)
        assert figures.longest == pytest.approx(0.05)
        controller.queue.bookmark("9")
        controller.queue.resync()
    figures = controller.statistics()
    assert (figures.queued, figures.batches, figures.entries) == (0, 4, 4)
    controller.queue.bookmark("10")
    assert controller.statistics().queued == 1


@pytest.mark.client_go("Queue trace")
@pytest.mark.parametrize(
    ("took", "waiting", "slow"), [(0.1, 50, 0), (0.11, 10, 0), (0.11, 11, 1), (5.0, 3, 0)]
)
async def test_a_slow_step_is_told_while_others_wait(caplog, took, waiting, slow):
    """More than 100 ms while more than 10 entries wait: counted, and logged with its size."""

    def process(batch):
        if len(batch) == 2:
            controller.queue.extend(deltas(waiting))
            clock.set(took)

    clock, _, controller = bench(process, name="pods")
    clock.set(-clock.monotonic())  # at zero a tenth of a second is exact
    async with running(controller.process_loop, clock):
        controller.queue.extend(deltas(2))
    figures = controller.statistics()
    assert figures.slow == slow
    told = "pods: a step of processing took 0.11 s, of 2 entries, while 11 waited (1 slow steps so far)"
    assert [line for line in caplog.messages if "a step of" in line] == [told][:slow]


@pytest.mark.client_go("Queue trace")
async def test_slow_steps_that_go_on_are_told_once_a_minute(caplog):
    """An index function that is always slow does not fill the log; the count says how often."""

    def process(batch):
        clock.set(1.0)
        controller.queue.extend(deltas(20))

    clock, _, controller = bench(process, name="pods")
    controller.queue.extend(deltas(20))
    task = asyncio.create_task(controller.process_loop())
    while controller.statistics().batches < 100:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert controller.statistics().slow >= 100
    told = [line for line in caplog.messages if "slow steps so far" in line]
    assert [line.rpartition("(")[2] for line in told] == ["1 slow steps so far)", "61 slow steps so far)"]


def deltas(count):
    return [Delta(DeltaType.DELETED, f"demo/p{number}", None) for number in range(count)]


@pytest.mark.client_go("Low-level controller")
async def test_run_ends_when_the_queue_was_closed():
    """What is queued is processed, the watch is closed, and nobody is told anything new.

    `process_loop` alone serves whoever fills the queue, without a reflector.
    """
    seen = []
    clock, source, controller = bench(lambda batch: seen.extend(entries(batch)), full_resync_period=10)
    source.add(pod("a"))
    task = asyncio.create_task(controller.run())
    await rest(clock)
    controller.queue.close()
    await task
    assert (len(seen), source.open_watches) == (1, 0)

    _, source, controller = bench(lambda batch: seen.extend(entries(batch)))
    controller.queue.extend(deltas(3))
    controller.queue.close()
    await controller.process_loop()
    assert [delta.key for delta in seen[1:]] == ["demo/p0", "demo/p1", "demo/p2"]
    assert source.requests == []


@pytest.mark.client_go("Low-level controller")
@pytest.mark.parametrize(("answers", "resyncs"), [(None, 4), ([True, False, False, True], 2)])
async def test_a_resync_is_asked_for_every_period_if_it_should(answers, resyncs):
    """`should_resync` is asked each time; without it each time is one."""
    seen = []
    should_resync = None if answers is None else iter(answers).__next__
    clock, _, controller = bench(
        lambda batch: seen.extend(entries(batch)), full_resync_period=10, should_resync=should_resync
    )
    async with running(controller.run, clock):
        await clock.advance(45)
    assert sum(isinstance(entry, SyncAll) for entry in seen) == resyncs
