"""Loads a manifest: finds the Controller in its files, checks it, and builds the model.

This is the only module of the room that reads environment variables (for `${env:NAME}`). Building the model
can't fail, because `checks` has read the same values with the same functions. The model has the defaults of
absent fields.
"""

import os
from collections.abc import Mapping

import msgspec

from declctl import codes
from declctl.errors import ManifestErrors
from declctl.manifest.checks.cycles import check_cycles
from declctl.manifest.checks.finalizers import check_finalizers
from declctl.manifest.checks.rules import (
    check_cache,
    check_expressions,
    check_failure_policies,
    check_invalid_policies,
    check_references,
    check_traps,
)
from declctl.manifest.checks.sharding import check_sharding
from declctl.manifest.checks.structure import check_structure
from declctl.manifest.checks.types import ClassReader, check_types
from declctl.manifest.checks.values import check_values
from declctl.manifest.diagnostics import (
    Diagnostic,
    Position,
    SourceText,
    bounded_suggestions,
    closest,
    in_order,
)
from declctl.manifest.document import (
    Document,
    Findings,
    Location,
    Node,
    UnreadableYaml,
    meant_kind,
    parse_documents,
    read_document,
)
from declctl.manifest.fields import API_VERSION, walk
from declctl.manifest.model import CONTROLLER, ControllerSpec, build_controller
from declctl.manifest.sources import ManifestSource, decode
from declctl.manifest.values import Path

_GROUP = API_VERSION.partition("/")[0]


class LoadedManifest(msgspec.Struct, frozen=True):
    """A manifest without errors. `document` finds the place of each path in the text."""

    controller: ControllerSpec
    document: Document
    warnings: tuple[Diagnostic, ...] = ()

    def fault(
        self,
        code: str,
        path: Path,
        message: str,
        *,
        suggestion: str | None = None,
        key: bool = False,
        offset: int = 0,
    ) -> Diagnostic:
        """A fault that another room has found, at the value at `path`; with `key`, at its key.

        `offset` is its position in a text value, in characters from 0.
        """
        location = Location(path, key=key, offset=offset)
        return self.document.fault(code, location, message, suggestion=suggestion)


class _Candidate(msgspec.Struct, frozen=True):
    """A document that is a Controller, or resembles one."""

    source: SourceText
    root: Node


class _SourceContents(msgspec.Struct):
    """The documents of all files of a source."""

    candidates: list[_Candidate]
    faults: list[Diagnostic]  # faults that make a file unreadable
    others: list[str]  # the kinds of documents that are no Controller
    last: SourceText | None = None  # the last file that is text


def load(
    source: ManifestSource,
    *,
    environ: Mapping[str, str] | None = None,
    classes: ClassReader | None = None,
) -> LoadedManifest:
    """The Controller of the source.

    `environ` has the values of `${env:NAME}`, by default those of the process. `classes` says the kinds of
    classes that resources have as `type`; without it, they are empty where the manifest has none. Raises
    ManifestErrors with every fault, sorted by position.
    """
    found = _read_source(source)
    errors = list(found.faults)
    if not found.candidates:
        raise ManifestErrors(in_order(errors or [_nothing_found(source, found)]))
    # The first Controller is checked even if there is a second one: one run shows the faults of both.
    first, *more = found.candidates
    errors += [_second_controller(first, other) for other in more]
    document = read_document(first.source, first.root, os.environ if environ is None else environ)
    with bounded_suggestions():
        diagnostics = check(document, classes)
    errors += [fault for fault in diagnostics if fault.severity == "error"]
    if errors:
        warnings = [fault for fault in diagnostics if fault.severity == "warning"]
        raise ManifestErrors(in_order([*errors, *warnings]))
    return LoadedManifest(build_controller(document.data), document, in_order(diagnostics))


