"""Requests to a running process: how it is found, its admin address, and its answers.

A command finds the process by the file that it keeps in the runtime folder of the user
(`kit.running_processes`): the one of the manifest, or the one that `--admin` names. A process without such a
file, of another user or in a container, is asked at the address in the manifest. It then has to be the
controller of the manifest, otherwise nothing is done.
"""

import errno
import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import yaml

from declctl.cli.options import checked
from declctl.errors import ManifestErrors, UsageError
from declctl.kit.files import CONFIG_BYTES, read_file_in_time
from declctl.kit.files import shown as shown_path
from declctl.kit.hosts import is_loopback
from declctl.kit.running_processes import CONTROLLER_HEADER, RunningProcess, running_processes
from declctl.kit.text import one_line
from declctl.kit.tokens import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, fits_header, read_token
from declctl.manifest import ManifestSource
from declctl.manifest.model import AdminSpec, ControllerSpec
from declctl.manifest.values import Address, BadValue, parse_address, value_at
from declctl.runtime.checking.inputs import load_beside

_ANY_HOST = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_SECONDS = 10.0
_SILENCE_SECONDS = 30.0  # of a stream, which has a comment every 10 s
_EVENT_STREAM = "text/event-stream"
_LARGEST_ANSWER = 64 << 20  # bytes
_OK = 200
_WITHOUT_TOKEN = (401, 403)
_MISDIRECTED = 421
_OURS = re.compile(rb"^apiVersion:\s*[\"']?declctl\.dev/", re.MULTILINE)
_HTTPS = "https://"
_CA_FILE = "DECLCTL_ADMIN_CA_FILE"
_PROBE_SECONDS = 2.0  # for finding out whether a server speaks TLS
_BAD_REQUEST = 400
# OpenSSL's reasons for an answer that is no TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")
_ADVICE = {
    errno.ENOENT: "create the file, or correct its path",
    errno.EACCES: "let this user read the file",
    errno.ETIMEDOUT: "see whether its mount hangs",
}
_PEM_BEGIN, _PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class AdminAddress(msgspec.Struct, frozen=True):
    """An admin address, and how it was found.

    The token is sent to an address that the user has named with `--admin`, to that of a process of this
    user, and to loopback. Any other address comes from a manifest, which may have been written to collect
    tokens.
    """

    address: Address
    named: bool = False  # by --admin
    controller: str | None = None  # the name of the one that has to answer; None if any may
    process: RunningProcess | None = None  # whose file names the address
    encrypted: bool = False  # it speaks HTTPS

    @property
    def gets_token(self) -> bool:
        """Whether the token may be sent there."""
        return self.named or self.process is not None or is_loopback(self.address.host)

    def __str__(self) -> str:
        return f"https://{self.address}" if self.encrypted else str(self.address)


class LocalManifest(NamedTuple):
    """The manifest of a command, as far as it could be read."""

    path: Path | None  # a file or a folder; None for standard input
    name: str | None = None  # of its controller
    address: Address | None = None  # of its controller
    exists: bool = True  # False for a folder without a manifest
    encrypted: bool = False  # the address speaks HTTPS

    @classmethod
    def of(cls, path: str, controller: ControllerSpec) -> "LocalManifest":
        """A manifest that was read from `path`, which is `-` for standard input."""
        admin = controller.admin
        at = None if path == "-" else Path(path)
        return cls(at, controller.name, admin.bind_address, encrypted=admin.tls is not None)


class AdminAnswer(msgspec.Struct, frozen=True):
    """An answer of the admin address: its HTTP status, and its JSON."""

    status: int
    document: dict[str, Any]
    token_fault: str | None = None  # why a token was not sent; None if it was, or there is none


class _Token(NamedTuple):
    """The token for a request, or why there is none although a file is named."""

    value: str | None = None
    fault: str | None = None


def parse_admin(text: str) -> Address:
    """The address in `--admin`; raises UsageError."""
    return checked(parse_address, text, "--admin")


