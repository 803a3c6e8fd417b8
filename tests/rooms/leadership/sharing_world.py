"""Replicas that share shards on one server in memory, in virtual time: faults, clocks that differ, deaths.

    python -m tests.rooms.leadership.sharing_world    # the time to balance, and the requests it takes

Each replica has its own clock. The server has none. After each answer the world checks that no two replicas
may write for one shard.
"""

import heapq
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from declctl.errors import Conflict, DeclctlError, NotFound, ServerError, TimedOut, TooManyRequests
from declctl.leadership.elector import LeaseTimes, LeaseVerb
from declctl.leadership.sharing import ListedLease, ShardElections, ShardEvent, ShardRequest
from declctl.objects import KubeObject
from declctl.objects.shards import Sharding

TIMES = LeaseTimes(lease_duration=15, renew_deadline=10, retry_period=2)
LABEL = {"declctl.dev/sharding": "app"}


class LeaseServer:
    """The Leases of one namespace: a write needs the present version."""

    def __init__(self) -> None:
        self.leases: dict[str, ListedLease] = {}
        self.unlabelled: set[str] = set()
        self.requests: Counter[str] = Counter()
        self._versions = itertools.count(1)

    def list(self) -> dict[str, ListedLease]:
        self.requests["list"] += 1
        return {name: each for name, each in self.leases.items() if name not in self.unlabelled}

    def apply(self, verb: LeaseVerb, name: str, lease: KubeObject | None) -> KubeObject:
        """The answer of the server. Raises the ApiError family."""
        self.requests[verb] += 1
        stored = self.leases.get(name)
        if verb is LeaseVerb.CREATE and stored is not None:
            raise Conflict(409, "AlreadyExists", "there is one")
        if verb is not LeaseVerb.CREATE and stored is None:
            raise NotFound(404, "NotFound", "no lease")
        if verb is LeaseVerb.GET:
            assert stored is not None
            return stored.lease
        assert lease is not None
        metadata = lease["metadata"]
        if stored is not None and metadata["resourceVersion"] != stored.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "another version")
        if stored is not None and lease == stored.lease:
            return stored.lease  # equal content makes no new version
        return self.store({**lease, "metadata": {**metadata, "name": name}})

    def store(self, lease: KubeObject) -> KubeObject:
        """Somebody writes a Lease, whatever its version."""
        stored = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(next(self._versions))}}
        name = stored["metadata"]["name"]
        self.leases[name] = ListedLease.of(stored)
        (self.unlabelled.discard if stored["metadata"].get("labels") == LABEL else self.unlabelled.add)(name)
        return stored

    def holders(self, kind: str) -> dict[int, str]:
        """The holder of each Lease of a kind that has one."""
        found = {name: each.record.holder for name, each in self.leases.items() if f"-{kind}-" in name}
        return {int(name.rpartition("-")[2]): holder for name, holder in found.items() if holder}


@dataclass
class Faults:
    """The part of all requests that ends so."""

    lost: float = 0.0  # not applied, or long after its sender has given it up
    answer_lost: float = 0.0
    error: float = 0.0
    busy: float = 0.0  # 429


