"""Invocations: each change or key that a handler is called for, to success, retry or giving up.

`Invocations` is what both modes share; `EventInvocations` delivers changes, from the filter on.

A call that takes too long is a zombie until it returns: another worker replaces its worker, and no other
change of its key is delivered. An exception of user code may itself raise when it is read. That ends no
worker.
"""

import asyncio
import threading
import traceback
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from declctl.errors import FilterFailed, NotSynced
from declctl.hooks.calls import (
    EventTarget,
    Implementation,
    begin_async,
    call,
    call_async,
    cancelled_by_itself,
    describe,
    place_of,
    readable_traceback,
)
from declctl.kit import Clock
from declctl.kit.histogram import Histogram, HistogramFigures
from declctl.kit.keyed_queue import KeyedQueueStatistics, QueueItem
from declctl.kit.secret_values import secret_values
from declctl.kit.text import exception_text
from declctl.kit.worker_budget import WorkerBudget
from declctl.kit.worker_pool import ends_worker, settle_cancellation
from declctl.manifest.model import OnFailure
from declctl.objects import Cause, Change, ChangeReason, ChangeType, Notification, ObjectView, Request
from declctl.runtime.handling.binding import (
    HANDLER_BOUNDS,
    CallBinding,
    EvaluationReport,
    FilterOutcome,
    HandlerCounts,
    SlowEvaluation,
    entering_or_leaving,
)
from declctl.runtime.handling.circuit_breaker import CircuitBreaker
from declctl.runtime.handling.context import Snapshots
from declctl.runtime.handling.dead_letters import DeadLetter, DeadLetters
from declctl.runtime.handling.tap import HandlerTap, TapOutcome, TappedCall, TapSubject, is_secret
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread
from declctl.runtime.tracing import CallTrace, TracedCall, tracing
from declctl.writes import CallScope

T = TypeVar("T")

# Python 3.11 needs 150 ns to look up a member of an enum: too long for each change.
_RESYNC, _DELETED, _MODIFIED = ChangeType.RESYNC, ChangeType.DELETED, ChangeType.MODIFIED
# Changes that nobody has made just now; how long they wait says nothing about the delay of events.
_NOT_LIVE = frozenset((ChangeReason.INITIAL, ChangeReason.RESYNC, ChangeReason.REPLAY))
CANCEL_SECONDS = 1.0  # for a cancelled call to end
LONGEST_WAIT_FOR_SYNC = 30.0  # seconds between two calls that read an unsynced cache
WAIT_FOR_LIST = 0.1  # seconds between two calls whose snapshots wait for the end of a list
_SILENCE = 60.0  # seconds between two log lines about a handler that waits for a cache
# In characters: the text of an exception may contain a whole object.
_LONGEST_MESSAGE = 2000
_LONGEST_TRACEBACK = 20_000
_LONGEST_EXPRESSION = 200
_LONGEST_TRACEBACK_OF_LETTER = 4000  # its end: a handler may have a thousand letters
_LONGEST_CHAIN = 20  # causes that are followed; a chain of causes may be a ring
_MOST_FAULTS = 100  # of one handler that are remembered, so that their tracebacks are logged once
_LINES_A_MINUTE = 20  # about one fault of a handler; thousands of objects may meet it at the same time
_UNREADABLE = "an exception that raises when it is read"

_ImplementationId = tuple[str, str, str]
MemoOf = Callable[[str, str | None], object]
"""Returns the memo of an object, by its key and uid; None for the uid of an object that is gone."""
ReportOf = Callable[["Invocation[Any]", EvaluationReport], None]
"""Takes an evaluation of a filter's expression that has failed, which counts as false, or was slow."""


class Retry(NamedTuple):
    """The state of an item between two attempts; it is the `retry_state` of its queue item."""

    failed: frozenset[_ImplementationId]  # these are called again
    first_failed: int | None  # the generation on which it failed first, if it has failed
    waits: int  # how many of its retries were for a cache that had not synced, or for a suspended plugin
    is_unsynced: bool  # the newest retry is for a cache that has not synced
    failing_since: datetime | None = None  # the time of the first failure, without waits for a cache
    outcome: FilterOutcome | None = None  # what the filter has made of a change
    request: Request | None = None  # of the last call of a reconciler
    is_suspended: bool = False  # the newest retry is for a plugin that is not called (`CircuitBreaker`)
    span: Any = None  # the context of the span of the last attempt, if there are traces


class GivenUp(NamedTuple):
    """A change that was given up, as a dead letter keeps it."""

    notification: Notification
    state: Retry


class _LoopCall(NamedTuple):
    """A call that a thread has submitted to a handlers' loop, and waits for."""

    future: Future[object]
    claim: threading.Lock  # acquired once: when the call begins, or when it is revoked before that


