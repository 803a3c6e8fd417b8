"""Rules that the schema does not have: references, contradictions, traps, caches.

Names are unique, and each reference names a declaration. Traps are values that YAML 1.1 reads
differently from the written ones: an octal number, or `yes` in a plugin's config. A cache can neither index
nor filter by a field that it does not have.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from declctl import codes
from declctl.manifest.diagnostics import Severity, did_you_mean, listed
from declctl.manifest.document import Findings, Location, trap
from declctl.manifest.fields import default_of
from declctl.manifest.model import DROPPED_BY_DEFAULT, AdminAuthorization
from declctl.manifest.values import (
    BadValue,
    Json,
    Path,
    Schema,
    dotted,
    entries_at,
    items_at,
    mapping_at,
    parse_address,
    parse_duration,
    parse_quantity,
    value_at,
)
from declctl.objects.expressions import compile_expression
from declctl.objects.fields import FieldPath, FieldPathError, FieldSelector, Step

T = TypeVar("T")
_Steps = tuple[Step, ...]
_METADATA_ONLY = "MetadataOnly"  # the cache.mode in which objects have nothing but metadata
LEASE_JITTER = 1.2  # as in client-go: followers wait for up to so many retry periods more
_LEAST_MEMORY = 64 << 20  # bytes, of a process of an isolated handler
# The fields with lease times: in words, what acts, and what another process takes.
_LEASE_TIMES = {"leaderElection": ("a leader", "the lease"), "sharding": ("a process", "its slots")}
_NAMED = ("resources", "handlers", "plugins", "schedules")  # lists of the spec whose items have unique names


def check_references(findings: Findings, shape: Schema) -> None:
    """Report duplicate names, unknown references, and fields that contradict each other."""
    data = findings.data
    # References come before duplicates: a duplicate blames its name, and references to blamed names are
    # skipped.
    handlers = list(entries_at(data, "spec", "handlers"))
    resources, plugins = _Section.of(findings, "resources"), _Section.of(findings, "plugins")
    for path, handler in handlers:
        _check_reference(findings, (*path, "resourceRef", "name"), resources)
        for where, _ in entries_at(data, *path, "watches"):
            _check_reference(findings, (*where, "resourceRef", "name"), resources)
        _check_snapshots(findings, path, resources)
        _check_mode(findings, path, handler)
        _check_isolation(findings, (*path, "isolation"))
        _check_reference(findings, (*path, "pluginRef", "name"), plugins)
        _check_backoff(findings, (*path, "retry"), shape)
    _check_field_managers(findings, handlers)
    _check_shared_queues(findings, handlers)
    check_alternatives(findings)
    for section in _NAMED:
        _check_unique(findings, entries_at(data, "spec", section), what=section.removesuffix("s"))
    for path, _ in entries_at(data, "spec", "resources"):
        _check_resource(findings, path)
    for path, plugin in entries_at(data, "spec", "plugins"):
        _check_unique(findings, entries_at(data, *path, "configFrom"), what="config value")
        _check_config_sources(findings, path, mapping_at(plugin, "config"))
        _check_circuit_breaker(findings, path, plugin, shape)
    for path, schedule in entries_at(data, "spec", "schedules"):
        _check_snapshots(findings, path, resources)
        _check_time_zone(findings, path, schedule)
    _check_namespaces(findings, ("spec", "namespaces"))
    for name, words in _LEASE_TIMES.items():
        _check_lease_times(findings, ("spec", name), words, shape)
    _check_admin(findings)
    _check_metrics(findings, shape)


# Fields that only one mode has, by the other one, with what holds there.
_OF_OTHER_MODE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Event": (
        ("watches", "write mode: Reconcile, or a handler for that resource"),
        ("finalizer", "write mode: Reconcile, and a hook declctl_finalize"),
        ("keepPrevious", "write mode: Reconcile; a Modified has the object before as old"),
    ),
    "Reconcile": (
        ("delivery", "remove it: a key waits once, and the handler reads the newest state"),
        ("bufferBytes", "remove it: a key waits once, and no object waits with it"),
    ),
}


def _check_mode(findings: Findings, path: Path, handler: Mapping[str, Json]) -> None:
    """Report fields that have no meaning in the mode of a handler."""
    mode = handler.get("mode", "Event")
    for field, advice in _OF_OTHER_MODE.get(mode, ()) if isinstance(mode, str) else ():
        if field in handler:
            place = (*path, field)
            message = f"{dotted(place)} has no meaning with mode: {mode}"
            _contradict(findings, Location(place, key=True), message, advice)


def _check_isolation(findings: Findings, path: Path) -> None:
    """Report limits of processes where there are none, and one that no process can keep."""
    if value_at(findings.data, *path, "mode") != "Process":
        for field in ("maxMemory", "maxCalls"):
            if value_at(findings.data, *path, field) is not None:
                place = (*path, field)
                message = f"{dotted(place)} has no meaning without mode: Process"
                _contradict(findings, Location(place, key=True), message, "write mode: Process beside it")
        return
    place = (*path, "maxMemory")
    given = value_at(findings.data, *place)
    if isinstance(given, str | int) and not findings.is_blamed(place):
        with suppress(BadValue):
            if parse_quantity(given) < _LEAST_MEMORY:
                less = f"{dotted(place)} is {findings.quoted(place, given)}"
                message = f"{less}: a process takes about 40Mi before its first call"
                _contradict(findings, Location(place), message, "allow 64Mi at least; 256Mi is usual")


def _check_field_managers(findings: Findings, handlers: Sequence[tuple[Path, dict[str, Json]]]) -> None:
    """Report handlers with one field manager: each would remove the fields that the other has applied."""
    controller = value_at(findings.data, "metadata", "name")
    owners = {f"declctl/{controller}/{value_at(handler, 'name')}": path for path, handler in handlers}
    # A handler that names its manager does not have the default one.
    owners = {
        name: path for name, path in owners.items() if value_at(findings.data, *path, "fieldManager") is None
    }
    for path, handler in handlers:
        place, manager = (*path, "fieldManager"), handler.get("fieldManager")
        if not isinstance(manager, str) or findings.is_blamed(place):
            continue
        if manager in owners:
            other = findings.document.locate((*owners[manager], "name"))
            message = (
                f"{dotted(place)} is {findings.quoted(place, manager)}, the field manager of another handler "
                f"(line {other[0]}): each apply of one would remove the fields of the other"
            )
            advice = "give each handler a field manager of its own"
            _contradict(findings, Location(place), message, advice)
        else:
            owners[manager] = path


def _check_shared_queues(findings: Findings, handlers: Iterable[tuple[Path, dict[str, Json]]]) -> None:
    """Report handlers that share a queue, and name another concurrency for it than the first."""
    first: dict[str, tuple[Path, Json]] = {}
    for path, handler in handlers:
        name, number = (value_at(handler, "queue", field) for field in ("name", "concurrency"))
        place = (*path, "queue", "concurrency")
        if not isinstance(name, str) or name == "default" or number is None or findings.is_blamed(place):
            continue
        if name not in first:
            first[name] = (place, number)
        elif number != first[name][1]:
            line, column = findings.document.locate(first[name][0])
            message = (
                f"{dotted(place)} is {number}, and another handler has {first[name][1]} for the same queue "
                f"{findings.quoted((*path, 'queue', 'name'), name)}: line {line}, column {column}"
            )
            advice = "write the same number, or name it for one of the handlers"
            _contradict(findings, Location(place), message, advice)


def _check_resource(findings: Findings, path: Path) -> None:
    _check_unique(findings, entries_at(findings.data, *path, "indexers"), what="indexer")
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
            place = Location((*path, "name"))
            findings.add(codes.DUPLICATE_NAME, place, message, suggestion="give each a name of its own")
        else:
            first[name] = path


class _Section(NamedTuple):
    """A list of the spec whose items are referred to by name: resources or plugins.

    `names` are the names in it, and `shown` is the text of them for messages. `are_known` is False if a name
    is wrong or missing: then a reference may mean that name.
    """

    title: str
    names: Mapping[str, None]
    shown: str
    are_known: bool

    @classmethod
    def of(cls, findings: Findings, title: str) -> "_Section":
        """The section `title`. Made once for all references, as a manifest may have thousands of both."""
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
    findings.add(codes.UNKNOWN_REFERENCE, Location(path), message, suggestion=advice)


def _check_snapshots(findings: Findings, path: Path, resources: _Section) -> None:
    where = (*path, "includeSnapshotsFrom")
    for position in range(len(items_at(findings.data, *where))):
        _check_reference(findings, (*where, position), resources)


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
    """Whether all names of a section are known: False if it, or a name in it, is wrong or missing."""
    path = ("spec", section)
    if findings.is_blamed(("spec",)) or findings.is_blamed(path) or findings.is_meant(path):
        return False
    entries = enumerate(items_at(findings.data, *path))
    return all(
        isinstance(value_at(entry, "name"), str) and not findings.is_blamed((*path, index, "name"))
        for index, entry in entries
    )


def check_alternatives(findings: Findings) -> None:
    """Report mappings that have none, or several, of fields of which exactly one has to be there."""
    for path, entry, piece in findings.pieces:
        if "oneOf" not in piece or not isinstance(entry, dict):
            continue
        # `about(one_of=…)` writes an alternative for each field; the alternative requires this field alone.
        names = [str(value_at(each, "required", 0)) for each in items_at(piece, "oneOf")]
        present = [name for name in entry if name in names]
        if not present and not any(findings.is_meant((*path, name)) for name in names):
            message = f"{dotted(path)} needs one of the fields {' and '.join(names)}"
            findings.add(codes.EXACTLY_ONE, Location(path), message, suggestion=f"add {' or '.join(names)}")
        for extra in present[1:]:
            message = f"{dotted(path)} has {extra} beside {present[0]}, and only one of them can be"
            place = Location((*path, extra), key=True)
            findings.add(codes.EXACTLY_ONE, place, message, suggestion=f"remove {extra} or {present[0]}")


def _check_config_sources(findings: Findings, path: Path, config: dict[str, Json]) -> None:
    for where, source in entries_at(findings.data, *path, "configFrom"):
        name = source.get("name")
        if isinstance(name, str) and name in config:
            shown = findings.quoted((*where, "name"), name)
            message = f"{dotted(where)} sets {shown}, which config sets too"
            _contradict(findings, Location((*where, "name")), message, "remove one of them")


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
        _contradict(findings, Location(where), message, "keep names, and drop the condition")


def _check_namespaces(findings: Findings, path: Path) -> None:
    names = items_at(findings.data, *path)
    if "*" in names and len(names) > 1:
        place = Location((*path, names.index("*")))
        message = f"{dotted(path)} has * for all namespaces beside others"
        _contradict(findings, place, message, 'write ["*"] alone, or remove it')


def _check_time_zone(findings: Findings, path: Path, schedule: dict[str, Json]) -> None:
    if "timeZone" in schedule and "every" in schedule and "cron" not in schedule:
        place = Location((*path, "timeZone"), key=True)
        message = f"{dotted(path)} has a timeZone, which is for cron: an interval has none"
        _contradict(findings, place, message, "remove it, or write cron instead of every")


def _check_circuit_breaker(findings: Findings, path: Path, plugin: Mapping[str, Json], shape: Schema) -> None:
    place = (*path, "circuitBreaker")
    if "circuitBreaker" in plugin and plugin.get("onError", "Fail") == "Fail":
        message = f"{dotted(place)} has no meaning with onError: Fail"
        _contradict(findings, Location(place, key=True), message, "write onError: Disable, or remove it")
    if mapping_at(findings.data, *place):
        _check_backoff(findings, place, shape, defaults="10m and 30s")


def _check_backoff(findings: Findings, path: Path, shape: Schema, *, defaults: str = "5m and 1s") -> None:
    first, longest = (
        _parsed(findings, (*path, name), shape, parse_duration) for name in ("initialBackoff", "maxBackoff")
    )
    if first is not None and longest is not None and longest < first:
        given = "maxBackoff" if value_at(findings.data, *path, "maxBackoff") is not None else "initialBackoff"
        message = f"{dotted(path)} waits for {first:g}s at first, and for {longest:g}s at most"
        last, begin = defaults.split(" and ")
        suggestion = f"maxBackoff ({last} if absent) can't be shorter than initialBackoff ({begin} if absent)"
        _contradict(findings, Location((*path, given)), message, suggestion)


def _check_lease_times(findings: Findings, path: Path, words: tuple[str, str], shape: Schema) -> None:
    """Report lease times that contradict each other, as client-go's NewLeaderElector does."""
    if not mapping_at(findings.data, *path):
        return
    holder, held = words
    places = {name: (*path, name) for name in ("leaseDuration", "renewDeadline", "retryPeriod")}
    lease, renewal, retry = (_parsed(findings, place, shape, parse_duration) for place in places.values())
    if lease is not None and renewal is not None and lease <= renewal:
        _add_lease_fault(
            findings,
            path,
            ("renewDeadline", "leaseDuration"),
            f"{holder} would act for {renewal:g}s after its last renewal, and another process may take "
            f"{held} after {lease:g}s",
            "leaseDuration (15s if absent) has to be longer than renewDeadline (10s if absent)",
        )
    if renewal is not None and retry is not None and renewal <= LEASE_JITTER * retry:
        _add_lease_fault(
            findings,
            path,
            ("retryPeriod", "renewDeadline"),
            f"{holder} that asks each {retry:g}s can't renew its lease within {renewal:g}s",
            f"renewDeadline (10s if absent) has to be longer than {LEASE_JITTER:g} times retryPeriod (2s if "
            "absent)",
        )


