"""`declctl validate`: check manifests and their handlers without running them.

With `--cluster` the server is asked whether it has the kinds, whether these have the fields that expressions
read, and whether it lets us list and watch them, and write what handlers declare. For the permissions
SelfSubjectAccessReviews are sent, as `kubectl auth can-i` does. Only the namespaces that a selector of the
manifest matches are listed.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from declctl.cli.kind_fields import KindFields
from declctl.cli.report import count, show_faults
from declctl.cli.terminal import block, line, print_json
from declctl.errors import ApiError, Forbidden, NotFound
from declctl.manifest import Diagnostic, LoadedManifest, plan, render_github, render_json
from declctl.manifest.codes import (
    CLUSTER_UNREACHABLE,
    FORBIDDEN,
    NO_STATUS,
    UNKNOWN_KIND,
    UNKNOWN_NAMESPACE,
    UNKNOWN_OBJECT_FIELD,
)
from declctl.manifest.diagnostics import closest, listed
from declctl.manifest.model import HandlerSpec, ResourceSpec, SecondaryWatchSpec
from declctl.manifest.plan import ResourcePlan, WatchKey
from declctl.objects import GroupVersionKind, KubeObject, Resource
from declctl.objects.expressions import compile_expression
from declctl.runtime.checking.check import CheckResult, check
from declctl.runtime.checking.preflight_pool import PreflightPool

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = ("list", "watch")
_FINALIZER_VERBS = ("get", "patch")  # of the kind itself
_APPLIED_VERBS = ("create", "delete", "get", "list", "patch")  # of a kind in `applies`
_EVENTS = Resource(GroupVersionKind.of("events.k8s.io/v1", "Event"), "events", True)
_LEASES = Resource(GroupVersionKind.of("coordination.k8s.io/v1", "Lease"), "leases", True)
_LEASE_VERBS = ("get", "create", "update")
_NAMESPACES = Resource(GroupVersionKind.of("v1", "Namespace"), "namespaces", False)
_MOST_NAMESPACES = 50  # of those that a selector matches, in which rights are asked for
_NAMED = 5  # namespaces that a line names
_MOST_GROUPS = 200  # in which a kind is looked for that is not where the manifest says


def check_all(manifests: Iterable[str], children: PreflightPool) -> Sequence[CheckResult]:
    """What reading each manifest, and importing its handlers in a child, has found."""
    return [check(manifest, children=children) for manifest in manifests]


def check_in_cluster(
    checked: Sequence[CheckResult], kubeconfig: str | None, context: str | None
) -> "ClusterFindings":
    """What the cluster has against these manifests. Raises UsageError where none is configured."""
    return asyncio.run(_ask_cluster(checked, kubeconfig, context))


async def _ask_cluster(
    checked: Sequence[CheckResult], kubeconfig: str | None, context: str | None
) -> "ClusterFindings":
    from declctl.transport import Client  # late: without --cluster no client is needed

    client = await Client.connect(kubeconfig=kubeconfig, context=context)
    faults, notes = list[Diagnostic](), dict[str, Sequence[str]]()
    try:
        for one in checked:
            found = await ask_about(one, client, namespace=client.identity.namespace)
            faults += found.faults
            notes |= found.notes
        return ClusterFindings(faults, notes)
    finally:
        await client.close()


async def ask_about(
    checked: CheckResult, server: "Server", *, namespace: str | None = None
) -> "ClusterFindings":
    """What the server has against a manifest that was read; nothing against one that could not be.

    `namespace` is that of the context or the pod, where the lease of an election is by default.
    """
    if checked.inputs is None:
        return ClusterFindings(())
    files = checked.inputs.bundle.files
    return await ask_cluster(
        checked.inputs.loaded,
        server,
        records_events=_names(files, b"record_event"),
        applies_sets=_names(files, b"apply_set"),
        namespace=namespace,
    )


def _names(files: Mapping[str, bytes], method: bytes) -> bool:
    """Whether a handler file names a method of `ctx`; what installed plugins do is not known."""
    return any(method in source for source in files.values())


def print_faults(
    faults: Sequence[Diagnostic],
    checked: Sequence[CheckResult],
    *,
    form: str,
    notes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Print faults as `text` on stderr, or as `json` or `github` on stdout; as text, also what is valid.

    `notes` are lines about a manifest, by its path; they are printed if it is valid.
    """
    if form == "json":
        print_json(render_json(faults))
    elif form == "github":
        block(render_github(faults))
    else:
        from declctl.runtime.planning.costs import (
            notable_costs,  # late: only a manifest without errors has costs
        )

        show_faults(faults)
        if faults:
            line(count(faults), err=True)
        # A manifest that the cluster refuses is not called valid.
        wrong = {fault.file for fault in faults if fault.severity == "error"}
        for one in checked:
            if one.inputs is not None and not one.errors and one.inputs.loaded.document.path not in wrong:
                line(_sentence(one.inputs.loaded))
                for text in (*(notes or {}).get(one.inputs.loaded.document.path, ()), *notable_costs(one)):
                    line(f"  {text}")


