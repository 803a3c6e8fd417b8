"""FIFO: one place for each key, holding its newest object."""

import asyncio

import pytest

from declctl.informer import FIFO, QueueClosed
from tests.rooms.informer.lines import fill_from_two_sides, sides
from tests.rooms.informer.shapes import record


@pytest.mark.client_go(64, "FIFO")
def test_each_producer_is_heard_in_its_own_order():
    """Two that add at the same time, and one who takes: nothing is lost, nobody's order changes."""

    async def scenario():
        queue = FIFO()
        filling = asyncio.create_task(fill_from_two_sides(queue.add, 50))
        popped = [(await queue.pop()).key for _ in range(100)]
        await filling
        assert sides(popped) == {"left": list(range(50)), "right": list(range(50))}

    asyncio.run(scenario())


@pytest.mark.client_go(66, "FIFO")
def test_whoever_pops_gets_the_newest_state_once():
    """Two states of one object are one item."""
    queue = FIFO()
    queue.add(record("a"))
    queue.replace([record("a", 2)], "2")
    assert queue.pop_nowait().resource_version == "2"
    assert queue.pop_nowait() is None
    assert queue.get_by_key("demo/a") is None


@pytest.mark.client_go(67)
def test_a_change_keeps_its_place():
    """An update in the middle of the line stays in the middle."""
    queue = FIFO()
    for name in ("a", "b", "c"):
        queue.add(record(name))
    queue.update(record("b", 2))
    assert [(r.key, r.resource_version) for r in queue.list()] == [
        ("demo/a", "1"),
        ("demo/b", "2"),
        ("demo/c", "1"),
    ]


@pytest.mark.client_go("FIFO")
def test_a_delete_takes_it_out():
    """Nobody gets what is gone; deleting what isn't there is harmless."""
    queue = FIFO()
    queue.add(record("a"))
    queue.delete(record("a"))
    queue.delete(record("a"))
    assert len(queue) == 0
    assert list(queue.list_keys()) == []


def test_a_replacement_keeps_places_and_drops_the_rest():
    """What is listed stays in line, the rest leaves (client-go 87)."""
    queue = FIFO()
    for name in ("a", "b", "c"):
        queue.add(record(name))
    queue.replace([record("d"), record("c", 2), record("a")], "9")
    assert queue.list_keys() == ["demo/a", "demo/c", "demo/d"]


@pytest.mark.client_go(68, "FIFO")
def test_it_has_synced_when_the_first_list_is_dealt_with():
    """Not before; who waits for that is told once. What is deleted needs no dealing with."""
    queue = FIFO()
    opened = []
    queue.synced.on_open(lambda: opened.append(True))
    assert not queue.has_synced
    queue.replace([record("a"), record("b"), record("c")], "1")
    first, second = queue.pop_nowait(), queue.pop_nowait()
    queue.processed(first)
    queue.delete(record("c"))
    assert not queue.has_synced
    assert opened == []
    queue.processed(second)
    assert queue.has_synced
    assert opened == [True]


@pytest.mark.client_go(68)
def test_it_has_synced_at_once_when_it_is_filled_by_hand():
    """There is no first list to wait for, and no list after that takes it back."""
    for fill in ("add", "update", "delete"):
        queue = FIFO()
        getattr(queue, fill)(record("a"))
        assert queue.has_synced
        queue.replace([record("b")], "1")
        assert queue.has_synced


@pytest.mark.client_go(68)
def test_an_empty_first_list_has_synced_at_once():
    """There is nothing to wait for."""
    queue = FIFO()
    queue.replace([], "1")
    assert queue.has_synced


def test_what_a_second_list_takes_out_is_not_waited_for():
    """It will never be popped; what was popped still has to be dealt with."""
    queue = FIFO()
    queue.replace([record("a"), record("b"), record("c")], "1")
    first = queue.pop_nowait()
    queue.replace([record("c", 2)], "2")
    queue.processed(queue.pop_nowait())
    assert not queue.has_synced
    queue.delete(record("a", 3))
    assert not queue.has_synced
    queue.processed(first)
    assert queue.has_synced


@pytest.mark.client_go("FIFO")
def test_pop_waits_and_closing_releases():
    """A waiting pop gets what comes, or QueueClosed; what is left is handed out first."""

    async def scenario():
        queue = FIFO()
        waiting = asyncio.create_task(queue.pop())
        await asyncio.sleep(0)
        queue.add(record("a"))
        assert (await waiting).key == "demo/a"
        waiting = [asyncio.create_task(queue.pop()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.add(record("b"))
        queue.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [getattr(result, "key", type(result)) for result in results] == [
            "demo/b",
            QueueClosed,
            QueueClosed,
        ]

    asyncio.run(scenario())
