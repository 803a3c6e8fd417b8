"""The HTTP side: from requests to the store and back.

The rules for objects are in `writer` and `remover`. This module reads requests, records them in the ledger,
and writes answers. Each refusal is a Status document with its HTTP code, as clients expect it.
"""

import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import HttpVersion11, web

from declctl.kit import Clock
from declctl.kit.hosts import is_literal, is_same_origin, parse_authority
from declctl.objects import KubeObject
from declctl.sandbox import faults as ordered
from declctl.sandbox import patches, requests, status, validation
from declctl.sandbox.discovery import static_answer
from declctl.sandbox.faults import Faults, Ledger, LedgerEntry
from declctl.sandbox.history import Stored
from declctl.sandbox.lists import ListQuery, list_page, read_options, truth
from declctl.sandbox.patches import Patch
from declctl.sandbox.remover import Target
from declctl.sandbox.requests import AnyForm, Plain, RequestInfo, negotiate, resolve
from declctl.sandbox.status import Refusal
from declctl.sandbox.store import ObjectStore
from declctl.sandbox.watches import Hub, Subscription, Watcher, WatchStream, error_line

_LARGEST_BODY: Final = 64 << 20
_SHORTEST_WATCH: Final = 1800.0  # seconds; kube-apiserver's --min-request-timeout
_BUFFERED: Final = 2048  # bytes; what is longer has no Content-Length
_TRICKLED: Final = 8  # parts
_PACKED: Final = 128 * 1024  # bytes; what is longer is compressed for those who take it

