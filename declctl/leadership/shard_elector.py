"""The shell around `ShardElections`: it sends the requests for Leases, and calls the owner of the shards."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from declctl.errors import DeclctlError, Forbidden, MalformedAnswer, TimedOut
from declctl.kit import Clock, set_within
from declctl.leadership.elector import LeaseTimes, LeaseVerb, new_identity
from declctl.leadership.lease import SharingLeases
from declctl.leadership.sharing import (
    ListedLease,
    ShardElections,
    ShardEvent,
    ShardRequest,
    SharingStatus,
)
from declctl.objects import KubeObject
from declctl.objects.answers import mapping
from declctl.objects.refusals import granting_command
from declctl.objects.shards import Sharding

_MOST_REQUESTS = 16  # under way at a time; a process with more shards renews them one after another


def _nothing(*_: object) -> None:
    """The default of a callback."""


class ShardCallbacks(msgspec.Struct, frozen=True):
    """What an elector calls, on its loop, each with a shard. They return at once."""

    on_gained: Callable[[int], object] = _nothing
    on_leaving: Callable[[int], object] = _nothing  # to be drained; `drained` gives the Lease up
    on_lost: Callable[[int, str], object] = _nothing  # with the reason; `drained` allows to take it again


DEFAULT_SHARD_CALLBACKS = ShardCallbacks()


class ShardElector:
    """Shares the shards of a controller with other replicas, until it has ended.

    `run` is awaited on one loop, on which
    `drained` and `end` are called. `may_write` may be called by any thread, `status` on the loop.
    """

    def __init__(
        self,
        leases: SharingLeases,
        sharding: Sharding,
        *,
        times: LeaseTimes,
        clock: Clock,
        identity: str | None = None,
        callbacks: ShardCallbacks = DEFAULT_SHARD_CALLBACKS,
    ) -> None:
        self._leases = leases
        self._sharding = sharding
        self._clock = clock
        self._callbacks = callbacks
        self._elections = ShardElections(
            leases.name,
            new_identity() if identity is None else identity,
            sharding,
            times,
            namespace=leases.namespace,
            random=clock.random,
        )
        self._wake = asyncio.Event()  # something has happened: `step` is due
        self._ended = asyncio.Event()  # `run` has returned
        self._permits = asyncio.Semaphore(_MOST_REQUESTS)
        self.under_way = 0  # requests that were sent, or wait for their turn

    @property
    def identity(self) -> str:
        """The identity of this process."""
        return self._elections.identity

    def may_write(self, shard: int) -> bool:
        """Whether this process may write for a shard now. False at its deadline, whatever the loop does."""
        return self._elections.may_write(shard, self._clock.monotonic())

    async def run(self) -> None:
        """Take part in the elections until `end` has given all back. Requests that fail are repeated.

        A cancellation keeps the Leases, which end by themselves.
        """
        elections, clock = self._elections, self._clock
        try:
            async with asyncio.TaskGroup() as sending:
                while not elections.is_ended:
                    self._wake.clear()
                    for request in elections.step(clock.monotonic(), clock.now()):
                        sending.create_task(self._send(request))
                    self._announce()
                    if not elections.is_ended:
                        await set_within(self._wake, elections.wakes_at - clock.monotonic(), clock=clock)
        finally:
            self._ended.set()

    def drained(self, shard: int) -> None:
        """No call of a shard that is leaving, or was lost, runs any more, and nothing is written for it."""
        self._elections.drained(shard)
        self._wake.set()

    async def end(self, *, timeout: float) -> bool:
        """Give all shards back while `run` goes on: each is announced as leaving, and released when drained.

        Returns whether all Leases are free; False after `timeout` seconds: those that are left end by
        themselves.
        """
        self._elections.begin_end()
        self._wake.set()
        await set_within(self._ended, timeout, clock=self._clock)
        return self._elections.is_ended

    def status(self) -> SharingStatus:
        """The sharing as this process sees it."""
        now = self._clock.monotonic()
        return self._elections.status(now, error=self._error(now))

    def _error(self, now: float) -> str | None:
        found = self._elections.error(now)
        if found is None:
            return None
        verb, name, error = found
        if isinstance(error, Forbidden):
            command = granting_command(str(error))
            right = self._leases.missing_right(verb, self._sharding.shards)
            return f"{error}; {right}" + (f": `{command}`" if command else "")
        namespace = self._leases.namespace
        what = f"the lease {namespace}/{name}" if name else f"the leases of {namespace}"
        return f"{verb} of {what}: {error}"

    async def _send(self, request: ShardRequest) -> None:
        """Send a request and hand its answer on. It is given up after its time."""
        elections, clock = self._elections, self._clock
        self.under_way += 1
        sending = asyncio.ensure_future(self._call(request))
        ends = request.request.sent_at + elections.times.request_timeout
        timer = asyncio.ensure_future(clock.sleep(ends - clock.monotonic()))
        try:
            await asyncio.wait([sending, timer], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise TimedOut(f"no answer after {clock.monotonic() - request.request.sent_at:.1f} s")
            if request.own is None:
                elections.listed(clock.monotonic(), request, _by_name(sending.result()))
            else:
                elections.answered(clock.monotonic(), request, sending.result())
        except DeclctlError as error:
            elections.failed(clock.monotonic(), request, error)
        finally:
            timer.cancel()
            sending.cancel()
            self.under_way -= 1
            self._wake.set()
            await asyncio.wait([sending])  # a cancellation ends this wait as well, and goes on

    async def _call(self, request: ShardRequest) -> KubeObject:
        async with self._permits:
            if request.own is None:
                return await self._leases.list()
            lock, lease = self._leases.lock(request.name), request.request.lease
            if lease is None:
                return await lock.get()
            return await (lock.create if request.request.verb is LeaseVerb.CREATE else lock.update)(lease)

    def _announce(self) -> None:
        for event, shard, text in self._elections.take_events():
            match event:
                case ShardEvent.GAINED:
                    self._callbacks.on_gained(shard)
                case ShardEvent.LEAVING:
                    self._callbacks.on_leaving(shard)
                case ShardEvent.LOST:
                    self._callbacks.on_lost(shard, text)


def _by_name(answer: KubeObject) -> Mapping[str, ListedLease]:
    """The Leases of a LIST. Raises MalformedAnswer."""
    items = answer.get("items")
    if not isinstance(items, list):
        raise MalformedAnswer("the list of leases has no items")
    found: dict[str, ListedLease] = {}
    for item in cast("list[Any]", items):
        name = mapping(mapping(item).get("metadata")).get("name")
        if not isinstance(name, str):
            raise MalformedAnswer("a lease in a list has no name")
        found[name] = ListedLease.of(item)
    return found
