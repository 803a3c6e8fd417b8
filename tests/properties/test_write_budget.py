"""The budget of writes under any arrivals and cancellations: handlers take turns, and no token is lost."""

import asyncio
from collections import Counter, defaultdict, deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from declctl.kit import ManualClock
from declctl.writes import WriteBudget

ARRIVE = st.tuples(st.sampled_from("AAABCD"), st.integers(1, 20))
CANCEL = st.tuples(st.sampled_from(["cancel", "race"]), st.integers(0, 100))
PASS = st.tuples(st.just("pass"), st.integers(1, 4))


class World:
    """Writes of a few handlers, of which each tells when it gets its token: one in a second, two at first."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.budget = WriteBudget(1, 2, clock=self.clock)
        self.lines: defaultdict[str, deque[asyncio.Task[None]]] = defaultdict(deque)
        self.granted, self.tokens = 0, 2
        self.tasks: list[asyncio.Task[None]] = []
        self.came: dict[asyncio.Task[None], float] = {}
        # By handler that waits: the tokens of others since it came, or since its own last one.
        self.overtaken: defaultdict[str, Counter[str]] = defaultdict(Counter)

    async def write(self, handler: str) -> None:
        await self.budget.take(handler)
        self.granted += 1
        assert self.lines[handler].popleft() is asyncio.current_task()
        self.overtaken.pop(handler, None)
        for other in (each for each, line in self.lines.items() if line and each != handler):
            self.overtaken[other][handler] += 1
            assert self.overtaken[other][handler] == 1, f"{handler} has two turns, and {other} none"

    async def step(self, what: str, number: int) -> None:
        waiting = [(handler, task) for handler, line in self.lines.items() for task in line]
        before, expected = self.granted, 0
        if what in ("pass", "race"):
            passing = asyncio.ensure_future(self.clock.advance(1))
            if what == "race" and waiting:
                while len(waiting) == sum(self.counted().values()):
                    await asyncio.sleep(0)
                # The token was given in this turn of the loop, and the write gives up before its next one.
                shown = self.counted()
                handler = next(each for each, line in self.lines.items() if len(line) != shown.get(each, 0))
                self.give_up(handler, self.lines[handler][0])
                waiting.pop()
            await passing
            expected = int(bool(waiting))
            self.tokens = min(2, self.tokens + 1 - expected)
        elif what != "cancel":
            arrived = [asyncio.ensure_future(self.write(what)) for _ in range(number)]
            self.tasks += arrived
            self.lines[what] += arrived
            self.came |= dict.fromkeys(arrived, self.clock.monotonic())
            expected = min(self.tokens, number)
            self.tokens -= expected
        elif waiting:
            self.give_up(*waiting[number % len(waiting)])
        await self.clock.settle()
        assert self.granted - before == expected
        assert self.counted() == {handler: len(line) for handler, line in self.lines.items() if line}
        now = self.clock.monotonic()
        for each in self.budget.waiting():
            assert each.oldest_seconds == now - self.came[self.lines[each.handler][0]]

    def counted(self) -> dict[str, int]:
        return {each.handler: each.waiting for each in self.budget.waiting()}

    def give_up(self, handler: str, task: asyncio.Task[None]) -> None:
        self.lines[handler].remove(task)
        if not self.lines[handler]:
            self.overtaken.pop(handler, None)
        task.cancel()


@pytest.mark.client_go(262, "Token bucket")
@given(steps=st.lists(ARRIVE | CANCEL | PASS, max_size=30))
@example(steps=[("A", 4), ("race", 0)])
@example(steps=[("A", 300), ("B", 1), ("pass", 2)])
def test_handlers_take_turns_and_no_token_is_lost(steps: list[tuple[str, int]]) -> None:
    """While a handler waits, each other one gets one token at most; its own writes go in their order.

    Each second one write goes on, also after waits that were given up. In the end nothing waits or is left.
    """

    async def scenario() -> None:
        world = World()
        for what, number in steps:
            for _ in range(number if what == "pass" else 1):
                await world.step(what, number)
        for _ in range(sum(map(len, world.lines.values()))):
            await world.step("pass", 1)
        assert (list(world.budget.waiting()), world.clock.next_wake) == ([], None)
        for ended in await asyncio.gather(*world.tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                assert ended is None, ended

    asyncio.run(scenario())
