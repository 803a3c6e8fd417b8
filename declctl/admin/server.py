"""The server: an address is listened on while the process runs. Here the parts of this room meet."""

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from declctl.admin import answers
from declctl.admin.access import Access
from declctl.admin.answers import Refusals, ServerLog
from declctl.admin.connections import IDLE_SECONDS, SWEEP_SECONDS, Connections, accounted
from declctl.admin.endpoints import CacheReads, Probes, Reloads, RunningPlan, not_yet
from declctl.admin.page import page
from declctl.admin.process import Controlled
from declctl.errors import UsageError
from declctl.kit import Clock, SystemClock
from declctl.manifest.model import Address
from declctl.runtime.log import Log

_SHUTDOWN_SECONDS = 1.0
_LINGERING_SECONDS = 2.0  # for the body of a request that has been answered without it
_MOST_HEADERS = 64
_BACKLOG = 128
_CONTINUE = "100-continue"
RequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(
    runtime: Controlled,
    address: Address,
    *,
    token: str | None = None,
    log: Log | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[Address, None]:
    """Listen on `address` for the length of the context; gives the address, with the port that was taken.

    `token` is what guarded requests must carry; None is none. `access` has the rules. Raises UsageError if
    the address can't be listened on.
    """
    clock = clock or SystemClock()
    refusals = Refusals(clock, log)
    connections = Connections(clock, refusals)
    access = Access(
        address,
        token=token,
        machine=socket.gethostname(),
        allowed=lambda: runtime.plan.admin.allowed_hosts,
        refusals=refusals,
    )
    reloads = Reloads(runtime)
    app = application(runtime, access, reloads, connections=connections, refusals=refusals)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        logger=ServerLog(refusals),
        keepalive_timeout=2 * IDLE_SECONDS,  # `connections` closes earlier
        lingering_time=_LINGERING_SECONDS,
        max_headers=_MOST_HEADERS,
        auto_decompress=False,  # no path takes a body
    )
    await runner.setup()
    assert runner.server is not None
    runner.server.request_handler = _without_wishes(runner.server.request_handler)
    sweeper = asyncio.create_task(_sweep(connections, refusals, clock), name="admin connections")
    try:
        listening = await _listen(runner, connections, address)
        try:
            bound = Address(address.host, int(listening.sockets[0].getsockname()[1]))
            if log is not None:
                paths = "/status, /metrics, /healthz, /readyz"
                log.info(f"admin address http://{bound}: {paths}", admin=str(bound))
            yield bound
        finally:
            listening.close()
    finally:
        sweeper.cancel()
        refusals.sum_up()
        await reloads.close()
        await runner.cleanup()


def _without_wishes(handle: RequestHandler) -> RequestHandler:
    """Refuse an unknown Expect before aiohttp does: it can't write down all that may stand there."""

    async def checked(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", _CONTINUE).lower() != _CONTINUE:
            return answers.refusal(417, "No expectation is met but 100-continue.")
        return await handle(request)

    return checked


async def _sweep(connections: Connections, refusals: Refusals, clock: Clock) -> None:
    while True:
        await clock.sleep(SWEEP_SECONDS)
        connections.sweep()
        refusals.sweep()


def front(
    address: Address | None = None, *, token: str | None = None, log: Log | None = None
) -> Callable[[Controlled], AbstractAsyncContextManager[None]]:
    """The server as a front of the runtime: it is entered with the runtime.

    `address` None is the manifest's.
    """

    @asynccontextmanager
    async def admin(runtime: Controlled) -> AsyncGenerator[None, None]:
        where = address or runtime.plan.admin.bind_address
        async with serve(runtime, where, token=token, log=log):
            yield

    return admin


def application(
    runtime: Controlled, access: Access, reloads: Reloads, *, connections: Connections, refusals: Refusals
) -> web.Application:
    """The routes. What shows objects or changes state is behind `access.guarded`.

    What everybody may ask is behind `access.open`, or has types and counts alone.
    """
    probes, reads = Probes(runtime), CacheReads(runtime)
    app = web.Application(middlewares=[connections.watch, answers.as_sentences, access.check_sender])
    app.router.add_get("/", access.open(page(runtime)))
    app.router.add_get("/healthz", probes.alive)
    app.router.add_get("/readyz", access.open(probes.ready, probe=True))
    app.router.add_get("/status", access.open(probes.status))
    app.router.add_get("/metrics", _metrics(runtime, refusals))
    app.router.add_get("/plan", access.guarded(RunningPlan(runtime).plan))
    app.router.add_get("/cache/{resource}", access.guarded(reads.keys))
    app.router.add_get("/cache/{resource}/{key:.+}", access.guarded(reads.one))
    app.router.add_get("/index/{resource}/{index}/{value:.*}", access.guarded(reads.index))
    app.router.add_get("/history", access.open(reloads.history))
    app.router.add_post("/-/reload", access.guarded(reloads.reload))
    app.router.add_post("/-/rollback", access.guarded(reloads.rollback))
    not_yet(app.router)
    return app


def _metrics(runtime: Controlled, refusals: Refusals) -> Handler:
    def scraper() -> Handler:
        # Late: prometheus-client takes 20 ms, which a process that nobody scrapes need not spend.
        from declctl.admin.metrics import Metrics

        return Metrics(runtime, refusals.counts).scrape

    async def scrape(request: web.Request) -> web.StreamResponse:
        scraped = await asyncio.to_thread(scraper)  # not on the loop: it loads for so long the first time
        return await scraped(request)

    return scrape


async def _listen(runner: web.AppRunner, connections: Connections, address: Address) -> asyncio.Server:
    assert runner.server is not None
    factory = accounted(runner.server, connections)
    try:
        loop = asyncio.get_running_loop()
        return await loop.create_server(factory, address.host or None, address.port, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"The admin address {address} is in use, perhaps by another `declctl run`; name another with "
                "--admin or spec.admin.bindAddress (port 0 takes any free one)."
            ) from error
        raise UsageError(
            f"The admin address {address} can't be listened on: {error.strerror or error}; name another with "
            "--admin or spec.admin.bindAddress."
        ) from error
