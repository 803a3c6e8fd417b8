"""The servers of the admin address and of the metrics address, which connect the parts of this room.

The metrics address serves `GET /metrics` alone, with the checks and limits of the admin address. Both share
the loop and the file descriptors of the machinery. Some clients open many connections, send one byte at a
time or do not read the answer. They must not disturb liveness probes. So open connections have deadlines, and
a limit on their number.
"""

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from declctl.admin.acceptor import accepting, bound_sockets
from declctl.admin.access import STATUS_PATH, Access, Reason, Refusals, ServerLog, as_sentences, refusal
from declctl.admin.authorization import Authorizer, StaticToken, TokenFile
from declctl.admin.endpoints import (
    CacheReads,
    DeadLetterOffice,
    LogLevels,
    Probes,
    QueueReads,
    RecentReads,
    ReloadOrders,
    WriteReasons,
)
from declctl.admin.page import page
from declctl.admin.reviews import ReviewedToken
from declctl.admin.tap import TapStreams
from declctl.admin.tls import KeyPair, ServerCertificate, TlsHandshake
from declctl.errors import UsageError
from declctl.kit import Clock, SystemClock
from declctl.kit.running_processes import (
    CONTROLLER_HEADER,
    RunningProcess,
    registered,
    running_processes,
    start_time,
)
from declctl.kit.text import excerpt
from declctl.kit.token_bucket import ClientBuckets, TokenBucket
from declctl.manifest import Plan
from declctl.manifest.model import AdminAuthorization, AdminSpec
from declctl.manifest.values import Address
from declctl.runtime.log import Log
from declctl.runtime.reporting.recent_figures import RecentFigures

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.runtime import Runtime

HEAD_SECONDS = 10.0  # from the first byte of a request, or from the connection, to the end of its head
IDLE_SECONDS = 30.0  # between two requests, and for a client that does not read
MOST_CONNECTIONS = 64
MOST_REQUESTS = 16  # at a time, besides the probes
REQUESTS_PER_SECOND, BURST = 100, 400  # of one client, besides the probes
PROBES_PER_SECOND, PROBES_BURST = 100, 100  # of all clients that are answered at once
PROBE_PAUSE_SECONDS = 0.25  # before the answer to a further one: a kubelet waits for a second at least
MOST_BODY_BYTES = 64 << 10  # that a head may announce; no path reads a body
MOST_BYTES = 1 << 20  # of one request, with a body that is read only to be thrown away
SWEEP_SECONDS = 1.0
PROBES = ("/healthz", "/readyz")
_SHUTDOWN_SECONDS = 1.0
_LINGERING_SECONDS = 2.0  # for the body of a request that was answered without it
_MOST_HEADERS = 64
_CONTINUE = "100-continue"
_METRICS_PATH = "/metrics"
RequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(slots=True, eq=False)
class Connection:
    """One open connection. Times are those of its table's clock."""

    transport: asyncio.Transport
    whose: str  # the address of the client
    since: float  # the time at which it began to wait for its client
    deadline: float
    requests: int = 0  # requests in progress: 0 or 1
    waits_for_head: bool = True  # it waits for the rest of the head of a request
    unsent: int = 0  # bytes that the client had not taken at the last check
    received: int = 0  # bytes since the head of the last request


