"""Kubeconfig files: read, and logged in with.

OIDC, token files and certificates are the official loader's; here files are read, merged and checked as
strictly as client-go does, faults become sentences, and a login can be repeated.
"""

import asyncio
import base64
import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec

from declctl.errors import UsageError
from declctl.kit.files import read_file_in_time
from declctl.objects import KubeObject
from declctl.transport.certificates import PrivateFiles, expiry
from declctl.transport.credentials import TOKEN
from declctl.transport.kubeconfig_checks import (
    EARLY,
    TLS_BYTES,
    Address,
    ClusterSpec,
    ExecSpec,
    check_cluster,
    check_types,
    check_user,
    impersonation,
)
from declctl.transport.official_config import (
    OfficialConfiguration,
    OfficialLoader,
    new_configuration,
    take_token,
)

KUBECONFIG_BYTES = 4 * 1024 * 1024
"""One kubeconfig file; one with two hundred clusters and their certificates has 1.5 MB."""
_MOST_VALUES = 100_000
_SECTIONS = ("clusters", "contexts", "users")
_NOBODY = "(nobody)"  # the user of a context that has none
# Fields that name files, by section (client-go's GetClusterFileReferences and GetAuthInfoFileReferences).
_PATHS = {
    "clusters": ("cluster", ("certificate-authority",)),
    "users": ("user", ("client-certificate", "client-key", "tokenFile")),
}


class Kubeconfig:
    """A merged kubeconfig, with one context chosen. `where` names its files for people."""

    def __init__(self, merged: Any, *, where: str, context: str | None) -> None:
        self._merged = merged
        self.where = where
        self.context = _choose_context(merged.value, where=where, context=context)
        self._complete_user()
        self._check()

    @classmethod
    def read(cls, paths: Sequence[Path], *, context: str | None) -> "Kubeconfig":
        """From files, the first of which wins; raises UsageError with the file at fault."""
        from kubernetes.aio.config.kube_config import ConfigNode  # late: see `configuration`

        where = " and ".join(str(path) for path in paths)
        contents = {path: content for path in paths if (content := _read(path))}
        if not contents:
            raise UsageError(f"{where} is empty: it names no cluster.")
        # As kubectl and client-go merge: of each name the first entry, and the first current-context.
        merged: KubeObject = {"current-context": ""}
        for path, content in contents.items():
            merged["current-context"] = merged["current-context"] or content.get("current-context") or ""
            for section in _SECTIONS:
                entries = merged.setdefault(section, [])
                known = {entry["name"] for entry in entries}
                entries += [
                    ConfigNode(f"{path}/{entry['name']}", _resolved(section, entry, path), str(path))
                    for entry in content.get(section) or ()
                    if entry["name"] not in known
                ]
        return cls(ConfigNode(where, merged, str(paths[0])), where=where, context=context)

    @classmethod
    def of(cls, config: KubeObject) -> "Kubeconfig":
        """From a dict with the shape of a kubeconfig file."""
        from kubernetes.aio.config.kube_config import ConfigNode  # late: see `configuration`

        where = "the given kubeconfig"
        _check_shape(config, where=where)
        return cls(ConfigNode("kube-config", copy.deepcopy(config)), where=where, context=None)

    def loader(self, folder: str | None = None) -> OfficialLoader:
        """A new official loader for the chosen context, which remembers nothing.

        It writes what has to be a file into `folder`.
        """
        from declctl.transport.exec_plugin import PluginLoader  # late: see `configuration`

        loader: Any = PluginLoader
        spec = self._user_body.get("exec")
        return cast(
            "OfficialLoader",
            loader(
                self._merged,
                spec=msgspec.convert(spec, ExecSpec) if spec else None,
                cluster=msgspec.convert(self._cluster_body, ClusterSpec),
                temp_file_path=folder,
                active_context=self.context,
                config_base_path="",  # of a dict: paths of files are absolute by now
            ),
        )

    def __str__(self) -> str:
        return f"the context {self.context!r} of {self.where}"

    @property
    def user(self) -> str | None:
        """The name of the context's user."""
        name = self._context_body.get("user")
        return None if name == _NOBODY else name

    @property
    def namespace(self) -> str | None:
        """The namespace of the context."""
        return self._context_body.get("namespace") or None

    @property
    def exec_plugin(self) -> str | None:
        """The command of the user's exec plugin."""
        return (self._user_body.get("exec") or {}).get("command")

    @property
    def tls_files(self) -> Mapping[str, Path]:
        """The files of certificates and of a key that TLS needs, by the field that names each."""
        if not str(self._cluster_body["server"]).startswith("https"):
            return {}
        named = (
            ("certificate-authority", self._cluster_body),
            ("client-certificate", self._user_body),
            ("client-key", self._user_body),
        )
        return {field: Path(body[field]) for field, body in named if body.get(field)}

    @property
    def impersonation(self) -> Sequence[tuple[str, str]]:
        """The headers that say whose rights are asked for, where that is not the user's own."""
        return impersonation(self._user_body)

    @property
    def verifies(self) -> bool:
        """Whether the server's certificate is checked."""
        return not self._cluster_body.get("insecure-skip-tls-verify")

    @property
    def disable_compression(self) -> bool | None:
        """Whether answers shall not be compressed; None where the kubeconfig does not say."""
        return self._cluster_body.get("disable-compression")

    @property
    def _user_body(self) -> KubeObject:
        return _named(self._merged.value["users"], self._context_body.get("user")).get("user") or {}

    @property
    def _cluster_body(self) -> KubeObject:
        name = self._context_body.get("cluster")
        return _named(self._merged.value.get("clusters") or (), name).get("cluster") or {}

    @property
    def _context_body(self) -> KubeObject:
        return _named(self._merged.value["contexts"], self.context).get("context") or {}

    def _check(self) -> None:
        cluster, user = self._context_body.get("cluster"), self._context_body.get("user")
        if not _named(self._merged.value.get("clusters") or (), cluster):
            raise UsageError(
                f"The context {self.context!r} names the cluster {cluster!r}, "
                f"which {self.where} does not have."
            )
        check_cluster(self._cluster_body, where=f"The cluster {cluster!r} of {self.where}")
        server = str(self._cluster_body["server"])
        check_user(self._user_body, where=f"The user {user!r} of {self.where}", server=server)

    def _complete_user(self) -> None:
        # The official loader has no notion of a context without a user on a server with TLS: it
        # gets an empty one.
        users = self._merged.value["users"] = self._merged.value.get("users") or []
        body = self._context_body
        if not body.get("user"):
            body["user"] = _NOBODY
            users.append({"name": _NOBODY, "user": {}})
            return
        user = _named(users, body["user"])
        if not user:
            raise UsageError(
                f"The context {self.context!r} names the user {body['user']!r}, "
                f"which {self.where} does not have."
            )
        user["user"] = user.get("user") or {}


