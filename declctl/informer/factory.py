"""The factory: one informer for each distinct watch, shared and counted (client-go factory.go)."""

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
from declctl.objects import FieldPath, GroupVersionKind, Projection, Transform


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
class _Watched:
    """What an informer watches, and what is done to the answer: its identity."""

    gvk: GroupVersionKind
    namespace: str | None
    label_selector: str
    field_selector: str
    transform: Transform | None


@dataclass(slots=True, eq=False)
class _Shared:
    """One informer, who uses it, its task, and the task that closes it when nobody does."""

    informer: SharedIndexInformer
    users: int = 0
    task: asyncio.Task[None] | None = None
    closing: asyncio.Task[None] | None = None


class SharedInformerFactory:
    """Informers by what they watch, started and stopped together. Used on one loop.

    Asking twice for the same watch gives the same informer. As an async context manager it starts
    each informer as soon as it was asked for, and stops all of them at its end; else `start` starts
    those that were asked for until then. Field indexers that are added before an informer runs are
    projected: they cost no decoding.
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
        self._shared: dict[_Watched, _Shared] = {}
        self._entered = False

    async def __aenter__(self) -> Self:
        self._entered = True
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        await self.shutdown()

    def informer(  # noqa: PLR0913 - each says what is watched or how
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
        """The informer of a watch; the first to ask decides about resync, each adds the indexers it needs.

        An indexer whose name is taken by the same function is shared; by another raises CacheError.
        """
        gvk = GroupVersionKind.of(api_version, kind)
        watched = _Watched(gvk, namespace or self._namespace, label_selector, field_selector, transform)
        shared = self._shared.get(watched)
        if shared is None:
            shared = self._shared[watched] = _Shared(self._make(watched, resync_period))
        shared.users += 1
        if shared.closing is not None:
            shared.closing.cancel()
            shared.closing = None
        shared.informer.share_indexers(indexers or {})
        if self._entered:
            self.start()
        return shared.informer

    def start(self) -> None:
        """Start what has not been started. May be called again and again (client-go's Start)."""
        for watched, shared in self._shared.items():
            if shared.task is None:
                shared.task = asyncio.create_task(_run(watched, shared.informer), name=shared.informer.name)

    async def wait_for_cache_sync(self, timeout: float | None = None) -> None:
        """Start what has not been started, and return when every cache has its first list.

        Raises NotSynced after `timeout` seconds, with what is missing and why.
        """
        self.start()
        waiting = asyncio.create_task(self._all_synced())
        late = None if timeout is None else asyncio.create_task(self._clock.sleep(timeout))
        try:
            await asyncio.wait({waiting} if late is None else {waiting, late}, return_when="FIRST_COMPLETED")
            if waiting.done():
                return waiting.result()
        finally:
            waiting.cancel()
            if late is not None:
                late.cancel()
        missing = [shared.informer for shared in self._shared.values() if not shared.informer.has_synced]
        raise NotSynced("; ".join(_why(informer) for informer in missing))

    def release(self, informer: SharedIndexInformer, *, linger: float = 0.0) -> None:
        """One user less; when nobody has asked for it again `linger` seconds after the last, it stops."""
        for watched, shared in self._shared.items():
            if shared.informer is informer:
                shared.users -= 1
                if shared.users <= 0 and shared.closing is None:
                    shared.closing = asyncio.create_task(self._close(watched, shared, linger))

    async def shutdown(self) -> None:
        """Stop every informer and return when they have ended."""
        shared, self._shared = list(self._shared.values()), {}
        for one in shared:
            if one.closing is not None:
                one.closing.cancel()
            await _stop(one)
        for one in shared:
            if one.task is not None and not one.task.cancelled():
                one.task.result()  # it ended by itself, which only a fault of its own can be the reason for

    async def _close(self, watched: _Watched, shared: _Shared, linger: float) -> None:
        await self._clock.sleep(linger)
        del self._shared[watched]
        await _stop(shared)

    async def _all_synced(self) -> None:
        for shared in tuple(self._shared.values()):
            synced = asyncio.create_task(shared.informer.synced.wait())
            assert shared.task is not None
            await asyncio.wait({synced, shared.task}, return_when="FIRST_COMPLETED")
            synced.cancel()
            if not shared.informer.has_synced:
                fault = None if shared.task.cancelled() else shared.task.exception()
                raise NotSynced(_why(shared.informer)) from fault

    def _make(self, watched: _Watched, period: float | None) -> SharedIndexInformer:
        source = self._client.source(
            watched.gvk,
            namespace=watched.namespace,
            label_selector=watched.label_selector,
            field_selector=watched.field_selector,
            projection=_projection(watched),
        )
        scope = f" in {watched.namespace}" if watched.namespace else ""
        return SharedIndexInformer(
            source,
            name=f"{watched.gvk}{scope}",
            clock=self._clock,
            resync_period=self._resync_period if period is None else period,
        )


async def _run(watched: _Watched, informer: SharedIndexInformer) -> None:
    # What was indexed until now is decoded from the first object on.
    indexed = informer.indexer.get_indexers().values()
    paths = [function.path for function in indexed if isinstance(function, FieldIndex)]
    informer.source.projection = _projection(watched, *paths)
    await informer.run()


def _projection(watched: _Watched, *paths: FieldPath) -> Projection:
    return Projection(
        api_version=watched.gvk.api_version, kind=watched.gvk.kind, paths=paths, transform=watched.transform
    )


async def _stop(shared: _Shared) -> None:
    if shared.task is not None:
        shared.task.cancel()
        await asyncio.wait([shared.task])


def _why(informer: SharedIndexInformer) -> str:
    figures = informer.statistics()
    if informer.is_stopped:
        return f"{informer.name} has not synced (it was stopped)"
    reason = figures.error or f"{figures.items_listed} objects so far"
    return f"{informer.name} has not synced ({figures.state}: {reason})"