class ConnectionTable:
    """All open connections of one address. Used on one loop.

    Above the limit, the client with most connections loses the one that has waited longest. A connection with
    a request in progress is never closed for that.

    A probe is never refused, as a kubelet would restart the process. Above a rate, each probe waits a moment
    before its answer. A connection has one request at a time, so that a flood takes little of the loop. A
    connection whose probe waits can be closed for others, so that a flood does not keep a kubelet away.
    """

    def __init__(self, clock: Clock, refusals: Refusals, *, most: int = MOST_CONNECTIONS) -> None:
        self._clock = clock
        self._refusals = refusals
        self._most = most
        self._open: dict[object, Connection] = {}
        self._answering = 0  # requests in progress, without probes
        self._probes = TokenBucket(PROBES_PER_SECOND, PROBES_BURST, clock=clock)
        self._rates = ClientBuckets(REQUESTS_PER_SECOND, BURST, clock=clock)

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, transport: asyncio.Transport, whose: str) -> None:
        """Add a new connection."""
        now = self._clock.monotonic()
        self._open[transport] = Connection(transport, whose, now, now + HEAD_SECONDS)
        # The client with most connections loses one, so that many connections of one client do not keep a
        # kubelet away.
        if len(self._open) > self._most:
            waiting = [each for each in self._open.values() if not each.requests]
            held = Counter(each.whose for each in waiting)
            last = min(waiting, key=lambda each: (-held[each.whose], each.since))
            self._close(
                last,
                Reason.CONNECTIONS,
                f"a connection from {last.whose} was closed: there were {len(self._open)} at a time",
            )

    def received(self, transport: asyncio.Transport, size: int = 1) -> bool:
        """Note received bytes. False if they were too many: then the connection is closed."""
        one = self._open.get(transport)
        if one is None:
            return False
        one.received += size
        # aiohttp reads the rest of a body for a limited time, and 2 seconds are gigabytes on loopback.
        if one.received > MOST_BYTES:
            self._close(
                one, Reason.BODY, f"{one.whose} sent more than {MOST_BYTES >> 20} MiB for one request"
            )
            return False
        # Only the first bytes set the deadline, so that single bytes do not extend it.
        if not one.requests and not one.waits_for_head:
            one.waits_for_head = True
            one.deadline = self._clock.monotonic() + HEAD_SECONDS
        return True

    def closed(self, transport: asyncio.Transport) -> bool:
        """Remove a closed connection; returns whether it was there."""
        return self._open.pop(transport, None) is not None

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: count a request; 503 or 429 if there are too many. A probe waits instead."""
        # Probes are always answered, so that a busy address does not make a kubelet restart the process.
        is_probe = request.path in PROBES
        if is_probe and not self._probes.try_take():
            await self._clock.sleep(PROBE_PAUSE_SECONDS)
        one = self._open.get(request.transport)  # None if it was closed meanwhile
        if one is not None:
            one.requests += 1
            one.received = 0
        self._answering += not is_probe
        try:
            if not is_probe and self._answering > MOST_REQUESTS:
                sentence = f"{MOST_REQUESTS} requests are being answered; ask again in a moment."
                return self._too_many(Reason.BUSY, request, 503, sentence)
            if not is_probe and not self._rates.try_take(request.remote or ""):
                sentence = (
                    f"A client may send {REQUESTS_PER_SECOND} requests a second; ask again in a moment."
                )
                return self._too_many(Reason.RATE, request, 429, sentence)
            return await handler(request)
        finally:
            self._answering -= not is_probe
            if one is not None:
                one.requests -= 1
                self._waits(one)

    def sweep(self) -> None:
        """Close the connections that have exceeded their deadlines."""
        now = self._clock.monotonic()
        for one in [each for each in self._open.values() if not each.requests]:
            before, one.unsent = one.unsent, one.transport.get_write_buffer_size()
            if one.unsent and (one.unsent < before or not before):
                one.deadline = now + IDLE_SECONDS  # the client reads, even if slowly
            if now < one.deadline:
                continue
            if one.unsent:
                what = f"{one.whose} did not read its answer for {IDLE_SECONDS:g} s"
                self._close(one, Reason.TIMEOUT, what)
            elif one.waits_for_head:
                what = f"{one.whose} sent no whole request within {HEAD_SECONDS:g} s"
                self._close(one, Reason.TIMEOUT, what)
            else:
                self._abort(one)  # the usual end of an idle connection

    def _too_many(self, reason: Reason, request: web.Request, status: int, sentence: str) -> web.Response:
        self._refusals.request(reason, request, sentence)
        refused = refusal(status, sentence)
        refused.headers["Retry-After"] = "1"
        return refused

    def _waits(self, one: Connection) -> None:
        one.since = self._clock.monotonic()
        one.deadline = one.since + IDLE_SECONDS
        one.waits_for_head = False
        one.unsent = 0

    def _close(self, one: Connection, reason: Reason, sentence: str) -> None:
        self._refusals.add(reason, sentence)
        self._abort(one)

    def _abort(self, one: Connection) -> None:
        del self._open[one.transport]
        one.transport.abort()


class TrackedConnection(asyncio.Protocol):
    """A connection of aiohttp's server that is listed in a table."""

    def __init__(self, inner: asyncio.Protocol, table: ConnectionTable) -> None:
        self._inner = inner
        self._table = table
        self._transport: asyncio.Transport | None = None
        # Assigned from aiohttp, as the table does not need these methods.
        self.eof_received = inner.eof_received
        self.pause_writing = inner.pause_writing
        self.resume_writing = inner.resume_writing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the table."""
        self._transport = transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)
        self._table.opened(transport, _peer(transport))

    def data_received(self, data: bytes) -> None:
        """Note the bytes, and pass them on."""
        assert self._transport is not None
        if self._table.received(self._transport, len(data)):
            self._inner.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the table."""
        assert self._transport is not None
        self._table.closed(self._transport)
        self._inner.connection_lost(exc)