class Invocation(msgspec.Struct, Generic[T], eq=False):
    """The processing of one item by the hooks of one handler: calls, results and exceptions.

    A worker makes the calls. Other threads write only `overdue` and `timed_out`, under the lock of
    `Invocations`, and `timer` and `cancelled_at`, on the machinery loop.
    """

    item: QueueItem[T]
    binding: CallBinding  # of the generation to which the item belongs
    started: float  # on the slot's clock, in seconds
    implementations: Sequence[Implementation]  # in the order of their calls
    replace_worker: Callable[[], None]  # of the pool that began it; the slot may have a newer pool by then
    overdue: bool = False  # the wait for it has ended: it is a zombie until it returns
    timed_out: str = ""  # the message of its timeout; the failure was counted then
    was_cancelled_at_timeout: bool = False  # its timeout has cancelled and ended it; written by its worker
    cancelled_at: str = ""  # the moment of `abandon`, in words, for messages; empty if it was not abandoned
    snapshots: Snapshots | None = None  # of the caches that the handler includes
    first_failed: int | None = None  # the generation of the first failure of the item
    # Seconds for which the oldest live change has waited for this call; None if no live change led to it, and
    # for a retry.
    lag: float | None = None
    trace: CallTrace | None = None  # None without a tracer provider
    timer: asyncio.TimerHandle | None = None  # for its timeout, on the machinery loop
    scope: asyncio.Timeout | None = None  # of a call that awaits on `loop`: only such a call can be cancelled
    loop: asyncio.AbstractEventLoop | None = None
    sent: _LoopCall | None = None
    entered: CircuitBreaker | None = None  # is to be told the outcome; taken under the lock, to tell it once
    failed: list[Implementation] = []
    failures: list[BaseException] = []  # their exceptions, in the same order

    @property
    def subject(self) -> str:
        """What the handler is called for, in messages."""
        return self.item.key

    @property
    def event_id(self) -> str:
        """The id of what the handler is called for, which its log lines and its writes have, too."""
        raise NotImplementedError

    def traced(self) -> TracedCall:
        """What the span of the call says."""
        raise NotImplementedError

    def events(self) -> Sequence[str]:
        """The ids of the events that have led to the call, as far as they are known."""
        return (self.event_id,)

    @property
    def kind(self) -> str:
        """The type of the change, for a dead letter."""
        raise NotImplementedError

    def content(self, state: Retry) -> object:
        """What a dead letter keeps, so that it can be queued again; `state` is that after this attempt."""
        raise NotImplementedError

    def tap_subject(self) -> TapSubject:
        """What `declctl tap` shows of the item."""
        raise NotImplementedError

    @property
    def most_attempts(self) -> int | None:
        """The number of attempts after which the item is given up; None if it never is."""
        return self.binding.plan.most_attempts

    def select(self, report: ReportOf) -> bool:  # noqa: ARG002 - for other modes
        """Decide which implementations are called; returns False if the item ends without a call."""
        return bool(self.implementations)

    def take_snapshots(self) -> None:
        """Take the snapshots that the handler includes, for all of its calls.

        If a cache can't be read now, nothing is called, and the failure is NotSynced.
        """
        source = self.binding.snapshots
        if source is None or self.failures:
            return
        try:
            self.snapshots = source.take()
        except NotSynced as fault:
            self.failures.append(fault)
            self.implementations = ()

    def enter_breaker(self, name: str, wake: Callable[[], None]) -> float:
        """Ask the breaker of the plugin, if it has one; returns 0, or the seconds to wait instead of a call.

        `name` is that of the handler; `wake` is called when the plugin is called again.
        """
        breaker = self.binding.breaker
        if breaker is None or self.failures:
            return 0.0
        seconds = breaker.enter(f"{name} {self.item.key}", wake)
        self.entered = None if seconds else breaker
        return seconds

    def arguments(self, implementation: Implementation, memo: MemoOf) -> Mapping[str, object]:
        """The arguments of a call."""
        raise NotImplementedError

    def take(self, result: object) -> None:
        """Receive the result of a call."""

    def retry_state(self, first_failed: int | None, waits: int, *, is_unsynced: bool) -> Retry:
        """What the next attempt needs of this one."""
        failed = frozenset(map(_identity, self.failed))
        return Retry(failed, first_failed, waits, is_unsynced)

    def revoke(self) -> bool:
        """Cancel a call that was sent to a loop; False if it has begun, or was sent to no loop."""
        sent = self.sent
        if sent is None or not sent.claim.acquire(blocking=False):
            return False
        sent.future.cancel()
        return True

    def fail(self, implementation: Implementation, failure: BaseException) -> None:
        """Keep the exception of an implementation."""
        self.failures.append(failure)
        self.failed.append(implementation)

    def call_on_loop(self, implementation: Implementation, arguments: Mapping[str, object]) -> object:
        """Call an asynchronous implementation from a thread, on the loop of the binding; returns its result.

        Raises its exception, or TimeoutError if it takes longer than the handler's timeout, or if it was
        revoked because a blocked loop has not begun it.
        """
        claim = threading.Lock()

        async def bounded() -> object:
            if not claim.acquire(blocking=False):
                return None  # revoked
            task = asyncio.current_task()
            assert task is not None
            task.set_name(f"handler {self.binding.plan.name}")
            try:
                async with asyncio.timeout(self.binding.plan.timeout):
                    return await call_async(implementation, arguments)
            except asyncio.CancelledError as error:
                if self.binding.loop.is_stopping:
                    raise
                failure = cancelled_by_itself(implementation, error)
                raise failure from failure.__cause__

        self.sent = _LoopCall(self.binding.loop.submit(bounded()), claim)
        try:
            return self.sent.future.result()
        except TimeoutError as error:  # of the scope: what the hook raises is a HandlerFailed
            raise self.exceeded(error) from None
        except CancelledError:
            raise TimeoutError(
                f"{implementation.hook} was not called: another `async def` blocks the loop that it runs on"
            ) from None
        finally:
            self.sent = None

    def exceeded(self, error: TimeoutError) -> TimeoutError:
        """The failure of a call that was cancelled, in the place of the error of its scope.

        It has a message, and the traceback of the cancellation, which shows where the hook has waited.
        """
        timeout, cancelled = self.binding.plan.timeout, error.__cause__
        message = f"it was cancelled at {self.cancelled_at}"
        if timeout is not None and not self.cancelled_at:
            self.was_cancelled_at_timeout = True
            message = _ran_longer_than(timeout)
        return TimeoutError(message).with_traceback(None if cancelled is None else cancelled.__traceback__)


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

    @property
    def kind(self) -> str:
        """The type of the change that the handler has received."""
        return str(self.change.type)

    def content(self, state: Retry) -> tuple["GivenUp", ...]:
        """The notification, and what its next attempt needs."""
        return (GivenUp(self.item.value, state),)

    def tap_subject(self) -> TapSubject:
        """The change; with both states, if one has replaced the other."""
        notification = self.item.value
        # The `old` of a Deleted is older than the state before it.
        before = notification.old if notification.type is _MODIFIED else None
        return TapSubject(
            str(self.change.type),
            str(self.change.reason),
            before=before,
            after=notification.record,
            is_secret=is_secret(notification.record),
        )

    def arguments(self, implementation: Implementation, memo: MemoOf) -> Mapping[str, object]:
        """The change, its objects, and the context."""
        change = self.change
        arguments: dict[str, object] = {"change": change, "obj": change.obj, "old": change.old}
        if "ctx" in implementation.parameters:
            # Most handlers use no memo, so it is made when it is first read.
            key = change.key
            # Most handlers do not write, so the cause is made when one does.
            scope = CallScope(key, change.obj, causes=partial(_causes, change))
            remember = partial(memo, key, change.obj.uid)
            arguments["ctx"] = self.binding.make_context(remember, scope, self.snapshots)
        return arguments

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
                self.change = entering_or_leaving(self.change, result)
                self.implementations = _event_target(self.binding).select(result.type)
        return bool(self.implementations)


