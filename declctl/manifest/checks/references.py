"""What one part of a manifest says about another: names, references, fields that exclude each other."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.diagnostics import did_you_mean, listed
from declctl.manifest.document import Place
from declctl.manifest.json_values import (
    Json,
    Path,
    dotted,
    entries_at,
    items_at,
    mapping_at,
    value_at,
)
from declctl.manifest.model import RetrySpec
from declctl.manifest.values import BadValue, parse_duration
from declctl.objects.fields import FieldSelector

_NAMED = ("resources", "handlers", "plugins", "schedules")
_ALTERNATIVES: Mapping[str, tuple[str, ...]] = {
    "handlers": ("entryPoint", "pluginRef"),
    "indexers": ("fieldPath", "entryPoint"),
    "configFrom": ("env", "file", "secretKeyRef"),
}


def check_references(findings: Findings) -> None:
    """Report duplicate names, references to nothing, and fields that contradict each other."""
    data = findings.data
    # References before duplicates: these blame a name, and a blamed name might have been what is referred to.
    handlers = list(entries_at(data, "spec", "handlers"))
    resources, plugins = _Section.of(findings, "resources"), _Section.of(findings, "plugins")
    for path, _ in handlers:
        _check_reference(findings, (*path, "resourceRef", "name"), resources)
        _check_reference(findings, (*path, "pluginRef", "name"), plugins)
        _check_backoff(findings, (*path, "retry"))
    _check_alternatives(findings, handlers)
    for section in _NAMED:
        _check_unique(findings, entries_at(data, "spec", section), what=section.removesuffix("s"))
    for path, _ in entries_at(data, "spec", "resources"):
        _check_resource(findings, path)
    for path, plugin in entries_at(data, "spec", "plugins"):
        _check_unique(findings, entries_at(data, *path, "configFrom"), what="config value")
        _check_alternatives(findings, entries_at(data, *path, "configFrom"))
        _check_config_sources(findings, path, mapping_at(plugin, "config"))
    _check_namespaces(findings, ("spec", "namespaces"))


def _check_resource(findings: Findings, path: Path) -> None:
    indexers = list(entries_at(findings.data, *path, "indexers"))
    _check_unique(findings, indexers, what="indexer")
    _check_alternatives(findings, indexers)
    _check_names(findings, path)
    _check_namespaces(findings, (*path, "namespaces"))


def _check_unique(findings: Findings, entries: Iterable[tuple[Path, dict[str, Json]]], *, what: str) -> None:
    first: dict[str, Path] = {}
    for path, entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or findings.is_blamed((*path, "name")):
            continue
        if name in first:
            line, column = findings.document.locate((*first[name], "name"))
            shown = findings.quoted((*path, "name"), name)
            message = f"the {what} name {shown} is taken: first at line {line}, column {column}"
            place = Place((*path, "name"))
            findings.add(codes.DUPLICATE_NAME, place, message, suggestion="give each a name of its own")
        else:
            first[name] = path


class _Section(NamedTuple):
    """A part of the spec that others refer to.

    `names` are the names in it, `shown` the same as a message lists them; `are_known` is False where
    `names` can't be trusted.
    """

    title: str
    names: Mapping[str, None]
    shown: str
    are_known: bool

    @classmethod
    def of(cls, findings: Findings, title: str) -> "_Section":
        """Made once for all references: a manifest may have thousands of both."""
        names = dict.fromkeys(_declared(findings, title))
        return cls(title, names, listed(names), _are_known(findings, title))


def _check_reference(findings: Findings, path: Path, section: _Section) -> None:
    name = value_at(findings.data, *path)
    if not isinstance(name, str) or not name or findings.is_blamed(path):
        return
    if name in section.names or not section.are_known:
        return
    what = section.title.removesuffix("s")
    message = f"{dotted(path)}: there is no {what} {findings.quoted(path, name)} in spec.{section.title}"
    written = findings.document.from_environment(path) or name
    advice = _reference_advice(written, section)
    findings.add(codes.UNKNOWN_REFERENCE, Place(path), message, suggestion=advice)


def _reference_advice(name: str, section: _Section) -> str:
    advice = did_you_mean(name, section.names)
    if section.title == "plugins" and advice is None:
        return f"list it in spec.plugins, as {{name: {name}}}; there are: {section.shown}"
    names = f"spec.{section.title} has: {section.shown}"
    return f"{advice} {names}" if advice else names


def _declared(findings: Findings, section: str) -> list[str]:
    """The names of a section, each once."""
    names = (value_at(entry, "name") for entry in items_at(findings.data, "spec", section))
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def _are_known(findings: Findings, section: str) -> bool:
    """Whether the names of a section can be trusted: not if it, or a name in it, is wrong or missing."""
    path = ("spec", section)
    if findings.is_blamed(("spec",)) or findings.is_blamed(path) or findings.is_meant(path):
        return False
    entries = enumerate(items_at(findings.data, *path))
    return all(
        isinstance(value_at(entry, "name"), str) and not findings.is_blamed((*path, index, "name"))
        for index, entry in entries
    )


def _check_alternatives(findings: Findings, entries: Iterable[tuple[Path, dict[str, Json]]]) -> None:
    for path, entry in entries:
        names = _ALTERNATIVES[str(path[-2])]
        present = [name for name in entry if name in names]
        if not present and not any(findings.is_meant((*path, name)) for name in names):
            message = f"{dotted(path)} needs one of the fields {' and '.join(names)}"
            findings.add(codes.EXACTLY_ONE, Place(path), message, suggestion=f"add {' or '.join(names)}")
        for extra in present[1:]:
            message = f"{dotted(path)} has {extra} beside {present[0]}, and only one of them can be"
            place = Place((*path, extra), key=True)
            findings.add(codes.EXACTLY_ONE, place, message, suggestion=f"remove {extra} or {present[0]}")


def _check_config_sources(findings: Findings, path: Path, config: dict[str, Json]) -> None:
    for where, source in entries_at(findings.data, *path, "configFrom"):
        name = source.get("name")
        if isinstance(name, str) and name in config:
            shown = findings.quoted((*where, "name"), name)
            message = f"{dotted(where)} sets {shown}, which config sets too"
            findings.add(
                codes.CONTRADICTION,
                Place((*where, "name")),
                message,
                suggestion="remove one of them",
            )


def _check_names(findings: Findings, path: Path) -> None:
    where = (*path, "fieldSelector")
    selector = value_at(findings.data, *where)
    if not isinstance(selector, str) or findings.is_blamed(where):
        return
    has_names = bool(items_at(findings.data, *path, "names"))
    if has_names and any(
        field == "metadata.name" for field, _, _ in FieldSelector.parse(selector).conditions
    ):
        message = f"{dotted(where)} selects by metadata.name, and so does names"
        findings.add(
            codes.CONTRADICTION,
            Place(where),
            message,
            suggestion="keep names, and drop the condition",
        )


def _check_namespaces(findings: Findings, path: Path) -> None:
    names = items_at(findings.data, *path)
    if "*" in names and len(names) > 1:
        place = Place((*path, names.index("*")))
        message = f"{dotted(path)} has * for all namespaces beside others"
        findings.add(codes.CONTRADICTION, place, message, suggestion='write ["*"] alone, or remove it')


def _check_backoff(findings: Findings, path: Path) -> None:
    first = _seconds(findings, (*path, "initialBackoff"), default=RetrySpec().initial_backoff)
    longest = _seconds(findings, (*path, "maxBackoff"), default=RetrySpec().max_backoff)
    if first is not None and longest is not None and longest < first:
        given = "maxBackoff" if value_at(findings.data, *path, "maxBackoff") is not None else "initialBackoff"
        message = f"{dotted(path)} waits for {first:g}s at first, and for {longest:g}s at most"
        suggestion = "maxBackoff (5m if absent) can't be shorter than initialBackoff (1s if absent)"
        findings.add(codes.CONTRADICTION, Place((*path, given)), message, suggestion=suggestion)


def _seconds(findings: Findings, path: Path, *, default: float) -> float | None:
    """The duration there; None if it is wrong, which has been reported."""
    value = value_at(findings.data, *path)
    if value is None:
        return default
    if not isinstance(value, str) or findings.is_blamed(path):
        return None
    try:
        return parse_duration(value)
    except BadValue:
        return None
