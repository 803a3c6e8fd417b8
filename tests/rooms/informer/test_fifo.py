"""FIFO: one place for each key, holding its newest object."""

import asyncio

import pytest

from declctl.informer import FIFO, QueueClosed
from tests.rooms.informer.shapes import record


def test_whoever_pops_gets_the_newest_state_once():
    """Two states of one object are one item (client-go 66)."""
    queue = FIFO()
    queue.add(record("a"))
    queue.replace([record("a", 2)], "2")
    assert queue.pop_nowait().resource_version == "2"
    assert queue.pop_nowait() is None
    assert queue.get_by_key("demo/a") is None


def test_a_change_keeps_its_place():
    """An update in the middle of the line stays in the middle (client-go 67)."""
    queue = FIFO()
    for name in ("a", "b", "c"):
        queue.add(record(name))
    queue.update(record("b", 2))
    assert [(r.key, r.resource_version) for r in queue.list()] == [
        ("demo/a", "1"),
        ("demo/b", "2"),
        ("demo/c", "1"),
    ]


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


def test_it_has_synced_when_the_first_list_is_dealt_with():
    """The same truth table as the other queues (client-go 68)."""
    queue = FIFO()
    assert not queue.has_synced
    queue.replace([record("a"), record("b")], "1")
    queue.processed(queue.pop_nowait())
    assert not queue.has_synced
    queue.delete(record("b"))
    assert queue.has_synced


def test_it_has_synced_at_once_when_it_is_filled_by_hand():
    """There is no first list to wait for (client-go 68)."""
    queue = FIFO()
    queue.add(record("a"))
    assert queue.has_synced


def test_pop_waits_and_closing_releases():
    """A waiting pop gets what comes, or QueueClosed (client-go 64)."""

    async def scenario():
        queue = FIFO()
        waiting = asyncio.create_task(queue.pop())
        await asyncio.sleep(0)
        queue.add(record("a"))
        assert (await waiting).key == "demo/a"
        queue.close()
        with pytest.raises(QueueClosed):
            await queue.pop()

    asyncio.run(scenario())
