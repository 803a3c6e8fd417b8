"""CustomResourceDefinitions of decorated classes."""

from typing import Any

import msgspec
import pytest

import declctl
from declctl.objects.definitions import definitions_of, versions_beside
from declctl.objects.structural import SchemaErrors


class Spec(msgspec.Struct):
    replicas: int = 1
    name: str = ""


class Status(msgspec.Struct, kw_only=True):
    ready: int = 0
    conditions: list[declctl.Condition] = []


def declared(version: str, **more: Any) -> Any:
    @declctl.custom_resource(f"acme.dev/{version}", plural="previews", kind="Preview", **more)
    class Preview(declctl.Object[Spec, Status]):
        """An application for one branch."""

    return Preview


def test_a_class_is_a_definition() -> None:
    """With the subresource of the status, with names, columns of the types at their paths, and the age."""
    columns = {
        "Ready": ".status.ready",
        "Why": declctl.Column('.status.conditions[?(@.type=="Ready")].reason', priority=1),
    }
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.ready"}
    (made,) = definitions_of([declared("v1", columns=columns, scale=scale, short_names=["pv"])])
    assert made["metadata"] == {"name": "previews.acme.dev"}
    assert made["spec"]["names"] == {
        "kind": "Preview",
        "listKind": "PreviewList",
        "plural": "previews",
        "singular": "preview",
        "shortNames": ["pv"],
    }
    (version,) = made["spec"]["versions"]
    assert version["subresources"] == {"status": {}, "scale": scale}
    assert version["additionalPrinterColumns"] == [
        {"name": "Ready", "type": "integer", "jsonPath": ".status.ready"},
        {
            "name": "Why",
            "type": "string",
            "jsonPath": '.status.conditions[?(@.type=="Ready")].reason',
            "priority": 1,
        },
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["description"] == "An application for one branch."
    # All of the spec has defaults: an object without a spec gets one.
    assert schema["properties"]["spec"]["default"] == {}
    assert "required" not in schema


def test_a_kind_has_several_versions() -> None:
    """One is stored, and the objects are not converted."""
    classes = [declared("v1"), declared("v1beta1", storage=False, deprecated="use v1")]
    (made,) = definitions_of(classes)
    assert made["spec"]["conversion"] == {"strategy": "None"}
    assert [(each["name"], each["storage"]) for each in made["spec"]["versions"]] == [
        ("v1", True),
        ("v1beta1", False),
    ]
    assert made["spec"]["versions"][1]["deprecationWarning"] == "use v1"


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([declared("v1"), declared("v2")], "objects are stored in one version"),
        ([declared("v1", storage=False)], "no version is stored"),
        ([declared("v1"), declared("v1", storage=False)], "is v1 of the kind, too"),
        (
            [declared("v1"), declared("v2", storage=False, short_names=["pv"])],
            "short_names is ('pv',) here, and () in Preview",
        ),
        ([declared("v1", columns={"R": ".status.redy"})], 'status has no field redy; did you mean "ready"?'),
        (
            [declared("v1", scale={"specReplicasPath": ".spec.name", "statusReplicasPath": ".status.ready"})],
            ".spec.name is of the type string, and has to be integer",
        ),
    ],
)
def test_what_a_server_would_refuse_is_a_fault(classes: list[Any], said: str) -> None:
    """Before anything is written."""
    with pytest.raises(SchemaErrors) as raised:
        definitions_of(classes)
    assert said in str(raised.value)


@declctl.custom_resource("acme.dev/v1", plural="teams")
class Team(declctl.Object[Spec, Status]): ...


@declctl.custom_resource("acme.dev/v1beta1", plural="teams", kind="Team", storage=False)
class OldTeam(declctl.Object[Spec, Status]): ...


class LargeTeam(Team): ...


def test_other_versions_are_found_beside_a_class() -> None:
    """A class that only inherits a declaration is no version."""
    assert versions_beside(Team) == [Team, OldTeam]
