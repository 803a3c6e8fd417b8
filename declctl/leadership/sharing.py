"""The sharing of shards by Leases: each shard has one holder at most, and each replica holds its quota.

`ShardElections` is the state machine of one replica: which Leases it takes, renews and gives back. It does no
I/O and reads no clock. Each Lease that it takes has an `Election`, so all that the module `elector` promises
of a Lease holds for a shard: `may_write(shard)` of two replicas is never true at one moment, by the three
times of `LeaseTimes`, and with the window that no lease can close. `ShardElector` is the asyncio shell.

The Leases of a controller NAME have the label `declctl.dev/sharding: NAME`:

- `NAME-shard-0`, …: one for each shard. Its holder handles the objects of the shard.
- `NAME-member-0`, …: one for each replica, at most as many as shards; more could hold nothing. A replica
  takes the lowest number that is free. One without a number takes no shard, and gives back what it has if
  all numbers have other holders.

A LIST shows all of them every 1 to 1.2 retry periods, so no Lease is read alone. Each replica times each
Lease by its own monotonic clock from the LIST that has first shown its present content, also while it does
not want it: the shards of a dead replica are free `lease_duration` after its last change was seen, at once.

The quota of a replica is `shards // N`, and one more for the first `shards % N` of the N living members, in
the order of their numbers. All replicas with the same view have quotas that add up, so a replica looks at
itself alone: it gives back what is above its quota, and takes what is free below it. When a replica joins,
the quotas of the others only fall; when one leaves, they only rise. So no shard moves but those that have to,
and nothing moves while the members stay.

- It gives back the shards that it gained last: those that were held long stay where they are.
- It takes free shards in an order that its number shuffles, so that replicas seldom want the same one. An
  update of a Lease that another replica has written meanwhile is refused by its version. After
  `MOST_AT_ONCE` refusals a replica waits for its next LIST.
- `MOST_AT_ONCE` requests for shards are under way at a time, and as many shards are leaving. A process that
  is alone takes 16 shards in four round trips. It waits for half a retry period before that, so that
  replicas that start together see each other.

A shard that is given back is LEAVING: its Lease is renewed until the owner calls `drained`. A shard that is
LOST may be written no more. Its calls may still run, so this process takes it again only after `drained`,
too: else `may_write` would be true for a call that began before another replica had the shard.

Each Lease notes the sharding. While another replica holds a Lease with another note, nothing is taken or
given back, and `fault` says so: two replicas that cut objects differently would handle the same ones. If such
replicas start in the same moment, each may have a number: then both wait until one of them ends.

What remains, beside the window of an election:

- A Lease that is deleted by hand is taken at once by a replica that has never seen it. Its holder stops at
  its next renewal, a retry period later, and at its deadline if requests fail. Replicas that have seen the
  Lease wait until it would have ended.
- A replica that renews its member Lease and takes no shard, such as without a right for one, leaves its quota
  free. Its `error` says why, and `status` of each replica says which shards are free.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from random import Random

import msgspec

from declctl.errors import Conflict, DeclctlError, NotFound, TooManyRequests
from declctl.leadership.elector import Election, ElectionEvent, LeaseRequest, LeaseTimes, LeaseVerb
from declctl.leadership.lease import SHARDING_KEY, LeaderElectionRecord, version_of
from declctl.objects import KubeObject
from declctl.objects.answers import mapping
from declctl.objects.shards import Sharding, member_lease, shard_lease

MOST_AT_ONCE = 4  # shards that a replica takes at a time, and gives back at a time
_LIST_JITTER = 0.2  # of a retry period
_NEVER, _ALWAYS = float("-inf"), float("inf")


class ShardEvent(Enum):
    """What the owner of the shards hears about."""

    GAINED = auto()
    LEAVING = auto()  # it is to be given back: the owner drains it, and calls `drained`
    LOST = auto()  # the text is the reason; the owner calls `drained` when no call of it runs any more


class ShardState(StrEnum):
    """What a shard is to this replica."""

    TAKING = "Taking"
    HELD = "Held"
    LEAVING = "Leaving"  # the owner drains it
    RELEASING = "Releasing"  # it is drained, and its Lease is given up
    LOST = "Lost"  # the owner has not drained it yet
    ELSEWHERE = "Elsewhere"
    FREE = "Free"


class ListedLease(msgspec.Struct, frozen=True):
    """A Lease as a LIST shows it."""

    lease: KubeObject
    record: LeaderElectionRecord
    note: str  # the sharding of its holder; empty if it has none

    @classmethod
    def of(cls, lease: KubeObject) -> "ListedLease":
        """Raises MalformedAnswer if it has no resource version."""
        version_of(lease)
        note = mapping(mapping(lease.get("metadata")).get("annotations")).get(SHARDING_KEY)
        return cls(lease, LeaderElectionRecord.of(lease), note if isinstance(note, str) else "")


class ShardStatus(msgspec.Struct, frozen=True):
    """One shard as a replica sees it."""

    shard: int
    state: ShardState
    holder: str = ""  # the identity of the replica that holds it; empty if it is free
    since: datetime | None = None  # when the holder has taken it, by its own clock
    free_seconds: float = 0.0  # for how long this replica has seen it free


class SharingStatus(msgspec.Struct, frozen=True):
    """The sharing as one replica sees it. `document_of` makes JSON of it."""

    identity: str  # of this replica
    sharding: str  # the note, such as `16 by Namespace`
    member: int | None  # the number of this replica; None if it has none
    members: int  # living replicas with a number
    quota: int | None  # shards that this replica should hold; None if it has no number
    shards: tuple[ShardStatus, ...]
    gained: int = 0  # shards, since the start
    given_back: int = 0  # shards, since the start, drained and released
    lost: int = 0  # shards, since the start
    fault: str | None = None  # why nothing is taken: who has another sharding
    error: str | None = None  # the last request that failed, unless one of its kind has succeeded since


@dataclass(eq=False)
class _Observation:
    """A Lease as this replica has seen it last."""

    listed: ListedLease
    since: float  # when its record was first seen
    is_gone: bool = False  # the last LIST had it no more

    def expires_at(self, times: LeaseTimes) -> float:
        return self.since + self.listed.record.valid_seconds(times.lease_duration)


@dataclass(eq=False)
class _OwnLease:
    """A Lease that this replica takes, holds or gives up."""

    name: str
    election: Election
    shard: int | None  # None for the member Lease
    polls: bool  # it is read by its election, as no LIST shows it
    state: ShardState = ShardState.TAKING
    is_given_up: bool = False  # the release of its election has begun


@dataclass(frozen=True, eq=False)
class ShardRequest:
    """A request that is due: for one Lease, or the LIST if `own` is None."""

    request: LeaseRequest
    own: _OwnLease | None = None

    @property
    def name(self) -> str:
        """The name of the Lease; empty for the LIST."""
        return "" if self.own is None else self.own.name


@dataclass(frozen=True)
class _View:
    """What follows from the observations, until one of them ends."""

    members: tuple[int, ...] = ()  # numbers that other replicas hold, in order
    elsewhere: frozenset[int] = frozenset()  # shards that other replicas hold
    until: float = _NEVER  # when the next Lease expires
    fault: str | None = None


@dataclass
class SharingCounts:
    """What has happened to the shards of a replica since its start."""

    gained: int = 0
    given_back: int = 0
    lost: int = 0


class ShardElections:
    """The elections of one replica: of its member Lease, and of its shards. It is told the time, does no I/O.

    `step` returns the requests that are due. The owner sends them, each within `request_timeout` of the
    times, and calls `listed`, `answered` or `failed` once for each. At `wakes_at`, and after each of these
    calls, the owner calls `step` again. `now` is a monotonic time in seconds, `wall` the time for people.
    Used on one loop; `may_write` may be called by any thread.
    """

    def __init__(
        self,
        name: str,
        identity: str,
        sharding: Sharding,
        times: LeaseTimes,
        *,
        namespace: str,
        random: Callable[[], float],
    ) -> None:
        self.name = name
        self.identity = identity
        self.times = times
        self.note = f"{sharding.shards} by {sharding.by}"
        self.counts = SharingCounts()
        self._namespace = namespace
        self._random = random
        self._shards = tuple(shard_lease(name, shard) for shard in range(sharding.shards))
        self._members = tuple(member_lease(name, number) for number in range(sharding.shards))
        self._shard_of = {name: shard for shard, name in enumerate(self._shards)}
        self._number_of = {name: number for number, name in enumerate(self._members)}
        self._own: dict[int, _OwnLease] = {}  # by shard, in the order in which they were wanted
        self._member: _OwnLease | None = None
        self._number: int | None = None  # of the member Lease that is taken or held
        self._order: tuple[int, ...] = ()  # of the shards, for the number
        self._member_since = _ALWAYS  # when the member Lease was taken
        self._conflicts = 0  # over member Leases, since the last one was held
        self._next_number_at = _NEVER  # of the next attempt to take a member Lease
        self._seen: dict[str, _Observation] = {}
        self._view = _View()
        self._tried: set[str] = set()  # Leases that were written since the last LIST
        self._failures = 0  # to take a shard, since the last LIST
        self._unlisted: set[str] = set()  # Leases that exist, and have no label
        self._list: ShardRequest | None = None  # under way
        self._listed_at = _NEVER  # when the last LIST that has succeeded was sent
        self._first_seen_at = _ALWAYS  # when the first LIST was answered
        self._next_list_at = _NEVER
        self._busy_until = _NEVER  # the server asks for no more requests until then
        self._stepped_at = _NEVER
        self._wall: datetime | None = None  # the last time that was told to an election
        # The last failure of each verb, until a request with it succeeds: the Lease, the error, the time.
        self._failed: dict[LeaseVerb, tuple[str, DeclctlError, float]] = {}
        self._ending = False
        self._events: deque[tuple[ShardEvent, int, str]] = deque()

    # What is known

    def may_write(self, shard: int, now: float) -> bool:
        """Whether this replica holds the shard, and has renewed it less than `renew_deadline` ago."""
        own = self._own.get(shard)
        # A renewal that is answered too late begins a term of its election, and none of the shard.
        return own is not None and own.state is not ShardState.LOST and own.election.may_write(now)

    @property
    def is_member(self) -> bool:
        """Whether this replica has a number."""
        return self._member is not None and self._member.state is ShardState.HELD

    @property
    def is_ended(self) -> bool:
        """Whether all Leases are given up, after `begin_end`."""
        return self._ending and self._member is None and not any(self._holding())

    def error(self, now: float) -> tuple[LeaseVerb, str, DeclctlError] | None:
        """The newest failure of the last `lease_duration`: the verb, the name of the Lease, and the error.

        None if there was none, or if a request with this verb has succeeded since. The name is empty for the
        LIST.
        """
        recent = [
            (failed_at, verb, name, error)
            for verb, (name, error, failed_at) in self._failed.items()
            if now - failed_at < self.times.lease_duration
        ]
        return max(recent, key=lambda each: each[0])[1:] if recent else None

    @property
    def fault(self) -> str | None:
        """Why nothing is taken: another replica has another sharding; None if none has."""
        return self._view.fault

    @property
    def quota(self) -> int | None:
        """How many shards this replica should hold; None if that is not known."""
        members = self._view.members
        if self._number is None or not self.is_member:
            return 0 if len(members) == len(self._members) else None
        least, rest = divmod(len(self._shards), len(members) + 1)
        return least + (bisect_left(members, self._number) < rest)

    @property
    def wakes_at(self) -> float:
        """When `step` has to be called next."""
        moments = [own.election.wakes_at for own in self._leases() if own.state is not ShardState.LOST]
        if not self._ending:
            moments.append(self._view.until)
            if self._list is None:
                moments.append(max(self._next_list_at, self._busy_until))
            # A number that could not be taken then waits for the next LIST.
            if self._next_number_at > self._stepped_at:
                moments.append(self._next_number_at)
        return min(moments, default=_ALWAYS)

    def take_events(self) -> list[tuple[ShardEvent, int, str]]:
        """The events since the last call, in order, each with its shard."""
        found = list(self._events)
        self._events.clear()
        return found

    def status(self, now: float, *, error: str | None = None) -> SharingStatus:
        """The sharing as this replica sees it."""
        return SharingStatus(
            identity=self.identity,
            sharding=self.note,
            member=self._number if self.is_member else None,
            members=len(self._view.members) + self.is_member,
            quota=self.quota,
            shards=tuple(self._shard_status(shard, now) for shard in range(len(self._shards))),
            gained=self.counts.gained,
            given_back=self.counts.given_back,
            lost=self.counts.lost,
            fault=self.fault,
            error=error,
        )

    def _shard_status(self, shard: int, now: float) -> ShardStatus:
        own, seen = self._own.get(shard), self._seen.get(self._shards[shard])
        if own is not None and own.state not in (ShardState.TAKING, ShardState.LOST):
            record = own.election.observed
            return ShardStatus(shard, own.state, self.identity, record.acquired_at if record else None)
        if seen is not None and shard in self._view.elsewhere:
            record = seen.listed.record
            return ShardStatus(shard, ShardState.ELSEWHERE, record.holder, record.acquired_at)
        if seen is None:
            free_at = self._first_seen_at
        else:
            free_at = seen.expires_at(self.times) if seen.listed.record.holder else seen.since
        state = ShardState.FREE if own is None else own.state
        return ShardStatus(shard, state, free_seconds=max(0.0, now - free_at))

    # Requests

    def step(self, now: float, wall: datetime) -> list[ShardRequest]:
        """End what is past its deadline, decide what to take and to give back; return the requests due."""
        # Each Lease that is written has another time than all before, whatever the wall clock does.
        if self._wall is not None and wall <= self._wall:
            wall = self._wall + timedelta(microseconds=1)
        self._wall = wall
        self._stepped_at = now
        if not self._ending:
            if now >= self._view.until:
                self._look(now)
            self._decide(now)
        requests = [
            ShardRequest(request, own) for own in self._leases() if (request := self._due(own, now, wall))
        ]
        if self._list is None and now >= max(self._next_list_at, self._busy_until) and not self._ending:
            self._next_list_at = now + self.times.retry_period * (1 + _LIST_JITTER * self._random())
            self._list = ShardRequest(LeaseRequest(LeaseVerb.LIST, now))
            requests.append(self._list)
        return requests

    def listed(self, now: float, request: ShardRequest, leases: Mapping[str, ListedLease]) -> None:
        """The LIST has succeeded, with all Leases that have the label."""
        self._list = None
        self._failed.pop(LeaseVerb.LIST, None)
        self._listed_at = request.request.sent_at
        self._first_seen_at = min(self._first_seen_at, now)
        for name, listed in leases.items():
            seen = self._seen.get(name)
            if seen is None:
                self._seen[name] = _Observation(listed, now)
                continue
            if seen.listed.record != listed.record:
                seen.since = now
            seen.listed, seen.is_gone = listed, False
        if len(self._seen) > len(leases):
            for name in self._seen.keys() - leases.keys():
                self._seen[name].is_gone = True
        self._tried.clear()
        self._failures = 0
        self._unlisted -= leases.keys()
        for own in self._leases():
            # It is known again, and may be tried again; other attempts end with their request.
            if own.state is ShardState.TAKING and own.name in leases and not own.election.has_request:
                self._give_up_taking(own)
        self._look(now)

    def answered(self, now: float, request: ShardRequest, lease: KubeObject) -> None:
        """The request for a Lease has succeeded, and the server has this one."""
        own = request.own
        assert own is not None
        own.election.answered(now, lease)
        error = own.election.error  # of an answer that has no version
        if isinstance(error, DeclctlError):
            self._note_failure(now, request, error)
        else:
            self._failed.pop(request.request.verb, None)
        self._hear(own, now)

    def failed(self, now: float, request: ShardRequest, error: DeclctlError) -> None:
        """The request has failed, or its answer was lost: it may have taken effect all the same."""
        self._note_failure(now, request, error)
        own = request.own
        if own is None:
            self._list = None
        else:
            own.election.failed(now, error)
            self._hear(own, now)
            self._attempt_failed(own, now, error)

    def drained(self, shard: int) -> None:
        """No call of a shard that is LEAVING or LOST runs any more, and nothing is written for it.

        Called once for each term: a shard that is lost while it leaves is drained once.
        """
        own = self._own.get(shard)
        if own is None:
            return
        if own.state is ShardState.LEAVING:
            own.state = ShardState.RELEASING
        elif own.state is ShardState.LOST:
            del self._own[shard]

    def begin_end(self) -> None:
        """Take nothing any more, and give all back.

        The member Lease goes at once, so that others take each shard as it is drained.
        """
        self._ending = True
        for own in self._leases():
            match own.state:
                case ShardState.TAKING:
                    own.state = ShardState.RELEASING
                case ShardState.HELD if own.shard is not None:
                    self._leave(own)
                case ShardState.HELD:
                    own.state = ShardState.RELEASING
                case _:
                    pass

    # The decisions

    def _look(self, now: float) -> None:
        """Who holds which Lease now."""
        living: set[str] = set()
        until, fault = _ALWAYS, None
        for name, seen in self._seen.items():
            holder = seen.listed.record.holder
            if not holder or holder == self.identity:
                continue
            expires = seen.expires_at(self.times)
            if now >= expires:
                continue
            living.add(name)
            until = min(until, expires)
            if seen.listed.note not in ("", self.note):
                fault = (
                    f"{holder} holds the lease {self._namespace}/{name} with the sharding "
                    f"{seen.listed.note}, and this process has {self.note}: it takes nothing until no "
                    "process has another sharding"
                )
        members = sorted(self._number_of[name] for name in living & self._number_of.keys())
        elsewhere = frozenset(self._shard_of[name] for name in living & self._shard_of.keys())
        self._view = _View(tuple(members), elsewhere, until, fault)

    def _decide(self, now: float) -> None:
        # Without a recent LIST, all others would seem to be dead.
        if self.fault is not None or now - self._listed_at >= self.times.renew_deadline:
            return
        if self._member is None and now >= max(self._next_number_at, self._busy_until):
            self._take_number(now)
        settled = self._listed_at >= self._member_since + self.times.retry_period / 2
        quota = self.quota
        if quota is None or (self.is_member and not settled):
            return
        held = [own for own in self._own.values() if own.state is ShardState.HELD]
        taking = [own for own in self._own.values() if own.state is ShardState.TAKING]
        leaving = sum(own.state in (ShardState.LEAVING, ShardState.RELEASING) for own in self._own.values())
        for own in held[max(quota, len(held) - max(0, MOST_AT_ONCE - leaving)) :][::-1]:
            self._leave(own)
        missing = quota - len(held) - len(taking)
        if missing > 0 and now >= self._busy_until:
            under_way = sum(own.election.has_request for own in taking)
            self._take_shards(min(missing, MOST_AT_ONCE - under_way), now)

    def _take_shards(self, most: int, now: float) -> None:
        if most <= 0 or self._failures >= MOST_AT_ONCE:
            return
        elsewhere = self._view.elsewhere
        for shard in self._order:
            name = self._shards[shard]
            if shard not in elsewhere and shard not in self._own and name not in self._tried:
                self._own[shard] = self._begin(name, shard, now)
                most -= 1
                if not most:
                    return

    def _take_number(self, now: float) -> None:
        names = self._members
        free = [
            number
            for number in range(len(names))
            if number not in self._view.members
            and names[number] not in self._tried
            and names[number] not in self._unlisted
        ]
        if not free:
            return  # until the next LIST
        # A number that the server still has for this process is free for no other one.
        ours = [number for number in free if self._names_us(names[number])]
        # The lowest is wanted by all others, too: after each conflict, twice as many are good enough.
        width = min(len(free), 1 << min(self._conflicts, 16))
        self._number = ours[0] if ours else free[int(self._random() * width)]
        self._member = self._begin(names[self._number], None, now)

    def _names_us(self, name: str) -> bool:
        seen = self._seen.get(name)
        return seen is not None and seen.listed.record.holder == self.identity

    def _begin(self, name: str, shard: int | None, now: float) -> _OwnLease:
        election = Election(
            self.identity,
            self.times,
            namespace=self._namespace,
            name=name,
            random=self._random,
            metadata={"labels": {SHARDING_KEY: self.name}, "annotations": {SHARDING_KEY: self.note}},
        )
        seen = self._seen.get(name)
        if name not in self._unlisted:
            if seen is None:
                election.observe(None, None, since=now, now=now)
            else:
                lease = None if seen.is_gone else seen.listed.lease
                election.observe(lease, seen.listed.record, since=seen.since, now=now)
        self._tried.add(name)
        return _OwnLease(name, election, shard, polls=name in self._unlisted)

    # The life of a Lease

    def _due(self, own: _OwnLease, now: float, wall: datetime) -> LeaseRequest | None:
        if own.state is ShardState.LOST:
            return None
        election = own.election
        if own.state is ShardState.RELEASING and not own.is_given_up and not election.has_request:
            own.is_given_up = True
            election.begin_release(now)
        request = election.step(now, wall)
        self._hear(own, now)
        return request

    def _hear(self, own: _OwnLease, now: float) -> None:
        """Follow what has happened to the election of a Lease."""
        for event, text in own.election.take_events():
            if event is ElectionEvent.STARTED_LEADING and own.state is ShardState.TAKING:
                own.state = ShardState.HELD
                if own.shard is None:
                    self._conflicts, self._member_since = 0, now
                    self._next_list_at = now + self.times.retry_period / 2
                    everything = range(len(self._shards))
                    self._order = tuple(Random(self._number).sample(everything, len(everything)))
                else:
                    self._own[own.shard] = self._own.pop(own.shard)  # the last one
                    self.counts.gained += 1
                    self._events.append((ShardEvent.GAINED, own.shard, ""))
            elif event is ElectionEvent.STOPPED_LEADING and own.state in (
                ShardState.HELD,
                ShardState.LEAVING,
            ):
                own.state = ShardState.LOST
                if own.shard is None:
                    self._forget_number(now)
                else:
                    self.counts.lost += 1
                    self._events.append((ShardEvent.LOST, own.shard, text))
        if own.state is ShardState.RELEASING and own.election.is_released:
            if own.shard is None:
                self._forget_number(now)
            else:
                del self._own[own.shard]
                self._tried.add(own.name)  # what was seen of it is older
                self.counts.given_back += own.election.terms > 0

    def _leave(self, own: _OwnLease) -> None:
        assert own.shard is not None
        own.state = ShardState.LEAVING
        self._events.append((ShardEvent.LEAVING, own.shard, ""))

    def _attempt_failed(self, own: _OwnLease, now: float, error: DeclctlError) -> None:
        if own.state is not ShardState.TAKING or own.polls:
            return
        if isinstance(error, Conflict) and own.election.failed_verb is LeaseVerb.CREATE:
            self._unlisted.add(own.name)  # until a LIST shows it
        self._give_up_taking(own)
        if own.shard is None:
            is_conflict = isinstance(error, Conflict | NotFound)
            self._conflicts += is_conflict
            periods = (1 + self._random()) / 10 if is_conflict else 1.0
            self._next_number_at = now + periods * self.times.retry_period
        else:
            self._failures += 1

    def _give_up_taking(self, own: _OwnLease) -> None:
        if own.shard is None:
            self._member = self._number = None
        else:
            del self._own[own.shard]

    def _forget_number(self, now: float) -> None:
        self._member = self._number = None
        self._member_since = _ALWAYS
        self._next_list_at = now

    # Parts

    def _leases(self) -> list[_OwnLease]:
        return [*([] if self._member is None else [self._member]), *self._own.values()]

    def _holding(self) -> Iterable[_OwnLease]:
        return (own for own in self._own.values() if own.state is not ShardState.LOST)

    def _note_failure(self, now: float, request: ShardRequest, error: DeclctlError) -> None:
        # Conflicts belong to the game, and so does a Lease that is gone.
        is_fault = not isinstance(error, Conflict | NotFound) or request.own is None
        if is_fault:
            self._failed[request.request.verb] = (request.name, error, now)
        if isinstance(error, TooManyRequests) and error.retry_after is not None:
            self._busy_until = max(self._busy_until, now + error.retry_after)
