"""The receiver, by aiohttp: one session, one attempt for each call, and what came of it.

Texts of faults have neither headers nor paths of URLs, which may be secrets. Redirects are not followed: the
receiver could lead signatures and credentials to another host.
"""

import asyncio
import base64
import html
import json
import math
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import aiohttp

from declctl_webhook.settings import EndpointSettings, SettingsError, ValueSource, check_header, check_url

_EXCERPT: Final = 500  # characters of an answer that dead letters keep
_SHORTEST: Final = 6  # characters of a part of a URL that is hidden; shorter ones are words
_LARGEST_BODY: Final = 64 * 1024  # bytes of an answer that are read
_LONGEST_WAIT: Final = 3600.0  # seconds: a longer Retry-After is cut
_IDLE_SECONDS: Final = 30.0  # after which an unused connection is closed


class Answer(NamedTuple):
    """The answer of the receiver to one request."""

    status: int
    retry_after: float | None = None  # seconds
    text: str = ""  # the begin of the body


class Unreachable(Exception):
    """A request without an answer, in a sentence without secrets."""


class Endpoint:
    """Sends requests as one config says. Used on one loop, which it may block to read a small file."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._tls_stamp: tuple[object, ...] = ()  # of the files that the session was made of
        self.name = "the receiver"  # scheme and host of the last request, for messages
        with suppress(SettingsError):  # a secret that is missing now may be there later
            self._url()

    def __str__(self) -> str:
        return self.name

    @property
    def timeout(self) -> float:
        """The time that one request may take, in seconds."""
        return self._settings.timeout

    async def send(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """POST a body. Raises Unreachable, and SettingsError for a secret that can't be read."""
        url = self._url()
        full, secrets = self._headers(headers)
        session = await self._current_session()
        try:
            async with session.post(url, data=body, headers=full, allow_redirects=False) as response:
                text = without_secrets(await _text(response), [*secrets, *_of_url(url)])[:_EXCERPT]
                return Answer(response.status, retry_after(response.headers.get("Retry-After")), text)
        except TimeoutError as error:
            raise Unreachable(f"{self}: no answer within {self._settings.timeout:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{self}: {_reason(error)}") from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
        self._session = None

    def _url(self) -> str:
        url = self._settings.url
        if isinstance(url, ValueSource):
            name, url = str(url), url.read()
            check_url(url, name)
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        return url

    def _headers(self, headers: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """All headers, and the secrets among their values."""
        secrets: dict[str, str] = {}
        hidden: list[str] = []
        for name, source in self._settings.secret_headers:
            value = source.read()
            check_header(value, f"the value of the header {name} in {source}")
            secrets[name] = value
            # Without `Bearer `, too.
            hidden += [value, value.removeprefix(source.prefix), *value.split()[-1:]]
        agent = {"User-Agent": "declctl-webhook"}
        return {**agent, **self._settings.headers, **secrets, **headers}, hidden

    async def _current_session(self) -> aiohttp.ClientSession:
        """A session with the TLS files as they are now."""
        stamp = tuple(_stamp(name) for name in _tls_files(self._settings))
        if self._session is None or stamp != self._tls_stamp:
            context = tls_context(self._settings)
            await self.close()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context, keepalive_timeout=_IDLE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._settings.proxy_from_environment,
            )
            self._tls_stamp = stamp
        return self._session


def tls_context(settings: EndpointSettings) -> ssl.SSLContext | bool:
    """The TLS context of the files; True for that of the system. Blocks. Raises SettingsError."""
    files = _tls_files(settings)
    if not files:
        return True
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.cert_file is not None:
            # Without a password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(settings.cert_file, settings.key_file, lambda: "")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the files of tls ({', '.join(files)}) can't be used: {_reason(error)}"
        ) from error
    return context


def _tls_files(settings: EndpointSettings) -> list[str]:
    names = (settings.ca_file, settings.cert_file, settings.key_file)
    return [name for name in names if name is not None]


def retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """The seconds of a Retry-After header: a number or a date, an hour at most; None for anything else."""
    if value is None:
        return None
    try:
        wait = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        wait = (at - (now or datetime.now(UTC))).total_seconds()
    return min(max(wait, 0.0), _LONGEST_WAIT) if math.isfinite(wait) else None


async def _text(response: aiohttp.ClientResponse) -> str:
    """The body. It is read up to a limit, as a connection is used again only after its end."""
    content = bytearray()
    with suppress(aiohttp.ClientError, TimeoutError, OSError):  # the status is known: the body is a courtesy
        async for part in response.content.iter_any():
            content += part
            if len(content) > _LARGEST_BODY:
                break
    return content[:_LARGEST_BODY].decode("utf-8", "replace")


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """A text of a receiver, which may send back what it got, with `***` for each secret.

    A secret is found as it is, as JSON, HTML and URLs quote it, and in the base64 of a text that contains it.
    """
    forms: set[str] = set()
    for secret in secrets:
        forms |= {
            secret,
            json.dumps(secret)[1:-1],
            html.escape(secret),
            quote(secret),
            quote(secret, safe=""),
        }
        if len(secret) >= _SHORTEST:
            forms |= {unquote(secret), *_in_base64(secret.encode())}
    for form in sorted(forms, key=len, reverse=True):  # one may be a part of another
        text = text.replace(form, "***")
    return text


def _in_base64(secret: bytes) -> Iterator[str]:
    """What stands in the base64 of each text that contains a secret, which begins at any of three bits."""
    for before, skipped in enumerate((0, 2, 3)):  # bytes, and the characters that have bits of them
        whole = (before + len(secret)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(before) + secret).decode()[skipped:whole]


def _of_url(url: str) -> Iterator[str]:
    """The parts of a URL that may be secrets: its path with the query, each of both, and their parts."""
    parts = urlsplit(url)
    for part in (
        f"{parts.path}?{parts.query}",
        parts.path,
        parts.query,
        parts.password or "",
        *parts.path.split("/"),
        *re.split("[&=]", parts.query),
    ):
        if len(part) >= _SHORTEST:
            yield part


def _stamp(name: str) -> tuple[int, int, int] | None:
    """The identity of the content of a file; of a ConfigMap's file, the one that its links lead to."""
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _reason(error: BaseException) -> str:
    """What went wrong, without the URL."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.strerror:
        return f"no connection: {error.strerror}"
    if isinstance(error, aiohttp.InvalidURL):
        return "the URL is not valid"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it has closed the connection without an answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, asyncio.IncompleteReadError | aiohttp.ClientPayloadError):
        return "it has closed the connection within the answer"
    return type(error).__name__
