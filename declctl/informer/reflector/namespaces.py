"""Reflectors by namespace: one for each namespace of a set that changes while they run.

A `SourcesByNamespace` takes the place of a source. `NamespaceReflectors` takes that of a reflector: it
starts a reflector when a namespace enters the set, and ends it when the namespace leaves. All of them fill
one queue, so that store, indexes and listeners are those of one informer.

A namespace that was only relabelled leaves at once, and its objects go out of scope. One that was deleted
leaves when its last object is gone, so that listeners receive the deletes as the server sends them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import msgspec

from declctl.decoding.projection import Known, Projection
from declctl.errors import Forbidden, NotFound, Unauthorized
from declctl.informer.queues.namespaced_fifo import NamespacedFIFO
from declctl.informer.queues.real_fifo import Departure
from declctl.informer.reflector.reflector import Reflector, ReflectorOptions
from declctl.informer.reflector.statistics import ReflectorStatistics
from declctl.informer.source import DecodeRunner, Source, SupportsDecodeRunner
from declctl.kit import Clock, set_within
from declctl.kit.callbacks import plain, refuse_async
from declctl.kit.text import exception_text
from declctl.objects import version_order

# The longest wait for the deletes of the objects of a deleted namespace. Tests shorten it.
DELETED_SECONDS = 10.0
_EMPTY_CHECK = 0.1  # seconds between two looks whether a deleted namespace is empty
_NAMED = 3  # namespaces with a fault that a message names
_log = logging.getLogger("declctl.informer")
NAMESPACES_RULE = 'apiGroups: [""], resources: [namespaces], verbs: [list, watch]'
"""The rule of a ClusterRole that lets a process follow the labels of namespaces."""


class NamespaceSet(Protocol):
    """The namespaces that a label selector matches, at every moment. Used on one loop."""

    @property
    def selector(self) -> str:
        """The label selector, as kubectl takes it."""
        ...

    @property
    def names(self) -> frozenset[str] | None:
        """The namespaces that match; None while they are not known."""
        ...

    @property
    def fault(self) -> Exception | None:
        """The present fault of listing and watching namespaces; None while requests succeed."""
        ...

    @property
    def resource_version(self) -> str:
        """The version up to which changes of namespaces have come; empty before the first list."""
        ...

    def was_deleted(self, name: str) -> bool:
        """Whether a namespace left the set because it was deleted."""
        ...

    def join(self, call: Callable[[], None]) -> None:
        """Follow the namespaces; `call` is called on the loop after each change and each fault."""
        ...

    def leave(self, call: Callable[[], None]) -> None:
        """End what `join` began."""
        ...


class SourcesByNamespace:
    """The sources of one kind, one for each namespace of a set.

    - `make`: makes the source of a namespace, which decodes with the given projection.
    - `projection`: the decoder of all of them.
    - `namespaces`: the set.
    - `description`: the resource in the words of a log line.

    `projection` and `decode_runner` may be replaced between two events. Used on one loop.
    """

    def __init__(
        self,
        make: Callable[[str, Projection], Source],
        *,
        projection: Projection,
        namespaces: NamespaceSet,
        description: str,
    ) -> None:
        self.namespaces = namespaces
        self.description = description
        self._make = make
        self._projection = projection
        self._decode_runner: DecodeRunner | None = None
        self._sources: dict[str, Source] = {}  # of the namespaces that have a reflector

    @property
    def projection(self) -> Projection:
        """The decoder of all sources."""
        return self._projection

    @projection.setter
    def projection(self, projection: Projection) -> None:
        self._projection = projection
        for source in self._sources.values():
            source.projection = projection

    @property
    def decode_runner(self) -> DecodeRunner | None:
        """Runs functions that decode in another thread, as in SupportsDecodeRunner."""
        return self._decode_runner

    @decode_runner.setter
    def decode_runner(self, runner: DecodeRunner | None) -> None:
        self._decode_runner = runner
        for source in self._sources.values():
            if isinstance(source, SupportsDecodeRunner):
                source.decode_runner = runner

    def open(self, namespace: str) -> Source:
        """A new source for a namespace."""
        source = self._sources[namespace] = self._make(namespace, self._projection)
        if isinstance(source, SupportsDecodeRunner):
            source.decode_runner = self._decode_runner
        return source

    def close(self, namespace: str) -> None:
        """Forget the source of a namespace."""
        self._sources.pop(namespace, None)


class NamespaceStatistics(msgspec.Struct, frozen=True):
    """The set of namespaces of one informer, at one moment."""

    selector: str
    names: Sequence[str]  # the namespaces that are listed and watched, sorted
    unlisted: int  # of these, the namespaces whose first list is not complete
    entered: int  # namespaces that came in, since the start
    left: int  # namespaces that left, since the start
    error: str | None  # why the namespaces can't be listed or watched


class NamespaceReflectors:
    """Lists and watches one kind in each namespace of a set, and writes all changes to one queue.

    - `source`: makes the source of each namespace.
    - `queue`: receives the changes.
    - `known`: returns the record that the store holds under a key, or None.
    - `count_in`: the number of stored objects of a namespace.
    - `options`: those of each reflector.
    - `on_fault`: called on the loop with each fault of a LIST or WATCH, also of those of namespaces.

    `run` ends only when it is cancelled. A fault in one namespace does not hold up the others. The other
    members are those of a Reflector, for all namespaces together; any thread may read them.
    """

    def __init__(
        self,
        source: SourcesByNamespace,
        queue: NamespacedFIFO,
        *,
        clock: Clock,
        known: Known,
        count_in: Callable[[str], int],
        options: ReflectorOptions,
        on_fault: Callable[[Exception], None] | None = None,
    ) -> None:
        refuse_async(on_fault, "on_fault")
        self.source = source
        self.on_fault = on_fault
        self._queue = queue
        self._clock = clock
        self._known = known
        self._count_in = count_in
        self._options = options
        self._changed = asyncio.Event()  # the set has changed, or can't be followed
        # By namespace. Replaced as a whole, because other threads read it.
        self._running: dict[str, tuple[Reflector, asyncio.Task[None]]] = {}
        self._emptying: dict[str, float] = {}  # deleted namespaces → monotonic time at which they leave
        self._expected = False  # the first set is known
        self._entered = self._left = 0  # as in NamespaceStatistics
        self._former = ReflectorStatistics()  # the counts of reflectors that have ended
        self._reported: Exception | None = None  # the last fault of the set that `on_fault` has received

    async def run(self) -> None:
        """Follow the set until cancelled."""
        namespaces = self.source.namespaces
        namespaces.join(self._changed.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._changed.clear()
                    self._report(namespaces.fault)
                    if namespaces.names is not None:
                        await self._follow(namespaces.names, tasks)
                    if self._emptying:
                        # Polled: the store has no event for the last object of a namespace.
                        await set_within(self._changed, _EMPTY_CHECK, clock=self._clock)
                    else:
                        await self._changed.wait()
        finally:
            namespaces.leave(self._changed.set)

    async def _follow(self, names: frozenset[str], tasks: asyncio.TaskGroup) -> None:
        """Start the reflectors that the set lacks, and end those of namespaces that have left it."""
        if not self._expected:
            self._expected = True
            self._queue.expect(names)
        # A namespace that was deleted and made again before it was empty stays: its reflector sees both.
        self._emptying = {name: due for name, due in self._emptying.items() if name not in names}
        entering = [name for name in sorted(names) if name not in self._running]
        self._running = {**self._running, **{name: self._started(name, tasks) for name in entering}}
        self._entered += len(entering)
        await self._end([name for name in self._running if name not in names and self._may_leave(name)])

    def _may_leave(self, name: str) -> bool:
        """Whether a namespace outside of the set leaves now: its deletes may still be on their way."""
        if not self.source.namespaces.was_deleted(name):
            return True
        now = self._clock.monotonic()
        due = self._emptying.setdefault(name, now + DELETED_SECONDS)
        return now >= due or not self._count_in(name)

    def _started(self, name: str, tasks: asyncio.TaskGroup) -> tuple[Reflector, asyncio.Task[None]]:
        reflector = Reflector(
            self.source.open(name),
            self._queue.of(name),
            clock=self._clock,
            known=self._known,
            options=self._options,
            on_fault=self._call_on_fault,
        )
        return reflector, tasks.create_task(reflector.run(), name=f"reflector of {name}")

    async def _end(self, leaving: Sequence[str]) -> None:
        """End the reflectors of these namespaces; then their objects leave the store."""
        ending = [self._running[name] for name in leaving]
        for _, task in ending:
            task.cancel()
        if ending:
            await asyncio.wait([task for _, task in ending])
        self._former = _sum([self._former, *(_counts(reflector) for reflector, _ in ending)])
        self._running = {name: each for name, each in self._running.items() if name not in leaving}
        for name in leaving:
            # Only now: a reflector that has ended queues nothing behind the departure.
            self._queue.depart(Departure(name))
            self._emptying.pop(name, None)
            self.source.close(name)
        self._left += len(leaving)

    def _report(self, fault: Exception | None) -> None:
        """Report a new fault of the set."""
        if fault is not self._reported:
            self._reported = fault
            if fault is not None:
                try:
                    self._call_on_fault(fault)
                except Exception:  # noqa: BLE001 - the namespaces are followed all the same
                    _log.exception("%s: on_fault raised", self.source.description)

    def _call_on_fault(self, fault: Exception) -> None:
        # Looked up at each call, because the informer may replace the function before its start.
        if self.on_fault is not None:
            plain(self.on_fault(fault), "on_fault")

    # As of one reflector

    def request_relist(self) -> None:
        """Request a list in each namespace, as of a reflector."""
        for reflector in self._reflectors:
            reflector.request_relist()

    @property
    def last_sync_resource_version(self) -> str:
        """The newest version that was seen in a namespace; empty without one."""
        versions = (reflector.last_sync_resource_version for reflector in self._reflectors)
        return max(versions, key=version_order, default="")

    @property
    def fault(self) -> Exception | None:
        """A present fault: that of the set, or else one of a namespace; NotFound only if all have it."""
        if self.source.namespaces.fault is not None:
            return self.source.namespaces.fault
        faults = [reflector.fault for reflector in self._reflectors]
        others = (fault for fault in faults if fault is not None and not isinstance(fault, NotFound))
        everywhere = faults[0] if faults and all(isinstance(fault, NotFound) for fault in faults) else None
        return next(others, everywhere)

    def progress(self) -> str:
        """Why the first lists are not complete, with the present fault. From any thread."""
        namespaces = self.source.namespaces
        if (error := self._error_of_set()) is not None:
            return error
        if namespaces.names is None:
            return f"the namespaces with {namespaces.selector} are not known yet"
        waiting = [each for each in self._reflectors if not each.last_sync_resource_version]
        shown = "; ".join(each.progress() for each in waiting[:_NAMED])
        more = f" and {len(waiting) - _NAMED} more namespaces" if len(waiting) > _NAMED else ""
        return f"{shown}{more}" or "its lists are being read"

    def statistics(self) -> ReflectorStatistics:
        """The figures of all namespaces together. From any thread."""
        each = [reflector.statistics() for reflector in self._reflectors]
        set_error, fault = self._error_of_set(), self.source.namespaces.fault
        faulty = [one for one in each if one.error]
        more = f" (and in {len(faulty) - 1} more namespaces)" if len(faulty) > 1 else ""
        error_type = faulty[0].error_type if faulty else None
        state = next((one.state for one in each if one.state != "Watching"), "Watching")
        return replace(
            _sum([self._former, *each]),
            state=state if each else "NoNamespaces" if self._expected else "Starting",
            resource_version=self._lowest_version(each),
            last_event_at=max((at for one in each if (at := one.last_event_at) is not None), default=None),
            error=set_error or (f"{faulty[0].error}{more}" if faulty else None),
            error_type=error_type if fault is None else type(fault).__name__,
            error_since=min((at for one in each if (at := one.error_since) is not None), default=None),
            missing=bool(each) and all(one.missing for one in each),
            unavailable=any(one.unavailable for one in each),
            forbidden=isinstance(fault, Forbidden | Unauthorized) or any(one.forbidden for one in each),
            refused=any(one.refused for one in each),
            items_listed=sum(one.items_listed for one in each),
        )

    def _lowest_version(self, each: Sequence[ReflectorStatistics]) -> str:
        """The version up to which all changes have come; empty while namespaces come in or leave."""
        namespaces = self.source.namespaces
        if self._running.keys() != namespaces.names:
            return ""
        # That of the set is one of them: a namespace that came in later is not known yet.
        return min((namespaces.resource_version, *(one.resource_version for one in each)), key=version_order)

    def namespaces(self) -> NamespaceStatistics:
        """The figures of the set. From any thread."""
        running = self._running
        return NamespaceStatistics(
            selector=self.source.namespaces.selector,
            names=sorted(running),
            unlisted=sum(not reflector.last_sync_resource_version for reflector, _ in running.values()),
            entered=self._entered,
            left=self._left,
            error=self._error_of_set(),
        )

    def follows(self, namespace: str | None) -> bool:
        """Whether a namespace is listed and watched."""
        return namespace in self._running

    @property
    def follows_all(self) -> bool:
        """Whether each namespace of the set, as it is known now, has a reflector."""
        names = self.source.namespaces.names
        return names is not None and names <= self._running.keys()

    @property
    def by_namespace(self) -> Mapping[str, Reflector]:
        """The reflector of each namespace."""
        return {name: reflector for name, (reflector, _) in self._running.items()}

    def _error_of_set(self) -> str | None:
        namespaces = self.source.namespaces
        fault = namespaces.fault
        if fault is None:
            return None
        error = f"namespaces with {namespaces.selector}: {exception_text(fault) or type(fault).__name__}"
        if isinstance(fault, Forbidden | Unauthorized):
            return f"{error}; a ClusterRole has to have the rule {{{NAMESPACES_RULE}}}"
        return error

    @property
    def _reflectors(self) -> Sequence[Reflector]:
        return [reflector for reflector, _ in self._running.values()]


# The figures that describe a moment are not summed.
_OF_A_MOMENT = frozenset(
    (
        "state", "resource_version", "last_event_at", "error", "error_type", "error_since", "missing",
        "unavailable", "forbidden", "refused", "items_listed", "items_outside", "filtered_by_server",
        "events", "last_decode_warning",
    )
)  # fmt: skip
_SUMMED = tuple(each.name for each in fields(ReflectorStatistics) if each.name not in _OF_A_MOMENT)


def _counts(reflector: Reflector) -> ReflectorStatistics:
    """The figures of a reflector that has ended, without those of a moment."""
    return _sum([reflector.statistics()])


def _sum(several: Iterable[ReflectorStatistics]) -> ReflectorStatistics:
    """The counts of several reflectors together; the figures of a moment are left out."""
    several, events = list(several), Counter[str]()
    for each in several:
        events.update(each.events)
    warnings = [each.last_decode_warning for each in several if each.last_decode_warning]
    counts: dict[str, Any] = {name: sum(getattr(each, name) for each in several) for name in _SUMMED}
    return ReflectorStatistics(
        **counts, events=dict(events), last_decode_warning=warnings[-1] if warnings else None
    )
