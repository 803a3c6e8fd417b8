"""A handler's slot: what waits for it, whom it calls now, and what became of it.

A slot belongs to a handler's name and outlives generations: a reload gives it a new binding and
leaves what waits where it is. Changes come in on the machinery loop (`add_all`), and are worked on
by the slot's crew, in threads or on the handlers' loop (`work`, `work_async`); the `Lanes` between
them keep the order.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from declctl.hooks.awaiting import begin_async
from declctl.hooks.calling import Implementation, call
from declctl.kit import Clock, Lanes
from declctl.kit.lanes import Era, Ticket
from declctl.manifest.model import OnFailure
from declctl.objects import Change, ChangeReason, ChangeType, Notification, ObjectView, Record, merge
from declctl.runtime.handling.binding import Binding
from declctl.runtime.handling.calls import Calls, Run, call_on
from declctl.runtime.handling.context import HandlerContext, Memo
from declctl.runtime.handling.failing import identity, tell_failed, what_failed
from declctl.runtime.handling.figures import HandlerStatistics
from declctl.runtime.handling.filtering import Judged
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

__all__ = ["Binding", "Handler", "HandlerStatistics"]

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every change.
_RESYNC, _DELETED, _REPLAY = ChangeType.RESYNC, ChangeType.DELETED, ChangeReason.REPLAY


class Handler:
    """The slot of one handler name.

    `add_all` may be called by the machinery loop only; `work` by any thread, `work_async` on the
    handlers' loop. With an `era`, which slots share, its binding counts from the next cut of that on.
    """

    def __init__(
        self,
        binding: Binding,
        *,
        clock: Clock,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        era: Era | None = None,
    ) -> None:
        self.name = binding.plan.name
        self._clock = clock
        self._log = log
        self._loop = loop  # the handlers' loop: asynchronous hooks run there, and timeouts are kept there
        # ticket → implementations that have not succeeded yet
        self._left: dict[int, frozenset[tuple[str, str, str]]] = {}
        self._judged: dict[int, Judged] = {}  # ticket → what is tried again
        self._memos: dict[str, Memo] = {}
        self._initial: set[str] = set()
        self._initial_complete = False
        self.replayed = 0  # told again for the sake of new code
        self.on_pending: Callable[[], None] = _nobody
        self.on_replaced: Callable[[], None] = _nobody  # a zombie holds a worker: another takes its place
        self.lanes: Lanes[Notification] = Lanes(
            clock=clock, weigh=Notification.weight, merge=merge, limit=binding.intake.limit, era=era
        )
        self._calls = calls = Calls(
            self.name, loop=loop, log=log, overlook=self.lanes.overlook, overlooked=self._overlooked
        )
        self._lock, self._running, self._counts = calls.lock, calls.running, calls.counts
        self._bindings = {self.lanes.epoch + (era is not None): binding}
        self.take_in(binding)

    @property
    def binding(self) -> Binding:
        """The newest binding."""
        return self._bindings[self.lanes.epoch]

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Take what happened, as far as the handler wants it. Neither waits nor raises."""
        wanted, skip = self._wanted, self._skips_initial
        taken = [(n.key, n) for n in notifications if n.type in wanted and not (skip and n.initial)]
        if taken:
            if not self._initial_complete:
                self._initial.update(key for key, n in taken if n.initial)
            self.lanes.add_all(taken)
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
            self._bindings.pop(self.lanes.epoch + 1, None)
        else:
            self._bindings[self.lanes.epoch + 1] = binding

    def take_in(self, binding: Binding) -> None:
        """Take what a binding wants, as it wants it."""
        lanes = self.lanes
        self._wanted, self._skips_initial, lanes.limit, lanes.keyed, lanes.at_once = binding.intake

    def hand_over(self, epoch: int) -> None:
        """Give what waits of an ended epoch to the newest binding; what runs goes on."""
        self.lanes.hand_over(epoch)
        self.on_pending()

    def abandon(self, epoch: int) -> int:
        """Hand over, and wait no longer for what an ended epoch still runs.

        An asynchronous call is cancelled, any other is a zombie until it returns. Returns how many
        calls were left running.
        """
        self.hand_over(epoch)
        return self._calls.abandon(self._bindings.get(epoch))

    def forget(self, epoch: int) -> None:
        """Drop the binding of an ended epoch, so that its generation can be collected."""
        if epoch != self.lanes.epoch and not self.outstanding(epoch):
            self._bindings.pop(epoch, None)

    def outstanding(self, epoch: int) -> int:
        """How many changes of that epoch are neither done nor handed over."""
        if self.lanes.handed_over(epoch):
            return len(self._calls.of(self._bindings.get(epoch)))
        return self.lanes.outstanding(epoch)

    def memo(self, uid: str) -> Memo:
        """What the handler remembers of an object; with an empty uid, of itself."""
        with self._lock:
            return self._memos.setdefault(uid, Memo())

    @property
    def initial_done(self) -> bool:
        """Whether every object of the first sync has been dealt with, as far as the slot was told of them."""
        return not self._initial or self.lanes.idle

    def initial_complete(self) -> None:
        """No more initial changes will come."""
        self._initial_complete = True

    def work(self, ticket: Ticket[Notification]) -> bool:
        """Deliver one change, in the calling thread.

        False if the thread was replaced meanwhile and has to leave.
        """
        run = self._begin(ticket)
        if run.binding.filter is not None and not run.passes(run.binding.filter):
            return self._leave_out(run)
        for implementation in run.wanted:
            arguments = self._arguments(run, implementation)
            try:
                if implementation.is_async:
                    call_on(self._loop, implementation, arguments, run.binding.plan.timeout)
                else:
                    call(implementation, arguments)
            except BaseException as failure:  # noqa: BLE001 - foreign code: kept for the log and the retry
                run.failures.append(failure)
                run.failed.append(implementation)
        return self._finish(run)

    async def work_async(self, ticket: Ticket[Notification]) -> bool:
        """Deliver one change on the handlers' loop; synchronous implementations go to a thread."""
        run = self._begin(ticket)
        if run.binding.filter is not None and not run.passes(run.binding.filter):
            return self._leave_out(run)
        for implementation in run.wanted:
            arguments = self._arguments(run, implementation)
            try:
                if not implementation.is_async:
                    # Not to be cancelled: past its time it is a zombie, as it is in a crew of threads.
                    run.scope = None
                    await in_thread(
                        partial(call, implementation, arguments), name=f"declctl-handler-{self.name}"
                    )
                    continue
                rest = begin_async(implementation, arguments)
                if rest is None:
                    continue  # it had nothing to wait for
                # Who was given up in its first step is cancelled where it begins to wait.
                async with asyncio.timeout(0.0 if run.overdue else run.binding.plan.timeout) as run.scope:
                    await rest
            except Exception as failure:  # noqa: BLE001 - as above
                run.failures.append(failure)
                run.failed.append(implementation)
        return self._finish(run)

    def statistics(self) -> HandlerStatistics:
        """The figures of this moment."""
        return self._calls.statistics(
            self.lanes.statistics(),
            generation=self.binding.generation,
            synced=self._initial_complete and self.initial_done,
            replayed=self.replayed,
        )

    def running(self) -> list[str]:
        """The keys of the calls under way, for messages."""
        return self._calls.keys()

    def _overlooked(self) -> None:
        self.on_pending()  # workers of another crew may wait until they are let in

    def _begin(self, ticket: Ticket[Notification]) -> Run:
        # An epoch that was handed over a moment ago may be forgotten by now.
        binding = self._bindings.get(self.lanes.epoch_of(ticket)) or self.binding
        notification, before, judged = ticket.value, None, None
        if ticket.attempts:
            before, judged = self._left.pop(id(ticket), None), self._judged.get(id(ticket))
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
        if before:
            # Only what failed is tried again; code that is new since then is called whole.
            wanted = tuple(i for i in wanted if identity(i) in before) or wanted
        began = self._clock.monotonic()
        run = Run(ticket, binding, change, began, wanted, self.on_replaced, judged=judged)
        with self._lock:
            self._running[id(run)] = run
        if binding.plan.timeout is not None and not binding.target.all_async:
            self._loop.call_soon_threadsafe(self._calls.watch, run, binding.plan.timeout)
        return run

    def _leave_out(self, run: Run) -> bool:
        with self._lock:
            del self._running[id(run)]
            self._counts.filtered += 1
            self._counts.zombies -= run.overdue
        if run.timer is not None:
            self._loop.call_soon_threadsafe(run.timer.cancel)
        self._end(run)
        return not run.overdue

    def _arguments(self, run: Run, implementation: Implementation) -> dict[str, object]:
        change = run.change
        arguments: dict[str, object] = {"change": change, "obj": change.obj, "old": change.old}
        if "ctx" in implementation.parameters:
            # Most handlers remember nothing: a memo is made for those that do.
            memo = partial(self.memo, change.obj.uid)
            arguments["ctx"] = HandlerContext(run.binding.world, memo, change.key)
        return arguments

    def _finish(self, run: Run) -> bool:
        counts = self._counts
        took = self._clock.monotonic() - run.started
        with self._lock:
            del self._running[id(run)]
            counts.durations.append(took)
            if run.overdue:
                counts.zombies -= 1
                if run.timed_out and not run.failures:
                    run.failures.append(TimeoutError(run.timed_out))
            run.binding.tally.calls += 1
            if not run.failures:
                counts.succeeded += 1
        if run.timer is not None:
            self._loop.call_soon_threadsafe(run.timer.cancel)
        if run.failures:
            self._failed(run)
        else:
            self._end(run)
        return not run.overdue

    def _failed(self, run: Run) -> None:
        ticket, plan, tally = run.ticket, run.binding.plan, run.binding.tally
        attempt = ticket.attempts + 1
        again = plan.on_failure is OnFailure.RETRY or attempt < plan.retry.max_attempts
        delay = run.binding.backoff.delay(attempt) if again else 0.0
        what = what_failed(run.failures[0])
        with self._lock:
            self._counts.last_error = tally.last_error = f"{ticket.key}: {what}"
            tally.failed += 1
            if again:
                self._counts.retried += 1
            else:
                self._counts.failed += 1
        tell_failed(self._log, self.name, run, what, delay if again else None)
        if again:
            self._left[id(ticket)] = frozenset(identity(i) for i in run.failed)
            if run.judged is not None:
                self._judged[id(ticket)] = run.judged
            self.lanes.retry(ticket, delay)
            self.on_pending()
        else:
            self._end(run)

    def _end(self, run: Run) -> None:
        ticket = run.ticket
        if ticket.attempts:
            self._left.pop(id(ticket), None)
            self._judged.pop(id(ticket), None)
        if self._initial:
            self._initial.discard(ticket.key)
        if run.change.type is _DELETED:
            with self._lock:
                self._memos.pop(run.change.obj.uid, None)
        if self.lanes.done(ticket):
            self.on_pending()


def _nobody() -> None:
    """A slot has no workers yet."""
