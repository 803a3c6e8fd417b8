"""HTTP requests and answers as values: requests, the errors of answers, and the counts of both.

Nothing here has a socket: `wire` sends requests, reads bodies, and makes the errors of
connections without an answer.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Protocol, cast

import msgspec

from declctl.errors import MalformedAnswer, StatusError
from declctl.kit.secret_values import secret_values
from declctl.kit.text import excerpt
from declctl.objects import KubeObject, status_error
from declctl.objects.answers import decoded

_SHOWN = 200  # characters in messages, of a body that is no Status and of a redirect's address
# The reasons of metav1.StatusReason for answers that carry no Status, such as a proxy's.
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiRequest(msgspec.Struct, frozen=True):
    """One request."""

    verb: str  # by which it is counted: LIST, WATCH, GET, …
    path: str
    method: str = "GET"
    params: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    watch_seconds: int = 0  # after which the server ends a WATCH; 0 for any other request
    # Called right before the first byte; what it raises, the request raises.
    before_send: Callable[[], object] | None = None


class BrokenBody(ValueError):
    """A body in another form than the head of its answer announces: no chunks, or no gzip."""


class Sink(Protocol):
    """Takes the bytes of a body."""

    def feed(self, part: memoryview) -> None:
        """Take the next bytes, at least one. The memory is reused: bytes that are kept have to be copied."""
        ...


class Channel(Protocol):
    """The body of one LIST or WATCH while it arrives."""

    async def read(self) -> bool:
        """Wait until the sink has more bytes; False at the end of the body. Raises the ApiError family."""
        ...

    def close(self) -> None:
        """End the connection, unless the whole body was read. May be repeated."""
        ...


class Wire(Protocol):
    """The connections to one server."""

    async def fetch(self, request: ApiRequest) -> bytes:
        """The body of a successful answer; raises the ApiError family."""
        ...

    async def open(self, request: ApiRequest, sink: Sink) -> Channel:
        """Send a LIST or a WATCH; returns its body when the server accepts it. Raises the ApiError family.

        The sink gets the bytes while the channel is read, and a little before.
        """
        ...

    async def close(self) -> None:
        """Close every connection; requests after this raise Unreachable."""
        ...


def answer_error(code: int, headers: Mapping[str, str], body: bytes, *, now: datetime) -> StatusError:
    """The error of an answer with the HTTP status `code`.

    Without a Status in the body, as for the page of a proxy, it has the code and the beginning of the text.
    """
    wait = retry_after(headers.get("Retry-After"), now=now)
    status = _status(body)
    if status is not None:
        return cast(
            "StatusError", status_error({**status, "code": status.get("code") or code}, retry_after=wait)
        )
    beginning = body[: 64 * _SHOWN].decode("utf-8", "replace")
    text = excerpt(secret_values.hide(beginning), most=_SHOWN)
    bare = {"code": code, "reason": _reason(code), "message": text}
    return cast("StatusError", status_error(bare, retry_after=wait))


def redirect_error(code: int, headers: Mapping[str, str], *, server: str) -> StatusError | None:
    """The error of a redirect; None for any other answer.

    Redirects are not followed, because the credentials of a kubeconfig are for the address in it.
    """
    where = headers.get("Location")
    if not 300 <= code < 400 or not where:
        return None
    message = (
        f"{server} redirects to {where[:_SHOWN]!r}. Redirects are not followed, because the credentials "
        "would go along; if that is the API server, name it in the kubeconfig"
    )
    return cast("StatusError", status_error({"code": code, "reason": "Redirected", "message": message}))


def retry_after(value: str | None, *, now: datetime) -> float | None:
    """The seconds of a Retry-After header, a number or a date; None if it is unreadable or in the past."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except (ValueError, OverflowError, TypeError):
            return None
        seconds = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()
    return seconds if 0 < seconds < float("inf") else None


def json_object(body: bytes, *, what: str) -> KubeObject:
    """The JSON object of a successful answer, `{}` for an empty one.

    Raises MalformedAnswer for anything else. `what` is the request, for the message.
    """
    if not body or body.isspace():
        return {}
    try:
        value: Any = decoded(body)
    except MalformedAnswer as fault:
        why = fault.__cause__ or fault
        raise MalformedAnswer(
            f"the answer to {what} is no JSON: {why}; it begins with {body[:120]!r}"
        ) from fault
    if not isinstance(value, dict):
        raise MalformedAnswer(f"the answer to {what} is no JSON object; it begins with {body[:120]!r}")
    return cast("KubeObject", value)


def _status(body: bytes) -> KubeObject | None:
    try:
        value: Any = decoded(body)
    except MalformedAnswer:
        return None
    if not isinstance(value, dict):
        return None
    status = cast("KubeObject", value)
    return status if status.get("kind") == "Status" else None


def _reason(code: int) -> str:
    if code in _REASONS:
        return _REASONS[code]
    try:
        return HTTPStatus(code).phrase.replace(" ", "")
    except ValueError:
        return "Unknown"


NO_ANSWER = "<error>"
"""The code of a request without an answer in `rest_client_requests_total`, as in client-go."""


class RequestTotal(msgspec.Struct, frozen=True):
    """The number of requests with one HTTP method and one result."""

    method: str
    code: str  # of the answer; `<error>` for none, as in client-go
    count: int


class TransportStatistics(msgspec.Struct, frozen=True):
    """The figures of one client."""

    requests: Mapping[tuple[str, int], int]  # by verb (LIST, WATCH, GET, …) and HTTP status, 0 for no answer
    bytes_in: int  # of bodies of LISTs, WATCHes and other successful answers
    open_watches: int  # now
    last_error: str | None  # as a sentence
    totals: Sequence[RequestTotal] = ()  # also of the requests of official clients


class TransportCounters:
    """The figures while they grow. Only this package writes them: on the client's loop, but for `sent`."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.bytes_in = 0
        self.open_watches = 0
        self.last_error: str | None = None
        self._lock = threading.Lock()  # guards `_sent`
        self._sent: Counter[tuple[str, int]] = Counter()  # by HTTP method and status, 0 for no answer

    def sent(self, method: str, status: int) -> None:
        """Count a request that was sent, once: by the status of its answer, or 0 if none came.

        A repetition after a login, and each page of a list, is a request of its own. From any thread.
        """
        with self._lock:
            self._sent[method, status] += 1

    def answered(self, verb: str, status: int) -> None:
        """Count an answer when its head has come."""
        self.requests[verb, status] += 1

    def failed(self, verb: str, message: str) -> None:
        """Count a request without an answer."""
        self.requests[verb, 0] += 1
        self.last_error = message

    def frozen(self) -> TransportStatistics:
        """The figures of this moment."""
        with self._lock:
            sent = sorted(self._sent.items())
        totals = [RequestTotal(method, str(code) if code else NO_ANSWER, n) for (method, code), n in sent]
        return TransportStatistics(
            dict(self.requests), self.bytes_in, self.open_watches, self.last_error, totals
        )
