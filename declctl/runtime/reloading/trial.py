"""Whether a new generation stays: how often its calls fail, beside those of the generation before. Pure."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from declctl.manifest.model import ReloadSpec
from declctl.runtime.handling.figures import Tally
from declctl.runtime.reloading.generation import Generation


class Verdict(StrEnum):
    """What is known of a generation so far."""

    UNDECIDED = "Undecided"
    PASSED = "Passed"  # the time is over: it stays
    BREACHED = "Breached"  # too many of its calls fail: it goes


@dataclass(eq=False)
class Kept:
    """A generation that was replaced and may come back; it is retired once `released` is set."""

    generation: Generation
    released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Trial:
    """The probation of the generation that runs. `began` is a moment of the clock.

    `refused` says that going back was tried and could not be done: it is not tried again by itself.
    """

    kept: Kept
    policy: ReloadSpec
    began: float
    refused: bool = False

    def verdict(self, new: Tally, old: Tally, *, now: float) -> Verdict:
        """Judge the calls of the new generation by those of the old one.

        It has failed if more than `maxErrorRatio` of its calls have, and more of them than of the old
        one's: where both fail alike, going back would not help.
        """
        bad = new.ratio > max(self.policy.max_error_ratio, old.ratio)
        if bad and new.calls >= self.policy.min_calls and not self.refused:
            return Verdict.BREACHED
        if now - self.began >= self.policy.probation_period:
            return Verdict.PASSED
        return Verdict.UNDECIDED


def tallies(generation: Generation) -> Mapping[str, Tally]:
    """What came of the calls of a generation, by handler."""
    return {name: place.binding.tally for name, place in generation.places.items()}


def total(each: Mapping[str, Tally]) -> Tally:
    """All of them together."""
    return sum(each.values(), Tally())


def what_failed(each: Mapping[str, Tally]) -> str:
    """Which handlers failed and how, the worst first: `notify 25 of 25 calls: default/a: ValueError: no`."""
    failed = sorted(((name, t) for name, t in each.items() if t.failed), key=lambda e: -e[1].failed)
    return "; ".join(f"{name} {tally} ({tally.last_error})" for name, tally in failed)
