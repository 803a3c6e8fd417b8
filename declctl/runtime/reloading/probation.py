"""Probation: looks at the calls of new code for a while, and goes back if they fail or hang."""

from collections.abc import Awaitable, Callable

from declctl.kit import Clock
from declctl.runtime.reloading.outcome import Outcome, Result
from declctl.runtime.reloading.reload import Reloader
from declctl.runtime.reloading.trial import Verdict

_LOOK_SECONDS = 0.25


class Probation:
    """Ends the trial of each new generation, one way or the other. Used on the machinery loop.

    `finished` hears the outcome when the generation before has come back, or could not.
    """

    def __init__(
        self, reloader: Reloader, *, finished: Callable[[Outcome, bool], Awaitable[None]], clock: Clock
    ) -> None:
        self._reloader = reloader
        self._finished = finished
        self._clock = clock

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Judge the generation that runs, if it is on trial."""
        trial = self._reloader.trial
        if trial is None:
            return
        verdict, why = trial.verdict(self._reloader.conduct(trial), now=self._clock.monotonic())
        if verdict is Verdict.PASSED:
            self._reloader.passed(trial)
        elif verdict is Verdict.BREACHED:
            del trial  # nothing may hold the generation that goes while its outcome is told
            outcome = (await self._reloader.rollback(why=why, asked=False)).as_rollback()
            if outcome.result is not Result.UNCHANGED:
                await self._finished(outcome, False)
