"""Deadlines on a Clock: they end a request on which nothing is received any more."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from declctl.errors import WatchSilent
from declctl.kit import Clock

_WAIT_SECONDS = 10.0  # between two calls of `on_wait`, as client-go's wait for a bookmark


class Deadline:
    """Cancels the body of its `async with`: after `idle` seconds without a `touch`, or `overall` seconds.

    Then leaving the body raises WatchSilent. The body calls `touch` whenever something is received. `strike`
    ends the body at once, with a fault of the caller's. `on_wait` is called every 10 s while the body runs,
    with the seconds since the beginning and since the last `touch`. A deadline costs one task, and a `touch`
    costs none.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        idle: float,
        overall: float = float("inf"),
        what: str,
        on_wait: Callable[[float, float], None] | None = None,
    ) -> None:
        self._clock = clock
        self._on_wait = on_wait
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
        """Something was received now; returns the time of that, on the clock."""
        self._heard = self._clock.monotonic()
        return self._heard

    def strike(self, fault: Exception) -> None:
        """End the body, which then raises `fault`. Outside of the body nothing happens."""
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
            if self._on_wait is None:
                await self._clock.sleep(left)
                continue
            await self._clock.sleep(min(left, _WAIT_SECONDS))
            now = self._clock.monotonic()
            if self._left() > 0:
                self._on_wait(now - self._began, now - self._heard)
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