class SlotQueue(Protocol[T]):
    """What a slot and its invocations need of a queue; `KeyedQueue` says what each method promises."""

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no item waits, runs or backs off."""
        ...

    def take(self) -> QueueItem[T] | None:
        """Take the next item, and hold its key; None if no item may be taken now."""
        ...

    def next_due(self) -> float | None:
        """Seconds until an item may be taken; None if none will be."""
        ...

    def done(self, item: QueueItem[T]) -> bool:
        """Note that an item was processed; returns whether its key waits again."""
        ...

    def drop(self, item: QueueItem[T]) -> bool:
        """As `done`, for an item that was not processed."""
        ...

    def retry(self, item: QueueItem[T], delay: float) -> None:
        """Hand the item out again in `delay` seconds."""
        ...

    def hurry(self, chosen: Callable[[QueueItem[T]], bool]) -> bool:
        """End the back-off of the `chosen` items; returns whether there was one."""
        ...

    def exclude_from_limit(self, item: QueueItem[T]) -> None:
        """Do not count a taken item towards the running ones any longer."""
        ...

    def part(self) -> None:
        """Stop sharing the epoch counter."""
        ...

    def hand_over(self, old: int) -> None:
        """Let the waiting items of an epoch belong to the newest one."""
        ...

    def handed_over(self, epoch: int) -> bool:
        """Whether an epoch has a backlog that was handed over."""
        ...

    def epoch_of(self, item: QueueItem[T]) -> int:
        """The epoch whose code has to process an item."""
        ...

    def outstanding(self, epoch: int) -> int:
        """How many items of an epoch are neither done nor gone."""
        ...

    @property
    def budget(self) -> WorkerBudget | None:
        """The budget whose permits are shared with other queues."""
        ...

    def share_workers(self, budget: WorkerBudget | None, wake: Callable[[], None]) -> None:
        """Share the permits of a budget from now on; None to need none."""
        ...

    def end_debounce(self) -> bool:
        """End all rests, for the newest epoch; returns whether there was one."""
        ...

    def keep_resting(self) -> tuple[bool, int]:
        """End all rests, and drop other waiting items; whether there was a rest, and the number dropped."""
        ...

    def clear(self) -> int:
        """Drop all items that wait or back off; returns how many."""
        ...

    def statistics(self) -> KeyedQueueStatistics:
        """The figures of this moment."""
        ...


class SlotOfInvocations(Protocol[T]):
    """What invocations need of their slot. The methods are called in the threads of workers."""

    @property
    def name(self) -> str:
        """The name of the handler."""
        ...

    @property
    def wake(self) -> Callable[[], None]:
        """Wakes the workers, as they may find an item."""
        ...

    def binding_of(self, item: QueueItem[T]) -> CallBinding:
        """The binding of an item."""
        ...

    @property
    def dead_letters(self) -> DeadLetters[Any]:
        """Where changes go that were given up with `onFailure: DeadLetter`."""
        ...

    def memo(self, key: str, uid: str | None) -> object:
        """The memo of an object; `uid` is None if the object is gone."""
        ...

    def ended(self, invocation: Invocation[T]) -> None:
        """Notice that an item succeeded or was given up. Its key is held still."""
        ...

    def open_latches(self) -> None:
        """Open the latches whose calls have ended. Called after each one while `has_waiters` is set."""
        ...


class Invocations(ABC, Generic[T]):
    """The invocations of one slot: makes them, watches their timeouts, and counts their outcomes.

    `loop` is the machinery's: no handler can block it, so it has the timers of calls in threads.
    """

    def __init__(
        self,
        slot: SlotOfInvocations[T],
        queue: SlotQueue[T],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: Log,
    ) -> None:
        self._name = slot.name
        self._slot = slot
        self._queue = queue
        self._loop = loop
        self._clock = clock
        self._log = log
        self._failures = FailureLog(log, slot.name, clock=clock)
        self._letters = slot.dead_letters
        self.has_waiters = False  # something waits for the end of items
        self.replace_worker: Callable[[], None] = _nothing  # of the present pool of the slot
        self.tap = HandlerTap()  # receives each call; that of the process, if the slot belongs to one
        self._lock = threading.Lock()  # guards `_running`, the figures and the tallies of bindings
        self._running: dict[int, Invocation[T]] = {}  # by their id
        self._counts = HandlerCounts()
        self._lag, self._duration = Histogram(HANDLER_BOUNDS), Histogram(HANDLER_BOUNDS)  # of calls
        self._silent_until = float("-inf")  # monotonic time of the next log line about a wait for a cache
        self._closed = False  # failed items are not retried
        self._then = ""  # what becomes of them, for the log

    def deliver(self, item: QueueItem[T]) -> bool:
        """Process one item in the calling thread. False if the thread was replaced, and has to end."""
        invocation = self._begin(item)
        if (goes_on := self._without_call(invocation)) is not None:
            return goes_on
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
        return self._finish(invocation)

    async def deliver_async(self, item: QueueItem[T]) -> bool:
        """Process one item on the loop of its binding; synchronous implementations go to a thread."""
        invocation = self._begin(item)
        if (goes_on := self._without_call(invocation)) is not None:
            return goes_on
        trace = self._trace(invocation)
        for implementation in invocation.implementations:
            arguments = invocation.arguments(implementation, self._slot.memo)
            invocation.scope = None
            try:
                if len(invocation.implementations) > 1:
                    await settle_cancellation()  # of the call before
                if trace is None:
                    await self._call_async(invocation, implementation, arguments)
                else:
                    with trace.hook(implementation.hook):
                        await self._call_async(invocation, implementation, arguments)
            except BaseException as failure:
                if ends_worker(failure):
                    self._tell_breaker(invocation, None, left=True)
                    if trace is not None:
                        trace.end([failure])
                    raise
                if isinstance(failure, asyncio.CancelledError):
                    failure = _cancelled(invocation, implementation, failure)
                invocation.fail(implementation, failure)
        return self._finish(invocation)

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
        timer = None
        if timeout is not None:
            # A call may suppress its cancellation, and go on.
            why = f"it goes on, though it was cancelled at its timeout of {timeout:g} s"
            timer = invocation.loop.call_later(timeout + CANCEL_SECONDS, self._time_out, invocation, why)
        try:
            async with asyncio.timeout(timeout) as invocation.scope:
                invocation.take(await rest)
        except TimeoutError as error:  # of the scope, as above
            raise invocation.exceeded(error) from None
        finally:
            if timer is not None:
                timer.cancel()

    def recover(self, item: QueueItem[T], fault: BaseException) -> bool:
        """End the call for an item after a fault of declctl itself; returns whether the worker goes on.

        The item is retried with its back-off, without a limit: the handler has not failed. It is called
        again with all of its hooks, as it is not known which of them have succeeded.
        """
        binding = self._slot.binding_of(item)
        with self._lock:
            invocation = next((each for each in self._running.values() if each.item is item), None)
            # The worker of a zombie has been replaced.
            replaced = item.excluded if invocation is None else invocation.overdue
            if invocation is not None:
                del self._running[id(invocation)]
                self._counts.zombies -= invocation.overdue
        if invocation is not None:
            self._tell_breaker(invocation, None, left=True)
            if invocation.timer is not None:
                self._loop.call_soon_threadsafe(invocation.timer.cancel)
        again = item.taken and not self._closed
        if invocation is not None and self.tap.is_open:
            outcome = TapOutcome.RETRIED if again else TapOutcome.FAILED
            self._tell(invocation, outcome, f"internal fault of declctl: {describe_failure(fault)}", fault)
        if again:
            try:
                self._queue.retry(item, self._delay(binding, item.attempts + 1 - _waits(item)))
            except BaseException:  # noqa: BLE001 - the key must not be held for ever
                again = False
        if item.taken:
            self._queue.done(item)
        if invocation is not None and invocation.trace is not None:
            invocation.trace.end([fault])
        what, tally = f"internal fault of declctl: {describe_failure(fault)}", binding.tally
        with self._lock:
            self._counts.last_error = tally.last_error = f"{item.key}: {what}"
            self._counts.last_error_type = _failure_type(fault)
            self._counts.last_error_time = self._clock.now()
            if invocation is not None:  # it is counted once: `_finish` has counted any other one
                tally.calls += 1
                tally.failed += 1
                self._counts.retried += again
                self._counts.failed += not again
        self._failures.internal(binding, item.key, what, fault, again=again)
        self._slot.wake()
        if self.has_waiters:
            self._slot.open_latches()
        return not replaced

    def close(self, *, then: str = "") -> None:
        """Retry nothing any more: the handler was removed, or the process ends.

        `then` says for the log what becomes of a call that fails; by default it is given up.
        """
        self._then = self._then or then
        self._closed = True

    def of(self, binding: CallBinding | None) -> list[Invocation[T]]:
        """The invocations of a binding that have not ended."""
        with self._lock:
            return [invocation for invocation in self._running.values() if invocation.binding is binding]

    def keys(self, bindings: Collection[int] | None = None) -> list[str]:
        """The keys of running invocations, for messages; `bindings` (their ids) limits them."""
        with self._lock:
            invocations = self._running.values()
            return [
                invocation.item.key
                for invocation in invocations
                if bindings is None or id(invocation.binding) in bindings
            ]

    def abandon(self, binding: CallBinding | None, *, at: str = "the drain timeout of a reload") -> int:
        """Wait no longer for the calls of a binding; returns how many there were.

        Calls that wait on a loop are cancelled. The others become zombies, and so does a call that goes on
        after its cancellation. `at` names the moment, for messages.
        """
        # Zombies were given up before, and are not counted again.
        stuck = [invocation for invocation in self.of(binding) if not invocation.overdue]
        for invocation in stuck:
            invocation.cancelled_at = at
            scope = invocation.scope  # read once: its worker may end the call at this moment
            if scope is not None and invocation.loop is not None:
                invocation.loop.call_soon_threadsafe(_cancel, scope)
                why = f"it goes on, though it was cancelled at {at}"
                self._loop.call_soon_threadsafe(
                    self._loop.call_later, CANCEL_SECONDS, self._give_up_waiting, invocation, why
                )
            elif not invocation.revoke():  # a revoked call fails at once, and is retried: its loop is blocked
                self._give_up_waiting(invocation, f"it outlived {at}")
        return len(stuck)

    def counts(self) -> HandlerCounts:
        """A copy of the counts of this moment."""
        with self._lock:
            return replace(self._counts, durations=self._counts.durations.copy())

    def histograms(self) -> tuple[HistogramFigures, HistogramFigures]:
        """The lags of live changes, and the durations of all calls, since the process started."""
        with self._lock:
            return self._lag.figures(), self._duration.figures()

    def time_out_blocked(self) -> None:
        """Fail the calls whose timeout has passed, and whose timer can't run on their blocked loop."""
        now = self._clock.monotonic()
        with self._lock:
            invocations = [
                invocation
                for invocation in self._running.values()
                if invocation.binding.loop.is_blocked and not invocation.overdue
            ]
        for invocation in invocations:
            timeout = invocation.binding.plan.timeout
            if timeout is not None and now - invocation.started > timeout + CANCEL_SECONDS:
                self._time_out(invocation, _ran_longer_than(timeout))

    def report_expression(self, binding: CallBinding, key: str, report: EvaluationReport) -> None:
        """Count and log an evaluation of the filter's expression that failed or was slow. From any thread."""
        if isinstance(report, SlowEvaluation):
            with self._lock:
                self._counts.slow_expressions += 1
            self._failures.expression_slow(binding, key, report)
            return
        with self._lock:
            self._counts.expression_errors += 1
        self._failures.expression_failed(binding, key, str(report))

    def _report_expression(self, invocation: Invocation[T], report: EvaluationReport) -> None:
        self.report_expression(invocation.binding, invocation.item.key, report)

    def _delay(self, binding: CallBinding, attempt: int) -> float:
        """The seconds to wait after failed attempt number `attempt`."""
        return binding.backoff.delay(attempt)

    def _is_final(self, failures: Sequence[BaseException]) -> bool:  # noqa: ARG002 - for other modes
        """Whether failures forbid another attempt."""
        return False

    @abstractmethod
    def _make(self, item: QueueItem[T], binding: CallBinding) -> Invocation[T]:
        """An invocation for an item that was taken. Raises nothing."""

    def _end(self, invocation: Invocation[T], end: Callable[[QueueItem[T]], bool]) -> None:
        """End an item by `end`, a method of the queue."""
        self._slot.ended(invocation)
        if end(invocation.item):
            self._slot.wake()

    def _succeed(self, invocation: Invocation[T]) -> None:
        """End an item whose calls have succeeded."""
        self._letters.succeeded(invocation.item.key)
        self._end(invocation, self._queue.done)

    @staticmethod
    def _trace(invocation: Invocation[T]) -> CallTrace | None:
        """Begin the trace of a call; None if there is no tracer provider."""
        traces = tracing()
        if traces is not None:
            retry: Retry | None = invocation.item.retry_state
            before = None if retry is None else retry.span
            invocation.trace = traces.begin(invocation.traced(), before=before, events=invocation.events())
        return invocation.trace

    def _begin(self, item: QueueItem[T]) -> Invocation[T]:
        binding = self._slot.binding_of(item)
        invocation = self._make(item, binding)
        retry: Retry | None = item.retry_state
        if retry is not None:
            invocation.first_failed = retry.first_failed
            # Only failed implementations are called again. If the new code has none of them, all are called.
            selected = invocation.implementations
            invocation.implementations = (
                tuple(i for i in selected if _identity(i) in retry.failed) or selected
            )
        with self._lock:
            self._running[id(invocation)] = invocation
        # A timer of the machinery loop, as another handler may block the loop of the binding.
        if binding.plan.timeout is not None and not binding.target.all_async:
            self._loop.call_soon_threadsafe(self._watch, invocation, binding.plan.timeout)
        return invocation

    def _without_call(self, invocation: Invocation[T]) -> bool | None:
        """End an invocation without a call; returns as `deliver` does. None if its hooks are to be called."""
        if not invocation.select(self._report_expression):
            return self._leave_out(invocation)
        invocation.take_snapshots()
        seconds = invocation.enter_breaker(self._name, self._hurry_suspended)
        return self._put_off(invocation, seconds) if seconds else None

    def _leave_out(self, invocation: Invocation[T]) -> bool:
        """End a change without a call. Returns the result of `deliver`."""
        disabled = bool(invocation.binding.target.disabled)
        with self._lock:
            del self._running[id(invocation)]
            self._counts.filtered += not disabled
            self._counts.zombies -= invocation.overdue
        if invocation.timer is not None:
            self._loop.call_soon_threadsafe(invocation.timer.cancel)
        if self.tap.is_open:
            self._tell(invocation, TapOutcome.FILTERED)
        self._end(invocation, self._queue.drop if disabled else self._queue.done)
        if self.has_waiters:
            self._slot.open_latches()
        return not invocation.overdue

    def _put_off(self, invocation: Invocation[T], seconds: float) -> bool:
        """Ask again later for a call that the breaker of its plugin has refused. Returns as `deliver`.

        It is no attempt, and no failure.
        """
        with self._lock:
            del self._running[id(invocation)]
            self._counts.zombies -= invocation.overdue
        if invocation.timer is not None:
            self._loop.call_soon_threadsafe(invocation.timer.cancel)
        if self.tap.is_open:
            self._tell(invocation, TapOutcome.WAITING, "its plugin is suspended")
        if self._closed:
            self._end(invocation, self._queue.drop)  # there will be no retry
        else:
            waits, first = _waits(invocation.item) + 1, invocation.first_failed
            self._retry(invocation, seconds, first, waits, is_unsynced=False, is_suspended=True)
        if self.has_waiters:
            self._slot.open_latches()
        return not invocation.overdue

    def _finish(self, invocation: Invocation[T]) -> bool:
        """End a change after its calls, or retry it. Returns the result of `deliver`."""
        self._count_end(invocation)
        if invocation.timer is not None:
            self._loop.call_soon_threadsafe(invocation.timer.cancel)
        if invocation.trace is not None:
            invocation.trace.end(invocation.failures)
        try:
            if invocation.failures:
                self._fail(invocation)
            else:
                if self.tap.is_open:
                    self._tell(invocation, TapOutcome.SUCCEEDED)
                self._succeed(invocation)
                self._tell_breaker(invocation, None)
        except BaseException:
            # A fault of declctl. `recover` does not find the invocation, as `_count_end` has removed it.
            self._tell_breaker(invocation, None, left=True)
            raise
        if self.has_waiters:
            self._slot.open_latches()
        return not invocation.overdue

    def _count_end(self, invocation: Invocation[T]) -> None:
        """Count a call that has returned. From here on no timer can make it a zombie."""
        counts, tally = self._counts, invocation.binding.tally
        took = self._clock.monotonic() - invocation.started
        with self._lock:
            del self._running[id(invocation)]
            counts.durations.append(took)
            self._duration.add(took)
            if invocation.lag is not None:
                self._lag.add(invocation.lag)
            if invocation.overdue:
                counts.zombies -= 1
            elif took > tally.longest:
                tally.longest = took
            # A call that returned after its timeout has failed: the timeout has counted it so.
            if invocation.timed_out and not invocation.failures:
                invocation.failures.append(TimeoutError(invocation.timed_out))
            if not invocation.failures:
                tally.calls += 1
                counts.succeeded += 1

    def _fail(self, invocation: Invocation[T]) -> None:
        """Retry or give up a change whose call has failed, and tell the breaker of its plugin."""
        unsynced = [not_synced_by(failure) for failure in invocation.failures]
        if unsynced[0] is not None and all(fault is not None for fault in unsynced):
            self._wait_for_sync(invocation, unsynced[0])
            self._tell_breaker(invocation, None, left=True)
        else:
            # A Terminal is a decision about one object, and no fault of the plugin.
            what = None if self._is_final(invocation.failures) else describe_failure(invocation.failures[0])
            self._retry_or_give_up(invocation)
            self._tell_breaker(invocation, what)
        # Their tracebacks refer to the invocation: a cycle would keep the code of its generation until a
        # collection.
        invocation.failures.clear()

    def _watch(self, invocation: Invocation[T], timeout: float) -> None:
        """Start the timer of a call. On the machinery loop."""
        if id(invocation) in self._running:
            invocation.timer = self._loop.call_later(
                timeout, self._time_out, invocation, _ran_longer_than(timeout)
            )

    def _time_out(self, invocation: Invocation[T], message: str) -> None:
        with self._lock:
            if id(invocation) not in self._running or invocation.timed_out:
                return
            # It counts as failed now: a call that never returns would otherwise never be counted.
            invocation.timed_out = message
            self._counts.timeouts += 1
            self._count_failure(invocation, f"TimeoutError: {message}", "TimeoutError")
        self._tell_breaker(invocation, f"TimeoutError: {message}")
        # A call that its blocked loop has not begun ends now. What the thread calls next has as much time.
        if invocation.revoke() and (timeout := invocation.binding.plan.timeout) is not None:
            give_up = partial(self._give_up_waiting, invocation, message)
            self._loop.call_soon_threadsafe(self._loop.call_later, timeout, give_up)
        else:
            self._give_up_waiting(invocation, message)

    def _give_up_waiting(self, invocation: Invocation[T], why: str) -> None:
        with self._lock:
            if id(invocation) not in self._running or invocation.overdue:
                return
            invocation.overdue = True
            self._counts.zombies += 1
            self._queue.exclude_from_limit(invocation.item)
        if self.tap.is_open:
            self._tell(invocation, TapOutcome.OVERDUE, why)
        self._log.warning(
            f"{self._name}: the call for {invocation.item.key} is not waited for any longer: {why}; "
            "its key is held until it returns",
            handler=self._name,
            key=invocation.item.key,
            generation=invocation.binding.generation,
            event_id=invocation.event_id,
        )
        # Its timeout has told the breaker. Without one, a trial that never returns would keep it half open.
        self._tell_breaker(invocation, None, left=True)
        invocation.replace_worker()  # of the pool that it began in: a newer one is complete
        self._slot.wake()  # workers of another pool may wait until they are let in

    def _count_failure(self, invocation: Invocation[T], what: str, kind: str) -> None:
        """Count a failure for the slot and for the generation. Under the lock, once for each call."""
        tally, first = invocation.binding.tally, invocation.first_failed
        self._counts.last_error = tally.last_error = f"{invocation.item.key}: {what}"
        self._counts.last_error_type = kind
        self._counts.last_error_time = self._clock.now()
        tally.calls += 1
        tally.failed += 1
        if first is not None and first != invocation.binding.generation:
            tally.inherited[first] = tally.inherited.get(first, 0) + 1

    def _retry_or_give_up(self, invocation: Invocation[T]) -> None:
        """Count and log a failure, and retry the change as often as the plan allows."""
        item, most = invocation.item, invocation.most_attempts
        waits = _waits(item)
        attempt = item.attempts + 1 - waits
        again = most is None or attempt < most
        again = again and not self._closed  # a removed handler has no worker for the retry
        is_final = self._is_final(invocation.failures)
        again = again and not is_final
        delay = self._delay(invocation.binding, attempt) if again else 0.0
        what = describe_failure(invocation.failures[0])
        with self._lock:
            if not invocation.timed_out:  # a timeout has counted itself
                self._count_failure(invocation, what, _failure_type(invocation.failures[0]))
                self._counts.timeouts += invocation.was_cancelled_at_timeout
            self._counts.terminal_failures += is_final
            if again:
                self._counts.retried += 1
            else:
                self._counts.failed += 1
        then = self._then if self._closed else ""
        self._failures.failed(invocation, what, delay if again else None, attempt=attempt, then=then)
        keeps = not again and invocation.binding.plan.on_failure is OnFailure.DEAD_LETTER and not self._closed
        if self.tap.is_open:
            given_up = TapOutcome.DEAD_LETTER if keeps else TapOutcome.FAILED
            outcome = TapOutcome.RETRIED if again else given_up
            self._tell(invocation, outcome, what, invocation.failures[0], delay if again else None)
        if again:
            self._retry(invocation, delay, self._first_failed(invocation), waits, is_unsynced=False)
            return
        if keeps:
            # Before the end of the item: a newer success of its key, which comes later, forgets the letter.
            self._letters.put(*self._dead_letter(invocation, what, attempt))
        self._end(invocation, self._queue.done)

    @staticmethod
    def _first_failed(invocation: Invocation[T]) -> int:
        """The generation on which an item that has failed now failed first."""
        first = invocation.first_failed
        return invocation.binding.generation if first is None else first

    def _dead_letter(self, invocation: Invocation[T], what: str, attempt: int) -> tuple[DeadLetter, object]:
        """The letter of an item that is given up, and its content."""
        now = self._clock.now()
        state = invocation.retry_state(None, 0, is_unsynced=False)
        letter = DeadLetter(
            handler=self._name,
            key=invocation.item.key,
            type=invocation.kind,
            error=what,
            error_type=_failure_type(invocation.failures[0]),
            traceback=_end_of_traceback(invocation.failures),
            attempts=attempt,
            first_failed_at=_failing_since(invocation.item) or now,
            failed_at=now,
            generation=invocation.binding.generation,
        )
        return letter, invocation.content(state)

    def _wait_for_sync(self, invocation: Invocation[T], fault: NotSynced) -> None:
        """Retry a call that has read a cache that has not synced; it does not count as an attempt."""
        waits = _waits(invocation.item) + 1
        what, now = describe_failure(fault), self._clock.monotonic()
        with self._lock:
            self._counts.last_error = f"{invocation.item.key}: {what}"
            self._counts.last_error_type = NotSynced.__name__
            self._counts.last_error_time = self._clock.now()
            self._counts.retried += 1
            is_due = now >= self._silent_until
            if is_due:
                self._silent_until = now + _SILENCE
        if self.tap.is_open:
            self._tell(invocation, TapOutcome.WAITING, what, fault)
        if is_due:
            self._failures.waits(invocation, what)
        if self._closed:
            self._end(invocation, self._queue.drop)  # there will be no retry
        else:
            longest = WAIT_FOR_LIST if fault.is_relisted else LONGEST_WAIT_FOR_SYNC
            delay = min(invocation.binding.backoff.delay(waits), longest)
            self._retry(invocation, delay, invocation.first_failed, waits, is_unsynced=True)

    def _tell(
        self,
        invocation: Invocation[T],
        outcome: TapOutcome,
        error: str = "",
        failure: BaseException | None = None,
        retry_in: float | None = None,
    ) -> None:
        """Hand the end of a call to the tap. Called only while somebody listens."""
        subject, plan = invocation.tap_subject(), invocation.binding.plan
        self.tap.called(
            TappedCall(
                at=self._clock.now(),
                handler=self._name,
                resource=plan.resource,
                key=invocation.item.key,
                type=subject.type,
                outcome=outcome,
                seconds=self._clock.monotonic() - invocation.started,
                generation=invocation.binding.generation,
                attempt=invocation.item.attempts + 1 - _waits(invocation.item),
                reason=subject.reason,
                causes=subject.causes,
                error=error,
                error_type="" if failure is None else _failure_type(failure),
                retry_in=retry_in,
                before=subject.before,
                after=subject.after,
                is_secret=subject.is_secret,
            )
        )

    def _tell_breaker(self, invocation: Invocation[T], failure: str | None, *, left: bool = False) -> None:
        """Tell the breaker that the call has entered how it has ended, once: a zombie has failed already.

        `left`: it has ended without a verdict on the plugin.
        """
        with self._lock:
            breaker, invocation.entered = invocation.entered, None
        if breaker is None:
            return
        subject = f"{self._name} {invocation.item.key}"
        if left:
            breaker.left(subject)
        elif failure is None:
            breaker.succeeded(subject)
        else:
            breaker.failed(subject, failure)

    def _hurry_suspended(self) -> None:
        """The plugin is called again: end the waits for it. From any thread."""
        if self._queue.hurry(is_suspended):
            self._slot.wake()

    def _retry(
        self,
        invocation: Invocation[T],
        delay: float,
        first_failed: int | None,
        waits: int,
        *,
        is_unsynced: bool,
        is_suspended: bool = False,
    ) -> None:
        state = invocation.retry_state(first_failed, waits, is_unsynced=is_unsynced)
        before: Retry | None = invocation.item.retry_state
        if is_suspended and before is not None:
            state = state._replace(failed=before.failed)  # nothing was called: the same hooks are due
        since = _failing_since(invocation.item)
        if since is None and not is_unsynced and not is_suspended:
            since = self._clock.now()
        # An item that was only suspended has no span: the link is to the attempt before.
        span = None if before is None else before.span
        if invocation.trace is not None:
            span = invocation.trace.context
        invocation.item.retry_state = state._replace(
            failing_since=since, is_suspended=is_suspended, span=span
        )
        self._queue.retry(invocation.item, delay)
        if self._closed:  # it was closed after the check of the caller
            self._queue.clear()
        self._slot.wake()


