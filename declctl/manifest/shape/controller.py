"""The shape of the document of kind Controller."""

from typing import Final

from declctl.manifest.shape import handlers, operations, resources, words
from declctl.manifest.shape.words import Schema

API_VERSION: Final = "declctl.dev/v1alpha1"


def controller() -> Schema:
    """A whole Controller."""
    return envelope("Controller", "A controller: what is watched, and who is called.", _spec())


def envelope(kind: str, description: str, spec: Schema) -> Schema:
    """A Kubernetes object with this spec."""
    return words.record(
        description,
        {
            "apiVersion": {"const": API_VERSION, "description": "The version of this shape."},
            "kind": {"const": kind, "description": "The kind of document."},
            "metadata": _metadata(),
            "spec": spec,
        },
        required=("apiVersion", "kind", "metadata", "spec"),
    )


def _metadata() -> Schema:
    notes = words.mapping("As on any Kubernetes object; not read.", values={"type": "string"})
    return words.restart(
        words.record(
            "As on any Kubernetes object.",
            {
                "name": words.text(
                    "The name, in status, logs and metrics.",
                    value="subdomain",
                    examples=["pod-guard"],
                ),
                "namespace": words.text("As on any Kubernetes object; not read.", value="label"),
                "labels": notes,
                "annotations": notes,
            },
            required=("name",),
        )
    )


def _spec() -> Schema:
    fields: dict[str, Schema] = {
        "namespaces": resources.namespaces("The default for resources; absent, all namespaces."),
        "plugins": operations.plugins(),
        "resources": resources.resources(),
        "handlers": handlers.handlers(),
        "schedules": handlers.schedules(),
        "lifecycle": operations.lifecycle(),
        "reload": operations.reload(),
        "leaderElection": operations.leader_election(),
        "sharding": operations.sharding(),
        "admin": operations.admin(),
        "metrics": operations.metrics(),
    }
    hints = {
        "namespace": "namespaces",
        "hooks": "handlers",
        "listeners": "handlers",
        "watches": "resources",
    }
    return words.noted(words.record("What the controller does.", fields), hints=dict(hints))
