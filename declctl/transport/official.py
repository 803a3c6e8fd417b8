"""Official API clients for handlers: the same cluster and credentials as the informers, and no redirects.

Their writes are guarded: they ask whether this process leads, and in a dry run the server stores nothing. A
gate limits their rate, and receives what became of them. Values of Secrets that pass are remembered, so that
no text shows them.
"""

import asyncio
import functools
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from declctl.errors import NotLeader, UsageError
from declctl.kit.hosts import ServerUrl
from declctl.kit.secret_values import is_secret, secret_values
from declctl.kit.text import exception_text
from declctl.objects.api_path import is_about_secrets
from declctl.objects.frame import UNREADABLE
from declctl.transport.credentials import LOGIN_SECONDS, TOKEN, Credentials
from declctl.transport.first_byte import check_first_byte, checking_connection
from declctl.transport.messages import redirect_error

_CLOSE_SECONDS = 2.0  # for a client of another loop
_GUARD = "declctl_guard"  # the attribute of a synchronous Configuration that has its `SyncGuard`
_WARNING = "Warning"
_READS = ("GET", "HEAD", "OPTIONS")
_installing = threading.Lock()
# The attributes of our configuration that both official ones have.
_SHARED = (
    "host",
    "ssl_ca_cert",
    "ca_cert_data",
    "cert_file",
    "key_file",
    "verify_ssl",
    "assert_hostname",
    "tls_server_name",
    "disable_strict_ssl_verification",
)
_ASYNCHRONOUS = ("proxy", "proxy_headers", "client_session_kwargs")


class ClientWrite(msgspec.Struct, frozen=True):
    """A write of an official client after its end.

    `status` is None without an answer: then `error` is set.
    """

    method: str
    url: str  # with the query
    user_agent: str
    content_type: str
    body: object  # bytes or text, as the caller has given it
    dry_run: bool
    status: int | None = None
    error: BaseException | None = None


class ClientGate(Protocol):
    """What writes of official clients pass: a rate limit before they are sent, and a ledger after their end.

    All methods are called in the thread, or in the task, of the code that writes.
    """

    def begin(self) -> float:
        """The time, in seconds of a monotonic clock."""
        ...

    def wait(self) -> None:
        """Block until the rate limit lets a write pass."""
        ...

    async def wait_async(self) -> None:
        """As `wait`, without blocking the loop."""
        ...

    def add(self, write: ClientWrite, began: float) -> None:
        """Receive a write after its end. `began` is the result of `begin`."""
        ...


class ClientObserver(Protocol):
    """Sees all requests of official clients. In the thread, or in the task, of the code that sends them."""

    def headers(self) -> Mapping[str, str]:
        """What is sent with the next request."""
        ...

    def answered(self, request: "ClientRequest", status: int, body: bytes) -> None:
        """A whole answer was read. With a `status` of 0 there is none, and `body` is a text that says why.

        An answer that is not read as a whole, as that of a watch, is not told.
        """
        ...


class ClientRequest(msgspec.Struct, frozen=True):
    """A request of an official client."""

    method: str
    url: str  # with the query
    content_type: str
    body: object  # bytes or text, as the caller has given it


