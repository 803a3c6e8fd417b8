"""The writing side of a process: what every write to the cluster passes, and what is known of writes.

Writes of handlers, those of official clients in handlers, and Kubernetes Events: all ask whether this process
may write. The first two share one rate limit and one ledger.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

import declctl
from declctl.objects import GroupVersionKind, KubeObject, ObjectKey, ObjectView, RequestSender
from declctl.runtime.caching.held_shards import HeldShards
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.caching.managed_informer import cached_record
from declctl.runtime.handling.client_writes import ClientWrites, current_origin
from declctl.runtime.handling.server_warnings import ServerWarnings
from declctl.runtime.handling.slots import Slots
from declctl.runtime.own_namespace import namespace_of_lease
from declctl.runtime.process import Process
from declctl.writes import (
    EventRecorder,
    WriteGate,
    WriteLedger,
    WriteOrigin,
    WritePolicy,
    WriterFactory,
    Written,
)

if TYPE_CHECKING:  # imported only for a manifest with an election
    from declctl.runtime.leading import Candidate
    from declctl.runtime.sharding import Replica


class WritingParts(msgspec.Struct, frozen=True):
    """What writes pass, and what is known of them."""

    candidate: "Candidate | None"  # says whether this process may write; None without an election
    replica: "Replica | None"  # says for which shards it may write; None without a sharding
    ledger: WriteLedger  # of all writes but Events
    writers: WriterFactory  # of handlers; has the rate limit
    recorder: EventRecorder
    events: WriteLedger  # of Events: it remembers none
    warnings: ServerWarnings  # about all requests


def make_candidate(process: Process) -> "Candidate | None":
    """This process as a candidate; None without an election. Raises UsageError without a namespace.

    A dry run takes part in none: its lease would keep a process from acting whose writes are meant.
    """
    election, client, log = process.plan.leader_election, process.client, process.log
    if not election.enabled or process.options.dry_run or process.options.is_replay:
        return None
    from declctl.runtime.leading import Candidate  # late: most controllers have no election

    namespace = namespace_of_lease(election, process.namespace)
    candidate = Candidate(
        election, client, name=process.name, namespace=namespace.name, clock=process.clock, log=log
    )
    log.info(f"the election is by the Lease {candidate.shown}; its namespace is {namespace.source}")
    return candidate


def make_held_shards(process: Process) -> HeldShards | None:
    """The shards of this process; None if it handles all objects, as without elections."""
    spec, options = process.plan.sharding, process.options
    if spec is None or options.dry_run or options.is_replay or options.once or not options.shares:
        return None
    return HeldShards(spec.sharding)


def make_replica(process: Process, shards: HeldShards | None, slots: Slots) -> "Replica | None":
    """This process as one of several that share `shards`. Raises UsageError without a namespace."""
    spec = process.plan.sharding
    if spec is None or shards is None:
        return None
    from declctl.runtime.sharding import Replica  # late, as above

    namespace = namespace_of_lease(spec, process.namespace)
    replica = Replica(
        spec,
        process.client,
        shards,
        slots,
        name=process.name,
        namespace=namespace.name,
        clock=process.clock,
        log=process.log,
    )
    process.log.info(
        f"slots are shared by the Leases {replica.shown}-…; their namespace is {namespace.source}"
    )
    return replica


def make_writing_parts(
    process: Process, caches: InformerPool, slots: Slots, shards: HeldShards | None
) -> WritingParts:
    """Make the writing side, and guard the official clients. On the machinery loop.

    `slots` receive each write that the server has stored. Raises UsageError, as `make_candidate` does.
    """
    client, clock, log, dry_run = process.client, process.clock, process.log, process.options.dry_run

    def cached_version(kind: GroupVersionKind, key: ObjectKey) -> str:
        record = cached_record(caches.all(), kind, key)
        return "" if record is None else record.resource_version

    def on_written(written: Written, origin: WriteOrigin, live: KubeObject | None) -> None:
        slots.written(written, origin, caches.all(), live)

    def view_of(handler: str) -> type[ObjectView]:
        slot = slots.get(handler)
        return ObjectView if slot is None else slot.binding.view

    candidate, replica = make_candidate(process), make_replica(process, shards, slots)
    guard: Callable[[], str] = lambda: ""  # noqa: E731
    policy = WritePolicy(
        dry_run=dry_run,
        cached_version=cached_version,
        wants_live=slots.wants_live,
        on_written=on_written,
        on_dry_run=process.on_dry_run,
    )
    sender: RequestSender = client
    if candidate is not None:
        sender, guard = candidate.sender, candidate.refusal
        policy = replace(policy, refusal=lambda _: candidate.refusal())
    elif replica is not None:
        sender, policy = replica.sender, replace(policy, refusal=replica.refusal)
        guard = lambda: replica.refusal(current_origin())  # noqa: E731
    if process.recorder is not None:
        sender = process.recorder.around(sender)
        client.observe_requests(process.recorder.client_observer())
    ledger = WriteLedger()
    writers = WriterFactory(
        sender,
        ledger,
        controller=process.name,
        discover=client.discover,
        forget=client.forget,
        version=declctl.__version__,
        clock=clock,
        policy=policy,
        log=log,
    )
    loop, known_plural = asyncio.get_running_loop(), client.known_plural
    gate = ClientWrites(ledger, budget=writers.budget, loop=loop, known_plural=known_plural, clock=clock)
    client.guard_writes(guard, dry_run=dry_run, gate=gate)
    warnings = ServerWarnings(known_plural=known_plural, view_of=view_of, clock=clock, log=log)
    client.warnings.observer = warnings.add
    # Events have a gate of their own, and a ledger that remembers none: many of them would hide the writes.
    posted = WriteLedger(0)
    events = WriteGate(sender, posted, clock=clock, refusal=policy.refusal, dry_run=dry_run)
    recorder = EventRecorder(events, controller=process.name, instance=process.instance, clock=clock, log=log)
    return WritingParts(candidate, replica, ledger, writers, recorder, posted, warnings)
