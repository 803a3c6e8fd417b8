"""The namespaces that label selectors match, followed for as long as a cache needs them.

All caches with one selector share one informer of namespaces, which caches metadata only. The server
evaluates the selector.
"""

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from declctl.decoding.projection import MetadataCodec, Projection
from declctl.informer.informer import SharedIndexInformer
from declctl.informer.source import SourceProvider
from declctl.kit import Clock
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import WatchKey
from declctl.objects import ChangeType, GroupVersionKind, Notification, ObjectView
from declctl.runtime.recorder import Recorder

_NAMESPACE = GroupVersionKind.of("v1", "Namespace")
_MOST_DELETED = 1000  # names of deleted namespaces that are remembered


class SelectedNamespaces:
    """The namespaces that one label selector matches (a `NamespaceSet`). Used on the machinery loop.

    The informer runs from the first `join` to the last `leave`. Before, and until its first list, the names
    are not known.
    """

    def __init__(
        self,
        selector: str,
        cluster: SourceProvider,
        *,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        recorder: Recorder | None = None,
    ) -> None:
        self.selector = selector
        self._recorder = recorder
        self._cluster = cluster
        self._tasks = tasks
        self._clock = clock
        self._calls: list[Callable[[], None]] = []  # of the caches that follow the namespaces
        self._informer: SharedIndexInformer | None = None  # None while no cache follows them
        self._task: asyncio.Task[None] | None = None  # runs the informer
        self._names: frozenset[str] = frozenset()
        self._deleted: dict[str, None] = {}  # names that left because of a deletion, the oldest first

    @property
    def names(self) -> frozenset[str] | None:
        """The namespaces that match; None while they are not known."""
        return self._names if self._informer is not None and self._informer.has_synced else None

    @property
    def fault(self) -> Exception | None:
        """The present fault of listing and watching namespaces; None while requests succeed."""
        return None if self._informer is None else self._informer.fault

    @property
    def resource_version(self) -> str:
        """The version up to which changes of namespaces have come; empty before the first list."""
        return "" if self._informer is None else self._informer.last_sync_resource_version

    @property
    def informer(self) -> SharedIndexInformer | None:
        """The informer of the namespaces; None while no cache follows them."""
        return self._informer

    def was_deleted(self, name: str) -> bool:
        """Whether a namespace left because it was deleted. Of many, the oldest are forgotten."""
        return name in self._deleted

    def join(self, call: Callable[[], None]) -> None:
        """Follow the namespaces; `call` is called on the loop after each change and each fault."""
        self._calls.append(call)
        if self._informer is None:
            self._start()
        call()  # the names may be known already

    def leave(self, call: Callable[[], None]) -> None:
        """End what `join` began."""
        self._calls.remove(call)
        if not self._calls and self._task is not None:
            self._task.cancel()
            self._informer = self._task = None
            self._names = frozenset()
            self._deleted.clear()

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Receive changes of namespaces, as the listener of the informer."""
        names = set(self._names)
        for notification in notifications:
            name = notification.record.object_key.name
            if notification.type is not ChangeType.DELETED:
                names.add(name)
                self._deleted.pop(name, None)
                continue
            names.discard(name)
            # A namespace that is deleted has a deletion time until it is gone; one that was relabelled has
            # none. Where the watch missed the end, it may be either: the server says which objects are left.
            metadata = ObjectView(notification.record)["metadata"]
            if notification.final_state_unknown or metadata.get("deletionTimestamp"):
                self._deleted[name] = None
                if len(self._deleted) > _MOST_DELETED:
                    del self._deleted[next(iter(self._deleted))]
        self._names = frozenset(names)
        self._call_all()

    def _start(self) -> None:
        codec = MetadataCodec()
        projection = Projection(api_version="v1", kind="Namespace", codec=codec, metadata_only=True)
        name = f"namespaces with {self.selector}"
        source = self._cluster.source(
            _NAMESPACE, label_selector=self.selector, metadata_only=True, projection=projection
        )
        informer = self._informer = SharedIndexInformer(source, name=name, clock=self._clock)
        informer.set_watch_error_handler(lambda _: self._call_all())
        informer.add_listener(self, resync_period=0.0)
        informer.synced.on_open(self._call_all)
        if self._recorder is not None:
            watch = WatchKey("v1", "Namespace", label_selector=self.selector, cache=CacheMode.METADATA_ONLY)
            self._recorder.follow(watch, informer, codec)
        self._task = self._tasks.create_task(informer.run(), name=f"informer {name}")

    def _call_all(self) -> None:
        for call in tuple(self._calls):
            call()


class NamespaceSelectors:
    """The selected namespaces of the process, by selector. Used on the machinery loop."""

    def __init__(
        self,
        cluster: SourceProvider,
        *,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        recorder: Recorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._cluster = cluster
        self._tasks = tasks
        self._clock = clock
        self._selected: WeakValueDictionary[str, SelectedNamespaces] = WeakValueDictionary()

    def of(self, selector: str) -> SelectedNamespaces:
        """The namespaces that a selector matches, which all its users share."""
        found = self._selected.get(selector)
        if found is None:
            found = SelectedNamespaces(
                selector, self._cluster, tasks=self._tasks, clock=self._clock, recorder=self._recorder
            )
            self._selected[selector] = found
        return found

    def informers(self) -> Sequence[SharedIndexInformer]:
        """The informers of namespaces that run."""
        found = (each.informer for each in tuple(self._selected.values()))
        return [informer for informer in found if informer is not None]
