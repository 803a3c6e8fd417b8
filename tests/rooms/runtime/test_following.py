"""Until handlers may be moved: what is waited for, what is done about it, and for how long (G15)."""

import asyncio

import pytest

from declctl.runtime.handling.moves import CacheLags, until_ready
from tests.rooms.runtime.moving_caches import MadeUpCache, proof_of


class _Server(MadeUpCache):
    """A cache that a list brings up to date with another one, if a list is `served`."""

    def __init__(self, source: MadeUpCache, *, served: bool = True, fields: str = "") -> None:
        super().__init__(seen=9, fields=fields)
        self._source = source
        self.served = served

    def request_relist(self) -> None:
        super().request_relist()
        if self.served:
            self.at(int(self._source.last_sync_resource_version))


async def _through(clock, waiting: asyncio.Task, seconds: float, each=lambda: None) -> float:
    """Let time pass, and let something happen every 5 ms, until it is done; returns the seconds."""
    began = clock.monotonic()
    end = began + seconds
    while not waiting.done() and clock.monotonic() < end:
        each()
        await clock.advance(0.005)
    return clock.monotonic() - began


async def test_a_cache_that_has_not_shown_its_version_is_listed_at_once(clock) -> None:
    """One list, and the handler may go."""
    target = _Server(source := MadeUpCache(seen=10))
    waiting = asyncio.create_task(until_ready((), [proof_of(source, target)], {}, clock=clock, timeout=60))
    assert await _through(clock, waiting, 1) < 0.1
    assert target.relists_requested == 1


async def test_a_cache_that_does_not_catch_up_refuses_the_reload(clock, record) -> None:
    """A list every two seconds at most; the fault says which cache. Handlers that run go on meanwhile."""
    target = _Server(source := MadeUpCache(seen=10), served=False)
    waiting = asyncio.create_task(until_ready((), [proof_of(source, target)], {}, clock=clock, timeout=9))
    lasted = await _through(clock, waiting, 20)
    with pytest.raises(CacheLags, match=r"tell would go back in time: after 9 s .* is at version 9"):
        await waiting
    assert 9 <= lasted < 9.1
    assert target.relists_requested == 5
    target = _Server(source := MadeUpCache(seen=9), served=False)
    versions = iter(range(10, 10_000))

    def change() -> None:
        version = next(versions)
        source.at(version)
        source.put(record("a", version=version))  # which asserts that it is not held

    proof = proof_of(source, target)
    change()
    waiting = asyncio.create_task(until_ready((), [proof], {}, clock=clock, timeout=10))
    await _through(clock, waiting, 20, change)
    with pytest.raises(CacheLags, match="is at version 9"):
        await waiting


async def test_a_chase_ends_by_holding_what_is_followed(record, clock) -> None:
    """Objects change all the time, and the new cache does not see them: for a moment the old one is held."""
    target = _Server(source := MadeUpCache(seen=9), fields="spec.nodeName=a")
    held = []

    def change() -> None:
        if source.pauses:
            held.append(clock.monotonic())
        else:
            version = int(source.last_sync_resource_version) + 1
            source.at(version)
            source.put(record("a", version=version))

    proof = proof_of(source, target)
    change()
    waiting = asyncio.create_task(until_ready((), [proof], {}, clock=clock, timeout=60))
    assert 2 <= await _through(clock, waiting, 10, change) < 4
    await waiting
    assert source.pauses == 0
    assert len(held) <= 2
    assert target.relists_requested <= 2
