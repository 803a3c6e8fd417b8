"""`declctl validate`: check manifests and their handlers without running them.

With `--cluster` the server is asked whether it has the kinds, whether these have the fields that expressions
read, and whether it lets us list and watch them, and write what handlers declare. For the permissions
SelfSubjectAccessReviews are sent, as `kubectl auth can-i` does. Only the namespaces that a selector of the
manifest matches are listed.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from declctl.cli.kind_fields import KindFields
from declctl.cli.manifest_argument import is_config_map, manifest_folders
from declctl.cli.report import count, show_faults
from declctl.cli.terminal import block, line, print_json
from declctl.cli.undeclared import code_of, with_undeclared_writes
from declctl.codes import (
    CLUSTER_UNREACHABLE,
    CONTRADICTION,
    FORBIDDEN,
    NO_STATUS,
    UNKNOWN_KIND,
    UNKNOWN_NAMESPACE,
    UNKNOWN_OBJECT_FIELD,
)
from declctl.errors import ApiError, Forbidden, GroupUnavailable, InvalidRequest, ManifestErrors, NotFound
from declctl.kit.files import folder_of
from declctl.manifest import Diagnostic, LoadedManifest, Plan, plan, render_github, render_json
from declctl.manifest.controller_test import names_test
from declctl.manifest.definition_files import yaml_files
from declctl.manifest.diagnostics import closest, in_order, listed
from declctl.manifest.model import HandlerSpec, SecondaryWatchSpec
from declctl.manifest.plan import cut_apart
from declctl.manifest.rights import NAMESPACES, READ, HandlerCode, Right, Scope, rights_of
from declctl.objects import GroupVersionKind, KubeObject, Resource
from declctl.objects.expressions import compile_expression
from declctl.runtime.checking.check import CheckResult, check, refused_request
from declctl.runtime.checking.config_secrets import SecretReader, UnreadSecretKey
from declctl.runtime.checking.declaration import SecretKey
from declctl.runtime.checking.definition_checks import differing_files, differing_served
from declctl.runtime.checking.preflight_pool import PreflightPool

if TYPE_CHECKING:  # late: without --cluster no client is needed
    from declctl.transport import Client

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_MOST_NAMESPACES = 50  # of those that a selector matches, in which rights are asked for
_NAMED = 5  # namespaces that a line names
_MOST_NAMES = 8  # of objects, each of which is asked for and shown
_MOST_GROUPS = 200  # in which a kind is looked for that is not where the manifest says


def check_all(
    manifests: Sequence[str],
    children: PreflightPool,
    kubeconfig: str | None,
    context: str | None,
    *,
    definitions: Sequence[str] = (),
) -> Sequence[CheckResult]:
    """What reading each manifest and its sources, and importing its handlers in a child, has found.

    ConfigMaps are read from the cluster of the options. The CustomResourceDefinitions beside a manifest, and
    those of the files `definitions`, are compared with its classes. Documents of kind ControllerTest beside
    it, and in a folder `tests`, are checked. Raises UsageError for what can't be read.
    """
    found: list[CheckResult] = []
    with manifest_folders(manifests, kubeconfig, context) as folders:
        for manifest, at in zip(manifests, folders, strict=True):
            one = with_undeclared_writes(check(manifest, at=at, checks_configs=True, children=children))
            more = differing_files(one.inputs, one.hooks, definitions)
            if one.inputs is not None and manifest != "-" and not is_config_map(manifest):
                more = [*more, *_faults_of_documents(Path(manifest))]
            found.append(replace(one, diagnostics=in_order([*one.diagnostics, *more])))
    return found


def _faults_of_documents(manifest: Path) -> Sequence[Diagnostic]:
    """The faults of ControllerTest documents beside a manifest, and in the folder `tests` there."""
    folder = folder_of(manifest)
    files = [*yaml_files(folder), *yaml_files(folder / "tests")]
    if not (documents := [each for each in files if names_test(each)]):
        return ()
    from declctl.testing.documents import load_documents  # late: it imports the sandbox

    try:
        load_documents(documents, dict(os.environ))
    except ManifestErrors as error:
        return [each for each in error.diagnostics if isinstance(each, Diagnostic)]
    return ()


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
    checked: CheckResult, server: "Client", *, namespace: str | None = None
) -> "ClusterFindings":
    """What the server has against a manifest that was read; nothing against one that could not be.

    `namespace` is that of the context or the pod, where the lease of an election is by default.
    """
    if checked.inputs is None:
        return ClusterFindings(())
    found = await ask_cluster(
        checked.inputs.loaded, server, code=code_of(checked.inputs), namespace=namespace or "default"
    )
    if any(each.code == CLUSTER_UNREACHABLE for each in found.faults):
        return found
    return replace(
        found, faults=[*found.faults, *await differing_served(checked.inputs, checked.hooks, server)]
    )


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


class ClusterFindings(msgspec.Struct, frozen=True):
    """What a cluster has against manifests, and what their selectors of namespaces match."""

    faults: Sequence[Diagnostic]
    notes: Mapping[str, Sequence[str]] = msgspec.field(
        default_factory=dict[str, Sequence[str]]
    )  # by document, lines


async def ask_cluster(
    loaded: LoadedManifest,
    server: "Client",
    *,
    code: Mapping[str, HandlerCode] | None = None,
    namespace: str = "default",
) -> ClusterFindings:
    """What the server has against a manifest, and the namespaces that its selectors match now.

    Each fault is at its place in the manifest. `code` has what is known of the code of handlers, and
    `namespace` is that of the process (`rights_of`). A server that does not answer is the only fault then.
    """
    planned = plan(loaded.controller)
    found: list[Diagnostic] = []
    try:
        rights = RightsCheck(loaded, server)
        selected, found = await _selected(loaded, server, rights)
        kinds = await _served(loaded, planned, server, found)
        found += [
            fault
            for right in rights_of(planned, kinds, code or {}, namespace=namespace)
            if right.resource != NAMESPACES.plural or right.group  # of a selector: asked for above
            for fault in await rights.faults(right, _spaces(right.scope, selected), kinds)
        ]
        found += _without_status(loaded, planned, kinds)
        found += [
            loaded.fault(CONTRADICTION, path, message, suggestion=advice)
            for path, message, advice in cut_apart(planned, kinds)
        ]
        found += [fault async for fault in _refused_selectors(loaded, planned, server, kinds, selected)]
        # A resource that the server does not serve has no schema, and is reported above.
        fields = KindFields(server)
        found += [fault async for fault in _unknown_fields(loaded, fields)]
        found += [fault async for fault in _unknown_status(loaded, planned, fields, code or {})]
        found += [fault async for fault in _missing_namespaces(loaded, server)]
        found += [fault async for fault in _missing_secrets(loaded, server, namespace)]
    except ApiError as error:
        message = f"the cluster could not be asked: {error}"
        advice = "check --kubeconfig and --context, or leave --cluster out"
        return ClusterFindings([loaded.fault(CLUSTER_UNREACHABLE, (), message, suggestion=advice)])
    notes = [f"namespaces with {selector}: {_named(names)}" for selector, names in selected.items()]
    return ClusterFindings(found, {loaded.document.path: notes})


_Selected = Mapping[str, Sequence[str]]
"""The namespaces that match now, by selector; those of a selector that may not be listed are missing."""


async def _selected(
    loaded: LoadedManifest, server: "Client", rights: "RightsCheck"
) -> tuple[_Selected, list[Diagnostic]]:
    """The namespaces that the selectors of a manifest match now, and what the server has against that."""
    selected, found = dict[str, Sequence[str]](), list[Diagnostic]()
    for resource in loaded.controller.resources:
        selector = resource.namespace_selector
        if not selector or selector in selected:
            continue
        path = ("spec", "namespaces") if resource.namespaces_inherited else (*resource.path, "namespaces")
        why = "which a selector of namespaces needs"
        right = Right("", NAMESPACES.plural, READ, Scope(), why, path)
        if lacking := await rights.faults(right, [None], {}):
            message = f"{lacking[0].message}, {why}"
            return selected, [*found, replace(lacking[0], message=message)]
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


def _spaces(scope: Scope, selected: _Selected) -> Sequence[str | None]:
    """The namespaces of a scope, of a selector the first 50; None stands for the whole cluster."""
    if scope.selector:
        return selected.get(scope.selector, ())[:_MOST_NAMESPACES]
    return [scope.namespace]


async def _served(
    loaded: LoadedManifest, planned: Plan, server: "Client", found: list[Diagnostic]
) -> dict[GroupVersionKind, Resource]:
    """The resources of the kinds of a manifest; a kind that the server does not serve is added to `found`."""
    kinds: dict[GroupVersionKind, Resource] = {}
    missing: set[GroupVersionKind] = set()
    specs = [
        (GroupVersionKind.of(spec.api_version, spec.kind), (*spec.path, "kind"))
        for spec in loaded.controller.resources
    ]
    applied = [
        (kind, (*handler.path, "applies", index, "kind"))
        for handler in planned.handlers
        for index, kind in enumerate(handler.applies)
    ]
    for kind, path in (*specs, *applied):
        if kind in kinds:
            continue
        try:
            if kind not in missing:
                kinds[kind] = await server.discover(kind)
                continue
        except NotFound:
            missing.add(kind)
        except GroupUnavailable as away:
            advice = "see `kubectl get apiservices`; what needs the kind could not be checked"
            found.append(loaded.fault(CLUSTER_UNREACHABLE, path, away.message, suggestion=advice))
            continue
        message = f"the cluster does not serve {kind.kind} in {kind.api_version}"
        other = await _other_version(kind.kind, server)
        advice = (
            f'did you mean "apiVersion: {other}"? The cluster serves {kind.kind} there'
            if other
            else "install its CustomResourceDefinition, or check kind and apiVersion with "
            "`kubectl api-resources`"
        )
        found.append(loaded.fault(UNKNOWN_KIND, path, message, suggestion=advice))
    return kinds


async def _other_version(kind: str, server: "Client") -> str | None:
    """An apiVersion in which the server has a kind of that name; of several, the first that it lists."""
    groups = (await server.request_json("GET", "/apis")).get("groups") or ()
    served = [str((group.get("preferredVersion") or {}).get("groupVersion") or "") for group in groups]
    for version in ("v1", *filter(None, served[:_MOST_GROUPS])):
        try:
            await server.discover(GroupVersionKind.of(version, kind))
        except (NotFound, GroupUnavailable):
            continue
        return version
    return None


async def _refused_selectors(
    loaded: LoadedManifest,
    planned: Plan,
    server: "Client",
    kinds: Mapping[GroupVersionKind, Resource],
    selected: _Selected,
) -> AsyncIterator[Diagnostic]:
    """A fault for each field selector that the server can't apply to objects of its kind."""
    for resource in planned.resources:
        watch = resource.watches[0]
        kind = kinds.get(GroupVersionKind.of(watch.api_version, watch.kind))
        if kind is None or not watch.field_selector:
            continue
        namespace = next(iter(_spaces(Scope(watch.namespace, watch.namespace_selector), selected)), None)
        path = f"{kind.path(namespace)}?limit=1&fieldSelector={quote(watch.field_selector)}"
        try:
            await server.request_json("GET", path)
        except InvalidRequest as fault:
            yield refused_request(loaded, resource.name, fault)
        except (Forbidden, NotFound):
            continue  # reported by the checks of rights and namespaces


