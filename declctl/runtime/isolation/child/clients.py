"""The official clients of a child: the parent sends their requests, with its credentials, limits and checks.

Imported when a hook uses one. An answer comes as a whole, so a request that never ends is refused.
"""

from typing import Any
from urllib.parse import parse_qs, urlsplit

from multidict import CIMultiDict

from declctl.runtime.isolation.child.channel import AskedFuture, ParentChannel

_HOST = "http://parent"  # it is never asked: the parent replaces it
_ENDLESS = ("watch", "follow")  # parameters of a request whose answer goes on


def sync_client(channel: ParentChannel) -> Any:
    """The synchronous ApiClient."""
    from kubernetes.client import ApiClient, Configuration

    client: Any = ApiClient(configuration=_pointed_at_parent(Configuration()))
    client.rest_client = _SyncRequests(channel)
    return client


def async_client(channel: ParentChannel) -> Any:
    """The asynchronous ApiClient, for the running loop."""
    from kubernetes.aio.client import ApiClient, Configuration

    client: Any = ApiClient(configuration=_pointed_at_parent(Configuration()))
    client.rest_client = _AsyncRequests(channel)
    return client


def _pointed_at_parent(configuration: Any) -> Any:
    configuration.host = _HOST
    configuration.proxy = None
    return configuration


class _Requests:
    """The HTTP client of an official client."""

    def __init__(self, channel: ParentChannel) -> None:
        self._channel = channel

    @staticmethod
    def _given(
        method: str, url: str, headers: Any, body: Any, post_params: Any, timeout: Any
    ) -> tuple[Any, ...]:
        """What the parent is asked for. Raises RuntimeError for a request that it can't send."""
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        if any(query.get(name, ["false"])[0].lower() in ("1", "true") for name in _ENDLESS):
            raise RuntimeError(
                f"{method} {parts.path} does not end, and an isolated handler receives answers as a whole: "
                "read ctx.listers, or handle the resource by a handler of its own"
            )
        if post_params:
            raise RuntimeError(f"{method} {parts.path}: an isolated handler can't send a form")
        seconds = sum(timeout) if isinstance(timeout, tuple) else timeout  # to connect, and to read
        return method, url.removeprefix(_HOST), dict(headers or {}), body, seconds


class _SyncRequests(_Requests):
    def request(
        self,
        method: str,
        url: str,
        headers: Any = None,
        body: Any = None,
        post_params: Any = None,
        _request_timeout: Any = None,
    ) -> "_SyncResponse":
        """Send a request; returns the answer, also if it is a refusal."""
        given = self._given(method, url, headers, body, post_params, _request_timeout)
        return _SyncResponse(self._channel.running.ask("request", *given))

    def close(self) -> None:
        """No effect: there is no connection."""


class _AsyncRequests(_Requests):
    async def request(
        self,
        method: str,
        url: str,
        headers: Any = None,
        body: Any = None,
        post_params: Any = None,
        _request_timeout: Any = None,
    ) -> "_AsyncResponse":
        """Send a request; returns the answer, also if it is a refusal."""
        given = self._given(method, url, headers, body, post_params, _request_timeout)
        asked = AskedFuture(self._channel.running, _AsyncResponse, "request", given, lambda *_: None)
        return await asked

    async def close(self) -> None:
        """No effect: there is no connection."""


class _Response:
    def __init__(self, found: Any) -> None:
        self.status, self.reason, headers, self.data = found
        self.headers = CIMultiDict[str](headers)

    def getheaders(self) -> Any:
        """The headers."""
        return self.headers

    def getheader(self, name: str, default: Any = None) -> Any:
        """A header."""
        return self.headers.get(name, default)


class _SyncResponse(_Response):
    def read(self) -> bytes:
        """The body."""
        return self.data


class _AsyncResponse(_Response):
    async def read(self) -> bytes:
        """The body."""
        return self.data
