"""The login with a user of a kubeconfig.

The official loader gets a server, a token, and files. What it would do unsafely is done here before:

- It runs credential plugins (`user.exec`) without limits, with our standard input, and can't be cancelled.
  Here a plugin has a limit on time and output, and is killed with the login that waits for it.
- Its OpenID Connect (`auth-provider: oidc`) does not check the certificate of the identity provider unless
  the kubeconfig names an authority, and needs an old id-token to get a new one.
- It writes data of certificates and keys into the temporary folder, where they stay if the process is killed.

This module is imported when a kubeconfig is used to log in.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
import ssl
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote_plus

import msgspec

from declctl.errors import UsageError
from declctl.kit.files import read_file_in_time
from declctl.kit.hosts import ServerUrl
from declctl.kit.text import excerpt
from declctl.transport.credentials import (
    TOKEN,
    ClientConfiguration,
    PrivateFiles,
    environment_proxy,
    token_claims,
)
from declctl.transport.kubeconfig import EARLY, TLS_BYTES, AuthProvider, ClusterSpec, ExecSpec, Kubeconfig

if TYPE_CHECKING:  # most kubeconfigs have no OpenID Connect
    import aiohttp

_OUTPUT_BYTES = 1024 * 1024  # of a plugin on each stream, and of a token file
_INFO_BYTES = 100 * 1024  # of KUBERNETES_EXEC_INFO; Linux accepts 128 KiB for one variable
_EXTENSION = "client.authentication.k8s.io/exec"  # the extension of a cluster for plugins
_LAST_SECONDS = 5  # to read the pipes of a plugin that was killed
_SHOWN = 300  # characters of a plugin's text in messages
_ANSWER_BYTES = 1024 * 1024  # of an identity provider


class _Status(msgspec.Struct):
    token: str | None = None
    clientCertificateData: str | None = None  # noqa: N815 - the fields' names on the wire, here and below
    clientKeyData: str | None = None  # noqa: N815
    expirationTimestamp: datetime | None = None  # noqa: N815


class _Credential(msgspec.Struct):
    apiVersion: str  # noqa: N815
    kind: str
    status: _Status | None = None


class UserLogin:
    """Logs in with the user of a kubeconfig, by the official loader. Used on one loop.

    Keeps what a login must not lose: the credential of a plugin, the last token of a file, and the tokens of
    OpenID Connect. Certificates and keys that are no files get paths in `files`.
    """

    def __init__(self, kubeconfig: Kubeconfig, files: PrivateFiles) -> None:
        self._user = kubeconfig.user
        self._cluster = kubeconfig.cluster
        self._files = files
        self._token: str | None = None  # the last one that the token file had
        self._given = _Status()  # by the plugin, last

    @property
    def expires(self) -> datetime | None:
        """The time at which the plugin's last credential expires; None for no expiry."""
        until = self._given.expirationTimestamp
        # An API always names a time zone; without one the time counts as UTC.
        return until.replace(tzinfo=until.tzinfo or UTC) if until else None

    async def load(self) -> ClientConfiguration:
        """Log in. Raises UsageError with a sentence, and any exception of the official loader."""
        cluster, user = self._cluster, self._user
        token = await self._bearer_token()
        given = self._given
        if given.clientCertificateData and given.clientKeyData:
            certificate: str | None = self._files.path(given.clientCertificateData.encode())
            key: str | None = self._files.path(given.clientKeyData.encode())
        else:
            certificate = self._path(user.client_certificate, user.client_certificate_data)
            key = self._path(user.client_key, user.client_key_data)
        authority = self._path(cluster.certificate_authority, cluster.certificate_authority_data)
        to_cluster = {
            "server": cluster.server,
            "certificate-authority": authority,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "tls-server-name": cluster.tls_server_name,
            "proxy-url": cluster.proxy_url,
        }
        as_user = {"token": token, "client-certificate": certificate, "client-key": key}
        found = await asyncio.to_thread(_load_officially, to_cluster, as_user)
        if not (user.auth_provider or user.exec or token or user.username is None or user.password is None):
            # The official loader encodes them in Latin-1, where a server expects UTF-8.
            pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
            found.api_key[TOKEN] = f"Basic {pair}"
        return found

    async def _bearer_token(self) -> str | None:
        user = self._user
        if user.auth_provider is not None:
            return await self._id_token(user.auth_provider)
        if user.exec is not None:
            # A plugin is run again when its credential is about to expire, or when the server refuses it.
            if self.expires is None or self.expires - datetime.now(UTC) <= EARLY:
                self._given = await run_plugin(user.exec, self._cluster)
            return self._given.token
        if user.token_file:
            # As in client-go, the file takes precedence; `token` is used until the file has given a token. If
            # the file can't be read later, its last token is used until the server refuses it.
            try:
                self._token = await asyncio.to_thread(_token_of, Path(user.token_file))
            except UsageError:
                if self._token or not user.token:
                    raise
        return self._token or user.token

    async def _id_token(self, provider: AuthProvider) -> str:
        config = provider.config
        if config is None:
            raise UsageError("oidc: its auth-provider has no config")
        if config.get("id-token"):
            claims = token_claims(str(config["id-token"]))
            if claims is None:
                raise UsageError("oidc: its id-token is no JSON Web Token")
            expires = claims.get("exp")
            if not isinstance(expires, int | float) or expires > time.time() + EARLY.total_seconds():
                return str(config["id-token"])
        await refresh(config)
        return str(config["id-token"])

    def _path(self, file: str | None, data: str | None) -> str | None:
        """The path of a file that the kubeconfig names, or whose content it has."""
        return self._files.path(base64.b64decode(data)) if data else file or None


