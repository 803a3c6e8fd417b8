"""Caches without a server: what is put into them is told to who listens, in the same step."""

from contextlib import contextmanager
from types import SimpleNamespace

from declctl.kit import ManualClock
from declctl.manifest.plan import WatchKey
from declctl.objects import ChangeReason, ChangeType, Notification, Record
from declctl.runtime.handling.moves import FreshnessProof

CLOCK = ManualClock()


class MadeUpCache:
    """As much of a cache as moves look at. `seen` is the version that it is at."""

    def __init__(
        self,
        *records: Record,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        seen: int = 1000,
    ) -> None:
        self.store = {record.key: record for record in records}
        self.listeners: list = []
        self.pauses = 0
        self.relists_requested = 0
        watch = WatchKey("v1", "Pod", namespace=namespace, label_selector=labels, field_selector=fields)
        self.identity = SimpleNamespace(watch=watch, transform="")
        self.indexer = SimpleNamespace(
            stored=self.store.get, known=lambda: self.store, last_store_sync_resource_version=str(seen)
        )
        self.informer = self
        self.has_synced = True

    def add_listener(self, listener, *, resync_period: float, initial: bool):
        assert not initial
        self.listeners.append(listener)
        return SimpleNamespace(remove=lambda: self.listeners.remove(listener))

    @contextmanager
    def paused(self):
        """Count who takes care that nothing happens."""
        self.pauses += 1
        try:
            yield
        finally:
            self.pauses -= 1

    def put(self, record: Record) -> None:
        assert not self.pauses
        old = self.store.get(record.key)
        self.store[record.key] = record
        self._tell(Notification(ChangeType.MODIFIED if old else ChangeType.ADDED, record, old))

    def remove(self, key: str, last: Record | None = None) -> None:
        """An object is deleted, if there is one: `last` is its last state, or a list finds it to be gone."""
        assert not self.pauses
        if (old := self.store.pop(key, None)) is not None:
            reason = ChangeReason.WATCH if last else ChangeReason.RELIST
            self._tell(Notification(ChangeType.DELETED, last or old, reason=reason))

    def at(self, version: int) -> None:
        """It has seen all that happened until then."""
        self.indexer.last_store_sync_resource_version = str(version)

    @property
    def last_sync_resource_version(self) -> str:
        """What has been read, and is told at once here."""
        return self.indexer.last_store_sync_resource_version

    @property
    def newest_store_version(self) -> str:
        """The same: it has one version for all namespaces."""
        return self.indexer.last_store_sync_resource_version

    def follows(self, namespace: str | None) -> bool:
        """Whether it may have objects of a namespace."""
        return self.identity.watch.namespace in (None, namespace)

    def request_relist(self) -> None:
        self.relists_requested += 1

    def statistics(self):
        return SimpleNamespace(error=None)

    def _tell(self, notification: Notification) -> None:
        for listener in tuple(self.listeners):
            listener.add_all([notification])


def begun(move):
    """The differences of a move that has compared all that there is."""
    for _ in move.begin():
        pass
    return move


def proof_of(source: MadeUpCache, target: MadeUpCache) -> FreshnessProof:
    """What a target has to show before the handler `tell` moves to it, from now on."""
    proof = FreshnessProof(["tell"], [source], target)
    proof.begin()
    return proof
