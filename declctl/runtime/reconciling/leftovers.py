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

A leftover is finalized when it is deleted, and never reconciled. Without the right to list the kind in the
whole cluster, only the namespaces are looked at that the handler has or had in this process.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from declctl.errors import ApiError, Forbidden, MalformedAnswer, NotFound, NotSynced
from declctl.informer.informer import SharedIndexInformer
from declctl.kit import Clock
from declctl.kit.backoff import Backoff
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import WatchKey
from declctl.objects import KubeObject, Notification, ObjectView, version_order
from declctl.objects.resource import namespace_of
from declctl.runtime.caching.identities import codec_of, projection_of
from declctl.runtime.handling.handler_slot import HandlerSlot
from declctl.runtime.log import Log
from declctl.runtime.reconciling.finalizers import HandlerFinalizer
from declctl.runtime.reconciling.reconcile_slot import ReconcileBinding, ReconcileSlot
from declctl.transport import Client
from declctl.writes import finalizers_of, find_carriers, is_being_deleted

_LINGER_SECONDS = 60.0  # that an informer goes on without leftovers: objects may come and go in series
_BACKOFF = Backoff(1.0, 60.0)  # between two lists that fail


class Leftovers:
    """The leftovers of all handlers. Used on the machinery loop."""

    def __init__(self, client: Client, *, tasks: asyncio.TaskGroup, clock: Clock, log: Log) -> None:
        self._client = client
        self._tasks = tasks  # runs lists and informers
        self._clock = clock
        self._log = log
        self._by_handler: dict[str, HandlerLeftovers] = {}

    def commit(self, slots: Iterable[HandlerSlot[Any]]) -> None:
        """Look for leftovers of the bindings that these slots have now; forget those of other handlers.

        Called at each commit. Does no I/O, and raises nothing.
        """
        before, self._by_handler = self._by_handler, {}
        for slot in slots:
            if isinstance(slot, ReconcileSlot) and isinstance(binding := slot.binding, ReconcileBinding):
                known = before.get(slot.name)
                if known is not None and known.slot is slot:
                    del before[slot.name]
                elif binding.finalizer is None:
                    continue
                else:
                    known = HandlerLeftovers(
                        slot, self._client, tasks=self._tasks, clock=self._clock, log=self._log
                    )
                self._by_handler[slot.name] = slot.leftovers = known
                known.begin(binding)
        for gone in before.values():
            gone.close()

    def close(self) -> None:
        """End all lists and informers: the process ends."""
        for each in self._by_handler.values():
            each.close()


