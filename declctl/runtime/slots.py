"""The slots: every handler by its name, how a commit gives them new bindings, and how old ones drain.

`commit` runs on the machinery loop between two deltas: it calls no user code, does no I/O and waits
for nothing, so that no handler can see an event with its new code that another sees with its old
code.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from declctl.informer import Registration
from declctl.kit import Clock
from declctl.manifest.model import DrainPolicy
from declctl.objects import Notification
from declctl.runtime.caches import Cached
from declctl.runtime.crew import Crew, LoopCrew, ThreadCrew
from declctl.runtime.handler import Binding, Handler
from declctl.runtime.log import Log
from declctl.runtime.moving import differences, is_behind

_DRAIN_CHECK = 0.02  # seconds between two looks at what is left of an old generation


@dataclass(frozen=True, slots=True)
class Place:
    """Where a generation puts a handler: its binding, and the informers it listens to."""

    binding: Binding
    informers: Sequence[Cached]


@dataclass(eq=False)
class Slot:
    """A handler, its workers, and its registrations with informers."""

    handler: Handler
    crew: Crew
    registrations: dict[Cached, Registration] = field(default_factory=dict[Cached, Registration])


@dataclass(frozen=True, slots=True)
class Ended:
    """A slot's epoch that a commit has ended, to be drained.

    `closing` says that the handler is gone.
    """

    slot: Slot
    epoch: int
    closing: bool


class Slots:
    """All handlers of the process. Used on the machinery loop only."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, clock: Clock, log: Log) -> None:
        self._loop = loop  # the handlers' loop
        self._clock = clock
        self._log = log
        self._slots: dict[str, Slot] = {}
        self._leaving: list[Slot] = []

    def commit(
        self, places: Mapping[str, Place], told: Mapping[str, Sequence[Notification]] | None = None
    ) -> list[Ended]:
        """Make `places` what is listening; returns the epochs that ended. Cannot fail.

        `told` has the differences that handlers hear whose filter has changed.
        """
        ended: list[Ended] = []
        fresh: list[tuple[Slot, Place]] = []
        for name, place in places.items():
            slot = self._slots.get(name)
            if slot is None:
                slot = self._slots[name] = self._make(place)
                fresh.append((slot, place))
            else:
                ended.append(Ended(slot, slot.handler.rebind(place.binding), closing=False))
                self._recrew(slot, place.binding)
        for name in [name for name in self._slots if name not in places]:
            slot = self._slots.pop(name)
            self._leaving.append(slot)
            _detach(slot, slot.registrations)
            ended.append(Ended(slot, slot.handler.lanes.epoch, closing=True))
        for epoch in ended:
            if not epoch.closing:
                name = epoch.slot.handler.name
                _rehome(epoch.slot, places[name], (told or {}).get(name))
        for slot, place in fresh:
            _attach(slot, place, place.informers)
        self._slots = {name: self._slots[name] for name in places}
        return ended

    def untold(self, name: str) -> Mapping[Cached, Collection[str]]:
        """The objects of each cache that a handler has still to hear of, as it joined a moment ago."""
        slot = self._slots.get(name)
        return {} if slot is None else _untold(slot, slot.registrations)

    def is_behind(self, places: Mapping[str, Place]) -> bool:
        """Whether a handler would be moved to caches that have yet to see what it has been told."""
        moves = [_move(slot, places[name]) for name, slot in self._slots.items() if name in places]
        return any(is_behind(gone, come) for gone, come, _ in moves if gone and come)

    async def drain(self, ended: Sequence[Ended], *, policy: DrainPolicy, timeout: float) -> list[str]:
        """Wait until what was queued before the commit is dealt with, for at most `timeout` seconds.

        What is left then goes to the new bindings, and calls that still run are not waited for:
        returns the names of handlers that had any.
        """
        if policy is DrainPolicy.HANDOVER:
            for epoch in ended:
                if not epoch.closing:
                    epoch.slot.handler.hand_over(epoch.epoch)
        await self._until_drained(ended, timeout)
        late = [e for e in ended if e.slot.handler.outstanding(e.epoch)]
        for epoch in late:
            epoch.slot.handler.abandon(epoch.epoch)
            if epoch.closing:
                epoch.slot.handler.lanes.clear()
        for epoch in ended:
            if epoch.closing:
                epoch.slot.crew.dismiss()
                self._leaving.remove(epoch.slot)
        return [epoch.slot.handler.name for epoch in late]

    async def finished(self, ended: Sequence[Ended]) -> None:
        """Return when the last call of those epochs has returned, and forget their bindings."""
        while any(e.slot.handler.outstanding(e.epoch) for e in ended):
            await self._clock.sleep(0.25)
        for epoch in ended:
            epoch.slot.handler.forget(epoch.epoch)

    def handlers(self) -> list[Handler]:
        """The handlers in manifest order."""
        return [slot.handler for slot in self._slots.values()]

    def slot(self, name: str) -> Slot | None:
        """The slot of a handler."""
        return self._slots.get(name)

    def initial_complete(self) -> None:
        """Tell each slot whose informers have all synced that no more initial changes will come."""
        for slot in self._slots.values():
            if all(registration.given.is_open for registration in slot.registrations.values()):
                slot.handler.initial_complete()

    def idle(self) -> bool:
        """Whether no handler has anything left to do."""
        return all(slot.handler.lanes.idle for slot in self._everyone())

    async def stop(self, timeout: float) -> list[str]:
        """Take no more, let running calls finish for `timeout` seconds.

        Returns what was left, as `handler key`.
        """
        for slot in self._everyone():
            _detach(slot, slot.registrations)
            slot.crew.dismiss()
        deadline = self._clock.monotonic() + timeout
        while self._running() and self._clock.monotonic() < deadline:
            await self._clock.sleep(_DRAIN_CHECK)
        return self._running()

    def _running(self) -> list[str]:
        return [f"{slot.handler.name} {key}" for slot in self._everyone() for key in slot.handler.running()]

    def _everyone(self) -> list[Slot]:
        return [*self._slots.values(), *self._leaving]

    async def _until_drained(self, ended: Sequence[Ended], timeout: float) -> None:
        deadline = self._clock.monotonic() + timeout
        while any(e.slot.handler.outstanding(e.epoch) for e in ended):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return
            await self._clock.sleep(min(_DRAIN_CHECK, left))

    def _make(self, place: Place) -> Slot:
        handler = Handler(place.binding, clock=self._clock, log=self._log, loop=self._loop)
        slot = Slot(handler, self._crew(handler, place.binding))
        self._connect(slot)
        return slot

    def _recrew(self, slot: Slot, binding: Binding) -> None:
        fits = isinstance(slot.crew, LoopCrew) == binding.target.all_async
        if fits and slot.crew.size == binding.plan.queue.concurrency:
            return
        before, slot.crew = slot.crew, self._crew(slot.handler, binding)
        self._connect(slot)
        before.dismiss()
        slot.crew.wake()

    def _connect(self, slot: Slot) -> None:
        slot.handler.on_pending = slot.crew.wake
        slot.handler.on_replaced = slot.crew.replace_one

    def _crew(self, handler: Handler, binding: Binding) -> Crew:
        size = binding.plan.queue.concurrency
        if binding.target.all_async:
            return LoopCrew(handler, size=size, loop=self._loop)
        return ThreadCrew(handler, size=size)


