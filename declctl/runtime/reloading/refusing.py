"""Why nothing was done, in words: what was wrong with a bundle, or why there is no way back."""

from declctl.errors import ReloadRefused
from declctl.runtime.checking.check import Checked
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.outcome import NOT_IN_MEMORY, Outcome, Result
from declctl.runtime.reloading.trial import Trial

_REASONS = {
    "DCL042": "SyntaxError",
    "DCL043": "ImportFailed",
    "DCL044": "ImportFailed",
    "DCL045": "ImportTimeout",
    "DCL087": "RestartRequired",
}


def refusal(checked: Checked) -> ReloadRefused:
    """The errors as one refusal: the first in words, the others counted."""
    errors = checked.errors
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = f"{first.file}:{first.line}: {first.message}{more}"
    return ReloadRefused(_REASONS.get(first.code, "Invalid"), message, checked.diagnostics)


def not_in_memory(number: int | None, *, active: Generation, trial: Trial | None) -> Outcome:
    """The generation that somebody wants back is not loaded; says which one is, and why no other."""
    there = trial.kept.generation.number if trial is not None else None
    wanted = "no earlier generation" if number is None else f"generation {number}"
    message = f"{wanted} is not in memory: " if number is not None else f"{wanted} is in memory: "
    if there is not None:
        message += f"generation {there} is"
    elif not active.plan.reload.probation_period:
        message += "one is kept for spec.reload.probationPeriod, and that is not set"
    else:
        message += "one is kept for spec.reload.probationPeriod after a reload, and no longer"
    return Outcome(Result.REFUSED, active.number, active.inputs.digest, NOT_IN_MEMORY, message)
