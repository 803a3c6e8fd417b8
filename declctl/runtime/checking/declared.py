"""What a manifest declares of foreign code, and what is wrong with it: values that cross processes.

A declaration is everything that is needed to import the handlers somewhere else; a fault is what
went wrong there, with its place in the manifest or in a handler file.
"""

import os
from typing import Literal

import msgspec

from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle
from declctl.hooks.lint import Finding

_LONGEST = 2000  # characters of a message: what foreign code raises may be of any length
Use = Literal["handler", "filter", "indexer", "transform", "startup", "shutdown"]
ManifestPath = tuple[str | int, ...]


class Entry(msgspec.Struct, frozen=True):
    """One place of the manifest that names code.

    `resource` is the one it serves, empty for life-cycle steps.
    """

    use: Use
    name: str
    resource: str
    entry_point: str | None
    plugin: str | None
    path: ManifestPath


class DeclaredPlugin(msgspec.Struct, frozen=True):
    """One installed plugin that the manifest lists.

    `config` is JSON text, complete with what comes from elsewhere.
    """

    name: str
    version: str | None
    disable_on_error: bool
    config: str
    path: ManifestPath


class Declaration(msgspec.Struct, frozen=True):
    """Everything foreign that a generation is made of.

    `root` and `folder` are the bundle's; the latter in bytes, as names of files may be no text. With
    `examined`, names and distributions of installed plugins, a child looks at these and nothing else.
    """

    root: str
    folder: bytes
    files: dict[str, bytes]
    entries: tuple[Entry, ...]
    plugins: tuple[DeclaredPlugin, ...]
    examined: tuple[tuple[str, str], ...] = ()

    @property
    def is_foreign(self) -> bool:
        """Whether there is any code to import."""
        return bool(self.entries or self.plugins)

    @property
    def bundle(self) -> Bundle:
        """The handler files."""
        return Bundle(self.root, self.files, os.fsdecode(self.folder))


class FromHooks(msgspec.Struct, frozen=True):
    """What hooks add to the caches beside the manifest.

    By resource, the names of index functions, and the names of those who transform its objects.
    """

    indexers: dict[str, tuple[str, ...]] = {}
    transforms: dict[str, tuple[str, ...]] = {}


class Fault(msgspec.Struct, frozen=True):
    """Something wrong with foreign code.

    It stands in `file` if that is given, else at `path` in the manifest; with `key` at the key there, not
    at its value.
    """

    code: str
    message: str
    path: ManifestPath
    suggestion: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    key: bool = False
    severity: Literal["error", "warning"] = "error"

    @classmethod
    def of(cls, error: EntryPointError, path: ManifestPath) -> "Fault":
        """From the error that a room raised, and the place that led there."""
        message = error.message
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}… ({len(message):,} characters)"
        return cls(error.code, message, path, error.suggestion, error.file, error.line, error.column)

    @classmethod
    def of_finding(cls, finding: Finding) -> "Fault":
        """From a finding of a lint rule: a warning."""
        return cls(
            finding.code,
            finding.message,
            (),
            finding.suggestion,
            finding.file,
            finding.line,
            finding.column,
            severity="warning",
        )


class ListedPlugin(msgspec.Struct, frozen=True):
    """One installed plugin. `state` is Ready, or Quarantined with the reason."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...]
    state: str
    reason: str | None
