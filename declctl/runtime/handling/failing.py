"""What is said of a change that a handler has failed on."""

from declctl.errors import FilterFailed
from declctl.hooks.calling import Implementation, readable_traceback
from declctl.hooks.faults import told
from declctl.manifest.model import OnFailure
from declctl.runtime.handling.calls import Run
from declctl.runtime.log import Log

# In characters: what foreign code raises may hold a whole object.
_LONGEST_MESSAGE = 2000
_LONGEST_TRACEBACK = 20_000


def what_failed(failure: BaseException) -> str:
    """The fault in a sentence, as status and the log have it."""
    what = str(failure) if isinstance(failure, FilterFailed) else told(failure.__cause__ or failure)
    return what[:_LONGEST_MESSAGE]


def tell_failed(log: Log, name: str, run: Run, what: str, delay: float | None) -> None:
    """Log what failed; it is tried again in `delay` seconds, or given up for None."""
    ticket, plan = run.ticket, run.binding.plan
    limit = "" if plan.on_failure is OnFailure.RETRY else f" of {plan.retry.max_attempts}"
    log.error(
        f"{name} failed on {run.change.type} {ticket.key}: {what}",
        handler=name,
        key=ticket.key,
        generation=run.binding.generation,
        attempt=f"{ticket.attempts + 1}{limit}",
        next="given up" if delay is None else f"again in {delay:.3g} s",
        traceback="".join(readable_traceback(f) for f in run.failures)[:_LONGEST_TRACEBACK],
    )


def identity(implementation: Implementation) -> tuple[str, str, str]:
    """What an implementation is known by across generations."""
    function = implementation.function
    return implementation.hook, implementation.plugin, getattr(function, "__qualname__", repr(function))
