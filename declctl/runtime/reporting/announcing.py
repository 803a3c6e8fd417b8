"""What has come of an attempt: written down, and told to the log, to status and to hooks."""

from collections.abc import Callable
from typing import Protocol

from declctl.kit import breathe
from declctl.runtime.log import Log
from declctl.runtime.reloading.changes import Kind
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.outcome import Outcome, Result
from declctl.runtime.reporting.history import History
from declctl.runtime.reporting.observer import Observer

_HOOK_SECONDS = 60.0


class Told(Protocol):
    """Who calls the hooks of the active generation: a reloader."""

    active: Generation | None

    async def tell(self, outcome: Outcome, *, timeout: float) -> None:
        """Call `declctl_reload` with the outcome."""
        ...


class Announcer:
    """Tells everybody of outcomes. Used on the machinery loop.

    `restart` is called, with the reasons, after an attempt that has found what only a new process does.
    """

    def __init__(
        self,
        reloader: Told,
        observer: Observer,
        *,
        history: History,
        log: Log,
        restart: Callable[[str], None],
    ) -> None:
        self._reloader = reloader
        self._observer = observer
        self._history = history
        self._log = log
        self._restart = restart

    async def attempted(self, outcome: Outcome, asked: bool) -> None:
        """An attempt has ended; `asked` says whether somebody waits for it.

        The observer hears of it before anything else can run: no status has the generation without its
        condition.
        """
        was_stale = self._observer.is_stale
        self._observer.reloaded(outcome)
        self._history.add(outcome)
        await breathe()
        self._say(outcome, asked=asked)
        if was_stale and outcome.result is Result.UNCHANGED and not self._observer.is_stale:
            number = outcome.generation
            self._log.info(f"generation {number} is what the files say again", generation=number)
        told = (Result.APPLIED, Result.REFUSED, Result.ROLLED_BACK)
        if self._reloader.active is not None and outcome.result in told:
            await self._reloader.tell(outcome, timeout=_HOOK_SECONDS)
        steps = [str(step) for step in outcome.steps if step.kind is Kind.RESTART]
        if outcome.reason == "RestartRequired":
            steps.append(outcome.message)
        if steps:
            self._restart("; ".join(steps))

    def not_attempted(self, outcome: Outcome) -> None:
        """Nothing was tried: who asked for it is told, and nobody else."""
        self._history.add(outcome)
        self._log.warning(outcome.line, reason=outcome.reason, suggestion=outcome.advice)

    def _say(self, outcome: Outcome, *, asked: bool) -> None:
        if outcome.result is Result.APPLIED:
            log = self._log.warning if outcome.unplanned else self._log.info
            log(outcome.line, generation=outcome.generation)
            for warning in outcome.diagnostics:
                self._log.warning(str(warning), suggestion=warning.suggestion)
        elif outcome.result is Result.ROLLED_BACK:
            log = self._log.info if asked else self._log.error
            log(outcome.line, generation=outcome.generation, reason=outcome.reason, suggestion=outcome.advice)
        elif outcome.result is Result.REFUSED:
            self._log.error(
                outcome.line,
                reason=outcome.reason,
                suggestion=outcome.advice,
                diagnostics=outcome.diagnostics,
            )
        elif asked or outcome.result is Result.SUPERSEDED:
            self._log.info(outcome.line)
