"""Rules for `spec.sharding`: what can't be shared, or would be handled by what a process does not see.

A process has the objects of its slots alone. So a handler must not need a sharded object that may be in
another slot: with `by: UID`, that is any object but its own; for a resource that is not sharded, and for a
schedule, it is any sharded one, as they run in the process with slot 0.
"""

from collections.abc import Iterable, Iterator, Mapping

from declctl import codes
from declctl.manifest.document import Findings, Location
from declctl.manifest.values import Json, Path, dotted, entries_at, items_at, mapping_at, value_at

_PATH: Path = ("spec", "sharding")
_LONGEST_LABEL = 63  # characters of a label's value: the Leases have the name as a label


def check_sharding(findings: Findings) -> None:
    """Report what contradicts `spec.sharding`; nothing without one."""
    data = findings.data
    if not isinstance(value_at(data, *_PATH), dict):
        return
    if value_at(data, "spec", "leaderElection", "enabled") is True:
        _add(
            findings,
            Location(("spec", "leaderElection"), key=True),
            "spec.leaderElection is enabled beside spec.sharding: one process would act, and the others hold "
            "slots",
            "remove leaderElection: each slot has an election of its own; or remove sharding",
        )
    if value_at(data, "spec", "state", "path") is not None:
        _add(
            findings,
            Location(("spec", "state"), key=True),
            "spec.state is not possible beside spec.sharding yet: what a process has kept may belong to "
            "another one now",
            "remove state: each process lists its slots when it starts",
        )
    name, is_named = value_at(data, "metadata", "name"), "leaseName" in mapping_at(data, *_PATH)
    is_long = isinstance(name, str) and len(name) > _LONGEST_LABEL
    if is_long and not is_named and not findings.is_blamed(("metadata", "name")):
        _add(
            findings,
            Location(("metadata", "name")),
            f"metadata.name is a label of Leases with spec.sharding: {_LONGEST_LABEL} characters at most",
            "shorten it, or write sharding: {leaseName: …}",
        )
    resources = {
        name: (path, resource)
        for path, resource in entries_at(data, "spec", "resources")
        if isinstance(name := resource.get("name"), str)
    }
    sharded = {
        name: path for name, (path, resource) in resources.items() if resource.get("sharded") is not False
    }
    _check_selected_namespaces(findings, sharded)
    by_uid = value_at(data, *_PATH, "by") == "UID"
    for path, handler in entries_at(data, "spec", "handlers"):
        resource = value_at(handler, "resourceRef", "name")
        if not isinstance(resource, str) or resource not in resources:
            continue  # check_references reports it
        if resource not in sharded:
            where = f"the resource {resource} is not sharded, so its handlers run in the process with slot 0"
        elif by_uid:
            where = "with sharding.by: UID, what an object needs may be in any slot"
            if items_at(handler, "applies"):
                place = (*path, "applies")
                _add(
                    findings,
                    Location(place, key=True),
                    f"{dotted(place)} with sharding.by: UID: children are in other slots than their owners",
                    "write by: Namespace, with which they are in one slot",
                )
        else:
            continue
        _check_seen(findings, (*_watched(findings, path), *_snapshots(findings, path)), sharded, where)
    where = "a schedule is called in the process with slot 0"
    for path, _ in entries_at(data, "spec", "schedules"):
        _check_seen(findings, _snapshots(findings, path), sharded, where)


def _check_selected_namespaces(findings: Findings, sharded: Mapping[str, Path]) -> None:
    """Report namespaces by labels of a sharded resource, its own or those of the spec."""
    for path in sharded.values():
        own = (*path, "namespaces")
        place = own if value_at(findings.data, *own) is not None else ("spec", "namespaces")
        if isinstance(value_at(findings.data, *place), dict) and not findings.is_blamed_within(place):
            _add(
                findings,
                Location(place, key=True),
                f"{dotted(place)} has a labelSelector, which is not possible for sharded resources yet",
                "name the namespaces, or watch all; or write sharded: false for the resource",
            )


def _check_seen(
    findings: Findings, references: Iterable[tuple[Path, Json]], sharded: Mapping[str, Path], where: str
) -> None:
    """Report references to sharded resources of which not all objects are seen that may be needed."""
    for place, name in references:
        if isinstance(name, str) and name in sharded and not findings.is_blamed(place):
            _add(
                findings,
                Location(place),
                f"{dotted(place)}: {where}, and each process has its slots of {name} alone",
                f"write sharded: false for {name}, so that each process has all of it",
            )


def _watched(findings: Findings, path: Path) -> Iterator[tuple[Path, Json]]:
    for where, watch in entries_at(findings.data, *path, "watches"):
        yield (*where, "resourceRef", "name"), value_at(watch, "resourceRef", "name")


def _snapshots(findings: Findings, path: Path) -> Iterator[tuple[Path, Json]]:
    where = (*path, "includeSnapshotsFrom")
    for index, name in enumerate(items_at(findings.data, *where)):
        yield (*where, index), name


def _add(findings: Findings, place: Location, message: str, advice: str) -> None:
    findings.add(codes.CONTRADICTION, place, message, suggestion=advice)
