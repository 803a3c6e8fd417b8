"""The server: an address is listened on while the process runs. Here the parts of this room meet."""

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from declctl.admin import answers
from declctl.admin.access import Access
from declctl.admin.controlled import Controlled
from declctl.admin.later import not_yet
from declctl.admin.page import page
from declctl.admin.planning import RunningPlan
from declctl.admin.probes import Probes
from declctl.admin.reading import CacheReads
from declctl.admin.reloading import Reloads
from declctl.errors import UsageError
from declctl.manifest.model import Address
from declctl.runtime.log import Log

_SHUTDOWN_SECONDS = 1.0


@asynccontextmanager
async def serve(
    runtime: Controlled, address: Address, *, token: str | None = None, log: Log | None = None
) -> AsyncGenerator[Address, None]:
    """Listen on `address` for the length of the context; gives the address, with the port that was taken.

    `token` is what guarded requests must carry where the address is not loopback. Raises UsageError if
    the address can't be listened on.
    """
    access = Access(address, token=token)
    reloads = Reloads(runtime)
    runner = web.AppRunner(
        application(runtime, access, reloads), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
    )
    await runner.setup()
    try:
        await _listen(runner, address)
        bound = Address(address.host, int(runner.addresses[0][1]))
        if log is not None:
            log.info(f"admin address http://{bound}: /status, /metrics, /healthz, /readyz", admin=str(bound))
        yield bound
    finally:
        await reloads.close()
        await runner.cleanup()


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


def application(runtime: Controlled, access: Access, reloads: Reloads) -> web.Application:
    """The routes. What shows objects or changes state is behind `access.guarded`."""
    probes, reads = Probes(runtime), CacheReads(runtime)
    app = web.Application(middlewares=[answers.as_sentences])
    app.router.add_get("/", page(runtime))
    app.router.add_get("/healthz", probes.alive)
    app.router.add_get("/readyz", probes.ready)
    app.router.add_get("/status", probes.status)
    app.router.add_get("/metrics", _metrics(runtime))
    app.router.add_get("/plan", access.guarded(RunningPlan(runtime).plan))
    app.router.add_get("/cache/{resource}", access.guarded(reads.keys))
    app.router.add_get("/cache/{resource}/{key:.+}", access.guarded(reads.one))
    app.router.add_get("/index/{resource}/{index}/{value:.*}", access.guarded(reads.index))
    app.router.add_get("/history", reloads.history)
    app.router.add_post("/-/reload", access.guarded(reloads.reload))
    app.router.add_post("/-/rollback", access.guarded(reloads.rollback))
    not_yet(app.router)
    return app


def _metrics(runtime: Controlled) -> Handler:
    def scraper() -> Handler:
        # Late: prometheus-client takes 20 ms, which a process that nobody scrapes need not spend.
        from declctl.admin.scrape import Metrics

        return Metrics(runtime).scrape

    async def scrape(request: web.Request) -> web.StreamResponse:
        scraped = await asyncio.to_thread(scraper)  # not on the loop: it loads for so long the first time
        return await scraped(request)

    return scrape


async def _listen(runner: web.AppRunner, address: Address) -> None:
    try:
        await web.TCPSite(runner, address.host or None, address.port).start()
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
