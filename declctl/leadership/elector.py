"""The election of a leader by a Lease (client-go's tools/leaderelection).

`Election` is the state machine of one candidate: it decides which request is due, and what an answer means.
It does no I/O and reads no clock. `LeaderElector` is the asyncio shell around it: it sends the requests and
calls the callbacks.

Three times rule an election, `lease_duration > renew_deadline > 1.2 * retry_period`:

- Another process takes the lease `lease_duration` after it has seen the last change of the lease. It measures
  this with its own monotonic clock. The times in the lease are never compared.
- The leader writes until `renew_deadline` after it *sent* its last successful renewal (`may_write`). The time
  of the answer does not count: an answer may come late.
- The leader renews the lease every `retry_period`; a follower reads it every 1 to 2.2 of them.

So the old leader stops at least `lease_duration - renew_deadline` before another process can begin, by equal
clocks. Clocks may run at different rates: the promise holds while the faster one gains less than the ratio
`lease_duration / renew_deadline` (50% with client-go's times). Wall clocks may show any time.

What remains is a window that no lease can close:

- `may_write` is a check before a write. The write itself arrives later. That is harmless for
  `lease_duration - renew_deadline` seconds (5 s with client-go's times): a write that takes longer from its
  check to the server, because the process was stopped or the network held it, may meet a new leader. The
  size of this window has no limit. A resourceVersion or a uid in the write lets the server refuse it.
- A process that was stopped and goes on finds itself past its deadline, because CLOCK_MONOTONIC goes on
  while a process is stopped. It stands still while a whole machine is suspended or a virtual machine is
  paused: then `may_write` is true for the rest of its time, or until the next renewal fails.
- If the Lease is deleted by hand, or its holder is emptied, another candidate can acquire it at once. Its old
  holder stops at its next renewal, `retry_period` later; if nobody has acquired it, it is made again.
"""

import asyncio
import os
import socket
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from types import MappingProxyType

import msgspec

from declctl.errors import ApiError, Conflict, DeclctlError, Forbidden, NotFound, TimedOut, TooManyRequests
from declctl.kit import Clock
from declctl.leadership.lease import (
    LeaderElectionRecord,
    LeaseLock,
    micro_time,
    missing_right,
    new_lease,
    parse_micro_time,
    seconds_of,
    version_of,
)
from declctl.objects import KubeObject
from declctl.objects.answers import mapping
from declctl.objects.refusals import granting_command

JITTER_FACTOR = 1.2  # a follower waits for 1 to 2.2 retry periods, as in client-go
_NEVER = float("-inf")
_NO_METADATA: Mapping[str, Mapping[str, str]] = MappingProxyType({})


class LeaseTimes(msgspec.Struct, frozen=True):
    """The three times of an election, in seconds. Raises ValueError if they contradict each other."""

    lease_duration: float = 15.0  # for which a follower waits after the last change of the lease
    renew_deadline: float = 10.0  # for which the leader acts after the last successful renewal
    retry_period: float = 2.0  # between two renewals; a follower waits for 1 to 2.2 of them

    def __post_init__(self) -> None:
        if min(self.lease_duration, self.renew_deadline, self.retry_period) <= 0:
            raise ValueError("lease_duration, renew_deadline and retry_period must be longer than nothing")
        if self.lease_duration <= self.renew_deadline:
            raise ValueError(
                f"lease_duration ({self.lease_duration:g} s) must be longer than renew_deadline "
                f"({self.renew_deadline:g} s)"
            )
        if self.renew_deadline <= JITTER_FACTOR * self.retry_period:
            raise ValueError(
                f"renew_deadline ({self.renew_deadline:g} s) must be longer than {JITTER_FACTOR:g} times "
                f"retry_period ({self.retry_period:g} s)"
            )

    @property
    def request_timeout(self) -> float:
        """The time for one request: half of `renew_deadline`, so that a second one has a chance."""
        return self.renew_deadline / 2


