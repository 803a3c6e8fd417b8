"""Electors against one lease in memory: never two that may write, whatever happens to clocks and requests.

Clocks run at different rates, processes are stopped, requests and answers are lost, and a request may be
applied long after its sender has given it up. Each process has a clock of its own; the lease has none.

The machine fails if one of these lines of `declctl/leadership/elector.py` is changed (tried by hand):

- the deadline is counted from the answer, not from the sending of the renewal;
- the deadline is `lease_duration` after the renewal, or a failed renewal counts, too;
- a lease counts as expired by its own `renewTime`, or is not timed anew when it has changed;
- a lease of another process is taken without regard to its time, or after half of it;
- an update has no resourceVersion;
- a renewal writes the same record as the one before while the wall clock stands still;
- a process that has lost the lease does not try again.
"""

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from declctl.errors import ApiError, Conflict, NotFound, ServerError, TimedOut, TooManyRequests
from declctl.leadership.elector import Election, LeaseRequest, LeaseTimes, LeaseVerb
from declctl.objects import KubeObject

TIMES = LeaseTimes(lease_duration=15, renew_deadline=10, retry_period=0.5)
# The fastest gains less on the slowest than 15/10.
RATES = st.sampled_from([0.84, 0.84, 1.0, 1.2, 1.2])
SECONDS = st.sampled_from([0.05, 0.3, 1.0, 5.0, 12.0, 20.0])
STEP = 0.25  # seconds between two looks
WHO = st.integers(0, 2)
FAULTS = st.sampled_from(
    [
        ServerError(500, "InternalError", "etcd"),
        TooManyRequests(429, "TooManyRequests", "later", retry_after=3.0),
        TimedOut("no answer"),
    ]
)


class LeaseInMemory:
    """One Lease of an API server: a write needs the present version, and equal content makes no new one."""

    def __init__(self) -> None:
        self.lease: KubeObject | None = None
        self.version = 0

    def apply(self, request: LeaseRequest) -> KubeObject:
        """The answer of the server. Raises the ApiError family."""
        if request.verb is LeaseVerb.GET:
            if self.lease is None:
                raise NotFound(404, "NotFound", "no lease")
            return deepcopy(self.lease)
        assert request.lease is not None
        given = deepcopy(request.lease)
        if request.verb is LeaseVerb.CREATE:
            if self.lease is not None:
                raise Conflict(409, "AlreadyExists", "there is one")
        elif self.lease is None:
            raise NotFound(404, "NotFound", "no lease")
        else:
            wanted = given["metadata"].get("resourceVersion")
            if wanted not in (None, self.lease["metadata"]["resourceVersion"]):
                raise Conflict(409, "Conflict", "another version")
            given["metadata"]["resourceVersion"] = self.lease["metadata"]["resourceVersion"]
            if given == self.lease:
                return deepcopy(self.lease)
        self.version += 1
        given["metadata"]["resourceVersion"] = str(self.version)
        self.lease = given
        return deepcopy(given)


@dataclass(eq=False)
class Process:
    """A process with its clock: `offset` and `rate` against the true time. Its wall clock may stand still."""

    name: str
    rate: float
    offset: float
    wall_rate: float
    stopped: bool = False  # SIGSTOP
    cut_off: bool = False  # no request of it arrives
    way_back: float = 0.0  # seconds that an answer takes
    sent: LeaseRequest | None = None  # under way
    answer: KubeObject | ApiError | TimedOut | None = None  # on its way back
    answered_at: float = 0.0  # the true time at which the answer began its way
    election: Election = field(init=False)

    def __post_init__(self) -> None:
        self.election = Election(self.name, TIMES, namespace="a", name="b", random=Random(self.name).random)

    def now(self, true: float) -> float:
        return self.offset + self.rate * true

    def wall(self, true: float) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.wall_rate * (true + self.offset))


