"""Leftovers: objects that have left the scope of a handler, and still have its finalizer.

A resource may have namespaces or selectors, and an edit may narrow them. An object that has left them would
never go when it is deleted. So leftovers are watched until none is left:

- At the start of a handler, and when its scope changes, the metadata of all objects of the kind are listed.
  A handler whose scope is the whole cluster has no leftovers, and no such list.
- A namespace with leftovers gets an informer of its own, without the selectors. It caches only the objects
  with the finalizer, without the transform of the resource.
- An object that leaves the scope later, such as by its labels, starts the informer of its namespace.

A Deleted of an object with the finalizer does not say whether the object is gone, or has left. The informer
of its namespace says it. Until then the key is not reconciled: a reconciler would take an object that lives
for one that is gone.

With a sharding, an object of a shard that is not open here is no leftover: it is in no cache either. When a
shard opens, all lists are made anew, because they are older than its Lease.

A leftover is finalized when it is deleted, and never reconciled. Without the right to list the kind in the
whole cluster, only the namespaces are looked at that the handler has or had in this process.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from declctl.errors import ApiError, Forbidden, MalformedAnswer, NotSynced
from declctl.informer.informer import SharedIndexInformer
from declctl.kit import Clock
from declctl.kit.backoff import Backoff
from declctl.manifest.model import CacheMode
from declctl.objects import Notification, Record, version_order
from declctl.objects.resource import namespace_of
from declctl.runtime.caching.identities import codec_of, projection_of
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.handler_slot import HandlerSlot
from declctl.runtime.log import Log
from declctl.runtime.reconciling.finalizers import HandlerFinalizer
from declctl.runtime.reconciling.reconcile_slot import ReconcileSlot
from declctl.transport import Client
from declctl.writes import FinalizerCarrier, finalizers_of, find_carriers, find_carriers_of, is_being_deleted

_LINGER_SECONDS = 60.0  # that an informer goes on without leftovers: objects may come and go in series
_BACKOFF = Backoff(1.0, 60.0)  # between two lists that fail


@dataclass(eq=False)
class Leftovers:
    """The leftovers of all handlers. Used on the machinery loop."""

    client: Client
    tasks: asyncio.TaskGroup  # runs lists and informers
    clock: Clock
    log: Log
    _by_handler: "dict[str, HandlerLeftovers]" = field(default_factory=dict, init=False)

    def commit(self, slots: Iterable[HandlerSlot[Any]]) -> None:
        """Look for leftovers of the bindings that these slots have now; forget those of other handlers.

        Called at each commit. Does no I/O, and raises nothing.
        """
        before, self._by_handler = self._by_handler, {}
        for slot in slots:
            if not isinstance(slot, ReconcileSlot):
                continue
            if (finalizer := slot.binding.finalizer) is None:
                slot.leftovers = None
                continue
            if (known := before.get(slot.name)) is not None and known.slot is slot:
                del before[slot.name]
            else:
                known = HandlerLeftovers(slot, finalizer, self)
            self._by_handler[slot.name] = slot.leftovers = known
            known.begin(finalizer)
        for gone in before.values():
            gone.close()

    def shards_opened(self) -> None:
        """Look for the leftovers of all handlers again, as shards were opened."""
        for each in self._by_handler.values():
            each.look_again()

    def close(self) -> None:
        """End all lists and informers: the process ends."""
        for each in self._by_handler.values():
            each.close()


@dataclass(eq=False)
class HandlerLeftovers:
    """The leftovers of one handler, and a listener of their informers. `get` may be called by any thread."""

    slot: ReconcileSlot
    finalizer: HandlerFinalizer  # of the newest binding
    parts: Leftovers
    _scope: object = None  # what decides which objects are leftovers, when they were looked for
    _namespaces: set[str] = field(default_factory=set[str])  # those that the handler has or had
    _looking: asyncio.Task[None] | None = None
    # By namespace; None for a cluster-scoped kind. Other threads read it.
    _informers: dict[str | None, SharedIndexInformer] = field(default_factory=dict)
    _running: dict[str | None, Sequence[asyncio.Task[None]]] = field(default_factory=dict)
    # By key: the Deleted of objects that have left the scope, or are gone. Written on the loop.
    _undecided: dict[str, Notification] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """That of the handler."""
        return self.slot.name

    def begin(self, finalizer: HandlerFinalizer) -> None:
        """Look for leftovers, if the newest binding has another scope or finalizer than the one before."""
        own = self.slot.binding.own_informers
        watches = tuple(managed.identity.watch for managed in own)
        if finalizer.name != self.finalizer.name:
            self._undecided.clear()
        self.finalizer = finalizer
        if (finalizer.name, watches) == self._scope:
            return
        self.close()
        self._scope = (finalizer.name, watches)
        self._namespaces.update(watch.namespace for watch in watches if watch.namespace is not None)
        for notification in tuple(self._undecided.values()):
            self.object_left(notification)
        if finalizer.may_leave:
            self._looking = self.parts.tasks.create_task(self._look(own), name=f"leftovers of {self.name}")

    def look_again(self) -> None:
        """List all anew."""
        self._scope = None
        self.begin(self.finalizer)

    def drop(self, chosen: Callable[[str, str], bool]) -> None:
        """Find out no more of objects that are chosen by key and uid."""
        for key, notification in tuple(self._undecided.items()):
            if chosen(key, notification.record.uid):
                del self._undecided[key]

    def close(self) -> None:
        """End all lists and informers."""
        if self._looking is not None:
            self._looking.cancel()
        for namespace in tuple(self._informers):
            self._end(namespace)

    def get(self, key: str) -> Record | None:
        """The newest state of an object outside of the scope; None if it is not known."""
        informer = self._informers.get(namespace_of(key))
        return None if informer is None else informer.indexer.get_by_key(key)

    def is_undecided(self, key: str) -> bool:
        """Whether it is not known yet if an object has left the scope, or is gone. From any thread."""
        return key in self._undecided

    @property
    def has_undecided(self) -> bool:
        """Whether this is not known yet of an object."""
        return bool(self._undecided)

    def object_left(self, notification: Notification) -> None:
        """Watch the namespace of an object that has left the scope with the finalizer, or is gone.

        If it is gone, the slot is told so.
        """
        self._undecided[notification.key] = notification
        self._watch(namespace_of(notification.key))
        self._decide(namespace_of(notification.key))

    @property
    def count(self) -> int:
        """The number of leftovers that are known. From any thread."""
        return sum(map(self._left, tuple(self._informers.values())))

    async def _look(self, own: Sequence[ManagedInformer]) -> None:
        """Find the namespaces with leftovers, and watch them. Retried until the server answers."""
        for managed in own:
            await managed.informer.synced.wait()  # objects of an unsynced cache would count as leftovers
        attempt, found = 0, None
        while found is None:
            try:
                found = await self._find()
            except ApiError as error:
                attempt += 1
                if attempt == 1:
                    self._warn(
                        f"objects outside of its scope that have the finalizer {self.finalizer.name} are not "
                        f"known yet: {error}; it is tried again"
                    )
                await self.parts.clock.sleep(_BACKOFF.delay(attempt))
        left = [carrier.key for carrier in found if self._is_left(carrier.key, carrier.uid)]
        if left:
            self.parts.log.info(
                f"{self.name}: {len(left):,} objects outside of its scope have the finalizer "
                f"{self.finalizer.name}; they are finalized when they are deleted",
                handler=self.name,
            )
        for namespace in dict.fromkeys(key.namespace for key in left):
            self._watch(namespace)

    async def _find(self) -> Sequence[FinalizerCarrier]:
        """The objects with the finalizer, as far as they may be listed. Raises ApiError."""
        client, finalizer = self.parts.client, self.finalizer
        try:
            return await find_carriers_of(client, finalizer.kind, finalizer.name, None)
        except Forbidden:
            self._warn(
                f"objects that have the finalizer {finalizer.name} in other namespaces are not finalized, "
                f"because they can't be found: grant list of {finalizer.kind.kind} in the whole cluster, or "
                "look with `declctl finalizers list`"
            )
        found: list[FinalizerCarrier] = []
        for namespace in sorted(self._namespaces):
            with suppress(Forbidden):
                found += await find_carriers(client, finalizer.kind, finalizer.name, namespace)
        return found

    def _warn(self, message: str) -> None:
        self.parts.log.warning(f"{self.name}: {message}", handler=self.name)

    def _is_left(self, key: str, uid: str) -> bool:
        """Whether an object with the finalizer is in none of the handler's caches, and is handled here."""
        try:
            return self.slot.is_open(key, uid) and self.slot.binding.read(key) is None
        except NotSynced:
            return False  # a cache is new: its commit looks again

    def _left(self, informer: SharedIndexInformer) -> int:
        return sum(self._is_left(key, record.uid) for key, record in list(informer.indexer.known().items()))

    def _watch(self, namespace: str | None) -> None:
        """Start the informer of a namespace, unless it runs."""
        if namespace in self._informers:
            return
        parts, finalizer = self.parts, self.finalizer
        watch = replace(
            self.slot.binding.own_informers[0].identity.watch,
            namespace=namespace,
            namespace_selector="",
            label_selector="",
            field_selector="",
        )
        keep = lambda obj: obj if finalizer.name in finalizers_of(obj) else None  # noqa: E731
        source = parts.client.source(
            finalizer.kind,
            namespace=namespace,
            metadata_only=watch.cache is CacheMode.METADATA_ONLY,
            projection=projection_of(watch, paths=(), transform=keep, codec=codec_of(watch)),
        )
        name = f"{watch}, for the finalizer of {self.name}"
        informer = self._informers[namespace] = SharedIndexInformer(source, name=name, clock=parts.clock)
        informer.add_listener(self, initial=True)
        self._running[namespace] = (
            parts.tasks.create_task(informer.run(), name=name),
            parts.tasks.create_task(self._until_none_is_left(namespace, informer), name=f"end of {name}"),
        )

    async def _until_none_is_left(self, namespace: str | None, informer: SharedIndexInformer) -> None:
        await informer.synced.wait()
        empty = False
        # Two looks in a row: what has left a moment ago may be on its way.
        while not (empty and not self._left(informer)):
            self._decide(namespace)  # a bookmark may have shown that an object is gone
            waits = any(namespace_of(key) == namespace for key in self._undecided)
            empty = not waits and not self._left(informer)
            await self.parts.clock.sleep(_LINGER_SECONDS)
        self._end(namespace)

    def _end(self, namespace: str | None) -> None:
        del self._informers[namespace]
        for task in self._running.pop(namespace):
            task.cancel()

    def _decide(self, namespace: str | None) -> None:
        """Decide for each object of a namespace whether it has left the scope, or is gone."""
        informer = self._informers.get(namespace)
        if informer is None or not informer.synced.is_open:
            return
        reached = version_order(informer.indexer.last_store_sync_resource_version)
        for key, notification in tuple(self._undecided.items()):
            if namespace_of(key) != namespace:
                continue
            since = version_order(notification.record.resource_version)
            record = informer.indexer.get_by_key(key)
            lives = record is not None and version_order(record.resource_version) >= since
            if lives or (record is None and reached >= since):
                del self._undecided[key]
                if not lives:
                    self.slot.object_gone(notification)

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Queue the keys of leftovers that have to be finalized."""
        for notification in notifications:
            with suppress(MalformedAnswer):  # without its metadata nothing can be said of the object
                if is_being_deleted(notification.record.read()) and self._is_left(
                    notification.key, notification.record.uid
                ):
                    self.slot.add_leftover(notification)
        for namespace in {namespace_of(notification.key) for notification in notifications}:
            self._decide(namespace)
