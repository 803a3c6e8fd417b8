"""Sources: LIST and WATCH of one resource, from bytes to lines and from lines to events.

A WATCH has one JSON document on each line. A read of the socket returns any part of any number of lines. A
source decides nothing about versions, back-off or fallbacks; the reflector does.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from declctl.decoding.envelopes import ItemCutter
from declctl.decoding.projection import Known, Projection, nothing_known
from declctl.errors import InvalidRequest, MalformedAnswer, NotFound, ServerError
from declctl.objects import (
    GroupVersionKind,
    ListOptions,
    ListPage,
    Resource,
    WatchEvent,
    WatchOptions,
    answers,
)
from declctl.transport.health import ServerHealth
from declctl.transport.messages import ApiRequest, Channel, Sink, Wire

_NEWLINE = ord("\n")
_UNAVAILABLE = 503
MOST_EVENTS = 256  # decoded together, until other tasks of the loop may run
_WHOLE = "application/json"
# Without an alternative, because a server would answer with whole objects.
_LISTED = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_WATCHED = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_MUCH = 4 * 1024 * 1024  # bytes of a LIST whose decoding would block the loop for too long
_EVERYTHING = ListOptions()


class LineSplitter:
    """A sink that splits the body of a WATCH into lines, without newlines and without empty lines.

    The lines do not depend on the sizes of the parts. A line that comes as one part, as API servers write it,
    is copied once. `longest` is the limit of a line in bytes. Used by one thread.
    """

    def __init__(self, *, longest: int = answers.OBJECT_BYTES) -> None:
        self._longest = longest
        self._lines: list[bytes] = []  # complete, and not taken yet
        # The beginning of the incomplete line. One buffer, and no list of parts, because a server that sends
        # single bytes would make each of them an object of fifty bytes.
        self._held = bytearray()

    def feed(self, part: memoryview) -> None:
        """Append the next bytes; raises MalformedAnswer for a line that is too long."""
        # The common case, a part that is one whole line, is copied here and not in `_cut`.
        if self._held or part[-1] != _NEWLINE:
            self._cut(bytes(part))
            return
        line = bytes(part[:-1])
        if _NEWLINE in line or len(line) > self._longest:
            self._cut(bytes(part))
        elif line:
            self._lines.append(line)

    def take(self) -> list[bytes]:
        """The lines that were completed since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """Note the end of the body; raises MalformedAnswer if it is within a line."""
        if self._held:
            raise MalformedAnswer(
                f"a WATCH ended in the middle of a line of {len(self._held)} bytes or more: "
                f"{bytes(self._held[:120])!r}"
            )

    def _cut(self, part: bytes) -> None:
        begin = 0
        while (end := part.find(b"\n", begin)) >= 0:  # bytes.split is a tenth as fast
            line = part[begin:end]
            if self._held:
                self._hold(line)
                line, self._held = bytes(self._held), bytearray()
            elif len(line) > self._longest:
                raise self._too_long()
            if line:
                self._lines.append(line)
            begin = end + 1
        if begin < len(part):
            self._hold(part[begin:])

    def _hold(self, piece: bytes) -> None:
        self._held += piece
        if len(self._held) > self._longest:
            raise self._too_long()

    def _too_long(self) -> MalformedAnswer:
        return MalformedAnswer(
            f"a line of a WATCH is longer than {answers.in_mebibytes(self._longest)}, which no object of an "
            "API server is; the watch is given up. Make the object smaller, or leave it out by a selector"
        )


class SourceClient(Protocol):
    """The methods of a client that a source needs."""

    async def discover(self, gvk: GroupVersionKind) -> Resource:
        """The resource of a kind."""
        ...

    def forget(self, gvk: GroupVersionKind) -> None:
        """Discover the kind anew next time."""
        ...

    @property
    def wire(self) -> Wire:
        """The connections to the server."""
        ...

    @property
    def health(self) -> ServerHealth:
        """Whether the server can be reached."""
        ...


