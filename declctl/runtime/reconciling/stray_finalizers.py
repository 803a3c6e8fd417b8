"""Stray finalizers: objects have them from this controller, and no handler of the manifest declares them.

An edit that removes a finalizer while objects have it is refused. A start is not: it knows no earlier
manifest. Then nothing would ever remove the finalizer, and the objects could not be deleted. So the process
looks at what it has left in the cluster:

- Decoding notes the finalizers of all cached objects (`SeenFinalizers`). No object is decoded again for that.
- For each name that no handler of the kind declares, the server is asked for the `managedFields` of up to
  five objects. They say whether a handler of this controller has added it. Each name is decided once.
- The caches of the kind of a stray finalizer are read again from time to time, until no object has it.

Objects outside of all caches are not found; `declctl finalizers list --all-kinds` finds them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from declctl.errors import ApiError, MalformedAnswer
from declctl.kit import Clock
from declctl.manifest import Plan
from declctl.objects import GroupVersionKind, ObjectKey, Record
from declctl.objects.frame import HeldObject
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.slots import Slots
from declctl.runtime.log import Log
from declctl.transport import Client
from declctl.writes import finalizers_of, find_added

LOOK_SECONDS = 10.0  # between two looks
_MOST_NAMES = 200  # of which the server is asked: each costs up to five requests
_SHOWN = 3  # objects that a sentence names
_KUBERNETES = ("kubernetes.io", "k8s.io")  # domains of finalizers that no handler has


class StrayFinalizer(msgspec.Struct, frozen=True):
    """A finalizer that a handler of this controller has added, and that no handler of the plan declares."""

    finalizer: str
    handler: str  # which has added it
    kind: str
    keys: Sequence[str]  # of the cached objects that have it, sorted; never empty

    def __str__(self) -> str:
        number = len(self.keys)
        have = "1 object has" if number == 1 else f"{number:,} objects have"
        more = ", …" if number > _SHOWN else ""
        return (
            f"{have} the finalizer {self.finalizer} of the handler {self.handler} ({self.kind} "
            f"{', '.join(self.keys[:_SHOWN])}{more}), which is not in the manifest: nothing removes it when "
            "they are deleted; declare it again, or release them (`declctl finalizers release MANIFEST`)"
        )


_Name = tuple[str, str, str]  # group, kind and finalizer


@dataclass(eq=False)
class StrayFinalizers:
    """Finds stray finalizers in the caches. Used on the machinery loop."""

    client: Client
    controller: str
    caches: InformerPool
    slots: Slots
    clock: Clock
    log: Log
    found: Sequence[StrayFinalizer] = ()  # those that cached objects had at the last look
    # By name: the handler that has added the finalizer; empty if none of this controller has.
    _handlers: dict[_Name, str] = field(default_factory=dict[_Name, str])
    _is_unanswered: bool = False  # the newest request has failed

    async def run(self, plan: Callable[[], Plan]) -> None:
        """Look at intervals, until cancelled. `plan` returns that of the active generation."""
        while True:
            await self.clock.pause(LOOK_SECONDS)
            if not self.slots.is_standing_by:  # otherwise another process handles the objects
                await self.look(plan())

    async def look(self, plan: Plan) -> None:
        """Decide on the names that are new, and read the caches of stray ones. Raises nothing."""
        declared = _declared(plan)
        caches = [each for each in self.caches.all() if each.informer.synced.is_open]
        await self._decide(caches, declared)
        found: list[StrayFinalizer] = []
        for name, handler in self._handlers.items():
            if not handler or name in declared:
                continue
            records = [
                record
                for cached in caches
                if cached.identity.group_kind == name[:2]
                for record in cached.informer.indexer.list()
            ]
            # In a thread: events go first.
            if keys := await asyncio.to_thread(_keys_with, name[2], records):
                found.append(StrayFinalizer(name[2], handler, name[1], keys))
        before, now = ({(each.kind, each.finalizer) for each in strays} for strays in (self.found, found))
        self.found = found
        for stray in found:
            if (stray.kind, stray.finalizer) not in before:
                self.log.warning(str(stray), handler=stray.handler)
        for kind, finalizer in before - now:
            self.log.info(f"no cached {kind} has the stray finalizer {finalizer} any more")

    async def _decide(self, caches: Sequence[ManagedInformer], declared: frozenset[_Name]) -> None:
        """Decide on new names, as far as the server answers."""
        for cached in caches:
            watch = cached.identity.watch
            kind = GroupVersionKind.of(watch.api_version, watch.kind)
            for finalizer, keys in cached.informer.source.projection.finalizers.by_name().items():
                name = (kind.group, kind.kind, finalizer)
                if name in declared or name in self._handlers or not _may_be_declared(finalizer):
                    continue
                if len(self._handlers) >= _MOST_NAMES:
                    return
                try:
                    self._handlers[name] = await self._handler_of(finalizer, keys, kind)
                    self._is_unanswered = False
                except ApiError as error:
                    if not self._is_unanswered:
                        self._is_unanswered = True
                        self.log.warning(
                            f"whether the finalizer {finalizer} is one of this controller is not known: "
                            f"{error}; it is tried again"
                        )
                    return

    async def _handler_of(self, finalizer: str, keys: Sequence[str], kind: GroupVersionKind) -> str:
        """The handler that has added a finalizer to one of these objects; empty for none. Raises ApiError."""
        for key in map(ObjectKey, keys):
            # A list of one object, as the right to list is there: the cache needs it, too.
            found, _ = await find_added(
                self.client, kind, self.controller, namespace=key.namespace, name=key.name
            )
            if by := [each.handler for each in found if each.finalizer == finalizer]:
                return by[0]
        return ""


def _declared(plan: Plan) -> frozenset[_Name]:
    watches = {resource.name: resource.watches[0] for resource in plan.resources}
    declared = ((watches[each.resource], each.finalizer) for each in plan.handlers if each.finalizer)
    return frozenset(
        (GroupVersionKind.of(watch.api_version, watch.kind).group, watch.kind, finalizer)
        for watch, finalizer in declared
    )


def _may_be_declared(finalizer: str) -> bool:
    """Whether it may be one of declctl: those of Kubernetes have no domain, or its own."""
    domain = finalizer.rpartition("/")[0]
    return bool(domain) and not any(domain == each or domain.endswith(f".{each}") for each in _KUBERNETES)


def _keys_with(finalizer: str, records: Sequence[Record]) -> list[str]:
    name, keys = f'"{finalizer}"'.encode(), set[str]()
    for record in records:
        frame = record.frame
        with suppress(MalformedAnswer):  # without its metadata nothing can be said of the object
            # Most objects are not decoded: their JSON lacks the name.
            if (isinstance(frame, HeldObject) or name in record.layout.codec.decode(frame)) and (
                finalizer in finalizers_of(record.read())
            ):
                keys.add(record.key)
    return sorted(keys)
