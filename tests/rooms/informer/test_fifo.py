"""FIFO: one place for each key, holding its newest object."""

import pytest

from declctl.informer import FIFO
from tests.rooms.informer.lines import play
from tests.rooms.informer.shapes import record


@pytest.mark.client_go(66, 67, "FIFO")
@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (["add a 1", "list a 2"], "a 2"),
        (["add a 1", "add b 1", "add c 1", "update b 2"], "a 1, b 2, c 1"),
        (["add a 1", "delete a 1", "delete a 1"], ""),
        (["add a 1", "add b 1", "add c 1", "list d 1 c 2 a 1"], "a 1, c 2, d 1"),
    ],
    ids=[
        "two states are one item",
        "a change keeps its place",
        "a delete takes it out",
        "a list drops the rest",
    ],
)
def test_each_object_has_one_place_and_its_newest_state(steps, left):
    """Whoever pops gets it once, in the order in which the places were taken (client-go 87)."""
    queue = FIFO()
    play(queue, *steps)
    expected = [tuple(item.split()) for item in left.split(", ") if item]
    assert [key.removeprefix("demo/") for key in queue.list_keys()] == [name for name, _ in expected]
    assert len(queue) == len(expected)
    for name, version in expected:
        assert queue.get_by_key(f"demo/{name}").resource_version == version
        assert queue.pop_nowait().resource_version == version
        assert queue.get_by_key(f"demo/{name}") is None
    assert queue.pop_nowait() is None


@pytest.mark.client_go(68, "FIFO")
def test_it_has_synced_when_the_first_list_is_dealt_with():
    """Not before; who waits for that is told once. What is taken out meanwhile is not waited for."""
    queue, opened = FIFO(), []
    queue.synced.on_open(lambda: opened.append(True))
    assert not queue.has_synced
    play(queue, "list a 1 b 1 c 1 d 1")
    first, second = queue.pop_nowait(), queue.pop_nowait()
    queue.processed(first)
    queue.delete(record("c"))
    play(queue, "list e 2")
    queue.delete(record("b", 3))
    assert (queue.has_synced, opened) == (False, [])
    queue.processed(second)
    assert (queue.has_synced, opened) == (True, [True])

    empty = FIFO()
    play(empty, "list")
    assert empty.has_synced, "there is nothing to wait for"