@dataclass(eq=False)
class Replica:
    """One process, its clock, and what its owner does: it drains each shard that leaves or is lost."""

    name: str
    world: "World"
    rate: float = 1.0
    offset: float = 0.0
    drains: float = 0.5  # seconds
    wall_rate: float = 1.0
    note: Sharding | None = None
    latency: float = 0.01
    stopped: bool = False
    resumes: bool = False  # answers of the time in which it was stopped are read
    dead: bool = False
    cut_off: bool = False
    held: set[int] = field(default_factory=set)  # as the owner has heard it
    lost: set[int] = field(default_factory=set)  # and not drained yet
    draining: set[int] = field(default_factory=set)
    heard: list[tuple[ShardEvent, int, str]] = field(default_factory=list)
    refusal: Callable[[ShardRequest], DeclctlError | None] = lambda _: None
    late: list[Callable[[], None]] = field(default_factory=list)  # what has come while it was stopped
    wake: float = -1.0  # the true time of the next turn

    def __post_init__(self) -> None:
        self.core = ShardElections(
            "app",
            self.name,
            self.note or self.world.sharding,
            TIMES,
            namespace="team",
            random=Random(self.name).random,
        )

    @property
    def now(self) -> float:
        return self.offset + self.rate * self.world.true

    @property
    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(
            seconds=self.offset + self.wall_rate * self.world.true
        )

    def may_write(self, shard: int) -> bool:
        return not self.dead and self.core.may_write(shard, self.now)

    def cont(self) -> None:
        """SIGCONT: all answers that have come are read before the next step."""
        self.stopped, self.resumes = False, True
        late, self.late = self.late, []
        for each in late:
            each()
        self.resumes = False
        self.turn()

    def turn(self) -> None:
        """Do what can be done now."""
        if self.dead or self.stopped or self.resumes:
            return
        for request in self.core.step(self.now, self.wall):
            self.world.send(self, request)
        self.hear()
        wait = max(0.001, (self.core.wakes_at - self.now) / self.rate)
        if wait < 1e6:
            self.wake = self.world.true + wait
            self.world.at(self.wake, lambda wake=self.wake: self.turn() if wake == self.wake else None)

    def hear(self) -> None:
        for event, shard, text in self.core.take_events():
            self.heard.append((event, shard, text))
            if event is ShardEvent.GAINED:
                assert shard not in self.held, "a shard is gained twice"
                self.held.add(shard)
                self.world.moves += 1
                continue
            assert shard in self.held
            if event is ShardEvent.LOST:
                self.lost.add(shard)
            # A shard that is lost while it leaves is drained once.
            if shard not in self.draining:
                self.draining.add(shard)
                self.world.at(self.world.true + self.drains, lambda shard=shard: self.drain(shard))

    def drain(self, shard: int) -> None:
        if self.stopped:
            self.late.append(lambda: self.drain(shard))
        elif not self.dead:
            self.held.discard(shard)
            self.lost.discard(shard)
            self.draining.discard(shard)
            self.core.drained(shard)
            self.turn()


