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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from declctl.errors import ApiError, MalformedAnswer
from declctl.kit import Clock
from declctl.kit.backoff import Backoff
from declctl.manifest import Plan
from declctl.manifest.plan import WatchKey
from declctl.objects import GroupVersionKind, ObjectKey, Record
from declctl.objects.frame import HeldObject
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.slots import Slots
from declctl.runtime.log import Log
from declctl.transport import Client
from declctl.writes import finalizers_of, find_added

_LOOK_SECONDS = 2.0  # between two looks at the names
_READ_SECONDS = 10.0  # between two reads of the caches, while there are stray finalizers
_BACKOFF = Backoff(2.0, 300.0)  # after requests that fail
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


class StrayFinalizers:
    """Finds stray finalizers in the caches. Used on the machinery loop."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        caches: InformerPool,
        slots: Slots,
        clock: Clock,
        log: Log,
    ) -> None:
        self._client = client
        self._controller = controller
        self._caches = caches
        self._slots = slots
        self._clock = clock
        self._log = log
        # By name: the handler that has added the finalizer; empty if none of this controller has.
        self._handlers: dict[_Name, str] = {}
        self._found: Mapping[_Name, StrayFinalizer] = {}  # as of the last read
        self._failures = 0  # of requests, in a row
        self._asks_at = 0.0  # monotonic time from which the server is asked again
        self._reads_at = 0.0  # and from which the caches are read again

    @property
    def found(self) -> Sequence[StrayFinalizer]:
        """The stray finalizers that cached objects have."""
        return tuple(self._found.values())

    async def run(self, plan: Callable[[], Plan]) -> None:
        """Look at intervals, until cancelled. `plan` returns that of the active generation."""
        while True:
            await self._clock.pause(_LOOK_SECONDS)
            if not self._slots.is_standing_by:  # otherwise another process handles the objects
                await self.look(plan())

    async def look(self, plan: Plan) -> None:
        """Decide on the names that are new, and read the caches again if it is time. Raises nothing."""
        declared = _declared(plan)
        caches = [each for each in self._caches.all() if each.informer.synced.is_open]
        is_new = self._clock.monotonic() >= self._asks_at and await self._decide(caches, declared)
        strays = {name: by for name, by in self._handlers.items() if by and name not in declared}
        if is_new or self._clock.monotonic() >= self._reads_at:
            self._reads_at = self._clock.monotonic() + _READ_SECONDS
            await self._read(caches, strays)

    async def _decide(self, caches: Sequence[ManagedInformer], declared: frozenset[_Name]) -> bool:
        """Decide on new names; returns whether one of them is stray."""
        is_new = False
        for cached in caches:
            watch = cached.identity.watch
            kind = GroupVersionKind.of(watch.api_version, watch.kind)
            for finalizer, keys in cached.informer.source.projection.finalizers.by_name().items():
                name = (kind.group, kind.kind, finalizer)
                if name in declared or name in self._handlers or not _may_be_declared(finalizer):
                    continue
                if len(self._handlers) >= _MOST_NAMES:
                    return is_new
                try:
                    handler = await self._handler_of(finalizer, keys, kind)
                except ApiError as error:
                    self._failed(finalizer, error)
                    return is_new
                self._failures = 0
                self._handlers[name] = handler
                is_new = is_new or bool(handler)
        return is_new

    async def _handler_of(self, finalizer: str, keys: Sequence[str], kind: GroupVersionKind) -> str:
        """The handler that has added a finalizer to one of these objects; empty for none. Raises ApiError."""
        for key in map(ObjectKey, keys):
            # A list of one object, as the right to list is there: the cache needs it, too.
            found, _ = await find_added(
                self._client, kind, self._controller, namespace=key.namespace, name=key.name
            )
            if by := [each.handler for each in found if each.finalizer == finalizer]:
                return by[0]
        return ""

    def _failed(self, finalizer: str, error: ApiError) -> None:
        self._failures += 1
        self._asks_at = self._clock.monotonic() + _BACKOFF.delay(self._failures)
        if self._failures == 1:
            self._log.warning(
                f"whether the finalizer {finalizer} is one of this controller is not known: {error}; it is "
                "tried again"
            )

    async def _read(self, caches: Sequence[ManagedInformer], strays: Mapping[_Name, str]) -> None:
        found: dict[_Name, StrayFinalizer] = {}
        for name, handler in strays.items():
            group, kind, finalizer = name
            records = [
                record
                for cached in caches
                if cached.identity.group_kind == (group, kind)
                for record in cached.informer.indexer.list()
            ]
            # In a thread: events go first.
            keys = await asyncio.to_thread(_keys_with, finalizer, records)
            if keys:
                found[name] = StrayFinalizer(finalizer, handler, kind, keys)
        before, self._found = self._found, found
        for name, stray in found.items():
            if name not in before:
                self._log.warning(str(stray), handler=stray.handler)
        for name, gone in before.items():
            if name not in found:
                self._log.info(f"no cached {gone.kind} has the stray finalizer {gone.finalizer} any more")


def _declared(plan: Plan) -> frozenset[_Name]:
    resources = {resource.name: resource.watches[0] for resource in plan.resources}
    return frozenset(
        (_group(resources[handler.resource]), resources[handler.resource].kind, handler.finalizer)
        for handler in plan.handlers
        if handler.finalizer
    )


def _group(watch: WatchKey) -> str:
    return GroupVersionKind.of(watch.api_version, watch.kind).group


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
