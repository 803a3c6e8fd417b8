"""Work that nobody is in a hurry for rests now and then."""

import asyncio

from declctl.kit import Breath, breathe, breathing


def test_who_has_worked_for_a_while_rests_once(monkeypatch) -> None:
    """Between pieces of work that are shorter than that, nobody loses any time."""
    now, rests = [0.0], []
    monkeypatch.setattr(breathing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(breathing.time, "sleep", rests.append)
    breath = Breath()
    breath()
    assert rests == []
    now[0] += 0.001
    breath()
    breath()
    assert rests == [breathing.REST_SECONDS]


def test_a_loop_deals_with_others_meanwhile() -> None:
    """What is ready runs, and so does what becomes ready by that."""

    async def scenario() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(seen.append, 1))
        await breathe()
        return seen

    assert asyncio.run(scenario()) == [1]