def _load_officially(cluster: Mapping[str, object], user: Mapping[str, object]) -> ClientConfiguration:
    """The configuration that the official loader makes of two entries of a kubeconfig. Blocks."""
    # Late, and in a thread: the first import of the official client takes a quarter of a second.
    from kubernetes.config import load_kube_config_from_dict

    def entry(kind: str, fields: Mapping[str, object]) -> Mapping[str, object]:
        return {"name": "chosen", kind: {name: value for name, value in fields.items() if value is not None}}

    found = ClientConfiguration()
    config = {
        "clusters": [entry("cluster", cluster)],
        "users": [entry("user", user)],
        "contexts": [entry("context", {"cluster": "chosen", "user": "chosen"})],
        "current-context": "chosen",
    }
    load_kube_config_from_dict(config, client_configuration=cast("Any", found))
    return found


async def run_plugin(spec: ExecSpec, cluster: ClusterSpec) -> _Status:
    """Run a plugin and return its credential; cancelling kills it. Raises UsageError with a sentence."""
    if spec.interactiveMode == "Always":
        raise UsageError("it asks for input (interactiveMode: Always), which is not possible here")
    # In a thread: the certificate authority is a file, and folders of PATH may be on a network.
    command, info = await asyncio.to_thread(lambda: (_command(spec), _info(spec, cluster)))
    environment = {
        **os.environ,
        **{variable.name: variable.value for variable in spec.env or ()},
        "KUBERNETES_EXEC_INFO": info,
    }
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            *(spec.args or ()),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as fault:
        raise _not_started(spec, str(fault)) from fault
    try:
        output, said = await asyncio.gather(_read(process, process.stdout), _read(process, process.stderr))
        code = await process.wait()
    except BaseException:
        _kill(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):  # pipes that are read to their end are closed
                await asyncio.gather(_read(process, process.stdout), _read(process, process.stderr))
                await process.wait()
        raise
    if max(len(output), len(said)) > _OUTPUT_BYTES:
        raise UsageError(f"it writes more than {_OUTPUT_BYTES:,} bytes")
    if code:
        raise UsageError(
            f"it ended with status {code}: {excerpt(said.decode('utf-8', 'replace'), most=_SHOWN)}"
        )
    return _status(output, spec)


def _token_of(file: Path) -> str:
    """The token in a file; raises UsageError, also if the file is empty. Blocks."""
    try:
        content = read_file_in_time(file, most=_OUTPUT_BYTES, name="kubeconfig")
        token = content.decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
        raise UsageError(f"the token file {file} can't be read: {why}") from fault
    if not token:
        raise UsageError(f"the token file {file} is empty")
    return token


def _command(spec: ExecSpec) -> str:
    """The program to run. A name without a folder is looked up in PATH of this process, as Go does."""
    if os.sep in spec.command:
        return spec.command
    found = shutil.which(spec.command)
    if found is None:
        raise _not_started(spec, "no folder of PATH has it")
    if not os.path.isabs(found):  # noqa: PTH117
        # As Go's exec.ErrDot: other users may be able to write into the current folder.
        raise _not_started(spec, "PATH finds it in the current folder, from which no plugin is started")
    return found


