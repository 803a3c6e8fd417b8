"""Rules for the finalizers of handlers: one handler for each of a kind, and fields that it needs."""

from declctl import codes
from declctl.manifest.document import Findings, Location
from declctl.manifest.values import Json, Path, dotted, entries_at, items_at, value_at

_NEEDED = ("metadata.finalizers", "metadata.deletionTimestamp")


def check_finalizers(findings: Findings) -> None:
    """Report a finalizer that two handlers of one kind have, and one whose fields the resource drops."""
    resources: dict[str, tuple[Path, dict[str, Json]]] = {}
    for path, resource in entries_at(findings.data, "spec", "resources"):
        name = resource.get("name")
        if isinstance(name, str):
            resources.setdefault(name, (path, resource))
    # By group, kind and finalizer: the first handler that has it.
    taken: dict[tuple[str, str, str], Path] = {}
    for path, handler in entries_at(findings.data, "spec", "handlers"):
        place = (*path, "finalizer")
        finalizer, name = handler.get("finalizer"), value_at(handler, "resourceRef", "name")
        if not isinstance(finalizer, str) or not finalizer or findings.is_blamed(place):
            continue
        if not isinstance(name, str) or name not in resources:
            continue
        of, resource = resources[name]
        _check_dropped(findings, place, of, resource)
        group = str(resource.get("apiVersion")).rpartition("/")[0]
        key = (group, str(resource.get("kind")), finalizer)
        first = taken.setdefault(key, place)
        if first != place:
            line, column = findings.document.locate(first)
            shown = findings.quoted(place, finalizer)
            message = (
                f"{dotted(place)}: another handler of {resource.get('kind')} has the finalizer {shown}, at "
                f"line {line}, column {column}: the first of the two that ends would remove it"
            )
            advice = "give each handler a finalizer of its own"
            findings.add(codes.DUPLICATE_NAME, Location(place), message, suggestion=advice)


def _check_dropped(findings: Findings, place: Path, of: Path, resource: dict[str, Json]) -> None:
    """Report `dropFields` of the resource that take what a finalizer is judged by."""
    for text in items_at(resource, "transform", "dropFields"):
        if isinstance(text, str) and text.startswith(_NEEDED):
            message = (
                f"{dotted(place)} needs {text}, which {dotted((*of, 'transform', 'dropFields'))} takes out "
                "of the cache"
            )
            advice = f"take {text} out of transform.dropFields"
            findings.add(codes.CONTRADICTION, Location(place), message, suggestion=advice)
            return
