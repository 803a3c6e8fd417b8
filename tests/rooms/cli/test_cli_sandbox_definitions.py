"""`declctl run --sandbox`: the sandbox has the definitions beside the manifest as they are edited."""

from pathlib import Path

import yaml

from declctl.cli.sandbox import DefinitionsInSandbox
from declctl.sandbox import SandboxThread
from declctl.testing import Logged


def definition(**fields: str) -> str:
    """A definition of Webs with these fields of the type text."""
    spec = {"type": "object", "properties": {name: {"type": kind} for name, kind in fields.items()}}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "webs", "kind": "Web"}
    return yaml.safe_dump(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "webs.acme.dev"},
            "spec": {"group": "acme.dev", "names": names, "scope": "Namespaced", "versions": [version]},
        }
    )


def test_an_edited_definition_is_loaded_again(tmp_path: Path) -> None:
    """Otherwise the sandbox would drop the new field without a word; one that it refuses is told."""
    web = {"apiVersion": "acme.dev/v1", "kind": "Web", "metadata": {"name": "a"}, "spec": {"image": "i"}}
    file, log = tmp_path / "crd.yaml", Logged()
    file.write_text(definition(image="string"))
    with SandboxThread() as sandbox:
        sandbox.load([yaml.safe_load(file.read_text()), web])
        definitions = DefinitionsInSandbox(tmp_path, load=sandbox.load, log=log)
        with definitions.following():
            pass  # it ends with the run
        definitions.look()
        assert log.events() == []
        file.write_text(definition(image="string", paused="boolean"))
        definitions.look()
        sandbox.patch("webs.acme.dev", "a", {"spec": {"paused": True}})
        assert sandbox.objects("webs.acme.dev")[0]["spec"] == {"image": "i", "paused": True}
        file.write_text("[ half a file CustomResourceDefinition")
        definitions.look()
        file.write_text(definition(image="string").replace("Namespaced", "Everywhere"))
        definitions.look()
        (tmp_path / "crd.yaml").unlink()
        definitions.look()
    edited, refused = log.events()
    assert edited == "the sandbox has the edited definition of Web (acme.dev)"
    assert refused.startswith("the sandbox keeps its definition of Web (acme.dev): ")
    assert "spec.scope" in refused
