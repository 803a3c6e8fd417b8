"""The transform of a staged generation in a thread: turns, one after the other, whatever becomes of one."""

import asyncio
import threading

import pytest

from declctl.runtime.caching.managed_informer import StagedTransform
from declctl.runtime.threads import in_thread


def _staged() -> StagedTransform:
    return StagedTransform(lambda obj: obj, what="the transform of pods")


def test_a_turn_for_which_there_was_no_thread_does_not_end_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system has no thread left at that moment: a later list is transformed, and none blocks it."""

    async def scenario() -> None:
        staged = _staged()
        await in_thread(lambda: None, name="t")  # the thread that starts others runs
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _no_thread)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await staged.run(lambda: 1)
        assert not staged.is_running
        async with asyncio.timeout(20):
            assert await staged.run(lambda: 2) == 2

    asyncio.run(scenario())


def test_a_turn_that_is_given_up_before_its_thread_begins_is_over() -> None:
    """The list is begun anew at that moment: the next turn comes."""
    done: list[int] = []

    async def scenario() -> None:
        staged = _staged()
        first = asyncio.ensure_future(staged.run(lambda: done.append(1)))
        await asyncio.sleep(0)  # it has the turn, and asks for a thread, which may have begun by chance
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        async with asyncio.timeout(20):
            await staged.run(lambda: done.append(2))

    asyncio.run(scenario())
    assert done[-1] == 2


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
