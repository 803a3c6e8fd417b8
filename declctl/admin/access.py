"""The access rules of the admin address: who may ask, who may see texts, and how a request is refused.

Three rules, in this order:

- A request must be sent to this address, and by a page of it or by no page: `Host` and `Origin` say so. This
  holds for every path. Otherwise a web page in a browser that can reach the address could send requests under
  its own name (DNS rebinding), or without reading the answer (a form).
- A request that reads objects or changes state needs the token on every address, if the process has one. A
  process without a token accepts such requests on loopback only.
- Without the needed token, other answers have types and counts, and no texts: objects, servers and handlers
  write the texts, and secrets may be in them. This module names the fields with harmless texts. The texts of
  all other fields are left out, also of fields that are added later.

Every refusal is a sentence under `error`. Refusals are counted for the metrics, and logged at most once a
minute.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from declctl.admin.authorization import (
    ALLOWED,
    UNAUTHENTICATED,
    AccessVerdict,
    Authorizer,
    Decision,
)
from declctl.errors import CacheError, NotSynced
from declctl.kit import Clock, SystemClock
from declctl.kit.hosts import Authority, is_literal, is_loopback, is_same_origin, parse_authority
from declctl.kit.running_processes import CONTROLLER_HEADER
from declctl.kit.text import excerpt, to_json
from declctl.kit.tokens import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from declctl.manifest.values import Address
from declctl.runtime.log import Log

_log = logging.getLogger(__name__)
_PATHS = (
    "there are /, /healthz, /readyz, /status, /plan, /history, /figures, /metrics, /cache/{resource}, "
    "/cache/{resource}/{key}, /index/{resource}/{index}/{value}, /queue/{handler}, "
    "/deadletters, /events, "
    "POST /-/reload, POST /-/rollback, POST /-/trigger, POST /-/requeue and POST /-/loglevel"
)
_QUIET_SECONDS = 60.0
_SHOWN = 200  # characters of a client's text in the log
_WORD = re.compile(r"[A-Za-z]+", re.ASCII)
# Names of the manifest, words of declctl, and classes of errors.
_KEPT = frozenset(
    {"name", "bundleHash", "type", "status", "state", "version", "resourceVersion", "result"}
    | {
        "time",
        "lastTransitionTime",
        "unreachableSince",
        "errorType",
        "lastErrorType",
        "lastErrorTime",
        "lastEndType",
    }
    | {"nextRun", "lastRun", "lastSuccess", "lastOutcome"}
    | {"level", "start", "until"}  # of the log
)
# Text fields, each with the field of its class.
_TYPES = {"error": "errorType", "lastError": "lastErrorType", "lastEnd": "lastEndType"}
_BEARER = "bearer"
STATUS_PATH = "/status"
_READS = ("GET", "HEAD")  # methods that are `get` for an authorizer; each other one is its own verb


def answer(document: Any, *, status: int = 200) -> web.Response:
    """A response with a JSON document."""
    return web.Response(text=f"{to_json(document)}\n", status=status, content_type="application/json")


def refusal(status: int, sentence: str) -> web.Response:
    """A response that refuses a request, with the reason."""
    return answer({"error": sentence}, status=status)


def as_sentences(paths: str = _PATHS) -> Middleware:
    """Middleware: turn an exception of a handler into a refusal with a sentence.

    `paths` says which there are at the address, for a request to another one.
    """

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except NotSynced as error:
            return refusal(503, str(error))
        except CacheError as error:
            return refusal(404, str(error))
        except web.HTTPNotFound:
            return refusal(404, f"There is nothing at {request.path}; {paths}.")
        except web.HTTPMethodNotAllowed as error:
            return refusal(
                405, f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, not {request.method}."
            )
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - the last stop: the answer is a sentence, and the log has the traceback
            _log.exception("%s %s met a fault in declctl itself", request.method, request.path)
            fault = f"{type(error).__name__}: {error}"
            return refusal(500, f"This is a fault in declctl itself, and its log has the place: {fault}")

    return answered


class Reason(StrEnum):
    """The reasons of refusals, as the label of the metric has them."""

    MALFORMED = "Malformed"  # bytes that are no HTTP request
    HOST = "Host"  # sent to another host name
    ORIGIN = "Origin"  # sent by another web page
    CONTROLLER = "Controller"  # meant for another controller
    TOKEN = "Token"  # without a token, or with a wrong one
    FORBIDDEN = "Forbidden"  # with a token whose bearer has no right to the path
    REVIEW = "Review"  # the API server could not be asked about a token
    BUSY = "Busy"  # too many requests at a time
    RATE = "Rate"  # too many requests of one client in a second
    BODY = "Body"  # a body that is too large
    CONNECTIONS = "Connections"  # too many connections: an idle one was closed for a new one
    TIMEOUT = "Timeout"  # an incomplete request, or an answer that the client did not read
    FAULT = "Fault"  # a fault of declctl


class Refusals:
    """Counts refusals by reason, and logs them. Used on one loop.

    The first refusal is logged with its sentence. Later ones of the same minute are counted, and one line has
    their number. `address` is what the log calls the address; `counts` are those of another address, if both
    are counted together.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        log: Log | None = None,
        *,
        address: str = "admin address",
        counts: dict[Reason, int] | None = None,
    ) -> None:
        self.counts = dict.fromkeys(Reason, 0) if counts is None else counts
        self._address = address
        self._clock = clock or SystemClock()
        self._log = log
        self._quiet_until = float("-inf")
        self._left_out: dict[Reason, int] = {}

    def add(self, reason: Reason, sentence: str) -> None:
        """Count a refusal, or the end of a connection."""
        self.counts[reason] += 1
        now = self._clock.monotonic()
        # One line a minute, so that a scanner can't fill the log.
        if now < self._quiet_until:
            self._left_out[reason] = self._left_out.get(reason, 0) + 1
            return
        self.sum_up()
        self._quiet_until = now + _QUIET_SECONDS
        if self._log is not None:
            self._log.warning(f"{self._address}: {sentence[: 2 * _SHOWN]}", reason=str(reason))

    def request(self, reason: Reason, request: web.Request, sentence: str) -> None:
        """Count the refusal of a request, and log its sentence."""
        what = f"{request.method} {request.path[:_SHOWN]}"
        self.add(reason, f"{what} from {request.remote} was refused: {sentence}")

    def sweep(self) -> None:
        """Log the number of unlogged refusals a minute after the last line. Called at intervals."""
        if self._left_out and self._clock.monotonic() >= self._quiet_until:
            self._quiet_until = self._clock.monotonic() + _QUIET_SECONDS
            self.sum_up()

    def sum_up(self) -> None:
        """Log the number of unlogged refusals now, if there are any."""
        left_out, self._left_out = self._left_out, {}
        if left_out and self._log is not None:
            parts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(left_out.items()))
            number = sum(left_out.values())
            self._log.warning(f"{self._address}: {number:,} more refused since the last line ({parts})")


