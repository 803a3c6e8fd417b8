"""What a cache can't do: index, or filter by, what is not in it."""

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place
from declctl.manifest.json_values import Json, Path, dotted, entries_at, items_at, value_at
from declctl.manifest.model import DEFAULT_DROP_FIELDS, CacheMode
from declctl.objects.field_path import FieldPath, FieldPathError


def check_cache(findings: Findings) -> None:
    """Report field paths that lie outside of what the cache of their resource holds."""
    for path, resource in entries_at(findings.data, "spec", "resources"):
        if value_at(resource, "cache", "mode") == CacheMode.METADATA_ONLY:
            _check_indexers(findings, path)
            _check_dropped(findings, path)
    for path, handler in entries_at(findings.data, "spec", "handlers"):
        name = value_at(handler, "resourceRef", "name")
        for _, resource in entries_at(findings.data, "spec", "resources"):
            if isinstance(name, str) and resource.get("name") == name:
                _check_filter(findings, path, resource)
                break


def _check_indexers(findings: Findings, path: Path) -> None:
    for where, indexer in entries_at(findings.data, *path, "indexers"):
        place, text = (*where, "fieldPath"), indexer.get("fieldPath")
        if _is_outside(findings, place, text):
            message = (
                f"{dotted(place)} is {findings.quoted(place, text)}, and with cache.mode MetadataOnly "
                "objects have nothing but metadata"
            )
            advice = "index by a field of metadata, or write cache: {mode: Frames}"
            findings.add(codes.CONTRADICTION, Place(place), message, suggestion=advice)


def _check_dropped(findings: Findings, path: Path) -> None:
    for index, text in enumerate(items_at(findings.data, *path, "transform", "dropFields")):
        place = (*path, "transform", "dropFields", index)
        if _is_outside(findings, place, text):
            message = (
                f"{dotted(place)} is {findings.quoted(place, text)}, which with cache.mode MetadataOnly is "
                "never there"
            )
            findings.add(
                codes.CONTRADICTION, Place(place), message, suggestion="remove it", severity="warning"
            )


def _check_filter(findings: Findings, path: Path, resource: dict[str, Json]) -> None:
    """Report paths of a filter at which nothing can ever change."""
    bare = value_at(resource, "cache", "mode") == CacheMode.METADATA_ONLY
    dropped = _dropped(resource)
    for index, text in enumerate(items_at(findings.data, *path, "filter", "changedPaths")):
        place = (*path, "filter", "changedPaths", index)
        if bare and _is_outside(findings, place, text):
            message = (
                f"{dotted(place)} is {findings.quoted(place, text)}, and with cache.mode MetadataOnly "
                "objects have nothing but metadata"
            )
            advice = "name a field of metadata, or write cache: {mode: Frames}"
            findings.add(codes.CONTRADICTION, Place(place), message, suggestion=advice)
        elif isinstance(text, str) and not findings.is_blamed(place):
            parent = next((each for each in dropped if _is_within(text, each)), None)
            if parent is not None:
                message = (
                    f"{dotted(place)} is {findings.quoted(place, text)}, and the resource drops {parent}: "
                    "nothing ever changes there"
                )
                advice = f"remove it, or take {parent} out of transform.dropFields"
                findings.add(
                    codes.CONTRADICTION, Place(place), message, suggestion=advice, severity="warning"
                )


def _dropped(resource: dict[str, Json]) -> list[str]:
    given = value_at(resource, "transform", "dropFields")
    names = given if isinstance(given, list) else DEFAULT_DROP_FIELDS
    return [name for name in names if isinstance(name, str) and name]


def _is_within(text: str, parent: str) -> bool:
    try:
        inner, outer = FieldPath.parse(text).steps, FieldPath.parse(parent).steps
    except FieldPathError:
        return False  # one of them is wrong, which has been reported
    return inner[: len(outer)] == outer


def _is_outside(findings: Findings, place: Path, text: Json) -> bool:
    if not isinstance(text, str) or not text or findings.is_blamed(place):
        return False
    return FieldPath.parse(text).steps[0] != "metadata"
