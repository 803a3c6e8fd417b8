"""A handler's slot: what waits for it, whom it calls now, and what became of it.

A slot belongs to a handler's name and outlives generations: a reload gives it a new binding and
leaves what waits where it is. Changes come in on the machinery loop (`add_all`), and are worked on
by the slot's worker pool, in threads or on a loop for handlers (`work`, `work_async`); the `KeyedQueue`
between them keeps the order.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from declctl.errors import NotSynced
from declctl.hooks.calls import Implementation, begin_async, call
from declctl.kit import Clock, KeyedQueue
from declctl.kit.keyed_queue import EpochCounter, QueueItem
from declctl.manifest.model import OnFailure
from declctl.objects import Change, ChangeReason, ChangeType, Notification, ObjectView, Record, merge
from declctl.runtime.handling.binding import Binding, HandlerStatistics, Judged
from declctl.runtime.handling.context import HandlerContext, Memo
from declctl.runtime.handling.invocations import (
    Calls,
    FailureLog,
    Invocation,
    call_on,
    identity,
    not_synced_by,
    tell_waiting,
    type_failed,
    what_failed,
)
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

__all__ = ["Binding", "Handler", "HandlerStatistics"]

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every change.
_RESYNC, _DELETED, _REPLAY = ChangeType.RESYNC, ChangeType.DELETED, ChangeReason.REPLAY
_LONGEST_WAIT_FOR_SYNC = 30.0  # seconds between two calls that read a cache which may sync at any time
_SILENCE = 60.0  # seconds until the log says again that a handler waits


class _Retry(NamedTuple):
    """What a change that is tried again remembers of its calls; its item has it."""

    failed: frozenset[tuple[str, str, str]]  # implementations, by their identity: these are called again
    first_failed: int | None  # the generation on which it failed first, if it has failed
    judged: Judged | None  # what the filter has made of it
    waits: int  # how many of its retries were for a cache that had not synced
    unsynced: bool  # the newest was


class Handler:
    """The slot of one handler name.

    `add_all` may be called by the machinery loop only; `work` by any thread, `work_async` on the
    loop of the binding. `loop` is the machinery's. With an `era`, which slots share, its binding counts
    from the next cut of that on.
    """

    def __init__(
        self,
        binding: Binding,
        *,
        clock: Clock,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        era: EpochCounter | None = None,
    ) -> None:
        self.name = binding.plan.name
        self._clock = clock
        self._log = log
        self._failures = FailureLog(log, self.name)
        self._loop = loop  # keeps the time of calls in threads: no foreign code can hold it up
        self._silent_until = float("-inf")  # on the clock: the log has said that the handler waits
        self._memos: dict[str, Memo] = {}
        # Changes of the first sync that are not dealt with, counted until the handler has synced. A number
        # and not their keys, which would take as much memory as the queue. It has a lock of its own: it
        # changes under the lock of the queue too, which is taken under that of the calls.
        self._initial_left = 0
        self._initial_lock = threading.Lock()
        self._initial_complete = False  # no more of them will come
        self._synced = False  # all of them were dealt with; never false again
        self._closed = False  # the handler was removed, or the process ends: nothing is tried again
        self.replayed = 0  # told again for the sake of new code
        self.on_pending: Callable[[], None] = _nobody
        self.on_replaced: Callable[[], None] = _nobody  # a zombie holds a worker: another takes its place
        self.queue: KeyedQueue[Notification] = KeyedQueue(
            clock=clock, weigh=Notification.weight, merge=self._merge, limit=binding.intake.limit, era=era
        )
        self._calls = calls = Calls(
            self.name, loop=loop, log=log, overlook=self.queue.overlook, overlooked=self._overlooked
        )
        self._lock, self._running, self._counts = calls.lock, calls.running, calls.counts
        self._bindings = {self.queue.epoch + (era is not None): binding}
        self.take_in(binding)

    @property
    def binding(self) -> Binding:
        """The newest binding."""
        return self._bindings[self.queue.epoch]

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Take what happened, as far as the handler wants it. Neither waits nor raises."""
        wanted, skip = self._wanted, self._skips_initial
        taken = [(n.key, n) for n in notifications if n.type in wanted and not (skip and n.initial)]
        if taken:
            if not self._synced:
                with self._initial_lock:
                    self._initial_left += sum(n.initial for _, n in taken)
            self.queue.add_all(taken)
            self.on_pending()

    def cache_synced(self) -> None:
        """Some cache has synced: what backs off because it has read one that had not is due now.

        A call that is under way knows nothing of it: if it has to be made again, it backs off.
        """
        if self.queue.hurry(_is_unsynced):
            self.on_pending()

    def replay(self, records: Sequence[Record], now: float) -> None:
        """Take objects that it knows, as they are, for the sake of new code; `now` is a time stamp."""
        if _RESYNC in self._wanted:
            self.replayed += len(records)
            self.add_all([Notification(_RESYNC, r, reason=_REPLAY, received_at=now) for r in records])

    def expect(self, binding: Binding | None) -> None:
        """Let what comes after the next cut go to a new binding; None takes that back.

        It is told before the cut: a worker may take a retry of the new epoch the moment that there is one.
        """
        if binding is None:
            self._bindings.pop(self.queue.epoch + 1, None)
        else:
            self._bindings[self.queue.epoch + 1] = binding

    def take_in(self, binding: Binding) -> None:
        """Take what a binding wants, as it wants it."""
        queue = self.queue
        self._wanted, self._skips_initial, queue.limit, queue.keyed, queue.at_once = binding.intake

    def hand_over(self, epoch: int) -> None:
        """Give what waits of an ended epoch to the newest binding; what runs goes on."""
        self.queue.hand_over(epoch)
        self.on_pending()

    def abandon(self, epoch: int) -> int:
        """Hand over, and wait no longer for what an ended epoch still runs.

        An asynchronous call is cancelled, any other is a zombie until it returns. Returns how many
        calls were left running.
        """
        self.hand_over(epoch)
        return self._calls.abandon(self._bindings.get(epoch))

    def waiting(self, epoch: int) -> int:
        """How many changes of an ended epoch no call has begun for; none once they were handed over.

        They wait for a worker, or for a change of the same object.
        """
        if self.queue.handed_over(epoch):
            return 0
        return max(0, self.queue.outstanding(epoch) - len(self._calls.of(self._bindings.get(epoch))))

    def close(self) -> int:
        """Drop what waits and what backs off; returns how many changes. A call that fails later is given up.

        Its workers have to be dismissed by then: what comes in later would wait for ever.
        """
        self._closed = True
        return self.queue.clear()

    def forget(self, epoch: int) -> None:
        """Drop the binding of an ended epoch, so that its generation can be collected."""
        if epoch != self.queue.epoch and not self.outstanding(epoch):
            self._bindings.pop(epoch, None)

    def outstanding(self, epoch: int) -> int:
        """How many changes of that epoch are neither done nor handed over."""
        if self.queue.handed_over(epoch):
            return len(self._calls.of(self._bindings.get(epoch)))
        return self.queue.outstanding(epoch)

    def memo(self, uid: str) -> Memo:
        """What the handler remembers of an object; with an empty uid, of itself."""
        with self._lock:
            return self._memos.setdefault(uid, Memo())

    @property
    def has_synced(self) -> bool:
        """Whether the handler has dealt with every object of the first sync; once true, it stays true."""
        self._look_synced()
        return self._synced

    def initial_complete(self) -> None:
        """No more changes of the first sync will come. May be called again."""
        self._initial_complete = True
        self._look_synced()

    def work(self, item: QueueItem[Notification]) -> bool:
        """Deliver one change, in the calling thread.

        False if the thread was replaced meanwhile and has to leave.
        """
        run = self._begin(item)
        if self._is_left_out(run):
            return self._leave_out(run)
        for implementation in run.wanted:
            arguments = self._arguments(run, implementation)
            try:
                if implementation.is_async:
                    call_on(run, implementation, arguments)
                else:
                    call(implementation, arguments)
            except BaseException as failure:  # noqa: BLE001 - foreign code: kept for the log and the retry
                run.failures.append(failure)
                run.failed.append(implementation)
        return self._finish(run)

    async def work_async(self, item: QueueItem[Notification]) -> bool:
        """Deliver one change on the loop of its binding; synchronous implementations go to a thread."""
        run = self._begin(item)
        if self._is_left_out(run):
            return self._leave_out(run)
        for implementation in run.wanted:
            arguments = self._arguments(run, implementation)
            try:
                if not implementation.is_async:
                    # Not to be cancelled: past its time it is a zombie, as it is in a pool of threads.
                    run.scope = None
                    await in_thread(
                        partial(call, implementation, arguments), name=f"declctl-handler-{self.name}"
                    )
                    continue
                rest = begin_async(implementation, arguments)
                if rest is None:
                    continue  # it had nothing to wait for
                run.loop = asyncio.get_running_loop()
                # Who was given up in its first step is cancelled where it begins to wait.
                timeout = 0.0 if run.overdue else run.binding.plan.timeout
                watch = None if timeout is None else self._calls.watch_cancelled(run, timeout)
                try:
                    async with asyncio.timeout(timeout) as run.scope:
                        await rest
                finally:
                    if watch is not None:
                        watch.cancel()
            except Exception as failure:  # noqa: BLE001 - as above
                run.failures.append(failure)
                run.failed.append(implementation)
        return self._finish(run)

    def statistics(self) -> HandlerStatistics:
        """The figures of this moment."""
        return self._calls.statistics(
            self.queue.statistics(),
            binding=self.binding,
            synced=self.has_synced,
            replayed=self.replayed,
        )

    def time_out_blocked(self) -> None:
        """Let calls fail that are past their timeout and can't hear of it, as their loop is blocked."""
        self._calls.time_out_blocked(self._clock.monotonic())

    def under_way(self, binding: Binding) -> list[tuple[float, bool]]:
        """When each call of a binding under way began, and whether it keeps a worker from other changes."""
        return self._calls.under_way(binding)

    def running(self, bindings: Collection[int] | None = None) -> list[str]:
        """The keys of the calls under way, for messages; of some bindings only, by their `id`."""
        return self._calls.keys(bindings)

    def _merge(self, waiting: Notification, new: Notification, attempted: bool) -> Sequence[Notification]:
        remaining = merge(waiting, new, attempted)
        if waiting.initial and not any(n.initial for n in remaining):
            self._initial_dealt_with()  # what was first told of the object was merged away
        return remaining

    def _look_synced(self) -> None:
        if self._initial_complete and not self._synced:
            self._synced = not self._initial_left or self.queue.idle

    def _initial_dealt_with(self) -> None:
        with self._initial_lock:
            self._initial_left -= 1

    def _overlooked(self) -> None:
        self.on_pending()  # workers of another pool may wait until they are let in

    def _begin(self, item: QueueItem[Notification]) -> Invocation:
        # An epoch that was handed over a moment ago may be forgotten by now.
        binding = self._bindings.get(self.queue.epoch_of(item)) or self.binding
        notification = item.value
        retry: _Retry | None = item.retry
        judged = None if retry is None else retry.judged
        if judged is not None and judged.change is notification:
            notification = judged.told  # it was decided what is told, and is told again
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
        wanted = binding.target.select(kind)
        if retry is not None:
            # Only what failed is tried again; code that is new since then is called whole.
            wanted = tuple(i for i in wanted if identity(i) in retry.failed) or wanted
        began = self._clock.monotonic()
        run = Invocation(item, binding, change, began, wanted, self.on_replaced, judged=judged)
        if retry is not None:
            run.first_failed = retry.first_failed
        with self._lock:
            self._running[id(run)] = run
        # Not on the loop of the binding, which another handler may block.
        if binding.plan.timeout is not None and not binding.target.all_async:
            self._loop.call_soon_threadsafe(self._calls.watch, run, binding.plan.timeout)
        return run

    def _is_left_out(self, run: Invocation) -> bool:
        """Whether a change goes to no hook: its filter keeps it out, no hook is for it, or all are disabled.

        The filter is asked here. If it raises, the change is not left out: it has failed.
        """
        judge = run.binding.filter
        if judge is not None and not run.passes(judge):
            return True
        return not (run.wanted or run.failures)

    def _leave_out(self, run: Invocation) -> bool:
        """End a change for which nothing is called; returns as `work` does."""
        disabled = bool(run.binding.target.disabled)
        with self._lock:
            del self._running[id(run)]
            self._counts.filtered += not disabled
            self._counts.zombies -= run.overdue
        if run.timer is not None:
            self._loop.call_soon_threadsafe(run.timer.cancel)
        self._end(run, self.queue.drop if disabled else self.queue.done)
        return not run.overdue

    def _arguments(self, run: Invocation, implementation: Implementation) -> dict[str, object]:
        change = run.change
        arguments: dict[str, object] = {"change": change, "obj": change.obj, "old": change.old}
        if "ctx" in implementation.parameters:
            # Most handlers remember nothing: a memo is made for those that do.
            memo = partial(self.memo, change.obj.uid)
            arguments["ctx"] = HandlerContext(run.binding.world, memo, change.key)
        return arguments

    def _finish(self, run: Invocation) -> bool:
        counts, tally = self._counts, run.binding.tally
        took = self._clock.monotonic() - run.started
        with self._lock:
            del self._running[id(run)]
            counts.durations.append(took)
            if run.overdue:
                counts.zombies -= 1
            elif took > tally.longest:
                tally.longest = took
            if run.timed_out and not run.failures:
                run.failures.append(TimeoutError(run.timed_out))
            unsynced = bool(run.failures) and all(map(not_synced_by, run.failures))
            if not run.failures:
                tally.calls += 1
                counts.succeeded += 1
        if run.timer is not None:
            self._loop.call_soon_threadsafe(run.timer.cancel)
        if unsynced:
            self._wait_for_sync(run)
        elif run.failures:
            self._failed(run)
        else:
            self._end(run)
        # Their tracebacks refer to the run, and so to the code of its generation until a full collection.
        run.failures.clear()
        return not run.overdue

    def _failed(self, run: Invocation) -> None:
        item, plan = run.item, run.binding.plan
        waits = _waits(item)
        attempt = item.attempts + 1 - waits
        again = plan.on_failure is OnFailure.RETRY or attempt < plan.retry.max_attempts
        again = again and not self._closed
        delay = run.binding.backoff.delay(attempt) if again else 0.0
        what = what_failed(run.failures[0])
        with self._lock:
            if not run.timed_out:  # else it was counted at that moment
                self._calls.count_failure(run, what, type_failed(run.failures[0]))
            if again:
                self._counts.retried += 1
            else:
                self._counts.failed += 1
        self._failures.failed(run, what, delay if again else None, attempt=attempt)
        if again:
            first = run.binding.generation if run.first_failed is None else run.first_failed
            self._retry(run, delay, first, waits)
        else:
            self._end(run)

    def _wait_for_sync(self, run: Invocation) -> None:
        """Call again, as often as it takes, what has read a cache that has not synced; it is no attempt."""
        waits = _waits(run.item) + 1
        what, now = what_failed(not_synced_by(run.failures[0]) or run.failures[0]), self._clock.monotonic()
        with self._lock:
            self._counts.last_error = f"{run.item.key}: {what}"
            self._counts.last_error_type = NotSynced.__name__
            self._counts.retried += 1
            speaks = now >= self._silent_until
            if speaks:
                self._silent_until = now + _SILENCE
        if speaks:
            tell_waiting(self._log, self.name, run, what)
        if self._closed:
            self._end(run, self.queue.drop)  # nobody calls it again
        else:
            delay = min(run.binding.backoff.delay(waits), _LONGEST_WAIT_FOR_SYNC)
            self._retry(run, delay, run.first_failed, waits, unsynced=True)  # it is no failure

    def _retry(
        self, run: Invocation, delay: float, first_failed: int | None, waits: int, *, unsynced: bool = False
    ) -> None:
        failed = frozenset(identity(i) for i in run.failed)
        run.item.retry = _Retry(failed, first_failed, run.judged, waits, unsynced)
        self.queue.retry(run.item, delay)
        if self._closed:  # in this moment
            self.queue.clear()
        self.on_pending()

    def _end(self, run: Invocation, done: Callable[[QueueItem[Notification]], bool] | None = None) -> None:
        item = run.item
        if not self._synced and item.value.initial:
            self._initial_dealt_with()
        if run.change.type is _DELETED:
            with self._lock:
                self._memos.pop(run.change.obj.uid, None)
        if (done or self.queue.done)(item):
            self.on_pending()


def _waits(item: QueueItem[Notification]) -> int:
    """How many retries of a change were for a cache that had not synced: they are no attempts."""
    retry: _Retry | None = item.retry
    return 0 if retry is None else retry.waits


def _is_unsynced(item: QueueItem[Notification]) -> bool:
    retry: _Retry | None = item.retry
    return retry is not None and retry.unsynced


def _nobody() -> None:
    """A slot has no workers yet."""
