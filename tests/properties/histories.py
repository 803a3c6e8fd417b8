"""Histories of a world: made by chance, played, and shortened when they go wrong."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.properties.informer_world import ACTIONS, Beginning, Step, World, instrumented

_INDEXES_EVERY = 5  # steps: they are looked at as a whole
_RARELY = 0.25  # how likely it is that a kind of step is not in a history at all
_ALWAYS = {"change", "settle", "wait", "recover"}


@dataclass(frozen=True, slots=True)
class History:
    """How a world begins, and what happens to it."""

    beginning: Beginning
    steps: Sequence[Step]

    def lines(self) -> Iterator[str]:
        """The history as text that can be read, and pasted into a test."""
        yield f"History({self.beginning!r}, ["
        for name, arguments in self.steps:
            yield f"    ({name!r}, {dict(arguments)!r}),"
        yield "])"


@dataclass(slots=True)
class Figures:
    """What many histories did, added up."""

    histories: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)

    def lines(self) -> Iterator[str]:
        """One for each group of figures."""
        yield f"{self.histories:,} histories, {self.steps.total():,} steps"
        for group in (self.happened, self.steps):
            yield ", ".join(f"{name} {count:,}" for name, count in group.most_common())


def by_chance(seed: int, queue: Literal["RealFIFO", "DeltaFIFO"], length: int) -> History:
    """A history of `length` steps. Some kinds of steps are left out, so that others come close together."""
    chance = random.Random(f"{queue} {seed}")
    names = [name for name in ACTIONS if name in _ALWAYS or chance.random() > _RARELY]
    weights = [ACTIONS[name].weight for name in names]
    steps: list[Step] = []
    for name in chance.choices(names, weights, k=length):
        choices = ACTIONS[name].choices
        steps.append((name, {what: chance.choice(offered) for what, offered in choices.items()}))
    return History(Beginning.by_chance(chance, queue), steps)


def play(history: History, figures: Figures | None = None) -> None:
    """Let it happen, and look after each step; raises AssertionError when something is wrong."""
    with instrumented():
        asyncio.run(_play(history, figures or Figures()))


async def _play(history: History, figures: Figures) -> None:
    world = World(history.beginning)
    try:
        for number, step in enumerate(history.steps):
            await world.do(step)
            world.check()
            if number % _INDEXES_EVERY == 0:
                world.check_indexes()
        await world.calm_down()
        world.check()
        world.check_indexes()
        world.check_at_rest()
        world.count(figures.happened)
        await world.stop()
        world.check_after()
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    figures.histories += 1
    figures.steps += world.done


def shortest(history: History) -> History:
    """The history without what is not needed to make it go wrong."""
    steps, size = list(history.steps), len(history.steps) // 2
    while size:
        start = 0
        while start < len(steps):
            shorter = steps[:start] + steps[start + size :]
            if goes_wrong(History(history.beginning, shorter)):
                steps = shorter
            else:
                start += size
        size //= 2
    return History(history.beginning, steps)


def goes_wrong(history: History) -> bool:
    """Whether playing it fails."""
    try:
        play(history)
    except Exception:
        return True
    return False
