"""The ControllerTest documents of folders: found, read, and put together with the Controllers they test."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

from declctl import codes
from declctl.errors import ManifestErrors, UsageError
from declctl.kit.files import OBJECTS_BYTES, folder_of, read_file, shown
from declctl.manifest.controller_test import LoadedTest, defined_kinds, load_tests, names_test
from declctl.manifest.definition_files import definitions_beside
from declctl.manifest.diagnostics import Diagnostic, in_order
from declctl.manifest.model import ControllerSpec
from declctl.manifest.sources import ManifestSource
from declctl.manifest.values import Json, mapping_at
from declctl.manifest.values import Path as FieldPath
from declctl.objects import GroupVersionKind, KubeObject
from declctl.runtime.checking.inputs import load_beside
from declctl.sandbox.kinds import BUILT_IN
from declctl.sandbox.kubectl.protobuf import OBJECT_META, built_in_schema, message_schema
from declctl.sandbox.schemas import prune
from declctl.sandbox.validation import read_documents

_SUFFIXES = (".yaml", ".yml")
_ABOVE = 5  # folders above a document in which its Controller is looked for
_PASSED_OVER = frozenset({"node_modules", "venv", "__pycache__", "site-packages"})
_BUILT_IN_KINDS = [GroupVersionKind(each.group, each.version, each.kind) for each in BUILT_IN]
_IDENTITY = {"apiVersion": {}, "kind": {}, "metadata": message_schema(OBJECT_META)}
_NOT_HERE = {codes.UNREADABLE, codes.NO_CONTROLLER, codes.NOT_A_MAPPING}


class BundleUnderTest(msgspec.Struct, frozen=True):
    """The Controller of a manifest, and the definitions beside it."""

    path: Path
    controller: ControllerSpec
    definitions: Sequence[KubeObject]

    @property
    def folder(self) -> Path:
        """The folder of the manifest and the handlers."""
        return folder_of(self.path)

    @property
    def handlers(self) -> Sequence[str]:
        """The names of handlers and schedules."""
        return [each.name for each in (*self.controller.handlers, *self.controller.schedules)]

    @property
    def plurals(self) -> Iterable[str]:
        """The resources of built-in kinds."""
        return [each.plural for each in BUILT_IN]

    @property
    def kinds(self) -> Iterable[GroupVersionKind]:
        """The built-in kinds, and those of definitions, resources and writes."""
        yield from _BUILT_IN_KINDS
        yield from defined_kinds(self.definitions)
        for each in self.controller.resources:
            if each.kind:
                yield GroupVersionKind.of(each.api_version, each.kind)
        for handler in self.controller.handlers:
            yield from handler.applies

    def unknown_fields(
        self, kind: GroupVersionKind, schema: Json, part: dict[str, Json]
    ) -> Sequence[tuple[FieldPath, Sequence[str]]] | None:
        """The fields of a part of an object that its kind does not have, each with those that it has there.

        `schema` is that of the definition of the kind; of a built-in kind, the fields of Kubernetes 1.36 are
        known. The result is None if no schema is known.
        """
        try:
            if isinstance(schema, dict):
                own: Mapping[str, Any] = {**mapping_at(schema, "properties"), **_IDENTITY}
                known = {**schema, "properties": own}
            elif kind in _BUILT_IN_KINDS:
                known = built_in_schema(kind.api_version, kind.kind)
            else:
                known = None
            return None if known is None else list(prune(deepcopy(part), known))
        except (AttributeError, TypeError):  # a schema that is none, which the server of the test refuses
            return None


def objects_of(file: Path) -> Sequence[KubeObject]:
    """All documents of a file of objects. Raises OSError, and SandboxError with the place of a fault."""
    found = read_documents(read_file(file, most=OBJECTS_BYTES), name=shown(file))
    return [each for each in found if isinstance(each, dict)]


class DocumentSurroundings:
    """The manifests and files beside documents; each manifest is read once."""

    def __init__(self) -> None:
        self._bundles: dict[Path, BundleUnderTest] = {}  # by manifest

    def bundle(self, place: Path, *, nearest: bool) -> BundleUnderTest:
        """The Controller of a manifest; with `nearest`, that of the nearest folder at or above a folder.

        Raises ManifestErrors for a manifest with faults, and UsageError if there is none.
        """
        if not nearest:
            return self._read(place)
        here = place.absolute()
        for folder in (here, *here.parents[:_ABOVE]):
            try:
                return self._read(folder)
            except ManifestErrors as error:
                codes_found = {each.code for each in error.diagnostics if isinstance(each, Diagnostic)}
                if codes_found - _NOT_HERE:
                    raise
        raise UsageError(f"no folder from {shown(place)} upwards has one")

    def objects(self, file: Path) -> Sequence[KubeObject]:
        """All documents of a file of objects. Raises OSError, and SandboxError with the place of a fault."""
        return objects_of(file)

    def _read(self, path: Path) -> BundleUnderTest:
        key = path.resolve()
        if key not in self._bundles:
            loaded = load_beside(str(path))
            definitions = definitions_beside(folder_of(path))
            self._bundles[key] = BundleUnderTest(path, loaded.controller, definitions)
        return self._bundles[key]


def document_files(places: Sequence[Path]) -> Sequence[Path]:
    """The YAML files at and below some places that name the kind, in order. Raises UsageError.

    Hidden folders, environments and caches are passed over.
    """
    found: dict[Path, None] = {}
    for place in places:
        if not place.exists():
            raise UsageError(f"{shown(place)}: no such file or folder.")
        for path in [place] if place.is_file() else sorted(_yaml_below(place)):
            if place.is_file() or names_test(path):
                found[path] = None
    return list(found)


def load_documents(places: Sequence[Path], environ: dict[str, str] | None = None) -> Sequence[LoadedTest]:
    """The documents of files and folders, in the order of their files.

    Raises ManifestErrors with the faults of all documents, and UsageError for a place that is not there.
    """
    surroundings = DocumentSurroundings()
    found: list[LoadedTest] = []
    faults: list[Diagnostic] = []
    for path in document_files(places):
        try:
            source = ManifestSource.read(str(path))
            found += load_tests(source, surroundings, folder=path.parent, environ=environ)
        except ManifestErrors as error:
            faults += [each for each in error.diagnostics if isinstance(each, Diagnostic)]
    if faults:
        raise ManifestErrors(in_order(faults))
    return found


def _yaml_below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in _PASSED_OVER:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _yaml_below(path)
        elif path.suffix in _SUFFIXES and path.is_file():
            yield path
