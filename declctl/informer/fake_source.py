"""A source in memory: for tests of what is built on the line (client-go's FakeControllerSource).

It keeps objects, what happened to them, in which order and how far back. It lists in pages and watches with
bookmarks and initial events as an API server does, through a real projection; and it misbehaves when it is
told to, until it is told to be `calm`.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from declctl.decoding.projection import Known, Projection
from declctl.errors import ApiError, Expired, InvalidRequest, TooLargeResourceVersion, Unreachable
from declctl.informer.reflector.continuity import FEW
from declctl.informer.source import Progress, ServerMonitor, no_progress
from declctl.objects import EventType, KubeObject, ListOptions, ListPage, WatchEvent, WatchOptions, key_of


@dataclass(frozen=True, slots=True)
class Happened:
    """A version, the line that watches are told of it, and what it makes of which object."""

    version: int
    line: bytes
    key: str = ""
    obj: KubeObject | None = None


class FakeHistory:
    """Objects under versions that count up. It refuses what an API server refuses."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, KubeObject] = {}
        self.events: list[Happened] = []
        self._versions = itertools.count(1)
        self._compacted = 0
        self._pages: dict[str, tuple[Sequence[KubeObject], int]] = {}

    def advance(self) -> None:
        """Something happened elsewhere: versions go on."""
        self.version = next(self._versions)

    def compact(self) -> None:
        """Forget what happened until now."""
        self._compacted = self.version
        self._pages.clear()

    def save(self) -> "FakeHistory":
        """A copy of what there is now."""
        saved = FakeHistory()
        saved.version, saved._compacted = self.version, self._compacted
        saved.objects, saved.events = dict(self.objects), list(self.events)
        saved._versions = itertools.count(self.version + 1)
        return saved

    def changed(self, kind: EventType, obj: KubeObject) -> KubeObject:
        """Give an object its version and remember it; returns it as it is stored."""
        self.advance()
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        key, gone = key_in(stored), kind is EventType.DELETED
        if not gone:
            self.objects[key] = stored
        self.events.append(Happened(self.version, line_of(kind, stored), key, None if gone else stored))
        return stored

    def told(self, line: bytes) -> None:
        """Remember bytes that watches are told."""
        self.events.append(Happened(self.version, line))

    def listed(self, options: ListOptions) -> tuple[Sequence[KubeObject], int]:
        """The objects that a LIST goes through, and their version."""
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
        return self._exactly(asked) if exact else ([*self.objects.values()], self.version)

    def put_off(self, rest: Sequence[KubeObject], version: int) -> str:
        """A continue token for what is left of a list."""
        token = f"{version}-{len(rest)}"
        self._pages[token] = (rest, version)
        return token

    def begin(self, options: WatchOptions) -> int:
        """The place among the events from which a watch is told."""
        if options.send_initial_events:
            self._reached(options.resource_version)
        if options.send_initial_events or options.resource_version in (None, "", "0"):
            return len(self.events)
        version = number_in(options.resource_version)
        if version < self._compacted:
            raise Expired(410, "Expired", f"too old resource version: {version} ({self._compacted})")
        behind = (place for place, event in enumerate(self.events) if event.version > version)
        return next(behind, len(self.events))

    def _exactly(self, version: int) -> tuple[Sequence[KubeObject], int]:
        if version < self._compacted:
            raise Expired(410, "Expired", f"version {version} was compacted ({self._compacted})")
        then: dict[str, KubeObject] = {}
        for event in self.events:
            if event.version <= version and event.key:
                then.pop(event.key, None)
                if event.obj is not None:
                    then[event.key] = event.obj
        return [*then.values()], version

    def _reached(self, version: str | None) -> int:
        asked = number_in(version)
        if asked > self.version:
            message = f"Too large resource version: {asked}, current: {self.version}"
            raise TooLargeResourceVersion(504, "Timeout", message, retry_after=1.0)
        return asked


def key_in(obj: KubeObject) -> str:
    """The key of an object."""
    return key_of(obj["metadata"].get("namespace"), obj["metadata"]["name"])