Intercept = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Answers a request in the place of the server, or leaves it to the server (None)."""


class Api:
    """The aiohttp application of one sandbox. `outage` stops it listening for some seconds.

    `host` is the name or address that it listens on; the sandbox sets it at each start.
    """

    def __init__(
        self,
        store: ObjectStore,
        hub: Hub,
        *,
        faults: Faults,
        ledger: Ledger,
        clock: Clock,
        outage: Callable[[float], None],
        shard_selectors: bool,
    ) -> None:
        self.host = ""
        self.begun = self.ended = 0  # requests so far
        self._store = store  # the objects; all writes go through its writer and remover
        self._hub = hub  # the open watches; `_watch` opens and closes them
        self._faults = faults  # asked once for each request about a resource
        self._ledger = ledger  # gets each request about a resource, refused ones included
        self._clock = clock
        self._outage = outage
        self._shard_selectors = shard_selectors  # whether they are served, or ignored
        self.intercept: Intercept | None = None  # asked first, for each request
        # TCP connections that have asked for something, numbered from 1 for the ledger.
        self._connections: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._next_connection = itertools.count(1)
        self._verbs = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def application(self) -> web.Application:
        """A new application; one for each time that the server starts to listen."""
        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", self.handle)
        return application

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.begun += 1
        try:
            return await self._answer(request)
        except Refusal as refusal:
            return _refused(refusal)
        finally:
            self.ended += 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self._check_sender(request)
        if self.intercept is not None and (instead := await self.intercept(request)) is not None:
            return instead
        # Raw: an escaped slash in a name must not become a separator.
        path, params = request.rel_url.raw_path, dict(request.query)
        if path.startswith("/sandbox/"):
            return await self._control(request, path, params)
        registry = self._store.registry
        # Before the ledger and the faults: discovery and health are not about a resource.
        found = static_answer(request.method, path, registry)
        if found is not None:
            return web.Response(body=found.body, headers={"Content-Type": found.media_type})
        call = resolve(request.method, path, params, registry)
        if call is None:
            return web.Response(text="404 page not found\n", status=404)
        if call.kind.is_review:
            body = await request.read()
            return _json(requests.review(_media_type(request), body, self._faults), code=201)
        self._record(request, call)
        # Recorded first: a test counts the requests that a fault refuses, too.
        fault = self._faults.meet(call.verb, call.resource, call.namespace)
        if fault.wait:
            await self._clock.sleep(fault.wait)
        if fault.refusal is not None:
            raise fault.refusal
        # Built-in kinds have no schema: a field of a wrong type shows itself deep in the rules of its kind.
        try:
            with validation.readable(call.kind.kind):
                answer = await self._verbs[call.verb](request, call)
        except Refusal as refusal:
            answer = _refused(refusal)
        if fault.lost and request.transport is not None:
            request.transport.abort()
        # The headers of a watch have gone when it ends.
        if not answer.prepared:
            _warn(answer, [call.kind.deprecation, *call.warnings])
        return answer

    def _check_sender(self, request: web.Request) -> None:
        """Refuse what a web page sends: under a name of its own that points here, or from another host.

        There is no authentication: every client may do everything. The port may be that of a forward.
        """
        given = request.headers.getall("Host", [])
        host = parse_authority(given[0]) if len(given) == 1 else None
        if host is None or not (is_literal(host.host) or host.host in ("localhost", self.host)):
            raise status.not_for_us(
                "the sandbox answers to localhost and to IP addresses, not to other names"
            )
        if not all(is_same_origin(origin, host) for origin in request.headers.getall("Origin", [])):
            raise status.not_for_us("web pages may not ask the sandbox")

    def _record(self, request: web.Request, call: RequestInfo) -> None:
        transport = request.transport
        if transport is not None and transport not in self._connections:
            self._connections[transport] = next(self._next_connection)
        self._ledger.record(
            LedgerEntry(
                verb=call.verb,
                resource=call.resource,
                namespace=call.namespace,
                name=call.name,
                params=call.params,
                time=self._clock.monotonic(),
                connection=self._connections.get(transport, 0),
                user_agent=request.headers.get("User-Agent", ""),
            )
        )

    async def _get(self, request: web.Request, call: RequestInfo) -> web.StreamResponse:
        stored = self._store.writer.existing(call.target)
        if call.subresource == "scale":
            obj = stored.rendered(call.kind)
            patches.check_scale(call.kind, obj)
            return _json(patches.scale_of(call.kind, obj))
        return _bytes(self._form(request, call.params, several=False).item(call.kind, stored))

    async def _list(self, request: web.Request, call: RequestInfo) -> web.StreamResponse:
        options = self._options(call, watch=False)
        form = self._form(request, call.params, several=True)
        page = list_page(self._store.history, call.kind.resource, options)
        body = form.page(call.kind, page)
        pause = self._faults.pace(call.resource, call.namespace)
        return await self._trickled(request, body, pause) if pause else _long(request, body)

    async def _trickled(self, request: web.Request, body: bytes, pause: float) -> web.StreamResponse:
        """An answer over a slow network: in parts, and seconds between them."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        size = len(body) // _TRICKLED + 1
        for start in range(0, len(body), size):
            if start:
                await self._clock.sleep(pause)
            await response.write(body[start : start + size])
        await response.write_eof()
        return response

    async def _watch(self, request: web.Request, call: RequestInfo) -> web.StreamResponse:
        options = self._as_supported(self._options(call, watch=True))
        form = self._form(request, call.params, several=False)
        said = call.kind.deprecation
        headers = {"Warning": _warning(said)} if said else {}
        stream = WatchStream(request, call.kind.plural, self._faults, headers)
        selection = options.selection
        # Events have no watch cache, and the watches of the storage think of labels and fields only.
        if call.kind.plural == "events" and not selection.has_selectors:
            selection = dataclasses.replace(selection, shards=None)
        subscription = Subscription(call.kind, selection, form)
        watcher = Watcher(subscription, bookmarks=options.bookmarks, wake=stream.orders.wake)
        try:
            withheld = self._faults.withhold_initial_events_end
            self._hub.open(watcher, options, initial_end=not withheld)
        except Refusal as refusal:
            # The real server has already sent 200 when its watch cache finds this out.
            if refusal.code == 410 and self._faults.expired_watch == "status":
                raise
            watcher.put(error_line(refusal))
            watcher.end()
        timeout = options.timeout
        # Spread, as kube-apiserver spreads it: all watches that began together must not end together.
        if timeout is None:
            timeout = _SHORTEST_WATCH * (1 + self._clock.random())
        try:
            return await stream.run(watcher, self._clock, timeout=timeout, bookmark=self._hub.bookmark_of)
        finally:
            self._hub.close(watcher)

    def _options(self, call: RequestInfo, *, watch: bool) -> ListQuery:
        """The options of a LIST or WATCH; refused also for a field that the kind does not select by."""
        options = read_options(
            call.params, call.namespace, watch=watch, shard_selectors=self._shard_selectors
        )
        for path, _, _ in options.selection.fields.conditions:
            if why := call.kind.why_not_selectable(path):
                raise status.bad_request(why)
        return options

    def _as_supported(self, options: ListQuery) -> ListQuery:
        """What a server without WatchList makes of a request for it."""
        mode = self._faults.watch_list
        if mode == "on" or options.initial_events is None:
            return options
        if mode == "ignored":
            return dataclasses.replace(options, initial_events=None, match="")
        why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
        cause = status.StatusCause.forbidden("sendInitialEvents", why)
        raise status.invalid_options("ListOptions", [cause])

    async def _create(self, request: web.Request, call: RequestInfo) -> web.StreamResponse:
        obj = requests.read_object(call, _media_type(request), await request.read())
        write = requests.read_write(call, request.headers.get("User-Agent", ""))
        created = self._store.writer.create(call.kind, call.namespace, obj, write)
        return self._one(request, call, created, code=201)

    async def _update(self, request: web.Request, call: RequestInfo) -> web.StreamResponse:
        obj = requests.read_object(call, _media_type(request), await request.read())
        write = requests.read_write(call, request.headers.get("User-Agent", ""))
        writer, target = self._store.writer, call.target
        if call.subresource == "scale":
            stored = writer.modify(target, lambda live: patches.scaled(call.kind, live, obj), write)
        else:
            stored = writer.replace(target, obj, write)
        return self._one(request, call, stored)

    async def _patch(self, request: web.Request, call: RequestInfo) -> web.StreamResponse:
        media_type, target = _media_type(request), call.target
        if media_type not in patches.accepted(call.kind):
            raise status.unsupported_media_type(patches.accepted(call.kind))
        body = requests.parse(call, media_type, await request.read())
        write = requests.read_write(call, request.headers.get("User-Agent", ""))
        # Server-side apply must name its manager: that of the user agent does not count.
        if media_type == patches.APPLY_PATCH:
            write = dataclasses.replace(write, manager=call.params.get("fieldManager", ""))
        patch = Patch(media_type, body, force=truth(call.params.get("force")))
        stored, created = self._store.writer.patch(target, patch, write)
        return self._one(request, call, stored, code=201 if created else 200)

    async def _delete(self, request: web.Request, call: RequestInfo) -> web.StreamResponse:
        deletion = requests.read_deletion(call, _media_type(request), await request.read())
        last, gone = self._store.remover.delete(call.target, deletion)
        if call.kind.returned or not gone:
            return self._one(request, call, last)
        return _json(status.success(call.kind, call.name, last["metadata"].get("uid", "")))

    async def _delete_collection(self, request: web.Request, call: RequestInfo) -> web.StreamResponse:
        options = self._options(call, watch=False)
        deletion = requests.read_deletion(call, _media_type(request), await request.read())
        page = list_page(self._store.history, call.kind.resource, options)
        for stored in page.items:
            target = Target(call.kind, stored.namespace, stored.name)
            self._store.remover.delete(target, deletion)
        return _bytes(Plain().page(call.kind, page))

    def _form(self, request: web.Request, params: Mapping[str, str], *, several: bool) -> AnyForm:
        accept, include = request.headers.get("Accept", ""), params.get("includeObject", "")
        return negotiate(accept, self._clock, include=include, several=several)

    def _one(
        self, request: web.Request, call: RequestInfo, obj: KubeObject, *, code: int = 200
    ) -> web.Response:
        if call.subresource == "scale":
            return _json(patches.scale_of(call.kind, obj), code=code)
        form = self._form(request, {}, several=False)
        if isinstance(form, Plain) or "resourceVersion" not in obj["metadata"]:  # a dry run has no version
            return _json(obj, code=code)
        stored = Stored.of(obj, int(obj["metadata"]["resourceVersion"]))
        return _bytes(form.item(call.kind, stored), code=code)

    async def _control(self, request: web.Request, path: str, params: Mapping[str, str]) -> web.Response:
        match request.method, path.rstrip("/"):
            case "GET", "/sandbox/ledger":
                return _json(ordered.ledger_document(self._ledger, params))
            case "DELETE", "/sandbox/ledger":
                self._ledger.clear()
                return _json({})
            case "GET", "/sandbox/faults":
                return _json(self._faults.document())
            case "DELETE", "/sandbox/faults":
                self._faults.clear()
                return _json(self._faults.document())
            case "POST", "/sandbox/faults":
                given = _decoded(await request.read())
                return _json(ordered.order(self._faults, given, self._outage))
            case _:
                raise status.no_such_resource()


def _refused(refusal: Refusal) -> web.Response:
    headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after is not None else {}
    return _json(refusal.document(), code=refusal.code, headers=headers)


def _warn(answer: web.StreamResponse, warnings: Iterable[str]) -> None:
    for warning in filter(None, warnings):
        answer.headers.add("Warning", _warning(warning))


def _warning(text: str) -> str:
    """The value of a header."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'


def _media_type(request: web.Request) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip()


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise status.bad_request(f"the body is not JSON: {error}") from error


def _json(document: KubeObject, *, code: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return _bytes(msgspec.json.encode(document), code=code, headers=headers)


def _long(request: web.Request, body: bytes) -> web.Response:
    """An answer that may be long: as Go's HTTP server writes it, and packed as kube-apiserver packs it."""
    response = _bytes(body)
    if len(body) > _BUFFERED and request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    if len(body) > _PACKED and "gzip" in request.headers.get("Accept-Encoding", ""):
        response.enable_compression(web.ContentCoding.gzip)
    return response


def _bytes(body: bytes, *, code: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=body, status=code, headers={"Content-Type": "application/json", **(headers or {})}
    )
