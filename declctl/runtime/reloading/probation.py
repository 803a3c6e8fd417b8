"""Whether a new generation stays: how often its calls fail, or hang, beside those of the one before. Pure."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from declctl.manifest.model import ReloadSpec
from declctl.runtime.handling.binding import CallTally
from declctl.runtime.reloading.generation import Generation

_HANGS_SECONDS = 30.0  # a call that takes longer hangs, unless the old code took a tenth of it or more
_TIMES_LONGER = 10.0
_SEVERAL = 5  # calls; where all of them fail, no more are waited for


class Ruling(StrEnum):
    """What is known of a generation so far."""

    UNDECIDED = "Undecided"
    PASSED = "Passed"  # the time is over: it stays
    BREACHED = "Breached"  # too many of its calls fail, or a handler hangs: it goes


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a handler does on the new generation, and how it did on the one before.

    `old` is None where there was no such handler. `under_way` has the calls of the new code that have not
    returned: when each began, and whether it keeps a worker from other changes, which one that timed out
    does not; `old_under_way` those of the old code. `at_once` is `queue.concurrency`, `timeout` the
    handler's own, in seconds.
    """

    new: CallTally
    old: CallTally | None
    under_way: Sequence[tuple[float, bool]] = ()
    old_under_way: Sequence[tuple[float, bool]] = ()
    at_once: int = 1
    timeout: float | None = None

    @property
    def all_failed(self) -> bool:
        """Whether it was called, and no call has succeeded."""
        return 0 < self.new.calls == self.new.failed

    @property
    def blocking(self) -> Sequence[float]:
        """When the calls under way began that keep the handler from other changes.

        Those are the calls that hold a worker. While no call has succeeded, those that timed out count too.
        """
        return [began for began, holds in self.under_way if holds or self.all_failed]


@dataclass(eq=False)
class Trial:
    """The probation of the generation that runs."""

    before: Generation  # was replaced, and may come back
    policy: ReloadSpec  # of the generation on trial
    began: float  # on the clock, in seconds
    released: asyncio.Event = field(default_factory=asyncio.Event)  # set: `before` is retired
    refused: bool = False  # going back was tried and is impossible: it is not tried again by itself

    def verdict(self, each: Mapping[str, Conduct], *, now: float) -> tuple[Ruling, str]:
        """Judge the handlers of the new generation, by name; for one that is breached also says why.

        `maxErrorRatio` of 1 judges nothing: no share is greater.
        """
        if not self.refused and self.policy.max_error_ratio < 1:
            why = self._all_together(each) or next(
                (found for name, one in each.items() if (found := self._alone(name, one, now))), ""
            )
            if why:
                return Ruling.BREACHED, why
        over = now - self.began >= self.policy.probation_period
        if over and (self.refused or not any(self._may_hang(one, now) for one in each.values())):
            return Ruling.PASSED, ""
        return Ruling.UNDECIDED, ""

    def hangs_after(self, one: Conduct) -> float:
        """After how many seconds a call of a handler hangs.

        That is 30 s, or half of the probation if that is less; but no less than its own timeout, nor than
        ten times the longest call of the old code.
        """
        usual = _TIMES_LONGER * one.old.longest if one.old is not None else 0.0
        return max(min(_HANGS_SECONDS, self.policy.probation_period / 2), usual, one.timeout or 0.0)

    def _all_together(self, each: Mapping[str, Conduct]) -> str:
        new = sum((one.new for one in each.values()), CallTally())
        old = sum((one.old for one in each.values() if one.old is not None), CallTally())
        if new.calls < self.policy.min_calls or not self._is_worse(new, old):
            return ""
        failed = what_failed({name: one.new for name, one in each.items()})
        return f"{new} failed, of generation {self.before.number} {old}: {failed}"

    def _alone(self, name: str, one: Conduct, now: float) -> str:
        """Why a handler has failed, whatever the others do; it has to have been there before."""
        if one.old is None:
            return ""
        before = f"of generation {self.before.number}"
        limit, new, old = self.hangs_after(one), one.new, one.old
        hung = sum(now - began > limit for began in one.blocking)
        old_hung = sum(now - began > limit for began, _ in one.old_under_way)
        if hung >= one.at_once > old_hung:
            calls = "1 call hangs" if hung == 1 else f"{hung} calls hang"
            took = f"{before} none took longer than {old.longest:.3g} s"
            return f"{name}: {calls} for more than {limit:g} s, and nothing else gets through; {took}"
        was_good = old.calls > 0 and old.ratio <= self.policy.max_error_ratio
        several = min(self.policy.min_calls, _SEVERAL)
        if new.calls >= self.policy.min_calls or (was_good and one.all_failed and new.calls >= several):
            return f"{what_failed({name: new})}; {before} {old}" if self._is_worse(new, old) else ""
        return ""

    def _is_worse(self, new: CallTally, old: CallTally) -> bool:
        """More than `maxErrorRatio` fail, and more than of the old code's: else going back would not help."""
        return new.ratio > max(self.policy.max_error_ratio, old.ratio)

    def _may_hang(self, one: Conduct, now: float) -> bool:
        """Whether calls that began within the period may turn out to hang: they are waited for."""
        end, limit = self.began + self.policy.probation_period, self.hangs_after(one)
        begun = [began for began in one.blocking if began < end]
        return one.old is not None and len(begun) >= one.at_once and any(now - b <= limit for b in begun)


def what_failed(each: Mapping[str, CallTally]) -> str:
    """Which handlers failed and how, the worst first: `notify 25 of 25 calls: default/a: ValueError: no`."""
    failed = sorted(((name, t) for name, t in each.items() if t.failed), key=lambda e: -e[1].failed)
    return "; ".join(f"{name} {tally} ({tally.last_error})" for name, tally in failed)
