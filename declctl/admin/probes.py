"""Probes and status: for a kubelet, for `declctl status`, for people with curl."""

from aiohttp import web

from declctl.admin.answers import answer
from declctl.admin.controlled import Controlled
from declctl.admin.redaction import redacted, type_name
from declctl.kit.text import one_line
from declctl.runtime.reporting.status import Status


class Probes:
    """What the process says of itself."""

    def __init__(self, runtime: Controlled) -> None:
        self._runtime = runtime

    async def alive(self, _request: web.Request) -> web.StreamResponse:
        """200: this runs on the machinery loop, so that an answer says that the loop lives."""
        return web.Response(text="ok\n")

    def ready(self, _request: web.Request, texts: bool) -> web.StreamResponse:
        """200 when everything has synced, else 503 with the reasons, one a line."""
        status = self._runtime.status()
        if status.ready:
            return web.Response(text="ok\n")
        return web.Response(text="\n".join(["not ready", *reasons(status, texts=texts)]) + "\n", status=503)

    def status(self, _request: web.Request, texts: bool) -> web.StreamResponse:
        """The document of the contract."""
        document = self._runtime.status().document()
        return answer(document if texts else redacted(document))


def reasons(status: Status, *, texts: bool) -> list[str]:
    """Why a controller is not ready: conditions, then resources; without `texts`, by types alone."""
    told = [f"{c.type}: {(texts and c.message) or c.reason}" for c in status.conditions if c.type == "Ready"]
    for r in status.resources:
        if not r.synced:
            error = r.error if texts else type_name(r.error_type)
            told.append(one_line(f"{r.name}: {error or _progress(r.items_listed)}"))
    return told


def _progress(items_listed: int) -> str:
    return f"not synced yet, {items_listed:,} objects so far" if items_listed else "not synced yet"
