"""`declctl plan`: the changes of a manifest, and their costs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import typer

from declctl.cli.admin_client import AdminAddress, LocalManifest, admin_address, ask
from declctl.cli.manifest_argument import manifest_folder
from declctl.cli.report import BLOCKING_ADVICE, blocking, show_faults
from declctl.cli.terminal import line, print_json, print_table
from declctl.codes import FINALIZER_LEFT
from declctl.errors import UsageError
from declctl.manifest import Diagnostic
from declctl.manifest.document import Location
from declctl.manifest.model import ShardingSpec
from declctl.objects.shards import ShardKey
from declctl.runtime.checking.check import CheckResult, check
from declctl.runtime.planning.comparison import (
    MatchCounter,
    ObjectSelection,
    PlanComparison,
    PlannedResource,
    compare_plans,
)
from declctl.runtime.planning.running_plan import RunningPlan, read_running_plan
from declctl.runtime.reloading.changes import ImportSeconds, finalizer_left, shown_seconds, takes_effect

_RUNNING = "running"
_OK = 200
_CHANGES = 2  # as of `terraform plan -detailed-exitcode`
_NAMED = 5  # namespaces of a selector
_SECONDS = 2.0  # for a process that may not be there
_READING = {
    "Frames": "a read decodes, about 15 µs",
    "Objects": "a read decodes nothing; readers share the object",
    "MetadataOnly": "a read decodes metadata, about 5 µs",
}
_FILTERED = "with the feature gate ShardedListAndWatch the server sends these alone"
_RECEIVED = {
    ShardKey.NAMESPACE: "each process receives all objects with a namespace, and keeps those of its slots",
    ShardKey.UID: f"each process keeps the objects of its slots; {_FILTERED}",
    None: "each process has all objects; the one with slot 0 handles them",
}
_RESHARDING = (
    "sharding: all processes have to end before one with another sharding starts (`kubectl scale --replicas "
    "0`): one without it handles all objects, and beside another number of slots no slot is taken"
)


def show_plan(
    manifest: str,
    *,
    against: str | None,
    as_json: bool,
    admin: str | None,
    cluster: tuple[str | None, str | None],
) -> int:
    """Print the changes of a manifest `against` another state, and return the exit status.

    `cluster`: kubeconfig and context, for ConfigMaps. Raises typer.Exit for a manifest with faults.
    """
    new = _checked(manifest, cluster)
    try:
        status = _status(manifest, new, admin)
        if against == _RUNNING:
            target = _target(manifest, new, admin)
            found = compare_plans(new, against=_running(target), matching=_matching(target))
        else:
            old = None if against is None else _checked(against, cluster)
            objects = {resource["name"]: resource["objects"] for resource in status.get("resources", ())}
            found = compare_plans(new, against=old, objects=objects)
    except UsageError as fault:  # a fault of the address; the status 2 would mean changes
        line(f"declctl: {fault}", err=True)
        return 1
    if as_json:
        print_json(found.document())
    else:
        _print(found)
        if blocked := blocking(status):
            line(f"the running process: {blocked}; {BLOCKING_ADVICE}")
    lost = list(_lost_finalizers(new, found))
    show_faults(lost)
    if any(fault.severity == "error" for fault in lost):
        return 1
    return _CHANGES if found.steps else 0


def _lost_finalizers(checked: CheckResult, found: PlanComparison) -> Iterator[Diagnostic]:
    """An error for each finalizer that objects have and no handler has any more.

    A warning if it is not known whether objects have it.
    """
    assert checked.inputs is not None
    controller, document = checked.inputs.loaded.controller, checked.inputs.loaded.document
    for lost in found.lost_finalizers:
        spec = next((each for each in controller.handlers if each.name == lost.handler), None)
        place = Location(("spec",) if spec is None else spec.path)
        advice = "keep it, or release the objects by `declctl finalizers release MANIFEST`"
        if lost.objects is not None:
            message = finalizer_left(lost.handler, lost.finalizer, lost.objects)
            yield document.fault(FINALIZER_LEFT, place, message, suggestion=advice)
        else:
            message = (
                f"the finalizer {lost.finalizer} of the handler {lost.handler} is not in the manifest any "
                "more; whether objects have it is not known here (`declctl finalizers list`)"
            )
            yield document.fault(FINALIZER_LEFT, place, message, suggestion=advice, severity="warning")


def _checked(manifest: str, cluster: tuple[str | None, str | None]) -> CheckResult:
    try:
        with manifest_folder(manifest, *cluster) as at:
            checked = check(manifest, at=at)
    except UsageError as fault:  # of a ConfigMap; the status 2 would mean changes
        line(f"declctl: {fault}", err=True)
        raise typer.Exit(1) from fault
    show_faults(checked.diagnostics)
    if checked.errors:
        raise typer.Exit(1)
    return checked


def _running(target: AdminAddress) -> RunningPlan:
    """The plan of the running process."""
    answer = ask(target, "GET", "/plan")
    if answer.status != _OK:
        error = answer.document.get("error")
        raise UsageError(f"{target} does not tell its plan: {error or f'it answers {answer.status}'}")
    return read_running_plan(answer.document)


def _matching(target: AdminAddress) -> MatchCounter:
    """Counts objects in the caches of the running process; None if it does not answer.

    A process that does not answer in time is not asked again, as each request would take as long.
    """
    answers = True

    def count(selected: ObjectSelection) -> int | None:
        nonlocal answers
        if not answers:
            return None
        asked = {
            "namespace": selected.namespace,
            "labelSelector": selected.labels,
            "fieldSelector": selected.fields,
        }
        query = urlencode({name: value for name, value in asked.items() if value})
        try:
            answer = ask(target, "GET", f"/cache/{quote(selected.resource)}?{query}")
        except UsageError:  # the plan says then that a number is missing
            answers = False
            return None
        found = answer.document.get("count") if answer.status == _OK else None
        return found if isinstance(found, int) else None

    return count


def _target(manifest: str, checked: CheckResult, admin: str | None) -> AdminAddress:
    """The process to ask: the running one of the manifest, or the one that `--admin` names."""
    assert checked.inputs is not None
    return admin_address(admin, manifest=LocalManifest.of(manifest, checked.inputs.loaded.controller))


def _status(manifest: str, checked: CheckResult, admin: str | None) -> Mapping[str, Any]:
    """The status of the running process of this name; empty without an answer."""
    assert checked.inputs is not None
    try:
        target = _target(manifest, checked, admin)
        document = ask(target, "GET", "/status", timeout=_SECONDS).document
    except UsageError:
        if admin is not None:
            raise
        return {}
    # Another controller may answer at this address: its numbers are for another manifest.
    return document if document.get("name") == checked.inputs.loaded.controller.name else {}


def _print(found: PlanComparison) -> None:
    for step in found.steps:
        line(str(step))
    for replay in found.replays:
        line(f"  {replay}")
    for removal in found.removals:
        line(f"  {removal}")
    for orphan in found.orphans:
        line(f"  {orphan}")
        if orphan.hint:
            line(f"  {orphan.hint}")
    rows = [row for resource in found.resources for row in _rows(resource, found.sharding)]
    if rows:
        line()
        print_table(("RESOURCE", "PART", "COST"), rows)
    line()
    line(_footer(found))
    if found.restart_required:
        line(f"RESTART REQUIRED: {takes_effect(found.restart_required)}")
        if any(step.subject == "sharding" for step in found.steps):
            line(_RESHARDING)
    if imports := _imports(found):
        line(imports)
    if not found.hooks_known:
        line("handlers were not imported (reload.preflight: Off): what their hooks add is not in it")


def _rows(resource: PlannedResource, sharding: ShardingSpec | None) -> list[tuple[str, str, str]]:
    plan = resource.plan
    kept = (f"cache {plan.watches[0].cache}", _READING[str(plan.watches[0].cache)])
    selected = f"namespaces with {plan.namespace_selector}", _selected(resource.namespaces)
    parts = [kept, *((cost.subject, cost.text(resource.objects)) for cost in resource.costs)]
    if plan.namespace_selector:
        parts.insert(0, selected)
    if sharding is not None:
        kept = sharding.by if plan.sharded else None
        parts.insert(0, (f"{sharding.slots} slots" if plan.sharded else "no slots", _RECEIVED[kept]))
    return [(plan.name, subject, text) for subject, text in parts]


def _selected(namespaces: Sequence[str] | None) -> str:
    """How many namespaces a selector matches now."""
    each = "a LIST and a WATCH in each"
    if namespaces is None:
        return f"{each}; `declctl validate --cluster` says how many there are"
    names = ", ".join(namespaces[:_NAMED]) + (", …" if len(namespaces) > _NAMED else "")
    return f"{each}; {len(namespaces):,} now" + (f" ({names})" if names else "")


def _footer(found: PlanComparison) -> str:
    """`1 new LIST (~2,300 objects), 1 new WATCH`."""
    number, known = found.requests, found.objects_listed
    objects = "" if known is None else f" (~{known:,} objects)"
    return f"{number} new LIST{_s(number)}{objects}, {number} new WATCH{'es' if number != 1 else ''}"


def _imports(found: PlanComparison) -> str:
    """The duration of the import, if it makes a reload slow; else an empty text."""
    twice = ImportSeconds(found.import_seconds, found.import_seconds)
    if not twice.are_slow:
        return ""
    took = shown_seconds(found.import_seconds)
    return (
        f"importing the handlers took {took} in a child process; a reload pays that again in its own process"
    )


def _s(number: int) -> str:
    return "" if number == 1 else "s"
