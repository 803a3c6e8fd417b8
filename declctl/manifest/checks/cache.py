"""What a cache can't do: index, or filter by, what is not in it."""

from collections.abc import Mapping

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place
from declctl.manifest.json_values import Json, Path, dotted, entries_at, items_at, value_at
from declctl.manifest.model import DEFAULT_DROP_FIELDS, CacheMode
from declctl.objects.fields import FieldPath, FieldPathError, Step

_Steps = tuple[Step, ...]


def check_cache(findings: Findings) -> None:
    """Report field paths that lie outside of what the cache of their resource holds."""
    for path, resource in entries_at(findings.data, "spec", "resources"):
        if value_at(resource, "cache", "mode") == CacheMode.METADATA_ONLY:
            _check_indexers(findings, path)
            _check_dropped(findings, path)
    by_name: dict[str, dict[str, Json]] = {}
    for _, resource in entries_at(findings.data, "spec", "resources"):
        name = resource.get("name")
        if isinstance(name, str):
            by_name.setdefault(name, resource)
    dropped: dict[str, Mapping[_Steps, str]] = {}
    for path, handler in entries_at(findings.data, "spec", "handlers"):
        name = value_at(handler, "resourceRef", "name")
        if isinstance(name, str) and name in by_name and items_at(handler, "filter", "changedPaths"):
            if name not in dropped:
                dropped[name] = _dropped(by_name[name])
            _check_filter(findings, path, by_name[name], dropped[name])


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


def _check_filter(
    findings: Findings, path: Path, resource: dict[str, Json], dropped: Mapping[_Steps, str]
) -> None:
    """Report paths of a filter at which nothing can ever change; `dropped` is what the resource drops."""
    bare = value_at(resource, "cache", "mode") == CacheMode.METADATA_ONLY
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
            steps = _steps(text)
            parents = (dropped.get(steps[:length]) for length in range(1, len(steps) + 1))
            parent = next((each for each in parents if each is not None), None)
            if parent is not None:
                message = (
                    f"{dotted(place)} is {findings.quoted(place, text)}, and the resource drops {parent}: "
                    "nothing ever changes there"
                )
                advice = f"remove it, or take {parent} out of transform.dropFields"
                findings.add(
                    codes.CONTRADICTION, Place(place), message, suggestion=advice, severity="warning"
                )


def _dropped(resource: dict[str, Json]) -> dict[_Steps, str]:
    """The field paths that a resource drops, by their steps: paths below them are looked up by theirs."""
    given = value_at(resource, "transform", "dropFields")
    names = given if isinstance(given, list) else DEFAULT_DROP_FIELDS
    return {_steps(name): name for name in names if isinstance(name, str) and name}


def _steps(text: str) -> _Steps:
    """The steps of a field path; none if it is wrong, which has been reported."""
    try:
        return FieldPath.parse(text).steps
    except FieldPathError:
        return ()


def _is_outside(findings: Findings, place: Path, text: Json) -> bool:
    if not isinstance(text, str) or not text or findings.is_blamed(place):
        return False
    return FieldPath.parse(text).steps[0] != "metadata"