def admin_address(given: str | None, *, manifest: LocalManifest | None = None) -> AdminAddress:
    """The admin address of the running process that a command is for.

    - `given`: the value of `--admin`, an address or the name of a controller that runs.
    - `manifest`: a manifest that the caller has read; by default, that of the current folder is read. If it
      has faults, as during an edit, only name and address of its controller are used.

    Without `given`, it is the running process of the manifest, else the address in the manifest; without a
    manifest, the only controller that runs, else the default address. Raises UsageError, with the
    controllers that run.
    """
    if given:
        return _named(given)
    manifest = manifest or _of_folder()
    running = running_processes()
    found = _process_of(manifest, running)
    if found is not None:
        return _at(found)
    if manifest.exists and manifest.name is None:
        raise UsageError(
            "The manifest of this folder can't be read as far as the name of its controller. "
            f"{_those_running(running)} Say with --admin which controller or address is meant."
        )
    address = manifest.address or AdminSpec().bind_address
    if not address.port:
        whose = f" of {manifest.name}" if manifest.name else ""
        raise UsageError(
            f"The admin address{whose} is {address}, which takes any free port, and no such process of this "
            f"user runs. {_those_running(running)} Otherwise, say with --admin which port it is: the log of "
            "`declctl run` names it."
        )
    return AdminAddress(reachable(address), controller=manifest.name, encrypted=manifest.encrypted)


def _named(given: str) -> AdminAddress:
    if ":" in given:
        encrypted = given.lower().startswith(_HTTPS)
        address = parse_admin(given[len(_HTTPS) :].removesuffix("/") if encrypted else given)
        if not address.port:
            raise UsageError(f"--admin {given}: port 0 is no port that can be asked; write the real one.")
        there = reachable(address)
        known = next((each for each in running_processes() if _is_at(each, there)), None)
        encrypted = encrypted or (known is not None and known.cert_file is not None)
        return AdminAddress(there, named=True, process=known, encrypted=encrypted)
    running = running_processes()
    found = [each for each in running if given in (each.controller, str(each.pid))]
    if len(found) == 1:
        return _at(found[0])
    if found:
        raise _ambiguous(found)
    raise UsageError(
        f"--admin: {given} is neither an address, as 127.0.0.1:8081 is, nor a controller that runs. "
        f"{_those_running(running)}"
    )


def _process_of(manifest: LocalManifest, running: Sequence[RunningProcess]) -> RunningProcess | None:
    """The running process of a manifest; without a manifest, the only one that runs. None if there is none.

    Raises UsageError for several.
    """
    if not manifest.exists:
        found = list(running)
    else:
        # The same name may run from two folders: the path decides first.
        found = [each for each in running if _is_of(each, manifest.path)]
        if len(found) != 1:
            found = [each for each in found or running if each.controller == manifest.name]
    if len(found) > 1:
        raise _ambiguous(found)
    return found[0] if found else None


def _is_of(process: RunningProcess, path: Path | None) -> bool:
    """Whether a process has been started with this manifest, or with a file of this folder."""
    if path is None or process.manifest is None:
        return False
    theirs, ours = Path(os.path.realpath(process.manifest)), Path(os.path.realpath(path))
    return ours in (theirs, theirs.parent) or theirs == ours.parent


def _at(process: RunningProcess) -> AdminAddress:
    address = reachable(parse_address(process.address))
    encrypted = process.cert_file is not None
    return AdminAddress(address, controller=process.controller, process=process, encrypted=encrypted)


def _is_at(process: RunningProcess, address: Address) -> bool:
    """Whether a process listens at an address. `localhost` is any address of loopback."""
    found = _at(process).address
    if address.host.lower() == "localhost":
        return found.port == address.port and is_loopback(found.host)
    return found == address


def reachable(address: Address) -> Address:
    """The address for a client: a process that listens everywhere is asked on loopback."""
    return Address(_ANY_HOST.get(address.host, address.host), address.port)


def _ambiguous(found: Sequence[RunningProcess]) -> UsageError:
    each = "; ".join(map(str, found))
    return UsageError(
        f"{len(found)} controllers run that this may be for: {each}. Say which one with --admin, by its "
        "name, its pid or its address."
    )