async def _unknown_fields(loaded: LoadedManifest, fields: KindFields) -> AsyncIterator[Diagnostic]:
    """The fields that expressions read and that their kinds do not have, the first one of each expression."""
    kinds = {
        spec.name: GroupVersionKind.of(spec.api_version, spec.kind) for spec in loaded.controller.resources
    }
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


async def _unknown_status(
    loaded: LoadedManifest, planned: Plan, fields: KindFields, code: Mapping[str, HandlerCode]
) -> AsyncIterator[Diagnostic]:
    """A warning for each field of a status that code writes and that its kind does not have.

    The server would drop it. It is no error, as the code may be shared with handlers of other kinds.
    """
    watched = {each.name: each.watches[0] for each in planned.resources}
    for handler in planned.handlers:
        first = watched[handler.resource]
        kind = GroupVersionKind.of(first.api_version, first.kind)
        for name in sorted(code.get(handler.name, HandlerCode()).status_fields):
            unknown = await fields.unknown(kind, ("status", name))
            if unknown is None:
                continue
            missing = ".".join(unknown.steps)
            message = f"{handler.name} writes status.{name}, and a {kind.kind} has no field {missing}"
            similar = closest(unknown.steps[-1], unknown.names)
            advice = f'did you mean "{similar}"? ' if similar else ""
            advice += "The server drops it: add it to the schema of the CustomResourceDefinition"
            fault = loaded.fault(
                UNKNOWN_OBJECT_FIELD, (*handler.path, "entryPoint"), message, suggestion=advice
            )
            yield replace(fault, severity="warning")


