"""What runs, for those who plan to change it."""

import asyncio

from aiohttp import web

from declctl.admin.answers import answer, refusal
from declctl.admin.controlled import Controlled


class RunningPlan:
    """`GET /plan`: what `declctl plan --against running` compares a manifest with."""

    def __init__(self, runtime: Controlled) -> None:
        self._runtime = runtime

    async def plan(self, _: web.Request) -> web.StreamResponse:
        """The plan that runs, and its caches; 503 while the first generation is being made."""
        running = self._runtime.running()
        if running is None:
            return refusal(503, "The process is starting, and nothing runs yet; ask again in a moment.")
        return answer(await asyncio.to_thread(running.document))