class LeaseVerb(StrEnum):
    """The verbs of requests for a Lease, as RBAC names them."""

    LIST = "list"  # of all Leases of a sharding, never of an election alone
    GET = "get"
    CREATE = "create"
    UPDATE = "update"


class LeaseRequest(msgspec.Struct, frozen=True):
    """One request that is due."""

    verb: LeaseVerb
    sent_at: float  # monotonic, by the clock of the candidate
    lease: KubeObject | None = None  # the body of a create or an update
    is_fast: bool = False  # a renewal without a read before it


class LeadershipStatus(msgspec.Struct, frozen=True):
    """The election as one process sees it. `document_of` makes JSON of it."""

    enabled: bool = False
    leading: bool = True  # whether this process may act; always true without an election
    identity: str = ""  # of this process
    lease: str = ""  # `namespace/name`
    holder: str = ""  # the identity of the present leader; empty if no process leads, or none is known
    since: datetime | None = None  # when the holder has taken the lease, by its own clock
    state: str = "Leading"  # what this process does meanwhile
    transitions: int = 0  # how often the lease was taken from another process
    terms: int = 0  # how often this process has begun to lead
    slow_paths: int = 0  # renewals without a read that failed, as client-go's slowpath counter
    refused_writes: int = 0  # writes that were not sent, as this process did not lead; counted by its owner
    error: str | None = None  # why the last request failed; None after a success


class ElectionEvent(Enum):
    """What the owner of an election hears about."""

    STARTED_LEADING = auto()
    STOPPED_LEADING = auto()  # the text is the reason
    NEW_LEADER = auto()  # the text is the identity


