"""What a hook `declctl_rbac` returns, read as rules: PolicyRules of RBAC with a scope and a reason."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from declctl.codes import BAD_RULE
from declctl.errors import EntryPointError
from declctl.runtime.checking.declaration import CodeRule

_LISTS = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs", "namespaces")
_EVERYWHERE = ["*"]
_EXAMPLE = 'such as {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}'


def rules_of(returned: object, origin: str, served: tuple[str, ...]) -> list[CodeRule]:
    """The rules of one hook.

    `origin` is the plugin or the module that has it, and `served` are the resources of the manifest whose
    handlers have the code. Raises EntryPointError with the first rule that is none.
    """
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        raise _bad(origin, f"a {type(returned).__name__}", f"return a list of rules, {_EXAMPLE}")
    return [_rule(each, origin, served) for each in cast("Iterable[object]", returned)]


def _rule(given: object, origin: str, served: tuple[str, ...]) -> CodeRule:
    if not isinstance(given, Mapping):
        raise _bad(origin, f"a {type(given).__name__} in its list", f"return a mapping, {_EXAMPLE}")
    rule = cast("Mapping[Any, Any]", given)
    for name in rule:
        if name not in (*_LISTS, "reason"):
            raise _bad(origin, f"a rule with {name!r}", f"a rule has {', '.join(_LISTS)} and reason")
    lists = {name: _texts(rule, name, origin) for name in _LISTS}
    if not lists["verbs"]:
        raise _bad(origin, "a rule without verbs", f"name them, {_EXAMPLE}")
    if bool(lists["resources"]) == bool(lists["nonResourceURLs"]):
        raise _bad(
            origin, "a rule without resources", f"name either resources or nonResourceURLs, {_EXAMPLE}"
        )
    if lists["resources"] and not lists["apiGroups"]:
        raise _bad(origin, "a rule without apiGroups", 'the core group is "", as in a Role')
    namespaces = lists["namespaces"] if "namespaces" in rule else None
    if lists["nonResourceURLs"] or namespaces == _EVERYWHERE:
        namespaces = []
    elif namespaces is None and not served:
        raise _bad(
            origin,
            "a rule without namespaces, and no handler has its code",
            'add "namespaces": ["team-a"], or ["*"] for the whole cluster',
        )
    elif namespaces == []:
        raise _bad(origin, "a rule with an empty list of namespaces", 'the whole cluster is ["*"]')
    return CodeRule(
        origin=origin,
        verbs=tuple(lists["verbs"]),
        api_groups=tuple(lists["apiGroups"]),
        resources=tuple(lists["resources"]),
        resource_names=tuple(lists["resourceNames"]),
        non_resource_urls=tuple(lists["nonResourceURLs"]),
        namespaces=None if namespaces is None else tuple(namespaces),
        reason=str(rule.get("reason") or ""),
        resources_served=served,
    )


def _texts(rule: Mapping[Any, Any], name: str, origin: str) -> list[str]:
    value = rule.get(name, ())
    if not isinstance(value, list | tuple) or not all(
        isinstance(each, str) for each in cast("list[Any]", value)
    ):
        raise _bad(origin, f"a rule whose {name} is {value!r}", f"{name} is a list of texts")
    return list(cast("list[str]", value))


def _bad(origin: str, what: str, advice: str) -> EntryPointError:
    return EntryPointError(f"declctl_rbac of {origin} returned {what}", code=BAD_RULE, suggestion=advice)
