"""Requests of official clients in a replay: they reach the sandbox by HTTP, and the player answers them.

A client marks each request with its call, by a header. So `ctx.client` gets the answers of then, too. The
mark also has a number of the request: urllib3 sends one again that has no answer, and again it has none.
"""

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from declctl.errors import ApiError, StatusError
from declctl.runtime.recorder import current_call
from declctl.runtime.recording import SentRequest, request_of_client
from declctl.transport.official import ClientRequest

_CALL = "X-Declctl-Call"
AnswerClient = Callable[[SentRequest, int], Awaitable[tuple[int, Any]]]
"""Status and document for a request and its call; a status of 0 for no answer. Raises ApiError."""
_STREAMS = ("watch", "follow")  # query parameters of requests whose answers have no end


class MarkedRequests:
    """Marks requests with their call, and with a number (`ClientObserver`)."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def headers(self) -> Mapping[str, str]:
        """The mark of the next request of this thread or task."""
        return {_CALL: f"{current_call.get()} {next(self._numbers)}"}

    def answered(self, request: ClientRequest, status: int, body: bytes) -> None:
        """No effect: the player has answered."""


class ClientAnswers:
    """Answers marked requests in the place of a sandbox (`sandbox.Intercept`)."""

    def __init__(self, answer: AnswerClient, note: Callable[[str], None]) -> None:
        self._answer = answer
        self._note = note  # something that is said once
        self._unanswered: set[str] = set()  # marks

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        """The answer of the player; None for a request without a mark, or for a stream."""
        mark, url = request.headers.get(_CALL), request.rel_url
        if mark is None:
            return None
        if any(url.query.get(name) in ("true", "1") for name in _STREAMS) or "Upgrade" in request.headers:
            self._note(f"{request.method} {url.raw_path} of a client: no recording has such a stream")
            return None
        content_type = request.headers.get("Content-Type", "")
        sent = ClientRequest(request.method, str(url), content_type, await request.read())
        status, document = 0, ""
        if mark not in self._unanswered:
            try:
                status, document = await self._answer(request_of_client(sent), int(mark.split()[0]))
            except StatusError as refused:
                status = refused.code
                document = {"reason": refused.reason, "message": refused.message}
            except ApiError:
                pass  # there is no answer
        if not status:
            self._unanswered.add(mark)
            if request.transport is not None:  # the client may have gone
                request.transport.abort()
        return _response(status or 503, document)


def _response(status: int, document: Any) -> web.Response:
    if isinstance(document, str):
        return web.Response(text=document, status=status)
    if status >= 300:
        document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, **document}
    body = msgspec.json.encode(document)
    return web.Response(body=body, status=status, content_type="application/json")