class Election:
    """The state machine of one candidate. It is told the time, and does no I/O.

    `step` returns the request that is due; the owner sends it, and calls `answered` or `failed` once. At
    `wakes_at` the owner calls `step` again, also while a request is under way. `now` is a monotonic time in
    seconds, `wall` the time for people. Used on one loop; `may_write` may be called by any thread.

    A candidate goes on for ever: after it has lost the lease, it is a follower again. `metadata` has labels
    and annotations that each write of a candidate sets.
    """

    def __init__(
        self,
        identity: str,
        times: LeaseTimes,
        *,
        namespace: str,
        name: str,
        random: Callable[[], float],
        metadata: Mapping[str, Mapping[str, str]] = _NO_METADATA,
    ) -> None:
        if not identity:
            raise ValueError("the identity of a candidate is empty")
        self.identity = identity
        self.times = times
        self.transitions = 0  # of the lease, at the last observation
        self.terms = 0
        self.slow_paths = 0  # updates without a read before them that have failed
        self.error: BaseException | None = None  # of the last request
        self.failed_verb: LeaseVerb | None = None  # of the last request, if it has failed
        self.is_released = False  # the lease was given up, or was not ours; only after `begin_release`
        self._namespace = namespace
        self._name = name
        self._random = random
        self._metadata = metadata
        self._deadline = _NEVER  # until then `may_write` is true; read by any thread
        self._is_leading = False
        self._releasing = False
        self._wrote = False  # a create or an update was sent: the lease may be ours
        self._request: LeaseRequest | None = None  # under way
        self._next_at = _NEVER  # of the next request
        # The newest lease, as long as its version is believed to be the present one. An update needs it.
        self._lease: KubeObject | None = None
        self._is_missing = False  # the last read found no lease
        self._has_read = False  # the lease was read since the last successful write
        self._observed: LeaderElectionRecord | None = None
        self._observed_at = _NEVER  # when `_observed` was first seen
        self._renewed: datetime | None = None  # the last renew time that was written
        self._announced = ""  # the leader that was announced last
        self._events: deque[tuple[ElectionEvent, str]] = deque()

    # What is known

    def may_write(self, now: float) -> bool:
        """Whether this process leads, and its last renewal was sent less than `renew_deadline` ago."""
        return now < self._deadline

    @property
    def deadline(self) -> float:
        """The monotonic time at which `may_write` ends; minus infinity while this process does not lead."""
        return self._deadline

    @property
    def is_leading(self) -> bool:
        """Whether this process leads. It goes on until `step` notices that the deadline has passed."""
        return self._is_leading

    @property
    def observed(self) -> LeaderElectionRecord | None:
        """The newest record of the lease; None before the first one, and while it creates the lease."""
        return None if self._is_missing else self._observed

    def take_events(self) -> list[tuple[ElectionEvent, str]]:
        """The events since the last call, in order."""
        found = list(self._events)
        self._events.clear()
        return found

    @property
    def wakes_at(self) -> float:
        """When `step` has to be called next."""
        times = [self._next_at] if self._request is None else [self.gives_up_at]
        return min([*times, self._deadline]) if self._is_leading else times[0]

    @property
    def has_request(self) -> bool:
        """Whether a request is under way."""
        return self._request is not None

    @property
    def gives_up_at(self) -> float:
        """When the request that is under way has taken too long."""
        return _NEVER if self._request is None else self._request.sent_at + self.times.request_timeout

    # Requests

    def step(self, now: float, wall: datetime) -> LeaseRequest | None:
        """End a term that is past its deadline; return the request that is due, or None."""
        if self._check_deadline(now):
            return None  # the owner hears of it before the next request
        if self._request is not None or now < self._next_at or self.is_released:
            return None
        self._request = self._release_request(now, wall) if self._releasing else self._due(now, wall)
        if self._request.lease is not None:
            self._wrote = True
        return self._request

    def answered(self, now: float, lease: KubeObject) -> None:
        """The request has succeeded, and the server has this lease."""
        self._check_deadline(now)
        request = self._end_request()
        try:
            version_of(lease)
        except ApiError as error:
            self._failed(request, now, error)
            return
        self.error = self.failed_verb = None
        record = LeaderElectionRecord.of(lease)
        self._observe(record, now)
        self._lease, self._is_missing = lease, False
        if self._releasing:
            self.is_released = record.holder != self.identity
            self._next_at = now
        elif request.verb is LeaseVerb.GET:
            self._has_read = True
            self._have_read(record, now)
        elif record.holder == self.identity:
            self._have_renewed(request, now)
        else:
            # Something between this process and the storage has changed what was written.
            self._lose(f"the lease went to {record.holder or 'nobody'}")
            self._wait(now)

    def failed(self, now: float, error: DeclctlError) -> None:
        """The request has failed, or its answer was lost: it may have taken effect all the same."""
        self._failed(self._end_request(), now, error)

    def observe(
        self, lease: KubeObject | None, record: LeaderElectionRecord | None, *, since: float, now: float
    ) -> None:
        """Begin with what the owner has read: a lease that is free is written without a read before it.

        `lease` is None if there is none. `record` is its last known content, which the owner has first seen
        at `since`; None if it has never seen one. Called at most once, before the first `step`.
        """
        self._observed, self._observed_at = record, since
        self._has_read = True
        self._wrote = record is not None and record.holder == self.identity
        self._lease = lease
        if lease is None or record is None:
            self._lease_is_gone(now)
        else:
            self._have_read(record, now)

    def begin_release(self, now: float) -> None:
        """Stop leading, and give the lease up: `step` returns requests until `is_released`.

        No request may be under way. The caller has made sure that nothing is written any more.
        """
        self._releasing = True
        self._lose("the lease is released")
        self._lease, self._next_at = None, now  # as in client-go, the lease is read again first
        self.is_released = not self._wrote

    # The decisions

    def _due(self, now: float, wall: datetime) -> LeaseRequest:
        """The next request of a candidate. A leader whose lease is known renews it without a read."""
        if self._is_missing:
            return self._write(LeaseVerb.CREATE, new_lease(self._namespace, self._name), now, wall)
        if self._lease is None:
            return LeaseRequest(LeaseVerb.GET, now)
        return self._write(LeaseVerb.UPDATE, self._lease, now, wall)

    def _write(self, verb: LeaseVerb, lease: KubeObject, now: float, wall: datetime) -> LeaseRequest:
        before = LeaderElectionRecord.of(lease)
        # Others notice only changes, so each renewal differs from the last one. A wall clock may stand still.
        if self._renewed is not None and wall <= self._renewed:
            wall = self._renewed + timedelta(microseconds=1)
        self._renewed = wall
        is_ours = before.holder == self.identity
        record = LeaderElectionRecord(
            holder=self.identity,
            lease_seconds=seconds_of(self.times.lease_duration),
            acquire_time=before.acquire_time if is_ours else micro_time(wall),
            renew_time=micro_time(wall),
            transitions=before.transitions + (verb is LeaseVerb.UPDATE and not is_ours),
        )
        written = record.written_to(lease)
        if self._metadata:
            known = mapping(lease.get("metadata"))
            marks = {field: {**mapping(known.get(field)), **own} for field, own in self._metadata.items()}
            written = {**written, "metadata": {**known, **marks}}
        return LeaseRequest(verb, now, written, is_fast=not self._has_read)

    def _release_request(self, now: float, wall: datetime) -> LeaseRequest:
        if self._lease is None:
            return LeaseRequest(LeaseVerb.GET, now)
        transitions = LeaderElectionRecord.of(self._lease).transitions
        moment = micro_time(wall)
        record = LeaderElectionRecord("", 1, acquire_time=moment, renew_time=moment, transitions=transitions)
        return LeaseRequest(LeaseVerb.UPDATE, now, record.written_to(self._lease))

    def _have_read(self, record: LeaderElectionRecord, now: float) -> None:
        if record.holder == self.identity or (not self._is_leading and self._is_free(record, now)):
            self._next_at = now  # the version is fresh: it is taken or renewed at once
            return
        if self._is_leading:
            # Any other name is a loss, also an empty one: another process may take the lease at any moment.
            self._lose(f"the lease belongs to {record.holder or 'nobody'}")
        self._wait(now)

    def _is_free(self, record: LeaderElectionRecord, now: float) -> bool:
        return not record.holder or now >= self._expires_at(record)

    def _expires_at(self, record: LeaderElectionRecord) -> float:
        return self._observed_at + record.valid_seconds(self.times.lease_duration)

    def _have_renewed(self, request: LeaseRequest, now: float) -> None:
        self._has_read = False
        deadline = request.sent_at + self.times.renew_deadline
        if now >= deadline:
            self._next_at = now  # too late to act on it; but the lease is ours, and is renewed at once
            return
        if not self._is_leading:
            self._is_leading = True
            self.terms += 1
            self._events.append((ElectionEvent.STARTED_LEADING, ""))
        self._deadline = deadline
        self._next_at = max(now, request.sent_at + self.times.retry_period)

    def _failed(self, request: LeaseRequest, now: float, error: DeclctlError) -> None:
        self.error, self.failed_verb = error, request.verb
        self._check_deadline(now)
        # Whatever was known of the lease is in doubt: it is read before the next write.
        self._lease, self._is_missing = None, False
        if request.is_fast and request.verb is LeaseVerb.UPDATE:
            self.slow_paths += 1
        if request.verb is LeaseVerb.GET and isinstance(error, NotFound):
            self._lease_is_gone(now)
        elif request.is_fast and not isinstance(error, TooManyRequests | Forbidden):
            self._next_at = now  # the slow way at once, as in client-go
        elif self._releasing and isinstance(error, Conflict):
            self._next_at = now + self.times.retry_period / 10
        else:
            self._wait(now, asked=error.retry_after if isinstance(error, TooManyRequests) else None)

    def _lease_is_gone(self, now: float) -> None:
        """The lease has disappeared, or there never was one."""
        self.error = self.failed_verb = None
        self._has_read = True
        if self._releasing:
            self.is_released = True
            return
        # Somebody has deleted it, and its holder may still act: it keeps its time. A leader makes a new one.
        observed = self._observed
        expires = _NEVER if observed is None or not observed.holder else self._expires_at(observed)
        if self._is_leading or observed is None or observed.holder == self.identity or now >= expires:
            self._is_missing = True
            self._next_at = now
        else:
            self._wait(now)

    def _wait(self, now: float, *, asked: float | None = None) -> None:
        """Wait for the next attempt; `asked` are the seconds that the server asks for."""
        self._lease = None
        if self._is_leading:
            # A server that asks for more than the rest of the term does not decide who leads.
            half = max(self.times.retry_period, (self._deadline - now) / 2)
            self._next_at = now + max(self.times.retry_period, min(asked or 0.0, half))
            return
        seconds = self.times.retry_period * (1 + JITTER_FACTOR * self._random())
        self._next_at = now + max(seconds, asked or 0.0)
        # A lease that ends earlier is looked at when it ends.
        if asked is None and self._observed is not None and self._observed.holder not in ("", self.identity):
            expires = self._expires_at(self._observed)
            if expires > now:
                self._next_at = min(self._next_at, expires)

    def _observe(self, record: LeaderElectionRecord, now: float) -> None:
        if record != self._observed:
            self._observed, self._observed_at = record, now
        self.transitions = record.transitions
        if record.holder and record.holder != self._announced:
            self._announced = record.holder
            self._events.append((ElectionEvent.NEW_LEADER, record.holder))

    def _check_deadline(self, now: float) -> bool:
        """End a term that is past its deadline; returns whether it has ended."""
        if not self._is_leading or now < self._deadline:
            return False
        last = "" if self.error is None else f" (the last error: {self.error})"
        self._lose(f"no renewal has succeeded for {self.times.renew_deadline:g} s{last}")
        return True

    def _lose(self, why: str) -> None:
        if self._is_leading:
            self._is_leading, self._deadline = False, _NEVER
            self._events.append((ElectionEvent.STOPPED_LEADING, why))

    def _end_request(self) -> LeaseRequest:
        request, self._request = self._request, None
        assert request is not None
        return request