def _check_admin(findings: Findings) -> None:
    """Report a token file beside tokens of Kubernetes."""
    path = ("spec", "admin")
    admin = mapping_at(findings.data, *path)
    if admin.get("authorization") == AdminAuthorization.KUBERNETES and "tokenFile" in admin:
        place = Location((*path, "tokenFile"), key=True)
        message = (
            f"{dotted(path)} has a tokenFile, and with authorization: Kubernetes no token of a file counts"
        )
        _contradict(findings, place, message, "remove tokenFile, or authorization: Kubernetes")


def _check_metrics(findings: Findings, shape: Schema) -> None:
    """Report a metrics address that would take the port of the admin address away from it."""
    path = ("spec", "metrics", "bindAddress")
    admin = _parsed(findings, ("spec", "admin", "bindAddress"), shape, parse_address)
    metrics = _parsed(findings, path, shape, parse_address)
    if admin is None or metrics is None or admin.covers(metrics) or not metrics.covers(admin):
        return
    message = (
        f"{dotted(path)} is {metrics}, which includes the admin address {admin}: only one of them can be "
        "listened on"
    )
    advice = f"take another port; or remove it, and write admin: {{bindAddress: '{metrics}'}}"
    _contradict(findings, Location(path), message, advice)


def _add_lease_fault(
    findings: Findings, path: Path, names: tuple[str, str], message: str, suggestion: str
) -> None:
    # The first of the two fields that is written is blamed; one of them is, as the defaults fit together.
    name = next(each for each in names if value_at(findings.data, *path, each) is not None)
    _contradict(findings, Location((*path, name)), message, suggestion)


