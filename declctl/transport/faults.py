"""Connections that brought no answer, as sentences: which server, what happened, what to look at.

The only place that knows the exceptions of aiohttp; nobody outside of this room ever sees one. It
is loaded with `wire`, not before.
"""

import ssl
from collections.abc import Callable
from typing import Any

import aiohttp

from declctl.errors import Unreachable
from declctl.kit.text import excerpt
from declctl.transport.request import BrokenBody

# What a request may raise: aiohttp's own, sockets', deadlines', and ValueError for what can't be
# put on the wire.
CONNECTION_FAULTS = (aiohttp.ClientError, OSError, TimeoutError, ValueError)

_SHOWN = 200  # characters of what others say
_CHECK_CERTIFICATE = (
    "Check certificate-authority(-data), tls-server-name and the server's address in the kubeconfig."
)


def unreachable(fault: BaseException, *, server: str) -> Unreachable:
    """The error that tells a person why `server` gave no answer."""
    for kinds, sentence in _SENTENCES:
        if isinstance(fault, kinds):
            return Unreachable(sentence(fault, server))
    return Unreachable(f"The request to {server} failed: {type(fault).__name__}: {_text(fault)}.")


def _certificate(fault: Any, server: str) -> str:
    cause = getattr(fault, "certificate_error", fault)  # aiohttp wraps what the TLS library raised
    why = getattr(cause, "verify_message", "") or _text(cause)
    return f"The certificate of {server} is not accepted: {why}. {_CHECK_CERTIFICATE}"


def _tls(fault: Any, server: str) -> str:
    reason = getattr(fault, "reason", None) or getattr(getattr(fault, "os_error", None), "reason", None)
    why = str(reason).replace("_", " ").lower() if reason else _text(fault)
    return f"TLS with {server} failed: {why}. Does it speak https, and does it accept the client certificate?"


def _proxy(fault: Any, server: str) -> str:
    proxy = f"{fault.host}:{fault.port}"
    return f"The proxy on the way to {server}, {proxy}, can't be reached: {_cause(fault.os_error)}."


def _cause(fault: OSError) -> str:
    if isinstance(fault, ConnectionRefusedError):
        return "connection refused"
    if isinstance(fault, ConnectionResetError):
        return "connection reset"
    return fault.strerror or _text(fault)


def _text(fault: BaseException) -> str:
    return _part(str(fault)) or type(fault).__name__


def _part(text: str) -> str:
    return excerpt(text, most=_SHOWN).rstrip(".")


# In this order, because most of these are also an OSError, and some are also another one of these.
_SENTENCES: tuple[tuple[type | tuple[type, ...], Callable[[Any, str], str]], ...] = (
    ((aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError), _certificate),
    ((aiohttp.ClientConnectorSSLError, ssl.SSLError), _tls),
    (aiohttp.ClientProxyConnectionError, _proxy),
    (
        aiohttp.ClientHttpProxyError,
        lambda fault, server: (
            f"The proxy on the way to {server} refused: {fault.status} {_part(fault.message)}."
        ),
    ),
    (
        aiohttp.ClientConnectorDNSError,
        lambda fault, server: (
            f"The name {fault.host!r} of {server} can't be resolved: {_cause(fault.os_error)}."
        ),
    ),
    (
        aiohttp.ClientConnectorError,
        lambda fault, server: f"{server} can't be reached: {_cause(fault.os_error)}.",
    ),
    (
        aiohttp.ConnectionTimeoutError,
        lambda _, server: f"{server} can't be reached: no connection in time.",
    ),
    (TimeoutError, lambda _, server: f"{server} did not answer in time."),
    (
        aiohttp.ServerDisconnectedError,
        lambda _, server: f"{server} closed the connection without an answer.",
    ),
    (
        aiohttp.ClientPayloadError,
        lambda fault, server: f"The answer of {server} was cut off: {_text(fault)}.",
    ),
    (
        aiohttp.InvalidURL,
        lambda fault, server: f"{server} is no address of an API server: {_text(fault)}.",
    ),
    (
        aiohttp.ClientResponseError,
        lambda fault, server: f"The answer of {server} is no HTTP: {_part(fault.message)}.",
    ),
    (BrokenBody, lambda fault, server: f"The answer of {server} is no HTTP: {_text(fault)}."),
    (OSError, lambda fault, server: f"The connection to {server} broke: {_cause(fault)}."),
)