def _resolved(section: str, entry: KubeObject, file: Path) -> KubeObject:
    """An entry whose paths are absolute: relative ones begin at its file's folder (as ResolveLocalPaths)."""
    name, fields = _PATHS.get(section, ("", ()))
    body: KubeObject = dict(entry.get(name) or {})
    folder = os.path.abspath(os.path.dirname(file))  # noqa: PTH100, PTH120 - as client-go: links stay, `..` goes
    for field in fields:
        if body.get(field):
            body[field] = os.path.normpath(os.path.join(folder, body[field]))  # noqa: PTH118
    plugin: KubeObject = body.get("exec") or {}
    # A bare name is looked up in PATH, and by nothing else.
    if os.sep in (plugin.get("command") or ""):
        command = os.path.normpath(os.path.join(folder, plugin["command"]))  # noqa: PTH118
        body["exec"] = {**plugin, "command": command}
    return {**entry, name: body} if entry.get(name) else entry


def _read(path: Path) -> KubeObject | None:
    try:
        raw = read_file_in_time(path, most=KUBECONFIG_BYTES, name="kubeconfig")
        content = _yaml(raw.decode("utf-8"), path)
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
        raise UsageError(f"The kubeconfig {path} can't be read: {why}.") from fault
    if content is None:
        return None
    _check_shape(content, where=str(path))
    return cast("KubeObject", content)


