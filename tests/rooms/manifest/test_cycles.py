"""Handlers that call each other by what they write are told so; operators with children are not."""

import pytest

RESOURCES = """
resources:
  - {name: apps, apiVersion: example.dev/v1, kind: App}
  - {name: deployments, apiVersion: apps/v1, kind: Deployment}
  - {name: maps, apiVersion: v1, kind: ConfigMap}
  - {name: others, apiVersion: v1, kind: Node}
"""
APPS = "{apiVersion: example.dev/v1, kind: App}"
DEPLOYMENTS = "{apiVersion: apps/v1, kind: Deployment}"
MAPS = "{apiVersion: v1, kind: ConfigMap}"


def handler(name: str, resource: str, *applies: str, watches: str = "") -> str:
    more = f", watches: [{watches}]" if watches else ""
    written = f", applies: [{', '.join(applies)}]" if applies else ""
    head = f"name: {name}, mode: Reconcile, resourceRef: {{name: {resource}}}, entryPoint: h"
    return f"  - {{{head}{written}{more}}}\n"


def test_two_handlers_that_write_each_others_objects_are_a_cycle(only_fault) -> None:
    """At the first write of it, with every step; a warning, as both may come to an agreement."""
    fault = only_fault(
        f"{RESOURCES}handlers:\n"
        + handler("a", "apps", MAPS, f"§{DEPLOYMENTS}")
        + handler("b", "deployments", APPS)
    )
    assert (fault.code, fault.severity) == ("DCL024", "warning")
    assert fault.message == (
        "spec.handlers[0].applies[1]: a writes Deployment objects, which call b, which writes App objects, "
        "which call a: a cycle, without an end if they disagree"
    )


def test_a_longer_cycle_is_one_warning(only_fault) -> None:
    """Of three handlers, the last called by an index; what leads out of the cycle is not named."""
    by_label = "{resourceRef: {name: maps}, mapTo: {label: example.dev/app}}"
    fault = only_fault(
        f"{RESOURCES}handlers:\n"
        + handler("a", "apps", f"§{DEPLOYMENTS}")
        + handler("b", "deployments", MAPS)
        + handler("c", "others", APPS, watches=by_label)
        + handler("out", "maps")
    )
    assert fault.code == "DCL024"
    assert "call b, which writes ConfigMap objects, which call c, which writes App objects" in fault.message


@pytest.mark.parametrize(
    "handlers",
    [
        # An operator: it writes what it watches by its owner.
        handler(
            "a",
            "apps",
            APPS,
            DEPLOYMENTS,
            watches="{resourceRef: {name: deployments}, mapTo: {owner: Controller}}",
        ),
        # A second one that watches Deployments of its own kind.
        handler("a", "apps", DEPLOYMENTS)
        + handler("b", "maps", APPS, watches="{resourceRef: {name: deployments}, mapTo: {owner: Any}}"),
        # A chain.
        handler("a", "apps", DEPLOYMENTS) + handler("b", "deployments", MAPS) + handler("c", "maps"),
        # Two handlers that write one kind, and are not called by it.
        handler("a", "apps", MAPS) + handler("b", "deployments", MAPS),
        # Another group.
        handler("a", "apps", "{apiVersion: other.dev/v1, kind: Deployment}")
        + handler("b", "deployments", APPS),
    ],
)
def test_what_is_no_cycle_is_not_told(faults, handlers: str) -> None:
    assert faults(f"{RESOURCES}handlers:\n{handlers}") == ()
