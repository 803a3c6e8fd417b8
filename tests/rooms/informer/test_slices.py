"""Work in slices: the first one at once, the rest while the loop does other things too."""

import asyncio

from declctl.informer.informer import Slices


def test_what_needs_one_step_is_done_at_once_and_needs_no_loop():
    """A handler can be registered before anything runs."""
    done, slices = [], Slices()
    slices.start(iter(lambda: done.append("all"), None))
    assert done == ["all"]
    assert len(slices) == 0


async def test_the_rest_is_done_while_others_run():
    """The loop is never held up for longer than a slice."""
    steps = []

    def work(name):
        for number in range(3):
            steps.append(f"{name}{number}")
            yield

    slices = Slices()
    slices.start(work("a"))
    slices.start(work("b"))
    assert steps == ["a0", "b0"]
    while len(slices):
        await asyncio.sleep(0)
    assert steps == ["a0", "b0", "a1", "b1", "a2", "b2"]


async def test_what_is_not_done_can_be_left_undone():
    """A stopped informer does not go on replaying."""
    steps = []

    def work():
        while True:
            steps.append("step")
            yield

    slices = Slices()
    slices.start(work())
    slices.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert steps == ["step"]
    assert len(slices) == 0