class HandlerLeftovers:
    """The leftovers of one handler (`LeftoverCache`). `get` may be called by any thread."""

    def __init__(
        self,
        slot: ReconcileSlot,
        client: Client,
        *,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        log: Log,
    ) -> None:
        self.slot = slot
        self._client = client
        self._tasks = tasks
        self._clock = clock
        self._log = log
        self._scope: object = None  # what decides which objects are leftovers, when they were looked for
        self._binding: ReconcileBinding | None = None
        self._namespaces: set[str | None] = set()  # those that the handler has or had
        self._looking: asyncio.Task[None] | None = None
        # By namespace; None for a cluster-scoped kind. Replaced, never changed: other threads read it.
        self._informers: dict[str | None, SharedIndexInformer] = {}
        self._running: dict[str | None, Sequence[asyncio.Task[None]]] = {}
        # By key: the Deleted of objects that have left the scope, or are gone. Written on the loop.
        self._undecided: dict[str, Notification] = {}

    def begin(self, binding: ReconcileBinding) -> None:
        """Look for leftovers, if the binding has another scope or finalizer than the one before."""
        self._binding = binding
        finalizer, own = binding.finalizer, binding.sources[0].informers
        watches = tuple(managed.identity.watch for managed in own)
        scope = (finalizer.name, finalizer.kind, watches) if finalizer is not None else None
        if scope == self._scope:
            return
        is_other = self._scope is not None and scope is not None and self._scope[:2] != scope[:2]  # type: ignore[index]
        self._scope = scope
        if self._looking is not None:
            self._looking.cancel()
        if finalizer is None or is_other:
            self._undecided.clear()
            for namespace in tuple(self._informers):
                self._end(namespace)
        self._namespaces.update(watch.namespace for watch in watches)
        if finalizer is not None and finalizer.may_leave:
            name = f"leftovers of {self.slot.name}"
            self._looking = self._tasks.create_task(self._look(binding, finalizer), name=name)

    def close(self) -> None:
        """End it: the handler is removed, or the process ends."""
        if self._looking is not None:
            self._looking.cancel()
        for namespace in tuple(self._informers):
            self._end(namespace)
        self._scope = None

    def get(self, key: str) -> ObjectView | None:
        """The newest state of an object outside of the scope; None if it is not known."""
        informer = self._informers.get(namespace_of(key))
        record = None if informer is None else informer.indexer.get_by_key(key)
        return None if record is None else ObjectView(record)

    def is_undecided(self, key: str) -> bool:
        """Whether it is not known yet if an object has left the scope, or is gone. From any thread."""
        return key in self._undecided

    def object_left(self, notification: Notification) -> None:
        """Watch the namespace of an object that has left the scope with the finalizer, or is gone.

        If it is gone, the slot is told so.
        """
        if self._binding is not None and self._binding.finalizer is not None:
            namespace = namespace_of(notification.key)
            self._undecided[notification.key] = notification
            self._watch(namespace, self._binding.finalizer)
            self._decide(namespace)

    @property
    def count(self) -> int:
        """The number of leftovers that are known."""
        return sum(self._left(informer) for informer in self._informers.values())

    async def _look(self, binding: ReconcileBinding, finalizer: HandlerFinalizer) -> None:
        """Find the namespaces with leftovers, and watch them. Retried until the server answers."""
        for managed in binding.sources[0].informers:
            await managed.informer.synced.wait()  # objects of an unsynced cache would count as leftovers
        attempt = 0
        while True:
            try:
                namespaces = await self._namespaces_with_leftovers(finalizer)
            except ApiError as error:
                attempt += 1
                if attempt == 1:
                    self._log.warning(
                        f"{self.slot.name}: objects outside of its scope that have the finalizer "
                        f"{finalizer.name} are not known yet: {error}; it is tried again",
                        handler=self.slot.name,
                    )
                await self._clock.sleep(_BACKOFF.delay(attempt))
                continue
            for namespace in namespaces:
                self._watch(namespace, finalizer)
            return

    async def _namespaces_with_leftovers(self, finalizer: HandlerFinalizer) -> list[str | None]:
        """Raises ApiError."""
        try:
            found = await find_carriers(self._client, finalizer.kind, finalizer.name)
        except NotFound:
            return []  # the kind is not served, and has no objects
        except Forbidden:
            self._log.warning(
                f"{self.slot.name}: objects that have the finalizer {finalizer.name} in other namespaces are "
                f"not finalized, because they can't be found: grant list of {finalizer.kind.kind} in the "
                "whole cluster, or look with `declctl finalizers list`",
                handler=self.slot.name,
            )
            found = []
            for namespace in sorted(filter(None, self._namespaces)):
                with suppress(Forbidden):
                    found += await find_carriers(self._client, finalizer.kind, finalizer.name, namespace)
        left = {carrier.key.namespace: None for carrier in found if self._is_left(carrier.key)}
        if left:
            count = sum(self._is_left(carrier.key) for carrier in found)
            self._log.info(
                f"{self.slot.name}: {count:,} objects outside of its scope have the finalizer "
                f"{finalizer.name}; they are finalized when they are deleted",
                handler=self.slot.name,
            )
        return list(left)

    def _is_left(self, key: str) -> bool:
        """Whether an object with the finalizer is in none of the handler's caches."""
        assert self._binding is not None
        try:
            return self._binding.read(key) is None
        except NotSynced:
            return False  # a cache is new: its commit looks again

    def _left(self, informer: SharedIndexInformer) -> int:
        return sum(self._is_left(key) for key in list(informer.indexer.known()))

    def _watch(self, namespace: str | None, finalizer: HandlerFinalizer) -> None:
        """Start the informer of a namespace, unless it runs."""
        if namespace in self._informers:
            return
        assert self._binding is not None
        first: WatchKey = self._binding.sources[0].informers[0].identity.watch
        watch = replace(
            first, namespace=namespace, namespace_selector="", label_selector="", field_selector=""
        )
        source = self._client.source(
            finalizer.kind,
            namespace=namespace,
            metadata_only=watch.cache is CacheMode.METADATA_ONLY,
            projection=projection_of(
                watch, paths=(), transform=_keeping(finalizer.name), codec=codec_of(watch)
            ),
        )
        informer = SharedIndexInformer(
            source, name=f"{watch}, for the finalizer of {self.slot.name}", clock=self._clock
        )
        informer.add_listener(_LeftoverFeed(self), initial=True)
        self._informers = {**self._informers, namespace: informer}
        name = f"leftovers of {self.slot.name} in {namespace or 'the cluster'}"
        self._running[namespace] = (
            self._tasks.create_task(informer.run(), name=name),
            self._tasks.create_task(self._until_none_is_left(namespace, informer), name=f"end of {name}"),
        )

    async def _until_none_is_left(self, namespace: str | None, informer: SharedIndexInformer) -> None:
        await informer.synced.wait()
        empty = False
        # Two looks in a row: what has left a moment ago may be on its way.
        while not (empty and not self._left(informer)):
            self._decide(namespace)  # a bookmark may have shown that an object is gone
            waits = any(namespace_of(key) == namespace for key in self._undecided)
            empty = not waits and not self._left(informer)
            await self._clock.sleep(_LINGER_SECONDS)
        self._end(namespace)

    def _end(self, namespace: str | None) -> None:
        self._informers = {name: each for name, each in self._informers.items() if name != namespace}
        for task in self._running.pop(namespace, ()):
            if task is not asyncio.current_task():
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
            if record is not None and version_order(record.resource_version) >= since:
                del self._undecided[key]  # it lives
            elif record is None and reached >= since:
                del self._undecided[key]
                self.slot.object_gone(notification)

    def received(self, notifications: Sequence[Notification]) -> None:
        """Queue the keys of leftovers that have to be finalized."""
        for notification in notifications:
            with suppress(MalformedAnswer):  # without its metadata nothing can be said of the object
                if is_being_deleted(notification.record.read()) and self._is_left(notification.key):
                    self.slot.add_leftover(notification)
        for namespace in {namespace_of(notification.key) for notification in notifications}:
            self._decide(namespace)


class _LeftoverFeed:
    """The listener of an informer of leftovers."""

    def __init__(self, leftovers: HandlerLeftovers) -> None:
        self.name = leftovers.slot.name
        self._leftovers = leftovers

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Pass changes on."""
        self._leftovers.received(notifications)


def _keeping(finalizer: str) -> Callable[[KubeObject], KubeObject | None]:
    """A transform that leaves out the objects without a finalizer."""

    def keep(obj: KubeObject) -> KubeObject | None:
        return obj if finalizer in finalizers_of(obj) else None

    return keep