class World:
    """All replicas, the server, and the network between them."""

    def __init__(self, shards: int = 16, *, seed: int = 0) -> None:
        self.sharding = Sharding(shards)
        self.server = LeaseServer()
        self.replicas: list[Replica] = []
        self.true = 0.0
        self.faults = Faults()
        self.random = Random(seed)
        self.moves = 0  # shards gained, by any replica
        self.excused: dict[str, float] = {}  # Leases that were deleted by hand, and until when two may act
        self._writers: dict[int, set[Replica]] = {}  # those that may write for a shard, or have lost it since
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []

    def at(self, moment: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), action))

    def start(self, name: str, **options: object) -> Replica:
        replica = Replica(name, self, **options)  # type: ignore[arg-type]
        self.replicas.append(replica)
        replica.turn()
        return replica

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.true + seconds
        while self._events and self._events[0][0] <= end:
            self.true, _, action = heapq.heappop(self._events)
            action()
        self.true = end

    def until(self, condition: Callable[[], bool], *, most: float = 120.0, step: float = 0.1) -> float:
        """Let time pass until a condition is true; returns the seconds."""
        began = self.true
        while not condition():
            assert self.true - began < most, f"not within {most} s"
            self.run(step)
        return self.true - began

    @property
    def living(self) -> list[Replica]:
        return [each for each in self.replicas if not each.dead]

    @property
    def loads(self) -> list[int]:
        """How many shards each living replica may write, in the order of their starts."""
        return [sum(map(each.may_write, range(self.sharding.shards))) for each in self.living]

    @property
    def is_balanced(self) -> bool:
        """Every shard is held, and no replica has two more than another."""
        loads = self.loads
        return sum(loads) == self.sharding.shards and max(loads) - min(loads) <= 1

    def delete(self, name: str) -> None:
        """Somebody deletes a Lease."""
        if self.server.leases.pop(name, None) is not None:
            self.excused[name] = self.true + TIMES.renew_deadline / 0.8

    def send(self, replica: Replica, request: ShardRequest) -> None:
        """Carry a request to the server, and its answer back, or lose them."""
        there, back = (replica.latency * (0.5 + self.random.random()) for _ in range(2))
        is_open = [True]  # the sender has no answer yet

        def end(answer: object) -> None:
            if replica.dead or not is_open:
                return
            if replica.stopped:
                replica.late.append(lambda: end(answer))
                return
            is_open.clear()
            self._answer(replica, request, answer)

        def reach() -> None:
            if not replica.cut_off or replica.dead:
                answer = self._apply(replica, request)
                if fate >= lost + self.faults.answer_lost:
                    self.at(self.true + back, lambda: end(answer))

        fate, lost = self.random.random(), self.faults.lost
        if fate < lost:
            there += self.random.choice([6.0, 12.0, 1e9])
        self.at(self.true + there, reach)
        self.at(self.true + TIMES.request_timeout / replica.rate, lambda: end(TimedOut("no answer")))

    def _apply(self, replica: Replica, request: ShardRequest) -> object:
        fate = self.random.random()
        if fate < self.faults.error:
            return ServerError(500, "InternalError", "etcd")
        if fate < self.faults.error + self.faults.busy:
            return TooManyRequests(
                429, "TooManyRequests", "later", retry_after=self.random.choice([1.0, 4.0])
            )
        if (refusal := replica.refusal(request)) is not None:
            return refusal
        if request.own is None:
            return self.server.list()
        try:
            return self.server.apply(request.request.verb, request.name, request.request.lease)
        except DeclctlError as error:
            return error

    def _answer(self, replica: Replica, request: ShardRequest, answer: object) -> None:
        if isinstance(answer, DeclctlError):
            replica.core.failed(replica.now, request, answer)
        elif request.own is None:
            replica.core.listed(replica.now, request, answer)  # type: ignore[arg-type]
        else:
            replica.core.answered(replica.now, request, answer)  # type: ignore[arg-type]
            self._check(replica, request)
            assert not any(map(replica.may_write, replica.lost)), (
                "a lost shard is written before it is drained"
            )
        replica.turn()

    def _check(self, replica: Replica, request: ShardRequest) -> None:
        """Two replicas never may write for one shard: it could only have begun with this answer."""
        assert request.own is not None
        shard = request.own.shard
        if shard is None or not replica.may_write(shard) or self.true < self.excused.get(request.name, -1.0):
            return
        before = self._writers.setdefault(shard, set())
        before.add(replica)
        before -= {each for each in before if not each.may_write(shard)}
        others = [each.name for each in before - {replica}]
        assert others == [], f"{replica.name} and {others} may write for shard {shard}"


def measure(replicas: int, shards: int) -> str:
    """All start within a second; one line of figures."""
    began = time.perf_counter()
    world = World(shards)
    for number in range(replicas):
        at = world.random.random()
        world.at(
            at, lambda number=number, at=at: world.start(f"r{number}", offset=1000 * number, latency=0.02)
        )
    goal = set(range(shards))

    def is_balanced() -> bool:
        held = [len(each.held) for each in world.replicas]
        return (
            len(held) == replicas
            and sum(held) == shards
            and max(held) - min(held) <= 1
            and world.server.holders("shard").keys() == goal
        )

    seconds = world.until(is_balanced, most=300.0)
    start = world.server.requests.copy()
    peak_moves = world.moves
    world.server.requests.clear()
    world.run(4.4)
    calm = world.server.requests
    rate = ", ".join(f"{count / 4.4:.1f} {verb}" for verb, count in sorted(calm.items()))
    return (
        f"{replicas:5} replicas, {shards:5} shards: balanced after {seconds:.1f} s, with {start.total()} "
        f"requests and {peak_moves} gains; then each second {calm.total() / 4.4:.1f} requests ({rate}), "
        f"{world.moves - peak_moves} moves; {time.perf_counter() - began:.0f} s to compute"
    )


if __name__ == "__main__":
    sizes = [tuple(map(int, each.split(","))) for each in sys.argv[1:]]
    for replicas, shards in sizes or [(3, 16), (10, 64), (100, 1024), (1000, 4096)]:
        print(measure(replicas, shards), flush=True)
