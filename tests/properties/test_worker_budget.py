"""Worker budgets under any order of adds, calls, retries and changes: never too many, nothing forgotten."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from declctl.kit import ManualClock
from declctl.kit.change_queue import ChangeQueue
from declctl.kit.key_queue import QueueItem
from declctl.kit.worker_budget import TURN_SECONDS, WorkerBudget

MEMBERS = st.integers(0, 2)


class BudgetMachine(RuleBasedStateMachine):
    """Three queues that share a budget, with workers that look when they are woken, or when they said so."""

    @initialize(limit=st.integers(1, 3))
    def start(self, limit: int) -> None:
        self.clock = ManualClock()
        self.budget = WorkerBudget(limit, clock=self.clock)
        self.awake = [True] * 3  # workers that have to look at their queue
        self.looks: list[float | None] = [None] * 3  # the time at which they look by themselves
        self.shares = [True] * 3
        self.queues: list[ChangeQueue[int]] = []
        for number in range(3):
            queue: ChangeQueue[int] = ChangeQueue(
                clock=self.clock,
                weigh=lambda _: 1,
                merge=lambda waiting, new, _: [waiting, new],
                merge_above=1 << 30,
                max_running=3,
            )
            queue.share_workers(self.budget, lambda number=number: self._wake(number))
            self.queues.append(queue)
        self.running: list[tuple[int, QueueItem[int]]] = []
        self.permits: set[int] = set()  # ids of items that hold a permit

    @rule(member=MEMBERS, key=st.sampled_from("abc"))
    def add(self, member: int, key: str) -> None:
        self.queues[member].add(key, 0)
        self._wake(member)

    @rule(member=MEMBERS)
    def look(self, member: int) -> None:
        """A worker looks, if it is awake: it takes one item, or sleeps."""
        now, at = self.clock.monotonic(), self.looks[member]
        if not self.awake[member] and (at is None or at > now):
            return
        item = self.queues[member].take()
        if item is not None:
            self.running.append((member, item))
            if self.shares[member]:
                self.permits.add(id(item))
            assert len(self.permits) <= max(self.budget.limit, self.most)
            return
        self.awake[member] = False
        due = self.queues[member].next_due()
        self.looks[member] = None if due is None else now + due

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 10), ends=st.sampled_from(["done", "retry", "exclude"]))
    def end(self, pick: int, ends: str) -> None:
        member, item = self.running[pick % len(self.running)]
        queue = self.queues[member]
        self.permits.discard(id(item))
        if ends == "exclude":
            queue.exclude_from_limit(item)
            return
        self.running.remove((member, item))
        if ends == "done":
            queue.done(item)
        else:
            queue.retry(item, 1.0)
        self._wake(member)  # the worker looks for more

    @rule(limit=st.integers(1, 3))
    def resize(self, limit: int) -> None:
        self.budget.resize(limit)

    @rule(member=MEMBERS, shares=st.booleans())
    def edit(self, member: int, shares: bool) -> None:
        self.shares[member] = shares
        budget = self.budget if shares else None
        self.queues[member].share_workers(budget, lambda: self._wake(member))
        self._wake(member)

    @rule(seconds=st.sampled_from([TURN_SECONDS / 2, TURN_SECONDS, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.set(seconds)

    @property
    def most(self) -> int:
        """Permits that were given before the limit was lowered stay."""
        return self._before

    _before = 0

    @invariant()
    def note_permits(self) -> None:
        self._before = len(getattr(self, "permits", ()))

    def teardown(self) -> None:
        """Workers that look only when they are woken, or when they said so, finish everything."""
        if not hasattr(self, "queues"):
            return
        for _ in range(2000):
            if all(queue.idle for queue in self.queues):
                return
            while self.running:
                member, item = self.running.pop()
                self.queues[member].done(item)
                self.permits.discard(id(item))
                self._wake(member)
            for member in range(3):
                self.look(member)
            waits = [at for at in self.looks if at is not None]
            idle = all(queue.idle for queue in self.queues)
            if not (any(self.awake) or self.running or idle):
                assert waits, "all workers sleep, and there is work"
                self.clock.set(max(0.0, min(waits) - self.clock.monotonic()))
        raise AssertionError("there is work left")

    def _wake(self, member: int) -> None:
        self.awake[member] = True


TestWorkerBudget = BudgetMachine.TestCase
TestWorkerBudget.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
