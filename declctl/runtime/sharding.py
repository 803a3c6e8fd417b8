"""This process as one of several that share the objects of a controller: the walk of a shard through it.

Imported only if the manifest has `sharding`.

    gained ─ held: caches list it ─ open: handlers hear of it ─ leaving: its calls end ─ given back
      (Lease)                                 │
                                              └─ lost: its calls are cancelled, its writes are refused

A shard is open only when each cache has a list that began after the Lease was taken. So no key of it is
handled by a state that is older than what the holder before has done, and no key waits in a queue for that.

Handlers of resources that are not sharded, schedules and life-cycle hooks act where shard 0 is open.

A call that outlives its shard is a zombie that may write nothing any more, also if the shard comes back: the
Lease does not wait for it. For users, a shard is a slot of the manifest.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

import msgspec

from declctl.errors import NotFound
from declctl.kit import Clock, set_within
from declctl.leadership import (
    LeaseTimes,
    ShardCallbacks,
    ShardElector,
    ShardState,
    ShardStatus,
    SharingLeases,
)
from declctl.manifest.model import ShardingSpec
from declctl.runtime.caching.held_shards import HeldShards
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.fencing import FencedSender
from declctl.runtime.handling.slots import Slots
from declctl.runtime.log import Log
from declctl.transport import Client
from declctl.writes import WriteOrigin

_POST_SECONDS = 2.0  # for posting recorded Events before a Lease is given back, at most
_RELEASE_SECONDS = 2.0  # for giving Leases back at the end of the process, at most
_SILENCE = 60.0  # seconds between two log lines about shards that wait for their lists


class SlotSchedules(Protocol):
    """The schedules of the process, which are called where shard 0 is open."""

    def pause(self) -> None:
        """Call nothing until `resume`. Running calls go on."""
        ...

    def resume(self) -> None:
        """End a pause."""
        ...

    def cancel_running(self, why: str) -> None:
        """Cancel the asynchronous calls that run."""
        ...

    async def until_returned(self, timeout: float) -> None:
        """Wait for running calls for `timeout` seconds at most."""
        ...


class ReplicaParts(msgspec.Struct, frozen=True):
    """The parts of the process that hear of its shards."""

    caches: InformerPool
    slots: Slots
    schedules: SlotSchedules
    look_for_leftovers: Callable[[], None]  # again, as shards were opened
    forget_sets: Callable[[], None]  # the holder before has written members that are not known here
    until_posted: Callable[[float], Awaitable[None]]  # recorded Events, for so many seconds at most
    drain_timeout: Callable[[], float]  # seconds that a shard waits for its running calls


class SlotStatus(msgspec.Struct, frozen=True):
    """One slot as this process sees it."""

    slot: int
    state: str  # Listing or Handled for one that is held here; else as `ShardState`
    holder: str = ""  # the identity of the process that holds it; empty if it is free
    since: datetime | None = None  # handled here; elsewhere, when the holder has taken it, by its own clock
    free_seconds: float = 0.0  # for how long this process has seen it free


class ReplicaStatus(msgspec.Struct, frozen=True):
    """The sharing of slots as this process sees it. `document_of` makes JSON of it."""

    identity: str  # of this process
    leases: str  # namespace, and the beginning of the names of the Leases
    sharding: str  # such as `16 by Namespace`
    member: int | None = None  # the number of this process; None if it has none
    members: int = 0  # processes that share, as far as they have numbers
    quota: int | None = None  # slots that this process should hold
    total: int = 0  # slots
    held: int = 0  # slots whose Leases this process has
    handled: int = 0  # those of them that are handled here
    free: int = 0  # slots that no process holds
    free_seconds: float = 0.0  # for how long the slot is free that has been so for the longest time
    gained: int = 0  # slots, since the start
    given_back: int = 0  # slots, since the start
    lost: int = 0  # slots, since the start
    refused_writes: int = 0  # that were not sent, as their slots are not held here
    fault: str | None = None  # why nothing is taken
    error: str | None = (
        None  # the last request for a Lease that failed, unless one of its kind has succeeded since
    )
    slots: tuple[SlotStatus, ...] = ()


class Replica:
    """This process in the elections of shards. Used on the machinery loop, but for `refusal`.

    - `name`, `namespace`: of the Leases; the manifest's `leaseName` takes precedence over `name`.
    - `shards`: written here; the caches and the handlers of the process go by it.
    """

    def __init__(  # noqa: PLR0913 - what a process has before its parts
        self,
        spec: ShardingSpec,
        client: Client,
        shards: HeldShards,
        slots: Slots,
        *,
        name: str,
        namespace: str,
        clock: Clock,
        log: Log,
    ) -> None:
        self.spec = spec
        self._shards = shards
        self._slots = slots
        self._clock = clock
        self._log = log
        self._leases = SharingLeases(client, namespace=namespace, name=spec.lease_name or name)
        self._elector = ShardElector(
            self._leases,
            shards.sharding,
            times=LeaseTimes(spec.lease_duration, spec.renew_deadline, spec.retry_period),
            clock=clock,
            callbacks=ShardCallbacks(on_gained=self._gained, on_leaving=self._leaving, on_lost=self._lost),
        )
        self.sender = FencedSender(client, self.refusal)
        self._refused = 0  # writes
        self._counting = threading.Lock()  # guards `_refused`
        self._parts: ReplicaParts | None = None  # of `run`
        self._changed = asyncio.Event()  # a cache has listed, or failed: shards may be opened
        self._open_since: dict[int, datetime] = {}
        self._departures: dict[
            int, asyncio.Task[None]
        ] = {}  # of shards that are closed, until they are drained
        self._election: asyncio.Task[None] | None = None
        self._patience: float | None = None  # seconds for running calls at the end of the process
        self._logged_fault: str | None = None
        self._silent_until = 0.0

    @property
    def shown(self) -> str:
        """The namespace of the Leases, and the beginning of their names."""
        return f"{self._leases.namespace}/{self._leases.name}"

    # Writes

    def refusal(self, origin: WriteOrigin | None) -> str:
        """Why a write of a call must not be sent; empty if it may be. Counts refusals. From any thread."""
        why = self._why_not(origin)
        if why:
            with self._counting:
                self._refused += 1
        return why

    def _why_not(self, origin: WriteOrigin | None) -> str:
        slot = None if origin is None else self._slots.get(origin.handler)
        shard: int | None = 0  # of life-cycle hooks and schedules
        if slot is not None and origin is not None and origin.key:
            if slot.invocations.under_way.is_cut_off(origin.key):
                return "its slot was given back or lost while its call ran"
            shard = slot.shard_of(origin.key, origin.reads[0] if origin.reads else "")
        elif origin is None or origin.key:
            shard = None  # of a thread that a hook has started, or of a handler that was removed
        if shard is not None:
            if self._elector.may_write(shard):
                return ""
            return f"this process does not hold slot {shard} (lease {self.shown}-shard-{shard})"
        # Whose it is can't be known any more: it may be of any of them.
        held = self._shards.held
        if held and all(self._elector.may_write(each) for each in held):
            return ""
        return f"this process does not hold all its slots any more (leases {self.shown}-shard-…)"

    # The start and the end

    async def run(self, parts: ReplicaParts) -> None:
        """Take part in the elections until `end`."""
        self._parts = parts
        parts.caches.on_fault.append(self._changed.set)
        self._log.info(
            f"shares {self.spec.slots} slots by {self.spec.by} with other processes, by the Leases "
            f"{self.shown}-shard-… and {self.shown}-member-…",
            identity=self._elector.identity,
        )
        opening = asyncio.ensure_future(self._open_listed(parts))
        reporting = asyncio.ensure_future(self._report_errors())
        self._election = asyncio.ensure_future(self._elector.run())
        tasks = (self._election, opening, reporting)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()  # raises a fault of ours
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def end(self, patience: float) -> None:
        """Close all shards, wait `patience` seconds for their running calls, and give each Lease back."""
        self._patience = patience
        if self._parts is None:
            return
        if await self._elector.end(timeout=patience + _RELEASE_SECONDS):
            self._log.info(f"the slots of {self.shown} are released: other processes can take them at once")
        else:
            self._log.warning(
                f"not all slots of {self.shown} could be released in time: other processes take them after "
                f"{self.spec.lease_duration:g} s"
            )
            if self._election is not None:
                self._election.cancel()

    def status(self) -> ReplicaStatus:
        """The sharing as this process sees it."""
        seen = self._elector.status()
        free = [each.free_seconds for each in seen.shards if not each.holder]
        return ReplicaStatus(
            seen.identity,
            self.shown,
            seen.sharding,
            seen.member,
            seen.members,
            seen.quota,
            total=len(seen.shards),
            held=sum(each.holder == seen.identity for each in seen.shards),
            handled=len(self._shards.open),
            free=len(free),
            free_seconds=max(free, default=0.0),
            gained=seen.gained,
            given_back=seen.given_back,
            lost=seen.lost,
            refused_writes=self._refused,
            fault=seen.fault,
            error=seen.error,
            slots=tuple(map(self._slot_status, seen.shards)),
        )

    def _slot_status(self, each: ShardStatus) -> SlotStatus:
        state, since = str(each.state), each.since
        if each.state is ShardState.HELD:
            opened = self._open_since.get(each.shard)
            state, since = ("Listing", since) if opened is None else ("Handled", opened)
        return SlotStatus(each.shard, state, each.holder, since, each.free_seconds)

    @property
    def under_way(self) -> int:
        """The requests for Leases that are under way."""
        return self._elector.under_way

    def faults(self) -> list[str]:
        """Why this process takes no slot, or can't keep those that it has; empty if it does."""
        seen = self._elector.status()
        return [each for each in (seen.fault, seen.error) if each]

    def unfinished(self) -> str:
        """What is under way, in words; empty if all slots that are held are handled."""
        waiting = sorted(self._shards.held - self._shards.open)
        return f"slots {', '.join(map(str, waiting))} are held and not handled yet" if waiting else ""

    # Called by the elector, on its loop

    def _gained(self, shard: int) -> None:
        assert self._parts is not None
        self._shards.held |= {shard}
        for latch in self._parts.caches.widen(shard):
            latch.on_open(self._changed.set)
        self._changed.set()
        self._log.info(f"slot {shard} is gained: caches list it", slot=shard)

    def _leaving(self, shard: int) -> None:
        assert self._parts is not None
        self._depart(self._parts, shard, at="the move of its slot to another process")

    def _lost(self, shard: int, why: str) -> None:
        cut = self.sender.cut(lambda origin: bool(self._why_not(origin)))
        at = "the loss of its slot"
        assert self._parts is not None
        self._depart(self._parts, shard, at=at, patience=0.0)
        running = self._slots.cut_off(shard, at=at)  # also of a shard that was leaving already
        left = f"; {len(running)} calls were cancelled or left" if running else ""
        left += f"; {cut} writes were under way" if cut else ""
        self._log.error(
            f"slot {shard} is lost: {why}. This process handles it no more, and writes nothing for it{left}",
            slot=shard,
        )

    # The walk

    async def _open_listed(self, parts: ReplicaParts) -> None:
        """Open each shard when all caches have listed it."""
        while True:
            await set_within(self._changed, self.spec.retry_period, clock=self._clock)
            self._changed.clear()
            self._look(parts)

    def _look(self, parts: ReplicaParts) -> None:
        # A handler that moves to a new cache hears the differences, which were looked for in open shards.
        if parts.caches.is_staging:
            return
        listed = self._shards.held - self._departures.keys()
        lacking: list[str] = []
        for cached in parts.caches.scoped():
            scope, fault = cached.informer.scope, cached.informer.fault
            # A kind that is not served has no objects. Of any other cache, a read would find too few.
            if scope is None or isinstance(fault, NotFound):
                continue
            if not listed <= scope.listed_shards:
                listed &= scope.listed_shards
                lacking.append(f"{cached.informer.name}: {fault or 'its list is under way'}")
        self._open(parts, listed - self._shards.open)
        waiting = self._shards.held - self._departures.keys() - self._shards.open
        now = self._clock.monotonic()
        if not waiting:
            self._silent_until = now + _SILENCE
        elif now >= self._silent_until and lacking:
            self._silent_until = now + _SILENCE
            slots = ", ".join(map(str, sorted(waiting)))
            self._log.warning(f"slots {slots} are held and not handled yet: {'; '.join(lacking)}")

    def _open(self, parts: ReplicaParts, shards: frozenset[int]) -> None:
        """Let handlers begin with shards. One step of the loop for all caches."""
        if shards:
            self._shards.open |= shards
            parts.forget_sets()
            now = self._clock.now()
            self._open_since.update(dict.fromkeys(shards, now))
        parts.caches.open_shards()  # also what a cache has listed late
        if not shards:
            return
        if 0 in shards:
            parts.slots.begin_unsharded()
            parts.schedules.resume()
        parts.look_for_leftovers()
        slots = ", ".join(map(str, sorted(shards)))
        self._log.info(f"handles slot{'s' * (len(shards) > 1)} {slots}: all caches have listed them")

    def _depart(self, parts: ReplicaParts, shard: int, *, at: str, patience: float | None = None) -> None:
        """Close a shard now, and let it go when its calls have ended."""
        if shard in self._departures:  # it is lost while it leaves
            return
        self._shards.open -= {shard}
        self._open_since.pop(shard, None)
        parts.caches.close_shard(shard)
        if shard == 0:
            parts.schedules.pause()
            if patience == 0.0:
                parts.schedules.cancel_running("another process has slot 0 now")
        parts.slots.close_shard(shard)
        if patience is None:
            patience = parts.drain_timeout() if self._patience is None else self._patience
        leaves = self._leave(parts, shard, at=at, patience=patience)
        self._departures[shard] = asyncio.ensure_future(leaves)

    async def _leave(self, parts: ReplicaParts, shard: int, *, at: str, patience: float) -> None:
        try:
            await parts.slots.until_left(shard, timeout=patience)
            if shard == 0:
                await parts.schedules.until_returned(patience)
            if left := parts.slots.cut_off(shard, at=at):
                self._log.warning(
                    f"not waited for any longer, as slot {shard} leaves: {', '.join(left)}", slot=shard
                )
            parts.slots.close_shard(shard)  # what its last calls have asked for
            # Its calls may have recorded Events, which this process may post for as long as it has the Lease.
            await parts.until_posted(min(_POST_SECONDS, patience))
        finally:
            parts.caches.narrow(shard)
            self._shards.held -= {shard}
            del self._departures[shard]
            self._elector.drained(shard)

    async def _report_errors(self) -> None:
        """Log why requests for Leases fail, or nothing is taken: when that changes, and when it is over."""
        while True:
            status = self._elector.status()
            fault = status.fault or status.error
            if fault != self._logged_fault:
                self._logged_fault = fault
                if fault is not None:
                    self._log.warning(f"the sharing of slots fails: {fault}", lease=self.shown)
                else:
                    self._log.info("the sharing of slots goes on", lease=self.shown)
            await self._clock.sleep(self.spec.retry_period)
