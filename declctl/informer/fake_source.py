"""A source in memory: for tests of what is built on the line (client-go's FakeControllerSource).

It keeps objects, what happened to them and in which order; it lists in pages and watches with
bookmarks and initial events as an API server does, through a real projection; and it misbehaves
when it is told to, until it is told to be `calm`.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from declctl.errors import ApiError, Expired, InvalidRequest, TooLargeResourceVersion
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
    decode: Callable[[bytes], WatchEvent]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    bookmark: bool = False
    cut: bool = False
    fault: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Happened:
    """A version, the line that watches are told of it, and what it makes of which object."""

    version: int
    line: bytes
    key: str = ""
    obj: KubeObject | None = None


class FakeControllerSource:
    """Objects of one kind, which a test changes and a reflector lists and watches. Used on one loop.

    Versions are integers that count up. A LIST is at any version ("0"), at the newest (none), none
    older than one, or exactly at one; one that has not come yet is too large, one that was
    compacted is expired. Selectors are not looked at.

    `requests` has the options of every LIST and WATCH in order. `streams` says whether it does
    streaming lists, `watch_cache` whether lists at any version ignore their limit. How it
    misbehaves: `ends_initial_events` False withholds the word that a streaming list is complete;
    `silent` watches are told nothing but what a streaming list begins with; `body` is the answer to
    every LIST; every watch begins with `first_line`; `slams` ends every watch as soon as it has
    told what it knows.
    """

    def __init__(
        self, *, api_version: str = "v1", kind: str = "Pod", projection: Projection | None = None
    ) -> None:
        self.projection = projection or Projection(api_version=api_version, kind=kind)
        self.requests: list[ListOptions | WatchOptions] = []
        self.streams = True
        self.watch_cache = False
        self.ends_initial_events = True
        self.silent = False
        self.slams = False
        self.body: bytes | None = None
        self.first_line: bytes | None = None
        self._name = kind
        self._versions = itertools.count(1)
        self._version = 0
        self._objects: dict[str, KubeObject] = {}
        self._raw: dict[str, bytes] = {}
        self._history: list[_Happened] = []
        self._compacted = 0
        self._faults: dict[str, list[Exception]] = {"list": [], "watch": []}
        self._pages: dict[str, tuple[Sequence[KubeObject], int]] = {}
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
        self._raw.pop(key, None)
        return self._record(EventType.DELETED, obj)

    def corrupt(self, key: str, raw: bytes) -> None:
        """From now on, lists have these bytes in the place of an object, until it is changed or deleted."""
        self._raw[key] = raw

    def replay(self, kind: EventType, obj: KubeObject) -> None:
        """Tell watches something of an object as it stands, without changing what is listed."""
        self._history.append(_Happened(self._version, _line(kind, obj)))
        self._wake()

    def tell(self, line: bytes) -> None:
        """Tell watches these bytes under a new version; a watch from an older one is told again."""
        self._version = next(self._versions)
        self._history.append(_Happened(self._version, line))
        self._wake()

    def fail_next(self, fault: Exception, *, verb: str = "watch", times: int = 1) -> None:
        """Answer the next `times` requests of a verb (`list` or `watch`) with a fault."""
        self._faults[verb] += [fault] * times

    def calm(self) -> None:
        """Behave from now on: no more faults, no silence, no odd answers. `streams` stays as it is."""
        for planned in self._faults.values():
            planned.clear()
        self.silent, self.slams, self.ends_initial_events = False, False, True
        self.body = self.first_line = None
        self._wake()

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
        if self.body is not None:
            return self.projection.page(self.body, known=known)
        items, version = self._listed(options)
        limit = options.limit
        if self.watch_cache and options.resource_version == "0":
            limit = None
        page, rest = items[:limit], items[limit:] if limit else []
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if rest:
            token = metadata["continue"] = f"{version}-{len(rest)}"
            self._pages[token] = (rest, version)
        raw = [msgspec.Raw(self._raw.get(_key(obj)) or msgspec.json.encode(obj)) for obj in page]
        body = msgspec.json.encode({"kind": f"{self._name}List", "metadata": metadata, "items": raw})
        return self.projection.page(body, known=known)

    async def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """Events from a version on; first of all an empty batch, which says that the watch is open."""
        self.requests.append(options)
        if self._faults["watch"]:
            raise self._faults["watch"].pop(0)
        decode = self.projection.event if known is None else partial(self.projection.event, known=known)
        watcher = _Watcher(self._begin(options), decode)
        anything = options.resource_version in (None, "", "0") and not self.silent
        begins_with_all = options.send_initial_events or anything
        # As of now: what changes from here on follows as an event, and is told once.
        initial = self._initial_events(options, decode) if begins_with_all else ()
        self._watchers.add(watcher)
        try:
            yield ()
            if self.first_line is not None:
                yield [decode(self.first_line)]
            if begins_with_all:
                yield initial
            while not watcher.cut:
                batch, fault = self._pending(watcher)
                if batch:
                    yield batch
                if fault is not None:
                    raise fault
                if batch:
                    continue
                if self.slams:
                    return
                watcher.changed.clear()
                await watcher.changed.wait()
            if watcher.fault is not None:
                raise watcher.fault
        finally:
            self._watchers.discard(watcher)

    def _listed(self, options: ListOptions) -> tuple[Sequence[KubeObject], int]:
        """The objects that a LIST goes through, and their version. Refuses what an API server refuses."""
        version, match = options.resource_version, options.resource_version_match
        if options.continue_token is not None:
            if version or match:
                raise InvalidRequest(400, "BadRequest", "a continue token has its version already")
            if options.continue_token not in self._pages:
                raise Expired(410, "Expired", "the continue token is too old")
            return self._pages[options.continue_token]
        if match and (not version or (match == "Exact" and version == "0")):
            raise InvalidRequest(422, "Invalid", f"resourceVersionMatch {match} is forbidden here")
        asked = self._reached(version)
        # A limit with a version and no match is a legacy form of Exact.
        exact = match == "Exact" or (match is None and bool(options.limit) and asked > 0)
        if not exact:
            return [*self._objects.values()], self._version
        if asked < self._compacted:
            raise Expired(410, "Expired", f"version {asked} was compacted ({self._compacted})")
        then: dict[str, KubeObject] = {}
        for event in self._history:
            if event.version <= asked and event.key:
                then.pop(event.key, None)
                if event.obj is not None:
                    then[event.key] = event.obj
        return [*then.values()], asked

    def _begin(self, options: WatchOptions) -> int:
        """The place in history from which a watch is told. Refuses what an API server refuses."""
        if options.send_initial_events:
            if not self.streams:
                raise InvalidRequest(422, "Invalid", "sendInitialEvents is forbidden")
            self._reached(options.resource_version)
            return len(self._history)
        if options.resource_version in (None, "", "0"):
            return len(self._history)
        version = _number(options.resource_version)
        if version < self._compacted:
            raise Expired(410, "Expired", f"too old resource version: {version} ({self._compacted})")
        behind = (place for place, event in enumerate(self._history) if event.version > version)
        return next(behind, len(self._history))

    def _reached(self, version: str | None) -> int:
        asked = _number(version)
        if asked > self._version:
            message = f"Too large resource version: {asked}, current: {self._version}"
            raise TooLargeResourceVersion(504, "Timeout", message, retry_after=1.0)
        return asked

    def _initial_events(
        self, options: WatchOptions, decode: Callable[[bytes], WatchEvent]
    ) -> Sequence[WatchEvent]:
        events = [
            decode(_line(EventType.ADDED, self._raw.get(key) or obj)) for key, obj in self._objects.items()
        ]
        if options.send_initial_events and self.ends_initial_events:
            events.append(WatchEvent(EventType.BOOKMARK, None, str(self._version), initial_events_end=True))
        return events

    def _pending(self, watcher: _Watcher) -> tuple[Sequence[WatchEvent], ApiError | None]:
        """What a watcher has not been told, and the fault at which it ends."""
        if self.silent:
            return [], None
        behind = self._history[watcher.position : watcher.position + _BATCH]
        watcher.position += len(behind)
        events: list[WatchEvent] = []
        try:
            for event in behind:
                events.append(watcher.decode(event.line))  # noqa: PERF401 - those before a fault are told
        except ApiError as fault:
            return events, fault
        if not behind and watcher.bookmark:
            watcher.bookmark = False
            events.append(WatchEvent(EventType.BOOKMARK, None, str(self._version)))
        return events, None

    def _change(self, kind: EventType, obj: KubeObject) -> KubeObject:
        stored = copy.deepcopy(obj)
        metadata = stored.setdefault("metadata", {})
        key = _key(stored)
        before = self._objects.get(key, {}).get("metadata", {})
        metadata.setdefault("uid", before.get("uid") or f"uid-{self._version + 1}")
        self._objects[key] = stored
        self._raw.pop(key, None)
        return self._record(kind, stored)

    def _record(self, kind: EventType, obj: KubeObject) -> KubeObject:
        self._version = next(self._versions)
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        key, gone = _key(stored), kind is EventType.DELETED
        if not gone:
            self._objects[key] = stored
        self._history.append(_Happened(self._version, _line(kind, stored), key, None if gone else stored))
        self._wake()
        return copy.deepcopy(stored)

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.changed.set()


def _key(obj: KubeObject) -> str:
    return key_of(obj["metadata"].get("namespace"), obj["metadata"]["name"])


def _line(kind: EventType, obj: KubeObject | bytes) -> bytes:
    raw = obj if isinstance(obj, bytes) else msgspec.json.encode(obj)
    return b'{"type":"%b","object":%b}\n' % (kind.value.encode(), raw)


def _number(version: str | None) -> int:
    if version and not version.isdecimal():
        raise InvalidRequest(400, "BadRequest", f"invalid resource version {version!r}")
    return int(version or 0)
