"""Invocations: each change or key that a handler is called for, from a worker's `take` to its outcome.

    take ──▶ begin ──▶ select ──▶ snapshots ──▶ breaker ──▶ call the hooks ──▶ end ──▶ the worker's next item
               │         │           │             │          │                 ▲
               │         │           │             │          ├── all returned ─┤ Succeeded
               │         │           │             │          ├── one raised ───┤ Failed, Gone, Unsynced
               │         │           └── unsynced ─┼──────────┼─────────────────┤ Unsynced
               │         └── nothing to call ──────┼──────────┼─────────────────┤ NotCalled
               │                                   └──refused─┼─────────────────┤ Suspended
               │                                              └── loop ended ───┤ LoopEnded
               └────────────── a fault of declctl, anywhere ──── recover ───────┘ Interrupted

`Invocations.end` is the one end. It alone tells figures, trace, failure log, tap, queue and circuit breaker
how an invocation has ended (`outcomes`).

**Where it runs.** `def` hooks run in the thread of their worker (`deliver`), `async def` hooks in a task of
the handlers' loop (`deliver_async`). A handler with both has threads, which send the `async def` ones to the
loop and wait. After a reload, a task may have a change that was queued for `def` code: a thread calls that.

**Time limits and zombies** are in `calls_under_way`, what is counted in `handler_figures`.

**A reload in the middle.** An invocation keeps the binding that it has begun with. `abandon` ends the wait
for it at the end of the drain, and when this process leads no more. If it fails, its retry belongs to the
epoch in which a worker takes it again, and so to the code of that moment (`KeyQueue`). After `close`,
nothing is retried.

`Invocations` is what both modes share; `EventInvocations` delivers changes, from the filter on. An exception
of user code may itself raise when it is read. That ends no worker.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from declctl.errors import FilterFailed, InvalidObject, NotSynced, ObjectGone
from declctl.hooks.calls import (
    EventTarget,
    Implementation,
    begin_async,
    call,
    cancelled_by_itself,
)
from declctl.kit import Clock
from declctl.kit.key_queue import KeyQueue, QueueItem
from declctl.kit.pending import ItemState
from declctl.kit.secret_values import is_secret
from declctl.kit.worker_pool import end_cancellation, ends_worker
from declctl.manifest.model import OnFailure
from declctl.objects import Cause, Change, ChangeReason, ChangeType, Notification, ObjectView
from declctl.objects.expressions import EvaluationFailed
from declctl.runtime.handling.binding import (
    CallBinding,
    FilterOutcome,
    entering_or_leaving,
)
from declctl.runtime.handling.calls_under_way import CallsUnderWay, SlotOfCalls
from declctl.runtime.handling.dead_letters import DeadLetter, DeadLetters
from declctl.runtime.handling.failure_log import FailureLog, is_round
from declctl.runtime.handling.failures import (
    cause_of,
    describe_failure,
    end_of_tracebacks,
    internal_fault,
    is_quiet_conflict,
    is_refused,
)
from declctl.runtime.handling.handler_figures import HandlerFigures
from declctl.runtime.handling.invalid_objects import judge
from declctl.runtime.handling.invocation import (
    Invocation,
    MemoOf,
    ReportOf,
    Retry,
    identity_of,
    is_suspended,
    waits_of,
    was_called,
)
from declctl.runtime.handling.outcomes import (
    FILTERED,
    HAS_LEFT,
    INVALID,
    SUCCEEDED,
    Failed,
    Gone,
    Interrupted,
    InvocationOutcome,
    LoopEnded,
    NotCalled,
    Suspended,
    Unsynced,
)
from declctl.runtime.handling.tap import TapSubject
from declctl.runtime.log import Log
from declctl.runtime.recorder import current_call
from declctl.runtime.threads import in_thread
from declctl.runtime.tracing import CallTrace, TracedCall, tracing
from declctl.writes import CallScope

T = TypeVar("T")

# Python 3.11 needs 150 ns to look up a member of an enum: too long for each change.
_RESYNC, _DELETED, _MODIFIED = ChangeType.RESYNC, ChangeType.DELETED, ChangeType.MODIFIED
# Changes that nobody has made just now; how long they wait says nothing about the delay of events.
_NOT_LIVE = frozenset((ChangeReason.INITIAL, ChangeReason.RESYNC, ChangeReason.REPLAY))
LONGEST_WAIT_FOR_SYNC = 30.0  # seconds between two calls that read an unsynced cache
WAIT_FOR_LIST = 0.1  # seconds between two calls whose snapshots wait for the end of a list


class SlotOfInvocations(SlotOfCalls, Protocol[T]):
    """What invocations need of their slot. The methods are called in the threads of workers."""

    def binding_of(self, item: QueueItem[T]) -> CallBinding:
        """The binding of an item."""
        ...

    @property
    def dead_letters(self) -> DeadLetters[Any]:
        """Where changes go that were given up with `onFailure: DeadLetter`."""
        ...

    def is_handled_here(self, item: QueueItem[T]) -> bool:
        """Whether this process handles the shard of an item; True without a sharding."""
        ...

    def memo(self, key: str, uid: str | None) -> object:
        """The memo of an object; `uid` is None if the object is gone."""
        ...

    def ended(self, invocation: Invocation[T]) -> None:
        """Notice that an item succeeded or was given up. Its key is held still."""
        ...

    def open_latches(self) -> None:
        """Open the latches whose calls have ended. Called after each one."""
        ...


class Invocations(ABC, Generic[T]):
    """The invocations of one slot: makes each call, and acts on its outcome.

    `loop` is the machinery's, for the time limits of calls.
    """

    def __init__(
        self,
        slot: SlotOfInvocations[T],
        queue: KeyQueue[str, T],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: Log,
    ) -> None:
        self._name = slot.name
        self._slot = slot
        self._queue = queue
        self._clock = clock
        self._log = log
        self._failures = FailureLog(log, slot.name, clock=clock)
        self._letters = slot.dead_letters
        self.figures = HandlerFigures(clock=clock)
        self.under_way: CallsUnderWay[T] = CallsUnderWay(
            slot, queue, self.figures, loop=loop, clock=clock, log=log
        )
        self._closed = False  # failed items are not retried
        self._then = ""  # what becomes of them, for the log

    def deliver(self, item: QueueItem[T]) -> bool:
        """Process one item in the calling thread. False if the thread was replaced, and has to end."""
        invocation = self._begin(item)
        if (outcome := self._without_call(invocation)) is not None:
            return self.end(invocation, outcome)
        trace = self._trace(invocation)
        for implementation in invocation.implementations:
            arguments = invocation.arguments(implementation, self._slot.memo)
            try:
                if trace is None:
                    self._call(invocation, implementation, arguments)
                else:
                    with trace.hook(implementation.hook):
                        self._call(invocation, implementation, arguments)
            except BaseException as failure:  # noqa: BLE001 - user code: kept for the log and the retry
                invocation.fail(implementation, failure)
        return self.end(invocation)

    async def deliver_async(self, item: QueueItem[T]) -> bool:
        """Process one item on the loop of its binding; synchronous implementations go to a thread."""
        invocation = self._begin(item)
        if (outcome := self._without_call(invocation)) is not None:
            return self.end(invocation, outcome)
        trace = self._trace(invocation)
        for implementation in invocation.implementations:
            arguments = invocation.arguments(implementation, self._slot.memo)
            invocation.scope = None
            try:
                if len(invocation.implementations) > 1:
                    await end_cancellation()  # of the call before
                if trace is None:
                    await self._call_async(invocation, implementation, arguments)
                else:
                    with trace.hook(implementation.hook):
                        await self._call_async(invocation, implementation, arguments)
            except BaseException as failure:
                if ends_worker(failure):
                    # The garbage collector closes a coroutine at any point of any thread: to take a lock
                    # there could wait for ever.
                    if not isinstance(failure, GeneratorExit):
                        self.end(invocation, self._loop_ended(failure))
                    raise
                if isinstance(failure, asyncio.CancelledError):
                    failure = _cancelled(invocation, implementation, failure)
                invocation.fail(implementation, failure)
        return self.end(invocation)

    def recover(self, item: QueueItem[T], fault: BaseException) -> bool:
        """End the call for an item after a fault of declctl itself; returns whether the worker goes on.

        The item is retried with its back-off, without a limit: the handler has not failed. It is called
        again with all of its hooks, as it is not known which of them have succeeded.
        """
        binding, delay = self._slot.binding_of(item), None
        if item.is_taken and not self._closed:
            delay = self._delay(binding, item.attempts + 1)
        outcome = Interrupted(error=internal_fault(fault), fault=fault, retry_in=delay)
        invocation = self.under_way.for_item(item)
        goes_on = item.state is not ItemState.OVERDUE  # the worker of a zombie has been replaced
        try:
            if invocation is not None:
                return self.end(invocation, outcome)
            # The fault came before it had begun, or amid its end, which has counted it: its item is left.
            self.figures.interrupted(item.key, outcome)
            self._failures.internal(item.key, binding.generation, fault, again=delay is not None)
        except BaseException:
            # A second fault, as of a log whose disk is full: the key must not be held for ever.
            self._leave(item, delay if item.is_taken else None)
            raise
        self._leave(item, delay)
        return goes_on

    def _leave(self, item: QueueItem[T], delay: float | None) -> None:
        """End the work on an item without an invocation, as `_give_back`; then wake who waits for its end."""
        self._give_back(item, delay)
        self._slot.open_latches()

    # The way to the hooks

    def _begin(self, item: QueueItem[T]) -> Invocation[T]:
        binding = self._slot.binding_of(item)
        recorded = 0
        if (recorder := self._slot.tap.recorder) is not None:
            # Before the object is read, and in the thread or task that makes the call.
            recorded = recorder.begins(self._name, item.key, binding.generation)
            current_call.set(recorded)
        invocation = self._make(item, binding)
        invocation.recorded = recorded
        retry: Retry | None = item.retry_state
        if retry is not None:
            invocation.first_failed = retry.first_failed
        self.under_way.begin(invocation)
        return invocation

    def _without_call(self, invocation: Invocation[T]) -> InvocationOutcome | None:
        """The outcome of an invocation that calls no hook. None if its hooks are to be called."""
        # The worker has the item already: when a shard closes, its items are dropped or seen to be taken.
        if not self._slot.is_handled_here(invocation.item):
            return HAS_LEFT
        if not invocation.select(self._report_expression):
            return NotCalled(is_disabled=True) if invocation.binding.target.disabled else FILTERED
        if invocation.binding.view is not ObjectView:
            judge(invocation)
            if invocation.misfit is not None:
                self._log_misfit(invocation, invocation.misfit)
                if not invocation.implementations:
                    return INVALID
        invocation.take_snapshots()
        seconds = invocation.enter_breaker(self._name, self._hurry_suspended)
        return Suspended(retry_in=None if self._closed else seconds) if seconds else None

    @abstractmethod
    def _make(self, item: QueueItem[T], binding: CallBinding) -> Invocation[T]:
        """An invocation for an item that was taken. Raises nothing."""

    @staticmethod
    def _trace(invocation: Invocation[T]) -> CallTrace | None:
        """Begin the trace of a call; None if there is no tracer provider."""
        traces = tracing()
        if traces is not None:
            retry: Retry | None = invocation.item.retry_state
            before = None if retry is None else retry.span
            invocation.trace = traces.begin(invocation.traced(), before=before, events=invocation.events())
        return invocation.trace

    @staticmethod
    def _call(
        invocation: Invocation[T], implementation: Implementation, arguments: Mapping[str, object]
    ) -> None:
        """Call one implementation in this thread, or on the handlers' loop."""
        if implementation.is_async:
            invocation.take(invocation.call_on_loop(implementation, arguments))
        else:
            invocation.take(call(implementation, arguments))

    async def _call_async(
        self, invocation: Invocation[T], implementation: Implementation, arguments: Mapping[str, object]
    ) -> None:
        """Call one implementation on this loop, within its timeout."""
        if not implementation.is_async:
            # A thread can't be cancelled: after its timeout it is a zombie, as in a pool of threads.
            name = f"declctl-handler-{self._name}"
            context = copy_context()  # the thread has the context of this task, as with `asyncio.to_thread`
            result = await in_thread(lambda: context.run(call, implementation, arguments), name=name)
            invocation.take(result)
            return
        rest, result = begin_async(implementation, arguments)
        if rest is None:
            invocation.take(result)  # it ended without an await
            return
        invocation.loop = asyncio.get_running_loop()
        # A call that exceeded its timeout before its first await is cancelled there.
        timeout = 0.0 if invocation.overdue else invocation.binding.plan.timeout
        timer = None if timeout is None else self.under_way.limit(invocation, timeout)
        try:
            async with asyncio.timeout(timeout) as invocation.scope:
                invocation.take(await rest)
        except TimeoutError as error:  # of the scope, as above
            raise invocation.exceeded(error) from None
        finally:
            if timer is not None:
                timer.cancel()

    # The end

    def end(self, invocation: Invocation[T], outcome: InvocationOutcome | None = None) -> bool:
        """End an invocation: the one place that tells all parts its outcome. Returns the result of `deliver`.

        Without an outcome, the hooks were called, and what they have raised decides. In the thread or task of
        the worker. If one of the steps raises, declctl has a fault. `recover` then gives the item back to the
        queue, unless the queue has it already: then the fault is logged here.
        """
        self.under_way.end(invocation)
        item, attempts = invocation.item, invocation.item.attempts
        try:
            self._tell(invocation, outcome)
        except BaseException as fault:
            again = item.attempts != attempts  # the queue has it for a retry
            if item.is_taken and not again:
                raise
            # Another worker may have it now: it is not returned once more.
            self._slot.open_latches()
            self._failures.internal(item.key, invocation.binding.generation, fault, again=again)
        return not invocation.overdue or invocation.keeps_worker

    def _tell(self, invocation: Invocation[T], outcome: InvocationOutcome | None) -> None:
        """Tell all parts the outcome of an invocation that runs no longer, in this order.

        1. Figures, span, log and tap come before the queue: as soon as the queue has the item, another worker
           may call the handler for the same key. A reader who sees an idle queue then sees the figures of all
           calls, the lines of one object are in the order of its calls, and the next attempt can link to this
           span. The log comes after the span, whose ids its line has; the tap comes last of these, because a
           listener looks up in status and log what it is told.
        2. The queue gets the item back, or lets it go. A dead letter is kept before its item leaves: a newer
           success of the key, which can only come later, forgets the letter.
        3. The breaker comes after the queue. When it closes, it ends the waits of all items in the queue of
           each handler of the plugin, and this one may be among them.
        4. Who waits for the end of calls is woken last: the queue of an ended epoch has to be seen empty.
        """
        verdict: InvocationOutcome | None = None
        try:
            if outcome is None:
                outcome = self._outcome_of_calls(invocation)
            decided = self._clock.monotonic()
            self.figures.ended(invocation, outcome)
            if invocation.trace is not None:
                is_cut_off = isinstance(outcome, Interrupted | LoopEnded)
                fault = outcome.fault if is_cut_off else None
                invocation.trace.end(invocation.failures if fault is None else [fault])
            if outcome is not SUCCEEDED:
                self._log_outcome(invocation, outcome)
            if (tap := self._slot.tap).listeners:
                tap.add(invocation.tapped(outcome.tapped, outcome, self._clock))
            if tap.recorder is not None:
                tap.recorder.ended(invocation.recorded, invocation.ended(outcome, self._clock))
            self._return_item(invocation, outcome, decided)
            verdict = outcome
        finally:
            if invocation.entered is not None:
                self.under_way.tell_breaker(invocation, verdict)
            if invocation.overdue:
                self.under_way.renew_workers()
        # Their tracebacks refer to the invocation: a cycle would keep the code of its generation until a
        # collection.
        invocation.failures.clear()
        self._slot.open_latches()

    def _outcome_of_calls(self, invocation: Invocation[T]) -> InvocationOutcome:
        """The outcome of an invocation whose hooks were called, or whose filter or snapshots have failed."""
        failures = invocation.failures
        if invocation.timed_out and not failures:
            # A call that returned after its timeout has failed: the timeout has counted it so.
            failures.append(TimeoutError(invocation.timed_out))
        if not failures:
            return SUCCEEDED if invocation.misfit is None else INVALID
        item, plan = invocation.item, invocation.binding.plan
        unsynced = [cause_of(failure, NotSynced) for failure in failures]
        if (fault := unsynced[0]) is not None and None not in unsynced:
            delay = None
            if not self._closed:
                longest = WAIT_FOR_LIST if fault.is_relisted else LONGEST_WAIT_FOR_SYNC
                delay = min(invocation.binding.backoff.delay(waits_of(item) + 1), longest)
            return Unsynced(error=describe_failure(fault), fault=fault, retry_in=delay)
        if all(self._is_gone(invocation, failure) for failure in failures):
            return Gone(error=describe_failure(failures[0]), fault=failures[0])
        attempt, most = invocation.attempt, invocation.most_attempts
        is_terminal = self._is_terminal(failures)
        # A removed handler has no worker for a retry.
        is_over = self._closed or not self._slot.is_handled_here(item)
        again = (most is None or attempt < most) and not is_terminal and not is_over
        return Failed(
            error=describe_failure(failures[0]),
            fault=failures[0],
            attempt=attempt,
            retry_in=self._delay(invocation.binding, attempt) if again else None,
            is_terminal=is_terminal,
            is_conflict=again and is_quiet_conflict(failures, attempt),
            becomes_letter=not again and plan.on_failure is OnFailure.DEAD_LETTER and not is_over,
        )

    def _is_gone(self, invocation: Invocation[T], failure: BaseException) -> bool:
        """Whether a call has failed because its object is gone: by a write of `ctx`, or by its clients."""
        lacks, key, uid = invocation.binding.lacks, invocation.item.key, invocation.uid
        return cause_of(failure, ObjectGone) is not None or is_refused(
            failure, lambda refusal: lacks(key, uid, refusal)
        )

    def _loop_ended(self, fault: BaseException) -> LoopEnded:
        """The outcome of a call whose worker has to end."""
        return LoopEnded(error="its loop has ended", fault=fault, retry_in=None if self._closed else 0.0)

    def _delay(self, binding: CallBinding, attempt: int) -> float:
        """The seconds to wait after failed attempt number `attempt`."""
        return binding.backoff.delay(attempt)

    def _is_terminal(self, failures: Sequence[BaseException]) -> bool:  # noqa: ARG002 - for other modes
        """Whether the handler has decided by its failures that no attempt follows."""
        return False

    def _log_outcome(self, invocation: Invocation[T], outcome: InvocationOutcome) -> None:
        """Log an outcome that is a failure, or a wait for a cache."""
        item, generation = invocation.item, invocation.binding.generation
        if isinstance(outcome, Failed):
            then = "given up"
            if self._closed and self._then:
                then = self._then
            elif outcome.retry_in is None and not self._slot.is_handled_here(item):
                then = "its slot has left this process: the next holder begins with all its objects"
            elif outcome.becomes_letter:
                then = "given up: `declctl get deadletters` has it"
            if outcome.is_conflict:
                self._failures.conflict(invocation, outcome)
            else:
                self._failures.failed(invocation, outcome, then)
        elif isinstance(outcome, Gone):
            self._log.info(
                f"{self._name}: the call for {invocation.subject} ends, and is not repeated: {outcome.error}",
                handler=self._name,
                key=item.key,
                generation=generation,
                event_id=invocation.event_id,
            )
        elif isinstance(outcome, Unsynced):
            self._failures.waits(item.key, generation, outcome.error, invocation.event_id)
        elif isinstance(outcome, Interrupted) and outcome.fault is not None:
            again = outcome.retry_in is not None
            self._failures.internal(item.key, generation, outcome.fault, again=again)

    def _log_misfit(self, invocation: Invocation[T], misfit: InvalidObject) -> None:
        """Log an object that does not fit: the first of a place and a sentence, the 10th, and so on."""
        generation = invocation.binding.generation
        times = self._failures.count((generation, "does not fit", misfit.path, misfit.sentence))
        if is_round(times):
            so_far = "" if times == 1 else f" ({times:,} times by now)"
            self._log.warning(
                f"{self._name}: {misfit.summary}; the handler is not called{so_far}",
                handler=self._name,
                key=invocation.item.key,
                generation=generation,
                event_id=invocation.event_id,
                times=times,
            )

    def _return_item(self, invocation: Invocation[T], outcome: InvocationOutcome, decided: float) -> None:
        """Give an item back to the queue, or let it leave the queue. The outcome was known at `decided`."""
        item, is_processed = invocation.item, True
        if outcome is SUCCEEDED:
            self._succeeded(invocation)
        elif isinstance(outcome, Interrupted):
            self._give_back(item, outcome.retry_in)
            return
        elif outcome.retry_in is not None and not self._slot.is_handled_here(item):
            is_processed = False
        elif outcome.retry_in is not None:
            # A back-off begins when the failure is counted: a test that sees the count may advance the clock.
            waited = self._clock.monotonic() - decided
            self._retry(invocation, outcome, max(0.0, outcome.retry_in - waited))
            return
        elif isinstance(outcome, Failed):
            if outcome.becomes_letter:
                self._letters.put(*self._dead_letter(invocation, outcome))
        elif not isinstance(outcome, Gone):
            is_processed = isinstance(outcome, NotCalled) and not (outcome.is_disabled or outcome.has_left)
        self.figures.fails_no_longer(item.key)
        self._slot.ended(invocation)
        if self._queue.done(item) if is_processed else self._queue.drop(item):
            self._slot.wake()

    def _succeeded(self, invocation: Invocation[T]) -> None:
        """Do what follows a success. The key of the item is held still."""
        self._letters.succeeded(invocation.item.key)

    def _retry(self, invocation: Invocation[T], outcome: InvocationOutcome, delay: float) -> None:
        """Hand an item out again in `delay` seconds, with what its next attempt needs."""
        item, first = invocation.item, invocation.first_failed
        before: Retry | None = item.retry_state
        waits = waits_of(item)
        if isinstance(outcome, Failed):
            first = invocation.binding.generation if first is None else first
            self.figures.fails(item.key, invocation.binding.generation, outcome.error_type)
        else:
            waits += 1  # it was no attempt
        state = invocation.retry_state(first, waits, is_unsynced=isinstance(outcome, Unsynced))
        has_result = not isinstance(outcome, Suspended | LoopEnded)
        if not has_result:
            # Of no hook is known how it ends: the same ones are due.
            state = state._replace(failed=frozenset() if before is None else before.failed)
        # An item that was only suspended has no span: the link is to the attempt before.
        span = None if before is None else before.span
        if invocation.trace is not None:
            span = invocation.trace.context
        item.retry_state = state._replace(
            is_suspended=isinstance(outcome, Suspended),
            was_called=has_result or was_called(item),
            span=span,
            error_type=outcome.error_type if has_result else None if before is None else before.error_type,
        )
        self._queue.retry(item, delay)
        if self._closed:  # it was closed after the outcome was decided
            self._queue.clear()
        self._slot.wake()

    def _give_back(self, item: QueueItem[T], delay: float | None) -> None:
        """Hand an item out again in `delay` seconds, as no attempt. For None, let it leave the queue."""
        is_back = False
        try:
            if delay is not None:
                before = item.retry_state or Retry(frozenset(), None, 0, is_unsynced=False)
                item.retry_state = before._replace(
                    waits=before.waits + 1, is_unsynced=False, is_suspended=False
                )
                self._queue.retry(item, delay)
                is_back = True  # another worker may have it by now
            else:
                self.figures.fails_no_longer(item.key)
        finally:
            if not is_back and item.is_taken:  # also if the queue has failed: no key is held for ever
                self._queue.done(item)
            self._slot.wake()

    def _dead_letter(self, invocation: Invocation[T], outcome: Failed) -> tuple[DeadLetter, object]:
        """The letter of an item that is given up, and its content."""
        now, since = self._clock.now(), self.figures.failing_since(invocation.item.key)
        state = invocation.retry_state(None, 0, is_unsynced=False)
        letter = DeadLetter(
            handler=self._name,
            key=invocation.item.key,
            type=invocation.tap_subject().type,
            error=outcome.error,
            error_type=outcome.error_type,
            traceback=end_of_tracebacks(invocation.failures),
            attempts=outcome.attempt,
            first_failed_at=since or now,
            failed_at=now,
            generation=invocation.binding.generation,
        )
        return letter, invocation.content(state)

    def _hurry_suspended(self) -> None:
        """The plugin is called again: end the waits for it. From any thread."""
        if self._queue.hurry(is_suspended):
            self._slot.wake()

    def close(self, *, then: str = "") -> None:
        """Retry nothing any more: the handler was removed, or the process ends.

        `then` says for the log what becomes of a call that fails; by default it is given up.
        """
        self._then = self._then or then
        self._closed = True

    def report_expression(self, binding: CallBinding, key: str, failure: EvaluationFailed) -> None:
        """Count and log an evaluation of the filter's expression that failed. From any thread."""
        self.figures.expression_failed()
        self._failures.expression_failed(key, binding.generation, str(failure))

    def _report_expression(self, invocation: Invocation[T], failure: EvaluationFailed) -> None:
        self.report_expression(invocation.binding, invocation.item.key, failure)