def _parsed(findings: Findings, path: Path, shape: Schema, parse: Callable[[str], T]) -> T | None:
    """What is written at a path; None if nothing is, or if it is wrong, which another check reports."""
    value = value_at(findings.data, *path)
    if value is None:
        # The default of an absent field counts: the other field may contradict it.
        value = default_of(shape, *(step for step in path if isinstance(step, str)))
    if not isinstance(value, str) or findings.is_blamed(path):
        return None
    try:
        return parse(value)
    except BadValue:
        return None


def check_traps(findings: Findings) -> None:
    """Report numbers that YAML 1.1 reads differently; in plugins' configs, such values are warnings."""
    known: set[Path] = set()
    for path, value, piece in findings.pieces:
        known.add(path)
        written = findings.document.written(path)
        if written is None or isinstance(value, bool | str) or findings.is_blamed(path):
            continue
        if "properties" not in piece and (reading := trap(written)) is not None:
            message = f"{dotted(path)} is {written}, which YAML reads as {reading}"
            findings.add(
                codes.TRAP_VALUE, Location(path), message, suggestion=f"write {value} if that is meant"
            )
    # The schema has no types for a plugin's config. The value may be intended, so it is only a warning.
    for path in findings.document.nodes:
        if path in known or path[:2] != ("spec", "plugins") or path[3:4] != ("config",):
            continue
        written = findings.document.written(path)
        if written is not None and (reading := trap(written)) is not None:
            message = f"{dotted(path)} is {written}, which YAML reads as {reading}"
            suggestion = f'put it in quotes if text is meant: "{written}"'
            findings.add(codes.TRAP_VALUE, Location(path), message, suggestion=suggestion, severity="warning")


