"""What the admin address refuses: counted for the metrics, and said in the log once a minute at most."""

import logging
from enum import StrEnum

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from declctl.kit import Clock, SystemClock
from declctl.kit.text import excerpt
from declctl.runtime.log import Log

_QUIET_SECONDS = 60.0
_SHOWN = 200  # characters of what a stranger wrote


class Reason(StrEnum):
    """Why something was refused, as the label of the metric has it."""

    MALFORMED = "Malformed"  # bytes that are no HTTP request
    HOST = "Host"  # sent to another name
    ORIGIN = "Origin"  # sent by another web page
    TOKEN = "Token"  # without the token, or with a wrong one
    BUSY = "Busy"  # too many requests at a time
    CONNECTIONS = "Connections"  # too many connections: one that waited was closed for another
    TIMEOUT = "Timeout"  # a request that did not come in, or an answer that was not read
    FAULT = "Fault"  # a fault of declctl


class Refusals:
    """Counts of what was refused, by reason, and the log line about it. Used on one loop.

    The first refusal is logged as it is. Those that follow within a minute are counted, and one line has
    their number.
    """

    def __init__(self, clock: Clock | None = None, log: Log | None = None) -> None:
        self.counts = dict.fromkeys(Reason, 0)
        self._clock = clock or SystemClock()
        self._log = log
        self._quiet_until = float("-inf")
        self._left_out: dict[Reason, int] = {}

    def add(self, reason: Reason, sentence: str) -> None:
        """Something was refused, or a connection ended."""
        self.counts[reason] += 1
        now = self._clock.monotonic()
        if now < self._quiet_until:
            self._left_out[reason] = self._left_out.get(reason, 0) + 1
            return
        self.sum_up()
        self._quiet_until = now + _QUIET_SECONDS
        if self._log is not None:
            self._log.warning(f"admin address: {sentence[: 2 * _SHOWN]}", reason=str(reason))

    def request(self, reason: Reason, request: web.Request, sentence: str) -> None:
        """A request was refused with this sentence."""
        what = f"{request.method} {request.path[:_SHOWN]}"
        self.add(reason, f"{what} from {request.remote} was refused: {sentence}")

    def sweep(self) -> None:
        """Say what was left out, a minute after the last line. Called once in a while."""
        if self._left_out and self._clock.monotonic() >= self._quiet_until:
            self._quiet_until = self._clock.monotonic() + _QUIET_SECONDS
            self.sum_up()

    def sum_up(self) -> None:
        """Say now how much was left out, if anything was."""
        left_out, self._left_out = self._left_out, {}
        if left_out and self._log is not None:
            parts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(left_out.items()))
            number = sum(left_out.values())
            self._log.warning(f"admin address: {number:,} more refused since the last line ({parts})")


class ServerLog(logging.Logger):
    """The logger for aiohttp's server, which logs a traceback for each request that it can't read.

    This logger counts such requests instead. It has no parent: no other handler sees its records.
    """

    def __init__(self, refusals: Refusals) -> None:
        super().__init__("declctl.admin.server", logging.DEBUG)
        self._refusals = refusals

    def handle(self, record: logging.LogRecord) -> None:
        """One record: of a request that is no HTTP, or of a fault of the server."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            what = excerpt(error.message, most=2 * _SHOWN)
            self._refusals.add(Reason.MALFORMED, f"{record.getMessage()}: {what}")
        elif record.levelno >= logging.WARNING:
            told = f": {type(error).__name__}: {error}" if error is not None else ""
            self._refusals.add(Reason.FAULT, f"{record.getMessage()}{told}")
