"""What every queue does alike: producers keep their order, and closing loses nothing and nobody."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from declctl.informer import FIFO, DeltaFIFO, QueueClosed, RealFIFO, key_of_entry
from tests.rooms.informer.shapes import record

QUEUES: dict[str, Callable[..., Any]] = {"RealFIFO": RealFIFO, "DeltaFIFO": DeltaFIFO, "FIFO": FIFO}
OF_DELTAS = pytest.mark.parametrize("make", [RealFIFO, DeltaFIFO])


@pytest.fixture(params=QUEUES)
def queue(request: pytest.FixtureRequest) -> Any:
    return QUEUES[request.param]()


@pytest.mark.client_go(32, 51, "DeltaFIFO close", "FIFO")
async def test_closing_releases_everybody_who_waits(queue):
    """Nobody hangs on a queue that will never be filled, whoever waited first."""
    waiting = [asyncio.create_task(queue.pop()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not queue.is_closed
    queue.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [QueueClosed] * 3
    assert queue.is_closed


@pytest.mark.client_go("DeltaFIFO close", "FIFO")
async def test_what_is_left_is_handed_out_after_closing(queue):
    """Closing loses nothing; then every pop says that it is closed."""
    queue.add(record("a"))
    queue.add(record("b"))
    queue.close()
    assert [key_of_entry(await queue.pop()) for _ in range(2)] == ["demo/a", "demo/b"]
    for pop in (queue.pop, queue.pop, getattr(queue, "pop_batch", None)):
        if pop is not None:
            with pytest.raises(QueueClosed):
                await (pop() if pop == queue.pop else pop(10))


@pytest.mark.client_go("FIFO")
async def test_whoever_waits_gets_what_comes(queue):
    waiting = asyncio.create_task(queue.pop())
    await asyncio.sleep(0)
    queue.add(record("a"))
    assert key_of_entry(await waiting) == "demo/a"


@OF_DELTAS
async def test_whoever_waits_for_a_batch_gets_all_that_has_come(make):
    queue = make()
    waiting = asyncio.create_task(queue.pop_batch(10))
    await asyncio.sleep(0)
    queue.add(record("a"))
    queue.add(record("b"))
    assert [entry.key for entry in await waiting] == ["demo/a", "demo/b"]


@pytest.mark.client_go(68, "RealFIFO HasSynced", "DeltaFIFO HasSynced")
@pytest.mark.parametrize("fill", ["add", "update", "delete"])
@pytest.mark.parametrize("transformer", [None, lambda made: made])
@pytest.mark.parametrize("kind", QUEUES)
def test_single_changes_first_mean_that_there_is_no_first_list(kind, fill, transformer):
    """Filled by hand it has synced at once, if only by a delete that is dropped; no list takes it back."""
    queue = QUEUES[kind]() if kind == "FIFO" else QUEUES[kind](transformer=transformer)
    if kind != "FIFO":
        queue.bookmark("1")
        queue.extend([])
    assert not queue.has_synced
    getattr(queue, fill)(record("a"))
    assert queue.has_synced
    queue.replace([record("a", 2)], "2")
    assert queue.has_synced