def _not_started(spec: ExecSpec, why: str) -> UsageError:
    hint = f". {excerpt(spec.installHint, most=_SHOWN)}" if spec.installHint else ""
    return UsageError(f"it can't be started: {why}{hint}")


def _info(spec: ExecSpec, cluster: ClusterSpec) -> str:
    """KUBERNETES_EXEC_INFO: an ExecCredential, with the cluster if the plugin asks for it. Blocks."""
    # A controller has no user who could answer, and its standard input may be its manifest.
    content: dict[str, Any] = {"interactive": False}
    if spec.provideClusterInfo:
        content["cluster"] = _cluster_info(cluster)
    document = {"apiVersion": spec.apiVersion, "kind": "ExecCredential", "spec": content}
    pieces: list[str] = []
    size = 0
    try:
        # Encoded in pieces, because a small file with YAML aliases can become a very long text.
        for piece in json.JSONEncoder(default=str).iterencode(document):
            size += len(piece)
            if size > _INFO_BYTES:
                raise UsageError(
                    f"what provideClusterInfo gives it has more than {_INFO_BYTES:,} bytes: is the cluster's "
                    "certificate authority a whole bundle, or its extension too large?"
                )
            pieces.append(piece)
    except (TypeError, ValueError, RecursionError) as fault:
        raise UsageError(f"the cluster's extension {_EXTENSION} can't be written as JSON: {fault}") from fault
    return "".join(pieces)


def _cluster_info(cluster: ClusterSpec) -> Mapping[str, Any]:
    """`spec.cluster` of an ExecCredential (client-go's ConfigToExecCluster). Blocks."""
    authority = cluster.certificate_authority_data
    if cluster.certificate_authority:
        file = Path(cluster.certificate_authority)
        try:
            content = read_file_in_time(file, most=_INFO_BYTES, name="kubeconfig")
        except OSError as fault:
            raise UsageError(f"the certificate authority {file} can't be read: {fault.strerror}") from fault
        authority = base64.b64encode(content).decode()
    extension = next((each.extension for each in cluster.extensions or () if each.name == _EXTENSION), None)
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": "".join((authority or "").split()),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": extension,
    }
    return {name: value for name, value in info.items() if value}


async def _read(process: asyncio.subprocess.Process, stream: asyncio.StreamReader | None) -> bytes:
    """The output of a plugin. A plugin that writes more than the limit is killed."""
    content = bytearray()
    while stream is not None and (part := await stream.read(65536)):
        if len(content) <= _OUTPUT_BYTES:
            content += part
            if len(content) > _OUTPUT_BYTES:
                _kill(process)
    return bytes(content)


def _kill(process: asyncio.subprocess.Process) -> None:
    # The whole group: the plugin has a session of its own, and its children are in it.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _status(output: bytes, spec: ExecSpec) -> _Status:
    # Messages never contain the output: it may be a token.
    try:
        credential = msgspec.json.decode(output, type=_Credential)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise UsageError(f"it wrote no ExecCredential: {fault}") from None
    if credential.kind != "ExecCredential" or credential.apiVersion != spec.apiVersion:
        kind, version = (excerpt(text, most=_SHOWN) for text in (credential.kind, credential.apiVersion))
        raise UsageError(f"it wrote a {kind} of {version}, and not an ExecCredential of {spec.apiVersion}")
    status = credential.status
    if status is None or not (status.token or status.clientCertificateData):
        raise UsageError("it gave neither a token nor a certificate")
    if bool(status.clientCertificateData) != bool(status.clientKeyData):
        raise UsageError("it gave a certificate without its key, or a key without its certificate")
    if status.token and not status.token.strip().isprintable():
        raise UsageError("it gave a token that can't stand in a header")
    return status