def check_failure_policies(findings: Findings) -> None:
    """Report `onFailure: Ignore` or `DeadLetter` without `retry.maxAttempts`: no attempt is the last one.

    A reconciler may have letters without it: a Terminal ends its attempts. An event handler has no such end.
    """
    for path, handler in entries_at(findings.data, "spec", "handlers"):
        policy = handler.get("onFailure")
        if policy == "DeadLetter" and handler.get("mode") == "Reconcile":
            continue
        if policy in ("Ignore", "DeadLetter") and value_at(handler, "retry", "maxAttempts") is None:
            place = (*path, "onFailure")
            message = (
                f"{dotted(place)} is {policy}, and without retry.maxAttempts a change is tried again until "
                "the handler succeeds"
            )
            advice = "add maxAttempts to retry, such as retry: {maxAttempts: 5}, or remove onFailure"
            _contradict(findings, Location(place), message, advice)


def check_invalid_policies(findings: Findings) -> None:
    """Report `onInvalid` without a type that objects have to fit, and a condition that may not be written."""
    found = (each for _, each in entries_at(findings.data, "spec", "resources"))
    resources = {name: each for each in found if isinstance(name := each.get("name"), str)}
    for path, handler in entries_at(findings.data, "spec", "handlers"):
        policy, place = handler.get("onInvalid"), (*path, "onInvalid")
        named = value_at(handler, "resourceRef", "name")
        resource = resources.get(named) if isinstance(named, str) else None
        if not isinstance(policy, str) or resource is None or findings.is_blamed(place):
            continue
        if "type" not in resource:
            message = f"{dotted(place)} has no meaning without a type of the resource {resource.get('name')}"
            advice = "add the class of its objects, such as type: models:Preview, or remove it"
            _contradict(findings, Location(place, key=True), message, advice)
        elif policy == "Condition" and handler.get("status") is not True:
            message = f"{dotted(place)} is Condition, which is written into the status"
            _contradict(findings, Location(place), message, "add status: true to the handler, or write Skip")


