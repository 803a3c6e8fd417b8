"""Latches: synced, ready and stopped happen once."""

import asyncio

import pytest

from declctl.kit import Latch


def test_nobody_comes_too_late():
    """Who asks before hears when it opens, who asks later hears at once (HasSyncedChecker)."""
    latch, calls = Latch("synced"), []
    latch.on_open(lambda: calls.append("early"))
    assert (latch.is_open, calls) == (False, [])
    latch.open()
    latch.open()
    latch.on_open(lambda: calls.append("late"))
    assert (latch.is_open, calls) == (True, ["early", "late"])


def test_waiters_go_on_when_it_opens_and_later_ones_do_not_wait():
    """`wait_for_cache_sync` returns for everybody."""

    async def scene() -> None:
        latch = Latch()
        tasks = [asyncio.create_task(latch.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert not tasks[1].done()
        latch.open()
        await asyncio.gather(tasks[1], tasks[2])
        await latch.wait()
        assert tasks[0].cancelled()

    asyncio.run(scene())


def test_latch_itself_is_no_answer():
    """`if latch:` would always be true, so it is refused and names the latch."""
    with pytest.raises(TypeError, match=r"latch\.is_open.*synced"):
        bool(Latch("synced"))


def test_who_opens_it_twice_calls_nobody_twice_even_from_within():
    """A callback that opens the latch again does no harm."""
    latch, calls = Latch(), []
    latch.on_open(lambda: (calls.append(1), latch.open()))
    latch.open()
    assert calls == [1]


def test_a_callback_that_raises_harms_nobody(caplog):
    """What waits for `synced` beside it is still woken, and the informer that opens it goes on."""
    latch, calls = Latch("synced of pods"), []

    async def later() -> None:
        calls.append("never")

    def cancelled() -> None:
        raise asyncio.CancelledError

    latch.on_open(lambda: 1 / 0)
    latch.on_open(later)
    latch.on_open(cancelled)
    latch.on_open(lambda: calls.append("after"))
    latch.open()
    assert (latch.is_open, calls) == (True, ["after"])
    assert "a callback of the latch synced of pods raised" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "TypeError: a callback of a latch returned a coroutine" in caplog.text


def test_a_callback_may_let_another_one_be_forgotten():
    """Who is removed while it opens is not told that it has synced."""
    latch, calls = Latch(), []

    def second() -> None:
        calls.append("second")

    latch.on_open(lambda: latch.forget(second))
    latch.on_open(second)
    latch.open()
    assert calls == []
