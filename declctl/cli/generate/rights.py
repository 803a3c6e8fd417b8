"""The rights of a manifest as rules of RBAC: merged, each as narrow as it can be, with the reasons for it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from declctl.cli.generate.kinds import bundled_definitions, known_kinds, served_kinds
from declctl.cli.report import inputs_of, show_faults
from declctl.cli.undeclared import code_of, undeclared_writes
from declctl.errors import UsageError
from declctl.manifest import Plan, plan
from declctl.manifest.rights import Right, kinds_of, rights_of
from declctl.objects.schema_changes import Definition
from declctl.runtime.checking.check import check_rights
from declctl.runtime.checking.declaration import CodeRule
from declctl.runtime.checking.inputs import Inputs

VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete")


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
    definitions: Sequence[Definition] = ()  # of its kinds, from files beside it, and of its classes


class KubeconfigChoice(msgspec.Struct, frozen=True):
    """The cluster that is asked for the names of kinds."""

    file: str | None
    context: str | None


def planned_controller(
    manifest: str,
    *,
    at: Path | None,
    definitions: Sequence[str],
    cluster: KubeconfigChoice | None,
    namespace: str,
) -> PlannedController:
    """Check a manifest and its handlers, and compute the rights that it needs in a process of `namespace`.

    The files are read `at` a path. Faults and warnings are printed on stderr. Raises typer.Exit for errors,
    and UsageError for a kind whose plural is not known.
    """
    checked = check_rights(manifest, at=at)
    inputs = inputs_of(checked)
    show_faults((*checked.diagnostics, *undeclared_writes(inputs)))  # warnings alone
    planned = plan(inputs.loaded.controller)
    wanted = kinds_of(planned)
    bundled = list(bundled_definitions(inputs.bundle.place, wanted.keys()))
    names = {each["metadata"]["name"] for each in bundled}
    made = () if checked.hooks is None else checked.hooks.definitions
    bundled += [each for each in made if each["metadata"]["name"] not in names]
    if cluster is None:
        kinds, missing = known_kinds(wanted, definitions, bundled)
    else:
        kinds, missing = served_kinds(wanted, cluster.file, cluster.context)
    if missing:
        raise UsageError(
            _unknown(inputs, [(str(kind), wanted[kind]) for kind in missing], is_served=cluster is not None)
        )
    code = code_of(inputs)
    rules = checked.hooks.rules if checked.hooks is not None else ()
    rights = list(rights_of(planned, kinds, code, namespace=namespace))
    return PlannedController(inputs, planned, granted_rights(inputs, rights, rules), bundled)


def _unknown(inputs: Inputs, kinds: Sequence[tuple[str, tuple[str | int, ...]]], *, is_served: bool) -> str:
    document = inputs.loaded.document
    named = ", ".join(f"{kind} ({document.path}:{document.locate(path).line})" for kind, path in kinds)
    if is_served:
        return f"The cluster does not serve {named}: install the definition first."
    return (
        f"The plural of {named} is not known without a definition: put its CustomResourceDefinition beside "
        "the manifest, add --crds FILE with it, or --cluster to ask the cluster of the kubeconfig."
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
