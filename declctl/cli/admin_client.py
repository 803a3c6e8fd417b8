"""Requests to a running process: its admin address, and its answers."""

import http.client
import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import yaml

from declctl.errors import ManifestErrors, UsageError
from declctl.kit.hosts import is_loopback
from declctl.manifest import ManifestSource, load
from declctl.manifest.model import AdminSpec
from declctl.manifest.values import Address, BadValue, parse_address

_ANY_HOST = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_TOKEN = "DECLCTL_ADMIN_TOKEN"
_SECONDS = 10.0
_SILENCE_SECONDS = 30.0  # of a stream, which has a comment every 10 s
_EVENT_STREAM = "text/event-stream"
_LARGEST_ANSWER = 64 << 20  # bytes
_OK = 200
_WITHOUT_TOKEN = (401, 403)


class AdminAddress(msgspec.Struct, frozen=True):
    """An admin address, and whether the user has named it with `--admin`.

    The token is sent to a named address and to loopback only. Any other address comes from a manifest, which
    may have been written to collect tokens.
    """

    address: Address
    named: bool = False

    @property
    def gets_token(self) -> bool:
        """Whether the token may be sent there."""
        return self.named or is_loopback(self.address.host)

    def __str__(self) -> str:
        return str(self.address)


class AdminAnswer(msgspec.Struct, frozen=True):
    """An answer of the admin address: its HTTP status, and its JSON."""

    status: int
    document: dict[str, Any]


def parse_admin(text: str) -> Address:
    """The address in `--admin`; raises UsageError."""
    try:
        return parse_address(text)
    except BadValue as error:
        raise UsageError(f"--admin: {error}; {error.suggestion}.") from error


def admin_address(given: str | None, *, manifest: Address | None = None) -> AdminAddress:
    """The admin address of the running process: `given`, else that of the manifest, else the default.

    `manifest` is the address in a manifest that has been read already; by default the manifest in the current
    folder is read. Of a manifest with faults, which may be under edit, the address alone is read. Raises
    UsageError.
    """
    address = parse_admin(given) if given else manifest or _of_manifest()
    if not address.port:
        raise UsageError(
            f"The admin address is {address}, which takes any free port; say with --admin which one it is. "
            "The log of `declctl run` names it."
        )
    return AdminAddress(Address(_ANY_HOST.get(address.host, address.host), address.port), named=bool(given))


def another_answers(target: AdminAddress, name: object) -> str | None:
    """A sentence for the user if another process answers than that of the manifest in this folder.

    None if it is that process, if the user has named the address, or if this folder has no manifest
    that can be read.
    """
    if target.named or not isinstance(name, str):
        return None
    try:
        here = load(ManifestSource.read(".")).controller.name
    except ManifestErrors:
        return None
    if name == here:
        return None
    return (
        f"{name} answers at {target}, and the manifest in this folder is that of {here}. Name the address of "
        f"{here} with --admin (its log says it), or write --admin {target} if you mean {name}."
    )


def ask(target: AdminAddress, method: str, path: str, *, timeout: float = _SECONDS) -> AdminAnswer:
    """Send one request, with the token if the target may have it, and never through a proxy.

    `timeout` is in seconds. Raises UsageError if no process answers, if the answer is not one of declctl, or
    if a token is needed that was not sent.
    """
    try:
        with _answer(target, method, path, timeout) as answer:
            return _read(target, answer)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UsageError(_nobody(target.address, error)) from error


def follow(
    target: AdminAddress, path: str, *, silence: float = _SILENCE_SECONDS
) -> Generator[dict[str, Any]]:
    """The documents of an event stream, as they arrive, until the process ends the stream.

    The stream of a living process has a comment now and then. After `silence` seconds without a byte, and
    for everything that `ask` refuses, it raises UsageError. Close the generator to end the request.
    """
    try:
        with _answer(target, "GET", path, silence) as answer:
            if answer.headers.get_content_type() != _EVENT_STREAM:
                expect(_read(target, answer), "events")  # raises: no such document has a stream
            while line := answer.readline(_LARGEST_ANSWER):
                name, _, value = line.partition(b": ")
                if name == b"data":
                    document = _object(value)
                    if document is not None:
                        yield document
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UsageError(_nobody(target.address, error)) from error


