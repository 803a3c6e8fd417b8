"""Kubeconfig files: their fields, how several files are merged, and what is refused.

Files are checked as strictly as client-go does (validation.go), and each fault is a sentence that names the
file. Nothing here logs in: `config` does, with the context that is chosen here.
"""

import base64
import binascii
import copy
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from declctl.errors import UsageError
from declctl.kit.files import read_file_in_time
from declctl.kit.hosts import ServerUrl
from declctl.objects import KubeObject

EARLY = timedelta(minutes=5)
"""The time before its expiry at which a credential is renewed, by a login and by its plugin alike."""

TLS_BYTES = 4 * 1024 * 1024
"""The limit of a file with certificates or a key. A bundle of all public authorities has 250 KB."""

KUBECONFIG_BYTES = 4 * 1024 * 1024
"""The limit of a kubeconfig file. A file with two hundred clusters and their certificates has 1.5 MB."""
_MOST_VALUES = 100_000  # in a kubeconfig, with YAML aliases expanded
_SECTIONS = ("clusters", "contexts", "users")
# Fields that name files, by section (client-go's GetClusterFileReferences and GetAuthInfoFileReferences).
_PATHS = {
    "clusters": ("cluster", ("certificate-authority",)),
    "users": ("user", ("client-certificate", "client-key", "tokenFile")),
}

_PROXIES = ("http", "https")  # schemes of aiohttp; client-go also has socks5
_PROVIDER = "oidc"  # the only auth-provider, as in client-go since 1.26


class ExecVariable(msgspec.Struct):
    """An environment variable of a credential plugin."""

    name: str
    value: str = ""


class ExecSpec(msgspec.Struct):
    """`user.exec`: a credential plugin of client-go."""

    command: str = ""
    apiVersion: str = ""  # noqa: N815 - the fields' names in the file, here and below
    args: list[str] | None = None
    env: list[ExecVariable] | None = None
    installHint: str | None = None  # noqa: N815
    provideClusterInfo: bool | None = None  # noqa: N815
    interactiveMode: str | None = None  # noqa: N815


class AuthProvider(msgspec.Struct):
    """`user.auth-provider`: OpenID Connect. `config` is changed when a token is renewed."""

    name: str | None = None
    config: dict[str, Any] | None = None


class NamedExtension(msgspec.Struct):
    """An entry of `extensions`: data for others than the client, such as a credential plugin."""

    name: str
    extension: Any = None


class ClusterSpec(msgspec.Struct, rename="kebab"):
    """`cluster`."""

    server: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    proxy_url: str | None = None
    disable_compression: bool | None = None
    extensions: list[NamedExtension] | None = None


