"""Reloads that were refused for what no file can mend, such as a missing right: they are tried again."""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.kit import Clock
from declctl.runtime.reloading.changes import RETRIED, Outcome, Result

_FIRST_SECONDS = 10.0
_LONGEST_SECONDS = 300.0
_LOOK_SECONDS = 1.0  # between two looks whether something newer has come, while a refused reload waits


@dataclass(frozen=True, slots=True)
class RetryStatus:
    """A refused reload that is tried again: why it was refused, how often it was retried, when it is next."""

    reason: str
    retries: int
    next_in_seconds: float

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "reason": self.reason,
            "retries": self.retries,
            "nextInSeconds": round(self.next_in_seconds, 1),
        }


class Retried(Protocol):
    """What makes attempts (`Attempts`)."""

    @property
    def is_busy(self) -> bool:
        """Whether an attempt is under way."""
        ...

    async def again(self, digest: str, *, generation: int) -> Outcome | None:
        """Try files of this digest once more; None if `generation` does not run any longer."""
        ...


@dataclass(slots=True)
class _Refused:
    """The refusal of the newest attempt. `due` is on the clock."""

    outcome: Outcome
    retries: int
    due: float


class ReloadRetries:
    """Tries a refused reload again, after 10 s, 20 s, … 5 min, until it or a newer one has another outcome.

    Only reasons that lie outside of the files count (`RETRIED`). A retry that is refused as before is counted
    and is no news. Used on the machinery loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: _Refused | None = None
        self._waits = asyncio.Event()
        self.made = 0  # retries since the start of the process

    def status(self) -> RetryStatus | None:
        """The refused reload that waits; None if there is none."""
        refused = self._refused
        if refused is None:
            return None
        left = max(0.0, refused.due - self._clock.monotonic())
        return RetryStatus(refused.outcome.reason, refused.retries, left)

    def heard(self, outcome: Outcome) -> bool:
        """An attempt has ended; returns whether that is news, and no retry that was refused as before."""
        before = self._refused.outcome if self._refused is not None else None
        self._remember(outcome)
        return before is None or outcome.back or _cause(before) != _cause(outcome)

    async def run(self, attempts: Retried) -> None:
        """Retry what waits, whenever it is due, until cancelled."""
        while True:
            await self._waits.wait()
            refused = self._refused
            if refused is None:
                self._waits.clear()
                continue
            left = refused.due - self._clock.monotonic()
            if left > 0 or attempts.is_busy:
                await self._clock.sleep(min(max(left, 0.0), _LOOK_SECONDS) or _LOOK_SECONDS)
                continue
            outcome = await attempts.again(refused.outcome.bundle_hash, generation=refused.outcome.generation)
            if outcome is not None:
                self.made += 1
            if self._refused is refused:  # its files or its generation are not there any longer
                self._refused = None

    def _remember(self, outcome: Outcome) -> None:
        if outcome.result is Result.SUPERSEDED or outcome.reason == "AttemptedBefore":
            return  # nothing is known that was not known before
        if outcome.back and outcome.result is Result.REFUSED:
            return  # a rollback is not tried again, and says nothing of the files
        refused = self._refused
        if outcome.result is not Result.REFUSED or outcome.reason not in RETRIED:
            self._refused = None
            return
        is_same = refused is not None and refused.outcome.bundle_hash == outcome.bundle_hash
        retries = refused.retries + 1 if refused is not None and is_same else 0
        delay = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** min(retries, 16))
        self._refused = _Refused(outcome, retries, self._clock.monotonic() + delay)
        self._waits.set()


def _cause(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.bundle_hash, outcome.reason, outcome.message
