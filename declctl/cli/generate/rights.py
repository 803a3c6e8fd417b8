"""The rights of a manifest as rules of RBAC: merged, each as narrow as it can be, with the reasons for it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from declctl.cli.generate.kinds import known_kinds, served_kinds
from declctl.cli.report import inputs_of, show_faults
from declctl.cli.terminal import line
from declctl.errors import UsageError
from declctl.hooks.bundle import Bundle
from declctl.hooks.usage import methods_used
from declctl.manifest import Plan, plan
from declctl.manifest.model import ControllerSpec
from declctl.manifest.rights import METHODS, WRITES, HandlerCode, Right, kinds_of, rights_of
from declctl.manifest.values import EntryPoint
from declctl.runtime.checking.check import check_rights
from declctl.runtime.checking.declaration import CodeRule
from declctl.runtime.checking.inputs import Inputs

VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete")
_CLIENTS = frozenset({"client", "sync_client"})


class RbacRule(msgspec.Struct, frozen=True):
    """One rule of a Role, and the grounds for it: sentences with places of the manifest."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    grounds: tuple[str, ...] = ()

    def document(self) -> dict[str, list[str]]:
        """As it stands in a Role."""
        if self.urls:
            return {"nonResourceURLs": list(self.urls), "verbs": list(self.verbs)}
        names = {"resourceNames": list(self.names)} if self.names else {}
        return {
            "apiGroups": list(self.groups),
            "resources": list(self.resources),
            **names,
            "verbs": list(self.verbs),
        }


class GrantedRights(msgspec.Struct, frozen=True):
    """The rules by namespace, sorted; None stands for the whole cluster."""

    rules: Mapping[str | None, Sequence[RbacRule]]


class PlannedController(msgspec.Struct, frozen=True):
    """A manifest without errors, as `generate` needs it."""

    inputs: Inputs
    plan: Plan
    rights: GrantedRights


class KubeconfigChoice(msgspec.Struct, frozen=True):
    """The cluster that is asked for the names of kinds."""

    file: str | None
    context: str | None


def planned_controller(
    manifest: str, *, definitions: Sequence[str], cluster: KubeconfigChoice | None, namespace: str
) -> PlannedController:
    """Check a manifest and its handlers, and compute the rights that it needs in a process of `namespace`.

    Faults and warnings are printed on stderr. Raises typer.Exit for errors, and UsageError for a kind whose
    plural is not known.
    """
    checked = check_rights(manifest)
    inputs = inputs_of(checked)
    show_faults(checked.diagnostics)  # warnings alone
    planned = plan(inputs.loaded.controller)
    wanted = kinds_of(planned)
    if cluster is None:
        kinds, missing = known_kinds(wanted, definitions)
    else:
        kinds, missing = served_kinds(wanted, cluster.file, cluster.context)
    if missing:
        raise UsageError(
            _unknown(inputs, [(str(kind), wanted[kind]) for kind in missing], is_served=cluster is not None)
        )
    code = code_of(inputs)
    rules = checked.hooks.rules if checked.hooks is not None else ()
    for warning in _warnings(inputs.loaded.controller, code, rules):
        line(f"declctl: {warning}", err=True)
    rights = list(rights_of(planned, kinds, code, namespace=namespace))
    return PlannedController(inputs, planned, granted_rights(inputs, rights, rules))


def _unknown(inputs: Inputs, kinds: Sequence[tuple[str, tuple[str | int, ...]]], *, is_served: bool) -> str:
    document = inputs.loaded.document
    named = ", ".join(f"{kind} ({document.path}:{document.locate(path).line})" for kind, path in kinds)
    if is_served:
        return f"The cluster does not serve {named}: install the definition first."
    return (
        f"The plural of {named} is not known without a definition: add --crds FILE with its "
        "CustomResourceDefinition, or --cluster to ask the cluster of the kubeconfig."
    )


def code_of(inputs: Inputs) -> Mapping[str, HandlerCode]:
    """The methods of `ctx` that the code of each handler uses; under "", that of everything else."""
    controller, bundle = inputs.loaded.controller, inputs.bundle
    found: dict[str, HandlerCode] = {}
    for handler in controller.handlers:
        hooks = ("declctl_finalize",) if handler.finalizer else ()
        found[handler.name] = _code([handler.entry_point], bundle, hooks)
    others = [each.entry_point for each in (*controller.schedules, *controller.lifecycle.startup)]
    others += [each.entry_point for each in controller.lifecycle.shutdown]
    return {**found, "": _code(others, bundle, ())}


def _code(entry_points: Sequence[EntryPoint | None], bundle: Bundle, hooks: Sequence[str]) -> HandlerCode:
    used = [
        None if each is None else methods_used(bundle, str(each), METHODS, hooks=hooks)
        for each in entry_points
    ]
    methods = frozenset[str]().union(*(each for each in used if each is not None))
    return HandlerCode(methods, is_known=None not in used)