def _those_running(running: Sequence[RunningProcess]) -> str:
    if not running:
        return "No controller of this user runs."
    return f"Running: {'; '.join(map(str, running))}."


def ask(target: AdminAddress, method: str, path: str, *, timeout: float = _SECONDS) -> AdminAnswer:
    """Send one request, with the token if the target may have it, and never through a proxy.

    `timeout` is in seconds. A token file that can't be used is no fault if the answer needs no token. Raises
    UsageError if no process answers, if another controller answers than the one that has to, if the answer is
    not one of declctl, or if a token is needed that was not sent.
    """
    token = _token(target)
    try:
        with _answer(target, method, path, timeout, token) as answer:
            return _read(target, answer, token)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UsageError(_nobody(target, error)) from error


def follow(
    target: AdminAddress, path: str, *, silence: float = _SILENCE_SECONDS
) -> Generator[dict[str, Any]]:
    """The documents of an event stream, as they arrive, until the process ends the stream.

    The stream of a living process has a comment now and then. After `silence` seconds without a byte, and
    for everything that `ask` refuses, it raises UsageError. Close the generator to end the request.
    """
    token = _token(target)
    try:
        with _answer(target, "GET", path, silence, token) as answer:
            if answer.headers.get_content_type() != _EVENT_STREAM:
                expect(_read(target, answer, token), "events")  # raises: no such document has a stream
            while line := answer.readline(_LARGEST_ANSWER):
                name, _, value = line.partition(b": ")
                if name == b"data":
                    document = _object(value)
                    if document is not None:
                        yield document
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UsageError(_nobody(target, error)) from error


@contextmanager
def _answer(
    target: AdminAddress, method: str, path: str, timeout: float, token: _Token
) -> Generator[http.client.HTTPResponse]:
    """The answer to one request, with its body still to be read, inside a `with` block."""
    # http.client and not urllib: it knows no proxies, so that the token never goes to one.
    connection = _connection(target, timeout)
    headers = {"Accept": "application/json"}
    if token.value and target.gets_token:
        headers["Authorization"] = f"Bearer {token.value}"
    if target.controller:
        headers[CONTROLLER_HEADER] = target.controller  # another one refuses the request, and does nothing
    try:
        connection.connect()
        _require_certificate(target, connection)  # before the token is sent
        connection.request(method, path, headers=headers)
        with connection.getresponse() as answer:
            if answer.status == _BAD_REQUEST and answer.headers.get(CONTROLLER_HEADER) is None:
                _require_plain_http(target)
            _require_controller(target, answer)
            yield answer
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            raise UsageError(_no_tls(target)) from error
        raise UsageError(
            f"There is no TLS with {target}: {_tls_fault(error)}. {_CA_FILE} names the file of the "
            "certificate authority that it is to be verified with"
            f"{' (it is set)' if os.environ.get(_CA_FILE) else ''}."
        ) from error
    finally:
        connection.close()


