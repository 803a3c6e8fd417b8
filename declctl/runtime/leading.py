"""This process as a candidate for the leadership: it follows, takes over, leads, and ends with its term.

Imported only if the manifest has `leaderElection: {enabled: true}`.

    start ─ caches fill ─ follows ──(lease)── takes over: proves its caches ─ handlers begin ─ leads
                                                                                                │
            the process ends ── calls are cancelled, writes are refused ──(lease is lost)───────┘

A follower queues nothing for handlers. At the takeover they receive all cached objects, as at a start. Before
that, each cache proves that it has all that the old leader may have acted on (`informer.freshness`).

A process that has lost its lease ends, as controllers of controller-runtime do. Its threads may be in the
middle of calls, which can't be stopped; a new process has none of them.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from declctl.errors import ApiError, NotFound
from declctl.informer.freshness import present_version, provable_reflectors, prove_fresh
from declctl.informer.informer import SharedIndexInformer
from declctl.informer.source import Source, has_selector
from declctl.kit import Clock
from declctl.leadership import LeaderCallbacks, LeaderElector, LeadershipStatus, LeaseLock, LeaseTimes
from declctl.manifest.model import Followers, LeaderElectionSpec
from declctl.objects.refusals import granting_command
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.fencing import FencedSender
from declctl.runtime.log import Log
from declctl.transport import Client

_FIRST_RETRY, _LONGEST_RETRY = 0.5, 10.0  # seconds between LISTs of the present version that fail
_SILENCE = 60.0  # seconds between two log lines about a takeover that waits
GroupKind = tuple[str, str]
_NAMESPACES: GroupKind = ("", "Namespace")


class TakeoverSteps(msgspec.Struct, frozen=True):
    """What a candidate does with the rest of the process, in this order. All on the machinery loop."""

    fill_caches: Callable[[], None]  # starts the informers that `followers: Cold` has held back
    wait_for_caches: Callable[[], Awaitable[None]]
    make_room: Callable[[], Awaitable[None]]
    namespace_sets: Callable[[], Sequence[SharedIndexInformer]]  # the namespaces that caches follow
    synced_caches: Callable[[], Sequence[ManagedInformer]]  # those of the active generation
    begin: Callable[[], None]  # handlers and schedules
    end: Callable[[], int]  # calls no handler any more; returns how many calls still run
    lost: Callable[[str], None]  # the process has to end, for this reason


class Candidate:
    """This process in the election of a leader. Used on the machinery loop, but for `may_write`.

    - `name`, `namespace`: of the Lease; the manifest's `leaseName` takes precedence over `name`.
    """

    def __init__(
        self,
        spec: LeaderElectionSpec,
        client: Client,
        *,
        name: str,
        namespace: str,
        clock: Clock,
        log: Log,
    ) -> None:
        self.spec = spec
        self._clock = clock
        self._log = log
        self._lease = LeaseLock(client, namespace=namespace, name=spec.lease_name or name)
        self._elector = LeaderElector(
            self._lease,
            times=LeaseTimes(spec.lease_duration, spec.renew_deadline, spec.retry_period),
            clock=clock,
            callbacks=LeaderCallbacks(
                on_started_leading=self._started,
                on_stopped_leading=self._stopped,
                on_new_leader=self._announce,
            ),
        )
        self.sender = FencedSender(client, lambda _: self.refusal())
        self._refused = 0  # writes
        self._counting = threading.Lock()  # guards `_refused`
        self._steps: TakeoverSteps | None = None  # of `run`
        self._leads = asyncio.Event()  # set when a term has begun
        self._has_begun = False  # handlers are called
        self._lost = ""  # why the lease was lost
        self._stopping = False  # the process ends: no takeover any more
        self._releasing = False  # the lease is being given up
        self._election: asyncio.Task[str] | None = None
        self._filling: asyncio.Future[None] | None = None  # of the caches of a warm follower
        self._taking_over: asyncio.Task[None] | None = None
        self._waiting_for = ""  # what a takeover waits for, in words
        self._logged_error: str | None = None

    @property
    def name(self) -> str:
        """The name of the Lease."""
        return self._lease.name

    def may_write(self) -> bool:
        """Whether this process may write now; false at the deadline, whatever its loop does. Any thread."""
        return self._elector.may_write()

    def refusal(self) -> str:
        """Why a write must not be sent now; empty if it may be. Counts refusals. From any thread."""
        if self._elector.may_write():
            return ""
        with self._counting:
            self._refused += 1
        return "this process does not lead"

    @property
    def seconds_to_end(self) -> float:
        """The seconds after a missed `renewDeadline` for which no other process can lead, by equal clocks.

        A process that has lost its lease has them for its end.
        """
        return self.spec.lease_duration - self.spec.renew_deadline

    @property
    def is_lost(self) -> bool:
        """Whether this process has led and lost the lease."""
        return bool(self._lost)

    @property
    def is_cold(self) -> bool:
        """Whether this process fills no cache before it leads."""
        return self.spec.followers is Followers.COLD and not self._leads.is_set()

    def status(self) -> LeadershipStatus:
        """The election as this process sees it. `state` is what it does meanwhile."""
        found = replace(self._elector.status(), refused_writes=self._refused)
        if self._lost:
            return replace(found, state="Lost", error=found.error or self._lost)
        if self._stopping:
            return replace(found, state="Stopping")
        if self._election is None:
            return replace(found, state="Starting")
        if found.leading and not self._has_begun:
            return replace(found, state="TakingOver", error=found.error or self._waiting_for or None)
        return found

    def unfinished(self) -> str:
        """Why handlers have not begun, in words; empty if they have."""
        if self._has_begun:
            return ""
        status = self.status()
        if status.leading:
            return self._waiting_for or "the takeover is under way"
        holder = f"{status.holder} leads" if status.holder else "no process leads"
        return f"this process does not lead: {holder} (lease {status.lease})"

    async def run(self, steps: TakeoverSteps) -> None:
        """Take part in the election until the lease is lost, or until `stop`."""
        self._steps = steps
        # A process that can't fill its caches must not keep others from leading.
        if self.spec.followers is Followers.WARM:
            self._filling = asyncio.ensure_future(steps.wait_for_caches())
            try:
                await asyncio.wait([self._filling])
                if not self._filling.cancelled():
                    self._filling.result()  # raises a fault of ours
            finally:
                self._filling.cancel()
        if self._stopping:
            return
        self._election = asyncio.ensure_future(self._elector.run())
        self._taking_over = asyncio.ensure_future(self._take_over(steps))
        watching = asyncio.ensure_future(self._report_errors())
        tasks = (self._election, self._taking_over, watching)
        try:
            pending = {self._election, self._taking_over}
            while self._election in pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not task.cancelled():
                        task.result()  # raises a fault of ours
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def stop_taking(self) -> None:
        """Begin no takeover any more, as the process ends. A leader renews its lease until `release`.

        A process that has not begun to act renews no more; `release` gives its lease up.
        """
        self._stopping = True
        # Caches that can't be filled, such as without a right, would delay the end until warmTimeout.
        if self._filling is not None:
            self._filling.cancel()
        if self._taking_over is not None:
            self._taking_over.cancel()
        if not self._has_begun and self._election is not None:
            self._election.cancel()

    async def release(self, timeout: float) -> None:
        """Leave the election, and give the lease up if this process holds it.

        The drain is over. A `def` call may still run; its writes are refused from here on.
        """
        self._stopping = True
        if self._election is None:
            return
        self._election.cancel()
        await asyncio.wait([self._election])
        self._releasing = True
        held = self._elector.status().holder == self._elector.identity and not self._lost
        free = await self._elector.release(timeout=timeout)
        if held and free:
            self._log.info(f"the lease {self.shown} is released: another process can lead at once")
        elif not free:
            self._log.warning(
                f"the lease {self.shown} could not be released within {timeout:g} s: another process leads "
                f"after {self.spec.lease_duration:g} s"
            )

    async def _take_over(self, steps: TakeoverSteps) -> None:
        """Wait for the lease, make sure that no cache is stale, and let handlers begin."""
        await self._leads.wait()
        began = self._clock.monotonic()
        if self.spec.followers is Followers.COLD:
            steps.fill_caches()
            self._waiting_for = "caches are being filled"
            await steps.wait_for_caches()
        await steps.make_room()
        proven = dict[SharedIndexInformer, None]()
        relisted = 0
        # A reload may bring other caches while these are proven.
        while rest := _unproven(steps, proven):
            relisted += await self._prove(rest)
            proven.update(dict.fromkeys(rest))
        # No `await` from here on: the caches that were proven are those that handlers read.
        self._waiting_for = ""
        self._has_begun = True
        steps.begin()
        seconds = self._clock.monotonic() - began
        anew = f", {relisted} of them listed anew" if relisted else ""
        self._log.info(
            f"leads: handlers begin, {seconds:.1f} s after the lease was taken; {len(proven)} caches are "
            f"fresh{anew}",
            lease=self.shown,
        )

    async def _prove(self, informers: Mapping[SharedIndexInformer, GroupKind]) -> int:
        """Return when all these caches are fresh; returns how many lists were necessary for that."""
        self._waiting_for = "caches prove that they are fresh"
        kinds: dict[GroupKind, list[SharedIndexInformer]] = {}
        for informer, kind in informers.items():
            kinds.setdefault(kind, []).append(informer)
        async with asyncio.TaskGroup() as tasks:
            proofs = [tasks.create_task(self._prove_kind(of_kind)) for of_kind in kinds.values()]
            logging = tasks.create_task(self._log_waiting(informers))
            await asyncio.wait(proofs)
            logging.cancel()
        return sum(proof.result() for proof in proofs)

    async def _prove_kind(self, informers: Sequence[SharedIndexInformer]) -> int:
        # One LIST serves all caches of a kind: a version is one of all namespaces. Best without a selector,
        # with which the server may read many objects to find one.
        sources = [each.source for informer in informers for each in provable_reflectors(informer).values()]
        if not sources:
            return 0  # no namespace is followed, or none can be read
        version = await self._present_version(min(sources, key=has_selector))
        if version is None:
            return 0
        proofs = [prove_fresh(informer, version, clock=self._clock) for informer in informers]
        return sum(await asyncio.gather(*proofs))

    async def _present_version(self, source: Source) -> str | None:
        """The present version of a kind; None if the server does not serve it any more."""
        delay = _FIRST_RETRY
        while True:  # until the lease is lost: without an answer, nothing may begin
            try:
                return await present_version(source, clock=self._clock)
            except NotFound as gone:
                self._log.warning(f"handlers begin without {source.description}: {gone}")
                return None
            except ApiError as error:
                command = granting_command(str(error))
                remedy = f"; `{command}` grants it" if command else ""
                self._waiting_for = f"a LIST of one of {source.description} fails: {error}{remedy}"
                if delay == _FIRST_RETRY:
                    self._log.warning(f"the takeover waits: {self._waiting_for}", lease=self.shown)
            await self._clock.sleep(delay)
            delay = min(2 * delay, _LONGEST_RETRY)

    async def _log_waiting(self, informers: Iterable[SharedIndexInformer]) -> None:
        while True:
            await self._clock.sleep(_SILENCE)
            faults = [str(each.fault) for each in informers if each.fault is not None]
            why = faults[0] if faults else "their watches bring nothing newer"
            self._log.warning(
                f"the takeover waits, as caches may be stale: {self._waiting_for}: {why}", lease=self.shown
            )

    async def _report_errors(self) -> None:
        """Log why requests for the lease fail: when that changes, and when it is over."""
        while True:
            error = self._elector.status().error
            if error != self._logged_error:
                self._logged_error = error
                if error is not None:
                    self._log.warning(f"the election fails: {error}", lease=self.shown)
                else:
                    self._log.info("the election goes on: a request has succeeded", lease=self.shown)
            await self._clock.sleep(self.spec.retry_period)

    # Called by the elector, on its loop

    def _started(self) -> None:
        self._leads.set()
        self._log.info(f"this process leads: it holds the lease {self.shown}, and takes over")

    def _stopped(self, why: str) -> None:
        if self._releasing:
            return
        self._lost = why
        cut = self.sender.cut(lambda _: True)
        assert self._steps is not None
        running = self._steps.end()
        left = f"; {running} calls were cancelled or left" if running else ""
        left += f"; {cut} writes were under way" if cut else ""
        self._log.error(
            f"the lease {self.shown} is lost: {why}. This process ends, and writes nothing any more{left}"
        )
        self._steps.lost(why)

    def _announce(self, holder: str) -> None:
        if holder != self._elector.identity:
            # A process that has led does not follow: it is about to notice that it has lost the lease.
            does = "ends" if self._leads.is_set() or self._stopping else "follows"
            self._log.info(f"{holder} leads, and this process {does}", lease=self.shown)

    @property
    def shown(self) -> str:
        """Namespace and name of the Lease."""
        return f"{self._lease.namespace}/{self._lease.name}"


def _unproven(
    steps: TakeoverSteps, proven: Collection[SharedIndexInformer]
) -> Mapping[SharedIndexInformer, GroupKind]:
    """The caches to prove next: namespaces first, as a cache that follows them has to know them all."""
    sets = {each: _NAMESPACES for each in steps.namespace_sets() if each.has_synced and each not in proven}
    caches = {each.informer: each.identity.group_kind for each in steps.synced_caches()}
    return sets or {each: kind for each, kind in caches.items() if each not in proven}