def _warnings(
    controller: ControllerSpec, code: Mapping[str, HandlerCode], rules: Sequence[CodeRule]
) -> Iterable[str]:
    """What the code does, and what no rule is made for."""
    declared = {rule.origin.partition(":")[0] for rule in rules}
    for handler in controller.handlers:
        uses = code[handler.name]
        module = "" if handler.entry_point is None else str(handler.entry_point).partition(":")[0]
        if not handler.applies and uses.methods & WRITES:
            yield (
                f"{handler.name} writes objects, and declares no `applies`: rights to write are left out. "
                "Declare the kinds, or return rules from declctl_rbac"
            )
        if uses.methods & _CLIENTS and module not in declared:
            yield (
                f"{handler.name} uses ctx.client, whose requests no manifest declares: return their rules "
                "from a hook declctl_rbac of its module"
            )
    others = code[""]
    if others.methods & (WRITES | _CLIENTS) and not any(not rule.resources_served for rule in rules):
        yield (
            "schedules or life-cycle functions write, or use ctx.client, and no manifest declares what: "
            "return the rules from a hook declctl_rbac of their module"
        )


def granted_rights(inputs: Inputs, rights: Iterable[Right], rules: Iterable[CodeRule]) -> GrantedRights:
    """Merge rights into rules: one for each resource and scope, without what a wider rule has already."""
    document = inputs.loaded.document
    # By namespace, then by group, resource and names: verbs and grounds, in the order of the manifest.
    merged: dict[str | None, dict[_Key, tuple[set[str], dict[str, None]]]] = {}

    def add(namespace: str | None, key: _Key, verbs: Iterable[str], ground: str) -> None:
        known, grounds = merged.setdefault(namespace, {}).setdefault(key, (set(), {}))
        known.update(verbs)
        grounds[ground] = None

    for right in rights:
        place = f"{document.path}:{document.locate(right.path).line}"
        # The namespaces that a selector matches change at any time, and Roles do not follow them.
        where = f" {right.scope}" if right.scope.selector else ""
        key = ((right.group,), (right.resource,), right.names, ())
        add(right.scope.namespace, key, right.verbs, f"{place}: {right.reason}{where}")
    namespaces = _namespaces_of(inputs)
    for rule in rules:
        key = (rule.api_groups, rule.resources, rule.resource_names, rule.non_resource_urls)
        ground = f"declctl_rbac of {rule.origin}" + (f": {rule.reason}" if rule.reason else "")
        spaces = rule.namespaces
        if spaces is None:
            served = [namespaces[name] for name in rule.resources_served]
            # One resource of the whole cluster needs the rule there, whatever namespaces the others have.
            spaces = tuple(dict.fromkeys(chain.from_iterable(served))) if all(served) else ()
        for namespace in spaces or (None,):
            add(namespace, key, rule.verbs, ground)
    everywhere = merged.get(None, {})
    found: dict[str | None, Sequence[RbacRule]] = {}
    for namespace in sorted(merged, key=lambda each: (each is not None, each or "")):
        own = merged[namespace]
        made = [
            RbacRule(groups, resources, _sorted(left), names, urls, tuple(grounds))
            for (groups, resources, names, urls), (verbs, grounds) in sorted(own.items())
            if (
                left := verbs - _wider((groups, resources, names, urls), own, everywhere if namespace else {})
            )
        ]
        if made:
            found[namespace] = made
    return GrantedRights(found)


_Key = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Groups, resources, names of objects, and URLs that are no resources."""


def _wider(
    key: _Key,
    own: Mapping[_Key, tuple[set[str], dict[str, None]]],
    everywhere: Mapping[_Key, tuple[set[str], dict[str, None]]],
) -> set[str]:
    """The verbs that another rule grants for the same resource: for all names, or in the whole cluster."""
    groups, resources, names, urls = key
    whole: _Key = (groups, resources, (), urls)
    found = set[str]() if not names or whole not in own else set(own[whole][0])
    for each in (key, whole):
        found |= everywhere[each][0] if each in everywhere else set()
    return found


def _sorted(verbs: Iterable[str]) -> tuple[str, ...]:
    order = {verb: number for number, verb in enumerate(VERBS)}
    return tuple(sorted(verbs, key=lambda verb: (order.get(verb, len(order)), verb)))


def _namespaces_of(inputs: Inputs) -> Mapping[str, tuple[str, ...]]:
    """The namespaces of each resource; empty for the whole cluster, and for those of a selector."""
    return {
        each.name: () if each.namespace_selector else (each.namespaces or ())
        for each in inputs.loaded.controller.resources
    }