def _tls_fault(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return error.reason or str(error)


def _no_tls(target: AdminAddress) -> str:
    """The message for a server of plain HTTP that was asked with TLS."""
    plain = target.address
    if target.named:
        return f"{plain} speaks plain HTTP, and not TLS: write --admin {plain}, without https://."
    return (
        f"{plain} speaks plain HTTP, and not TLS: spec.admin.tls takes effect at the next start of the "
        f"process. Start it again, or write --admin {plain}."
    )


def _require_plain_http(target: AdminAddress) -> None:
    """Raise UsageError if a server speaks TLS that has not understood a plain request."""
    if target.encrypted:
        return
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent, and nothing read
    where = target.address.host, target.address.port
    try:
        with (
            socket.create_connection(where, timeout=_PROBE_SECONDS) as connection,
            context.wrap_socket(connection),
        ):
            pass
    except OSError:  # ssl.SSLError is one
        return
    raise UsageError(
        f"{target} speaks TLS, and the request was plain HTTP: write --admin https://{target.address}."
    )


def _read(target: AdminAddress, answer: http.client.HTTPResponse, token: _Token) -> AdminAnswer:
    """The JSON of an answer; raises UsageError if it has none, or if a token is needed that was not sent."""
    body = answer.read(_LARGEST_ANSWER + 1)
    document = _object(body) if len(body) <= _LARGEST_ANSWER else None
    if document is None:
        raise UsageError(f"What answers at {target} is not declctl; name another address with --admin.")
    # The answer alone does not say why the token was not sent.
    fault = token.fault
    if token.value and not target.gets_token:
        fault = (
            f"It was not sent, as only a manifest names {target}: write --admin {target} if it may have the "
            "token."
        )
    if answer.status in _WITHOUT_TOKEN and fault is not None:
        raise UsageError(f"{target} asks for a token. {fault}")
    return AdminAnswer(answer.status, document, fault)


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


def why_redacted(answer: AdminAnswer) -> str | None:
    """Why an answer has no texts, and what to do; None if it has them."""
    if not answer.document.get("redacted"):
        return None
    how = answer.token_fault or f"set {TOKEN_VARIABLE} to it"
    return (
        f"messages are left out: they are for those with the token. {how[:1].upper()}{how[1:].rstrip('.')}."
    )


def _connection(target: AdminAddress, timeout: float) -> http.client.HTTPConnection:
    """A connection that is not open yet, with the trust that this target has."""
    host, port = target.address.host, target.address.port
    if not target.encrypted:
        return http.client.HTTPConnection(host, port, timeout=timeout)
    authority = os.environ.get(_CA_FILE)
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"{_CA_FILE} names {shown_path(authority or '')}, which is no CA file: {error}"
        ) from error
    if authority is None and target.process is not None:
        # It may have a certificate for another name. `_require_certificate` compares it with its file.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def _require_certificate(target: AdminAddress, connection: http.client.HTTPConnection) -> None:
    """Raise UsageError unless a process of this user shows the certificate that its file has."""
    tls, process = connection.sock, target.process
    if process is None or process.cert_file is None or not isinstance(tls, ssl.SSLSocket):
        return
    if tls.context.verify_mode is not ssl.CERT_NONE:
        return  # verified with the authority that the user has named
    try:
        text = read_file_in_time(Path(process.cert_file), most=CONFIG_BYTES, name="declctl-certificate")
        pem = text.decode("ascii", "replace")
        end = pem.index(_PEM_END) + len(_PEM_END)
        expected = ssl.PEM_cert_to_DER_cert(pem[pem.index(_PEM_BEGIN) : end])
    except (OSError, ValueError):
        expected = None  # `certificate_fault` says it
    if tls.getpeercert(binary_form=True) == expected:
        return
    from declctl.admin.tls import KeyPair, certificate_fault  # late: few commands need it

    name, key_file = shown_path(process.cert_file), process.key_file
    fault = certificate_fault(KeyPair(Path(process.cert_file), Path(key_file))) if key_file else None
    if fault is not None:
        raise UsageError(
            f"{target} goes on with the certificate that it had before, which can't be verified, as its "
            f"files {name} and {shown_path(key_file or '')} can't be used: {fault}. Mend them, or name the "
            f"file of the authority of that certificate by {_CA_FILE}."
        )
    raise UsageError(
        f"{target} shows another certificate than its file {name} has. If the file was replaced just now, "
        "ask again in a moment."
    )


def _require_controller(target: AdminAddress, answer: http.client.HTTPResponse) -> None:
    """Raise UsageError if the answer is one of another controller."""
    name = answer.headers.get(CONTROLLER_HEADER)
    is_right = target.controller is None or name == target.controller
    if is_right and answer.status != _MISDIRECTED:
        return
    if name is None:
        raise UsageError(f"What answers at {target} is not declctl; name another address with --admin.")
    there, meant = one_line(name), target.controller
    raise UsageError(
        f"Nothing was done: {there} answers at {target}, and the manifest is that of {meant}. "
        f"{_those_running(running_processes())} Name the address of {meant} with --admin (its log says it), "
        f"or write --admin {target} if you mean {there}."
    )


