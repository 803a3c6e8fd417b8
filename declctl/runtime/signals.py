"""Signals of the process: asked to stop, asked twice, asked to reload."""

import signal
import threading
from collections.abc import Callable
from typing import Any, Self


class SignalHandlers:
    """SIGTERM and Ctrl-C stop, a second Ctrl-C ends at once, SIGHUP reloads; put back afterwards.

    Does nothing in a thread that isn't the main one, where Python allows no signal handlers.
    """

    def __init__(self, *, stop: Callable[[], None], hangup: Callable[[], Any]) -> None:
        self._stop = stop
        self._hangup = hangup
        self._asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._on_stop)
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: self._hangup())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_stop(self, number: int, _: object) -> None:
        self._asked += 1
        if self._asked > 1 and number == signal.SIGINT:
            raise SystemExit(130)
        if self._asked == 1:
            self._stop()
