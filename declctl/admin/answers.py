"""Answers of the admin address: JSON, and every refusal a sentence under `error`.

Refusals are counted for the metrics, and said in the log once a minute at most.

What of a document may be shown to everybody is types and counts, no texts. Handlers, servers and objects
write the texts, and secrets may be in them. This module names the fields whose texts are harmless. The texts
of all other fields are left out, also of fields that are added later.
"""

import logging
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from declctl.errors import CacheError, NotSynced
from declctl.kit import Clock, SystemClock
from declctl.kit.text import excerpt, to_json
from declctl.runtime.log import Log

_log = logging.getLogger(__name__)
_PATHS = (
    "/, /healthz, /readyz, /status, /plan, /history, /metrics, /cache/{resource}, /cache/{resource}/{key}, "
    "/index/{resource}/{index}/{value}, "
    "POST /-/reload and POST /-/rollback"
)


def answer(document: Any, *, status: int = 200) -> web.Response:
    """A JSON document."""
    return web.Response(text=f"{to_json(document)}\n", status=status, content_type="application/json")


def refusal(status: int, sentence: str) -> web.Response:
    """Why not."""
    return answer({"error": sentence}, status=status)


@web.middleware
async def as_sentences(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what is raised on the way into a sentence."""
    try:
        return await handler(request)
    except NotSynced as error:
        return refusal(503, str(error))
    except CacheError as error:
        return refusal(404, str(error))
    except web.HTTPNotFound:
        return refusal(404, f"There is nothing at {request.path}; there are {_PATHS}.")
    except web.HTTPMethodNotAllowed as error:
        return refusal(
            405, f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, not {request.method}."
        )
    except web.HTTPException:
        raise
    except Exception as error:  # noqa: BLE001 - the last stop: the answer is a sentence, and the log has the traceback
        _log.exception("%s %s met a fault in declctl itself", request.method, request.path)
        return refusal(500, f"This is a fault in declctl itself, and its log has the place: {_told(error)}")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


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


_WORD = re.compile(r"[A-Za-z]+", re.ASCII)
# Names of the manifest, words of declctl, and classes of errors.
_KEPT = frozenset(
    {"name", "bundleHash", "type", "status", "state", "version", "resourceVersion", "result"}
    | {"time", "lastTransitionTime", "unreachableSince", "errorType", "lastErrorType"}
)
_TYPES = {"error": "errorType", "lastError": "lastErrorType"}  # a text, and the field that has its class


def redacted(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `/status` or `/history` without texts, and with `redacted`.

    An error is its class, a message is empty, any other text is null and any list of texts empty.
    """
    return {**_mapping(document), "redacted": True}


def type_name(name: str | None) -> str | None:
    """The class of an error; one that has no proper name is an Exception."""
    return name if name is None or name.isidentifier() else "Exception"


def _mapping(given: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: _value(key, value) for key, value in given.items()}
    for text, kind in _TYPES.items():
        if kind in given:
            shown[text] = shown[kind] = type_name(given[kind])
    return shown


def _value(key: str, value: Any) -> Any:
    match value:
        case str():
            return value if key in _KEPT or (key == "reason" and _WORD.fullmatch(value)) else _nothing(key)
        case Mapping():
            return _mapping(cast("Mapping[str, Any]", value))
        case list() | tuple():
            items = cast("list[Any]", value)
            return [_value(key, item) for item in items if not isinstance(item, str)]
        case _:
            return value


def _nothing(key: str) -> str | None:
    return "" if key == "message" else None