def check(document: Document, classes: ClassReader | None = None) -> tuple[Diagnostic, ...]:
    """All faults of a Controller document, errors and warnings, in no particular order.

    The data gets the kinds that `classes` say.

    The checks run one after the other over the same data. A check skips values that an earlier check has
    blamed, so each cause is reported once: a missing name is not also an unknown reference.
    """
    # One walk for all checks: a manifest may have 100,000 values.
    findings = Findings(document, walk(document.data, CONTROLLER))
    check_structure(findings, CONTROLLER)
    check_traps(findings)
    check_values(findings)
    check_types(findings, CONTROLLER, classes)
    check_references(findings, CONTROLLER)
    check_cache(findings)
    check_failure_policies(findings)
    check_invalid_policies(findings)
    check_expressions(findings)
    check_finalizers(findings)
    check_cycles(findings)
    check_sharding(findings)
    return findings.diagnostics


def _read_source(source: ManifestSource) -> _SourceContents:
    """Reads all files, one after the other.

    A folder may contain YAML for other tools, such as templates. A file there that can't be read is a fault
    only if it names our API group, or if no file has a Controller.
    """
    found = _SourceContents([], [], [])
    doubtful: list[Diagnostic] = []
    for file in source.files:
        faults = _read_file(file, found)
        # A file that names our API group is a manifest, even if it can't be read.
        is_ours = not source.is_folder or _GROUP.encode() in file.data
        (found.faults if is_ours else doubtful).extend(faults)
    if not found.candidates:
        found.faults += doubtful
    return found


def _read_file(file: ManifestSource, found: _SourceContents) -> list[Diagnostic]:
    """Adds the documents of one file to `found`; returns the faults that make the file unreadable."""
    try:
        found.last = decode(file)
        _classify(found.last, found)
    except ManifestErrors as error:
        return [fault for fault in error.diagnostics if isinstance(fault, Diagnostic)]
    except UnreadableYaml as error:
        return [error.diagnostic]
    return []


def _classify(text: SourceText, found: _SourceContents) -> None:
    """Adds each document of a text to the candidates, or its kind to the others."""
    for root in parse_documents(text):
        fields = {key.text: value for key, value in root.pairs if key.kind == "scalar"}
        kind, version = _text(fields.get("kind")), _text(fields.get("apiVersion"))
        if _is_ours(root, kind=kind, version=version):
            found.candidates.append(_Candidate(text, root))
        elif root.kind != "scalar" or root.text:
            found.others.append(kind or "a document without kind")


def _text(node: Node | None) -> str:
    return node.text if node is not None and node.kind == "scalar" else ""


def _is_ours(root: Node, *, kind: str, version: str) -> bool:
    """Whether a document is a Controller, or resembles one so much that its faults are reported."""
    if root.kind != "mapping" or not root.pairs or meant_kind(kind) == "ControllerTest":
        return False  # whoever reads tests tells their faults
    # Without both fields, the names of the other fields decide.
    if not kind and not version:
        return any(key.text in ("spec", "resources", "handlers") for key, _ in root.pairs)
    group = version.partition("/")[0]
    if group == _GROUP:
        return True
    # A document with a misspelt group or kind counts as a Controller: the checks then report the word.
    group_is_close = not version or closest(group, [_GROUP]) is not None
    return group_is_close and (not kind or bool(meant_kind(kind)))


def _second_controller(first: _Candidate, other: _Candidate) -> Diagnostic:
    position = next((key.start for key, _ in other.root.pairs if key.text == "kind"), other.root.start)
    line = next((key.start for key, _ in first.root.pairs if key.text == "kind"), first.root.start).line
    message = f"there is a Controller already, at {first.source.name}:{line}, and one process runs one"
    advice = "keep each in a file of its own, and name that file"
    return other.source.fault(codes.SECOND_CONTROLLER, position, message, suggestion=advice)


def _nothing_found(source: ManifestSource, found: _SourceContents) -> Diagnostic:
    text = found.last or SourceText(source.name, "")
    if source.is_folder or found.others:
        seen = f"; found {', '.join(dict.fromkeys(found.others))}" if found.others else ""
        code, message = codes.NO_CONTROLLER, f"no document here is a Controller{seen}"
    else:
        code, message = codes.NOT_A_MAPPING, "the manifest is empty"
    suggestion = f"begin it with apiVersion: {API_VERSION} and kind: Controller"
    return text.fault(code, Position(1, 1), message, suggestion=suggestion)
