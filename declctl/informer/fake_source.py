"""A source in memory: for tests of what is built on the line (client-go's FakeControllerSource).

It keeps objects, what happened to them and in which order; it lists in pages and watches with
bookmarks and initial events as an API server does, through a real projection; and it misbehaves
when it is told to.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from declctl.errors import Expired, InvalidRequest
from declctl.objects import (
    EventType,
    Known,
    KubeObject,
    ListOptions,
    ListPage,
    Projection,
    WatchEvent,
    WatchOptions,
    key_of,
)

_BATCH = 256


@dataclass(eq=False)
class _Watcher:
    """One open watch: how far it has been told, and how it shall end."""

    position: int
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    bookmark: bool = False
    cut: bool = False
    fault: Exception | None = None


class FakeControllerSource:
    """Objects of one kind, which a test changes and a reflector lists and watches. Used on one loop.

    `requests` has the options of every LIST and WATCH in order. `streams` says whether it does
    streaming lists; `ends_initial_events` whether it says when they are complete; `silent` watches
    are accepted and told nothing.
    """

    def __init__(
        self, *, api_version: str = "v1", kind: str = "Pod", projection: Projection | None = None
    ) -> None:
        self.projection = projection or Projection(api_version=api_version, kind=kind)
        self.requests: list[ListOptions | WatchOptions] = []
        self.streams = True
        self.ends_initial_events = True
        self.silent = False
        self._name = kind
        self._versions = itertools.count(1)
        self._version = 0
        self._objects: dict[str, KubeObject] = {}
        self._history: list[tuple[int, EventType, KubeObject]] = []
        self._compacted = 0
        self._faults: dict[str, list[Exception]] = {"list": [], "watch": []}
        self._pages: dict[str, tuple[list[KubeObject], int]] = {}
        self._watchers: set[_Watcher] = set()

    @property
    def description(self) -> str:
        """The kind."""
        return self._name

    @property
    def objects(self) -> dict[str, KubeObject]:
        """A copy of every object by key."""
        return copy.deepcopy(self._objects)

    @property
    def resource_version(self) -> str:
        """The newest version."""
        return str(self._version)

    @property
    def open_watches(self) -> int:
        """How many watches are open."""
        return len(self._watchers)

    def lists(self) -> Sequence[ListOptions]:
        """The options of every LIST."""
        return [request for request in self.requests if isinstance(request, ListOptions)]

    def watches(self) -> Sequence[WatchOptions]:
        """The options of every WATCH."""
        return [request for request in self.requests if isinstance(request, WatchOptions)]

    def add(self, obj: KubeObject) -> KubeObject:
        """Create an object; it gets a version, and a uid if it has none. Returns it as stored."""
        return self._change(EventType.ADDED, obj)

    def modify(self, obj: KubeObject) -> KubeObject:
        """Change an object; it keeps its uid unless a new one is given."""
        return self._change(EventType.MODIFIED, obj)

    def delete(self, key: str) -> KubeObject:
        """Delete an object; raises KeyError if it isn't there."""
        obj = self._objects.pop(key)
        return self._record(EventType.DELETED, obj)

    def replay(self, kind: EventType, obj: KubeObject) -> None:
        """Tell watches something of an object as it stands, without changing what is listed."""
        self._history.append((self._version, kind, obj))
        self._wake()

    def fail_next(self, fault: Exception, *, verb: str = "watch", times: int = 1) -> None:
        """Answer the next `times` requests of a verb (`list` or `watch`) with a fault."""
        self._faults[verb] += [fault] * times

    def cut(self, fault: Exception | None = None) -> None:
        """End every open watch, with a fault or as a server does that has had enough."""
        for watcher in self._watchers:
            watcher.cut, watcher.fault = True, fault
        self._wake()

    def compact(self) -> None:
        """Forget what happened: watches from an older version are expired."""
        self._compacted = self._version
        self._pages.clear()

    def bookmark(self) -> None:
        """Tell every open watch the newest version."""
        for watcher in self._watchers:
            watcher.bookmark = True
        self._wake()

    def advance(self) -> None:
        """Another object somewhere else was changed: versions go on."""
        self._version = next(self._versions)

    async def list(self, options: ListOptions, *, known: Known) -> ListPage:
        """One page; as long as nothing was compacted, its continue token goes on from the same moment."""
        self.requests.append(options)
        if self._faults["list"]:
            raise self._faults["list"].pop(0)
        items, version = list(self._objects.values()), self._version
        if options.continue_token is not None:
            if options.continue_token not in self._pages:
                raise Expired(410, "Expired", "the continue token is too old")
            items, version = self._pages[options.continue_token]
        page, rest = items[: options.limit], items[options.limit :] if options.limit else []
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if rest:
            token = metadata["continue"] = f"{version}-{len(rest)}"
            self._pages[token] = (rest, version)
        body = msgspec.json.encode({"kind": f"{self._name}List", "metadata": metadata, "items": page})
        return self.projection.page(body, known=known)

    async def watch(self, options: WatchOptions) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """Events from a version on; first of all an empty batch, which says that the watch is open."""
        self.requests.append(options)
        if self._faults["watch"]:
            raise self._faults["watch"].pop(0)
        version = int(options.resource_version or 0)
        if options.send_initial_events and not self.streams:
            raise InvalidRequest(422, "Invalid", "sendInitialEvents is forbidden")
        if not options.send_initial_events and version < self._compacted:
            raise Expired(410, "Expired", f"too old resource version: {version} ({self._compacted})")
        watcher = _Watcher(
            position=len(self._history)
            if options.send_initial_events
            else next((i for i, h in enumerate(self._history) if h[0] > version), len(self._history))
        )
        self._watchers.add(watcher)
        try:
            yield ()
            if options.send_initial_events:
                yield self._initial_events()
            while not watcher.cut:
                if batch := self._pending(watcher):
                    yield batch
                else:
                    watcher.changed.clear()
                    await watcher.changed.wait()
            if watcher.fault is not None:
                raise watcher.fault
        finally:
            self._watchers.discard(watcher)

    def _initial_events(self) -> Sequence[WatchEvent]:
        events = [self._event(EventType.ADDED, obj) for obj in self._objects.values()]
        if self.ends_initial_events:
            events.append(WatchEvent(EventType.BOOKMARK, None, str(self._version), initial_events_end=True))
        return events

    def _pending(self, watcher: _Watcher) -> Sequence[WatchEvent]:
        if self.silent:
            return []
        behind = self._history[watcher.position : watcher.position + _BATCH]
        watcher.position += len(behind)
        events = [self._event(kind, obj) for _, kind, obj in behind]
        if not behind and watcher.bookmark:
            watcher.bookmark = False
            events.append(WatchEvent(EventType.BOOKMARK, None, str(self._version)))
        return events

    def _event(self, kind: EventType, obj: KubeObject) -> WatchEvent:
        return self.projection.event(msgspec.json.encode({"type": kind.value, "object": obj}))

    def _change(self, kind: EventType, obj: KubeObject) -> KubeObject:
        stored = copy.deepcopy(obj)
        metadata = stored.setdefault("metadata", {})
        key = key_of(metadata.get("namespace"), metadata["name"])
        before = self._objects.get(key, {}).get("metadata", {})
        metadata.setdefault("uid", before.get("uid") or f"uid-{self._version + 1}")
        self._objects[key] = stored
        return self._record(kind, stored)

    def _record(self, kind: EventType, obj: KubeObject) -> KubeObject:
        self._version = next(self._versions)
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        if kind is not EventType.DELETED:
            key = key_of(stored["metadata"].get("namespace"), stored["metadata"]["name"])
            self._objects[key] = stored
        self._history.append((self._version, kind, stored))
        self._wake()
        return copy.deepcopy(stored)

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.changed.set()
