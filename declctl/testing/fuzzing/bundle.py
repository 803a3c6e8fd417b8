"""What is fuzzed: the files of a Controller, read once, and the objects that its lives are about."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from declctl.codes import IMPORT_TOO_LONG
from declctl.errors import ManifestErrors, UsageError
from declctl.manifest import plan
from declctl.manifest.definition_files import definitions_beside, yaml_files
from declctl.manifest.diagnostics import did_you_mean
from declctl.manifest.model import ControllerSpec
from declctl.manifest.plan import HandlerPlan, Plan, ResourcePlan, WatchKey
from declctl.manifest.rights import METHODS, HandlerCode, kinds_of, rights_of
from declctl.objects import FieldSelector, GroupVersionKind, KubeObject, LabelSelector, Resource
from declctl.runtime.checking.check import check, check_rights
from declctl.runtime.checking.declaration import CodeRule
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.sandbox.kinds import BUILT_IN, ServedKind, established
from declctl.sandbox.kinds import kinds_of as kinds_of_definition
from declctl.testing.documents import objects_of

_NAMES: Final = ("a", "b")
_OTHER_NAMESPACE: Final = "other"
_DEFINITION: Final = "CustomResourceDefinition"
_LABELS: Final = {"app": "a"}
_TEMPLATE: Final[KubeObject] = {
    "metadata": {"labels": _LABELS},
    "spec": {"containers": [{"name": "main", "image": "a:1"}]},
}
_WORKLOAD: Final[KubeObject] = {
    "spec": {"replicas": 1, "selector": {"matchLabels": _LABELS}, "template": _TEMPLATE}
}
# Objects of kinds without a schema, where the bundle has no example.
_BODIES: Final[Mapping[tuple[str, str], KubeObject]] = {
    ("", "ConfigMap"): {"data": {"a": "1"}},
    ("", "Secret"): {"data": {"a": "MQ=="}},
    ("", "Pod"): {"spec": _TEMPLATE["spec"]},
    ("", "Service"): {"spec": {"selector": _LABELS, "ports": [{"name": "http", "port": 80}]}},
    ("apps", "Deployment"): _WORKLOAD,
    ("apps", "StatefulSet"): {"spec": {**_WORKLOAD["spec"], "serviceName": "a"}},
    ("apps", "DaemonSet"): {"spec": {"selector": {"matchLabels": _LABELS}, "template": _TEMPLATE}},
    ("batch", "Job"): {"spec": {"template": {"spec": {**_TEMPLATE["spec"], "restartPolicy": "Never"}}}},
}


class Primary(msgspec.Struct, frozen=True):
    """An object that a life may have: one that handlers are called for."""

    api_version: str
    kind: str
    namespace: str  # empty for a kind without namespaces
    name: str
    labels: Mapping[str, str]  # that the selector of the resource asks for
    schema: Mapping[str, Any] | None  # of the whole object; None if the kind has none
    examples: Sequence[KubeObject]  # bodies of objects of this kind, without identity


class FixedFiles(InputFiles):
    """Files that were read once: they do not change, and each controller gets them without a read."""

    def __init__(self, manifest: str, inputs: Inputs) -> None:
        super().__init__(manifest)
        self._inputs = inputs

    def read(self) -> Inputs:
        """The files."""
        return self._inputs

    def digest(self) -> str:
        """That of the files."""
        return self._inputs.digest


class FuzzedBundle(msgspec.Struct, frozen=True):
    """A Controller, and what the lives of its objects begin with."""

    manifest: str
    files: FixedFiles
    plan: Plan
    definitions: Sequence[KubeObject]
    made: Sequence[KubeObject]  # those of them that no file beside the manifest has
    surroundings: Sequence[KubeObject]  # that are there before each life
    primaries: Sequence[Primary]
    rights: Mapping[str, frozenset[str]]  # verbs that write, by resource (`deployments`, `backups/status`)
    kinds: Mapping[str, str]  # by plural
    watched: frozenset[tuple[str, str]]  # the apiVersions and kinds that lead to calls of handlers
    touches: bool  # whether an annotation leads to a call: no handler has a filter

    def allows(self, verb: str, resource: str) -> bool:
        """Whether the manifest, or a hook `declctl_rbac`, declares a verb of a resource."""
        nothing = frozenset[str]()
        granted = self.rights.get(resource, nothing) | self.rights.get("*", nothing)
        return not granted.isdisjoint({verb, "*"})


def read_bundle(
    manifest: str, *, handler: str | None = None, objects: Sequence[KubeObject] | None = None
) -> FuzzedBundle:
    """Check a manifest and its handlers, and find out what to fuzz.

    - `handler`: lives are about the objects of this handler; None: of all handlers.
    - `objects`: examples, and the surroundings of lives; None: those of the folder `sandbox` beside it.

    Raises ManifestErrors for faults, and UsageError for an unknown handler, or if there is none.
    """
    from declctl.testing.controller import CHILDREN  # late: it loads a whole controller

    checked = check(manifest, children=CHILDREN)
    if checked.errors or checked.inputs is None:
        raise ManifestErrors(checked.diagnostics)
    inputs = checked.inputs
    rights = check_rights(manifest, children=CHILDREN)
    if any(each.code == IMPORT_TOO_LONG for each in rights.diagnostics):
        raise ManifestErrors(rights.diagnostics)  # without them, writes would count as not declared
    hooks = rights.hooks
    controller = _adapted(inputs.loaded.controller)
    loaded = structs.replace(inputs.loaded, controller=controller)
    planned = plan(controller)
    handlers = _handlers(planned, handler)
    folder = inputs.bundle.place
    made = () if checked.hooks is None else checked.hooks.definitions
    given = list(_objects_beside(folder) if objects is None else objects)
    beside = definitions_beside(folder)
    found = [*beside, *(each for each in given if each.get("kind") == _DEFINITION), *made]
    definitions = list({each["metadata"]["name"]: dict(each) for each in reversed(found)}.values())
    given = [each for each in given if each.get("kind") != _DEFINITION]
    served = [
        *BUILT_IN,
        *(kind for each in definitions for kind in kinds_of_definition(established(each, ""))),
    ]
    resources = {each.name: each for each in planned.resources}
    own = list(dict.fromkeys(resources[each.resource] for each in handlers))
    primaries = [each for resource in own for each in _primaries(resource, _served(resource, served), given)]
    # Objects of other handlers have lives of their own: they would be called for them, too.
    called = (resources[each.resource].watches[0] for each in planned.handlers)
    kinds = {(each.api_version, each.kind) for each in called}
    mapped = (resources[one.resource].watches[0] for each in planned.handlers for one in each.watches)
    return FuzzedBundle(
        manifest=manifest,
        files=FixedFiles(manifest, structs.replace(inputs, loaded=loaded)),
        plan=planned,
        definitions=definitions,
        made=[
            each
            for each in definitions
            if each["metadata"]["name"] not in {one["metadata"]["name"] for one in beside}
        ],
        surroundings=[each for each in given if (each.get("apiVersion"), each.get("kind")) not in kinds],
        primaries=primaries,
        rights=_rights(planned, served, () if hooks is None else hooks.rules),
        kinds={each.plural: each.kind for each in served},
        watched=frozenset(kinds | {(each.api_version, each.kind) for each in mapped}),
        touches=not any(each.filter or any(w.filter for w in each.watches) for each in planned.handlers),
    )


def _adapted(controller: ControllerSpec) -> ControllerSpec:
    """The Controller as it runs in a life: one call at a time, no election, and no check."""
    return replace(
        controller,
        leader_election=replace(controller.leader_election, enabled=False),
        sharding=None,
        reload=replace(controller.reload, preflight=False),
        handlers=tuple(
            replace(each, queue=replace(each.queue, concurrency=1)) for each in controller.handlers
        ),
    )


def _handlers(planned: Plan, name: str | None) -> Sequence[HandlerPlan]:
    if not planned.handlers:
        raise UsageError("the manifest has no handlers: there is nothing to fuzz.")
    if name is None:
        return planned.handlers
    found = [each for each in planned.handlers if each.name == name]
    if not found:
        names = [each.name for each in planned.handlers]
        hint = did_you_mean(name, names) or f"the handlers are {', '.join(names)}"
        raise UsageError(f"the manifest has no handler {name!r}: {hint}.")
    return found


def _objects_beside(folder: Path) -> Iterable[KubeObject]:
    for path in yaml_files(folder / "sandbox"):
        yield from objects_of(path)


def _served(resource: ResourcePlan, served: Iterable[ServedKind]) -> ServedKind:
    watched = resource.watches[0]
    for each in served:
        if (each.api_version, each.kind) == (watched.api_version, watched.kind):
            return each
    raise UsageError(
        f"{watched.api_version} {watched.kind} is not known: put its CustomResourceDefinition beside the "
        "manifest, or give it with --objects."
    )


def _primaries(resource: ResourcePlan, kind: ServedKind, given: Sequence[KubeObject]) -> Iterable[Primary]:
    same = [
        each for each in given if (each.get("apiVersion"), each.get("kind")) == (kind.api_version, kind.kind)
    ]
    namespaces = _namespaces(resource, kind, same)
    first = resource.watches[0]
    selector = LabelSelector.parse(first.label_selector) if first.label_selector else LabelSelector()
    labels = {
        each.key: next(iter(each.values), "a")
        for each in selector.requirements
        if each.matches({each.key: next(iter(each.values), "a")})
    }
    named = [value for key in resource.watches for value in _names(key)]
    names = list(dict.fromkeys(named)) or _NAMES
    for namespace, name in [(namespaces[0], each) for each in names[:2]] + [
        (each, names[0]) for each in namespaces[1:]
    ]:
        yield Primary(
            kind.api_version,
            kind.kind,
            namespace,
            name,
            labels,
            kind.schema,
            [_body(each) for each in same] or [_BODIES.get((kind.group, kind.kind), {"spec": {}})],
        )


def _names(key: WatchKey) -> Iterable[str]:
    """The name of the only object that is watched; none if there may be others."""
    conditions = FieldSelector.parse(key.field_selector).conditions
    return (value for path, how, value in conditions if (path, how) == ("metadata.name", "="))


def _namespaces(resource: ResourcePlan, kind: ServedKind, same: Sequence[KubeObject]) -> list[str]:
    """Two namespaces of the resource at most; an empty one for a kind without namespaces."""
    if not kind.namespaced:
        return [""]
    watched = [key.namespace for key in resource.watches if key.namespace]
    if watched:
        return watched[:2]
    used = list(dict.fromkeys(str((each.get("metadata") or {}).get("namespace", "default")) for each in same))
    if resource.namespace_selector:
        return used[:2] or ["default"]
    return [*dict.fromkeys([*used[:1], "default", _OTHER_NAMESPACE])][:2]


def _body(example: KubeObject) -> KubeObject:
    """An example without what belongs to one object alone."""
    metadata: KubeObject = example.get("metadata") or {}
    kept = {name: metadata[name] for name in ("labels", "annotations") if metadata.get(name)}
    body = {
        name: value
        for name, value in example.items()
        if name not in ("apiVersion", "kind", "metadata", "status")
    }
    return {**({"metadata": kept} if kept else {}), **body}


def _rights(
    planned: Plan, served: Sequence[ServedKind], rules: Iterable[CodeRule]
) -> Mapping[str, frozenset[str]]:
    """What the manifest and hooks declare of writes, as `declctl generate rbac` grants it."""
    by_kind = {
        GroupVersionKind(each.group, each.version, each.kind): Resource(
            GroupVersionKind(each.group, each.version, each.kind), each.plural, each.namespaced
        )
        for each in served
    }
    kinds = {kind: by_kind[kind] for kind in kinds_of(planned) if kind in by_kind}
    code = {each.name: HandlerCode(METHODS) for each in planned.handlers}
    found: dict[str, set[str]] = {"events": {"create", "patch", "update"}, "leases": {"create", "update"}}
    for each in rights_of(planned, kinds, {**code, "": HandlerCode(METHODS)}, namespace="default"):
        found.setdefault(each.resource, set()).update(each.verbs)
    for rule in rules:
        for resource in rule.resources:
            found.setdefault(resource, set()).update(rule.verbs)
    return {resource: frozenset(verbs) for resource, verbs in found.items()}
