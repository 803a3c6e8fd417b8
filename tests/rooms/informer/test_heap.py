"""Heap: by priority, each key once."""

import asyncio

import pytest

from declctl.informer import Heap, QueueClosed


def heap(*items):
    made = Heap(key=lambda item: item[0], order=lambda item: item[1])
    made.bulk_add(items)
    return made


@pytest.mark.client_go("Heap")
async def test_whoever_waits_gets_the_smallest_of_what_comes():
    """Many values that come at once are ordered before anybody is given one."""
    queue = heap()
    waiting = asyncio.create_task(queue.pop())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.bulk_add([("c", 3), ("a", 1), ("b", 2)])
    assert await waiting == ("a", 1)


@pytest.mark.client_go(73, "Heap")
async def test_closing_an_empty_heap_releases_everybody_who_waits():
    """Nobody hangs; neither does who comes later."""
    queue = heap()
    waiting = [asyncio.create_task(queue.pop()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [QueueClosed] * 3
    with pytest.raises(QueueClosed):
        await queue.pop()


@pytest.mark.client_go(78, "Heap")
def test_nothing_can_be_added_after_closing():
    """Every way of adding says so, and leaves what is there."""
    queue = heap(("b", 2))
    queue.close()
    assert queue.is_closed
    adds = (queue.add, queue.update, queue.add_if_not_present, lambda item: queue.bulk_add([item]))
    for add in adds:
        for key in ("a", "b"):
            with pytest.raises(QueueClosed):
                add((key, 1))
    assert queue.list() == [("b", 2)]


def test_what_was_deleted_is_forgotten():
    """Without a pop in between: the heap does not grow with values that come and go."""
    queue = heap(*((str(number), number) for number in range(40)))
    for number in range(40):
        queue.delete(str(number))
    assert queue.entries <= 17


async def test_a_value_that_has_no_order_is_not_in_the_heap():
    """What was put before it is there, and whoever waits gets it."""
    queue = Heap(key=str, order=float)
    waiting = asyncio.create_task(queue.pop())
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="could not convert"):
        queue.bulk_add(["2", "none", "1"])
    assert await waiting == "2"
    assert len(queue) == 0
    assert queue.pop_nowait() is None
