"""A source in memory, for tests of code that uses informers (client-go's FakeControllerSource).

`FakeHistory` keeps the objects and the events, in order. `FakeControllerSource` answers LIST and WATCH from
that history as an API server does: in pages, with bookmarks and initial events, decoded by a real projection.
Attributes and methods of the source make it misbehave; `calm` ends that.
"""

import asyncio
import copy
import itertools
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from declctl.decoding.projection import Known, Projection
from declctl.errors import ApiError, Expired, InvalidRequest, TooLargeResourceVersion, Unreachable
from declctl.informer.reflector.continuity import MOST_COMPARED
from declctl.informer.source import Progress, ServerMonitor, no_progress
from declctl.objects import EventType, KubeObject, ListOptions, ListPage, WatchEvent, WatchOptions, key_of
from declctl.objects.shards import fnv1a


class FakeEvent(msgspec.Struct, frozen=True):
    """One event of the history."""

    version: int
    line: bytes  # what a WATCH sends for it
    key: str = ""  # of the object that changed; empty if no listed object changed
    obj: KubeObject | None = None  # the new state; None if the object was deleted


class FakeHistory:
    """The objects and events of a fake server. Versions are integers that count up. Used on one loop.

    Requests that an API server refuses raise the same errors.
    """

    def __init__(self) -> None:
        self.version = 0  # the newest
        self.objects: dict[str, KubeObject] = {}  # the present state of each, by key
        self.events: list[FakeEvent] = []  # all of them, the oldest first
        self._versions = itertools.count(1)
        self._compacted = 0  # requests for older versions are expired
        self._pages: dict[
            str, tuple[Sequence[KubeObject], int]
        ] = {}  # by continue token: the rest, its version

    def advance(self) -> None:
        """Count the version up, as a change of another resource does."""
        self.version = next(self._versions)

    def compact(self) -> None:
        """Forget versions older than the present one, and all continue tokens."""
        self._compacted = self.version
        self._pages.clear()

    def save(self) -> "FakeHistory":
        """A copy of the present history, without continue tokens."""
        saved = FakeHistory()
        saved.version, saved._compacted = self.version, self._compacted
        saved.objects, saved.events = dict(self.objects), list(self.events)
        saved._versions = itertools.count(self.version + 1)
        return saved

    def changed(self, kind: EventType, obj: KubeObject) -> KubeObject:
        """Record a change of an object under a new version; returns the object as it is stored."""
        self.advance()
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        key, gone = key_in(stored), kind is EventType.DELETED
        if not gone:
            self.objects[key] = stored
        self.events.append(FakeEvent(self.version, line_of(kind, stored), key, None if gone else stored))
        return stored

    def add_line(self, line: bytes) -> None:
        """Record a line that watches receive, under the present version. No listed object changes."""
        self.events.append(FakeEvent(self.version, line))

    def listed(self, options: ListOptions) -> tuple[Sequence[KubeObject], int]:
        """The objects that a LIST returns, over all its pages, and their version.

        Raises InvalidRequest, Expired and TooLargeResourceVersion as an API server does.
        """
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
        """A continue token for the rest of a list at `version`."""
        token = f"{version}-{len(rest)}"
        self._pages[token] = (rest, version)
        return token

    def begin(self, options: WatchOptions) -> int:
        """The position in `events` of the first one that a watch receives.

        Raises InvalidRequest, Expired and TooLargeResourceVersion as an API server does.
        """
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
        """The objects as they were at a version; raises Expired for one that was compacted."""
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
        """The number of a version; raises TooLargeResourceVersion for one that has not come yet."""
        asked = number_in(version)
        if asked > self.version:
            message = f"Too large resource version: {asked}, current: {self.version}"
            raise TooLargeResourceVersion(504, "Timeout", message, retry_after=1.0)
        return asked


def key_in(obj: KubeObject) -> str:
    """The key of an object: `namespace/name`, or `name`."""
    return key_of(obj["metadata"].get("namespace"), obj["metadata"]["name"])


def line_of(kind: EventType, obj: KubeObject | bytes) -> bytes:
    """The line of a WATCH with this event; an object that is bytes is written as it is."""
    raw = obj if isinstance(obj, bytes) else msgspec.json.encode(obj)
    return b'{"type":"%b","object":%b}\n' % (kind.value.encode(), raw)


def number_in(version: str | None) -> int:
    """A version as a number, 0 for no version; raises InvalidRequest for a text that is no number."""
    if version and not version.isdecimal():
        raise InvalidRequest(400, "BadRequest", f"invalid resource version {version!r}")
    return int(version or 0)


_SHARD_RANGE = re.compile(r"shardRange\(object\.metadata\.uid, '(0x\w+)', '(0x\w+)'\)")
_BATCH = 256  # events that a watch yields together


