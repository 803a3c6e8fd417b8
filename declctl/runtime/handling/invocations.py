"""Invocations: the calls of one handler that are under way, and what the log says of failed ones.

A call that takes too long is a zombie until it returns: another worker takes its place, its key stays held.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace

import msgspec

from declctl.errors import FilterFailed, NotSynced
from declctl.hooks.calls import Implementation, call_async, describe, place_of, readable_traceback
from declctl.kit import KeyedQueueStatistics
from declctl.kit.keyed_queue import QueueItem
from declctl.manifest.model import OnFailure
from declctl.objects import Change, Notification
from declctl.runtime.handling.binding import (
    Binding,
    Counts,
    Filter,
    HandlerStatistics,
    Judged,
    entering_or_leaving,
)
from declctl.runtime.log import Log

_TO_END = 1.0  # seconds that a call has to end once it is cancelled


class Invocation(msgspec.Struct, eq=False):
    """One call under way.

    `overdue` means that nobody waits for it any longer: it is a zombie until it returns. Only one
    that is late by its own timeout has failed by that. `judged` is what a filter made of the change.
    `scope` and `loop` are of an asynchronous call that waits: the only kind that can be cancelled. `sent` is
    what a thread has asked a loop to call, which has not `begun` before the loop takes it up.
    """

    item: QueueItem[Notification]
    binding: Binding
    change: Change
    started: float
    wanted: Sequence[Implementation]
    replace: Callable[[], None]  # whoever does it, by another worker: it is stuck
    overdue: bool = False
    timed_out: str = ""  # it has been counted as failed then
    first_failed: int | None = None  # the generation on which the change failed first
    timer: asyncio.TimerHandle | None = None
    judged: Judged | None = None
    scope: asyncio.Timeout | None = None
    loop: asyncio.AbstractEventLoop | None = None
    sent: Future[None] | None = None
    begun: bool = False
    failed: list[Implementation] = []
    failures: list[BaseException] = []

    def passes(self, by: Filter) -> bool:
        """Whether anything is told; where the filter raises, the change fails as by the handler itself."""
        change, judged = self.item.value, self.judged
        if change.judged or (judged is not None and judged.change is change):
            return True
        try:
            made = by.judge(change, self.change.obj, self.change.old, judged and judged.told)
        except FilterFailed as failure:
            self.failures.append(failure)
            self.wanted = ()
            return True
        if made is None:
            return False
        self.judged = Judged(change, made)
        if made is not change:
            self.change = entering_or_leaving(self.change, made)
            self.wanted = self.binding.target.select(made.type)
        return True


def call_on(run: Invocation, implementation: Implementation, arguments: dict[str, object]) -> None:
    """Call an asynchronous implementation from a thread, on the loop of its binding.

    Raises what it raises, or TimeoutError: also where its loop was blocked, so that it was not called.
    """
    binding = run.binding

    async def bounded() -> None:
        run.begun = True
        task = asyncio.current_task()
        assert task is not None
        task.set_name(f"handler {binding.plan.name}")
        async with asyncio.timeout(binding.plan.timeout):
            await call_async(implementation, arguments)

    run.begun = False
    run.sent = binding.loop.submit(bounded())
    try:
        run.sent.result()
    except CancelledError:
        raise TimeoutError(
            f"{implementation.hook} was not called: another `async def` blocks the loop that it runs on"
        ) from None
    finally:
        run.sent = None


class Calls:
    """The calls of one slot. `running` and `counts` are the slot's to keep, under `lock`.

    `overlook` is called under `lock` with the item of a call that is given up, `overlooked` after it.
    """

    def __init__(
        self,
        name: str,
        *,
        loop: asyncio.AbstractEventLoop,
        log: Log,
        overlook: Callable[[QueueItem[Notification]], None],
        overlooked: Callable[[], None],
    ) -> None:
        self.lock = threading.Lock()
        self.running: dict[int, Invocation] = {}  # by their id
        self.counts = Counts()
        self._name = name
        self._loop = loop  # the machinery's, which keeps the time of what can't do so itself
        self._log = log
        self._overlook, self._overlooked = overlook, overlooked

    def of(self, binding: Binding | None) -> list[Invocation]:
        """Those that were begun for a binding."""
        with self.lock:
            return [run for run in self.running.values() if run.binding is binding]

    def keys(self, bindings: Collection[int] | None = None) -> list[str]:
        """What they are about, for messages; of some bindings only, by their `id`."""
        with self.lock:
            runs = self.running.values()
            return [run.item.key for run in runs if bindings is None or id(run.binding) in bindings]

    def watch(self, run: Invocation, timeout: float) -> None:
        """Wait for a call for `timeout` seconds; on the machinery loop."""
        if id(run) in self.running:
            message = f"it ran longer than its timeout of {timeout:g} s"
            run.timer = self._loop.call_later(timeout, self._time_out, run, message)

    def watch_cancelled(self, run: Invocation, timeout: float) -> asyncio.TimerHandle:
        """Look whether an asynchronous call has ended, a moment after it is cancelled in `timeout` seconds.

        On the loop of the call, by the call itself; returns what it has to cancel.
        """
        message = f"it goes on, though it was cancelled at its timeout of {timeout:g} s"
        return asyncio.get_running_loop().call_later(timeout + _TO_END, self._time_out, run, message)

    def under_way(self, binding: Binding) -> list[tuple[float, bool]]:
        """When each call of a binding under way began, and whether it keeps a worker from other changes."""
        return [(run.started, not run.overdue) for run in self.of(binding)]

    def count_failure(self, run: Invocation, what: str, kind: str) -> None:
        """Count that a call of its generation has failed; under `lock`, once for each call."""
        tally, first = run.binding.tally, run.first_failed
        self.counts.last_error = tally.last_error = f"{run.item.key}: {what}"
        self.counts.last_error_type = kind
        tally.calls += 1
        tally.failed += 1
        if first is not None and first != run.binding.generation:
            tally.inherited[first] = tally.inherited.get(first, 0) + 1

    def abandon(self, binding: Binding | None) -> int:
        """Wait no longer for the calls of a binding; returns how many there were.

        Those that can be are cancelled, the others are zombies; so is one that goes on all the same.
        """
        stuck = [run for run in self.of(binding) if not run.overdue]
        for run in stuck:
            sent = run.sent
            if run.scope is not None and run.loop is not None:
                run.loop.call_soon_threadsafe(_cancel, run.scope)
                self._loop.call_soon_threadsafe(self._look_cancelled, run)
            elif sent is not None and not run.begun:
                sent.cancel()  # its loop is blocked: it fails now, and is tried again
            else:
                self._give_up_waiting(run, "it outlived the drain timeout of a reload")
        return len(stuck)

    def statistics(
        self, queue: KeyedQueueStatistics, *, binding: Binding, synced: bool, replayed: int
    ) -> HandlerStatistics:
        """The figures of the slot, with those of what waits for it."""
        with self.lock:
            counts, p95 = replace(self.counts), self.counts.p95()
        return HandlerStatistics(
            name=self._name,
            generation=binding.generation,
            synced=synced,
            delivered=queue.taken - counts.filtered,
            succeeded=counts.succeeded,
            failed=counts.failed,
            retried=counts.retried,
            merged=queue.merged,
            dropped=queue.dropped,
            filtered=counts.filtered,
            queued=queue.waiting + queue.backing_off,
            running=queue.running,
            zombies=counts.zombies,
            p95_seconds=p95,
            last_error=counts.last_error,
            replayed=replayed,
            last_error_type=counts.last_error_type,
            disabled=bool(binding.target.disabled),
        )

    def time_out_blocked(self, now: float) -> None:
        """Let calls fail that are past their timeout and can't hear of it, as their loop is blocked."""
        with self.lock:
            runs = [run for run in self.running.values() if run.binding.loop.is_blocked and not run.overdue]
        for run in runs:
            timeout = run.binding.plan.timeout
            if timeout is not None and now - run.started > timeout + _TO_END:
                self._time_out(run, f"it ran longer than its timeout of {timeout:g} s")

    def _look_cancelled(self, run: Invocation) -> None:
        why = "it goes on, though it was cancelled at the drain timeout of a reload"
        self._loop.call_later(_TO_END, self._give_up_waiting, run, why)

    def _time_out(self, run: Invocation, message: str) -> None:
        with self.lock:
            if id(run) not in self.running or run.timed_out:
                return
            # A failure now: one that never returns would never be counted, and code that hangs seem well.
            run.timed_out = message
            self.count_failure(run, f"TimeoutError: {message}", "TimeoutError")
        self._give_up_waiting(run, message)

    def _give_up_waiting(self, run: Invocation, why: str) -> None:
        with self.lock:
            if id(run) not in self.running or run.overdue:
                return
            run.overdue = True
            self.counts.zombies += 1
            self._overlook(run.item)
        self._log.warning(
            f"{self._name}: the call for {run.item.key} is not waited for any longer: {why}; "
            "its key is held until it returns",
            handler=self._name,
            key=run.item.key,
        )
        run.replace()
        self._overlooked()


def _cancel(scope: asyncio.Timeout) -> None:
    """On the loop of the call."""
    if not scope.expired():
        scope.reschedule(0.0)  # a moment long past


# In characters: what foreign code raises may hold a whole object.
_LONGEST_MESSAGE = 2000
_LONGEST_TRACEBACK = 20_000
_LONGEST_CHAIN = 20  # causes of causes that are looked at; a chain may be a ring
_MOST_FAULTS = 100  # of one handler, whose tracebacks are not logged again


def what_failed(failure: BaseException) -> str:
    """The fault in a sentence, as status and the log have it."""
    what = str(failure) if isinstance(failure, FilterFailed) else describe(_raised(failure))
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