def _sentence(loaded: LoadedManifest) -> str:
    resources, handlers = len(loaded.controller.resources), len(loaded.controller.handlers)
    parts = f"{number_of(resources, 'resource')}, {number_of(handlers, 'handler')}"
    return f"{loaded.document.path}: {loaded.controller.name} is valid ({parts})"


def number_of(number: int, word: str) -> str:
    """`1 resource`, `2 resources`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


class Server(Protocol):
    """What is needed of the transport."""

    async def discover(self, gvk: GroupVersionKind) -> Resource:
        """The resource of a kind; raises NotFound."""
        ...

    async def request_json(self, method: str, path: str, *, body: KubeObject | None = None) -> KubeObject:
        """One request; raises ApiError."""
        ...


async def check_against_cluster(
    loaded: LoadedManifest, server: Server, *, records_events: bool = False, applies_sets: bool = False
) -> Sequence[Diagnostic]:
    """What the server has against a manifest, each fault at the resource that it is about.

    `records_events` says that handlers call `ctx.record_event`, which needs a right of its own, and
    `applies_sets` that they call `ctx.apply_set`, which marks the owner of the set. When the server doesn't
    answer that is one fault, and the only one.
    """
    found = await ask_cluster(loaded, server, records_events=records_events, applies_sets=applies_sets)
    return found.faults


class ClusterFindings(msgspec.Struct, frozen=True):
    """What a cluster has against manifests, and what their selectors of namespaces match."""

    faults: Sequence[Diagnostic]
    notes: Mapping[str, Sequence[str]] = msgspec.field(
        default_factory=dict[str, Sequence[str]]
    )  # by document, lines


async def ask_cluster(
    loaded: LoadedManifest,
    server: Server,
    *,
    records_events: bool = False,
    applies_sets: bool = False,
    namespace: str | None = None,
) -> ClusterFindings:
    """What the server has against a manifest, and the namespaces that its selectors match now.

    The lease of an election is in `namespace`, unless the manifest names another.
    """
    specs = {spec.name: spec for spec in loaded.controller.resources}
    found: list[Diagnostic] = []
    try:
        selected, found = await _selected(loaded, server)
        for resource in plan(loaded.controller).resources:
            spec = specs[resource.name]
            found += [fault async for fault in _faults(loaded, resource, spec, server, selected)]
        # A resource that the server does not serve has no schema, and is reported above.
        found += [fault async for fault in _unknown_fields(loaded, server)]
        found += [fault async for fault in _unwritable(loaded, server, selected, applies_sets=applies_sets)]
        found += [fault async for fault in _missing_namespaces(loaded, server)]
        found += [fault async for fault in _election_faults(loaded, server, namespace)]
        if records_events:
            found += [fault async for fault in _events(loaded, server, selected)]
    except ApiError as error:
        message = f"the cluster could not be asked: {error}"
        advice = "check --kubeconfig and --context, or leave --cluster out"
        return ClusterFindings([loaded.fault(CLUSTER_UNREACHABLE, (), message, suggestion=advice)])
    notes = [f"namespaces with {selector}: {_named(names)}" for selector, names in selected.items()]
    return ClusterFindings(found, {loaded.document.path: notes})


_Selected = Mapping[str, Sequence[str]]
"""The namespaces that match now, by selector; those of a selector that may not be listed are missing."""


async def _selected(loaded: LoadedManifest, server: Server) -> tuple[_Selected, list[Diagnostic]]:
    """The namespaces that the selectors of a manifest match now, and what the server has against that."""
    selected, found = dict[str, Sequence[str]](), list[Diagnostic]()
    for resource in loaded.controller.resources:
        selector = resource.namespace_selector
        if not selector or selector in selected:
            continue
        path = ("spec", "namespaces") if resource.namespaces_inherited else (*resource.path, "namespaces")
        lacking = await _lacking(server, _NAMESPACES, _VERBS, None)
        if lacking is not None:
            message = f"{lacking.message}, which a selector of namespaces needs"
            found.append(loaded.fault(FORBIDDEN, path, message, suggestion=lacking.advice))
            return selected, found
        answer = await server.request_json("GET", f"/api/v1/namespaces?labelSelector={quote(selector)}")
        names = [str(each["metadata"]["name"]) for each in answer.get("items") or ()]
        selected[selector] = sorted(names)
        if not names:
            message = f"no namespace has the labels {selector}: there is nothing to watch until one has"
            found.append(replace(loaded.fault(UNKNOWN_NAMESPACE, path, message), severity="warning"))
    return selected, found


def _named(names: Sequence[str]) -> str:
    """`3 now (a, b, c)`."""
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return f"{len(names):,} now" + (f" ({shown})" if names else "")


def _spaces(watches: Iterable[WatchKey], selected: _Selected) -> Sequence[str | None]:
    """The namespaces of watches, each once, of a selector the first 50; None stands for the whole cluster."""
    found: list[str | None] = []
    for watch in watches:
        if watch.namespace_selector:
            found += selected.get(watch.namespace_selector, ())[:_MOST_NAMESPACES]
        else:
            found.append(watch.namespace)
    return list(dict.fromkeys(found))


async def _faults(
    loaded: LoadedManifest, resource: ResourcePlan, spec: ResourceSpec, server: Server, selected: _Selected
) -> AsyncIterator[Diagnostic]:
    gvk = GroupVersionKind.of(spec.api_version, spec.kind)
    try:
        kind = await server.discover(gvk)
    except NotFound:
        message = f"the cluster does not serve {spec.kind} in {spec.api_version}"
        other = await _other_version(spec.kind, server)
        advice = (
            f'did you mean "apiVersion: {other}"? The cluster serves {spec.kind} there'
            if other
            else "install its CustomResourceDefinition, or check kind and apiVersion with "
            "`kubectl api-resources`"
        )
        yield loaded.fault(UNKNOWN_KIND, (*spec.path, "kind"), message, suggestion=advice)
        return
    # A kind without namespaces is watched once, whatever namespaces the manifest names.
    watches = resource.watches if kind.namespaced else resource.without_namespaces().watches
    for namespace in _spaces(watches, selected):
        refused = [verb for verb in _VERBS if not await _may(server, kind, verb, namespace)]
        if refused:
            where = f"in the namespace {namespace}" if namespace else "in the whole cluster"
            message = f"you may not {' or '.join(refused)} {kind.plural} {where}"
            role = "Role" if namespace else "ClusterRole"
            advice = f"a {role} needs the verbs list and watch for {kind.plural}"
            if not kind.namespaced:
                advice += f"; {kind.plural} are in no namespace, so that a Role can't grant it"
            yield loaded.fault(FORBIDDEN, spec.path, message, suggestion=advice)


async def _other_version(kind: str, server: Server) -> str | None:
    """An apiVersion in which the server has a kind of that name; of several, the first that it lists."""
    groups = (await server.request_json("GET", "/apis")).get("groups") or ()
    served = [str((group.get("preferredVersion") or {}).get("groupVersion") or "") for group in groups]
    for version in ("v1", *filter(None, served[:_MOST_GROUPS])):
        try:
            await server.discover(GroupVersionKind.of(version, kind))
        except NotFound:
            continue
        return version
    return None


async def _unknown_fields(loaded: LoadedManifest, server: Server) -> AsyncIterator[Diagnostic]:
    """The fields that expressions read and that their kinds do not have, the first one of each expression."""
    kinds = {
        spec.name: GroupVersionKind.of(spec.api_version, spec.kind) for spec in loaded.controller.resources
    }
    fields = KindFields(server)
    for reader in _readers(loaded):
        if reader.filter is None or not reader.filter.expression:
            continue
        kind, path = kinds[reader.resource], (*reader.path, "filter", "expression")
        for read in compile_expression(reader.filter.expression).reads:
            unknown = None if read.variable == "change" else await fields.unknown(kind, read.steps)
            if unknown is None:
                continue
            *parents, name = (read.variable, *unknown.steps)
            message = f"a {kind.kind} has no field {name} in {'.'.join(parents)}"
            similar = closest(name, unknown.names)
            advice = f'did you mean "{similar}"?' if similar else f"it has {listed(unknown.names)}"
            yield loaded.fault(UNKNOWN_OBJECT_FIELD, path, message, suggestion=advice, offset=read.offset)
            break


def _readers(loaded: LoadedManifest) -> Iterator[HandlerSpec | SecondaryWatchSpec]:
    """The handlers, and the watches of each."""
    for handler in loaded.controller.handlers:
        yield handler
        yield from handler.watches


async def _unwritable(
    loaded: LoadedManifest, server: Server, selected: _Selected, *, applies_sets: bool
) -> AsyncIterator[Diagnostic]:
    """The kinds, statuses and finalizers that handlers declare, and that they may not or can't write."""
    resources = {resource.name: resource for resource in plan(loaded.controller).resources}
    for handler in loaded.controller.handlers:
        if not handler.applies and not handler.status and not handler.finalizer:
            continue
        resource = resources[handler.resource]
        watch = resource.watches[0]
        try:
            own = await server.discover(GroupVersionKind.of(watch.api_version, watch.kind))
        except NotFound:  # which is reported at the resource
            continue
        # What is written without a namespace is in that of the handler's object.
        watches = resource.watches if own.namespaced else resource.without_namespaces().watches
        spaces = _spaces(watches, selected)
        for fault in (
            *[each async for each in _unapplied(loaded, handler, spaces, server)],
            *[each async for each in _status_faults(loaded, handler, own, spaces, server)],
            *[
                each
                async for each in _unmarkable(loaded, handler, own, spaces if applies_sets else (), server)
            ],
            *[each async for each in _finalizer_faults(loaded, handler, own, spaces, server)],
        ):
            yield fault


