"""Probes and status: for a kubelet, for `declctl status`, for people with curl."""

from aiohttp import web

from declctl.admin.answers import answer
from declctl.admin.controlled import Controlled
from declctl.runtime.reporting.status import Status


class Probes:
    """What the process says of itself."""

    def __init__(self, runtime: Controlled) -> None:
        self._runtime = runtime

    async def alive(self, _request: web.Request) -> web.StreamResponse:
        """200: this runs on the machinery loop, so that an answer says that the loop lives."""
        return web.Response(text="ok\n")

    async def ready(self, _request: web.Request) -> web.StreamResponse:
        """200 when everything has synced, else 503 with the reasons, one a line."""
        status = self._runtime.status()
        if status.ready:
            return web.Response(text="ok\n")
        return web.Response(text="\n".join(["not ready", *reasons(status)]) + "\n", status=503)

    async def status(self, _request: web.Request) -> web.StreamResponse:
        """The document of the contract."""
        return answer(self._runtime.status().document())


def reasons(status: Status) -> list[str]:
    """Why a controller is not ready: conditions, then resources."""
    told = [f"{c.type}: {c.message or c.reason}" for c in status.conditions if c.type == "Ready"]
    told += [f"{r.name}: {r.error or _progress(r.items_listed)}" for r in status.resources if not r.synced]
    return told


def _progress(items_listed: int) -> str:
    return f"not synced yet, {items_listed:,} objects so far" if items_listed else "not synced yet"
