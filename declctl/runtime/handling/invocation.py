"""An invocation: the processing of one change or key by the hooks of one handler.

It knows what to call and with which arguments, how to call it, and what a next attempt needs of this one. It
tells nobody how it has ended: `invocations` does.
"""

import asyncio
import threading
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from declctl.errors import InvalidObject, NotSynced
from declctl.hooks.calls import Implementation, call_async, cancelled_by_itself
from declctl.kit import Clock
from declctl.kit.key_queue import QueueItem
from declctl.objects import ObjectView, Request
from declctl.runtime.handling.circuit_breaker import CircuitBreaker
from declctl.runtime.handling.context import Snapshots
from declctl.runtime.handling.outcomes import InvocationOutcome, ran_longer_than
from declctl.runtime.handling.tap import TapOutcome, TappedCall, TapSubject
from declctl.runtime.recorder import EndedCall
from declctl.runtime.tracing import CallTrace, TracedCall
from declctl.writes import CallScope

if TYPE_CHECKING:  # for annotations alone
    from declctl.objects.expressions import EvaluationFailed
    from declctl.runtime.handling.binding import CallBinding, FilterOutcome

T = TypeVar("T")

ImplementationId = tuple[str, str, str]
"""The hook, the plugin and the function of an implementation: the same in all generations."""
MemoOf = Callable[[str, str | None], object]
"""Returns the memo of an object, by its key and uid; None for the uid of an object that is gone."""
ReportOf = Callable[["Invocation[Any]", "EvaluationFailed"], None]
"""Takes an evaluation of a filter's expression that has failed, which counts as false."""


class Retry(NamedTuple):
    """The state of an item between two attempts; it is the `retry_state` of its queue item."""

    failed: frozenset[ImplementationId]  # these are called again
    first_failed: int | None  # the generation on which it failed first, if it has failed
    waits: int  # how many of its retries were no attempts: of a cache, a suspended plugin, a fault of declctl
    is_unsynced: bool  # the newest retry is for a cache that has not synced
    outcome: "FilterOutcome | None" = None  # what the filter has made of a change
    request: Request | None = None  # of the last call of a reconciler
    is_suspended: bool = False  # the newest retry is for a plugin that is not called (`CircuitBreaker`)
    span: Any = None  # the context of the span of the last attempt, if there are traces
    was_called: bool = True  # in one of the attempts, hooks were called and came to an end
    error_type: str | None = None  # of the newest attempt that has failed


class CallTimedOut(TimeoutError):
    """An isolated call has exceeded the timeout of its handler, and was ended."""


CallTimedOut.__name__ = "TimeoutError"  # as log and status have it for calls in threads and on loops


class _LoopCall(NamedTuple):
    """A call that a thread has submitted to a handlers' loop, and waits for."""

    future: Future[object]
    claim: threading.Lock  # acquired once: when the call begins, or when it is revoked before that


class _AbstractStructMeta(msgspec.StructMeta, ABCMeta):
    """The metaclass of a struct that has abstract methods."""


