"""NamespacedFIFO: the changes of several namespaces, each from a reflector of its own, in one order.

One queue for all namespaces keeps the order of arrival: what a namespace has brought before it departs is
processed before its departure, and what it brings after it has come back, after that.
"""

from collections.abc import Collection, Iterable, Sequence

from declctl.informer.queues.real_fifo import Batch, Bookmark, Departure, RealFIFO, Replacement
from declctl.objects import Delta, Record


class NamespacedFIFO(RealFIFO):
    """A RealFIFO that the reflectors of several namespaces fill. Used on one loop.

    It has synced when the first lists of all namespaces of `expect` were processed. A namespace that comes
    later is not waited for, and one that departs is not waited for any longer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._populated = True  # only `processed` opens the latch
        self._listed: set[str] = set()  # namespaces that have had a list since they came
        self._expected: set[str] | None = None  # those of `expect` without a processed list; None before it

    def expect(self, namespaces: Collection[str]) -> None:
        """Wait for the first lists of these namespaces, which are those of the beginning."""
        self._expected = set(namespaces)
        # An entry that changes nothing: the consumer looks whether the queue has synced, also without a list.
        self._put(Bookmark(""))

    def of(self, namespace: str) -> "NamespaceQueue":
        """The end of the queue for the reflector of a namespace."""
        return NamespaceQueue(self, namespace)

    def list_of(self, namespace: str, records: Sequence[Record], resource_version: str) -> None:
        """Queue a complete list of a namespace at a version."""
        initial = namespace not in self._listed
        self._listed.add(namespace)
        self._put(Replacement(records, resource_version, initial, namespace))

    def bookmark_of(self, namespace: str, resource_version: str) -> None:
        """Queue the note that there are no further changes of a namespace up to a version."""
        self._put(Bookmark(resource_version, namespace))

    def depart(self, departure: Departure) -> None:
        """Queue the departure of a namespace, whose reflector has ended."""
        if departure.namespace is not None:
            self._listed.discard(departure.namespace)
        super().depart(departure)

    def processed(self, batch: Batch) -> None:
        """Note that a batch is in the store."""
        if self._expected is None or self.synced.is_open:
            return
        if isinstance(batch, Replacement | Departure) and batch.namespace is not None:
            self._expected.discard(batch.namespace)
        if not self._expected:
            self.synced.open()


class NamespaceQueue:
    """The end of a NamespacedFIFO that one reflector writes to (a ReflectorStore)."""

    def __init__(self, queue: NamespacedFIFO, namespace: str) -> None:
        self._queue = queue
        self._namespace = namespace

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Queue changes, in their order."""
        self._queue.extend(deltas)

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """Queue a complete list of the namespace at a version."""
        self._queue.list_of(self._namespace, records, resource_version)

    def bookmark(self, resource_version: str) -> None:
        """Queue the note that there are no further changes of the namespace up to a version."""
        self._queue.bookmark_of(self._namespace, resource_version)