def _readers(loaded: LoadedManifest) -> Iterator[HandlerSpec | SecondaryWatchSpec]:
    """The handlers, and the watches of each."""
    for handler in loaded.controller.handlers:
        yield handler
        yield from handler.watches


def _without_status(
    loaded: LoadedManifest, planned: Plan, kinds: Mapping[GroupVersionKind, Resource]
) -> Iterator[Diagnostic]:
    """The handlers that declare to write a status which their kind does not have."""
    watched = {each.name: each.watches[0] for each in planned.resources}
    for handler in planned.handlers:
        first = watched[handler.resource]
        own = kinds.get(GroupVersionKind.of(first.api_version, first.kind))
        if handler.status and own is not None and "status" not in own.subresources:
            message = f"{own} have no status subresource, and {handler.name} writes their status"
            advice = "add `subresources: {status: {}}` to the CustomResourceDefinition, or remove status"
            yield loaded.fault(NO_STATUS, (*handler.path, "status"), message, suggestion=advice)


class RightsCheck:
    """Asks a server for rights. Each question is sent once."""

    def __init__(self, loaded: LoadedManifest, server: "Client") -> None:
        self._loaded = loaded
        self._server = server
        self._answers: dict[_AccessQuestion, bool] = {}

    async def faults(
        self, right: Right, spaces: Iterable[str | None], kinds: Mapping[GroupVersionKind, Resource]
    ) -> Sequence[Diagnostic]:
        """A fault for each of the namespaces in which verbs are missing, with the rule that has all of them.

        None stands for the whole cluster. A right of which only code tells is a warning.
        """
        found: list[Diagnostic] = []
        for namespace in spaces:
            refused = [verb for verb in right.verbs if not await self._may(right, verb, namespace)]
            if not refused:
                continue
            where = f"in the namespace {namespace}" if namespace else "in the whole cluster"
            message = f"you may not {' or '.join(refused)} {right.resource} {where}"
            if not right.declared:
                message += f", and {right.reason}"
            rule = f'apiGroups: ["{right.group}"], resources: ["{right.resource}"]'
            if right.names:
                many = len(right.names) > _MOST_NAMES
                names = f'"{right.names[0]}", …, "{right.names[-1]}"' if many else _quoted(right.names)
                rule += f", resourceNames: [{names}]"
            role = f"a Role of the namespace {namespace}" if namespace else "a ClusterRole"
            advice = f"grant it by {role} with the rule {{{rule}, verbs: [{_quoted(right.verbs)}]}}"
            if len(right.names) > _MOST_NAMES:
                advice += "; `declctl generate rbac` prints all names"
            if any(
                not kind.namespaced and (kind.gvk.group, kind.plural) == (right.group, right.resource)
                for kind in kinds.values()
            ):
                advice += f"; {right.resource} are in no namespace, so that a Role can't grant it"
            fault = self._loaded.fault(FORBIDDEN, right.path, message, suggestion=advice)
            found.append(fault if right.declared else replace(fault, severity="warning"))
        return found

    async def _may(self, right: Right, verb: str, namespace: str | None) -> bool:
        """Whether the user has a right, for each of the names that it is limited to.

        Of many names the first and the last are asked for: a sharding has up to 8,192 Leases.
        """
        many = len(right.names) > _MOST_NAMES
        for name in (right.names[0], right.names[-1]) if many else right.names or ("",):
            question = _AccessQuestion(right.group, right.resource, verb, namespace or "", name)
            if question not in self._answers:
                self._answers[question] = await _allowed(self._server, question)
            if not self._answers[question]:
                return False
        return True


