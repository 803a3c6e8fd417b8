"""Kubeconfig files: read, and logged in with.

Merging, exec plugins, OIDC, token files and certificates are the official loader's; here its faults
become sentences, and its login can be repeated.
"""

import asyncio
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, cast

from declctl.errors import UsageError
from declctl.objects import KubeObject

_PERIOD = timedelta(minutes=1)  # token files and auth providers are looked at this often
_FOR_EVER = timedelta(days=365)
_EARLIEST = timedelta(minutes=5)  # before a token expires; a fifth of its life if that is less
_LOGIN_FIELDS = ("ssl_ca_cert", "cert_file", "key_file")
_SERVER_FIELDS = ("host", "verify_ssl", "tls_server_name", "proxy")
_NOBODY = "(nobody)"  # the user of a context that has none
_OFFICIAL_LOGGER = "kubernetes.aio.config.kube_config"


class Kubeconfig:
    """A merged kubeconfig, with one context chosen. `where` names its files for people."""

    def __init__(self, merged: Any, *, where: str, context: str | None) -> None:
        self._merged = merged
        self.where = where
        self.context = _choose_context(merged.value, where=where, context=context)
        self._complete_user()

    @classmethod
    def read(cls, paths: Sequence[Path], *, context: str | None) -> "Kubeconfig":
        """From files, the first of which wins; raises UsageError with the file at fault."""
        from kubernetes.aio.config.kube_config import KubeConfigMerger  # late: see ServiceAccount.load

        where = " and ".join(str(path) for path in paths)
        contents = {path: content for path in paths if (content := _read(path))}
        if not contents:
            raise UsageError(f"{where} is empty: it names no cluster.")
        merged: Any = KubeConfigMerger(":".join(str(path) for path in contents)).config
        # The official merger takes the last current-context; kubectl and client-go take the first.
        current = [str(c["current-context"]) for c in contents.values() if c.get("current-context")]
        merged.value["current-context"] = current[0] if current else ""
        return cls(merged, where=where, context=context)

    @classmethod
    def of(cls, config: KubeObject) -> "Kubeconfig":
        """From a dict with the shape of a kubeconfig file."""
        from kubernetes.aio.config.kube_config import ConfigNode  # late: see ServiceAccount.load

        where = "the given kubeconfig"
        _check_shape(config, where=where)
        return cls(ConfigNode("kube-config", copy.deepcopy(config)), where=where, context=None)

    def loader(self) -> Any:
        """A new official loader for the chosen context, which remembers nothing."""
        from kubernetes.aio.config.kube_config import KubeConfigLoader  # late: see ServiceAccount.load

        loader: Any = KubeConfigLoader
        # Without a base path, each file's relative paths are relative to that file.
        return loader(self._merged, active_context=self.context, config_base_path=None)

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
        plugin = _named(self._merged.value["users"], self._context_body["user"])["user"].get("exec") or {}
        return plugin.get("command")

    @property
    def _context_body(self) -> dict[str, Any]:
        return _named(self._merged.value["contexts"], self.context).get("context") or {}

    def _complete_user(self) -> None:
        # The official loader has no notion of a context without a user on a server with TLS: it
        # gets an empty one.
        users: list[Any] = self._merged.value.get("users") or []
        self._merged.value["users"] = users
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
        if not user.get("user"):
            (user if isinstance(user, dict) else user.value)["user"] = {}