class UserSpec(
    msgspec.Struct,
    rename=lambda name: "tokenFile" if name == "token_file" else name.strip("_").replace("_", "-"),
):
    """`user`."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = None
    as_: str | None = None
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str] | None] | None = None
    username: str | None = None
    password: str | None = None
    auth_provider: AuthProvider | None = None
    exec: ExecSpec | None = None

    @property
    def impersonation(self) -> Sequence[tuple[str, str]]:
        """The headers of the impersonated user (client-go's impersonatingRoundTripper)."""
        if not self.as_:
            return ()
        headers = [("Impersonate-User", self.as_)]
        if self.as_uid:
            headers.append(("Impersonate-Uid", self.as_uid))
        headers += [("Impersonate-Group", group) for group in self.as_groups or ()]
        for key, values in (self.as_user_extra or {}).items():
            headers += [(f"Impersonate-Extra-{_header_key(key)}", value) for value in values or ()]
        return headers


class _ContextSpec(msgspec.Struct):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: ClusterSpec | None = None


class _NamedUser(msgspec.Struct):
    name: str
    user: UserSpec | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _ContextSpec | None = None


class _File(msgspec.Struct):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = msgspec.field(default=None, name="current-context")


class Kubeconfig:
    """A merged kubeconfig with one chosen context. Reading it blocks.

    `where` names its files in messages. Paths in `merged` are absolute.
    """

    def __init__(self, merged: KubeObject, *, where: str, context: str | None) -> None:
        self.where = where
        self.context = _choose_context(merged, where=where, context=context)
        body = _named(merged["contexts"], self.context).get("context") or {}
        self.namespace: str | None = body.get("namespace") or None
        self.user_name: str | None = body.get("user") or None
        self.user = self._user(merged)
        self.cluster = self._cluster(merged, body.get("cluster"))
        server = ServerUrl.of(str(self.cluster.server))
        _check_user(self.user, where=f"The user {self.user_name!r} of {where}", server=server)

    @classmethod
    def read(cls, paths: Sequence[Path], *, context: str | None) -> "Kubeconfig":
        """Read and merge files; the first takes precedence. Raises UsageError, which names the file."""
        where = " and ".join(str(path) for path in paths)
        contents = {path: content for path in paths if (content := _read(path))}
        if not contents:
            raise UsageError(f"{where} is empty: it names no cluster.")
        # As in kubectl and client-go: the first entry of each name, and the first current-context.
        merged: KubeObject = {"current-context": ""}
        for path, content in contents.items():
            merged["current-context"] = merged["current-context"] or content.get("current-context") or ""
            for section in _SECTIONS:
                entries = merged.setdefault(section, [])
                known = {entry["name"] for entry in entries}
                entries += [
                    _resolved(section, entry, path)
                    for entry in content.get(section) or ()
                    if entry["name"] not in known
                ]
        return cls(merged, where=where, context=context)

    @classmethod
    def of(cls, config: KubeObject) -> "Kubeconfig":
        """From a dict with the shape of a kubeconfig file; raises UsageError."""
        where = "the given kubeconfig"
        _check_shape(config, where=where)
        return cls(copy.deepcopy(config), where=where, context=None)

    def __str__(self) -> str:
        return f"the context {self.context!r} of {self.where}"

    @property
    def tls_files(self) -> Mapping[str, Path]:
        """The files of certificates and of a key that TLS needs, by the field that names each."""
        if not str(self.cluster.server).startswith("https"):
            return {}
        named = {
            "certificate-authority": self.cluster.certificate_authority,
            "client-certificate": self.user.client_certificate,
            "client-key": self.user.client_key,
        }
        return {field: Path(name) for field, name in named.items() if name}

    def _cluster(self, merged: KubeObject, name: str | None) -> ClusterSpec:
        found = _named(merged.get("clusters") or (), name)
        if not found:
            raise UsageError(
                f"The context {self.context!r} names the cluster {name!r}, which {self.where} does not have."
            )
        cluster = msgspec.convert(found.get("cluster") or {}, ClusterSpec)
        _check_cluster(cluster, where=f"The cluster {name!r} of {self.where}")
        return cluster

    def _user(self, merged: KubeObject) -> UserSpec:
        if not self.user_name:
            return UserSpec()
        found = _named(merged.get("users") or (), self.user_name)
        if not found:
            raise UsageError(
                f"The context {self.context!r} names the user {self.user_name!r}, which {self.where} does "
                "not have."
            )
        return msgspec.convert(found.get("user") or {}, UserSpec)


def _resolved(section: str, entry: KubeObject, file: Path) -> KubeObject:
    """An entry with absolute paths: relative ones begin at the folder of its file (ResolveLocalPaths)."""
    name, fields = _PATHS.get(section, ("", ()))
    body: KubeObject = dict(entry.get(name) or {})
    folder = os.path.abspath(os.path.dirname(file))  # noqa: PTH100, PTH120 - as client-go: links stay, `..` goes
    for field in fields:
        if body.get(field):
            body[field] = os.path.normpath(os.path.join(folder, body[field]))  # noqa: PTH118
    plugin: KubeObject = body.get("exec") or {}
    # A command without a slash is looked up in PATH, never in the folder of the kubeconfig.
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
    import yaml  # late: in a pod, no kubeconfig is read

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # A merge key copies the mapping to which it refers, so that a few lines can fill the memory.
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
    # Without recursion, because aliases can nest to any depth.
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
    _check_types(cast("KubeObject", content), where=where)


def _choose_context(config: KubeObject, *, where: str, context: str | None) -> str:
    names = [str(entry["name"]) for entry in config.get("contexts") or ()]
    known = f"It has {', '.join(names)}." if names else "It has no context at all."
    chosen = context or config.get("current-context")
    if not chosen:
        raise UsageError(f"{where} has no current-context: choose one with --context. {known}")
    if chosen not in names:
        raise UsageError(f"{where} has no context {chosen!r}. {known}")
    return str(chosen)


def _named(entries: Sequence[KubeObject], name: str | None) -> KubeObject:
    return next((entry for entry in entries if entry["name"] == name), {})


def _check_types(content: Mapping[str, Any], *, where: str) -> None:
    """Raise UsageError for a field of another type than in client-go, such as `"true"` for a boolean.

    Unknown fields are ignored, as in client-go.
    """
    try:
        msgspec.convert(content, _File)
    except msgspec.ValidationError as fault:
        raise UsageError(f"{where} is no kubeconfig: {fault}") from fault


def _check_cluster(cluster: ClusterSpec, *, where: str) -> None:
    """Raise UsageError for a cluster that contradicts itself."""
    if not cluster.server:
        raise UsageError(f"{where} has no server.")
    if cluster.certificate_authority and cluster.certificate_authority_data:
        raise UsageError(
            f"{where} has certificate-authority and certificate-authority-data: remove one of them."
        )
    if cluster.insecure_skip_tls_verify and (
        cluster.certificate_authority or cluster.certificate_authority_data
    ):
        raise UsageError(
            f"{where} has insecure-skip-tls-verify and a certificate-authority: the one says that nothing is "
            "checked, the other by what. Remove one of them, better the first."
        )
    _check_base64(where, "certificate-authority-data", cluster.certificate_authority_data)
    if cluster.proxy_url and urlsplit(cluster.proxy_url).scheme not in _PROXIES:
        raise UsageError(f"{where} has a proxy-url that is neither http nor https, which declctl can't use.")


def _check_user(user: UserSpec, *, where: str, server: ServerUrl) -> None:
    """Raise UsageError for a user that contradicts itself, or whose credentials this server must not get."""
    for name in ("client-certificate", "client-key"):
        field = name.replace("-", "_")
        if getattr(user, field) and getattr(user, f"{field}_data"):
            raise UsageError(f"{where} has {name} and {name}-data: remove one of them.")
        _check_base64(where, f"{name}-data", getattr(user, f"{field}_data"))
    certificate = user.client_certificate or user.client_certificate_data
    if bool(certificate) != bool(user.client_key or user.client_key_data):
        raise UsageError(f"{where} has a client-certificate or a client-key without the other one.")
    if (user.token or user.token_file) and (user.username or user.password):
        raise UsageError(f"{where} has a token and a password: a server takes one of them. Remove the other.")
    if user.exec and user.auth_provider:
        raise UsageError(f"{where} has an auth-provider and an exec plugin: remove one of them.")
    if user.auth_provider and user.auth_provider.name != _PROVIDER:
        raise UsageError(
            f"{where} has the auth-provider {user.auth_provider.name!r}, which neither declctl nor kubectl "
            "has: use a credential plugin (exec), such as gke-gcloud-auth-plugin or kubelogin."
        )
    if not user.as_ and (user.as_uid or user.as_groups or user.as_user_extra):
        raise UsageError(f"{where} has as-uid, as-groups or as-user-extra, and no `as`: who acts? Add `as`.")
    extra = [value for values in (user.as_user_extra or {}).values() for value in values or ()]
    for value in (user.as_, user.as_uid, *(user.as_groups or ()), *extra):
        if value and not value.isprintable():
            raise UsageError(f"{where} impersonates {value!r}, which can't stand in a header.")
    shown = certificate or user.token or user.token_file or user.username or user.exec or user.auth_provider
    if (shown or server.userinfo) and not server.is_encrypted and not server.is_loopback:
        raise UsageError(
            f"{where} has credentials, and {server.url} is not https: anybody on the way could read them. "
            "Use https, or a user without credentials."
        )


def _header_key(key: str) -> str:
    # As client-go's headerKeyEscape: the percent sign is escaped, and all bytes that a header name can't
    # have.
    legal = b"!#$&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(chr(byte) if byte in legal else f"%{byte:02X}" for byte in key.encode())


def _check_base64(where: str, name: str, data: str | None) -> None:
    try:
        base64.b64decode("".join((data or "").split()), validate=True)
    except (binascii.Error, ValueError) as fault:
        raise UsageError(f"{where} has a {name} that is no base64: {fault}.") from fault
