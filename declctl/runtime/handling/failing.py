"""What is said of a change that a handler has failed on."""

import threading
from collections import OrderedDict

from declctl.errors import FilterFailed, NotSynced
from declctl.hooks.calling import Implementation, readable_traceback
from declctl.hooks.faults import place_of, told
from declctl.manifest.model import OnFailure
from declctl.runtime.handling.invocations import Invocation
from declctl.runtime.log import Log

# In characters: what foreign code raises may hold a whole object.
_LONGEST_MESSAGE = 2000
_LONGEST_TRACEBACK = 20_000
_LONGEST_CHAIN = 20  # causes of causes that are looked at; a chain may be a ring
_MOST_FAULTS = 100  # of one handler, whose tracebacks are not logged again


def what_failed(failure: BaseException) -> str:
    """The fault in a sentence, as status and the log have it."""
    what = str(failure) if isinstance(failure, FilterFailed) else told(_raised(failure))
    return what[:_LONGEST_MESSAGE]


def type_failed(failure: BaseException) -> str:
    """The class of the fault, which clients that may not see objects may see."""
    return type(_raised(failure)).__name__


def _raised(failure: BaseException) -> BaseException:
    """What foreign code has raised; an exception of it may be false, or raise where its truth is asked."""
    return failure if failure.__cause__ is None else failure.__cause__


def not_synced_by(failure: BaseException) -> NotSynced | None:
    """The NotSynced because of which a call failed: it has read a cache that has not synced. Else None.

    That is NotSynced itself, what was raised from it (`raise … from error`), and a group of nothing else. An
    error that is raised in an `except NotSynced:` without `from` is a failure of its own.
    """
    error: BaseException | None = failure
    for _ in range(_LONGEST_CHAIN):
        if error is None or isinstance(error, NotSynced):
            return error
        if isinstance(error, BaseExceptionGroup):
            several: tuple[BaseException, ...] = error.exceptions
            found = [not_synced_by(each) for each in several]
            return found[0] if all(found) else None
        error = error.__cause__
    return None


def tell_waiting(log: Log, name: str, run: Invocation, what: str) -> None:
    """Log that a handler waits for a cache that it reads. Called once a minute, not for each call."""
    log.warning(
        f"{name} waits with {run.item.key}, and maybe with others: {what}; it is called again until the "
        "cache can be read, which does not count as an attempt",
        handler=name,
        key=run.item.key,
        generation=run.binding.generation,
    )


class FailureLog:
    """The log of what one handler fails on: a traceback for each distinct fault, then a line with a count.

    A fault is distinct by its generation, its types and the lines that raised. The newest `_MOST_FAULTS` are
    remembered; one that was forgotten has its traceback logged again. Used from any worker.
    """

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self._name = name
        self._lock = threading.Lock()
        self._times: OrderedDict[tuple[object, ...], int] = OrderedDict()

    def failed(self, run: Invocation, what: str, delay: float | None, *, attempt: int) -> None:
        """Log what failed at this attempt; it is tried again in `delay` seconds, or given up for None."""
        item, plan = run.item, run.binding.plan
        limit = None if plan.on_failure is OnFailure.RETRY else plan.retry.max_attempts
        causes = [_raised(failure) for failure in run.failures]
        times = self._count((run.binding.generation, *((type(c).__qualname__, place_of(c)) for c in causes)))
        sentence = f"{self._name} failed on {run.change.type} {item.key}: {what}"
        fields: dict[str, object] = {}
        if times == 1:
            traces = "".join(readable_traceback(failure) for failure in run.failures)
            fields["traceback"] = traces[:_LONGEST_TRACEBACK]
        else:
            place = place_of(causes[0])
            sentence += f" ({f'{place}, ' if place else ''}{times} times by now; the first has the traceback)"
        number = f"attempt {attempt}" + (f" of {limit}" if limit else "")
        then = "given up" if delay is None else f"again in {delay:.3g} s"
        self._log.error(
            f"{sentence}; {number}, {then}",
            handler=self._name,
            key=item.key,
            generation=run.binding.generation,
            error_type=type_failed(run.failures[0]),
            times=times,
            attempt=attempt,
            max_attempts=limit,
            retry_in=None if delay is None else round(delay, 3),
            **fields,
        )

    def _count(self, fault: tuple[object, ...]) -> int:
        with self._lock:
            times = self._times[fault] = self._times.pop(fault, 0) + 1
            if len(self._times) > _MOST_FAULTS:
                self._times.popitem(last=False)
            return times


def identity(implementation: Implementation) -> tuple[str, str, str]:
    """What an implementation is known by across generations."""
    function = implementation.function
    return implementation.hook, implementation.plugin, getattr(function, "__qualname__", repr(function))