class KubeconfigLogin:
    """A `Login` with a kubeconfig; `read` reads it again after its credentials were refused."""

    def __init__(self, kubeconfig: Kubeconfig, *, read: Callable[[], Kubeconfig]) -> None:
        self._kubeconfig = kubeconfig
        self._read = read
        self._loader: Any = None

    async def load(self, configuration: Any, *, afresh: bool) -> None:
        """Log in and set token, certificates and, the first time, the server; raises UsageError."""
        if self._loader is None:
            await self._load_with(self._kubeconfig, configuration, first=True)
        elif afresh and self._loader.provider is None:
            await self._load_with(await asyncio.to_thread(self._read), configuration)
        else:
            # An auth provider's loader holds the newest refresh token, which may never be shown
            # twice: it is kept.
            await self._load_with(self._kubeconfig, configuration, loader=self._loader)

    def good_for(self, now: datetime) -> timedelta:
        """Until shortly before a plugin's token expires; a minute for what changes unannounced."""
        expiry: datetime | None = getattr(self._loader, "exec_plugin_expiry", None)
        if expiry is not None:
            left = expiry.astimezone(UTC) - now
            return left - min(_EARLIEST, left / 5)
        return _FOR_EVER if self._kubeconfig.exec_plugin else _PERIOD

    async def _load_with(
        self, kubeconfig: Kubeconfig, configuration: Any, *, loader: Any = None, first: bool = False
    ) -> None:
        from kubernetes.aio.client.configuration import Configuration  # late: see ServiceAccount.load

        read: Any = Configuration()
        with _Complaints() as complaints:
            try:
                loader = kubeconfig.loader() if loader is None else loader
                await loader.load_and_set(read)
            except Exception as fault:  # the official loader, which raises whatever its input provokes
                raise UsageError(f"{_subject(kubeconfig)} can't be used: {fault}") from fault
        plugin = kubeconfig.exec_plugin
        if plugin and (complaints.texts or not (read.api_key or read.cert_file)):
            why = "; ".join(complaints.texts) or "it gave neither a token nor a certificate"
            raise UsageError(f"the credential plugin {plugin!r} of {_subject(kubeconfig)} failed: {why}")
        if not first and read.host != configuration.host:
            raise UsageError(
                f"{_subject(kubeconfig)} points to {read.host} now, no longer to {configuration.host}: "
                "start again to follow it"
            )
        for name in (*_LOGIN_FIELDS, *(_SERVER_FIELDS if first else ())):
            setattr(configuration, name, getattr(read, name))
        configuration.api_key.clear()
        configuration.api_key.update({name: token.strip() for name, token in read.api_key.items()})
        self._kubeconfig, self._loader = kubeconfig, loader


class _Complaints(logging.Handler):
    # The official loader logs what went wrong with a plugin, and goes on without credentials.

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))

    def __enter__(self) -> Self:
        logging.getLogger(_OFFICIAL_LOGGER).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(_OFFICIAL_LOGGER).removeHandler(self)


def _subject(kubeconfig: Kubeconfig) -> str:
    return f"the context {kubeconfig.context!r} of {kubeconfig.where}"


def _read(path: Path) -> KubeObject | None:
    import yaml  # late: only who reads a kubeconfig needs it

    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as fault:
        raise UsageError(f"The kubeconfig {path} can't be read: {fault}") from fault
    except yaml.YAMLError as fault:
        raise UsageError(f"The kubeconfig {path} is no YAML: {' '.join(str(fault).split())}") from fault
    if content is None:
        return None
    _check_shape(content, where=str(path))
    return cast("KubeObject", content)


def _check_shape(content: Any, *, where: str) -> None:
    if not isinstance(content, dict):
        raise UsageError(f"{where} is no kubeconfig: it holds no mapping.")
    for section in ("clusters", "contexts", "users"):
        entries: Any = cast("KubeObject", content).get(section) or []
        if not isinstance(entries, list):
            raise UsageError(f"{where} is no kubeconfig: its {section} are no list.")
        for entry in cast("list[Any]", entries):
            if not isinstance(entry, dict) or not isinstance(cast("KubeObject", entry).get("name"), str):
                raise UsageError(f"{where} is no kubeconfig: an entry of its {section} has no name.")


def _choose_context(config: Mapping[str, Any], *, where: str, context: str | None) -> str:
    names = [str(entry["name"]) for entry in config.get("contexts") or ()]
    known = f"It has {', '.join(names)}." if names else "It has no context at all."
    chosen = context or config.get("current-context")
    if not chosen:
        raise UsageError(f"{where} has no current-context: choose one with --context. {known}")
    if chosen not in names:
        raise UsageError(f"{where} has no context {chosen!r}. {known}")
    return str(chosen)


def _named(entries: Sequence[Any], name: str) -> Any:
    # Entries are dicts, or the official merger's nodes around dicts.
    for entry in entries:
        if entry["name"] == name:
            return entry if isinstance(entry, dict) else entry.value
    return {}