class _AccessQuestion(NamedTuple):
    """What a SelfSubjectAccessReview asks."""

    group: str
    resource: str  # maybe with a subresource
    verb: str
    namespace: str  # empty for the whole cluster
    name: str  # empty for all objects


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(f'"{text}"' for text in texts)


async def _missing_namespaces(loaded: LoadedManifest, server: "Client") -> AsyncIterator[Diagnostic]:
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


async def _missing_secrets(
    loaded: LoadedManifest, server: "Client", namespace: str
) -> AsyncIterator[Diagnostic]:
    """A fault for each value of a plugin's config whose Secret or key is not there.

    None if the user may not read the Secret, which the check of the rights reports.
    """
    reader = SecretReader(server.request_json, namespace)
    for plugin in loaded.controller.plugins:
        for source in plugin.config_from:
            reference = source.secret_key_ref
            if reference is None:
                continue
            try:
                await reader.value(SecretKey(reference.name, reference.key))
            except UnreadSecretKey as unread:
                if unread.code != FORBIDDEN:
                    path = (*reference.path, unread.field)
                    yield loaded.fault(unread.code, path, unread.message, suggestion=unread.suggestion)


async def _allowed(server: "Client", question: _AccessQuestion) -> bool:
    resource, _, subresource = question.resource.partition("/")
    asked = {
        "group": question.group,
        "resource": resource,
        "verb": question.verb,
        "namespace": question.namespace,
        **({"name": question.name} if question.name else {}),
        **({"subresource": subresource} if subresource else {}),
    }
    body: KubeObject = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    review = await server.request_json("POST", _REVIEWS, body=body)
    return bool(review.get("status", {}).get("allowed"))