def _causes(change: Change) -> tuple[Cause, ...]:
    return (Cause(str(change.type), change.resource, str(change.key), str(change.reason)),)


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
            obj=ObjectView(record),
            old=None if old is None else ObjectView(old),
            initial=notification.initial,
            final_state_unknown=notification.final_state_unknown,
            reason=notification.reason,
            generation=binding.generation,
            received=notification.received_at,
        )
        selected = _event_target(binding).select(kind)
        began = self._clock.monotonic()
        invocation = EventInvocation(
            item, binding, began, selected, self.replace_worker, change=change, outcome=outcome
        )
        if retry is None and not item.attempts and notification.reason not in _NOT_LIVE:
            # A change that was merged with older ones has waited since the oldest of them.
            invocation.lag = began - item.added_at
        return invocation


class _FaultLines(msgspec.Struct):
    """The lines about one fault within a minute."""

    since: float  # monotonic seconds at which the minute began
    logged: int = 0
    left_out: int = 0  # since the last line


class FailureLog:
    """The log of the failures of one handler: a traceback for each distinct fault, then a line with a count.

    A fault is distinct by its generation, its types and the lines that raised. The newest 100 are
    remembered; one that was forgotten has its traceback logged again. A fault has at most `_LINES_A_MINUTE`
    lines each minute; further ones are left out, and the next line has their number. Used by any worker.
    """

    def __init__(self, log: Log, name: str, *, clock: Clock) -> None:
        self._log = log
        self._name = name  # of the handler
        self._clock = clock
        self._lines: OrderedDict[tuple[object, ...], _FaultLines] = OrderedDict()  # by fault, the newest last
        self._lock = threading.Lock()  # guards `_lines` and `_times`
        self._times: OrderedDict[tuple[object, ...], int] = OrderedDict()  # by fault, the newest last

    def failed(
        self, invocation: Invocation[Any], what: str, delay: float | None, *, attempt: int, then: str = ""
    ) -> None:
        """Log the failures of one attempt.

        The next is in `delay` seconds; None: the change is given up, or `then` says what becomes of it.
        """
        item, limit = invocation.item, invocation.most_attempts
        sentence = f"{self._name} failed on {invocation.subject}: {what}"
        fields: dict[str, object] = {}
        fault: tuple[object, ...] = (invocation.binding.generation, _UNREADABLE)
        try:
            # The text of an exception is left out, as it may name the object.
            causes = [_raised(failure) for failure in invocation.failures]
            places = [(type(cause).__qualname__, place_of(cause)) for cause in causes]
            fault = (invocation.binding.generation, *places)
            times = self.count(fault)
            if times == 1:
                traces = "".join(readable_traceback(failure) for failure in invocation.failures)
                fields["traceback"] = traces[:_LONGEST_TRACEBACK]
            else:
                place = f"{places[0][1]}, " if places[0][1] else ""
                sentence += f" ({place}{times} times by now; the first has the traceback)"
        except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
            times = 1
            fields["traceback"] = _UNREADABLE
        # The lines about changes that are given up are counted apart: these are lost.
        left_out = self._admit((*fault, delay is None))
        if left_out is None:
            return
        if left_out:
            sentence += f" ({left_out:,} lines like this were left out)"
            fields["left_out"] = left_out
        if invocation.trace is not None:
            fields |= invocation.trace.ids()
        number = f"attempt {attempt}" + (f" of {limit}" if limit else "")
        if delay is not None:
            then = f"again in {delay:.3g} s"
        elif then:
            pass
        elif invocation.binding.plan.on_failure is OnFailure.DEAD_LETTER:
            then = "given up: `declctl get deadletters` has it"
        else:
            then = "given up"
        self._log.error(
            f"{sentence}; {number}, {then}",
            handler=self._name,
            key=item.key,
            generation=invocation.binding.generation,
            event_id=invocation.event_id,
            error_type=_failure_type(invocation.failures[0]),
            error=_failure_text(invocation.failures[0]),
            times=times,
            attempt=attempt,
            max_attempts=limit,
            retry_in=None if delay is None else round(delay, 3),
            **fields,
        )

    def internal(
        self, binding: CallBinding, key: str, what: str, fault: BaseException, *, again: bool
    ) -> None:
        """Log a fault of declctl itself, which has ended a call, with its whole traceback."""
        try:
            trace = "".join(traceback.format_exception(fault))[:_LONGEST_TRACEBACK]
        except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
            trace = _UNREADABLE
        then = "the call is made again" if again else "the call is not made again"
        self._log.error(
            f"{self._name}: the call for {key} has ended by an {what}; {then}; please report it",
            handler=self._name,
            key=key,
            generation=binding.generation,
            error_type=_failure_type(fault),
            traceback=trace,
        )

    def expression_failed(self, binding: CallBinding, key: str, message: str) -> None:
        """Log the first of equal failures of a filter's expression; then the 10th, the 100th, and so on."""
        times = self.count((binding.generation, "filter.expression", message))
        if str(times).rstrip("0") == "1":
            again = "" if times == 1 else f" ({times} times by now)"
            self._log.warning(
                f"{self._name}: filter.expression failed on {key}, which counts as false: {message}{again}",
                handler=self._name,
                key=key,
                generation=binding.generation,
                times=times,
            )

    def expression_slow(self, binding: CallBinding, key: str, slow: SlowEvaluation) -> None:
        """Log the first slow evaluation of an expression; then the 10th, the 100th, and so on."""
        times = self.count((binding.generation, "slow filter.expression", slow.expression))
        if str(times).rstrip("0") == "1":
            again = "" if times == 1 else f" ({times} slow evaluations by now)"
            text = slow.expression[:_LONGEST_EXPRESSION]
            self._log.warning(
                f"{self._name}: filter.expression took {slow.seconds:.3g} s on {key}, and all of declctl "
                f"stood still; a shorter list or shorter texts are faster: {text!r}{again}",
                handler=self._name,
                key=key,
                generation=binding.generation,
                seconds=round(slow.seconds, 3),
                times=times,
            )

    def waits(self, invocation: Invocation[Any], what: str) -> None:
        """Log that the handler waits for a cache that it reads. Called once a minute, not for each call."""
        self._log.warning(
            f"{self._name} waits with {invocation.item.key}, and maybe with others: {what}; it is called "
            "again until the cache can be read, which does not count as an attempt",
            handler=self._name,
            key=invocation.item.key,
            generation=invocation.binding.generation,
            event_id=invocation.event_id,
        )

    def _admit(self, fault: tuple[object, ...]) -> int | None:
        """Count a line about a fault. None if it is left out, else how many were left out before it."""
        now = self._clock.monotonic()
        with self._lock:
            lines = self._lines.pop(fault, None) or _FaultLines(now)
            self._lines[fault] = lines
            if len(self._lines) > 2 * _MOST_FAULTS:
                self._lines.popitem(last=False)
            if now - lines.since >= _SILENCE:
                lines.since, lines.logged = now, 0
            if lines.logged >= _LINES_A_MINUTE:
                lines.left_out += 1
                return None
            lines.logged += 1
            left_out, lines.left_out = lines.left_out, 0
            return left_out

    def count(self, fault: tuple[object, ...]) -> int:
        """Count a fault; returns the number of equal ones that are remembered."""
        with self._lock:
            times = self._times[fault] = self._times.pop(fault, 0) + 1
            if len(self._times) > _MOST_FAULTS:
                self._times.popitem(last=False)
            return times

    @property
    def remembered(self) -> int:
        """The number of distinct faults that are remembered."""
        return len(self._times)


