"""The kinds of resources: written in the manifest, or said by the class of their objects (`type`)."""

from collections.abc import Callable

from declctl import codes
from declctl.manifest.checks.structure import report_missing
from declctl.manifest.document import Findings, Location
from declctl.manifest.fields import item_of
from declctl.manifest.values import (
    EntryPoint,
    Json,
    Path,
    Schema,
    dotted,
    entries_at,
    mapping_at,
    parse_entry_point,
)
from declctl.objects.custom_resource import DeclaredKind

ClassReader = Callable[[EntryPoint], DeclaredKind]
"""Returns what the source of a class says of its kind. Raises OSError if it can't be read."""


def check_types(findings: Findings, shape: Schema, classes: ClassReader | None) -> None:
    """Fill in the apiVersion and kind that classes say, and report those that nothing says.

    Without `classes`, a resource with a `type` may be left without both.
    """
    schema = item_of(mapping_at(shape, "properties", "spec", "properties", "resources"))
    for path, resource in entries_at(findings.data, "spec", "resources"):
        given = resource.get("type")
        place = (*path, "type")
        if isinstance(given, str) and given and not findings.is_blamed(place):
            if classes is not None:
                _take(findings, path, resource, classes(parse_entry_point(given)))
        elif "type" not in resource and not findings.is_meant(place):
            for name in ("apiVersion", "kind"):
                if name not in resource:
                    report_missing(findings, path, name, schema)


def _take(findings: Findings, path: Path, resource: dict[str, Json], said: DeclaredKind) -> None:
    """Join what a manifest says of a resource with what the class says."""
    place = (*path, "type")
    missing = [name for name in ("apiVersion", "kind") if name not in resource]
    if said.code:
        if missing:  # else the import says what is wrong with the class
            message = f"{dotted(place)}: {said.message}"
            findings.add(said.code, Location(place), message, suggestion=said.suggestion)
        return
    if not said.kind:
        if missing:
            shown = findings.quoted(place, resource["type"])
            message = f"{dotted(path)} needs {' and '.join(missing)}, which the class {shown} does not say"
            advice = f"add {' and '.join(missing)}, or @declctl.custom_resource above the class"
            findings.add(codes.TYPE_WITHOUT_KIND, Location(place), message, suggestion=advice)
        return
    for name, value in (("apiVersion", said.api_version), ("kind", said.kind)):
        if name in missing:
            resource[name] = value
        elif resource[name] != value and not findings.is_blamed((*path, name)):
            written = findings.quoted((*path, name), resource[name])
            message = f"{dotted((*path, name))} is {written}, and the class of its type says {value}"
            advice = f"write {value}, or leave {name} out: the class says it"
            findings.add(codes.CONTRADICTION, Location((*path, name)), message, suggestion=advice)