def _token(target: AdminAddress) -> _Token:
    """The token for a process: that of the environment, else the file that the process itself reads.

    Raises UsageError for a mistake in the environment.
    """
    token, file = os.environ.get(TOKEN_VARIABLE, "").strip(), os.environ.get(TOKEN_FILE_VARIABLE, "")
    if token and file:
        raise UsageError(f"Both {TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are set; unset one of them.")
    if token:
        if not fits_header(token):
            raise UsageError(
                f"{TOKEN_VARIABLE} has characters that no header can carry; use letters and digits."
            )
        return _Token(token)
    if file:
        return _token_of_file(
            file,
            by=TOKEN_FILE_VARIABLE,
            otherwise=f"unset {TOKEN_FILE_VARIABLE}, and set {TOKEN_VARIABLE} to the token",
        )
    if target.process is not None and target.process.token_file:
        return _token_of_file(
            target.process.token_file,
            by=target.process.controller,
            otherwise=f"set {TOKEN_VARIABLE} to the token",
        )
    return _Token()


def _token_of_file(path: str, *, by: str, otherwise: str) -> _Token:
    """The token in a file that `by` names; `otherwise` is what else a user can do if there is none."""
    try:
        token = read_token(Path(path)).decode("utf-8", "replace").strip()
    except OSError as error:
        why = f"can't be read: {error.strerror or error}"
        advice = _ADVICE.get(error.errno or 0, "mend the file")
    else:
        if token and fits_header(token):
            return _Token(token)
        why = "has characters that no header can carry" if token else "is empty"
        advice = "write the token into it"
    return _Token(
        fault=f"The token file {shown_path(path)}, which {by} names, {why}: {advice}; or {otherwise}."
    )


def _nobody(address: AdminAddress, error: Exception) -> str:
    """The message for a request without an answer. Raises UsageError for one that was to be encrypted."""
    if isinstance(error, (ConnectionResetError, http.client.BadStatusLine)):
        _require_plain_http(address)  # a server of TLS closes the connection, or answers bytes of TLS
    if isinstance(error, ConnectionResetError):  # http.client.RemoteDisconnected is one
        return f"The process at {address} has closed the connection without an answer: it ends, or has ended."
    why = "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError):
        why = "connection refused"
    elif isinstance(error, socket.gaierror):
        why = "the host is not known"
    return (
        f"Nothing answers at the admin address {address} ({why}). Is `declctl run` running? "
        f"{_those_running(running_processes())} Name another address or controller with --admin, or run this "
        "in the folder of the manifest."
    )


def _of_folder() -> LocalManifest:
    """The manifest of the current folder, as far as it can be read."""
    here = Path.cwd()
    try:
        return LocalManifest.of(str(here), load_beside(".").controller)
    except ManifestErrors:
        return _as_far_as_it_can_be_read(here)


def _as_far_as_it_can_be_read(folder: Path) -> LocalManifest:
    """Name and address of the only Controller of a folder; other faults of the manifest do not matter."""
    try:
        source = ManifestSource.read(".")
    except ManifestErrors:
        return LocalManifest(folder, exists=False)
    documents = [each for file in source.files for each in _controllers(file.data)]
    names = {name for each in documents if isinstance(name := value_at(each, "metadata", "name"), str)}
    addresses = set[Address]()
    for each in documents:
        address = value_at(each, "spec", "admin", "bindAddress")
        with suppress(BadValue):
            addresses |= {parse_address(address)} if isinstance(address, str) else set()
    return LocalManifest(
        folder,
        names.pop() if len(names) == 1 else None,
        addresses.pop() if len(addresses) == 1 else None,
        exists=any(_OURS.search(file.data) for file in source.files),
        encrypted=any(value_at(each, "spec", "admin", "tls") is not None for each in documents),
    )


def _controllers(data: bytes) -> list[Any]:
    """The Controllers in a file, up to the first text that is no YAML."""
    found: list[Any] = []
    try:
        for document in yaml.safe_load_all(data):
            version = str(value_at(document, "apiVersion"))
            if value_at(document, "kind") == "Controller" and version.startswith("declctl.dev/"):
                found.append(document)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError):
        return found
    return found