async def refresh(config: MutableMapping[str, Any]) -> None:
    """Get an id token from the identity provider and write it into `config` (client-go's oidc.go).

    `config` is `auth-provider.config` of the user, in memory. A new refresh token is kept there too, and not
    written into the kubeconfig. Raises UsageError with a sentence.
    """
    for name in ("refresh-token", "idp-issuer-url", "client-id"):
        if not config.get(name):
            raise UsageError(
                f"oidc: the id-token has expired, and cannot refresh without {name}. Log in again"
            )
    issuer = str(config["idp-issuer-url"]).rstrip("/")
    # Late, and in a thread: the first import takes a fifth of a second.
    await asyncio.to_thread(import_module, "aiohttp")
    import aiohttp

    try:
        context = await asyncio.to_thread(_trust, config)
        async with aiohttp.ClientSession(
            headers={"Accept": "application/json"},
            connector=aiohttp.TCPConnector(ssl=context),
            trust_env=False,  # with it aiohttp would send passwords of `.netrc`
        ) as session:
            found = await _answer(session, "GET", f"{issuer}/.well-known/openid-configuration")
            endpoint = found.get("token_endpoint")
            if not isinstance(endpoint, str):
                raise UsageError(f"oidc: the identity provider {issuer} names no token_endpoint")
            given = await _answer(
                session,
                "POST",
                endpoint,
                # Only this request has the client's secret: discovery needs none.
                headers={"Authorization": _basic(config)},
                form={"grant_type": "refresh_token", "refresh_token": str(config["refresh-token"])},
            )
    except (aiohttp.ClientError, msgspec.MsgspecError, OSError, RecursionError, ValueError) as fault:
        why = str(fault) or type(fault).__name__  # a TimeoutError has no text
        raise UsageError(f"oidc: the identity provider {issuer} gave no id-token: {why}") from fault
    if not isinstance(given.get("id_token"), str):
        raise UsageError(f"oidc: the identity provider {issuer} gave no id-token. Log in again")
    config["id-token"] = given["id_token"]
    if given.get("refresh_token"):  # otherwise the old one stays valid
        config["refresh-token"] = given["refresh_token"]


async def _answer(
    session: "aiohttp.ClientSession",
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """The identity provider's answer, a JSON object. Only a GET follows redirects, and only to TLS."""
    _require_tls(url)
    async with session.request(
        method,
        url,
        headers=headers,
        data=form,
        proxy=environment_proxy(url),
        allow_redirects=form is None,
    ) as response:
        for hop in (*response.history, response):
            _require_tls(str(hop.url))
        if response.status >= 300:
            # invalid_grant is a 400, invalid_client a 401 (RFC 6749, 5.2).
            refused = form is not None and response.status in (400, 401)
            hint = ". Is the refresh token still good?" if refused else ""
            raise UsageError(f"oidc: {url} answers {response.status}{hint}")
        content = bytearray()
        async for part in response.content.iter_any():
            content += part
            if len(content) > _ANSWER_BYTES:
                raise UsageError(f"oidc: the answer of {url} has more than {_ANSWER_BYTES:,} bytes")
    document: object = msgspec.json.decode(content)
    if not isinstance(document, dict):
        raise UsageError(f"oidc: what {url} answers is no JSON object")
    return cast("Mapping[str, Any]", document)


def _require_tls(url: str) -> None:
    address = ServerUrl.of(url)
    if not address.is_encrypted and not address.is_loopback:
        raise UsageError(f"oidc: {address.url} is not https: anybody on the way could read the refresh token")


def _trust(config: Mapping[str, Any]) -> ssl.SSLContext:
    """A TLS context with the authorities of the kubeconfig for the identity provider, else of the system.

    `idp-certificate-authority-data` takes precedence over the file, as in client-go. Blocks for READ_SECONDS
    at most.
    """
    data, name = config.get("idp-certificate-authority-data"), config.get("idp-certificate-authority")
    try:
        if data:
            content = base64.b64decode(data)
        elif name:
            file = Path(name)
            # Read here: OpenSSL would wait for ever for a pipe or a mount that hangs.
            content = read_file_in_time(file, most=TLS_BYTES, name="kubeconfig")
        else:
            return ssl.create_default_context()
        if not content.strip():  # which `ssl` takes for the authorities of the system
            raise ValueError("it is empty")
        # Bundles may have comments that are not ASCII, which `ssl` refuses.
        return ssl.create_default_context(cadata=content.decode("ascii", "ignore"))
    except (OSError, ValueError) as fault:
        shown = f" {name}" if name and not data else ""
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
        raise UsageError(
            f"oidc: the certificate authority{shown} of the identity provider can't be used: {why}"
        ) from fault


def _basic(config: Mapping[str, Any]) -> str:
    # RFC 6749, 2.3.1: both parts are form-encoded first.
    pair = ":".join(quote_plus(str(config.get(name) or "")) for name in ("client-id", "client-secret"))
    return "Basic " + base64.b64encode(pair.encode()).decode()
