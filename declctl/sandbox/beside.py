"""Files beside a manifest with which a sandbox can begin: definitions, and those of the folder `sandbox`."""

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml

from declctl.errors import UsageError
from declctl.kit.files import MANIFEST_BYTES
from declctl.objects import KubeObject

_SUFFIXES = (".yaml", ".yml")


def samples_beside(folder: Path) -> list[Path]:
    """The YAML files of the folder `sandbox` below the folder of a manifest, by name."""
    return _files(folder / "sandbox")


def definitions_beside(folder: Path) -> list[KubeObject]:
    """The CustomResourceDefinitions in the YAML files of a folder, by the names of files.

    Files that are no YAML, or too large, have none: the folder may have files of others.
    """
    found: list[KubeObject] = []
    for path in _files(folder):
        with suppress(UsageError):
            found += definitions_in(str(path))
    return found


def _files(folder: Path) -> list[Path]:
    names = sorted(folder.iterdir()) if folder.is_dir() else ()
    return [path for path in names if path.suffix in _SUFFIXES]


def definitions_in(path: str) -> list[KubeObject]:
    """The CustomResourceDefinitions of a file. Raises UsageError if there is none."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MANIFEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    if len(text) > MANIFEST_BYTES:
        raise UsageError(
            f"{path} is larger than {MANIFEST_BYTES:,} bytes: name a file with definitions only."
        )
    try:
        documents: list[Any] = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-13-01
        raise UsageError(f"{path} is not YAML: {error}") from error
    found: list[KubeObject] = []
    for each in documents:
        if not isinstance(each, dict):
            continue
        document = cast("dict[str, Any]", each)
        items = (
            cast("list[Any]", document.get("items") or []) if document.get("kind") == "List" else [document]
        )
        found += [item for item in items if _is_definition(item)]
    if not found:
        raise UsageError(f"{path} has no CustomResourceDefinition.")
    return found


def _is_definition(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    document = cast("dict[str, Any]", item)
    spec: Any = document.get("spec")
    return (
        document.get("kind") == "CustomResourceDefinition"
        and isinstance(spec, dict)
        and isinstance(cast("dict[str, Any]", spec).get("names"), dict)
    )
