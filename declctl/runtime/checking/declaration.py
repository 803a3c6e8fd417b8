"""What a process tells the child that imports its user code first, and what the child answers.

A `Declaration` has everything that is needed to import the code. A `Fault` has its place in the manifest or
in a handler file. The child needs the modules of `loaded_code`, the process that validates needs only these
values.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle
from declctl.hooks.lint import Finding
from declctl.kit.secret_values import HIDDEN

_LONGEST = 2000  # characters of a message: user code may raise one of any length
Use = Literal[
    "handler",
    "reconciler",
    "finalizer",
    "filter",
    "mapping",
    "index",
    "indexer",
    "transform",
    "type",
    "definition",
    "startup",
    "shutdown",
    "schedule",
]
ManifestPath = tuple[str | int, ...]


class DeclaredEntry(msgspec.Struct, frozen=True):
    """One place of the manifest that names code.

    A `finalizer` is one of a reconciler, which needs the hook for it. A `mapping` leads from objects to keys
    of a reconciler, as does its filter; `name` is that of the handler and the position of the watch, as in
    `webapp 0`. An `index` is one that a mapping names, and that a hook has to declare, as the manifest does
    not. A `definition` is a class of `declctl generate crd`.
    """

    use: Use
    name: str  # of the handler, watch, index, resource or schedule
    resource: str  # that the code serves; empty for life-cycle steps and schedules
    entry_point: str | None
    plugin: str | None  # instead of an entry point
    path: ManifestPath
    others: tuple[str, ...] = ()  # of an index: those that the manifest declares
    isolated: bool = False  # the hooks of the handler are called in processes of its own
    keeps_previous: bool = False  # of a reconciler: whether it has `keepPrevious`


class SecretKey(msgspec.Struct, frozen=True):
    """A key of a Secret in the namespace of the process."""

    name: str  # of the Secret
    key: str


class DeclaredSource(msgspec.Struct, frozen=True):
    """One value of a config that comes from a variable, a file or a Secret (`configFrom`)."""

    name: str  # the key of the config
    path: ManifestPath
    env: str | None = None
    file: str | None = None  # as it is shown to the user
    secret: SecretKey | None = None


class DeclaredPlugin(msgspec.Struct, frozen=True):
    """One installed plugin that the manifest lists."""

    name: str
    version: str | None  # the required version
    disable_on_error: bool
    config: str  # JSON text, with the values of `configFrom`, but for `unread`
    path: ManifestPath
    config_path: ManifestPath  # of `config`; of the plugin's name if the manifest has none
    sources: tuple[DeclaredSource, ...] = ()

    @property
    def unread(self) -> tuple[DeclaredSource, ...]:
        """The sources in Secrets whose values are not in `config` yet.

        A check needs no cluster; the values are read when a generation is staged (`ConfigSecrets`). A replay
        has `(hidden)` in their places, which no schema of a config checks.
        """
        if all(source.secret is None for source in self.sources):
            return ()
        config = json.loads(self.config)
        hidden = [each for each in self.sources if config.get(each.name, HIDDEN) == HIDDEN]
        return tuple(each for each in hidden if each.secret is not None)


class CodeRule(msgspec.Struct, frozen=True):
    """One RBAC rule that a hook `declctl_rbac` has returned.

    `namespaces` is None for those of `resources_served`, and empty for the whole cluster.
    """

    origin: str  # the plugin, or the module of handlers
    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()
    namespaces: tuple[str, ...] | None = None
    reason: str = ""
    resources_served: tuple[str, ...] = ()  # of the manifest, whose handlers have this code


class Declaration(msgspec.Struct, frozen=True):
    """All user code of a generation, to be imported in this process or another."""

    root: str  # of the bundle
    folder: bytes  # of the bundle; in bytes, as file names may be no text
    files: dict[str, bytes]
    entries: tuple[DeclaredEntry, ...]
    plugins: tuple[DeclaredPlugin, ...]
    is_reviewed: bool = False  # the bundle (`Bundle.is_reviewed`)
    # Names and distributions of installed plugins. If given, a child imports these and nothing else.
    examined: tuple[tuple[str, str], ...] = ()
    # Whether the hooks `declctl_rbac` are called, for `declctl generate`. Configs of plugins are not checked
    # then: their secrets are in the cluster.
    asks_rights: bool = False
    # Whether the hooks `declctl_check_config` are called, for `declctl validate`.
    checks_configs: bool = False
    # Whether definitions are made of the classes of custom resources, for `validate` and `generate`.
    asks_definitions: bool = False
    resources: tuple[str, ...] = ()  # the names of all resources of the manifest

    @property
    def has_user_code(self) -> bool:
        """Whether there is code to import."""
        return bool(self.entries or self.plugins)

    @property
    def entry_points(self) -> tuple[str, ...]:
        """The entry points of the entries, each once."""
        return tuple(dict.fromkeys(each.entry_point for each in self.entries if each.entry_point))

    @property
    def reconcilers(self) -> Mapping[str, bool]:
        """The entry points of reconcilers, and whether a handler of each has `keepPrevious`."""
        found: dict[str, bool] = {}
        for each in self.entries:
            if each.use == "reconciler" and each.entry_point:
                found[each.entry_point] = found.get(each.entry_point, False) or each.keeps_previous
        return found

    @property
    def bundle(self) -> Bundle:
        """The handler files."""
        return Bundle(self.root, self.files, os.fsdecode(self.folder), self.is_reviewed)


class FromHooks(msgspec.Struct, frozen=True):
    """The indexes, transforms and rights that hooks add to those of the manifest."""

    indexers: dict[str, tuple[str, ...]] = {}  # names of index functions, by resource
    transforms: dict[str, tuple[str, ...]] = {}  # names of plugins that transform objects, by resource
    rules: tuple[CodeRule, ...] = ()  # only if the declaration `asks_rights`
    definitions: tuple[dict[str, Any], ...] = ()  # only if the declaration `asks_definitions`


class Fault(msgspec.Struct, frozen=True):
    """An error in user code, or a warning about it."""

    code: str
    message: str
    path: ManifestPath  # in the manifest; shown if there is no `file`
    suggestion: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    key: bool = False  # the place is the key at `path`, not the value
    severity: Literal["error", "warning"] = "error"
    traceback: str | None = None  # its end, of a plugin that can't be loaded

    @classmethod
    def of(cls, error: EntryPointError, path: ManifestPath) -> "Fault":
        """The fault of an error; `path` is the place in the manifest that names the code."""
        message = error.message
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}… ({len(message):,} characters)"
        return cls(
            error.code,
            message,
            path,
            error.suggestion,
            error.file,
            error.line,
            error.column,
            traceback=error.traceback,
        )

    @classmethod
    def of_finding(cls, finding: Finding) -> "Fault":
        """The fault of a finding of a lint rule."""
        return cls(
            finding.code,
            finding.message,
            (),
            finding.suggestion,
            finding.file,
            finding.line,
            finding.column,
            severity=finding.severity,
        )


class ListedPlugin(msgspec.Struct, frozen=True):
    """One installed plugin. `state` is Ready, or Quarantined with the reason."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...]
    state: str
    reason: str | None
    # The range of versions of the hook specification that it declares; None if it declares none.
    hookspec: str | None = None
    traceback: str | None = None  # its end, if the plugin can't be loaded
    config_schema: Mapping[str, Any] | None = None  # the JSON Schema of its config
