"""Informers of the library on a loop in a thread, with handlers of every kind, and what they know."""

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec.structs import replace
from waiting import until

from declctl import Client, SharedIndexInformer, SharedInformerFactory
from declctl.informer import DeletedFinalStateUnknown, FilteredListWatch, ReflectorOptions
from declctl.kit import SystemClock
from declctl.objects import ObjectView, Resource, WatchOptions
from tests.properties.folding import Handling, State, Story

T = TypeVar("T")

_PAGE = 5  # objects, so that what is listed comes in several pages
_MOST_LATE = 6  # handlers that come and go


class Threaded(Story):
    """A synchronous handler: it is called in a thread of its own."""

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        self.added(obj, is_in_initial_list)

    def on_update(self, old: ObjectView, new: ObjectView) -> None:
        self.updated(old, new)

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None:
        self.deleted(obj)


class ShortWatches:
    """A client whose watches the server ends after some seconds, long before a reflector would want it."""

    def __init__(self, client: Client, seconds: int) -> None:
        self._client = client
        self._seconds = seconds

    def source(self, *what: Any, **how: Any) -> FilteredListWatch:
        return FilteredListWatch(self._client.source(*what, **how), self._shortened)

    async def find_resource(self, name: str) -> Resource:
        return await self._client.find_resource(name)

    def _shortened(self, options: Any) -> Any:
        if not isinstance(options, WatchOptions):
            return options
        return replace(options, timeout_seconds=self._seconds)


class Followers:
    """Two informers of the ConfigMaps of a namespace, one for each kind of queue, and their handlers.

    Methods are for the thread of the test.
    """

    def __init__(
        self,
        kubeconfig: dict[str, Any],
        namespace: str,
        *,
        idle_timeout: float = 90.0,
        watch_seconds: int | None = None,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._watch_seconds = watch_seconds
        self._options = ReflectorOptions(idle_timeout=idle_timeout, page_size=_PAGE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="followers", daemon=True)
        self.informers: dict[str, SharedIndexInformer] = {}
        self.stories: list[Story] = []
        self._late: list[Story] = []
        self.gone: list[Story] = []
        self._client: Client
        self._factories: list[SharedInformerFactory] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._begin())
        until("all caches have synced", lambda: all(i.has_synced for i in self.informers.values()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def come_and_go(self, chance: random.Random) -> None:
        """Another handler joins an informer, or one that joined late leaves."""
        self._call(lambda: self._come_or_go(chance))

    def know(self, truth: Callable[[], dict[str, State]], *, seconds: float = 60.0) -> None:
        """Return when every cache and every handler knows the truth; then all they were told was legal."""

        def known() -> bool:
            wanted = truth()
            return all(view == wanted for view in self._call(self._views))

        try:
            until("everybody knows the truth", known, seconds=seconds)
        finally:
            figures = {name: informer.statistics() for name, informer in self.informers.items()}
            print(*figures.items(), sep="\n")  # pytest shows it beside a failure
        for story in (*self.stories, *self._late, *self.gone):
            assert not story.wrong, story.wrong
        for story in (*self.stories, *self._late):
            assert story.registration is not None
            assert story.registration.has_synced

    def figures(self, name: str) -> list[Any]:
        """A figure of each informer's statistics."""
        return [getattr(informer.statistics(), name) for informer in self.informers.values()]

    def tombstones(self) -> list[int]:
        """How many deletes with an unknown last state those were told who were there from the beginning."""
        return [story.tombstones for story in self.stories]

    def _views(self) -> list[dict[str, State]]:
        caches = [
            {record.key: (record.uid, record.resource_version) for record in informer.indexer.list()}
            for informer in self.informers.values()
        ]
        return [*caches, *(dict(story.view) for story in (*self.stories, *self._late))]

    async def _begin(self) -> None:
        self._client = await Client.from_kubeconfig_dict(self._kubeconfig)
        provider = (
            self._client if self._watch_seconds is None else ShortWatches(self._client, self._watch_seconds)
        )
        for queue in ("RealFIFO", "DeltaFIFO"):
            factory = SharedInformerFactory(
                provider, namespace=self._namespace, options=self._options, queue=queue
            )
            informer = self.informers[queue] = factory.informer("v1", "ConfigMap")
            self._join(informer, Handling(SystemClock()), self.stories)
            self._join(informer, Threaded(), self.stories)
            factory.start()
            self._factories.append(factory)

    def _join(self, informer: SharedIndexInformer, story: Any, stories: list[Story]) -> None:
        story.registration = informer.add_event_handler(story, resync_period=1.0)
        stories.append(story)

    def _come_or_go(self, chance: random.Random) -> None:
        if len(self._late) == _MOST_LATE or (self._late and chance.random() < 0.4):
            story = self._late.pop(chance.randrange(len(self._late)))
            assert story.registration is not None
            story.registration.remove()
            self.gone.append(story)
        else:
            informer = chance.choice(list(self.informers.values()))
            self._join(informer, chance.choice([Handling(SystemClock()), Threaded()]), self._late)

    async def _end(self) -> None:
        for factory in self._factories:
            await factory.shutdown()
        await self._client.close()

    def _call(self, call: Callable[[], T]) -> T:
        async def on_loop() -> T:
            return call()

        return self._run(on_loop())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60.0)