def _nothing(*_: object) -> None:
    """The default of a callback."""


class LeaderCallbacks(msgspec.Struct, frozen=True):
    """What an elector calls, on its loop (client-go's LeaderCallbacks). They return at once."""

    on_started_leading: Callable[[], object] = _nothing
    on_stopped_leading: Callable[[str], object] = _nothing  # with the reason; only after a start
    on_new_leader: Callable[[str], object] = _nothing  # with the identity, which may be that of this process


DEFAULT_CALLBACKS = LeaderCallbacks()


def new_identity() -> str:
    """An identity that no other process has: the host name, the process id and a random part."""
    return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4()}"


class LeaderElector:
    """Takes part in an election until it has led and lost (client-go's LeaderElector).

    `run` and `release` are awaited on one loop, one at a time. `may_write`, `deadline` and `status` may be
    called by any thread.
    """

    def __init__(
        self,
        lease: LeaseLock,
        *,
        times: LeaseTimes,
        clock: Clock,
        identity: str | None = None,
        callbacks: LeaderCallbacks = DEFAULT_CALLBACKS,
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._callbacks = callbacks
        self._election = Election(
            new_identity() if identity is None else identity,
            times,
            namespace=lease.namespace,
            name=lease.name,
            random=clock.random,
        )

    @property
    def identity(self) -> str:
        """The identity of this process."""
        return self._election.identity

    def may_write(self) -> bool:
        """Whether this process may write now. False at `deadline` at the latest, whatever the loop does."""
        return self._election.may_write(self._clock.monotonic())

    @property
    def deadline(self) -> float:
        """The monotonic time at which `may_write` ends; minus infinity while this process does not lead."""
        return self._election.deadline

    async def run(self) -> str:
        """Wait for the lease, lead, and renew it; returns why the lease was lost.

        A request that fails is repeated; `status` has its error. A cancellation keeps the lease: `release`
        gives it up.
        """
        while not (reasons := await self._turn()):
            pass
        return reasons[0]

    async def release(self, *, timeout: float) -> bool:
        """Stop leading, and give the lease up, so that another process can lead at once.

        Nothing may be written any more. Returns whether the lease is free or another's; False if that is not
        known after `timeout` seconds: then the lease ends by itself.
        """
        self._election.begin_release(self._clock.monotonic())
        self._announce()
        ends = self._clock.monotonic() + timeout
        while not self._election.is_released and self._clock.monotonic() < ends:
            await self._turn(until=ends)
        return self._election.is_released

    def status(self) -> LeadershipStatus:
        """The election as this process sees it."""
        election, record = self._election, self._election.observed
        leads = self.may_write()
        holder = record.holder if record is not None else ""
        return LeadershipStatus(
            enabled=True,
            leading=leads,
            identity=self.identity,
            lease=f"{self._lease.namespace}/{self._lease.name}",
            holder=holder,
            since=parse_micro_time(record.acquire_time) if record is not None and holder else None,
            state="Leading" if leads else "Following" if holder not in ("", self.identity) else "Waiting",
            transitions=election.transitions,
            terms=election.terms,
            slow_paths=election.slow_paths,
            error=self._error(),
        )

    def _error(self) -> str | None:
        error, verb = self._election.error, self._election.failed_verb
        if error is None or verb is None:
            return None
        if isinstance(error, Forbidden):
            command = granting_command(str(error))
            return f"{error}; {missing_right(verb, self._lease)}" + (f": `{command}`" if command else "")
        return f"{verb} of the lease {self._lease.namespace}/{self._lease.name}: {error}"

    async def _turn(self, *, until: float = float("inf")) -> Sequence[str]:
        """Send the request that is due, or wait for it; returns the reason of a term that has ended."""
        election = self._election
        request = election.step(self._clock.monotonic(), self._clock.now())
        if reasons := self._announce():
            return reasons
        if request is None:
            await self._clock.sleep(min(election.wakes_at, until) - self._clock.monotonic())
            return ()
        await self._send(request, until)
        return self._announce()

    async def _send(self, request: LeaseRequest, until: float) -> None:
        """Send a request and hand its answer on. It is given up after its time, and when the term ends."""
        sending = asyncio.ensure_future(self._call(request))
        ends = min(self._election.wakes_at, until)
        timer = asyncio.ensure_future(self._clock.sleep(ends - self._clock.monotonic()))
        try:
            await asyncio.wait([sending, timer], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                seconds = self._clock.monotonic() - request.sent_at
                raise TimedOut(f"no answer after {seconds:.1f} s")
            self._election.answered(self._clock.monotonic(), sending.result())
        except DeclctlError as error:
            self._election.failed(self._clock.monotonic(), error)
        except asyncio.CancelledError:
            self._election.failed(self._clock.monotonic(), TimedOut("the request was cancelled"))
            raise
        finally:
            timer.cancel()
            sending.cancel()
            await asyncio.wait([sending])  # a cancellation ends this wait as well, and goes on

    async def _call(self, request: LeaseRequest) -> KubeObject:
        if request.verb is LeaseVerb.GET:
            return await self._lease.get()
        assert request.lease is not None
        if request.verb is LeaseVerb.CREATE:
            return await self._lease.create(request.lease)
        return await self._lease.update(request.lease)

    def _announce(self) -> list[str]:
        """Call the callbacks for what has happened; returns the reasons of terms that have ended."""
        reasons: list[str] = []
        for event, text in self._election.take_events():
            match event:
                case ElectionEvent.STARTED_LEADING:
                    self._callbacks.on_started_leading()
                case ElectionEvent.STOPPED_LEADING:
                    reasons.append(text)
                    self._callbacks.on_stopped_leading(text)
                case ElectionEvent.NEW_LEADER:
                    self._callbacks.on_new_leader(text)
        return reasons
