"""The fence around writes: what is not this process's to write is not sent, and what was sent is cut off.

The check is made right before the first byte, also if the request has waited for a connection. Reads pass.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from declctl.errors import NotLeader
from declctl.objects import KubeObject
from declctl.transport import Client
from declctl.writes import WriteOrigin, current_write

_NO_PARAMS: Mapping[str, str] = MappingProxyType({})
_READS = ("GET", "HEAD")


class FencedSender:
    """Sends the writes of handlers, unless `refusal` says why not. Used on the machinery loop.

    `refusal` takes the call that writes; None if it is not known. It returns an empty text for a write that
    may be sent.
    """

    def __init__(self, sender: Client, refusal: Callable[[WriteOrigin | None], str]) -> None:
        self._sender = sender
        self._refusal = refusal
        self._under_way: dict[asyncio.Future[KubeObject], WriteOrigin | None] = {}  # writes without an answer
        self._cut: set[asyncio.Future[KubeObject]] = set()  # those of them that `cut` has cancelled

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] = _NO_PARAMS,
        body: KubeObject | Sequence[KubeObject] | None = None,
        content_type: str = "application/json",
    ) -> KubeObject:
        """As that of the client. A write raises NotLeader if it is not sent, or was cut off."""
        if method in _READS:
            return await self._sender.request_json(method, path, params=params)
        origin = current_write.get()

        def check() -> None:
            if why := self._refusal(origin):
                raise NotLeader(f"{method} {path} was not sent: {why}")

        request = self._sender.request_json(
            method, path, params=params, body=body, content_type=content_type, before_send=check
        )
        sending = asyncio.ensure_future(request)
        self._under_way[sending] = origin
        try:
            return await sending
        except asyncio.CancelledError:
            if sending not in self._cut or not sending.cancelled():
                raise
            raise NotLeader(
                f"{method} {path} was under way when this process lost the lease: whether it took effect is "
                "not known"
            ) from None
        finally:
            del self._under_way[sending]
            self._cut.discard(sending)

    def cut(self, is_lost: Callable[[WriteOrigin | None], bool]) -> int:
        """Cancel the writes under way of calls that may not write any more; returns how many there were."""
        lost = [sending for sending, origin in self._under_way.items() if is_lost(origin)]
        self._cut.update(lost)
        for sending in lost:
            sending.cancel()
        return len(lost)
