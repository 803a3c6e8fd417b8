"""The factory.

One informer for each distinct watch, shared and counted (client-go's sharedInformerFactory).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from declctl.errors import NotSynced
from declctl.informer.informer import AnyIndexFunc, SharedIndexInformer
from declctl.informer.source import Source
from declctl.informer.stores import FieldIndex
from declctl.kit import Clock, SystemClock
from declctl.objects import GroupVersionKind, Projection, Transform

_CHECK_SECONDS = 0.02


class SourceProvider(Protocol):
    """What gives sources: a client."""

    def source(
        self,
        gvk: GroupVersionKind,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        projection: Projection,
    ) -> Source:
        """Lists and watches one resource."""
        ...


@dataclass(frozen=True, slots=True)
class _Key:
    gvk: GroupVersionKind
    namespace: str | None
    label_selector: str
    field_selector: str
    transform: int


@dataclass(slots=True, eq=False)
class _Shared:
    informer: SharedIndexInformer
    transform: Transform | None
    users: int = 0
    task: asyncio.Task[None] | None = None


class SharedInformerFactory:
    """Informers by what they watch, started and stopped together. An async context manager; used on one loop.

    Asking twice for the same watch gives the same informer. Informers that are asked for later are
    started by `start`, or by `wait_for_cache_sync`, which starts first.
    """

    def __init__(
        self,
        client: SourceProvider,
        *,
        resync_period: float = 0.0,
        namespace: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._resync_period = resync_period
        self._namespace = namespace
        self._clock: Clock = clock or SystemClock()
        self._shared: dict[_Key, _Shared] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    def informer(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        resync_period: float | None = None,
        indexers: Mapping[str, AnyIndexFunc] | None = None,
        transform: Transform | None = None,
    ) -> SharedIndexInformer:
        """The informer of a watch; the first to ask decides about resync and indexers, the next add theirs.

        Field indexers that are added before the informer starts are projected: they cost no
        decoding.
        """
        gvk = GroupVersionKind.of(api_version, kind)
        key = _Key(gvk, namespace or self._namespace, label_selector, field_selector, id(transform))
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = self._make(key, transform, resync_period)
        shared.users += 1
        missing = {
            n: f for n, f in (indexers or {}).items() if n not in shared.informer.indexer.get_indexers()
        }
        shared.informer.add_indexers(missing)
        return shared.informer

    def start(self) -> None:
        """Start what has not been started.

        Informers asked for later need another call (client-go's Start).
        """
        for key, shared in self._shared.items():
            if shared.task is None:
                shared.informer.source.projection = _projection(key.gvk, shared)
                shared.task = asyncio.create_task(
                    shared.informer.run(), name=f"informer {shared.informer.name}"
                )

    async def wait_for_cache_sync(self, timeout: float | None = None) -> None:
        """Start what has not been started, and return when every cache has its first list.

        Raises NotSynced after `timeout` seconds, with what is missing and why.
        """
        self.start()
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while missing := [s.informer for s in self._shared.values() if not s.informer.has_synced]:
            if deadline is not None and self._clock.monotonic() >= deadline:
                raise NotSynced("; ".join(_why(informer) for informer in missing))
            await self._clock.sleep(_CHECK_SECONDS)
        for shared in self._shared.values():
            if shared.task is not None and shared.task.done():
                await shared.task  # an informer only ends by a fault or by cancellation

    async def release(self, informer: SharedIndexInformer) -> None:
        """One user less; the last one stops the informer."""
        for key, shared in list(self._shared.items()):
            if shared.informer is informer:
                shared.users -= 1
                if shared.users <= 0:
                    del self._shared[key]
                    await _stop(shared)

    async def shutdown(self) -> None:
        """Stop every informer and return when they have ended."""
        shared, self._shared = list(self._shared.values()), {}
        for one in shared:
            await _stop(one)

    def _make(self, key: _Key, transform: Transform | None, period: float | None) -> _Shared:
        projection = Projection(api_version=key.gvk.api_version, kind=key.gvk.kind, transform=transform)
        source = self._client.source(
            key.gvk,
            namespace=key.namespace,
            label_selector=key.label_selector,
            field_selector=key.field_selector,
            projection=projection,
        )
        scope = f" in {key.namespace}" if key.namespace else ""
        informer = SharedIndexInformer(
            source,
            name=f"{key.gvk}{scope}",
            clock=self._clock,
            resync_period=self._resync_period if period is None else period,
        )
        return _Shared(informer, transform)


def _projection(gvk: GroupVersionKind, shared: _Shared) -> Projection:
    functions = shared.informer.indexer.get_indexers().values()
    return Projection(
        api_version=gvk.api_version,
        kind=gvk.kind,
        paths=[function.path for function in functions if isinstance(function, FieldIndex)],
        transform=shared.transform,
    )


async def _stop(shared: _Shared) -> None:
    if shared.task is not None:
        shared.task.cancel()
        await asyncio.wait([shared.task])


def _why(informer: SharedIndexInformer) -> str:
    figures = informer.statistics()
    reason = figures.error or f"{figures.state}, {figures.items_listed} objects so far"
    return f"{informer.name} has not synced ({reason})"