class Invocation(msgspec.Struct, Generic[T], eq=False, metaclass=_AbstractStructMeta):
    """The processing of one item by the hooks of one handler: calls, results and exceptions.

    A worker makes the calls. Other threads write only `overdue` and `timed_out`, under the lock of
    `CallsUnderWay`; `keeps_worker`, with or after `overdue`; and `timer` and `cancelled_at`, on the machinery
    loop.
    """

    item: QueueItem[T]
    binding: "CallBinding"  # of the generation to which the item belongs
    started: float  # on the slot's clock, in seconds
    implementations: Sequence[Implementation]  # in the order of their calls
    replace_worker: Callable[[], None]  # of the pool that began it; the slot may have a newer pool by then
    overdue: bool = False  # the wait for it has ended: it is a zombie until it returns
    keeps_worker: bool = False  # of a zombie: no other worker has taken the place of its worker
    timed_out: str = ""  # the message of its timeout; the failure was counted then
    was_cancelled_at_timeout: bool = False  # its timeout has cancelled and ended it; written by its worker
    cancelled_at: str = ""  # the moment of `abandon`, in words, for messages; empty if it was not abandoned
    # Its shard has left this process while it ran: it may write nothing any more, whatever comes back.
    is_cut_off: bool = False
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
    recorded: int = 0  # its number in the recording of the process; 0 without a recorder
    misfit: InvalidObject | None = None  # what keeps the hooks from being called: their object does not fit
    failed: list[Implementation] = []
    failures: list[BaseException] = []  # their exceptions, in the same order

    @property
    def subject(self) -> str:
        """What the handler is called for, in messages."""
        return self.item.key

    @property
    @abstractmethod
    def event_id(self) -> str:
        """The id of what the handler is called for, which its log lines and its writes have, too."""

    @property
    @abstractmethod
    def uid(self) -> str:
        """The uid of the object of the call; empty if there is none."""

    @property
    @abstractmethod
    def fitting(self) -> ObjectView | None:
        """The object that has to fit its class before a hook is called; None if there is none."""

    @abstractmethod
    def call_scope(self) -> CallScope:
        """The object of the call, and the causes of its writes."""

    def only(self, *steps: Implementation) -> None:
        """Make these steps in the place of all hooks."""
        self.implementations = steps

    @abstractmethod
    def traced(self) -> TracedCall:
        """What the span of the call says."""

    def events(self) -> Sequence[str]:
        """The ids of the events that have led to the call, as far as they are known."""
        return (self.event_id,)

    @abstractmethod
    def content(self, state: Retry) -> object:
        """What a dead letter keeps, so that it can be queued again; `state` is that after this attempt."""

    @abstractmethod
    def tap_subject(self) -> TapSubject:
        """What `declctl tap` shows of the item."""

    @property
    def asked_for(self) -> float | None:
        """The seconds after which a reconciler has asked for its next call; None if it has not."""
        return None

    @property
    def revision(self) -> str:
        """The uid and the version of the object that the call has received; empty without one."""
        return ""

    def ended(self, outcome: InvocationOutcome, clock: Clock) -> EndedCall:
        """What a recording has of the end of the call."""
        return EndedCall(
            str(outcome.tapped),
            outcome.error_type,
            outcome.error,
            self.asked_for,
            outcome.retry_in,
            self.revision,
            self.attempt,
            clock.monotonic() - self.started,
        )

    def tapped(self, shown_as: TapOutcome, outcome: InvocationOutcome, clock: Clock) -> TappedCall:
        """What `declctl tap` shows of the call."""
        binding = self.binding
        return TappedCall(
            at=clock.now(),
            handler=binding.plan.name,
            resource=binding.plan.resource,
            key=self.item.key,
            subject=self.tap_subject(),
            outcome=shown_as,
            seconds=clock.monotonic() - self.started,
            generation=binding.generation,
            attempt=self.attempt,
            error=outcome.error,
            error_type=outcome.error_type,
            retry_in=outcome.retry_in,
        )

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.item.attempts + 1 - waits_of(self.item)

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

    @abstractmethod
    def arguments(self, implementation: Implementation, memo: MemoOf) -> Mapping[str, object]:
        """The arguments of a call."""

    def take(self, result: object) -> None:
        """Receive the result of a call."""

    def retry_state(self, first_failed: int | None, waits: int, *, is_unsynced: bool) -> Retry:
        """What the next attempt needs of this one."""
        failed = frozenset(map(identity_of, self.failed))
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
        self.was_cancelled_at_timeout |= isinstance(failure.__cause__, CallTimedOut)

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
            message = ran_longer_than(timeout)
        return TimeoutError(message).with_traceback(None if cancelled is None else cancelled.__traceback__)


def is_unsynced(item: QueueItem[Any]) -> bool:
    """Whether a change waits for its next attempt because its last call has read an unsynced cache."""
    retry: Retry | None = item.retry_state
    return retry is not None and retry.is_unsynced


def is_suspended(item: QueueItem[Any]) -> bool:
    """Whether a change waits because the breaker of its plugin has refused its call."""
    retry: Retry | None = item.retry_state
    return retry is not None and retry.is_suspended


def was_called(item: QueueItem[Any]) -> bool:
    """Whether hooks were called for an item and came to an end, in any attempt."""
    retry: Retry | None = item.retry_state
    return retry is not None and retry.was_called


def waits_of(item: QueueItem[Any]) -> int:
    """The retries of an item that count as no attempts, as of a suspended plugin or an unsynced cache."""
    retry: Retry | None = item.retry_state
    return 0 if retry is None else retry.waits


def identity_of(implementation: Implementation) -> ImplementationId:
    """The identity of an implementation across generations."""
    function = implementation.function
    return implementation.hook, implementation.plugin, getattr(function, "__qualname__", repr(function))
