"""The calls of a slot that have begun and not ended: their time limits, and how a wait for one ends.

**Time limit.** A timer of the machinery loop, which no handler can block, watches a call in a thread. Its own
loop cancels an `async def` call. At its `timeout` a call has failed, and is counted.

**Zombies.** If a call can't be cancelled, it is not waited for: another worker replaces its worker, and its
key is held until it returns. Until then it is a zombie. Each code of a handler has a bound (`MOST_ZOMBIES`):
at the bound they keep their workers, so that the handler is suspended until one of them returns, or until its
code changes.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from declctl.kit import Clock
from declctl.kit.key_queue import KeyQueue, QueueItem
from declctl.runtime.handling.handler_counts import LASTING_SECONDS, HandlerProblem
from declctl.runtime.handling.handler_figures import HandlerFigures
from declctl.runtime.handling.outcomes import SUCCEEDED, Failed, InvocationOutcome, ran_longer_than
from declctl.runtime.handling.tap import HandlerTap, TapOutcome
from declctl.runtime.log import Log

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.handling.binding import CallBinding
    from declctl.runtime.handling.invocation import Invocation

T = TypeVar("T")

CANCEL_SECONDS = 1.0  # for a cancelled call to end
CHILD_SECONDS = 20.0  # of an isolated hook outside of its timeout: a delay after a crash, and its end
MOST_ZOMBIES = 4
"""The most zombies of one code of a handler, as a multiple of its `queue.concurrency`."""


class SlotOfCalls(Protocol):
    """What calls under way need of their slot."""

    @property
    def name(self) -> str:
        """The name of the handler."""
        ...

    @property
    def wake(self) -> Callable[[], None]:
        """Wakes the workers, as they may find an item."""
        ...

    @property
    def replace_worker(self) -> Callable[[], None]:
        """Starts another worker in the present pool."""
        ...

    @property
    def binding(self) -> "CallBinding":
        """The newest binding."""
        ...

    @property
    def tap(self) -> HandlerTap:
        """Receives each call."""
        ...


class CallsUnderWay(Generic[T]):
    """The calls of one slot. From any thread.

    `loop` is the machinery's: no handler can block it, so it has the timers of calls in threads.
    """

    def __init__(
        self,
        slot: SlotOfCalls,
        queue: KeyQueue[str, T],
        figures: HandlerFigures,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: Log,
    ) -> None:
        self._slot = slot
        self._queue = queue
        self._figures = figures
        self._loop = loop
        self._clock = clock
        self._log = log
        # Guards `_calls`, and of each of them `overdue`, `timed_out`, `keeps_worker` and `entered`.
        self._lock = threading.Lock()
        self._calls: dict[int, Invocation[T]] = {}  # by their id
        self._drained_for: tuple[str, ...] | None = None  # the code for which older code was drained last

    # From begin to end

    def begin(self, invocation: "Invocation[T]") -> None:
        """A call begins, and with it its time limit."""
        with self._lock:
            self._calls[id(invocation)] = invocation
        # A timer of the machinery loop, as another handler may block the loop of the binding.
        binding, timeout = invocation.binding, invocation.binding.plan.timeout
        if timeout is not None and not binding.target.all_async:
            limit = timeout
            if binding.isolation is not None:
                # Each hook in a child has a timeout that ends it. A filter in this process has none.
                limit = (timeout + CHILD_SECONDS) * (len(binding.target.implementations) + 1)
            self._loop.call_soon_threadsafe(self._watch, invocation, limit)

    def end(self, invocation: "Invocation[T]") -> None:
        """A call has returned. From here on, no timer can make it a zombie, or count it as timed out."""
        with self._lock:
            del self._calls[id(invocation)]
        if invocation.timer is not None:
            self._loop.call_soon_threadsafe(invocation.timer.cancel)

    def limit(self, invocation: "Invocation[T]", timeout: float) -> asyncio.TimerHandle:
        """Give a call up that suppresses its cancellation at its timeout, and goes on. On its loop."""
        why = f"it goes on, though it was cancelled at its timeout of {timeout:g} s"
        return asyncio.get_running_loop().call_later(
            timeout + CANCEL_SECONDS, self._time_out, invocation, why
        )

    def tell_breaker(self, invocation: "Invocation[T]", outcome: InvocationOutcome | None) -> None:
        """Tell the breaker that a call has entered how it has ended, once: a zombie has failed already.

        None: it has ended, or is not waited for any longer, without a verdict on the plugin.
        """
        with self._lock:
            breaker, invocation.entered = invocation.entered, None
        if breaker is None:
            return
        subject = f"{self._slot.name} {invocation.item.key}"
        # A Terminal is a decision about one object, and no fault of the plugin.
        if outcome is SUCCEEDED or (isinstance(outcome, Failed) and outcome.is_terminal):
            breaker.succeeded(subject)
        elif isinstance(outcome, Failed):
            breaker.failed(subject, outcome.error)
        else:
            breaker.left(subject)

    # Time limits

    def _watch(self, invocation: "Invocation[T]", limit: float) -> None:
        """Start the timer of a call. On the machinery loop."""
        if id(invocation) in self._calls:
            why = ran_longer_than(invocation.binding.plan.timeout or limit)
            invocation.timer = self._loop.call_later(limit, self._time_out, invocation, why)

    def time_out_blocked(self) -> None:
        """Fail the calls whose timeout has passed, and whose timer can't run on their blocked loop."""
        now = self._clock.monotonic()
        with self._lock:
            blocked = [c for c in self._calls.values() if c.binding.loop.is_blocked and not c.overdue]
        for invocation in blocked:
            timeout = invocation.binding.plan.timeout
            if timeout is not None and now - invocation.started > timeout + CANCEL_SECONDS:
                self._time_out(invocation, ran_longer_than(timeout))

    def _time_out(self, invocation: "Invocation[T]", message: str) -> None:
        attempt = invocation.attempt
        failed = Failed(error=f"TimeoutError: {message}", fault=TimeoutError(message), attempt=attempt)
        with self._lock:
            if id(invocation) not in self._calls or invocation.timed_out:
                return
            # It counts as failed now: a call that never returns would otherwise never be counted.
            invocation.timed_out = message
            self._figures.timed_out(invocation, failed)
        self.tell_breaker(invocation, failed)
        # A call that its blocked loop has not begun ends now. What the thread calls next has as much time.
        if invocation.revoke() and (timeout := invocation.binding.plan.timeout) is not None:
            self._give_up_in(timeout, invocation, message)
        elif invocation.sent is not None:  # its loop cancels it at this moment
            self._give_up_in(CANCEL_SECONDS, invocation, message)
        else:
            self._give_up_waiting(invocation, message)

    # The end of waits, and zombies

    def abandon(self, binding: "CallBinding | None", *, at: str = "the drain timeout of a reload") -> int:
        """Wait no longer for the calls of a binding; returns how many there were.

        Calls that wait on a loop are cancelled, and isolated ones end with their processes. The others become
        zombies, and so does a call that goes on after that. `at` names the moment, for messages.
        """
        # Zombies were given up before, and are not counted again.
        stuck = [invocation for invocation in self.of(binding) if not invocation.overdue]
        isolation = None if binding is None else binding.isolation
        if isolation is not None:
            isolation.stop_calls(f"it outlived {at}")
        for invocation in stuck:
            self._abandon(invocation, at)
        return len(stuck)

    def cut_off(self, chosen: Callable[[QueueItem[T]], bool], *, at: str) -> list[str]:
        """As `abandon`, for the calls of chosen items; returns the keys of those that were waited for.

        They are marked, so that they write nothing any more (`is_cut_off`).
        """
        with self._lock:
            calls = list(self._calls.values())
        found: list[str] = []
        for invocation in calls:
            if invocation.is_cut_off or not chosen(invocation.item):
                continue
            invocation.is_cut_off = True
            if invocation.overdue:
                continue
            if (isolation := invocation.binding.isolation) is not None:
                isolation.stop_call(invocation.item.key, f"it outlived {at}")
            self._abandon(invocation, at)
            found.append(invocation.item.key)
        return found

    def is_cut_off(self, key: str) -> bool:
        """Whether the call for a key has to write nothing any more. A key has one call at most."""
        with self._lock:
            return any(each.is_cut_off and each.item.key == key for each in self._calls.values())

    def _abandon(self, invocation: "Invocation[T]", at: str) -> None:
        """Cancel a call, and wait for it no longer. An isolated one is being ended."""
        invocation.cancelled_at = at
        scope = invocation.scope  # read once: its worker may end the call at this moment
        if scope is not None and invocation.loop is not None:
            invocation.loop.call_soon_threadsafe(_cancel, scope)
            why = f"it goes on, though it was cancelled at {at}"
            self._give_up_in(CANCEL_SECONDS, invocation, why)
        elif invocation.binding.isolation is not None:
            self._give_up_in(CANCEL_SECONDS, invocation, f"it outlived {at}")
        elif not invocation.revoke():  # a revoked call fails at once, and is retried: its loop is blocked
            self._give_up_waiting(invocation, f"it outlived {at}")

    def _give_up_in(self, seconds: float, invocation: "Invocation[T]", why: str) -> None:
        """Give a call up unless it has ended by then. From any thread."""
        give_up = partial(self._give_up_waiting, invocation, why)
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, give_up)

    def _give_up_waiting(self, invocation: "Invocation[T]", why: str) -> None:
        name, tap = self._slot.name, self._slot.tap
        with self._lock:
            if id(invocation) not in self._calls or invocation.overdue:
                return
            invocation.overdue = True
            invocation.keeps_worker = is_kept = self._is_at_bound(invocation)
            self._queue.exclude_from_limit(invocation.item)
        try:
            if tap.listeners:
                tap.add(invocation.tapped(TapOutcome.OVERDUE, InvocationOutcome(error=why), self._clock))
            self._log.warning(
                f"{name}: the call for {invocation.item.key} is not waited for any longer: {why}; "
                "its key is held until it returns",
                handler=name,
                key=invocation.item.key,
                generation=invocation.binding.generation,
                event_id=invocation.event_id,
            )
        finally:  # a log that can't be written must not cost the handler a worker
            # Its timeout has told the breaker. Without one, a trial that never returns would keep it half
            # open.
            self.tell_breaker(invocation, None)
            if not is_kept:
                self._replace_worker_of(invocation)
            self._slot.wake()  # workers of another pool may wait until they are let in
        problems = self.problems() if is_kept else ()
        if problems and problems[0].reason == "HandlerSuspended":
            self._log.warning(
                f"{name}: {problems[0]}; it goes on when one of them returns, or when its code changes",
                handler=name,
            )

    def _is_at_bound(self, zombie: "Invocation[T]") -> bool:
        """Whether no other worker takes the place of a zombie's. Under the lock.

        The last zombies up to the bound keep their workers, as many as there are workers: then the handler
        is called no more.
        """
        code, present = zombie.binding.code, self._slot.binding.code
        if code != present and present == self._drained_for:
            return False  # the present code needs the worker
        replaced = sum(
            each.overdue and not each.keeps_worker and each is not zombie and each.binding.code == code
            for each in self._calls.values()
        )
        return replaced >= (MOST_ZOMBIES - 1) * zombie.binding.plan.queue.concurrency

    def drained(self) -> None:
        """Let calls of older code keep no worker any longer: its drain has ended."""
        self._drained_for = self._slot.binding.code
        self.renew_workers()

    def renew_workers(self) -> None:
        """Replace the workers that zombies keep, as far as the bound allows it now."""
        renewed: list[Invocation[T]] = []
        with self._lock:
            for invocation in self._calls.values():
                if invocation.keeps_worker and not self._is_at_bound(invocation):
                    invocation.keeps_worker = False
                    renewed.append(invocation)
        for invocation in renewed:
            self._replace_worker_of(invocation)

    def _replace_worker_of(self, invocation: "Invocation[T]") -> None:
        """Start another worker in the pool that a zombie began in: a newer pool is complete."""
        try:
            invocation.replace_worker()
        except RuntimeError as error:  # the system has no thread left, or the loop of the pool has ended
            invocation.keeps_worker = True
            self._log.warning(
                f"{self._slot.name}: no other worker takes the place of the one that the call for "
                f"{invocation.item.key} holds, which goes on when the call returns: {error}",
                handler=self._slot.name,
                key=invocation.item.key,
            )

    # What there is

    def of(self, binding: "CallBinding | None") -> "list[Invocation[T]]":
        """The calls of a binding."""
        with self._lock:
            return [invocation for invocation in self._calls.values() if invocation.binding is binding]

    def for_item(self, item: QueueItem[T]) -> "Invocation[T] | None":
        """The call for an item; None if there is none."""
        with self._lock:
            return next((each for each in self._calls.values() if each.item is item), None)

    def keys(self, bindings: Collection[int] | None = None) -> list[str]:
        """The keys of calls, for messages; `bindings` (their ids) limits them."""
        with self._lock:
            calls = self._calls.values()
            return [c.item.key for c in calls if bindings is None or id(c.binding) in bindings]

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._calls)

    @property
    def zombies(self) -> int:
        """The number of calls that are not waited for any longer."""
        with self._lock:
            return sum(each.overdue for each in self._calls.values())

    @property
    def is_suspended(self) -> bool:
        """Whether zombies have all workers, so that the handler is not called."""
        present = self._slot.replace_worker
        with self._lock:
            kept = sum(each.keeps_worker and each.replace_worker == present for each in self._calls.values())
        return kept >= self._slot.binding.plan.queue.concurrency

    def oldest_seconds(self) -> float:
        """For how long the oldest call has run, zombies included; 0 if there is none."""
        with self._lock:
            began = min((each.started for each in self._calls.values()), default=None)
        return 0.0 if began is None else self._clock.monotonic() - began

    def problems(self) -> Sequence[HandlerProblem]:
        """Whether the handler is suspended, and whether calls hang."""
        found: list[HandlerProblem] = []
        now, wall, is_suspended = self._clock.monotonic(), self._clock.now(), self.is_suspended
        with self._lock:
            running = sorted(self._calls.values(), key=lambda each: each.started)
        zombies = [each for each in running if each.overdue and is_suspended]
        # A `timeout` says how long a call may take; a call that exceeds it has failed, and may go on.
        hanging = [e for e in running if now - e.started >= max(LASTING_SECONDS, e.binding.plan.timeout or 0)]
        for reason, calls in (("HandlerSuspended", zombies), ("CallHangs", hanging)):
            if calls:
                oldest = calls[0]
                since = wall - timedelta(seconds=now - oldest.started)
                generation = oldest.binding.generation
                found.append(HandlerProblem(reason, len(calls), since, oldest.item.key, generation))
        return found


def _cancel(scope: asyncio.Timeout) -> None:
    """Cancel a call, unless it has ended meanwhile. On its loop."""
    if not scope.expired():
        with suppress(RuntimeError):  # the scope was left
            scope.reschedule(0.0)  # a time in the past