async def _unapplied(
    loaded: LoadedManifest, handler: HandlerSpec, spaces: Sequence[str | None], server: Server
) -> AsyncIterator[Diagnostic]:
    for index, kind in enumerate(handler.applies):
        path = (*handler.path, "applies", index)
        try:
            found = await server.discover(kind)
        except NotFound:
            message = f"the cluster does not serve {kind.kind} in {kind.api_version}"
            advice = "install its CustomResourceDefinition, or check kind and apiVersion"
            yield loaded.fault(UNKNOWN_KIND, (*path, "kind"), message, suggestion=advice)
            continue
        for namespace in spaces if found.namespaced else [None]:
            lacking = await _lacking(server, found, _APPLIED_VERBS, namespace)
            if lacking is not None:
                yield loaded.fault(FORBIDDEN, path, lacking.message, suggestion=lacking.advice)


async def _unmarkable(
    loaded: LoadedManifest,
    handler: HandlerSpec,
    own: Resource,
    spaces: Sequence[str | None],
    server: Server,
) -> AsyncIterator[Diagnostic]:
    """Warnings where the owner of a set can't be marked: it is known that handlers apply sets, not which."""
    for namespace in spaces if handler.applies else ():
        lacking = await _lacking(server, own, ("get", "patch"), namespace)
        if lacking is not None:
            message = f"{lacking.message}, and handlers call ctx.apply_set, which marks the owner"
            fault = loaded.fault(FORBIDDEN, (*handler.path, "applies"), message, suggestion=lacking.advice)
            yield replace(fault, severity="warning")