class ResourceSource:
    """LIST and WATCH of one resource, or of its objects in a namespace or behind selectors, a `Source`.

    The resource is discovered at the first use, and again after a 404, so that the source follows a CRD that
    is created, deleted or replaced. `metadata_only` requests PartialObjectMetadata; a server that does not
    have them refuses the request (InvalidRequest). Used on one loop.
    """

    def __init__(
        self,
        client: SourceClient,
        gvk: GroupVersionKind,
        *,
        namespace: str | None,
        label_selector: str,
        field_selector: str,
        metadata_only: bool = False,
        projection: Projection,
    ) -> None:
        self._client = client
        self._gvk = gvk
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._metadata_only = metadata_only
        self.projection = projection
        # Runs functions that decode in another thread (`SupportsDecodeRunner`); None where the loop decodes.
        self.decode_runner: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
        self._name = str(gvk)

    @property
    def description(self) -> str:
        """A name for logs, such as `pods in team-a`; before the discovery it has the kind."""
        scope = f" in {self._namespace}" if self._namespace else ""
        selectors = (self._label_selector, self._field_selector)
        selected = "".join(f" with {text}" for text in selectors if text)
        return f"{self._name}{scope}{selected}"

    @property
    def health(self) -> ServerHealth:
        """The monitor of the server, which all sources of a client share."""
        return self._client.health

    @property
    def has_selector(self) -> bool:
        """Whether it selects objects by labels or fields."""
        return bool(self._label_selector or self._field_selector)

    async def namespaced(self) -> bool:
        """Whether the objects have namespaces. Raises the ApiError family."""
        return (await self._client.discover(self._gvk)).namespaced

    async def list(
        self,
        options: ListOptions = _EVERYTHING,
        *,
        known: Known | None = None,
        progress: Callable[[], object] = lambda: None,
    ) -> ListPage:
        """One page of a LIST, by default all objects. Raises the ApiError family.

        `known` returns the cached record of a key, which is used again for an unchanged object. `progress` is
        called for each part of the answer.
        """
        path = await self._path("list", options.namespace)
        cutter = ItemCutter(self.projection.items(known=known or nothing_known))
        decode_runner = self.decode_runner
        parts = None if decode_runner is None else _PartBuffer(cutter)
        channel = await self._opened(
            ApiRequest(
                "LIST",
                path,
                params=self._selected(options) | _list_params(options),
                accept=_LISTED if self._metadata_only else _WHOLE,
            ),
            parts or cutter,
        )
        try:
            while await channel.read():
                progress()
                # Items are read while the answer arrives, so that its body is never in memory as a whole.
                if decode_runner is None or parts is None:
                    cutter.cut()
                else:
                    await decode_runner(parts.take())
        finally:
            channel.close()
        if decode_runner is not None:
            return await decode_runner(cutter.page)
        # A list of another format is decoded as a whole here. A long one would block the loop.
        if cutter.held > _MUCH:
            return await asyncio.to_thread(cutter.page)
        return cutter.page()

    async def watch(
        self, options: WatchOptions, *, known: Known | None = None
    ) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """Events in batches until the server ends the watch. The first batch is empty: the watch is open.

        `known` is for streaming lists, as in `list`. Raises the ApiError family, after the events before the
        fault. The caller has to close the generator (`contextlib.aclosing`), which closes the connection.
        """
        path = await self._path("watch")
        lines = LineSplitter()
        channel = await self._opened(
            ApiRequest(
                "WATCH",
                path,
                params=self._selected(options) | _watch_params(options),
                accept=_WATCHED if self._metadata_only else _WHOLE,
                watch_seconds=options.timeout_seconds,
            ),
            lines,
        )
        try:
            yield ()  # the watch is open, although no event may come for a long time
            while await channel.read():
                for batch in _batches(lines.take()):
                    if self.decode_runner is None:
                        events, fault = self.projection.events(batch, known=known or nothing_known)
                    else:
                        read = partial(self.projection.events, batch, known=known or nothing_known)
                        events, fault = await self.decode_runner(read)
                    # An ERROR event, such as a 410, comes after the last event.
                    if events:
                        yield events
                    if fault is not None:
                        raise fault
                    # Many events at once must not block the loop.
                    if len(batch) == MOST_EVENTS:
                        await asyncio.sleep(0)
            lines.close()
        finally:
            channel.close()

    async def _opened(self, request: ApiRequest, sink: Sink) -> Channel:
        try:
            return await self._client.wire.open(request, sink)
        except (NotFound, ServerError) as fault:
            # The CRD may have been deleted, or may serve another version now. After a 503, the discovery
            # says whether the API service of the group is away.
            if isinstance(fault, NotFound) or (fault.code == _UNAVAILABLE and self._gvk.group):
                self._client.forget(self._gvk)
            raise

    def _selected(self, options: ListOptions | WatchOptions) -> dict[str, str]:
        """The parameters for the selectors of the source and of the options; objects have to match both."""
        params: dict[str, str] = {}
        for name, own, asked in (
            ("labelSelector", self._label_selector, options.label_selector),
            ("fieldSelector", self._field_selector, options.field_selector),
        ):
            if text := ",".join(filter(None, (own, asked))):
                params[name] = text
        if options.shard_selector:
            params["shardSelector"] = options.shard_selector
        return params

    async def _path(self, verb: str, namespace: str | None = None) -> str:
        resource = await self._client.discover(self._gvk)
        self._name = str(resource)
        if verb not in resource.verbs:
            raise InvalidRequest(
                405, "MethodNotAllowed", f"the server does not let anybody {verb} {resource}"
            )
        return resource.path(self._namespace or namespace)


class _PartBuffer:
    """A sink that collects parts of a LIST while a thread decodes the earlier parts."""

    def __init__(self, cutter: ItemCutter) -> None:
        self._cutter = cutter
        self._parts: list[bytes] = []

    def feed(self, part: memoryview) -> None:
        """Append the next bytes of the body."""
        self._parts.append(bytes(part))

    def take(self) -> Callable[[], None]:
        """A function for the decoding thread, which passes the present parts to the cutter."""
        parts, self._parts = self._parts, []

        def cut() -> None:
            for part in parts:
                self._cutter.feed(memoryview(part))
            self._cutter.cut()

        return cut


def _batches(lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    if len(lines) <= MOST_EVENTS:
        yield lines
        return
    for start in range(0, len(lines), MOST_EVENTS):
        yield lines[start : start + MOST_EVENTS]


def _list_params(options: ListOptions) -> dict[str, str]:
    params: dict[str, str] = {}
    if options.limit:
        params["limit"] = str(options.limit)
    if options.continue_token:
        # The token contains the version, and a server refuses both together (client-go 215).
        params["continue"] = options.continue_token
        return params
    if options.resource_version is not None:
        params["resourceVersion"] = options.resource_version
    if options.resource_version_match:
        params["resourceVersionMatch"] = options.resource_version_match
    return params


def _watch_params(options: WatchOptions) -> dict[str, str]:
    params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(options.timeout_seconds)}
    if options.resource_version is not None:
        params["resourceVersion"] = options.resource_version
    if options.send_initial_events:
        params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    return params
