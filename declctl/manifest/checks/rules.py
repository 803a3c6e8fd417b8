"""Rules beyond the shape: features that are not done, traps of YAML 1.1, what a cache can't do.

A documented feature that is not done is refused with a code of its own, never ignored. Traps are, for
example, an octal number where a number is wanted, and `yes` in a plugin's config. A cache can neither index
nor filter by a field that is not in it.
"""

from collections.abc import Mapping

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place, trap
from declctl.manifest.json_values import Json, Path, dotted, entries_at, items_at, value_at
from declctl.manifest.model import DEFAULT_DROP_FIELDS, CacheMode
from declctl.manifest.shape import Schema, notes_of
from declctl.objects.fields import FieldPath, FieldPathError, Step

_Steps = tuple[Step, ...]


def check_refusals(findings: Findings, shape: Schema) -> None:
    """Report each feature that the shape marks as not done, unless its value changes nothing."""
    refused: set[Path] = set()
    for path, value, piece in findings.walk(shape):
        notes = notes_of(piece)
        code, accepts = notes.get("refuses"), notes.get("accepts")
        if not isinstance(code, str) or findings.is_blamed(path) or _within(path, refused):
            continue
        if isinstance(accepts, list) and any(_same(value, accepted) for accepted in accepts):
            continue
        if code == codes.METRICS_ADDRESS and value == _admin_address(findings.data):
            continue
        refused.add(path)
        _refuse(findings, path, code, choices=_choices(accepts))


def _within(path: Path, refused: set[Path]) -> bool:
    """Below what is refused nothing is refused again. There may be thousands of refused paths."""
    return any(path[:length] in refused for length in range(1, len(path) + 1))


def _same(value: Json, accepted: Json) -> bool:
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)


def _admin_address(data: Json) -> Json:
    address = value_at(data, "spec", "admin", "bindAddress")
    return "127.0.0.1:8081" if address is None else address


def _choices(accepts: Json) -> list[str]:
    choices = accepts if isinstance(accepts, list) else []
    return [
        "false" if choice is False else str(choice) for choice in choices if isinstance(choice, str | bool)
    ]


def _refuse(findings: Findings, path: Path, code: str, *, choices: list[str]) -> None:
    suggestion = f"{codes.how_to_explain(code)} says what to do meanwhile"
    if choices:
        suggestion = f"write {' or '.join(choices)}, or remove it; {suggestion}"
    else:
        suggestion = f"remove it; {suggestion}"
    message = f"{dotted(path)}: {codes.CODES[code][0].lower()}{codes.CODES[code][1:].rstrip('.')}"
    findings.add(code, Place(path, key=not choices), message, suggestion=suggestion)


def check_traps(findings: Findings, shape: Schema) -> None:
    """Report numbers that aren't read as written, and, as warnings, doubtful values of plugins' configs."""
    known: set[Path] = set()
    for path, value, piece in findings.walk(shape):
        known.add(path)
        written = findings.document.written(path)
        if written is None or isinstance(value, bool | str) or findings.is_blamed(path):
            continue
        if "properties" not in piece and (reading := trap(written)) is not None:
            message = f"{dotted(path)} is {written}, which YAML reads as {reading}"
            findings.add(codes.TRAP_VALUE, Place(path), message, suggestion=f"write {value} if that is meant")
    for path in findings.document.nodes:
        if path not in known and _is_free_form(path):
            _warn(findings, path)


def _is_free_form(path: Path) -> bool:
    return path[:2] == ("spec", "plugins") and path[3:4] == ("config",)


def _warn(findings: Findings, path: Path) -> None:
    written = findings.document.written(path)
    reading = trap(written) if written is not None else None
    if reading is None:
        return
    message = f"{dotted(path)} is {written}, which YAML reads as {reading}"
    suggestion = f'put it in quotes if text is meant: "{written}"'
    findings.add(codes.TRAP_VALUE, Place(path), message, suggestion=suggestion, severity="warning")


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