def _yaml(text: str, path: Path) -> object:
    import yaml  # late: only who reads a kubeconfig needs it

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # A merge key copies what it refers to, so that a few lines can become more than fits into memory.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, loader)) and "<<" in text:
            raise UsageError(
                f"The kubeconfig {path} has YAML's merge keys (<<): write out what they stand for."
            )
        content: object = yaml.load(text, loader)
    except yaml.YAMLError as fault:
        raise UsageError(f"The kubeconfig {path} is no YAML: {' '.join(str(fault).split())}") from fault
    except (ValueError, OverflowError, RecursionError) as fault:
        raise UsageError(f"The kubeconfig {path} is no YAML that can be read: {fault}") from fault
    if _is_larger_than(content, _MOST_VALUES):
        raise UsageError(
            f"The kubeconfig {path} has more than {_MOST_VALUES:,} values, with aliases expanded."
        )
    return content


def _is_larger_than(content: object, most: int) -> bool:
    waiting, count = [content], 0
    while waiting and count <= most:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting += cast("KubeObject", value).values()
        elif isinstance(value, list):
            waiting += cast("list[object]", value)
    return count > most


def _check_shape(content: object, *, where: str) -> None:
    if not isinstance(content, dict):
        raise UsageError(f"{where} is no kubeconfig: it holds no mapping.")
    for section in _SECTIONS:
        entries: object = cast("KubeObject", content).get(section) or []
        if not isinstance(entries, list):
            raise UsageError(f"{where} is no kubeconfig: its {section} are no list.")
        for entry in cast("list[object]", entries):
            if not isinstance(entry, dict) or not isinstance(cast("KubeObject", entry).get("name"), str):
                raise UsageError(f"{where} is no kubeconfig: an entry of its {section} has no name.")
    check_types(cast("KubeObject", content), where=where)


def _choose_context(config: KubeObject, *, where: str, context: str | None) -> str:
    names = [str(entry["name"]) for entry in config.get("contexts") or ()]
    known = f"It has {', '.join(names)}." if names else "It has no context at all."
    chosen = context or config.get("current-context")
    if not chosen:
        raise UsageError(f"{where} has no current-context: choose one with --context. {known}")
    if chosen not in names:
        raise UsageError(f"{where} has no context {chosen!r}. {known}")
    return str(chosen)


def _named(entries: Sequence[Any], name: str | None) -> KubeObject:
    # Entries are dicts, or the official merger's nodes around dicts.
    for entry in entries:
        if entry["name"] == name:
            return entry if isinstance(entry, dict) else entry.value
    return {}


_PERIOD = timedelta(minutes=1)  # token files and auth providers are looked at this often
_FOR_EVER = timedelta(days=365)
_log = logging.getLogger("declctl.transport")