def check_cache(findings: Findings) -> None:
    """Report indexers and filters that read fields which the cache of the resource does not have.

    `mode: MetadataOnly` lacks all but the metadata, and `dropFields` lack single fields (a warning).
    """
    lacking: dict[str, _Lacking] = {}  # by resource
    for path, resource in entries_at(findings.data, "spec", "resources"):
        lacks = _Lacking.of(resource)
        if lacks.is_bare:
            _check_indexers(findings, path)
            _check_dropped(findings, path)
            if isinstance(resource.get("type"), str):
                place = (*path, "type")
                message = f"{dotted(place)} reads fields, and with cache.mode MetadataOnly objects have none"
                advice = "write cache: {mode: Frames}, or remove the type"
                _contradict(findings, Location(place), message, advice, severity="warning")
        name = resource.get("name")
        if isinstance(name, str):
            lacking.setdefault(name, lacks)  # check_references has reported the second one of a name
    for path, reader in _readers(findings):
        name = value_at(reader, "resourceRef", "name")
        if isinstance(name, str) and name in lacking:
            _check_filter(findings, path, lacking[name])
            _check_expression(findings, path, lacking[name])
            _check_mapping(findings, path, lacking[name])


class _Lacking(NamedTuple):
    """What the cached objects of a resource do not have."""

    is_bare: bool = True  # they have nothing but metadata
    dropped: Mapping[_Steps, str] = {}  # the dropped fields by their steps, each with its text for messages

    @classmethod
    def of(cls, resource: dict[str, Json]) -> "_Lacking":
        """What those of a resource lack by its declaration."""
        names = value_at(resource, "transform", "dropFields")
        if not isinstance(names, list):
            names = DROPPED_BY_DEFAULT
        dropped = {_steps(name): name for name in names if isinstance(name, str) and name}
        return cls(value_at(resource, "cache", "mode") == _METADATA_ONLY, dropped)

    def parent_of(self, steps: _Steps) -> str | None:
        """The dropped field that is at these steps or above them; None if there is none."""
        parents = (self.dropped.get(steps[:length]) for length in range(1, len(steps) + 1))
        return next((each for each in parents if each is not None), None)


