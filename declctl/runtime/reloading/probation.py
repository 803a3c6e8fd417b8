"""Probation: whether a new generation stays, or the generation before it is committed again.

The calls of the new code are compared with those of the code before. If too many fail, or a handler hangs,
the generation before comes back: it stays loaded for the time of the probation
(`spec.reload.probationPeriod`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from declctl.kit import Clock
from declctl.manifest.model import ReloadSpec
from declctl.runtime.handling.handler_counts import CallTally
from declctl.runtime.handling.slots import Slots
from declctl.runtime.reloading.generation import Generation

_HANGS_SECONDS = 30.0  # a longer call hangs; `hangs_after` has the other bounds
_TIMES_LONGER = 10.0
_SEVERAL = 5  # calls: if all of these fail, no more calls are waited for
_LOOK_SECONDS = 0.25  # between two verdicts


class Verdict(StrEnum):
    """The verdict on a generation so far."""

    UNDECIDED = "Undecided"
    PASSED = "Passed"  # the period is over: the generation stays
    BREACHED = "Breached"  # too many calls fail, or a handler hangs: the generation is replaced


class CallComparison(msgspec.Struct, frozen=True):
    """The calls of a handler on the new generation, beside those on the generation before."""

    new: CallTally
    old: CallTally | None  # None if the generation before had no such handler
    # Calls of the new code that have not returned: the time of their begin, and whether they hold a worker. A
    # call that timed out holds none, unless it keeps its worker.
    under_way: Sequence[tuple[float, bool]] = ()
    old_under_way: Sequence[tuple[float, bool]] = ()  # of the old code
    concurrency: int = 1  # `queue.concurrency`
    timeout: float | None = None  # of the handler, in seconds
    suspended: bool = False  # zombies have all of its workers, so that no further call comes

    @property
    def all_failed(self) -> bool:
        """Whether there were calls, and all have failed."""
        return 0 < self.new.calls == self.new.failed

    @property
    def blocking(self) -> Sequence[float]:
        """The begin of each call under way that keeps the handler from other changes.

        These calls hold a worker. While no call has succeeded, calls that timed out count too.
        """
        return [began for began, holds in self.under_way if holds or self.all_failed]


@dataclass(eq=False)
class ProbationPeriod:
    """The time in which a new generation may be rolled back, with its limits. `verdict` is pure."""

    previous: Generation  # may come back
    policy: ReloadSpec  # of the new generation
    began: float  # on the clock, in seconds
    released: asyncio.Event = field(default_factory=asyncio.Event)  # set: `previous` is retired
    refused: bool = False  # a rollback was refused: no other one is tried unasked

    def verdict(self, each: Mapping[str, CallComparison], *, now: float) -> tuple[Verdict, str]:
        """Judge the calls of each handler, by its name; with BREACHED, returns the reason too.

        With `maxErrorRatio: 1`, or after a refused rollback, neither failing nor hanging calls are judged.
        """
        if not self.refused and self.policy.max_error_ratio < 1:
            why = self._all_together(each) or next(
                (found for name, one in each.items() if (found := self._alone(name, one, now))), ""
            )
            if why:
                return Verdict.BREACHED, why
        over = now - self.began >= self.policy.probation_period
        if over and (self.refused or not any(self._may_hang(one, now) for one in each.values())):
            return Verdict.PASSED, ""
        return Verdict.UNDECIDED, ""

    def hangs_after(self, one: CallComparison) -> float:
        """The seconds after which a call of a handler hangs.

        They are 30 s, or half of the probation if that is less. They are at least the handler's timeout, and
        ten times the longest call of the old code.
        """
        usual = _TIMES_LONGER * one.old.longest if one.old is not None else 0.0
        return max(min(_HANGS_SECONDS, self.policy.probation_period / 2), usual, one.timeout or 0.0)

    def _all_together(self, each: Mapping[str, CallComparison]) -> str:
        """The reason if the calls of all handlers together fail too often; else empty."""
        new = sum((one.new for one in each.values()), CallTally())
        old = sum((one.old for one in each.values() if one.old is not None), CallTally())
        if new.calls < self.policy.min_calls or not self._is_worse(new, old):
            return ""
        failed = what_failed({name: one.new for name, one in each.items()})
        return f"{new} failed, of generation {self.previous.number} {old}: {failed}"

    def _alone(self, name: str, one: CallComparison, now: float) -> str:
        """The reason if one handler hangs or fails too often; else empty, also for a new handler."""
        if one.old is None:
            return ""
        before = f"of generation {self.previous.number}"
        limit, new, old = self.hangs_after(one), one.new, one.old
        hung = sum(now - began > limit for began in one.blocking)
        old_hung = sum(now - began > limit for began, _ in one.old_under_way)
        # All workers hang, and the old code did not do the same.
        if hung >= one.concurrency > old_hung:
            calls = "1 call hangs" if hung == 1 else f"{hung} calls hang"
            took = f"{before} none took longer than {old.longest:.3g} s"
            return f"{name}: {calls} for more than {limit:g} s, and nothing else gets through; {took}"
        was_good = old.calls > 0 and old.ratio <= self.policy.max_error_ratio
        several = min(self.policy.min_calls, _SEVERAL)
        if one.suspended:
            several = 1
        if new.calls >= self.policy.min_calls or (was_good and one.all_failed and new.calls >= several):
            return f"{what_failed({name: new})}; {before} {old}" if self._is_worse(new, old) else ""
        return ""

    def _is_worse(self, new: CallTally, old: CallTally) -> bool:
        """More than `maxErrorRatio` fail, and more than with the old code: else a rollback is no use."""
        return new.ratio > max(self.policy.max_error_ratio, old.ratio)

    def _may_hang(self, one: CallComparison, now: float) -> bool:
        """Whether calls that began within the period may still hang; the verdict waits for them."""
        end, limit = self.began + self.policy.probation_period, self.hangs_after(one)
        begun = [began for began in one.blocking if began < end]
        return one.old is not None and len(begun) >= one.concurrency and any(now - b <= limit for b in begun)


def what_failed(each: Mapping[str, CallTally]) -> str:
    """The handlers that failed, the worst first: `notify 25 of 25 calls (default/a: ValueError: no)`."""
    failed = sorted(((name, t) for name, t in each.items() if t.failed), key=lambda e: -e[1].failed)
    return "; ".join(f"{name} {tally} ({tally.last_error})" for name, tally in failed)


class Probation:
    """Judges the active generation in its probation period, if it has one. Used on the machinery loop."""

    def __init__(self, slots: Slots, *, clock: Clock) -> None:
        self.period: ProbationPeriod | None = None
        self._slots = slots
        self._clock = clock
        self._has_period = asyncio.Event()  # set while there is a `period`

    @property
    def previous(self) -> Generation | None:
        """The generation that may come back; None without a probation."""
        return None if self.period is None else self.period.previous

    def begin(self, old: Generation, policy: ReloadSpec, *, back: bool) -> asyncio.Event | None:
        """Begin the probation of the generation that has replaced `old`; none after a rollback (`back`).

        If `old` may come back, returns the event that releases it for retirement.
        """
        period, self.period = self.period, None
        self._has_period.clear()
        if back or not policy.probation_period:
            if period is not None:
                period.released.set()
            return None
        now = self._clock.monotonic()
        self._has_period.set()
        if period is None:
            self.period = ProbationPeriod(old, policy, began=now)
            return self.period.released
        # `old` was on probation itself: the last generation that is known to be good stays, and `old` goes.
        self.period = ProbationPeriod(period.previous, policy, began=now, released=period.released)
        return None

    def passed(self) -> None:
        """End the probation: the generation that runs stays, and the one before is retired."""
        if self.period is not None:
            self.period.released.set()
        self.period = None
        self._has_period.clear()

    async def run(
        self, active: Callable[[], Generation], roll_back: Callable[[str], Awaitable[object]]
    ) -> None:
        """Judge the `active` generation while it is on probation, until cancelled.

        `roll_back` commits the previous generation again; its argument is the reason.
        """
        while True:
            await self._has_period.wait()
            verdict, why = self._verdict(active())
            if verdict is Verdict.PASSED:
                self.passed()
            elif verdict is Verdict.BREACHED:
                await roll_back(why)
            await self._clock.sleep(_LOOK_SECONDS)

    def _verdict(self, active: Generation) -> tuple[Verdict, str]:
        if self.period is None:  # it has ended since the event was set
            return Verdict.UNDECIDED, ""
        comparisons = self._comparisons(self.period.previous, active)
        return self.period.verdict(comparisons, now=self._clock.monotonic())

    def _comparisons(self, kept: Generation, active: Generation) -> Mapping[str, CallComparison]:
        found = dict[str, CallComparison]()
        for name, binding in active.bindings.items():
            slot, before = self._slots.get(name), kept.bindings.get(name)
            if slot is None:
                continue
            under_way, plan = slot.under_way, binding.plan
            found[name] = CallComparison(
                binding.tally.without_inherited(kept.number),
                None if before is None else before.tally,
                under_way(binding),
                () if before is None else under_way(before),
                concurrency=plan.queue.concurrency,
                timeout=plan.timeout,
                suspended=slot.is_suspended,
            )
        return found