def describe_failure(failure: BaseException) -> str:
    """The failure in a sentence of at most 2000 characters, for status and log."""
    try:
        what = str(failure) if isinstance(failure, FilterFailed) else describe(_raised(failure))
        return secret_values.hide(what[: 2 * _LONGEST_MESSAGE])[:_LONGEST_MESSAGE]
    except BaseException:  # noqa: BLE001 - user code: its text may raise anything
        return _UNREADABLE


def not_synced_by(failure: BaseException) -> NotSynced | None:
    """The NotSynced that made a call fail, as it has read an unsynced cache; None for other failures.

    It is the failure itself, its cause (`raise … from error`), or a member of a group of such failures. An
    error that is raised in an `except NotSynced:` without `from` is another failure.
    """
    try:
        return _not_synced(failure)
    except BaseException:  # noqa: BLE001 - user code: its cause may raise anything
        return None


def is_unsynced(item: QueueItem[Any]) -> bool:
    """Whether a change waits for its next attempt because its last call has read an unsynced cache."""
    retry: Retry | None = item.retry_state
    return retry is not None and retry.is_unsynced


def is_suspended(item: QueueItem[Any]) -> bool:
    """Whether a change waits because the breaker of its plugin has refused its call."""
    retry: Retry | None = item.retry_state
    return retry is not None and retry.is_suspended


