"""`GET /events`: the calls of handlers and the marks of reloads, live, as server-sent events.

Each event is one JSON document. `dropped` says how many calls a slow client has lost, and `end` why the
stream ends: the process ends, or the client has lost the right to it. A comment comes while nothing happens,
so that proxies and clients see that the connection lives. A client that does not read is cut off.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from declctl.admin.access import refusal
from declctl.kit.text import excerpt, to_json
from declctl.manifest.diagnostics import closest
from declctl.runtime.handling.tap import TapFilter, TapListener, TapMark, TappedCall

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.runtime import Runtime

MOST_LISTENERS = 4  # of the 16 requests that the address answers at a time
LOOK_SECONDS: Final = 1.0  # between two looks whether the client is still there, and may still see calls
_SILENT_LOOKS = 10  # after which a comment is sent
_WRITE_SECONDS = 30.0  # for a client that does not read
_FLAGS = ("true", "1", "yes")


class TapStreams:
    """Streams the tap of one process to clients. Used on the machinery loop.

    `end_of` returns why the sender of a request may not see calls any more, or None. `close` ends all
    streams, so that the server does not wait for them.
    """

    def __init__(self, runtime: "Runtime", *, end_of: Callable[[web.Request], Awaitable[str | None]]) -> None:
        self._runtime = runtime
        self._end_of = end_of

    async def close(self, _: object = None) -> None:
        """Let each stream say that the process ends, and end."""
        self._runtime.tap.close()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Stream until the client goes, loses the right to see calls, or the process ends.

        `?of=` names a handler or a resource; `?handler=`, `?namespace=`, `?name=` (with `*` and `?`) and
        `?failed=true` limit the calls. 404 for an unknown handler or resource, 503 if there are too many
        streams.
        """
        query = request.query
        chosen = TapFilter(
            of=query.get("of", ""),
            handler=query.get("handler", ""),
            namespace=query.get("namespace", ""),
            name=query.get("name", ""),
            failed=query.get("failed", "").lower() in _FLAGS,
        )
        refused = self._unknown(chosen)
        if refused is not None:
            return refused
        if len(self._runtime.tap.listeners) >= MOST_LISTENERS:
            busy = refusal(503, f"{MOST_LISTENERS} clients listen already; end one of them first.")
            busy.headers["Retry-After"] = "1"
            return busy
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        if request.method == "HEAD":
            return response
        listener = self._runtime.tap.listen(chosen, asyncio.get_running_loop())
        try:
            await response.prepare(request)
            await self._send(request, response, listener)
        finally:
            self._runtime.tap.leave(listener)
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, listener: TapListener) -> None:
        """Send what comes, until the client has gone or may see no more, or the listener is closed."""
        status = self._runtime.status()
        begin = {"kind": "begin", "name": status.name, "generation": status.generation}
        if not await self._write(request, response, _event(begin)):
            return
        silent, asked_at = 0, monotonic()
        while request.transport is not None and not request.transport.is_closing():
            waited = await listener.wait(LOOK_SECONDS)
            # The decision at the begin does not hold for ever: a token is taken back, a right as well.
            if monotonic() - asked_at >= LOOK_SECONDS:
                asked_at, reason = monotonic(), await self._end_of(request)
                if reason is not None:
                    await self._write(request, response, _event({"kind": "end", "reason": reason}))
                    return
            if not waited:
                silent += 1
                if silent < _SILENT_LOOKS:
                    continue
                silent = 0
                if not await self._write(request, response, b": nothing happens\n\n"):
                    return
                continue
            silent = 0
            closes = listener.is_closed  # before the last items are taken
            taken, dropped = listener.take()
            # In a thread: the paths of a large object take milliseconds.
            text = await asyncio.to_thread(_encode, taken, dropped)
            if closes:
                text += _event({"kind": "end", "reason": "the process ends"})
            if (text and not await self._write(request, response, text)) or closes:
                return

    @staticmethod
    async def _write(request: web.Request, response: web.StreamResponse, text: bytes) -> bool:
        """Send a text; False if the client has gone, or was cut off because it does not read."""
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                await response.write(text)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return False
        except ConnectionError:
            return False
        return True

    def _unknown(self, chosen: TapFilter) -> web.Response | None:
        """The refusal of a name that the running manifest does not have; None if it has all."""
        status = self._runtime.status()
        handlers = [each.name for each in status.handlers]
        resources = [each.name for each in status.resources]
        for given, known, what in (
            (chosen.of, [*handlers, *resources], "handler or resource"),
            (chosen.handler, handlers, "handler"),
        ):
            if given and given not in known:
                near = closest(given, known)
                advice = f"did you mean {near}?" if near else f"there are {', '.join(known) or 'none'}."
                return refusal(404, f"No {what} is named {excerpt(given, most=80)}; {advice}")
        return None


def _encode(items: Sequence[TappedCall | TapMark], dropped: int) -> bytes:
    """The items as events, and how many calls were lost after them."""
    parts = [_event(item.document()) for item in items]
    if dropped:
        parts.append(_event({"kind": "dropped", "count": dropped}))
    return b"".join(parts)


def _event(document: dict[str, Any]) -> bytes:
    # JSON on one line: a line end within it would end the event.
    return f"event: {document['kind']}\ndata: {to_json(document)}\n\n".encode()