def line_of(kind: EventType, obj: KubeObject | bytes) -> bytes:
    """A line of a WATCH."""
    raw = obj if isinstance(obj, bytes) else msgspec.json.encode(obj)
    return b'{"type":"%b","object":%b}\n' % (kind.value.encode(), raw)


def number_in(version: str | None) -> int:
    """A version as a number; raises InvalidRequest for what is none."""
    if version and not version.isdecimal():
        raise InvalidRequest(400, "BadRequest", f"invalid resource version {version!r}")
    return int(version or 0)


_BATCH = 256


@dataclass(eq=False)
class _Watcher:
    """One open watch: how far it has been told, and how it shall end."""

    position: int
    after: int
    decode: Callable[[bytes], WatchEvent]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    bookmark: bool = False
    cut: bool = False
    fault: Exception | None = None


class FakeControllerSource:
    """Objects of one kind, which a test changes and a reflector lists and watches. Used on one loop.

    Versions are integers that count up. A LIST is at any version ("0"), at the newest (none), none
    older than one, or exactly at one; one that has not come yet is too large, one that was
    compacted is expired. Of selectors only `metadata.name` is looked at.

    `requests` has the options of every LIST and WATCH in order. `streams` says whether it does
    streaming lists, `watch_cache` whether lists at any version ignore their limit. How it
    misbehaves: `ends_initial_events` False withholds the word that a streaming list is complete;
    `silent` watches are told nothing but what a streaming list begins with; `body` is the answer to
    every LIST; every watch begins with `first_line`; `slams` ends every watch as soon as it has
    told what it knows. `health` is what it says of its server; None for nothing. `has_selector` is what
    it says of itself.
    """

    def __init__(
        self, *, api_version: str = "v1", kind: str = "Pod", projection: Projection | None = None
    ) -> None:
        self.projection = projection or Projection(api_version=api_version, kind=kind)
        self.requests: list[ListOptions | WatchOptions] = []
        self.health: ServerMonitor | None = None
        self.has_selector = False
        self.streams = True
        self.watch_cache = False
        self.ends_initial_events = True
        self.silent = False
        self.slams = False
        self.body: bytes | None = None
        self.first_line: bytes | None = None
        self._name = kind
        self._raw: dict[str, bytes] = {}
        self._history = FakeHistory()
        self._faults: dict[str, list[Exception]] = {"list": [], "watch": []}
        self._watchers: set[_Watcher] = set()

    @property
    def description(self) -> str:
        """The kind."""
        return self._name

    @property
    def objects(self) -> dict[str, KubeObject]:
        """A copy of every object by key."""
        return copy.deepcopy(self._history.objects)

    @property
    def resource_version(self) -> str:
        """The newest version."""
        return str(self._history.version)

    @property
    def open_watches(self) -> int:
        """How many watches are open."""
        return len(self._watchers)

    def lists(self) -> Sequence[ListOptions]:
        """The options of every LIST but `checks`."""
        return [r for r in self.requests if isinstance(r, ListOptions) and not _is_check(r)]

    def checks(self) -> Sequence[ListOptions]:
        """The options of every LIST that only proves which history the server has."""
        return [r for r in self.requests if isinstance(r, ListOptions) and _is_check(r)]

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
        obj = self._history.objects.pop(key)
        self._raw.pop(key, None)
        return self._record(EventType.DELETED, obj)

    def corrupt(self, key: str, raw: bytes) -> None:
        """From now on, lists have these bytes in the place of an object, until it is changed or deleted."""
        self._raw[key] = raw

    def replay(self, kind: EventType, obj: KubeObject) -> None:
        """Tell watches something of an object as it stands, without changing what is listed."""
        self._history.told(line_of(kind, obj))
        self._wake()

    def tell(self, line: bytes) -> None:
        """Tell watches these bytes under a new version; a watch from an older one is told again."""
        self._history.advance()
        self._history.told(line)
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
        self._history.compact()

    def save(self) -> FakeHistory:
        """A backup of everything, to be put back by `restore`."""
        return self._history.save()

    def restore(self, backup: FakeHistory) -> None:
        """Put everything back to a backup: versions are given again. Open watches are cut."""
        self.cut(Unreachable("the server was stopped"))
        for watcher in self._watchers:
            watcher.position = len(self._history.events)
        self._history = backup.save()

    def bookmark(self) -> None:
        """Tell every open watch the newest version."""
        for watcher in self._watchers:
            watcher.bookmark = True
        self._wake()

    def advance(self) -> None:
        """Another object somewhere else was changed: versions go on."""
        self._history.advance()

    async def list(
        self,
        options: ListOptions,
        *,
        known: Known,
        progress: Progress = no_progress,  # noqa: ARG002 - its answers come at once
    ) -> ListPage:
        """One page; as long as nothing was compacted, its continue token goes on from the same moment."""
        self.requests.append(options)
        if self._faults["list"]:
            raise self._faults["list"].pop(0)
        if self.body is not None:
            return self.projection.page(self.body, known=known)
        items, version = self._history.listed(options)
        name = options.field_selector.partition("metadata.name=")[2]
        items = [obj for obj in items if name in ("", obj["metadata"]["name"])]
        limit = options.limit
        if self.watch_cache and options.resource_version == "0":
            limit = None
        page, rest = items[:limit], items[limit:] if limit else []
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = self._history.put_off(rest, version)
        raw = [msgspec.Raw(self._raw.get(key_in(obj)) or msgspec.json.encode(obj)) for obj in page]
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
        if options.send_initial_events and not self.streams:
            raise InvalidRequest(422, "Invalid", "sendInitialEvents is forbidden")
        asked = number_in(options.resource_version)
        after = asked if asked > self._history.version else -1
        watcher = _Watcher(self._history.begin(options), after, decode)
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

    def _initial_events(
        self, options: WatchOptions, decode: Callable[[bytes], WatchEvent]
    ) -> Sequence[WatchEvent]:
        events = [
            decode(line_of(EventType.ADDED, self._raw.get(key) or obj))
            for key, obj in self._history.objects.items()
        ]
        if options.send_initial_events and self.ends_initial_events:
            events.append(
                WatchEvent(EventType.BOOKMARK, None, str(self._history.version), initial_events_end=True)
            )
        return events

    def _pending(self, watcher: _Watcher) -> tuple[Sequence[WatchEvent], ApiError | None]:
        """What a watcher has not been told, and the fault at which it ends."""
        if self.silent:
            return [], None
        behind = self._history.events[watcher.position : watcher.position + _BATCH]
        watcher.position += len(behind)
        events: list[WatchEvent] = []
        try:
            for event in behind:
                # A watch from a version that was not reached yet is told what comes after it.
                if event.version > watcher.after:
                    events.append(watcher.decode(event.line))  # noqa: PERF401 - those before a fault are told
        except ApiError as fault:
            return events, fault
        if not behind and watcher.bookmark:
            watcher.bookmark = False
            events.append(WatchEvent(EventType.BOOKMARK, None, str(self._history.version)))
        return events, None

    def _change(self, kind: EventType, obj: KubeObject) -> KubeObject:
        stored = copy.deepcopy(obj)
        metadata = stored.setdefault("metadata", {})
        key = key_in(stored)
        before = self._history.objects.get(key, {}).get("metadata", {})
        metadata.setdefault("uid", before.get("uid") or f"uid-{self._history.version + 1}")
        self._history.objects[key] = stored
        self._raw.pop(key, None)
        return self._record(kind, stored)

    def _record(self, kind: EventType, obj: KubeObject) -> KubeObject:
        stored = self._history.changed(kind, obj)
        self._wake()
        return copy.deepcopy(stored)

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.changed.set()


def _is_check(options: ListOptions) -> bool:
    few = options.resource_version_match == "Exact" and options.limit is not None and options.limit <= FEW + 1
    return few or (options.limit == 1 and "metadata.name=" in options.field_selector)