def _not_synced(failure: BaseException) -> NotSynced | None:
    error: BaseException | None = failure
    # Not `__context__`: an error that is raised while a NotSynced is handled is another failure.
    for _ in range(_LONGEST_CHAIN):
        if error is None or isinstance(error, NotSynced):
            return error
        if isinstance(error, BaseExceptionGroup):
            several: tuple[BaseException, ...] = error.exceptions
            found = [_not_synced(each) for each in several]
            return None if None in found else found[0]
        error = error.__cause__
    return None


def _failure_type(failure: BaseException) -> str:
    """The class of the failure. Unlike its text, all clients of the admin server may see it."""
    try:
        return type(_raised(failure)).__name__
    except BaseException:  # noqa: BLE001 - as above
        return "Exception"


def _failure_text(failure: BaseException) -> str:
    """The text of the failure without its class, of at most 2000 characters."""
    try:
        return exception_text(_raised(failure))[:_LONGEST_MESSAGE]
    except BaseException:  # noqa: BLE001 - as above
        return _UNREADABLE


def _raised(failure: BaseException) -> BaseException:
    """What user code has raised; `or` is not used, because bool() of the exception may be False or raise."""
    return failure if failure.__cause__ is None else failure.__cause__


def _event_target(binding: CallBinding) -> EventTarget:
    """The target of a binding of `mode: Event`; that of a disabled plugin has no functions."""
    target = binding.target
    return target if isinstance(target, EventTarget) else EventTarget((), disabled=target.disabled)


