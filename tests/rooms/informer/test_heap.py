"""Heap: by priority, each key once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.informer import Heap, QueueClosed


def heap(*items):
    made = Heap(key=lambda item: item[0], order=lambda item: item[1])
    made.bulk_add(items)
    return made


def popped(queue):
    found = []
    while (item := queue.pop_nowait()) is not None:
        found.append(item)
    return found


@pytest.mark.client_go(74, 77, 79, "Heap")
def test_values_can_be_looked_at():
    """By key, as a list, and the next one without taking it; one that is there stays if that is wanted."""
    queue = heap(("b", 2), ("a", 1))
    queue.add_if_not_present(("a", 0))
    queue.add_if_not_present(("c", 2))
    assert queue.get_by_key("b") == ("b", 2)
    assert queue.get_by_key("x") is None
    assert queue.peek() == ("a", 1)
    assert sorted(queue.list()) == [("a", 1), ("b", 2), ("c", 2)]
    assert sorted(queue.list_keys()) == ["a", "b", "c"]
    assert len(queue) == 3
    assert popped(queue) == [("a", 1), ("b", 2), ("c", 2)], "equal ones come in the order they came"


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


@pytest.mark.client_go(70, 71, 75, 76, "Heap")
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "update", "delete"]), st.sampled_from("abcdef"), st.integers(0, 9)),
        max_size=80,
    )
)
def test_it_is_always_a_sorted_map(steps):
    """However often values are put again or deleted, each key comes once, with its last value, in order.

    To delete what is not there is an error, and changes nothing.
    """
    queue, held = heap(), {}
    for step, key, order in steps:
        if step != "delete":
            getattr(queue, step)((key, order))
            held[key] = order
        elif held.pop(key, None) is not None:
            queue.delete(key)
        else:
            with pytest.raises(KeyError):
                queue.delete(key)
    assert sorted(queue.list()) == sorted(held.items())
    assert queue.entries <= 2 * len(queue) + 17
    found = popped(queue)
    assert sorted(found) == sorted(held.items())
    assert [order for _, order in found] == sorted(order for _, order in found)
