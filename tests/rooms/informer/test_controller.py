"""Controller: a reflector, a queue and a function, without a cache."""

import asyncio

import pytest

from declctl.informer import (
    Config,
    Controller,
    DeltaFIFO,
    FakeControllerSource,
    Indexer,
    QueueClosed,
    RealFIFO,
)
from declctl.informer.queues import Replacement
from declctl.kit import ManualClock
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.shapes import fresh_projection, pod, rest


def bench(process, queue=None, **more):
    clock, source = ManualClock(), FakeControllerSource(projection=fresh_projection())
    config = Config(
        queue=RealFIFO() if queue is None else queue, source=source, process=process, clock=clock, **more
    )
    return clock, source, Controller(config)


def test_changes_reach_the_function_in_order():
    """First all there is, then what happens (client-go 164)."""

    async def scenario():
        seen = []
        clock, source, controller = bench(seen.extend)
        source.add(pod("a"))
        task = asyncio.create_task(controller.run())
        await rest(clock)
        assert controller.has_synced
        source.add(pod("b"))
        source.delete("demo/a")
        await rest(clock)
        task.cancel()
        await asyncio.wait([task])
        assert isinstance(seen[0], Replacement)
        assert [(d.type, d.key) for d in seen[1:]] == [
            (DeltaType.ADDED, "demo/b"),
            (DeltaType.DELETED, "demo/a"),
        ]
        assert controller.last_sync_resource_version == "3"

    asyncio.run(scenario())


@pytest.mark.parametrize("objects", [(), ("a",)])
def test_the_accumulating_queue_serves_as_well(objects):
    """It syncs, also when there is nothing, and gives Replaced for what there is (client-go 22)."""

    async def scenario():
        store, seen = Indexer(), []

        def process(batch):
            deltas = [entry for entry in batch if isinstance(entry, Delta)]
            seen.extend(deltas)
            store.extend(deltas)

        clock, source, controller = bench(process, DeltaFIFO(store.known))
        for name in objects:
            source.add(pod(name))
        task = asyncio.create_task(controller.run())
        await rest(clock)
        task.cancel()
        await asyncio.wait([task])
        assert controller.has_synced
        assert [d.type for d in seen] == [DeltaType.REPLACED for _ in objects]

    asyncio.run(scenario())


def test_it_has_synced_only_when_the_function_is_through():
    """A first list that is being processed is not in yet; others run meanwhile."""

    async def scenario():
        seen = []

        def slowly(batch):
            for step in range(3):
                seen.append((step, controller.has_synced))
                yield

        clock, source, controller = bench(slowly)
        source.add(pod("a"))
        task = asyncio.create_task(controller.run())
        await rest(clock)
        task.cancel()
        await asyncio.wait([task])
        assert seen == [(0, False), (1, False), (2, False)]
        assert controller.has_synced

    asyncio.run(scenario())


def test_what_the_function_raises_reaches_the_runner():
    """It is not swallowed (client-go 166)."""

    async def scenario():
        def breaks(batch):
            raise ZeroDivisionError

        _, source, controller = bench(breaks)
        source.add(pod("a"))
        with pytest.raises(ZeroDivisionError):
            await controller.run()
        assert source.open_watches == 0

    asyncio.run(scenario())


def test_stopping_closes_the_queue():
    """Who still waits for it is released."""

    async def scenario():
        clock, _, controller = bench(lambda batch: None)
        task = asyncio.create_task(controller.run())
        await rest(clock)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(QueueClosed):
            await controller.queue.pop_batch(1)

    asyncio.run(scenario())