async def _status_faults(
    loaded: LoadedManifest,
    handler: HandlerSpec,
    own: Resource,
    spaces: Sequence[str | None],
    server: Server,
) -> AsyncIterator[Diagnostic]:
    path = (*handler.path, "status")
    if handler.status and "status" not in own.subresources:
        message = f"{own} have no status subresource, and {handler.name} writes their status"
        advice = "add `subresources: {status: {}}` to the CustomResourceDefinition, or remove status"
        yield loaded.fault(NO_STATUS, path, message, suggestion=advice)
    elif handler.status:
        for namespace in spaces:
            for verb, below in (("get", ""), ("patch", "status")):
                lacking = await _lacking(server, own, (verb,), namespace, subresource=below)
                if lacking is not None:
                    yield loaded.fault(FORBIDDEN, path, lacking.message, suggestion=lacking.advice)


async def _finalizer_faults(
    loaded: LoadedManifest,
    handler: HandlerSpec,
    own: Resource,
    spaces: Sequence[str | None],
    server: Server,
) -> AsyncIterator[Diagnostic]:
    if not handler.finalizer:
        return
    for namespace in spaces:
        lacking = await _lacking(server, own, _FINALIZER_VERBS, namespace)
        if lacking is not None:
            path = (*handler.path, "finalizer")
            yield loaded.fault(FORBIDDEN, path, lacking.message, suggestion=lacking.advice)


