"""The order to reload."""

import asyncio

from aiohttp import web

from declctl.admin.answers import answer, refusal
from declctl.admin.controlled import Controlled

_STATUS = {"Applied": 200, "Unchanged": 200, "Refused": 422}


class Reloads:
    """Asks for reloads, and keeps those that nobody waits for."""

    def __init__(self, runtime: Controlled) -> None:
        self._runtime = runtime
        self._running: set[asyncio.Task[object]] = set()

    async def reload(self, request: web.Request) -> web.StreamResponse:
        """Reload; with `?wait=false` only begin to.

        200 with the outcome, 422 if it was refused, 202 if it was not waited for. A client that goes away
        does not stop the reload. 503 while the first generation is being made: none can follow it yet.
        """
        if not self._runtime.status().generation:
            return refusal(
                503, "The process is starting and reads its files by itself; ask again in a moment."
            )
        task = asyncio.create_task(self._runtime.reload(asked=True), name="reload asked for")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if request.query.get("wait", "true").lower() in ("false", "0", "no"):
            return answer({"message": "reloading; `declctl status` will say what became of it"}, status=202)
        outcome = await asyncio.shield(task)
        return answer(
            {**outcome.document(), "line": outcome.line}, status=_STATUS.get(str(outcome.result), 200)
        )

    async def close(self) -> None:
        """Cancel what still runs: the process ends."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
