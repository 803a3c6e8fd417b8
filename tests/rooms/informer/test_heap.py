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


def test_the_smallest_comes_first():
    """Whatever the order in which they came (client-go 70)."""
    assert popped(heap(("c", 3), ("a", 1), ("b", 2))) == [("a", 1), ("b", 2), ("c", 3)]


def test_equal_ones_come_in_the_order_they_came():
    """A priority is no reason to overtake one's equals."""
    assert popped(heap(("b", 1), ("a", 1))) == [("b", 1), ("a", 1)]


@pytest.mark.parametrize("order", [0, 9])
def test_one_that_is_put_again_moves_to_where_it_belongs(order):
    """Up or down, and never twice (client-go 71, 76)."""
    queue = heap(("a", 1), ("b", 5), ("c", 7))
    queue.update(("b", order))
    expected = sorted([("a", 1), ("b", order), ("c", 7)], key=lambda item: item[1])
    assert popped(queue) == expected


def test_add_if_not_present_keeps_the_first():
    """A value that is there stays (client-go 74)."""
    queue = heap(("a", 1))
    queue.add_if_not_present(("a", 0))
    queue.add_if_not_present(("b", 2))
    assert popped(queue) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_deleting_leaves_the_order_of_the_rest(gone):
    """Head, middle or tail, by key alone (client-go 75)."""
    queue = heap(("a", 1), ("b", 2), ("c", 3))
    queue.delete(gone)
    assert [key for key, _ in popped(queue)] == [key for key in "abc" if key != gone]


def test_deleting_what_is_not_there_is_an_error():
    """And changes nothing (client-go 75)."""
    queue = heap(("a", 1))
    with pytest.raises(KeyError):
        queue.delete("b")
    assert len(queue) == 1


def test_values_can_be_looked_at():
    """By key, as a list, and the next one without taking it (client-go 77, 79)."""
    queue = heap(("b", 2), ("a", 1))
    assert queue.get_by_key("b") == ("b", 2)
    assert queue.get_by_key("x") is None
    assert queue.peek() == ("a", 1)
    assert sorted(queue.list()) == [("a", 1), ("b", 2)]
    assert sorted(queue.list_keys()) == ["a", "b"]


def test_nothing_can_be_added_after_closing():
    """Every way of adding says so, and a pop of the empty heap does not hang (client-go 73, 78)."""

    async def scenario():
        queue = heap()
        queue.close()
        assert queue.is_closed
        for add in (queue.add, queue.update, queue.add_if_not_present, lambda item: queue.bulk_add([item])):
            with pytest.raises(QueueClosed):
                add(("a", 1))
        with pytest.raises(QueueClosed):
            await queue.pop()

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), max_size=80))
def test_it_is_always_a_sorted_map(items):
    """However often values are put again, each key comes once, with its last value, in order."""
    queue = heap()
    for item in items:
        queue.add(item)
    assert sorted(queue.list()) == sorted(dict(items).items())
    assert len(queue._entries) <= 2 * len(queue) + 17
    found = popped(queue)
    assert sorted(found) == sorted(dict(items).items())
    assert [order for _, order in found] == sorted(order for _, order in found)