class GivenUp(NamedTuple):
    """A change that was given up, as a dead letter keeps it."""

    notification: Notification
    state: Retry


class EventInvocation(Invocation[Notification], eq=False, kw_only=True):
    """The delivery of one change: a filter, then the calls."""

    change: Change  # what the hooks receive
    outcome: FilterOutcome | None = None  # the result of the filter

    @property
    def subject(self) -> str:
        """The type of the change, and its key."""
        return f"{self.change.type} {self.item.key}"

    @property
    def event_id(self) -> str:
        """That of the change."""
        return self.change.id

    @property
    def uid(self) -> str:
        """That of the object of the change."""
        return self.change.obj.uid

    @property
    def revision(self) -> str:
        """That of the new state of the change."""
        return self.item.value.record.revision

    def traced(self) -> TracedCall:
        """What the span of the call says."""
        change, binding, obj = self.change, self.binding, self.change.obj
        return TracedCall(
            binding.plan.name,
            binding.generation,
            change.resource,
            self.event_id,
            self.item.attempts + 1,
            binding.object_kind,
            obj.namespace,
            obj.name,
            obj.uid,
            type=str(change.type),
            reason=str(change.reason),
            waited=self.lag or 0.0,
        )

    def content(self, state: Retry) -> tuple["GivenUp", ...]:
        """The notification, and what its next attempt needs."""
        return (GivenUp(self.item.value, state),)

    def tap_subject(self) -> TapSubject:
        """The change; with both states, if one has replaced the other."""
        notification, layout = self.item.value, self.item.value.record.layout
        # The `old` of a Deleted is older than the state before it.
        before = notification.old if notification.type is _MODIFIED else None
        return TapSubject(
            str(self.change.type),
            str(self.change.reason),
            before=before,
            after=notification.record,
            is_secret=is_secret(layout.api_version, layout.kind),
        )

    def arguments(self, implementation: Implementation, memo: MemoOf) -> Mapping[str, object]:
        """The change, its objects, and the context."""
        change = self.change
        arguments: dict[str, object] = {"change": change, "obj": change.obj, "old": change.old}
        if "ctx" in implementation.parameters:
            # Most handlers use no memo, so it is made when it is first read.
            remember = partial(memo, change.key, change.obj.uid)
            arguments["ctx"] = self.binding.make_context(remember, self.call_scope(), self.snapshots)
        return arguments

    @property
    def fitting(self) -> ObjectView | None:
        """The object; None for one that is gone, whose last state is not the handler's to correct."""
        return None if self.change.type is _DELETED else self.change.obj

    def call_scope(self) -> CallScope:
        """The object of the change."""
        # Most handlers do not write, so the cause is made when one does.
        return CallScope(self.change.key, self.change.obj, causes=partial(_causes, self.change))

    def retry_state(self, first_failed: int | None, waits: int, *, is_unsynced: bool) -> Retry:
        """As of any item, with what the filter has made of the change."""
        outcome = self.outcome
        if outcome is None and self.binding.filter is None:
            # The handler may have acted on the change: a filter that a reload adds must not keep the retry
            # away.
            outcome = FilterOutcome(self.item.value, self.item.value)
        state = super().retry_state(first_failed, waits, is_unsynced=is_unsynced)
        return state._replace(outcome=outcome)

    def select(self, report: ReportOf) -> bool:
        """Apply the filter to the change; returns False if the change ends without a call.

        `report` takes an evaluation of a filter's expression that fails, which counts as false, or is slow.
        A failure of the filter counts as one of the handler: returns True, without implementations.
        """
        notification, outcome = self.item.value, self.outcome
        decided = notification.judged or (outcome is not None and outcome.notification is notification)
        if self.binding.filter is not None and not decided:
            known = None if outcome is None else outcome.delivered
            try:
                result = self.binding.filter.apply(
                    notification, self.change.obj, self.change.old, known, partial(report, self)
                )
            except FilterFailed as failure:
                self.failures.append(failure)
                self.implementations = ()
                return True
            if result is None:
                return False
            self.outcome = FilterOutcome(notification, result)
            if result is not notification:
                self.change = entering_or_leaving(self.change, result, self.binding.view)
                self.implementations = _event_target(self.binding).select(result.type)
        return bool(self.implementations)