class OfficialClients:
    """Makes official clients and closes them.

    `given` is a client of the caller: handlers get it as it is, and it is never closed here. There is one
    asyncio client for each loop, made on that loop; the synchronous client is for any thread. `count` takes
    the method and the status of each request, 0 for no answer, in the thread or task that has sent it;
    `warned` takes method, path and `Warning` headers of an answer that has such headers.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        given: Any,
        user_agent: str,
        count: Callable[[str, int], None] = lambda _method, _status: None,
        warned: Callable[[str, str, Sequence[str]], None] = lambda _method, _path, _headers: None,
    ) -> None:
        self._credentials = credentials
        self._given = given
        self._user_agent = user_agent
        self._by_loop: dict[asyncio.AbstractEventLoop, Any] = {}
        self._synchronous: Any = None
        self._home: asyncio.AbstractEventLoop | None = None  # the loop on which credentials are renewed
        self.guard = WriteGuard(count, warned)
        if given is None:
            # In the configuration, so that it also holds for clients that a handler makes from it.
            ours = credentials.configuration
            ours.client_session_kwargs = {
                **(ours.client_session_kwargs or {}),
                "middlewares": (refuse_redirect, remember_secrets, self.guard),
            }

    def live_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop that renews the credentials for all loops and threads. The first call decides."""
        if self._home is None:
            self._home = loop

    def asynchronous(self) -> Any:
        """The kubernetes.aio ApiClient for the running loop; raises RuntimeError where no loop runs."""
        if self._given is not None:
            return self._given
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise RuntimeError(
                "the asynchronous client belongs to a loop, so it is for `async def` hooks; a `def` hook has "
                "ctx.sync_client"
            ) from error
        if loop not in self._by_loop:
            from kubernetes.aio.client import ApiClient, Configuration  # late: it loads aiohttp
            from kubernetes.aio.watch import Watch

            _let_watches_remember(Watch)
            theirs: Any = Configuration()
            self._copy_into(theirs, *_SHARED, *_ASYNCHRONOUS)
            theirs.api_key = dict(self._credentials.configuration.api_key)
            theirs.refresh_api_key_hook = self._renew_async
            client = ApiClient(configuration=theirs)
            client.user_agent = self._user_agent
            self._by_loop[loop] = client
        return self._by_loop[loop]

    def synchronous(self) -> Any:
        """The kubernetes.client ApiClient, for any thread."""
        if self._synchronous is None:
            from kubernetes.client import ApiClient, Configuration  # late: a login loads it
            from kubernetes.watch import Watch
            from urllib3 import Retry

            _let_watches_remember(Watch)

            theirs: Any = Configuration()
            ours = self._credentials.configuration
            self._copy_into(theirs, *_SHARED)
            # The constructor has read HTTP_PROXY and NO_PROXY. The latter does not apply to a kubeconfig's
            # proxy.
            if ours.proxy:
                theirs.proxy = ours.proxy
                theirs.proxy_headers = ours.proxy_headers
                theirs.no_proxy = ""
            elif ServerUrl.of(ours.host).is_loopback:
                theirs.proxy = None
            for name, key in ours.api_key.items():
                prefix = ours.api_key_prefix.get(name)
                theirs.api_key[name] = f"{prefix} {key}" if prefix else key
            theirs.refresh_api_key_hook = self._renew_sync
            theirs.retries = Retry.DEFAULT.new(redirect=False)  # a redirect becomes an ApiException
            impersonated = list((ours.client_session_kwargs or {}).get("headers", {}).items())
            # In the configuration, so that it also holds for clients that a handler makes from it.
            _let_configurations_guard()
            setattr(theirs, _GUARD, SyncGuard(self.guard, impersonated))
            client_class = _refusing_streams(ApiClient) if impersonated else ApiClient
            self._synchronous = client_class(configuration=theirs)
            self._synchronous.user_agent = self._user_agent
        return self._synchronous

    async def close(self) -> None:
        """Close all clients that were made here, each on its own loop."""
        clients, self._by_loop = self._by_loop, {}
        for loop, client in clients.items():
            if loop is asyncio.get_running_loop() or not loop.is_running():
                await client.close()
            else:
                await _close_on(client, loop)
        synchronous, self._synchronous = self._synchronous, None
        if synchronous is not None:
            synchronous.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> "OfficialClients":
        return self  # a copy of a configuration has its hook, which is a method of this object

    def _copy_into(self, theirs: Any, *names: str) -> None:
        for name in names:
            setattr(theirs, name, getattr(self._credentials.configuration, name))

    async def _renew_async(self, theirs: Any) -> None:
        """The hook of asyncio configurations, also of copies: before each request they get the token."""
        home = self._home
        if home is None or not home.is_running() or _runs_here(home):
            await self._credentials.keep_fresh()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._credentials.keep_fresh(), home))
        self._copy_into(theirs, "ssl_ca_cert", "cert_file", "key_file")
        theirs.api_key = dict(self._credentials.configuration.api_key)

    def _renew_sync(self, theirs: Any) -> None:
        home = self._home
        if home is None or not home.is_running() or _runs_here(home):
            return  # this call would wait for its own loop: the last token is used
        proof = asyncio.run_coroutine_threadsafe(self._credentials.proof(), home).result(LOGIN_SECONDS + 5)
        if proof.authorization:
            theirs.api_key[TOKEN] = proof.authorization


