"""How to reach a running process: where its admin address is, and what it answers."""

import http.client
import json
import os
import socket
from typing import Any

import msgspec
import yaml

from declctl.errors import ManifestErrors, UsageError
from declctl.manifest import ManifestSource, load
from declctl.manifest.model import Address, AdminSpec
from declctl.manifest.values import BadValue, parse_address

_ANY_HOST = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_TOKEN = "DECLCTL_ADMIN_TOKEN"
_SECONDS = 10.0


class Answer(msgspec.Struct, frozen=True):
    """An answer of the admin address: its HTTP status, and its JSON."""

    status: int
    document: Any


def parse_admin(text: str) -> Address:
    """The address that `--admin` names; raises UsageError."""
    try:
        return parse_address(text)
    except BadValue as error:
        raise UsageError(f"--admin: {error}; {error.suggestion}.") from error


def admin_address(given: str | None) -> Address:
    """Where to ask: `given`, else what the manifest in the current folder says, else the default.

    A manifest that has faults at the moment is read as far as it can be: somebody may be editing it while the
    process goes on with what it had. Raises UsageError.
    """
    address = parse_admin(given) if given else _of_manifest()
    if not address.port:
        raise UsageError(
            f"The admin address is {address}, which takes any free port; say with --admin which one it is. "
            "The log of `declctl run` names it."
        )
    return Address(_ANY_HOST.get(address.host, address.host), address.port)


def ask(address: Address, method: str, path: str, *, timeout: float = _SECONDS) -> Answer:
    """One request; raises UsageError if nothing answers, or if what answers is something else."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    token = os.environ.get(_TOKEN)
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise UsageError(_nobody(address, error)) from error
    finally:
        connection.close()
    try:
        return Answer(answer.status, json.loads(body))
    except ValueError as error:
        raise UsageError(
            f"What answers at {address} is not declctl; name another address with --admin."
        ) from error


def _nobody(address: Address, error: Exception) -> str:
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
    """The one address that the Controllers of this folder name."""
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
    except (yaml.YAMLError, ValueError, LookupError, TypeError):
        return found  # what stands before the fault counts
    return found