class EventInvocations(Invocations[Notification]):
    """The invocations of a handler that receives changes."""

    def _make(self, item: QueueItem[Notification], binding: CallBinding) -> EventInvocation:
        notification = item.value
        retry: Retry | None = item.retry_state
        outcome = None if retry is None else retry.outcome
        if outcome is not None and outcome.notification is notification:
            notification = outcome.delivered  # deliver the same as at the first attempt
        kind, record = notification.type, notification.record
        old = record if kind is _RESYNC else notification.old if kind is not _DELETED else None
        change = Change(
            type=kind,
            resource=binding.plan.resource,
            obj=binding.view(record),
            old=None if old is None else binding.view(old),
            initial=notification.initial,
            final_state_unknown=notification.final_state_unknown,
            reason=notification.reason,
            generation=binding.generation,
            received=notification.received_at,
        )
        selected = _event_target(binding).select(kind)
        if retry is not None:
            # Those that have succeeded have done with this change. If the new code has none of the others,
            # all are called.
            selected = tuple(each for each in selected if identity_of(each) in retry.failed) or selected
        began = self._clock.monotonic()
        invocation = EventInvocation(
            item, binding, began, selected, self._slot.replace_worker, change=change, outcome=outcome
        )
        is_first = not item.attempts if retry is None else not retry.was_called
        if is_first and notification.reason not in _NOT_LIVE:
            # A change that was merged with older ones has waited since the oldest of them.
            invocation.lag = began - item.added_at
        return invocation


def _causes(change: Change) -> tuple[Cause, ...]:
    return (Cause(str(change.type), change.resource, str(change.key), str(change.reason)),)


def _event_target(binding: CallBinding) -> EventTarget:
    """The target of a binding of `mode: Event`; that of a disabled plugin has no functions."""
    target = binding.target
    return target if isinstance(target, EventTarget) else EventTarget((), disabled=target.disabled)


def _cancelled(
    invocation: Invocation[Any], implementation: Implementation, error: asyncio.CancelledError
) -> BaseException:
    """The failure of a call on a worker's task that was cancelled, and whose worker does not end."""
    # After a cancellation by user code, `asyncio.timeout` raises no TimeoutError for its own one.
    if invocation.scope is not None and invocation.scope.expired():
        timeout = TimeoutError()
        timeout.__cause__ = error
        return invocation.exceeded(timeout)
    return cancelled_by_itself(implementation, error)
