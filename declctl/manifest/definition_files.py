"""CustomResourceDefinitions in YAML files: those beside a manifest, and those that a command names."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from declctl.errors import UsageError
from declctl.kit.files import MANIFEST_BYTES
from declctl.objects import KubeObject
from declctl.objects.schema_changes import Definition

_SUFFIXES = (".yaml", ".yml")
_KIND = "CustomResourceDefinition"


class DefinitionInFile(NamedTuple):
    """A definition in a file, with the tree that has the places of its fields."""

    text: str  # of the whole file
    document: KubeObject
    tree: yaml.Node


def kind_of(definition: Definition) -> tuple[str, str]:
    """Group and kind of a definition."""
    return str(definition["spec"].get("group")), str(definition["spec"]["names"].get("kind"))


def yaml_files(folder: Path) -> list[Path]:
    """The YAML files of a folder, by name; empty if it is no folder."""
    names = sorted(folder.iterdir()) if folder.is_dir() else ()
    return [path for path in names if path.suffix in _SUFFIXES]


def definitions_beside(folder: Path) -> list[KubeObject]:
    """The definitions in the YAML files of a folder, by the names of files.

    Files that are no YAML, or too large, have none: the folder may have files of others.
    """
    found: list[KubeObject] = []
    for path in yaml_files(folder):
        with suppress(UsageError):
            found += [each.document for each in read_definitions(path, may_be_other=True)]
    return found


def definitions_in(path: Path) -> list[KubeObject]:
    """The definitions of a file. Raises UsageError if there is none, and as `read_definitions`."""
    found = [each.document for each in read_definitions(path)]
    if not found:
        raise UsageError(f"{path} has no {_KIND}.")
    return found


def read_definitions(path: Path, *, may_be_other: bool = False) -> list[DefinitionInFile]:
    """The definitions of a file, which may be items of a List.

    A file that `may_be_other` is not parsed if it does not contain the word CustomResourceDefinition. Raises
    UsageError for a file that can't be read, is too large, or is no YAML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    if len(data) > MANIFEST_BYTES:
        raise UsageError(
            f"{path} is larger than {MANIFEST_BYTES:,} bytes: name a file with definitions only."
        )
    if may_be_other and _KIND.encode() not in data:
        return []
    text = data.decode("utf-8", "replace")
    try:
        parts = [part for document, tree in _documents(data) for part in _parts(document, tree)]
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-13-01
        raise UsageError(f"{path} is not YAML: {error}") from error
    return [DefinitionInFile(text, document, tree) for document, tree in parts if _is_definition(document)]


def field_of(tree: Any, step: str | int) -> Any:
    """The node of a field or an element of a node; None if it has none."""
    if isinstance(tree, yaml.SequenceNode) and isinstance(step, int):
        return tree.value[step] if step < len(tree.value) else None
    if isinstance(tree, yaml.MappingNode):
        return next((value for key, value in tree.value if key.value == step), None)
    return None


def _documents(data: bytes) -> Iterator[tuple[Any, yaml.Node]]:
    """Each document with the tree that it is made of, in one pass."""
    loader = yaml.SafeLoader(data)
    try:
        while loader.check_node():
            tree = cast("yaml.Node", loader.get_node())
            yield loader.construct_document(tree), tree
    finally:
        loader.dispose()


def _parts(document: Any, tree: yaml.Node) -> list[tuple[Any, Any]]:
    """A document, or the items of a List."""
    if not isinstance(document, dict) or cast("KubeObject", document).get("kind") != "List":
        return [(document, tree)]
    items = getattr(field_of(tree, "items"), "value", ())
    return list(zip(cast("KubeObject", document).get("items") or (), items, strict=False))


def _is_definition(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    document = cast("KubeObject", item)
    spec: Any = document.get("spec")
    return (
        document.get("kind") == _KIND
        and isinstance(spec, dict)
        and isinstance(cast("KubeObject", spec).get("names"), dict)
    )
