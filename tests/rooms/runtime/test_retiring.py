"""Sweeps after code was retired: one after the other, and the next one whatever has become of the last."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from declctl.kit import ManualClock
from declctl.runtime.checking.loaded_code import Registrations
from declctl.runtime.handling.plugin_metrics import PluginMetrics
from declctl.runtime.reloading import retirement
from declctl.runtime.reloading.retirement import Retirement

_TURNS = 20  # of the loop: more than a sweep without threads takes


class _Code:
    """The code of a generation: `is_alive` says whether a collection would find anything of it."""

    def __init__(self, number: int) -> None:
        self.number, self.requirements, self.loop, self.loaded_code = number, (), None, self
        self.prefix, self.is_alive, self.registrations = f"g{number}", True, Registrations()
        self.isolated = None

    def trace(self) -> "_Code":
        return self

    def close(self) -> None:
        """Forgotten."""


@pytest.fixture
def retired(log, monkeypatch: pytest.MonkeyPatch) -> Retirement:
    """What retires generations, and sweeps at once; its holders are not looked for."""

    async def leave(*_: object, **__: object) -> bool:
        return True

    def nothing(*_: object, **__: object) -> tuple[Any, ...]:
        return ()

    caches = SimpleNamespace(all=nothing, drop_indexes=nothing, release=nothing)
    around: Any = SimpleNamespace(
        caches=caches, loops=SimpleNamespace(all=nothing, keep=nothing), metrics=PluginMetrics(log=log)
    )
    owners: Any = SimpleNamespace(leave=leave, all=nothing)
    monkeypatch.setattr(retirement, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(retirement, "SWEEP_INTERVAL", 0.0)
    monkeypatch.setattr(retirement, "give_memory_back", nothing)
    monkeypatch.setattr(retirement, "find_holders", lambda *_, **__: ("a thread",))
    return Retirement(around, owners, None, None, clock=ManualClock(), log=log)  # pyright: ignore[reportArgumentType]


async def _end(retired: Retirement, code: Any) -> None:
    await retired.end(code, timeout=1.0, linger=0.0)


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def test_a_sweep_that_takes_long_does_not_say_what_a_later_one_knows_better(
    retired: Retirement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another generation is retired while old code is looked for, and the first one's code goes."""
    first, second, gate, at_once = _Code(1), _Code(2), asyncio.Event(), 0
    most = 0

    async def in_thread(call: Callable[[], object], *, name: str) -> object:
        nonlocal at_once, most
        found = call()
        at_once += 1
        most = max(most, at_once)
        if at_once == 1 and not gate.is_set():
            await gate.wait()
        at_once -= 1
        return found

    monkeypatch.setattr(retirement, "in_thread", in_thread)
    await _end(retired, first)
    await _turns()
    assert at_once == 1
    first.is_alive = second.is_alive = False
    await _end(retired, second)
    await _turns()
    gate.set()
    await _turns()
    assert (list(retired.retained), most) == ([], 1)
    await retired.cancel()


async def test_a_sweep_that_fails_is_told_and_made_again(
    retired: Retirement, log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has no thread left at that moment: old code is found out a minute later."""
    faults = [RuntimeError("can't start new thread")]

    async def in_thread(call: Callable[[], object], *, name: str) -> object:
        if faults:
            raise faults.pop()
        return call()

    monkeypatch.setattr(retirement, "in_thread", in_thread)
    await _end(retired, _Code(1))
    await _turns()
    assert [(old.generation, old.held_by) for old in retired.retained] == [(1, ("a thread",))]
    await retired.cancel()
    assert "RuntimeError: can't start new thread; it is tried again" in log.events("warning")[0]