def _attach(slot: Slot, place: Place, informers: Iterable[Cached], *, initial: bool = True) -> None:
    for cached in informers:
        slot.registrations[cached] = cached.informer.add_listener(
            slot.handler, resync_period=place.binding.plan.resync_period, initial=initial
        )


def _detach(slot: Slot, caches: Iterable[Cached]) -> None:
    for cached in tuple(caches):
        slot.registrations.pop(cached).remove()


def _rehome(slot: Slot, place: Place, refiltered: Sequence[Notification] | None) -> None:
    period = place.binding.plan.resync_period
    if [*slot.registrations] == [*place.informers]:
        for registration in slot.registrations.values():
            registration.retime(period)
        if refiltered:
            slot.handler.add_all(refiltered)
        return
    for cached in slot.registrations.keys() & set(place.informers):
        slot.registrations[cached].retime(period)
    gone, come, missing = _move(slot, place)
    untold = {key for keys in _untold(slot, gone).values() for key in keys}
    told = differences(gone, come, untold) if refiltered is None else refiltered
    _detach(slot, gone)
    slot.handler.add_all(told)
    _attach(slot, place, come, initial=False)
    _attach(slot, place, missing)


def _untold(slot: Slot, caches: Iterable[Cached]) -> dict[Cached, Collection[str]]:
    return {cached: slot.registrations[cached].pending or () for cached in caches}


def _move(slot: Slot, place: Place) -> tuple[list[Cached], list[Cached], list[Cached]]:
    """The caches that a handler leaves, those that it comes to, and those that are not filled yet."""
    gone = [cached for cached in slot.registrations if cached not in place.informers]
    added = [cached for cached in place.informers if cached not in slot.registrations]
    come = [cached for cached in added if cached.informer.has_synced]
    return gone, come, [cached for cached in added if cached not in come]
