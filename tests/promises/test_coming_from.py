"""docs/coming-from.md shows forms that work: fields are valid, hooks and commands exist, statements run."""

import ast
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import processes
import pytest
import typer.main
import yaml
from markdown import ROOT

from declctl.cli.app import app
from declctl.hooks import specs
from declctl.manifest import explain
from declctl.testing import BundleDir, running

RESOURCES = """\
  - {name: deployments, apiVersion: apps/v1, kind: Deployment}
  - {name: pods, apiVersion: v1, kind: Pod, indexers: [{name: byNode, fieldPath: spec.nodeName}]}
  - {name: settings, apiVersion: v1, kind: ConfigMap}
  - {name: children, apiVersion: v1, kind: ConfigMap, labelSelector: child}
"""
MANIFEST = f"""\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: shown}}
spec:
  resources:
{RESOURCES}"""
HEAD = """\
import declctl

child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made", "namespace": "default"}}
"""
FUNCTIONS = HEAD + "".join(
    f"\n\ndef {name}({argument}):\n    return {answer}\n"
    for name, argument, answer in (
        ("web", "request", "None"),
        ("interesting", "obj", "True"),
        ("keys_of", "obj", '["web"]'),
        ("one_key", "obj", '["default/web"]'),
        ("pulse", "schedule", "None"),
        ("start", "ctx", "None"),
        ("stop", "ctx", "None"),
    )
)
FINALIZES = "\n\n@declctl.hookimpl\ndef declctl_finalize(request, ctx):\n    return None\n"
OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"}},
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0", "namespace": "default"}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "default"}},
]


@cache
def forms() -> tuple[str, ...]:
    """Each piece of code in the middle column, once."""
    page = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
    rows = re.findall(r"^\| .* \|$", page, re.MULTILINE)
    return tuple(sorted({form for row in rows for form in re.findall(r"`([^`]+)`", row.split(" | ")[1])}))


FIELDS = [form for form in forms() if re.match(r"\w+: ", form)]
HOOKS = [form for form in forms() if form.startswith(("def ", "async def "))]
COMMANDS = [form for form in forms() if form.startswith("declctl ")]
STATEMENTS = [form for form in forms() if form not in {*FIELDS, *HOOKS, *COMMANDS}]


def _manifest(form: str) -> str:
    """A manifest with fields of `spec`, of a handler or of a resource."""
    fields: dict[str, Any] = yaml.safe_load(form)
    spec: dict[str, Any] = yaml.safe_load(f"resources:\n{RESOURCES}")
    handler = {"name": "web", "mode": "Reconcile", "resourceRef": {"name": "deployments"}}
    handler["entryPoint"] = "handlers:web"
    known = {part: {name for name, _, _ in explain(part).fields} for part in ("spec", "spec.handlers")}
    if fields.keys() <= known["spec"]:
        spec |= fields
    elif fields.keys() <= known["spec.handlers"]:
        handler |= fields
    else:
        spec["resources"][0] |= fields
    document = yaml.safe_load(MANIFEST) | {"spec": spec | {"handlers": [handler]}}
    return yaml.safe_dump(document)


def test_every_field_is_valid(tmp_path: Path) -> None:
    """`declctl validate` has nothing to say against a manifest with it."""
    assert len(FIELDS) > 30
    files = [f"{number}.yaml" for number in range(len(FIELDS))]
    for file, form in zip(files, FIELDS, strict=True):
        (tmp_path / file).write_text(_manifest(form), "utf-8")
    (tmp_path / "handlers.py").write_text(FUNCTIONS + FINALIZES, "utf-8")
    done = processes.run("validate", *files, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr


@pytest.mark.parametrize("form", HOOKS)
def test_every_hook_exists(form: str) -> None:
    """It has the name of a hook, and takes arguments of it."""
    function = ast.parse(form.replace("…", "...")).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    parameters = inspect.signature(getattr(specs, function.name)).parameters
    assert {argument.arg for argument in function.args.args} <= set(parameters)


@pytest.mark.parametrize("form", COMMANDS)
def test_every_command_exists(form: str) -> None:
    """It is a command, with these options."""
    command: Any = typer.main.get_command(app)
    words = form.split()[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {name for one in command.params for name in one.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_every_statement_runs(tmp_path: Path) -> None:
    """A hook with it has succeeded, or failed where the statement raises, beside the right objects."""
    handlers, code = list[str](), HEAD
    for number, form in enumerate(STATEMENTS):
        event = "change." in form
        arguments = "change, obj, ctx" if event else "request, ctx"
        obj = "" if event else "    obj = request.obj\n"
        code += f"\n\nasync def run_{number}({arguments}):\n{obj}{textwrap.indent(form, '    ')}\n"
        handlers.append(
            f"    - name: run-{number}\n      mode: {'Event' if event else 'Reconcile'}\n"
            f'      resourceRef: {{name: deployments}}\n      entryPoint: "handlers:run_{number}"\n'
            "      retry: {maxAttempts: 1}\n      includeSnapshotsFrom: [settings]\n"
        )
    manifest = f"{MANIFEST}  handlers:\n{''.join(handlers)}"
    bundle = BundleDir(tmp_path, {"handlers.py": code, "manifest.yaml": manifest})
    with running(bundle.path, objects=OBJECTS) as controller:
        controller.wait_idle()
        ended = {form: controller.handler(f"run-{number}") for number, form in enumerate(STATEMENTS)}
    raised = {form: each.last_error for form, each in ended.items() if each.failed}
    assert {form for form in raised if not form.startswith("raise ")} == set(), raised
    assert [form for form, each in ended.items() if not each.failed and not each.succeeded] == []