class ElectorsMachine(RuleBasedStateMachine):
    """Two or three candidates for one lease."""

    @initialize(
        rates=st.lists(RATES, min_size=2, max_size=3),
        walls=st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=3),
    )
    def start(self, rates: list[float], walls: list[float]) -> None:
        self.true = 0.0
        self.server = LeaseInMemory()
        self.late: list[LeaseRequest] = []  # sent, given up by the sender, and maybe applied later
        self.processes = [
            Process(f"p{n}", rate, offset=1000.0 * n, wall_rate=walls[n]) for n, rate in enumerate(rates)
        ]

    def of(self, number: int) -> Process:
        return self.processes[number % len(self.processes)]

    # Faults

    @rule(who=WHO, stopped=st.booleans())
    def stop(self, who: int, stopped: bool) -> None:
        """SIGSTOP or SIGCONT."""
        self.of(who).stopped = stopped

    @rule(who=WHO, cut_off=st.booleans())
    def cut(self, who: int, cut_off: bool) -> None:
        """The network between a process and the server breaks, or is mended."""
        self.of(who).cut_off = cut_off

    @rule(who=WHO, seconds=st.sampled_from([0.0, 1.0, 4.0]))
    def slow_down(self, who: int, seconds: float) -> None:
        """Requests of a process are applied, and their answers take long."""
        self.of(who).way_back = seconds

    @rule(who=WHO, fault=FAULTS)
    def refuse(self, who: int, fault: ApiError) -> None:
        """The request was not applied, and an error comes back."""
        process = self.of(who)
        if process.sent is not None and process.answer is None:
            process.answer = fault

    @rule(who=WHO, later=st.booleans())
    def lose(self, who: int, later: bool) -> None:
        """The request does not arrive, or arrives when its sender has given it up."""
        process = self.of(who)
        if process.sent is not None and process.answer is None:
            if later:
                self.late.append(process.sent)
            process.answer = TimedOut("lost")

    @rule(who=WHO)
    def lose_answer(self, who: int) -> None:
        """The request is applied, and its answer is lost."""
        process = self.of(who)
        if process.sent is not None and process.answer is None:
            self.apply(process)
            process.answer = TimedOut("the answer was lost")

    @rule()
    def arrive_late(self) -> None:
        """An old request is applied, for nobody."""
        if self.late:
            with suppress(ApiError):
                self.server.apply(self.late.pop(0))

    @rule()
    def write_another_name(self) -> None:
        """Somebody writes the name of a process that is not there."""
        lease = self.server.lease
        if lease is not None:
            lease["spec"]["holderIdentity"] = "ghost"
            self.server.version += 1
            lease["metadata"]["resourceVersion"] = str(self.server.version)

    # Progress

    @rule(who=WHO)
    def serve(self, who: int) -> None:
        """The server applies a request; the answer is on its way."""
        process = self.of(who)
        if process.sent is not None and process.answer is None:
            self.apply(process)

    @rule(who=WHO)
    def work(self, who: int) -> None:
        """A process does what it can do now."""
        self.turn(self.of(who))

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        """Time in which the server serves, and all processes work that are not stopped."""
        end = self.true + seconds
        while self.true < end:
            self.true = min(end, self.true + STEP)
            for process in self.processes:
                if process.sent is not None and process.answer is None and not process.cut_off:
                    self.apply(process)
                self.turn(process)
                self.at_most_one()

    @rule()
    def recover(self) -> None:
        """When faults stop, one process leads before long, and goes on leading."""
        for process in self.processes:
            process.stopped, process.cut_off, process.way_back = False, False, 0.0
        self.pass_time(45.0)
        leaders = {self.leader()}
        for _ in range(3):
            self.pass_time(7.0)
            leaders.add(self.leader())
        assert len(leaders) == 1

    @invariant()
    def at_most_one(self) -> None:
        """Two processes never may write at the same moment, not even when they look at a stopped one."""
        assert len([each.name for each in self.processes if self.may_write(each)]) <= 1

    # Parts

    def may_write(self, process: Process) -> bool:
        return process.election.may_write(process.now(self.true))

    def leader(self) -> str:
        (leader,) = [each.name for each in self.processes if self.may_write(each)]
        return leader

    def apply(self, process: Process) -> None:
        assert process.sent is not None
        process.answered_at = self.true
        try:
            process.answer = self.server.apply(process.sent)
        except ApiError as error:
            process.answer = error

    def turn(self, process: Process) -> None:
        if process.stopped:
            return
        now, election = process.now(self.true), process.election
        arrived = process.answer is not None and self.true >= process.answered_at + process.way_back
        if process.sent is not None and not arrived and now >= election.gives_up_at:
            if process.answer is None:
                self.late.append(process.sent)
            process.answer, arrived = TimedOut("it took too long"), True
        if arrived:
            answer, process.sent, process.answer = process.answer, None, None
            if isinstance(answer, ApiError | TimedOut):
                election.failed(now, answer)
            elif answer is not None:
                election.answered(now, answer)
        request = election.step(now, process.wall(self.true))
        if request is not None:
            assert process.sent is None
            process.sent = request


TestElectors = ElectorsMachine.TestCase
TestElectors.settings = settings(max_examples=35, stateful_step_count=50, deadline=None)
