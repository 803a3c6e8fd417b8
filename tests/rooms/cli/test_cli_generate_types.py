"""`declctl generate types`: classes that read the objects of a server."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from declctl.objects.typed import Object, typed_fields
from declctl.sandbox import SandboxThread
from tests.rooms.cli.conftest import Command

CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gates.acme.dev}
spec:
  group: acme.dev
  scope: Namespaced
  names: {plural: gates, kind: Gate}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            data: &map {type: object, additionalProperties: {type: string}}
            status: &any {x-kubernetes-preserve-unknown-fields: true}
            spec:
              description: 'What a "gate" is. And more.'
              type: object
              required: [clusterIP, port]
              properties:
                clusterIP: {type: string}
                port: {x-kubernetes-int-or-string: true}
                class: {type: string}
                since: {type: string, format: date-time}
                rules: {type: array, items: {type: object, properties: {any: *any, labels: *map}}}
"""


@pytest.fixture(name="module")
def _module(declctl: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """The module that the command prints."""

    def made(*arguments: str) -> ModuleType:
        module = ModuleType("generated")
        monkeypatch.setitem(sys.modules, "generated", module)
        exec(declctl.done("generate", "types", *arguments).out, vars(module))
        return module

    return made


def read(cls: type[Object[Any, Any]], **fields: Any) -> dict[str, Any]:
    """The typed fields of an object."""
    text = json.dumps(fields).encode()
    return {each.name: each.decoder()(text).f0 for each in typed_fields(cls)}


def test_a_kind_of_kubernetes_needs_no_cluster(module: Callable[..., ModuleType]) -> None:
    """Each class is there once, and reads what a server sends."""
    made = module("apps/v1/Deployment", "v1/Pod", "v1/ConfigMap")
    pod = {
        "containers": [{"name": "main", "image": "nginx", "ports": [{"containerPort": 80}]}],
        "hostIPC": True,
    }
    spec = read(made.Deployment, spec={"replicas": 2, "template": {"spec": pod}})["spec"]
    assert (spec.replicas, spec.template.spec.host_ipc) == (2, True)
    assert spec.template.spec.containers[0].ports[0].container_port == 80
    assert isinstance(read(made.Pod, spec=pod)["spec"], type(spec.template.spec))
    assert read(made.ConfigMap, data={"a": "1"})["data"] == {"a": "1"}


def test_a_definition_becomes_a_class(module: Callable[..., ModuleType], write: Callable) -> None:
    """Names of Python, fields that are required, and parts that may be anything."""
    write("crd.yaml", CRD)
    made = module("acme.dev/v1/Gate", "--crds", "crd.yaml")
    given = {"clusterIP": "::", "port": "http", "class": "a", "rules": [{"any": [1], "labels": {"a": "b"}}]}
    found = read(made.Gate, spec=given | {"since": "2026-01-02T03:04:05Z"}, data={"a": "b"})
    spec = found["spec"]
    assert (spec.cluster_ip, spec.port, spec.class_, spec.since.year) == ("::", "http", "a", 2026)
    assert (spec.rules[0].any, spec.rules[0].labels, found["data"]) == ([1], {"a": "b"}, {"a": "b"})
    assert made.GateSpec.__doc__ == "What a 'gate' is."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Deployment"], "'Deployment' is no kind: write it as apps/v1/Deployment, or v1/ConfigMap."),
        (["acme.dev/v1/Gate"], "is no kind that the Python client of Kubernetes knows: add --crds FILE"),
        (["v1/Pod", "--context", "other"], "--kubeconfig and --context are for --cluster"),
        (["v1/Pod", "--crds", "nowhere.yaml"], "nowhere.yaml can't be read"),
    ],
)
def test_what_has_no_schema_is_named(declctl: Command, folder: Path, arguments: list[str], said: str) -> None:
    """With what would help."""
    assert said in declctl.refused("generate", "types", *arguments)


def test_a_cluster_has_the_schemas_of_its_kinds(
    declctl: Command, module: Callable[..., ModuleType], sandbox: SandboxThread, tmp_path: Path
) -> None:
    """A sandbox has those of custom kinds alone."""
    sandbox.load([yaml.safe_load(CRD)])
    where = ("--cluster", "--kubeconfig", str(tmp_path / "kubeconfig"))
    made = module("acme.dev/v1/Gate", *where)
    assert read(made.Gate, spec={"clusterIP": "::", "port": 80})["spec"].port == 80
    assert "The cluster has no schema of v1 Pod" in declctl.refused("generate", "types", "v1/Pod", *where)