@dataclass(eq=False)
class _Watcher:
    """One open watch."""

    position: int  # in the events of the history: the first one that the watch has not received
    after: int  # only events of later versions are sent; -1 for all
    decode: Callable[[bytes], WatchEvent]
    selects: Callable[[KubeObject], bool] | None  # of its shards; None for all objects
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set when the watch has to look again
    bookmark: bool = False  # a bookmark is to be sent
    cut: bool = False  # the watch is to end
    fault: Exception | None = None  # raised when it was cut; None for a normal end

    def receives(self, event: FakeEvent) -> bool:
        """Whether the object of an event is of the shards that were selected."""
        return (
            self.selects is None or not event.key or self.selects(msgspec.json.decode(event.line)["object"])
        )


class FakeControllerSource:
    """A source of objects of one kind, which a test changes (client-go's FakeControllerSource).

    Used on one loop. `api_version` and `kind` are those of the objects. `projection` decodes; by default it
    has no paths and no transform.

    Versions are integers that count up. A LIST may ask for any version ("0"), for the newest (no version),
    for a version that is not older than another, or for exactly one version. A version that has not come yet
    is too large, a version that was compacted is expired. Of selectors only `metadata.name` is used.

    Attributes that a test reads or sets at any time:

    - `requests`: the options of every LIST and WATCH, in order.
    - `streams`: whether the server has streaming lists.
    - `filters_shards`: whether the server filters by a shard selector of uids, as with ShardedListAndWatch;
      one that does not ignores it.
    - `watch_cache`: lists at any version ignore their limit.
    - `has_selector`, `health`: what the source says of itself, and the monitor of its server.
    - `ends_initial_events`: False withholds the bookmark that ends a streaming list.
    - `silent`: watches receive nothing but the initial events of a streaming list.
    - `slams`: every watch ends when it has sent all events that there are.
    - `body`: the answer to every LIST, in the place of the objects.
    - `first_line`: a line with which every watch begins.
    """

    def __init__(
        self, *, api_version: str = "v1", kind: str = "Pod", projection: Projection | None = None
    ) -> None:
        self.projection = projection or Projection(api_version=api_version, kind=kind)
        self.requests: list[ListOptions | WatchOptions] = []
        self.health: ServerMonitor | None = None
        self.has_selector = False
        self.streams = True
        self.filters_shards = False
        self.watch_cache = False
        self.ends_initial_events = True
        self.silent = False
        self.slams = False
        self.body: bytes | None = None
        self.first_line: bytes | None = None
        self._name = kind
        self._raw: dict[str, bytes] = {}  # by key: bytes that lists have in the place of the object
        self._history = FakeHistory()
        self._faults: dict[str, list[Exception]] = {"list": [], "watch": []}  # of the next requests, by verb
        self._watchers: set[_Watcher] = set()  # the open ones

    @property
    def description(self) -> str:
        """The kind."""
        return self._name

    @property
    def objects(self) -> dict[str, KubeObject]:
        """A deep copy of the present objects, by key."""
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
        """The options of every LIST so far, except those of `checks`."""
        return [r for r in self.requests if isinstance(r, ListOptions) and not _is_check(r)]

    def checks(self) -> Sequence[ListOptions]:
        """The options of every LIST by which a reflector checked the history of the server."""
        return [r for r in self.requests if isinstance(r, ListOptions) and _is_check(r)]

    def watches(self) -> Sequence[WatchOptions]:
        """The options of every WATCH so far."""
        return [request for request in self.requests if isinstance(request, WatchOptions)]

    def add(self, obj: KubeObject) -> KubeObject:
        """Create an object; returns it as it is stored.

        The object gets a new version, and a uid if it has none.
        """
        return self._change(EventType.ADDED, obj)

    def modify(self, obj: KubeObject) -> KubeObject:
        """Change an object; returns it as it is stored. It keeps its uid unless `obj` has another one."""
        return self._change(EventType.MODIFIED, obj)

    def delete(self, key: str) -> KubeObject:
        """Delete an object; returns its final state. Raises KeyError for a key without an object."""
        obj = self._history.objects.pop(key)
        self._raw.pop(key, None)
        return self._record(EventType.DELETED, obj)

    def corrupt(self, key: str, raw: bytes) -> None:
        """List these bytes in the place of an object, until the object is changed or deleted."""
        self._raw[key] = raw

    def replay(self, kind: EventType, obj: KubeObject) -> None:
        """Send an event to the watches without a new version. The listed objects stay the same."""
        self._history.add_line(line_of(kind, obj))
        self._wake()

    def tell(self, line: bytes) -> None:
        """Send a line to the watches under a new version. The listed objects stay the same.

        A later watch from an older version receives the line, too.
        """
        self._history.advance()
        self._history.add_line(line)
        self._wake()

    def fail_next(self, fault: Exception, *, verb: str = "watch", times: int = 1) -> None:
        """Raise `fault` for the next `times` requests of a verb, `list` or `watch`."""
        self._faults[verb] += [fault] * times

    def calm(self) -> None:
        """End all misbehaviour; `streams` and `watch_cache` stay as they are."""
        for planned in self._faults.values():
            planned.clear()
        self.silent, self.slams, self.ends_initial_events = False, False, True
        self.body = self.first_line = None
        self._wake()

    def cut(self, fault: Exception | None = None) -> None:
        """End every open watch: with a fault, or without one as a server does after some minutes."""
        for watcher in self._watchers:
            watcher.cut, watcher.fault = True, fault
        self._wake()

    def compact(self) -> None:
        """Forget older versions: a LIST or WATCH at one of them raises Expired."""
        self._history.compact()

    def save(self) -> FakeHistory:
        """A backup of the objects and events, for `restore`."""
        return self._history.save()

    def restore(self, backup: FakeHistory) -> None:
        """Replace objects and events by a backup, and end every open watch with Unreachable.

        Versions after that of the backup are used a second time, as after a restore of etcd.
        """
        self.cut(Unreachable("the server was stopped"))
        for watcher in self._watchers:
            watcher.position = len(self._history.events)
        self._history = backup.save()

    def bookmark(self) -> None:
        """Send every open watch a bookmark with the newest version."""
        for watcher in self._watchers:
            watcher.bookmark = True
        self._wake()

    def advance(self) -> None:
        """Count the version up, as a change of another resource does."""
        self._history.advance()

    async def list(
        self,
        options: ListOptions,
        *,
        known: Known,
        progress: Progress = no_progress,  # noqa: ARG002 - its answers come at once
    ) -> ListPage:
        """One page of a LIST. A continue token goes on at the version of the first page, until `compact`."""
        self.requests.append(options)
        if self._faults["list"]:
            raise self._faults["list"].pop(0)
        if self.body is not None:
            return self.projection.page(self.body, known=known)
        items, version = self._history.listed(options)
        name = options.field_selector.partition("metadata.name=")[2]
        items = [obj for obj in items if name in ("", obj["metadata"]["name"])]
        selects = self._shard_filter(options)
        if selects is not None:
            items = [obj for obj in items if selects(obj)]
        limit = options.limit
        # A watch cache answers a list at any version as a whole.
        if self.watch_cache and options.resource_version == "0":
            limit = None
        page, rest = items[:limit], items[limit:] if limit else []
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if selects is not None:
            metadata["shardInfo"] = {"selector": options.shard_selector}
        if rest:
            metadata["continue"] = self._history.put_off(rest, version)
        raw = [msgspec.Raw(self._raw.get(key_in(obj)) or msgspec.json.encode(obj)) for obj in page]
        body = msgspec.json.encode({"kind": f"{self._name}List", "metadata": metadata, "items": raw})
        return self.projection.page(body, known=known)

    async def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """Events after a version, in batches. The first batch is empty: the watch is open."""
        self.requests.append(options)
        if self._faults["watch"]:
            raise self._faults["watch"].pop(0)
        decode = self.projection.event if known is None else partial(self.projection.event, known=known)
        if options.send_initial_events and not self.streams:
            raise InvalidRequest(422, "Invalid", "sendInitialEvents is forbidden")
        asked = number_in(options.resource_version)
        # A version that has not come yet: the watch waits for it, and begins after it.
        after = asked if asked > self._history.version else -1
        watcher = _Watcher(self._history.begin(options), after, decode, self._shard_filter(options))
        anything = options.resource_version in (None, "", "0") and not self.silent
        begins_with_all = options.send_initial_events or anything
        # Built before the first yield: changes from here on are events of their own, and are sent once.
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
        selects = self._shard_filter(options)
        events = [
            decode(line_of(EventType.ADDED, self._raw.get(key) or obj))
            for key, obj in self._history.objects.items()
            if selects is None or selects(obj)
        ]
        if options.send_initial_events and self.ends_initial_events:
            events.append(
                WatchEvent(EventType.BOOKMARK, None, str(self._history.version), initial_events_end=True)
            )
        return events

    def _pending(self, watcher: _Watcher) -> tuple[Sequence[WatchEvent], ApiError | None]:
        """The next events of a watch, and the fault of the line after them, if there is one."""
        if self.silent:
            return [], None
        behind = self._history.events[watcher.position : watcher.position + _BATCH]
        watcher.position += len(behind)
        events: list[WatchEvent] = []
        try:
            for event in behind:
                # A watch from a version that had not come yet receives only later versions.
                if event.version > watcher.after and watcher.receives(event):
                    events.append(watcher.decode(event.line))  # noqa: PERF401 - those before a fault are sent
        except ApiError as fault:
            return events, fault
        if not behind and watcher.bookmark:
            watcher.bookmark = False
            events.append(WatchEvent(EventType.BOOKMARK, None, str(self._history.version)))
        return events, None

    def _shard_filter(self, options: ListOptions | WatchOptions) -> Callable[[KubeObject], bool] | None:
        ranges = [
            (int(begin, 16), int(end, 16)) for begin, end in _SHARD_RANGE.findall(options.shard_selector)
        ]
        if not ranges or not self.filters_shards:
            return None
        return lambda obj: any(begin <= fnv1a(obj["metadata"]["uid"]) < end for begin, end in ranges)

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
    """Whether a LIST is the check of `continuity`: of a few objects at one version, or of one by its name."""
    few = (
        options.resource_version_match == "Exact"
        and options.limit is not None
        and options.limit <= MOST_COMPARED + 1
    )
    return few or (options.limit == 1 and "metadata.name=" in options.field_selector)