@contextmanager
def _answer(
    target: AdminAddress, method: str, path: str, timeout: float
) -> Generator[http.client.HTTPResponse]:
    """The answer to one request, with its body still to be read, inside a `with` block."""
    token = _token() if target.gets_token else None
    # http.client and not urllib: it knows no proxies, so that the token never goes to one.
    connection = http.client.HTTPConnection(target.address.host, target.address.port, timeout=timeout)
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        connection.request(method, path, headers=headers)
        with connection.getresponse() as answer:
            yield answer
    finally:
        connection.close()


def _read(target: AdminAddress, answer: http.client.HTTPResponse) -> AdminAnswer:
    """The JSON of an answer; raises UsageError if it has none, or if a token is needed that was not sent."""
    body = answer.read(_LARGEST_ANSWER + 1)
    document = _object(body) if len(body) <= _LARGEST_ANSWER else None
    if document is None:
        raise UsageError(f"What answers at {target} is not declctl; name another address with --admin.")
    # The user has a token and wonders why it does not help: say why it stayed here.
    if answer.status in _WITHOUT_TOKEN and _token() and not target.gets_token:
        raise UsageError(
            f"{target} asks for a token. It was not sent, as only a manifest names it: write "
            f"--admin {target} if it may have the token."
        )
    return AdminAnswer(answer.status, document)


def _object(text: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


def expect(answer: AdminAnswer, *fields: str) -> dict[str, Any]:
    """The document of an answer with these fields; raises UsageError for any other answer."""
    if answer.status == _OK and all(field in answer.document for field in fields):
        return answer.document
    error = answer.document.get("error")
    raise UsageError(str(error) if error else f"What answers is not declctl: its status is {answer.status}.")


def _token() -> str | None:
    """The token of the environment, without the newline that ends the file of a token."""
    token = os.environ.get(_TOKEN, "").strip()
    if token and not (token.isascii() and token.isprintable()):
        raise UsageError(f"{_TOKEN} has characters that no header can carry; use letters and digits.")
    return token or None


def _nobody(address: Address, error: Exception) -> str:
    if isinstance(error, ConnectionResetError):  # http.client.RemoteDisconnected is one
        return f"The process at {address} has closed the connection without an answer: it ends, or has ended."
    why = "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError):
        why = "connection refused"
    elif isinstance(error, socket.gaierror):
        why = "the host is not known"
    return (
        f"Nothing answers at the admin address {address} ({why}). Is `declctl run` running? Name another "
        "address with --admin, or run this in the folder of the manifest."
    )


def _of_manifest() -> Address:
    try:
        return load(ManifestSource.read(".")).controller.admin.bind_address
    except ManifestErrors:
        return _as_far_as_it_can_be_read() or AdminSpec().bind_address


def _as_far_as_it_can_be_read() -> Address | None:
    """The valid address in the Controllers of this folder; other faults of the manifest do not matter."""
    try:
        source = ManifestSource.read(".")
    except ManifestErrors:
        return None
    named = {address for file in source.files for address in _addresses(file.data)}
    return named.pop() if len(named) == 1 else None


def _addresses(data: bytes) -> list[Address]:
    found: list[Address] = []
    try:
        for document in yaml.safe_load_all(data):
            if document["kind"] == "Controller" and str(document["apiVersion"]).startswith("declctl.dev/"):
                found.append(parse_address(document["spec"]["admin"]["bindAddress"]))  # noqa: PERF401
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError):
        return found  # the part before the fault counts
    return found