class _Advice(NamedTuple):
    """The words about a field that no cached object has."""

    in_metadata: str  # what to do with another field, of metadata
    effect: str  # what follows if the field is dropped
    instead: str  # what to do then


def _readers(findings: Findings) -> Iterator[tuple[Path, dict[str, Json]]]:
    """What reads objects of a resource: each handler, and each of the `watches` of one."""
    for path, handler in entries_at(findings.data, "spec", "handlers"):
        yield path, handler
        for below, watch in entries_at(handler, "watches"):
            yield (*path, *below), watch


def check_expressions(findings: Findings) -> None:
    """Warn of expressions that compare the type or the reason of a change with one that there is not."""
    for path, _ in _readers(findings):
        place = (*path, "filter", "expression")
        text = value_at(findings.data, *place)
        if not isinstance(text, str) or not text or findings.is_blamed(place):
            continue
        if findings.document.from_environment(place) is not None:
            continue  # the message would show the text, which may be a secret
        for unknown in compile_expression(text).unknown_values():
            message = f'{dotted(place)} compares {unknown.variable} with "{unknown.value}", which it never is'
            advice = did_you_mean(unknown.value, unknown.values) or (
                f"the values are {listed(unknown.values)}"
            )
            location = Location(place, offset=unknown.offset)
            _contradict(findings, location, message, advice, severity="warning")
            break  # one fault for each value


def _check_indexers(findings: Findings, path: Path) -> None:
    advice = _Advice("index by a field", "", "")
    for where, indexer in entries_at(findings.data, *path, "indexers"):
        _check_field(findings, (*where, "fieldPath"), indexer.get("fieldPath"), _Lacking(), advice)


def _check_dropped(findings: Findings, path: Path) -> None:
    for index, text in enumerate(items_at(findings.data, *path, "transform", "dropFields")):
        place = (*path, "transform", "dropFields", index)
        steps = _steps(text) if isinstance(text, str) and not findings.is_blamed(place) else ()
        if _is_outside_of_metadata(steps):
            message = (
                f"{dotted(place)} is {findings.quoted(place, text)}, which with cache.mode MetadataOnly is "
                "never there"
            )
            _contradict(findings, Location(place), message, "remove it", severity="warning")


