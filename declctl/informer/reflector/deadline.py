"""Deadlines on a Clock: the end of waiting for somebody who says nothing."""

import asyncio
from types import TracebackType
from typing import Self

from declctl.errors import WatchSilent
from declctl.kit import Clock


class Deadline:
    """Cancels its body when nothing was heard for `idle` seconds, or after `overall` seconds.

    `async with` it and `touch` it whenever something is heard; leaving it raises WatchSilent if it
    struck. `strike` ends the body at once, with a fault of one's own. It costs one task, however
    often it is touched.
    """

    def __init__(self, clock: Clock, *, idle: float, overall: float = float("inf"), what: str) -> None:
        self._clock = clock
        self._idle = idle
        self._overall = overall
        self._what = what
        self._heard = self._began = clock.monotonic()
        self._struck = False
        self._fault: Exception | None = None
        self._body: asyncio.Task[object] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._cancelling = 0

    def touch(self) -> float:
        """Something was heard; returns when that is."""
        self._heard = self._clock.monotonic()
        return self._heard

    def strike(self, fault: Exception) -> None:
        """End the body; leaving it raises `fault`. Does nothing outside of the body."""
        if self._body is not None and not self._struck:
            self._fault, self._struck = fault, True
            self._body.cancel()

    async def __aenter__(self) -> Self:
        self._body = asyncio.current_task()
        assert self._body is not None
        self._cancelling = self._body.cancelling()
        self._watchdog = asyncio.create_task(self._watch(self._body))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        assert body is not None
        assert self._watchdog is not None
        self._watchdog.cancel()
        if not self._struck:
            return
        # As asyncio.timeout does: a cancellation from elsewhere goes first.
        if body.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._fault or WatchSilent(self._message()) from error

    async def _watch(self, body: "asyncio.Task[object]") -> None:
        while (left := self._left()) > 0:
            await self._clock.sleep(left)
        if not self._struck:
            self._struck = True
            body.cancel()

    def _left(self) -> float:
        until = min(self._heard + self._idle, self._began + self._overall)
        return until - self._clock.monotonic()

    def _message(self) -> str:
        silent = self._clock.monotonic() - self._heard
        if silent >= self._idle:
            return f"{self._what} said nothing, not even a bookmark, for {silent:.0f} s"
        return f"{self._what} was not complete after {self._overall:.0f} s"
