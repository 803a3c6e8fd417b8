"""A watch on the wire: takes lines from a watcher's outbox and writes them, and does what faults order.

Which lines there are is `watching`'s business.
"""

import asyncio
from collections import deque
from typing import Final, Literal

from aiohttp import web

from declctl.kit import Clock
from declctl.sandbox.faults import Faults
from declctl.sandbox.watching import Watcher

_HALF_A_LINE: Final = b'{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"na'


class WatchStream:
    """One open watch. `run` ends with the watch."""

    def __init__(self, request: web.Request, resource: str, faults: Faults) -> None:
        self.resource = resource
        self._request = request
        self._faults = faults
        self._awake = asyncio.Event()
        self._injected: deque[bytes] = deque()
        self._cut: Literal["", "clean", "hard", "mid line"] = ""

    def wake(self) -> None:
        """There is something to send, or to do."""
        self._awake.set()

    def cut(self, *, clean: bool) -> None:
        """End it at the next opportunity."""
        self._cut = "clean" if clean else "hard"
        self.wake()

    def cut_mid_line(self) -> None:
        """End it in the middle of an event."""
        self._cut = "mid line"
        self.wake()

    def inject(self, text: bytes) -> None:
        """Send bytes that are no event of any object."""
        self._injected.append(text)
        self.wake()

    async def run(self, watcher: Watcher, clock: Clock, *, timeout: float) -> web.StreamResponse:
        """Send until the watcher ends, the client leaves, or `timeout` seconds have passed."""
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        self._faults.streams.append(self)
        timer = asyncio.create_task(
            _expire(watcher, clock, timeout), name=f"watch timeout of {self.resource}"
        )
        try:
            await response.prepare(self._request)
            while await self._send(response, watcher):
                await self._awake.wait()
                self._awake.clear()
        except ConnectionError:
            self._close_socket()  # the client left: what is not sent is of no use to anybody
        finally:
            timer.cancel()
            self._faults.streams.remove(self)
        return response

    async def _send(self, response: web.StreamResponse, watcher: Watcher) -> bool:
        """Send what waits; says whether the watch goes on."""
        while self._injected and not self._cut:
            await response.write(self._injected.popleft())
        while not self._cut and not self._faults.is_silent(self.resource):
            text = watcher.take()
            if not text:
                break
            await response.write(text)
        if self._cut == "mid line":
            await response.write(_HALF_A_LINE)
        if self._cut in ("hard", "mid line"):
            self._close_socket()
        if self._cut:
            return False
        # A silent server does not say goodbye either.
        return not watcher.ended or self._faults.is_silent(self.resource)

    def _close_socket(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.close()


async def _expire(watcher: Watcher, clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)
    watcher.end()