def _identity(implementation: Implementation) -> _ImplementationId:
    """The identity of an implementation across generations."""
    function = implementation.function
    return implementation.hook, implementation.plugin, getattr(function, "__qualname__", repr(function))


def _waits(item: QueueItem[Any]) -> int:
    """The retries of an item because of an unsynced cache or a suspended plugin; they are no attempts."""
    retry: Retry | None = item.retry_state
    return 0 if retry is None else retry.waits


def _failing_since(item: QueueItem[Any]) -> datetime | None:
    """The time of the first failure of an item; None if it has not failed before."""
    retry: Retry | None = item.retry_state
    return None if retry is None else retry.failing_since


def _end_of_traceback(failures: Sequence[BaseException]) -> str:
    """The end of the tracebacks, where the lines of the handler and the exception are."""
    try:
        traces = "".join(map(readable_traceback, failures))
        return traces[-_LONGEST_TRACEBACK_OF_LETTER:]
    except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
        return _UNREADABLE


def _ran_longer_than(timeout: float) -> str:
    return f"it ran longer than its timeout of {timeout:g} s"


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


def _cancel(scope: asyncio.Timeout) -> None:
    """Cancel a call. On its loop."""
    if not scope.expired():
        scope.reschedule(0.0)  # a time in the past


def _nothing() -> None:
    """Do nothing: the slot has no workers yet."""
