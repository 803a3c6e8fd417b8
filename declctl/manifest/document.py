"""A document of a manifest: its data, and where each part of it stands in the text.

`data` is what the text means; `locate` and `fault` lead back from a path to a line and a column.
Faults that only the text can show (duplicate keys, `on:`, undefined variables) are found while it
is read and kept in `faults`.
"""

from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from declctl.manifest.diagnostics import Diagnostic, Severity
from declctl.manifest.environment import has_reference
from declctl.manifest.json_values import Json, Path
from declctl.manifest.source_text import Position, SourceText
from declctl.manifest.yaml_nodes import Node


class Place(msgspec.Struct, frozen=True):
    """A part of a document: the value at `path`, or with `key` the key that it stands under.

    `offset` is counted in characters into a text value, from 0.
    """

    path: Path
    key: bool = False
    offset: int = 0


@dataclass
class Document:
    """One document. Complete once `read_document` returns it, and not changed afterwards."""

    source: SourceText
    data: Json = None
    nodes: dict[Path, Node] = field(default_factory=dict[Path, Node], repr=False)
    keys: dict[Path, Position] = field(default_factory=dict[Path, Position], repr=False)
    faults: list[Diagnostic] = field(default_factory=list[Diagnostic])
    blamed: set[Path] = field(default_factory=set[Path])

    @property
    def path(self) -> str:
        """The name of the file, as people know it."""
        return self.source.name

    @property
    def text(self) -> str:
        """The whole text of the file, other documents included."""
        return self.source.text

    def locate(self, path: Path, *, key: bool = False) -> Position:
        """Line and column, from 1, of the value (or its key) at `path`, or of its nearest parent."""
        if key and path in self.keys:
            return self.keys[path]
        while path not in self.nodes and path:
            path = path[:-1]
        return self.nodes[path].start if path in self.nodes else Position(1, 1)

    def fault(
        self,
        code: str,
        place: Place,
        message: str,
        *,
        suggestion: str | None = None,
        severity: Severity = "error",
    ) -> Diagnostic:
        """A diagnostic at a place of this document."""
        position = self.locate(place.path, key=place.key)
        node = self.nodes.get(place.path)
        if place.offset and node is not None and self.from_environment(place.path) is None:
            position = node.position_inside(self.source, place.offset)
        return self.source.fault(code, position, message, suggestion=suggestion, severity=severity)

    def written(self, path: Path) -> str | None:
        """The characters of an unquoted scalar, as they stand in the text; None for everything else."""
        node = self.nodes.get(path)
        return node.text if node is not None and node.kind == "scalar" and node.plain else None

    def from_environment(self, path: Path) -> str | None:
        """The text before `${env:…}` was replaced, None if nothing was: messages show only this."""
        node = self.nodes.get(path)
        return node.text if node is not None and node.kind == "scalar" and has_reference(node.text) else None

    def has_environment_within(self, path: Path) -> bool:
        """Whether this value, or anything in it, came out of the environment."""
        return path in self._around_environment

    @cached_property
    def _around_environment(self) -> frozenset[Path]:
        """Every path at or above a value out of the environment; a manifest may have thousands of each."""
        found = [path for path in self.nodes if self.from_environment(path) is not None]
        return frozenset(path[:length] for path in found for length in range(len(path) + 1))
