"""The published schema and `explain`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from declctl.errors import UsageError
from declctl.manifest import explain, schema, schema_with_plugins
from declctl.manifest.schema import published

ROOT = Path(__file__).parents[3]
COPY = ROOT / "schema" / "declctl.v1alpha1.schema.json"

EVERYTHING = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: pod-guard}
spec:
  namespaces: {labelSelector: {matchLabels: {team: a}}}
  resources:
    - {name: pods, apiVersion: v1, kind: Pod, cache: {mode: MetadataOnly}, namespaces: [a]}
  handlers:
    - name: notify
      resourceRef: {name: pods}
      mode: Reconcile
      entryPoint: "handlers.pods:on_change"
      filter: {expression: "obj.status.phase != old.status.phase", changedPaths: [spec, metadata.labels]}
      includeSnapshotsFrom: [pods]
      debounce: 500ms
      queue: {name: slow, concurrency: 4}
      onFailure: DeadLetter
      replay: OnCodeChange
  schedules:
    - name: nightly
      cron: "0 2 * * *"
      timeZone: UTC
      entryPoint: "handlers.jobs:nightly"
      includeSnapshotsFrom: [pods]
  plugins: [{name: slack, configFrom: [{name: t, secretKeyRef: {name: s, key: k}}]}]
  reload: {watch: "Off", preflight: "On", probationPeriod: 60s, minCalls: 20, maxErrorRatio: 0.5}
  leaderElection: {enabled: true, leaseDuration: 15s}
  sharding: {slots: 16, by: Namespace, retryPeriod: 1s}
  metrics: {bindAddress: 0.0.0.0:9090}
---
apiVersion: declctl.dev/v1alpha1
kind: ControllerTest
metadata: {name: notify-on-failure}
spec:
  manifest: ../manifest.yaml
  objects: [{file: testdata/running.yaml}, {apiVersion: v1, kind: Pod, metadata: {name: web-0}}]
  steps:
    - patch: {kind: Pod, name: web-0, patch: {status: {phase: Failed}}}
      expect:
        - match: {kind: Pod, metadata: {name: web-0}}
          count: 1
        - absent: {kind: ConfigMap}
        - condition: {kind: Pod, name: web-0, type: Ready, status: "True", reason: a*, message: b}
        - event: {reason: Failed, type: Warning, message: "*", regarding: {kind: Pod}, count: 1}
        - calls: {handler: notify, min: 1, max: 2, failed: 0}
        - writes: {kind: Pod, verb: patch_status, name: web-0, handler: notify, count: 0}
        - quiet: 30s
    - apply: {file: testdata/running.yaml}
    - delete: {kind: Pod, apiVersion: v1, name: web-0, namespace: default}
    - advance: 1h
    - wait: 5m
    - fault: {fault: refuse, status: 429, verb: list, resource: pods, namespace: a, times: 2, retryAfter: 1}
    - reload: {files: {handlers.py: testdata/handlers_v2.py}}
    - restart: {}
"""


def pieces(found, path=""):
    """Every field of a schema, with its path."""
    for name, field in found.get("properties", {}).items():
        yield f"{path}{name}", field
        yield from pieces(field, f"{path}{name}.")
    if "items" in found:
        yield from pieces(found["items"], path)


def test_the_published_copy_is_current():
    """Editors read the copy, so it is what the program checks, and what the command prints."""
    assert COPY.read_text() == published()
    command = [sys.executable, "-W", "ignore", "-m", "declctl.manifest.schema"]
    assert subprocess.run(command, capture_output=True, cwd=ROOT, check=True, text=True).stdout == published()


def test_it_is_a_schema():
    """JSON Schema 2020-12 itself finds no fault in it."""
    for kind in (None, "Controller", "ControllerTest"):
        Draft202012Validator.check_schema(schema(kind))


def test_it_covers_what_is_documented():
    """Editors complete every documented field."""
    validator = Draft202012Validator(schema())
    for document in yaml.safe_load_all(EVERYTHING):
        assert [error.message for error in validator.iter_errors(document)] == []


@pytest.mark.parametrize("kind", ["Controller", "ControllerTest"])
def test_the_kind_chooses_the_shape(kind):
    """A field of the other kind is an error in an editor too; every field is described."""
    head = {"apiVersion": "declctl.dev/v1alpha1", "kind": kind, "metadata": {"name": "a"}}
    assert not Draft202012Validator(schema()).is_valid({**head, "spec": {"x": 1}})
    bare = [path for path, field in pieces(schema(kind)) if not field.get("description", "").endswith(".")]
    assert bare == []


def test_every_example_and_default_is_valid():
    for path, field in pieces(schema("Controller")):
        plain = {key: value for key, value in field.items() if key not in ("oneOf", "required")}
        for value in [*field.get("examples", []), *([field["default"]] if "default" in field else [])]:
            assert Draft202012Validator(plain).is_valid(value), path


def test_callers_can_not_change_the_schema():
    schema()["$defs"].clear()
    assert json.loads(published())["$defs"]