async def _election_faults(
    loaded: LoadedManifest, server: Server, namespace: str | None
) -> AsyncIterator[Diagnostic]:
    """An error if the lease of the election may not be read or written."""
    election = loaded.controller.leader_election
    if election.enabled:
        space = election.namespace or namespace or "default"
        lacking = await _lacking(server, _LEASES, _LEASE_VERBS, space)
        if lacking is not None:
            yield loaded.fault(FORBIDDEN, election.path, lacking.message, suggestion=lacking.advice)


class _MissingRight(msgspec.Struct, frozen=True):
    """Verbs that a handler needs and the user does not have, and the rule that would grant them."""

    message: str
    advice: str


async def _lacking(
    server: Server, kind: Resource, verbs: Sequence[str], namespace: str | None, *, subresource: str = ""
) -> _MissingRight | None:
    """What is missing of these verbs, with the rule that has all of them; None if nothing is."""
    refused = [verb for verb in verbs if not await _may(server, kind, verb, namespace, subresource)]
    if not refused:
        return None
    what = f"{kind.plural}/{subresource}" if subresource else kind.plural
    where = f"in the namespace {namespace}" if namespace else "in the whole cluster"
    shown = ", ".join(f'"{verb}"' for verb in verbs)
    rule = f'{{apiGroups: ["{kind.gvk.group}"], resources: ["{what}"], verbs: [{shown}]}}'
    role = f"a Role of the namespace {namespace}" if namespace else "a ClusterRole"
    return _MissingRight(
        f"you may not {' or '.join(refused)} {what} {where}", f"grant it by {role} with the rule {rule}"
    )


async def _missing_namespaces(loaded: LoadedManifest, server: Server) -> AsyncIterator[Diagnostic]:
    """A warning for each namespace that does not exist; none if the user may not read namespaces."""
    named = {watch.namespace for resource in plan(loaded.controller).resources for watch in resource.watches}
    for namespace in sorted(filter(None, named)):
        try:
            await server.request_json("GET", f"/api/v1/namespaces/{namespace}")
        except NotFound:
            message = (
                f"the namespace {namespace} is not in the cluster: there is nothing to watch until it is"
            )
            yield replace(
                loaded.fault(UNKNOWN_NAMESPACE, ("spec", "namespaces"), message), severity="warning"
            )
        except Forbidden:
            return


async def _events(loaded: LoadedManifest, server: Server, selected: _Selected) -> AsyncIterator[Diagnostic]:
    """A warning where events can't be posted: it is known that handlers do, and not about what."""
    watches = [watch for resource in plan(loaded.controller).resources for watch in resource.watches]
    for namespace in sorted(_spaces(watches, selected), key=str):
        lacking = [verb for verb in ("create", "patch") if not await _may(server, _EVENTS, verb, namespace)]
        if lacking:
            where = f"in the namespace {namespace}" if namespace else "in the whole cluster"
            message = f"you may not {' or '.join(lacking)} events {where}, and handlers call ctx.record_event"
            role = "Role" if namespace else "ClusterRole"
            advice = f"a {role} needs the verbs create and patch for events of the group {_EVENTS.gvk.group}"
            fault = loaded.fault(FORBIDDEN, ("spec", "handlers"), message, suggestion=advice)
            yield replace(fault, severity="warning")


async def _may(
    server: Server, kind: Resource, verb: str, namespace: str | None, subresource: str = ""
) -> bool:
    asked = {
        "group": kind.gvk.group,
        "version": kind.gvk.version,
        "resource": kind.plural,
        "verb": verb,
        "namespace": namespace or "",
        **({"subresource": subresource} if subresource else {}),
    }
    body: KubeObject = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    review = await server.request_json("POST", _REVIEWS, body=body)
    return bool(review.get("status", {}).get("allowed"))