def _check_filter(findings: Findings, path: Path, lacking: _Lacking) -> None:
    """Report paths of a filter whose values never change."""
    advice = _Advice("name a field", "nothing ever changes there", "remove it")
    for index, text in enumerate(items_at(findings.data, *path, "filter", "changedPaths")):
        _check_field(findings, (*path, "filter", "changedPaths", index), text, lacking, advice)


def _check_expression(findings: Findings, path: Path, lacking: _Lacking) -> None:
    """Report the first field that the expression of a filter reads, and that no cached object has."""
    place = (*path, "filter", "expression")
    text = value_at(findings.data, *place)
    if not isinstance(text, str) or not text or findings.is_blamed(place):
        return
    advice = _Advice("read fields", "it is always missing", "do not read it")
    for read in compile_expression(text).reads:
        if read.variable != "change":
            what = f"reads {'.'.join((read.variable, *read.steps))}"
            location = Location(place, offset=read.offset)
            if _lacks(findings, location, what, read.steps, lacking, advice):
                return  # one fault for each value


def _check_mapping(findings: Findings, path: Path, lacking: _Lacking) -> None:
    """Report a way of `mapTo` that reads a field which no cached object has: it leads nowhere."""
    advice = _Advice("name a field", "it leads to no key", "map in another way")
    for way, value in mapping_at(findings.data, *path, "mapTo").items():
        place = (*path, "mapTo", way)
        # Labels are in every record, and the others read the index or call code.
        if way == "fieldPath":
            _check_field(findings, place, value, lacking, advice)
        elif way in ("annotation", "owner") and isinstance(value, str) and not findings.is_blamed(place):
            steps = ("annotations", value) if way == "annotation" else ("ownerReferences",)
            what = f"is {findings.quoted(place, value)}"
            _lacks(findings, Location(place), what, ("metadata", *steps), lacking, advice)


def _check_field(findings: Findings, place: Path, text: Json, lacking: _Lacking, advice: _Advice) -> None:
    """Report a field path that is written at a place, and that no cached object has."""
    if isinstance(text, str) and not findings.is_blamed(place):
        what = f"is {findings.quoted(place, text)}"
        _lacks(findings, Location(place), what, _steps(text), lacking, advice)


def _lacks(
    findings: Findings, place: Location, what: str, steps: _Steps, lacking: _Lacking, advice: _Advice
) -> bool:
    """Report a field that no cached object has; returns whether it is one."""
    where = f"{dotted(place.path)} {what}"
    parent = lacking.parent_of(steps)
    if lacking.is_bare and _is_outside_of_metadata(steps):
        message = f"{where}, and with cache.mode MetadataOnly objects have nothing but metadata"
        suggestion = f"{advice.in_metadata} of metadata, or write cache: {{mode: Frames}}"
        _contradict(findings, place, message, suggestion)
        return True
    if parent is not None:
        message = f"{where}, and the resource drops {parent}: {advice.effect}"
        suggestion = f"{advice.instead}, or take {parent} out of transform.dropFields"
        _contradict(findings, place, message, suggestion, severity="warning")
    return parent is not None


def _contradict(
    findings: Findings, place: Location, message: str, advice: str, *, severity: Severity = "error"
) -> None:
    findings.add(codes.CONTRADICTION, place, message, suggestion=advice, severity=severity)


def _is_outside_of_metadata(steps: _Steps) -> bool:
    return bool(steps) and steps[0] != "metadata"


def _steps(text: str) -> _Steps:
    """The steps of a field path; empty if it is wrong, which check_values reports."""
    try:
        return FieldPath.parse(text).steps
    except FieldPathError:
        return ()