def test_explain_tells_all_about_a_field():
    """Type, default, choices, example, and how a change takes effect."""
    found = explain("spec.handlers.retry")
    assert (found.path, found.type, found.live) == ("spec.handlers.retry", "mapping", "live")
    assert [field[0] for field in found.fields] == ["maxAttempts", "initialBackoff", "maxBackoff"]
    assert found.fields[1][1] == "duration"
    assert found.example == {"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "5m"}


@pytest.mark.parametrize(
    ("path", "kind", "default", "live"),
    [
        ("spec.reload.drainTimeout", "duration", "20s", "live"),
        ("spec.handlers.bufferBytes", "quantity", "64Mi", "live"),
        ("spec.handlers[0].queue.concurrency", "whole number", 1, "live"),
        ("spec.handlers[].events", "list of text", ["Added", "Modified", "Deleted", "Resync"], "live"),
        ("spec.admin.bindAddress", "text", "127.0.0.1:8081", "restart"),
        ("spec.metrics.bindAddress", "text", None, "restart"),
        ("spec.sharding.slots", "whole number", None, "restart"),
        ("spec.resources.sharded", "boolean", True, "live"),
        ("spec.lifecycle.startup.order", "whole number", 0, "restart"),
        ("spec.lifecycle.shutdown.order", "whole number", 0, "live"),
        ("Controller.spec.resources.labelSelector", "mapping or text", None, "live"),
        ("controller.metadata.name", "text", None, "restart"),
        ("spec.namespaces", "list or mapping", None, "live"),
        ("ControllerTest.spec.steps.expect.calls.count", "whole number", None, None),
        ("ControllerTest.spec.steps.wait", "duration", None, None),
    ],
)
def test_explain_types_defaults_and_effect(path, kind, default, live):
    """What takes a restart says so, for everything below too."""
    found = explain(path)
    assert (found.type, found.default, found.live) == (kind, default, live)


def test_explain_choices_and_what_is_required():
    """The choices are those that a person writes."""
    assert explain("spec.handlers.mode").enum == ("Event", "Reconcile")
    assert explain("spec.sharding.by").enum == ("Namespace", "UID")
    assert explain("spec.sharding.slots").required
    assert explain("spec.reload.preflight").enum == ("On", "Off")
    assert explain("spec.handlers.name").required
    assert not explain("spec.handlers.timeout").required


@pytest.mark.parametrize("path", ["", "Controller", "controller."])
def test_explain_nothing_shows_the_document(path):
    """Without a path, the kind itself is explained."""
    assert [field[0] for field in explain(path).fields] == ["apiVersion", "kind", "metadata", "spec"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("spec.handler", 'There is no field "handler" in spec; did you mean "handlers"?'),
        (
            "spec.handlers.queue.x",
            'There is no field "x" in spec.handlers.queue; its fields are name and concurrency.',
        ),
        ("spec.handlers.timeout.x", 'There is no field "x" in spec.handlers.timeout: it has no fields.'),
        (
            "handlers",
            (
                'There is no field "handlers" in the document; '
                "its fields are apiVersion, kind, metadata and spec."
            ),
        ),
    ],
)
def test_explain_a_field_that_there_is_not(path, message):
    """A wrong path is answered with the right ones."""
    with pytest.raises(UsageError) as caught:
        explain(path)
    assert str(caught.value).removesuffix(".") == message.removesuffix(".")


def test_schema_of_an_unknown_kind():
    with pytest.raises(UsageError, match='There is no kind "Controler"; did you mean "Controller"'):
        schema("Controler")


def test_the_configs_of_plugins_are_completed_and_checked() -> None:
    """`declctl schema --plugins`: each config has the schema of its plugin, whose references stay within."""
    size = {"properties": {"size": {"$ref": "#/$defs/size"}}, "$defs": {"size": {"minimum": 1}}}
    size["type"] = "object"
    plain = {"$schema": "http://json-schema.org/draft-07/schema#", "required": ["url"]}
    merged = schema_with_plugins(None, {"sized": size, "plain": plain, "free": None})
    Draft202012Validator.check_schema(merged)
    editor = Draft202012Validator(merged)

    def faults(*plugins: dict[str, object]) -> list[tuple[object, ...]]:
        spec = {"resources": [], "plugins": list(plugins)}
        head = {"apiVersion": "declctl.dev/v1alpha1", "kind": "Controller", "metadata": {"name": "x"}}
        found = editor.iter_errors({**head, "spec": spec})
        return [tuple(each.absolute_path)[1:] for each in found if "plugins" in each.absolute_path]

    assert not faults(
        {"name": "sized", "config": {"size": 1}},
        {"name": "plain", "config": {"url": "x"}},
        {"name": "free", "config": {"size": 0}},
        {"name": "not-installed", "config": {"size": 0}},
    )
    wrong = [{"name": "plain", "config": {}}, {"name": "sized", "config": {"size": 0}}]
    assert faults(*wrong) == [("plugins", 0, "config"), ("plugins", 1, "config", "size")]
    assert schema_with_plugins(None, {}) == schema(None)