def accounted(make: Callable[[], asyncio.Protocol], table: ConnectionTable) -> Callable[[], asyncio.Protocol]:
    """A factory of protocols whose connections are listed in the table."""
    return lambda: TrackedConnection(make(), table)


def encrypted(
    make: Callable[[], asyncio.Protocol],
    certificate: ServerCertificate,
    table: ConnectionTable,
    refusals: Refusals,
    tasks: set[asyncio.Task[None]],
) -> Callable[[], asyncio.Protocol]:
    """A factory of protocols with TLS, whose connections are listed from their first byte on."""

    def closed(transport: asyncio.Transport, fault: str | None) -> None:
        # A connection that the table itself has closed is not in it any more, and counts there.
        if table.closed(transport) and fault is not None:
            refusals.add(Reason.MALFORMED, f"no TLS with {_peer(transport)}: {excerpt(fault, most=200)}")

    return lambda: TlsHandshake(
        make, certificate, opened=lambda raw: table.opened(raw, _peer(raw)), closed=closed, tasks=tasks
    )


def _peer(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else "an unknown peer"


@asynccontextmanager
async def serve(
    runtime: "Runtime",
    address: Address,
    *,
    metrics: Address | None = None,
    authorizer: Authorizer | None = None,
    tls: KeyPair | None = None,
    log: Log | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[Address, None]:
    """Listen on `address` inside an `async with` block; gives the address with its real port.

    - `metrics`: an address that serves the metrics alone, besides; None for no other one.
    - `authorizer`: decides about guarded requests; None if the process has no token. `access` has the rules.
    - `tls`: the files of the certificate of both; None for plain HTTP.

    Raises UsageError if an address or the certificate can't be used.
    """
    clock = clock or SystemClock()
    certificate = None if tls is None else ServerCertificate(tls, log)
    name = runtime.plan.name  # a reload does not change it
    listener = _Listener(_ADMIN, name, certificate, clock, log)

    def access(where: Address, refusals: Refusals, authorizer: Authorizer | None = None) -> Access:
        return Access(
            where,
            controller=name,
            authorizer=authorizer,
            machine=socket.gethostname(),
            allowed=lambda: runtime.plan.admin.allowed_hosts,
            refusals=refusals,
        )

    refusals = Refusals(clock, log)
    connections = ConnectionTable(clock, refusals)
    reloads = ReloadOrders(runtime)
    recent = RecentFigures(clock)
    app = application(
        runtime,
        recent,
        access(address, refusals, authorizer),
        reloads,
        LogLevels(runtime, clock=clock, log=log),
        connections=connections,
        refusals=refusals,
    )
    async with AsyncExitStack() as stack:
        if certificate is not None:
            await certificate.load()
            following = asyncio.create_task(certificate.follow(clock), name="admin certificate")
            stack.push_async_callback(_cancelled, {following})
        sampling = asyncio.create_task(recent.run(runtime.status), name="recent figures")
        stack.push_async_callback(_cancelled, {sampling})
        bound = await stack.enter_async_context(listener.serve(app, address, connections, refusals))
        if metrics is not None and not bound.covers(metrics):
            # A table of its own: many scrapers take no connection of the probes.
            refusals = Refusals(clock, log, address=str(_METRICS), counts=refusals.counts)
            connections = ConnectionTable(clock, refusals)
            app = metrics_application(
                runtime, access(metrics, refusals), connections=connections, refusals=refusals
            )
            listener = listener._replace(role=_METRICS)
            await stack.enter_async_context(listener.serve(app, metrics, connections, refusals))
        yield bound


class AddressRole(NamedTuple):
    """What an address is for, in the words of messages and logs."""

    name: str  # admin or metrics
    paths: str  # those that the log names
    other: str  # what names another address
    found: str  # how a user learns of the port that was taken for port 0

    def __str__(self) -> str:
        return f"{self.name} address"


_ADMIN = AddressRole(
    "admin",
    "/status, /metrics, /healthz, /readyz",
    "--admin or spec.admin.bindAddress",
    "commands find it",
)
_METRICS = AddressRole("metrics", _METRICS_PATH, "spec.metrics.bindAddress", "the log names it")


class _Listener(NamedTuple):
    """The settings of a server that listens at one address. Used on one loop."""

    role: AddressRole
    controller: str
    certificate: ServerCertificate | None  # None for plain HTTP; the caller keeps it up to date
    clock: Clock
    log: Log | None

    @asynccontextmanager
    async def serve(
        self, app: web.Application, address: Address, connections: ConnectionTable, refusals: Refusals
    ) -> AsyncGenerator[Address, None]:
        """Serve `app` inside an `async with` block; gives the address with its real port.

        Raises UsageError if the address can't be used.
        """
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            logger=ServerLog(refusals),
            keepalive_timeout=2 * IDLE_SECONDS,  # `connections` closes earlier
            lingering_time=_LINGERING_SECONDS,
            max_headers=_MOST_HEADERS,
            auto_decompress=False,  # no path accepts a body
        )
        app.on_response_prepare.append(_with_name(self.controller))
        await runner.setup()
        assert runner.server is not None
        # aiohttp has no hook before its check of Expect.
        runner.server.request_handler = _refusing_early(runner.server.request_handler, refusals)
        sweeping = _sweep(connections, refusals, self.clock)
        tasks = {asyncio.create_task(sweeping, name=f"{self.role.name} connections")}
        make = accounted(runner.server, connections)
        if self.certificate is not None:
            make = encrypted(make, self.certificate, connections, refusals, tasks)
        try:
            sockets = await listen(address, self.role)
            async with accepting(sockets, make, refusals):
                bound = Address(address.host, int(sockets[0].getsockname()[1]))
                if self.log is not None:
                    scheme = "http" if self.certificate is None else "https"
                    sentence = f"{self.role} {scheme}://{bound}: {self.role.paths}"
                    self.log.info(sentence, **{self.role.name: str(bound)})
                yield bound
        finally:
            await _cancelled(tasks)
            refusals.sum_up()
            await runner.cleanup()


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait for their ends."""
    ending = tuple(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _with_name(controller: str) -> Callable[[web.BaseRequest, web.StreamResponse], Awaitable[None]]:
    """Let each answer say whose it is."""

    async def add(_: web.BaseRequest, response: web.StreamResponse) -> None:
        response.headers[CONTROLLER_HEADER] = controller

    return add


def _refusing_early(handle: RequestHandler, refusals: Refusals) -> RequestHandler:
    """Refuse a large body before the client is asked for it, and an Expect that aiohttp fails on."""

    async def checked(request: web.BaseRequest) -> web.StreamResponse:
        if (request.content_length or 0) > MOST_BODY_BYTES:
            sentence = f"No path reads a body; it may have {MOST_BODY_BYTES >> 10} KiB at most."
            refusals.add(Reason.BODY, f"{request.method} from {request.remote} was refused: {sentence}")
            refused = refusal(413, sentence)
            refused.force_close()
            return refused
        if request.headers.get("Expect", _CONTINUE).lower() != _CONTINUE:
            return refusal(417, "No expectation is met but 100-continue.")
        return await handle(request)

    return checked


async def _sweep(connections: ConnectionTable, refusals: Refusals, clock: Clock) -> None:
    while True:
        await clock.sleep(SWEEP_SECONDS)
        connections.sweep()
        refusals.sweep()


def front(
    address: Address | None = None,
    *,
    given: StaticToken | TokenFile | None = None,
    folder: Path = Path(),
    manifest: str | None = None,
    log: Log | None = None,
) -> Callable[["Runtime"], AbstractAsyncContextManager[None]]:
    """The server as a front of the runtime: entered and left with it.

    - `address`: None stands for that of the manifest.
    - `given`: the authorizer that the environment asks for; it comes before the `tokenFile` of the manifest.
    - `folder`: that of the manifest, where relative paths begin.
    - `manifest`: the absolute path of the manifest, by which commands find the process.
    """

    @asynccontextmanager
    async def admin(runtime: "Runtime") -> AsyncGenerator[None, None]:
        spec, clock = runtime.plan.admin, SystemClock()
        authorizer = await authorizer_of(runtime, given=given, folder=folder, clock=clock, log=log)
        where = address or spec.bind_address
        tls = _key_pair(spec, folder)
        async with serve(
            runtime,
            where,
            metrics=runtime.plan.metrics.bind_address,
            authorizer=authorizer,
            tls=tls,
            log=log,
            clock=clock,
        ) as bound:
            entry = RunningProcess(
                controller=runtime.plan.name,
                pid=os.getpid(),
                start_time=await asyncio.to_thread(_start_time),
                address=str(bound),
                manifest=manifest,
                token_file=str(authorizer.path) if isinstance(authorizer, TokenFile) else None,
                cert_file=None if tls is None else str(tls.cert_file),
                key_file=None if tls is None else str(tls.key_file),
            )
            async with _registered(entry, log):
                yield

    return admin


def _start_time() -> str:
    """The start time of this process; empty if it can't be found: then no reader finds the process."""
    try:
        return start_time(os.getpid()) or ""
    except OSError:
        return ""


@asynccontextmanager
async def _registered(entry: RunningProcess, log: Log | None) -> AsyncGenerator[None, None]:
    """Let commands find this process. A process that can't write the file goes on without."""
    file = registered(entry)
    try:
        await asyncio.to_thread(file.__enter__)
    except OSError as error:
        # Usual in a pod without DECLCTL_RUNTIME_DIR. Commands there use the address of the manifest.
        if log is not None:
            log.info(f"commands find this process by its address alone, as it can't write its file: {error}")
        yield
        return
    try:
        yield
    finally:
        await asyncio.to_thread(file.__exit__, None, None, None)


def _key_pair(spec: AdminSpec, folder: Path) -> KeyPair | None:
    if spec.tls is None:
        return None
    return KeyPair(*((folder / name).absolute() for name in (spec.tls.cert_file, spec.tls.key_file)))


async def why_not_served(
    now: Plan, wanted: Plan, *, folder: Path, address: Address | None = None
) -> str | None:
    """Why a new process could not serve the addresses that a manifest wants; None if it could.

    `now` is what this process serves: its own ports are free for its successor. `folder` is that of the
    manifest. `address` stands for that of both manifests, as for `front`.
    """
    pair = _key_pair(wanted.admin, folder)
    try:
        if pair is not None:
            await ServerCertificate(pair).load()
    except UsageError as error:
        return str(error)
    (_, main), *others = _addresses(wanted, address)
    for role, each in others:
        if each.covers(main) and not main.covers(each):
            return f"the {role} {each} includes the admin address {main}: only one can be listened on"
    own = {each.port for _, each in _addresses(now, address)}
    for role, each in _addresses(wanted, address):
        if not each.port or each.port in own:
            continue
        try:
            server = await asyncio.start_server(lambda _reader, writer: writer.close(), each.host, each.port)
        except OSError as error:
            return f"the {role} {each} can't be used: {error.strerror or error}"
        server.close()
    return None


def _addresses(plan: Plan, admin: Address | None) -> Sequence[tuple[AddressRole, Address]]:
    """The addresses of a process; `admin` is that of its command line."""
    metrics = plan.metrics.bind_address
    more = () if metrics is None else ((_METRICS, metrics),)
    return ((_ADMIN, admin or plan.admin.bind_address), *more)


async def authorizer_of(
    runtime: "Runtime",
    *,
    given: StaticToken | TokenFile | None,
    folder: Path,
    clock: Clock,
    log: Log | None,
) -> Authorizer | None:
    """The authorizer of a process, from its environment (`given`) and its manifest; None if it has no token.

    A file that can't be used is told in the log.
    """
    spec = runtime.plan.admin
    if spec.authorization is AdminAuthorization.KUBERNETES:
        if given is not None and log is not None:
            log.warning(
                "admin address: the token of the environment is not used, as spec.admin.authorization is "
                "Kubernetes"
            )
        assert runtime.client is not None  # fronts are entered after it has connected
        return ReviewedToken(runtime.client, clock=clock, log=log)
    if given is None and spec.token_file is not None:
        given = TokenFile((folder / spec.token_file).absolute(), log)
    if isinstance(given, TokenFile):
        await given.read()  # so that the log has a fault before the first request
    return given


def application(
    runtime: "Runtime",
    recent: RecentFigures,
    access: Access,
    reloads: ReloadOrders,
    levels: LogLevels,
    *,
    connections: ConnectionTable,
    refusals: Refusals,
) -> web.Application:
    """The routes. Those that show objects or change state are behind `access.guarded`.

    All others are behind `access.open`, or have types and counts alone.
    """
    probes, reads, dead_letters = Probes(runtime), CacheReads(runtime), DeadLetterOffice(runtime)
    app = web.Application(
        middlewares=[connections.watch, as_sentences(), access.check_sender, access.check_controller]
    )
    app.router.add_get("/", access.open(page(runtime, recent)))
    app.router.add_get("/healthz", probes.alive)
    app.router.add_get("/readyz", access.open(probes.ready, probe=True))
    app.router.add_get("/status", access.open(probes.status))
    app.router.add_get(_METRICS_PATH, _metrics(runtime, refusals))
    app.router.add_get("/plan", access.guarded(probes.plan))
    app.router.add_get("/cache/{resource}", access.guarded(reads.keys))
    app.router.add_get("/cache/{resource}/{key:.+}", access.guarded(reads.one))
    app.router.add_get("/index/{resource}/{index}/{value:.*}", access.guarded(reads.index))
    app.router.add_get("/history", access.open(reloads.history))
    app.router.add_get("/figures", access.open(RecentReads(runtime, recent).figures, path=STATUS_PATH))
    app.router.add_post("/-/reload", access.guarded(reloads.reload))
    app.router.add_post("/-/rollback", access.guarded(reloads.rollback))
    app.router.add_post("/-/trigger", access.guarded(reloads.trigger))
    app.router.add_get("/why/{resource}/{key:.+}", access.guarded(WriteReasons(runtime).why))
    app.router.add_get("/deadletters", access.guarded(dead_letters.letters))
    app.router.add_post("/-/requeue", access.guarded(dead_letters.requeue))
    streams = TapStreams(runtime, end_of=access.end_of)
    app.router.add_get("/events", access.guarded(streams.stream))
    app.on_shutdown.append(streams.close)
    app.on_shutdown.append(lambda _: reloads.close())
    app.router.add_get("/queue/{handler}", access.guarded(QueueReads(runtime).waiting))
    app.router.add_post("/-/loglevel", access.guarded(levels.change))
    app.on_shutdown.append(lambda _: levels.close())
    return app


def metrics_application(
    runtime: "Runtime", access: Access, *, connections: ConnectionTable, refusals: Refusals
) -> web.Application:
    """The one route of the metrics address, with the checks and limits of the admin address."""
    app = web.Application(
        middlewares=[
            connections.watch,
            as_sentences(f"this address has {_METRICS_PATH} alone"),
            access.check_sender,
            access.check_controller,
        ]
    )
    app.router.add_get(_METRICS_PATH, _metrics(runtime, refusals))
    return app


def _metrics(runtime: "Runtime", refusals: Refusals) -> Handler:
    def scraper() -> Handler:
        # Late: prometheus-client takes 20 ms, which a process without a scraper does not need.
        from declctl.admin.metrics import Metrics

        return Metrics(runtime, refusals.counts).scrape

    async def scrape(request: web.Request) -> web.StreamResponse:
        scraped = await asyncio.to_thread(scraper)  # in a thread, as the first import is slow
        return await scraped(request)

    return scrape


async def listen(address: Address, role: AddressRole) -> Sequence[socket.socket]:
    """The listening sockets of an address. Raises UsageError if it can't be used."""
    try:
        return await bound_sockets(address.host or None, address.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            others = await asyncio.to_thread(running_processes)
            holder = next((each for each in others if each.address.endswith(f":{address.port}")), None)
            by = f"by the controller {holder}" if holder else "perhaps by another `declctl run`"
            raise UsageError(
                f"The {role} {address} is in use, {by}; name another with {role.other} (port 0 takes any "
                f"free one, and {role.found})."
            ) from error
        raise UsageError(
            f"The {role} {address} can't be listened on: {error.strerror or error}; name another with "
            f"{role.other}."
        ) from error
