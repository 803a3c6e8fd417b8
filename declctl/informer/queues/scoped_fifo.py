"""ScopedFIFO: the changes of a cache with a scope of shards."""

from collections.abc import Sequence

from declctl.informer.queues.real_fifo import Batch, Bookmark, RealFIFO, Replacement
from declctl.informer.scope import ShardScope
from declctl.objects import Record


class ScopedFIFO(RealFIFO):
    """A RealFIFO whose lists say after how many widenings of the scope they began. Used on one loop."""

    def __init__(self, scope: ShardScope) -> None:
        super().__init__()
        self._scope = scope
        self._nothing: Bookmark | None = None  # the entry of `expect_nothing`

    def expect_nothing(self) -> None:
        """Sync without a list, because no shard is held. No effect after the sync."""
        if self.synced.is_open:
            return
        self._populated = True
        self._nothing = Bookmark("")
        self._put(self._nothing)  # the consumer looks whether the queue has synced

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """Queue a complete list of the scope at a version."""
        initial, self._replaced = not self._replaced, True
        replacement = Replacement(records, resource_version, initial, widenings=self._scope.list_began)
        if not self._populated:
            self._populated, self._initial = True, replacement
        self._put(replacement)

    def processed(self, batch: Batch) -> None:
        """Note that a batch is in the store. The sync is complete with the first replacement."""
        if self._nothing is not None and batch is self._nothing:
            self.synced.open()
        super().processed(batch)
