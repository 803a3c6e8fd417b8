"""From a source to a checked Controller, or to every fault at once.

Environment variables are read here, for `${env:NAME}`, and nowhere else in this room. No cluster is asked, no
handler is imported. Building the model can't fail: `checks` has read the same values with the same functions.
Fields that are absent are left to the model, where the defaults are.
"""

import os
from collections.abc import Mapping

import msgspec

from declctl.errors import ManifestErrors
from declctl.manifest import codes
from declctl.manifest.checks.rules import check_cache, check_references, check_refusals, check_traps
from declctl.manifest.checks.structure import check_structure
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
    parse_documents,
    read_document,
)
from declctl.manifest.fields import API_VERSION, walk
from declctl.manifest.model import CONTROLLER, ControllerSpec, build_controller
from declctl.manifest.sources import ManifestSource, decode
from declctl.manifest.values import Path

_GROUP = API_VERSION.partition("/")[0]
_KINDS = ("Controller", "ControllerTest")


class Loaded(msgspec.Struct, frozen=True):
    """A manifest without errors; `document` leads from the path of each spec back to the text."""

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
    ) -> Diagnostic:
        """A fault that others have found, located at the value at `path` (or with `key` at its key)."""
        return self.document.fault(code, Location(path, key=key), message, suggestion=suggestion)


class _Candidate(msgspec.Struct, frozen=True):
    """A document that is, or was meant to be, a Controller."""

    source: SourceText
    root: Node


class _Found(msgspec.Struct):
    """What the files of a source hold."""

    candidates: list[_Candidate]
    faults: list[Diagnostic]
    others: list[str]  # kinds that are left alone
    last: SourceText | None = None


def load(source: ManifestSource, *, environ: Mapping[str, str] | None = None) -> Loaded:
    """The Controller of the source; `environ` (by default the process's) is for `${env:NAME}`.

    Raises ManifestErrors with every fault, sorted by position.
    """
    found = _search(source)
    errors = list(found.faults)
    if not found.candidates:
        raise ManifestErrors(in_order(errors or [_nothing_found(source, found)]))
    # The first Controller is checked all the same, so that one run shows its faults too.
    first, *more = found.candidates
    errors += [_second(first, other) for other in more]
    document = read_document(first.source, first.root, os.environ if environ is None else environ)
    with bounded_suggestions():
        diagnostics = check(document)
    errors += [fault for fault in diagnostics if fault.severity == "error"]
    if errors:
        warnings = [fault for fault in diagnostics if fault.severity == "warning"]
        raise ManifestErrors(in_order([*errors, *warnings]))
    return Loaded(build_controller(document.data), document, in_order(diagnostics))


def check(document: Document) -> tuple[Diagnostic, ...]:
    """All faults of a Controller document, errors and warnings, in no particular order.

    The checks run one after the other over the same data. Each leaves out what another has blamed, so that
    each cause is reported only once: a missing name is not also an unknown reference.
    """
    # One walk for all checks: a manifest may have 100,000 values.
    findings = Findings(document, walk(document.data, CONTROLLER))
    check_structure(findings, CONTROLLER)
    check_traps(findings)
    check_values(findings)
    check_references(findings, CONTROLLER)
    check_cache(findings, CONTROLLER)
    check_refusals(findings)
    return findings.diagnostics


def _search(source: ManifestSource) -> _Found:
    """All files, one after the other.

    A folder may hold other people's YAML, such as templates: what can't be read there counts only
    if no Controller is elsewhere.
    """
    found = _Found([], [], [])
    doubtful: list[Diagnostic] = []
    for file in source.files:
        faults = _look_into(file, found)
        # A file that names our API group was meant for us, even if it can't be read.
        is_ours = not source.is_folder or _GROUP.encode() in file.data
        (found.faults if is_ours else doubtful).extend(faults)
    if not found.candidates:
        found.faults += doubtful
    return found


def _look_into(file: ManifestSource, found: _Found) -> list[Diagnostic]:
    """Add the documents of one file; what stops the reading is returned."""
    try:
        found.last = decode(file)
        _sort(found.last, found)
    except ManifestErrors as error:
        return [fault for fault in error.diagnostics if isinstance(fault, Diagnostic)]
    except UnreadableYaml as error:
        return [error.diagnostic]
    return []


def _sort(text: SourceText, found: _Found) -> None:
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
    """Whether a document is a Controller, or so like one that its faults are worth reporting."""
    if root.kind != "mapping" or not root.pairs or kind == "ControllerTest":
        return False
    # Both fields are missing: the names of our fields decide.
    if not kind and not version:
        return any(key.text in ("spec", "resources", "handlers") for key, _ in root.pairs)
    group = version.partition("/")[0]
    if group == _GROUP:
        return True
    # A misspelt group or kind is a fault of a Controller, not another kind of document.
    group_is_close = not version or closest(group, [_GROUP]) is not None
    return group_is_close and (not kind or closest(kind, _KINDS) is not None)


def _second(first: _Candidate, other: _Candidate) -> Diagnostic:
    position = next((key.start for key, _ in other.root.pairs if key.text == "kind"), other.root.start)
    line = next((key.start for key, _ in first.root.pairs if key.text == "kind"), first.root.start).line
    message = f"there is a Controller already, at {first.source.name}:{line}, and one process runs one"
    advice = "keep each in a file of its own, and name that file"
    return other.source.fault(codes.SECOND_CONTROLLER, position, message, suggestion=advice)


def _nothing_found(source: ManifestSource, found: _Found) -> Diagnostic:
    text = found.last or SourceText(source.name, "")
    if source.is_folder or found.others:
        seen = f"; found {', '.join(dict.fromkeys(found.others))}" if found.others else ""
        code, message = codes.NO_CONTROLLER, f"no document here is a Controller{seen}"
    else:
        code, message = codes.NOT_A_MAPPING, "the manifest is empty"
    suggestion = f"begin it with apiVersion: {API_VERSION} and kind: Controller"
    return text.fault(code, Position(1, 1), message, suggestion=suggestion)
