"""Replay: a handler whose code has changed hears the cache again, if its manifest wants that.

It is told in slices, each when nothing else waits for the handler, so that what happens meanwhile has to
wait for no more than one slice. Each object is told as it is then, never in an older state.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from declctl.hooks.bundle import Bundle, reached
from declctl.kit import Clock
from declctl.manifest import Plan
from declctl.manifest.model import Replay
from declctl.manifest.plan import HandlerPlan
from declctl.objects import Record
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.checking.inputs import digest_of
from declctl.runtime.handling.slots import Slot, Slots
from declctl.runtime.log import Log

_SLICE = 100
_PAUSE_SECONDS = 0.01


def wanting(plan: Plan) -> tuple[HandlerPlan, ...]:
    """The handlers that want a replay when their code has changed."""
    return tuple(handler for handler in plan.handlers if handler.replay is Replay.ON_CODE_CHANGE)


def recoded(before: Mapping[str, str], plan: Plan, bundle: Bundle) -> tuple[str, ...]:
    """The handlers of a plan that want a replay, were there `before`, and whose code is not what it was.

    Their code is the function or module that they name, with all that it imports beside the manifest.
    """
    after = _code_of([handler for handler in wanting(plan) if handler.name in before], bundle)
    return tuple(name for name, code in after.items() if before[name] != code)


def code_of(plan: Plan, bundle: Bundle) -> Mapping[str, str]:
    """A digest of the code of each handler."""
    return _code_of(plan.handlers, bundle)


def _code_of(handlers: Iterable[HandlerPlan], bundle: Bundle) -> Mapping[str, str]:
    modules: dict[str, str] = {}  # what they are made of is worked out once for each
    found: dict[str, str] = {}
    for handler in handlers:
        entry = handler.entry_point
        if entry is None:
            found[handler.name] = f"plugin {handler.plugin}"  # new code of it needs a new process
            continue
        if entry.module not in modules:
            modules[entry.module] = digest_of(reached(bundle, entry.module).items())
        found[handler.name] = f"{entry} {modules[entry.module]}"
    return found


class Replays:
    """The replays that are under way, at most one for each handler. Used on the machinery loop."""

    def __init__(self, slots: Slots, *, clock: Clock, log: Log) -> None:
        self._slots = slots
        self._clock = clock
        self._log = log
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, names: Sequence[str]) -> None:
        """Tell these handlers the cache again; one that is being told begins anew. Returns at once."""
        for name in names:
            slot = self._slots.slot(name)
            if slot is None:
                continue
            if (before := self._tasks.get(name)) is not None:
                before.cancel()
            task = asyncio.get_running_loop().create_task(self._replay(slot), name=f"replay {name}")
            self._tasks[name] = task
            task.add_done_callback(lambda done, name=name: self._over(name, done))

    def close(self) -> None:
        """Tell no more: the process ends."""
        for task in self._tasks.values():
            task.cancel()

    async def _replay(self, slot: Slot) -> None:
        before = slot.handler.replayed
        for cached in tuple(slot.registrations):
            for keys in _slices(list(cached.informer.indexer.known())):
                while cached in slot.registrations and slot.handler.queue.statistics().waiting:
                    await self._clock.sleep(_PAUSE_SECONDS)
                if cached not in slot.registrations:
                    break  # it listens to another cache now, or is gone
                slot.handler.replay(_records(slot, cached, keys), self._clock.now().timestamp())
                await asyncio.sleep(0)
        told = slot.handler.replayed - before
        self._log.info(
            f"{slot.handler.name}: {told:,} objects replayed to its new code", handler=slot.handler.name
        )

    def _over(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]


def _slices(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    each = iter(keys)
    while part := tuple(islice(each, _SLICE)):
        yield part


def _records(slot: Slot, cached: ManagedInformer, keys: Sequence[str]) -> list[Record]:
    """What is there of these, but for what a handler that has joined a moment ago has still to hear of."""
    pending = slot.registrations[cached].pending or ()
    found = (cached.informer.indexer.known().get(key) for key in keys if key not in pending)
    return [record for record in found if record is not None]