class ServerLog(logging.Logger):
    """The logger of aiohttp's server. It counts unreadable requests, for which aiohttp would log tracebacks.

    It has no parent, so that no other log handler gets its records.
    """

    def __init__(self, refusals: Refusals) -> None:
        super().__init__("declctl.admin.server", logging.DEBUG)
        self._refusals = refusals

    def handle(self, record: logging.LogRecord) -> None:
        """Count one record: an unreadable request, or a fault of the server."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            what = excerpt(error.message, most=2 * _SHOWN)
            self._refusals.add(Reason.MALFORMED, f"{record.getMessage()}: {what}")
        elif record.levelno >= logging.WARNING:
            cause = f": {type(error).__name__}: {error}" if error is not None else ""
            self._refusals.add(Reason.FAULT, f"{record.getMessage()}{cause}")


def redacted(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `/status` or `/history` without texts, and with `redacted`.

    An error becomes its class, and a message an empty text; any other text becomes null, and a list of texts
    empty.
    """
    return {**_mapping(document), "redacted": True}


def type_name(name: str | None) -> str | None:
    """The class of an error; Exception if its name is not a proper one."""
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


OpenHandler = Callable[[web.Request, bool], web.StreamResponse | Awaitable[web.StreamResponse]]


class Access:
    """The rules of one address. Used on one loop.

    - `controller`: the name of the controller; a request may say that it is for this one alone.
    - `authorizer`: decides about tokens; None if there is no token.
    - `machine`: the host name of this machine.
    - `allowed`: returns the other host names to which requests may be sent. It is called for each request, as
      a reload may change them.
    """

    def __init__(
        self,
        address: Address,
        *,
        controller: str = "",
        authorizer: Authorizer | None = None,
        machine: str = "",
        allowed: Callable[[], Iterable[str]] = tuple,
        refusals: Refusals | None = None,
    ) -> None:
        self.is_loopback = is_loopback(address.host)
        self._names = frozenset({"localhost", machine.lower(), address.host.lower()} - {""})
        self._controller = controller
        self._authorizer = authorizer
        self._allowed = allowed
        self._refusals = refusals or Refusals()

    @web.middleware
    async def check_sender(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request to another host name, or from a page of another host. For every path."""
        given = request.headers.getall("Host", [])
        if not given and request.version < (1, 1):
            # HTTP/1.0 needs no Host, and old health checks send none. A browser always sends one, so that no
            # web page can leave it out.
            host = Authority("localhost", None)
        elif len(given) != 1 or (host := parse_authority(given[0])) is None:
            return self._refuse(request, Reason.HOST, 400, "A request needs one Host header, host:port.")
        elif not self._is_ours(host, _port(request), default=443 if request.secure else 80):
            return self._refuse(request, Reason.HOST, 403, self._names_wrong(given[0]))
        origins = request.headers.getall("Origin", [])
        if origins and (not given or not all(is_same_origin(origin, host) for origin in origins)):
            return self._refuse(request, Reason.ORIGIN, 403, "Other web pages may not ask this address.")
        return await handler(request)

    @web.middleware
    async def check_controller(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request that is meant for another controller, before it has an effect."""
        meant = request.headers.get(CONTROLLER_HEADER, self._controller)
        if meant != self._controller:
            ours = self._controller
            sentence = f"{ours} answers at this address, and the request is for {excerpt(meant, most=80)}."
            return self._refuse(request, Reason.CONTROLLER, 421, sentence)
        return await handler(request)

    def guarded(self, handler: Handler) -> Handler:
        """A handler behind the token, for requests that show objects or change state."""

        async def guard(request: web.Request) -> web.StreamResponse:
            decision = await self._decide(request, path=request.path)
            if decision.verdict is not AccessVerdict.ALLOWED:
                return self._refused(request, decision)
            return await handler(request)

        return guard

    async def end_of(self, request: web.Request) -> str | None:
        """Why a request that `guarded` has let through may not go on; None if it still may.

        For answers that take long: the token may be taken back meanwhile, or the right of its bearer.
        """
        decision = await self._decide(request, path=request.path)
        if decision.verdict is AccessVerdict.ALLOWED:
            return None
        return decision.sentence or "The token does not count any more."

    def open(self, handler: OpenHandler, *, probe: bool = False, path: str = "") -> Handler:
        """A handler for all clients; its second argument says whether texts may be shown.

        `path` is the one whose right decides; by default that of the request.

        A wrong token is refused, as its sender wants to see everything; for a `probe` it is ignored. The
        texts of a probe need the right to the status, as in each cluster all users may get /readyz.
        """

        async def show(request: web.Request) -> web.StreamResponse:
            decision = await self._decide(request, path=STATUS_PATH if probe else path or request.path)
            texts = decision.verdict is AccessVerdict.ALLOWED
            if not texts and not probe and "Authorization" in request.headers:
                return self._refused(request, decision)
            shown = handler(request, texts)
            return shown if isinstance(shown, web.StreamResponse) else await shown

        return show

    def _is_ours(self, host: Authority, port: int | None, *, default: int) -> bool:
        if host.host in self._allowed():
            return True
        if self.is_loopback:
            return (host.port or default) == port and is_loopback(host.host)
        # An address literal can't be rebound. The port may be another one, as of a Service or a port-forward.
        return is_literal(host.host) or host.host in self._names

    def _names_wrong(self, given: str) -> str:
        if self.is_loopback:
            ours = "localhost and loopback addresses with its own port"
        else:
            ours = f"IP addresses and {', '.join(sorted(self._names))}"
        named = given[:100]
        return f"This address answers to {ours}, not to {named!r}; spec.admin.allowedHosts names others."

    async def _decide(self, request: web.Request, *, path: str) -> Decision:
        """Whether a request may read texts and objects, or change state, as one to `path` may."""
        if self._authorizer is None:
            return ALLOWED if self.is_loopback else Decision(AccessVerdict.FORBIDDEN, self._no_token(request))
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        token = given.strip()
        if scheme.lower() != _BEARER or not token:
            return UNAUTHENTICATED
        verb = "get" if request.method in _READS else request.method.lower()
        return await self._authorizer.decide(token, verb, path, client=request.remote or "")

    def _refused(self, request: web.Request, decision: Decision) -> web.Response:
        match decision.verdict:
            case AccessVerdict.FORBIDDEN:
                # Without an authorizer, no token would help: the metric counts it as the others without.
                reason = Reason.TOKEN if self._authorizer is None else Reason.FORBIDDEN
                return self._refuse(request, reason, 403, decision.sentence)
            case AccessVerdict.UNDECIDED:
                return self._refuse(request, Reason.REVIEW, 503, decision.sentence)
            case _:
                sentence = f"{request.path} needs the header Authorization: Bearer with the right token."
                refused = self._refuse(request, Reason.TOKEN, 401, decision.sentence or sentence)
                refused.headers["WWW-Authenticate"] = "Bearer"
                return refused

    @staticmethod
    def _no_token(request: web.Request) -> str:
        return (
            f"This address is not loopback, so that {request.path} needs a token, and the process has none; "
            f"start it with {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE} set, or with spec.admin.tokenFile."
        )

    def _refuse(self, request: web.Request, reason: Reason, status: int, sentence: str) -> web.Response:
        self._refusals.request(reason, request, sentence)
        return refusal(status, sentence)


def _port(request: web.Request) -> int | None:
    """The local port of the connection; None if it is closed."""
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return None if name is None else int(name[1])
