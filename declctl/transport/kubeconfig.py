"""Kubeconfig files: read, and logged in with.

Merging, exec plugins, OIDC, token files and certificates are the official loader's; here its faults
become sentences, and its login can be repeated.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from declctl.errors import UsageError
from declctl.objects import KubeObject
from declctl.transport.configuration import OfficialLoader

_NOBODY = "(nobody)"  # the user of a context that has none


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
        from kubernetes.aio.config.kube_config import KubeConfigMerger  # late: see `configuration`

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
        from kubernetes.aio.config.kube_config import ConfigNode  # late: see `configuration`

        where = "the given kubeconfig"
        _check_shape(config, where=where)
        return cls(ConfigNode("kube-config", copy.deepcopy(config)), where=where, context=None)

    def loader(self) -> OfficialLoader:
        """A new official loader for the chosen context, which remembers nothing."""
        from kubernetes.aio.config.kube_config import KubeConfigLoader  # late: see `configuration`

        # Without a base path, each file's relative paths are relative to that file.
        loader: Any = KubeConfigLoader
        return cast(
            "OfficialLoader", loader(self._merged, active_context=self.context, config_base_path=None)
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
        user = _named(self._merged.value["users"], self._context_body["user"])["user"]
        return (user.get("exec") or {}).get("command")

    @property
    def _context_body(self) -> KubeObject:
        return _named(self._merged.value["contexts"], self.context).get("context") or {}

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


def _read(path: Path) -> KubeObject | None:
    import yaml  # late: only who reads a kubeconfig needs it

    try:
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as fault:
        raise UsageError(f"The kubeconfig {path} can't be read: {fault}") from fault
    except yaml.YAMLError as fault:
        raise UsageError(f"The kubeconfig {path} is no YAML: {' '.join(str(fault).split())}") from fault
    if content is None:
        return None
    _check_shape(content, where=str(path))
    return cast("KubeObject", content)


def _check_shape(content: object, *, where: str) -> None:
    if not isinstance(content, dict):
        raise UsageError(f"{where} is no kubeconfig: it holds no mapping.")
    for section in ("clusters", "contexts", "users"):
        entries: object = cast("KubeObject", content).get(section) or []
        if not isinstance(entries, list):
            raise UsageError(f"{where} is no kubeconfig: its {section} are no list.")
        for entry in cast("list[object]", entries):
            if not isinstance(entry, dict) or not isinstance(cast("KubeObject", entry).get("name"), str):
                raise UsageError(f"{where} is no kubeconfig: an entry of its {section} has no name.")


def _choose_context(config: KubeObject, *, where: str, context: str | None) -> str:
    names = [str(entry["name"]) for entry in config.get("contexts") or ()]
    known = f"It has {', '.join(names)}." if names else "It has no context at all."
    chosen = context or config.get("current-context")
    if not chosen:
        raise UsageError(f"{where} has no current-context: choose one with --context. {known}")
    if chosen not in names:
        raise UsageError(f"{where} has no context {chosen!r}. {known}")
    return str(chosen)


def _named(entries: Sequence[Any], name: str) -> KubeObject:
    # Entries are dicts, or the official merger's nodes around dicts.
    for entry in entries:
        if entry["name"] == name:
            return entry if isinstance(entry, dict) else entry.value
    return {}