class KubeconfigLogin:
    """A `Login` with a kubeconfig; `read` reads it again after its credentials were refused."""

    def __init__(self, kubeconfig: Kubeconfig, *, read: Callable[[], Kubeconfig]) -> None:
        self._kubeconfig = kubeconfig
        self._read = read
        self._loader: OfficialLoader | None = None
        self._private = PrivateFiles()
        self._expired: object = None  # the last certificate that a warning has named

    async def load(self, configuration: OfficialConfiguration, *, afresh: bool) -> None:
        """Log in and set token, certificates and, the first time, the server; raises UsageError."""
        kubeconfig, loader, first = self._kubeconfig, self._loader, self._loader is None
        # An auth provider's loader holds the newest refresh token, which may never be shown twice:
        # it is kept.
        if loader is not None and afresh and loader.provider is None:
            kubeconfig, loader = await asyncio.to_thread(self._read), None
        loader, found = await _log_in(kubeconfig, loader, self._private)
        self._check_expiry(found, kubeconfig)
        if first:
            if not kubeconfig.verifies:
                _log.warning(
                    "The certificate of %s is not checked (insecure-skip-tls-verify): who stands in between "
                    "can read and change everything, the credentials included.",
                    found.host,
                )
            _impersonate(configuration, kubeconfig)
            configuration.host = found.host
            configuration.verify_ssl = found.verify_ssl
            configuration.tls_server_name = found.tls_server_name
            configuration.proxy = found.proxy
        elif found.host != configuration.host:
            raise UsageError(
                f"{kubeconfig} points to {found.host} now, no longer to {configuration.host}: "
                "start again to follow it"
            )
        elif kubeconfig.impersonation != self._kubeconfig.impersonation:
            raise UsageError(f"{kubeconfig} impersonates somebody else now: start again to follow it")
        configuration.ssl_ca_cert = found.ssl_ca_cert
        configuration.cert_file = found.cert_file
        configuration.key_file = found.key_file
        take_token(configuration, found)
        self._kubeconfig, self._loader = kubeconfig, loader

    def good_for(self, now: datetime) -> timedelta:
        """Until shortly before a plugin's token expires; a minute for what changes unannounced."""
        expiry: datetime | None = getattr(self._loader, "exec_plugin_expiry", None)
        if expiry is not None:
            left = expiry.astimezone(UTC) - now
            return left - min(EARLY, left / 5)  # a fifth of its life if that is less
        return _FOR_EVER if self._kubeconfig.exec_plugin else _PERIOD

    def _check_expiry(self, found: OfficialConfiguration, kubeconfig: Kubeconfig) -> None:
        """Raise UsageError for a client certificate that has expired; with a token as well, warn once."""
        if not found.cert_file:
            return
        until = expiry(found.cert_file)
        if until is None or until > datetime.now(UTC):
            return
        name = "of its client-certificate-data" if found.cert_file.startswith("/proc/") else found.cert_file
        message = f"The client certificate {name} in {kubeconfig} expired at {until:%Y-%m-%d %H:%M:%S} UTC"
        if not found.api_key:
            raise UsageError(f"{message}, by the clock of this machine. Log in again, or renew it.")
        if self._expired != (found.cert_file, until):
            self._expired = (found.cert_file, until)
            _log.warning("%s; its token is shown as well", message)


async def _log_in(
    kubeconfig: Kubeconfig, loader: OfficialLoader | None, private: PrivateFiles
) -> tuple[OfficialLoader, OfficialConfiguration]:
    await asyncio.to_thread(_require_tls_files, kubeconfig)
    found = new_configuration()
    plugin = kubeconfig.exec_plugin
    try:
        loader = loader or kubeconfig.loader(private.folder)
        await loader.load_and_set(found)
        # The same content, and so the same file, may be there twice.
        files = {name: private.take(name) for name in {found.ssl_ca_cert, found.cert_file, found.key_file}}
        found.ssl_ca_cert = files[found.ssl_ca_cert]
        found.cert_file, found.key_file = files[found.cert_file], files[found.key_file]
        if found.cert_file:  # the loader goes on to name what it has made once
            loader.cert_file, loader.key_file = found.cert_file, found.key_file
    except Exception as fault:  # the official loader, which raises whatever its input provokes
        if plugin and isinstance(fault, UsageError):
            raise UsageError(f"the credential plugin {plugin!r} of {kubeconfig} failed: {fault}") from fault
        raise UsageError(f"{kubeconfig} can't be used: {fault}") from fault
    address = Address.of(found.host)
    found.host = address.url
    if address.userinfo and not found.api_key:
        # As Go's HTTP client: what stands in the URL is shown where there is nothing else to show.
        found.api_key[TOKEN] = "Basic " + base64.b64encode(address.userinfo.encode()).decode()
    return loader, found


def _require_tls_files(kubeconfig: Kubeconfig) -> None:
    """Read the certificates and keys that the kubeconfig names; raises UsageError. Blocks.

    The official loader, `expiry` and TLS open them on the loop right after this. There a mount that hangs
    would stop everything, so a login ends here while it does.
    """
    for field, file in kubeconfig.tls_files.items():
        try:
            read_file_in_time(file, most=TLS_BYTES, name="kubeconfig")
        except OSError as fault:
            raise UsageError(
                f"{kubeconfig} can't be used: its {field} {file} can't be read: {fault.strerror}"
            ) from fault


def _impersonate(configuration: OfficialConfiguration, kubeconfig: Kubeconfig) -> None:
    headers = kubeconfig.impersonation
    if not headers:
        return
    from multidict import CIMultiDict  # late: see `configuration`

    # Headers of the session: of our own requests, and of the official clients made from this configuration.
    kwargs = configuration.client_session_kwargs or {}
    configuration.client_session_kwargs = {**kwargs, "headers": CIMultiDict(headers)}