async def _close_on(client: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Close a client on its own loop. If that loop is blocked, the process closes it when it ends."""
    closed = asyncio.run_coroutine_threadsafe(client.close(), loop)
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await asyncio.wrap_future(closed)


async def refuse_redirect(request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
    """A middleware of aiohttp that raises ApiException for a redirect instead of following it."""
    response = await send(request)
    redirect = redirect_error(response.status, response.headers, server=str(request.url.origin()))
    if redirect is None:
        return response
    from kubernetes.aio.client import ApiException  # late, as above

    response.close()
    error: Any = ApiException(status=response.status, reason=str(redirect))
    error.headers = response.headers
    raise error


async def remember_secrets(request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
    """A middleware of aiohttp that remembers the values of Secrets in the body and in the whole answer."""
    if not is_about_secrets(request.url.raw_path):
        return await send(request)
    _remember(await _body_of(request))
    response = await send(request)
    _tell_when_read(response, _remember)
    return response


async def _body_of(request: Any) -> bytes:
    """The body of a request of aiohttp: bytes if it is empty, else a payload."""
    body = request.body
    return body if isinstance(body, bytes) else await body.as_bytes()


def _tell_when_read(response: Any, tell: Callable[[bytes], object]) -> None:
    """Tell the content of an answer of aiohttp when it is read as a whole."""
    read = response.read

    async def reading() -> bytes:
        content = await read()
        tell(content)
        return content

    response.read = reading


def _remember(content: object) -> None:
    """Remember the values of Secrets in the body of a request or of an answer, if it is JSON."""
    if isinstance(content, str | bytes):
        with suppress(*UNREADABLE):  # nothing, another format, or a part
            secret_values.remember_request(msgspec.json.decode(content))


def _tell_when_read_sync(response: Any, tell: Callable[[bytes], object]) -> None:
    """As `_tell_when_read`, of urllib3."""
    read = response.read

    def reading(amt: int | None = None, **options: Any) -> bytes:
        content = read(amt, **options)
        if amt is None:
            tell(content)
        return content

    response.read = reading


def _let_watches_remember(watch: Any) -> None:
    """Let a Watch of kubernetes, which reads its answer by lines, remember its Secrets. May be repeated."""
    with _installing:
        official = watch.unmarshal_event
        if hasattr(official, _GUARD):
            return

        @functools.wraps(official)
        def extended(*args: Any, **options: Any) -> Any:
            event = official(*args, **options)
            obj = event.get("raw_object") if isinstance(event, dict) else None
            if isinstance(obj, dict) and is_secret(str(obj.get("apiVersion")), str(obj.get("kind"))):
                secret_values.remember(obj)
            return event

        setattr(extended, _GUARD, True)
        watch.unmarshal_event = extended


class WriteGuard:
    """A middleware of aiohttp for the requests of handlers, and the same for urllib3. From any thread.

    It counts all requests by `count`, gives warnings of answers to `warned`, and guards writes:

    - `refusal`: why a write must not be sent, as this process does not lead; empty if it may be. Writes raise
      NotLeader with it. It is asked before a write waits for the gate, and in the call that sends the first
      byte of each attempt.
    - `dry_run`: writes have `dryRun=All`.
    - `gate`: limits their rate and receives them; None for no limit.
    - `observer`: sees all requests with their answers; None for no observer.

    Websockets (`kubernetes.stream`), which open with a GET, are not guarded.
    """

    def __init__(
        self, count: Callable[[str, int], None], warned: Callable[[str, str, Sequence[str]], None]
    ) -> None:
        self._count = count
        self._warned = warned
        self.refusal: Callable[[], str] = _nothing_refused
        self.dry_run = False
        self.gate: ClientGate | None = None
        self.observer: ClientObserver | None = None

    async def __call__(self, request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        """Check a request of aiohttp, and send it."""
        if request.method in _READS:
            return await self._counted(request, send)
        if self.gate is None:
            return await self._send(request, send)
        gate, began, headers = self.gate, self.gate.begin(), request.headers
        write = ClientWrite(
            request.method,
            str(request.url),
            headers.get("User-Agent", ""),
            headers.get("Content-Type", ""),
            await _body_of(request),
            self.dry_run,
        )
        try:
            self.refuse_unless_leading(write.method, write.url)
            await gate.wait_async()
            response = await self._send(request, send)
        except BaseException as error:
            gate.add(replace(write, error=error), began)
            raise
        gate.add(replace(write, status=response.status), began)
        return response

    def send(self, method: str, url: str, options: dict[str, Any], send: Callable[[], Any]) -> Any:
        """Send a request of urllib3, with all its attempts.

        `options` are those of `PoolManager.urlopen`, which `send` uses; headers may be added to them.
        """
        gate = self.gate
        if method in _READS or gate is None:
            return self._counted_sync(method, url, options, send)
        began, headers = gate.begin(), options.get("headers") or {}
        write = ClientWrite(
            method,
            url,
            headers.get("User-Agent", ""),
            headers.get("Content-Type", ""),
            options.get("body"),
            self.dry_run,
        )
        try:
            self.refuse_unless_leading(method, url)
            gate.wait()
            response = self._counted_sync(method, url, options, send)
        except BaseException as error:
            gate.add(replace(write, error=error), began)
            raise
        gate.add(replace(write, status=response.status), began)
        return response

    async def _send(self, request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        method, path = request.method, str(request.url)
        check_first_byte(request, lambda: self.refuse_unless_leading(method, path))
        if self.dry_run:
            request.url = request.url.update_query(dryRun="All")
            if request.method == "DELETE":
                await request.update_body(_dry_options(await _body_of(request)))
        return await self._counted(request, send)

    async def _counted(self, request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        observer, tell = self.observer, _tell_nobody
        if observer is not None:
            request.headers.update(observer.headers())
            content_type = request.headers.get("Content-Type", "")
            sent = ClientRequest(request.method, str(request.url), content_type, await _body_of(request))
            tell = functools.partial(observer.answered, sent)
        try:
            response = await send(request)
        except NotLeader:
            raise  # nothing was sent
        except BaseException as error:
            self._count(request.method, 0)
            tell(0, exception_text(error).encode())
            raise
        self._count(request.method, response.status)
        if observer is not None:
            _tell_when_read(response, functools.partial(tell, response.status))
        if _WARNING in response.headers:
            self._warned(request.method, request.url.path, response.headers.getall(_WARNING))
        return response

    def _counted_sync(self, method: str, url: str, options: dict[str, Any], send: Callable[[], Any]) -> Any:
        observer, tell = self.observer, _tell_nobody
        if observer is not None:
            headers = options["headers"] = {**(options.get("headers") or {}), **observer.headers()}
            sent = ClientRequest(method, url, headers.get("Content-Type", ""), options.get("body"))
            tell = functools.partial(observer.answered, sent)
        try:
            response = send()
        except NotLeader:
            raise  # nothing was sent
        except BaseException as error:
            self._count(method, 0)
            tell(0, exception_text(error).encode())
            raise
        self._count(method, response.status)
        if observer is not None:
            _tell_when_read_sync(response, functools.partial(tell, response.status))
        if _WARNING in response.headers:
            self._warned(method, urlsplit(url).path, response.headers.getlist(_WARNING))
        return response

    def dry(self, method: str, url: str, body: Any) -> tuple[str, Any]:
        """Check an attempt, which may have to connect first; returns the URL and the body to send."""
        self.refuse_unless_leading(method, url)
        if not self.dry_run or method in _READS:
            return url, body
        separator = "&" if "?" in url else "?"
        given = url if "dryRun=" in url else f"{url}{separator}dryRun=All"
        return given, _dry_options(body) if method == "DELETE" else body

    def refuse_unless_leading(self, method: str, url: str) -> None:
        """Raise NotLeader for a write of a process that does not lead."""
        if method not in _READS and (why := self.refusal()):
            raise NotLeader(f"{method} {urlsplit(url).path} was not sent: {why}")

    def __deepcopy__(self, memo: dict[int, Any]) -> "WriteGuard":
        return self  # copies of a configuration have the same guard


def _nothing_refused() -> str:
    return ""


def _tell_nobody(_status: int, _body: bytes) -> None:
    """Without an observer."""


def _dry_options(body: Any) -> bytes:
    """The DeleteOptions of a dry run: a server that gets options in the body ignores those of the query."""
    return json.dumps({**(json.loads(body) if body else {}), "dryRun": ["All"]}).encode()


class SyncGuard:
    """What the synchronous clients of one configuration do with each request. From any thread.

    Writes are checked by `guard`, and each request gets the `headers`.
    """

    def __init__(self, guard: WriteGuard, headers: Sequence[tuple[str, str]]) -> None:
        self._guard = guard
        self._headers = headers

    def attach(self, manager: Any) -> None:
        """Check all requests of a PoolManager of urllib3: each write, and each attempt of it."""
        send = manager.urlopen

        def urlopen(method: str, url: str, redirect: bool = True, **options: Any) -> Any:
            about_secrets = is_about_secrets(urlsplit(url).path)
            if about_secrets:
                _remember(options.get("body"))
            response = self._guard.send(method, url, options, lambda: send(method, url, redirect, **options))
            if about_secrets:
                _tell_when_read_sync(response, _remember)
            return response

        manager.urlopen = urlopen
        pools = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {scheme: _guarded(pool, self) for scheme, pool in pools.items()}

    def refuse_unless_leading(self, method: str, url: str) -> None:
        """Raise NotLeader for a write of a process that does not lead."""
        self._guard.refuse_unless_leading(method, url)

    def checked(self, method: str, url: str, body: Any, headers: Any) -> tuple[str, Any, Any]:
        """Check an attempt; returns the URL, the body and the headers to send. May be repeated for them."""
        from urllib3 import HTTPHeaderDict

        url, body = self._guard.dry(method, url, body)
        shown = HTTPHeaderDict(headers or {})
        for name, _ in self._headers:
            shown.discard(name)  # of the attempt before
        for name, value in self._headers:
            shown.add(name, value)  # each group has a header of its own
        return url, body, shown

    def __deepcopy__(self, memo: dict[int, Any]) -> "SyncGuard":
        return self  # copies of a configuration have the same guard


def _let_configurations_guard() -> None:
    """Let each synchronous client attach the guard that its configuration has. May be repeated.

    kubernetes.client has no hook for that: of a configuration, its RESTClientObject takes only values for
    its pool. So the constructor of RESTClientObject is extended, once for the process. Clients of other
    configurations are as before.
    """
    from kubernetes.client.rest import RESTClientObject

    with _installing:
        official: Any = RESTClientObject.__init__
        if hasattr(official, _GUARD):
            return

        @functools.wraps(official)
        def extended(self: Any, configuration: Any, *args: Any, **options: Any) -> None:
            official(self, configuration, *args, **options)
            guard = getattr(configuration, _GUARD, None)
            if guard is not None:
                guard.attach(self.pool_manager)

        setattr(extended, _GUARD, True)
        RESTClientObject.__init__ = extended


def _guarded(official: Any, guard: SyncGuard) -> Any:
    """A class of a connection pool of urllib3 that checks each attempt, also right before its first byte."""

    class GuardedPool(official):
        ConnectionCls = checking_connection(official.ConnectionCls, guard.refuse_unless_leading)

        def urlopen(
            self, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **options: Any
        ) -> Any:
            # urllib3 calls this method again for each retry, after it has slept: for a Retry-After, or after
            # a connection that failed.
            url, body, headers = guard.checked(method, url, body, headers)
            return super().urlopen(method, url, body, headers, *args, **options)

    return GuardedPool


def _refusing_streams(official: Any) -> Any:
    """A class of the synchronous ApiClient for a user who impersonates, which kubernetes.stream can't."""

    class NoStreamClient(official):
        def __setattr__(self, name: str, value: Any) -> None:
            # kubernetes.stream replaces this method by one that sends no header but the Authorization.
            if name == "call_api" and getattr(value, "__self__", None) is not self:
                raise UsageError(
                    "kubernetes.stream can't impersonate, and would act with the rights of the real user; "
                    "kubernetes.aio.stream can, with the configuration of ctx.client in `async def` hooks"
                )
            super().__setattr__(name, value)

    return NoStreamClient


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
