"""What a cache of metadata alone can't do: be indexed by what is not in it."""

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place
from declctl.manifest.json_values import Json, Path, dotted, entries_at, items_at, value_at
from declctl.manifest.model import CacheMode
from declctl.objects.field_path import FieldPath


def check_cache(findings: Findings) -> None:
    """Report field paths outside of metadata where `cache.mode` is MetadataOnly."""
    for path, resource in entries_at(findings.data, "spec", "resources"):
        if value_at(resource, "cache", "mode") == CacheMode.METADATA_ONLY:
            _check_indexers(findings, path)
            _check_dropped(findings, path)


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


def _is_outside(findings: Findings, place: Path, text: Json) -> bool:
    if not isinstance(text, str) or not text or findings.is_blamed(place):
        return False
    return FieldPath.parse(text).steps[0] != "metadata"
