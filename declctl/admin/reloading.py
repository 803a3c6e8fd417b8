"""The orders to reload and to go back, and what became of those before."""

import asyncio
import re
from typing import Any

from aiohttp import web

from declctl.admin.answers import answer, refusal
from declctl.admin.controlled import Controlled, Told
from declctl.admin.redaction import redacted
from declctl.runtime.reloading.outcome import STOPPING

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_STATUS = {"Applied": 200, "Unchanged": 200, "Refused": 422}


class Reloads:
    """Asks for reloads, and keeps those that nobody waits for."""

    def __init__(self, runtime: Controlled) -> None:
        self._runtime = runtime
        self._running: set[asyncio.Task[object]] = set()

    async def reload(self, request: web.Request) -> web.StreamResponse:
        """Reload; with `?wait=false` only begin to, with `?force=true` make all code anew.

        200 with the outcome, 422 if it was refused, 202 if it was not waited for. A client that goes away
        does not stop the reload. 503 while the first generation is being made, as none can follow it yet,
        and while the process ends.
        """
        if not self._runtime.status().generation:
            return _starting()
        wait, force = _flag(request, "wait", default=True), _flag(request, "force", default=False)
        task = asyncio.create_task(self._runtime.reload(asked=True, force=force), name="reload asked for")
        self._keep(task)
        if not wait:
            return answer({"message": "reloading; `declctl status` will say what became of it"}, status=202)
        return _told(await asyncio.shield(task))

    async def rollback(self, request: web.Request) -> web.StreamResponse:
        """Let the generation before run again; with `?generation=N` the one of that number.

        200 with the outcome; 422 if it is not in memory any more, or can not take over.
        """
        if not self._runtime.status().generation:
            return _starting()
        named = request.query.get("generation")
        if named is not None and not _NUMBER.fullmatch(named):
            return refusal(400, f"{named[:40]!r} is not the number of a generation; GET /history has them.")
        number = None if named is None else int(named)
        task = asyncio.create_task(self._runtime.rollback(number), name="rollback asked for")
        self._keep(task)
        return _told(await asyncio.shield(task))

    def history(self, _: web.Request, texts: bool) -> web.StreamResponse:
        """What became of the newest attempts."""
        document = self._runtime.history()
        return answer(document if texts else redacted(document))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cancel what still runs: the process ends."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _flag(request: web.Request, name: str, *, default: bool) -> bool:
    """A parameter that is true or false; what is neither is the default."""
    said = request.query.get(name, "").lower()
    return said in ("true", "1", "yes") or (default and said not in ("false", "0", "no"))


def _told(outcome: Told) -> web.Response:
    document = {**outcome.document(), "line": outcome.line}
    status = 503 if document.get("reason") == STOPPING else _STATUS.get(str(outcome.result), 200)
    return answer(document, status=status)


def _starting() -> web.Response:
    return refusal(503, "The process is starting and reads its files by itself; ask again in a moment.")
