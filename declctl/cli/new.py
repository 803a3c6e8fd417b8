"""`declctl new`: an operator, a manifest, a handler or a plugin to start from. No file is ever overwritten.

The files are made from the templates in `templates/`, which are part of the wheel (`string.Template`).
"""

import json
import keyword
import re
import shlex
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import yaml
from packaging.version import Version

from declctl import __version__
from declctl.cli.options import checked
from declctl.cli.terminal import block, line
from declctl.errors import UsageError
from declctl.hooks.plugins import HOOKSPEC_VERSION
from declctl.kit.files import MANIFEST_BYTES
from declctl.manifest.model import ControllerSpec
from declctl.manifest.values import BadValue, check_api_version, check_kind, check_label
from declctl.runtime.checking.inputs import load_beside
from declctl.sandbox.kinds import BUILT_IN, Registry

_LABEL_RULE = (
    "use at most {most} lower-case letters, digits and dashes, with a letter or a digit at both ends"
)
_PREFIX = "declctl-"
_SUFFIXES = (".yaml", ".yml")
_MOST = 63  # characters of a DNS label
_OPERATOR = {  # the files of an operator, with their templates
    "models.py": "models.py",
    "handlers.py": "handlers.py",
    "manifest.yaml": "manifest.yaml",
    "sandbox/sample.yaml": "sample.yaml",
    "tests/test_operator.py": "test_operator.py",
    "tests/operator.yaml": "operator_test.yaml",
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    ".gitignore": "gitignore",
    ".github/workflows/test.yml": "test.yml",
}
_USED_NAMES = (
    "Annotated",
    "Deployment",
    "DeploymentSpec",
    "DeploymentStatus",
    "Meta",
    "Spec",
    "Status",
    "Struct",
)
_CONTROLLER = re.compile(rb"^kind:[ \t]*[\"']?Controller\b", re.MULTILINE)


class ResourceChoice(NamedTuple):
    """A kind of objects, and the name of its resource in a manifest."""

    name: str
    api_version: str
    kind: str
    built_in: bool

    @property
    def function(self) -> str:
        """The name of a function that handles its changes, such as `on_pod`."""
        return f"on_{self.kind.lower()}"


def new_manifest(folder: str, *, name: str | None, resource: str) -> None:
    """Write manifest.yaml and handlers.py into a folder, which is made if it does not exist.

    `name` is None for the name of the folder. Raises UsageError for a wrong name or resource, if a file
    exists, and if the folder has a Controller already.
    """
    where = Path(folder)
    chosen = _resource(resource)
    label = _from_folder(where) if name is None else _label(name, "--name", most=_MOST)
    _refuse_second_controller(where)
    values = {
        "name": _yaml(label),
        "resource": _yaml(chosen.name),
        "api_version": chosen.api_version,
        "kind": _yaml(chosen.kind),
        "objects": chosen.kind,
        "function": chosen.function,
    }
    files = {
        "manifest.yaml": _rendered("manifest.yaml.tmpl", values),
        "handlers.py": _rendered("handlers.py.tmpl", values),
    }
    for made in _write(where, files):
        line(f"created {made}")
    shown = shlex.quote(folder)
    objects = "OBJECTS.yaml" if chosen.built_in else "CRD.yaml --objects OBJECTS.yaml"
    line("Try next:")
    line(f"  declctl validate {shown}")
    if (chosen.api_version, chosen.kind) == ("v1", "Pod"):
        line(f"  declctl run {shown} --sandbox --churn 2    # then edit {where / 'handlers.py'}, and save")
    elif chosen.built_in:
        line(f"  declctl run {shown} --sandbox --once")
    line(f"  declctl run {shown} --sandbox --objects {objects}")
    line(f"  declctl run {shown}    # with the cluster of your kubeconfig")


def new_handler(name: str, *, resource: str | None) -> None:
    """Write a file with one handler into the current folder, and print what to add to the manifest there.

    `resource` is None for the first resource of the manifest, or pods if it has none. Raises UsageError for a
    wrong name or resource, a handler that the manifest has, and a file that exists; ManifestErrors for a
    manifest with faults.
    """
    label = _label(name, "NAME", most=_MOST)
    module = _module(label)
    chosen = _resource(resource) if resource is not None else None
    here = _manifest_here()
    if label in {handler.name for handler in here.handlers}:
        raise UsageError(f'The manifest has a handler "{label}" already: choose another name.')
    known = [ResourceChoice(one.name, one.api_version, one.kind, built_in=True) for one in here.resources]
    if chosen is None:
        chosen = known[0] if known else _resource("pods")
    same = [one for one in known if (one.api_version, one.kind) == (chosen.api_version, chosen.kind)]
    declared = bool(same)
    if declared:
        chosen = same[0]
    elif chosen.name in {one.name for one in known}:
        chosen = chosen._replace(name=re.sub(r"[./]", "-", f"{chosen.name}-{chosen.api_version}"))
    if Path(module).is_dir():  # Python would import the folder instead of the file
        raise UsageError(f"The folder {module} is a Python package of the same name: choose another name.")
    values = {"objects": chosen.kind, "function": chosen.function}
    for made in _write(Path(), {f"{module}.py": _rendered("handlers.py.tmpl", values)}):
        line(f"created {made}. Add this to the manifest:", err=True)
    lines = ["spec:"]
    if not declared:
        lines += ["  resources:", f"    - name: {_yaml(chosen.name)}"]
        lines += [f"      apiVersion: {chosen.api_version}", f"      kind: {_yaml(chosen.kind)}"]
    lines += [
        "  handlers:",
        f"    - name: {_yaml(label)}",
        f"      resourceRef: {{name: {_yaml(chosen.name)}}}",
    ]
    lines += [f'      entryPoint: "{module}:{chosen.function}"']
    block("".join(f"{one}\n" for one in lines))


def new_plugin(name: str, folder: str | None) -> None:
    """Write a plugin package: its hook, tests, README.md and a workflow that runs the tests.

    A prefix `declctl-` of `name` is left out. `folder` is None for `declctl-NAME`. Raises UsageError for a
    wrong name, and if a file exists.
    """
    label = _label(name.removeprefix(_PREFIX), "NAME", most=_MOST - len(_PREFIX))
    distribution = f"{_PREFIX}{label}"
    module = distribution.replace("-", "_")
    from declctl.hooks.metrics import reserved_prefix  # late: prometheus-client takes a while

    values = {
        "metric": reserved_prefix(label) or f"{label.replace('-', '_')}_",
        "name": label,
        "yaml_name": _yaml(label),
        "distribution": distribution,
        "module": module,
        "versions": _versions(),
        "hookspec": _hookspec_range(),
    }
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        ".gitignore": "gitignore",
        f"src/{module}/__init__.py": "init.py",
        f"src/{module}/py.typed": "py.typed",
        f"tests/test_{module}.py": "test_plugin.py",
        ".github/workflows/test.yml": "test.yml",
    }
    where = folder or distribution
    texts = {file: _rendered(f"plugin/{template}.tmpl", values) for file, template in files.items()}
    for made in _write(Path(where), texts):
        line(f"created {made}")
    line("Choose a license: pyproject.toml and README.md name none yet. Try next:")
    line(f"  cd {shlex.quote(where)}")
    line('  pip install -e ".[test]"')
    line("  python -m pytest")
    line("  declctl plugins list")


def new_operator(name: str, folder: str | None, *, group: str, kind: str | None, plural: str | None) -> None:
    """Write an operator of a custom resource: types, handlers, manifest, definition, sample and tests.

    `folder` is None for `name`, `kind` for `name` in CamelCase, `plural` for the English plural of the kind.
    Raises UsageError for a wrong name, group, kind or plural, and if a file exists.
    """
    label = _label(name, "NAME", most=_MOST)
    if "." not in group:
        raise UsageError(
            f"--group {group}: A group is a domain, such as acme.dev; the server refuses others."
        )
    made = "".join(map(str.capitalize, label.split("-")))
    chosen = checked(check_kind, made if kind is None else kind, "--kind")
    api_version = checked(check_api_version, f"{group}/v1", "--group")
    if chosen in _USED_NAMES:
        raise UsageError(f"--kind {chosen}: the files have a class of this name already: choose another one.")
    where = Path(folder or label)
    _refuse_second_controller(where)
    values = {
        "name": label,
        "yaml_name": _yaml(label),
        "group": api_version.rpartition("/")[0],
        "kind": chosen,
        "plural": _label(_plural(chosen) if plural is None else plural, "--plural", most=_MOST),
        "versions": _versions(),
    }
    texts = {file: _rendered(f"operator/{template}.tmpl", values) for file, template in _OPERATOR.items()}
    texts["crd.yaml"] = _definition(texts["models.py"], chosen)
    for made in _write(where, texts):
        line(f"created {made}")
    shown = shlex.quote(str(where))
    line("Try next:")
    line(f"  declctl run {shown} --sandbox    # then edit {where / 'handlers.py'}, and save")
    line(f"  declctl test {shown}")
    line(f"  python -m pytest {shown}")
    line(
        f"  kubectl apply -f {shown}/crd.yaml && declctl run {shown}    # with the cluster of your kubeconfig"
    )


def _plural(kind: str) -> str:
    """The plural of a kind, as kubebuilder makes it of regular nouns; in lower case."""
    text = kind.lower()
    if text.endswith(("s", "x", "z", "ch", "sh")):
        return f"{text}es"
    return f"{text[:-1]}ies" if text.endswith("y") and text[-2:-1] not in "aeiou" else f"{text}s"


def _definition(models: str, kind: str) -> str:
    """The CustomResourceDefinition of a class in the source of a module, as YAML. Raises UsageError."""
    from declctl.cli.generate.objects import rendered  # late, as what follows: it needs msgspec.inspect
    from declctl.objects.definitions import definitions_of

    namespace: dict[str, Any] = {"__name__": "models"}
    exec(models, namespace)
    return rendered(definitions_of([namespace[kind]]))


def _label(text: str, where: str, *, most: int) -> str:
    """A name that is a DNS label. Raises UsageError, which says what is allowed."""
    try:
        found = check_label(text)
    except BadValue as error:
        raise UsageError(f"{where}: {error}: {_LABEL_RULE.format(most=most)}.") from error
    if len(found) > most:
        raise UsageError(f'{where}: "{text}" is not a valid name: {_LABEL_RULE.format(most=most)}.')
    return found


def _from_folder(folder: Path) -> str:
    """The name of a folder as a DNS label. Raises UsageError if nothing of it is allowed in one."""
    text = folder.resolve().name
    found = re.sub(r"[^a-z0-9]+", "-", text.lower())[:_MOST].strip("-")
    if not found:
        raise UsageError(f'No name of a controller can be made of the folder "{text}": add --name.')
    return found


def _module(label: str) -> str:
    """The module of a handler. Raises UsageError for a name under which Python can't import a file."""
    module = label.replace("-", "_")
    if not module.isidentifier() or keyword.iskeyword(module):
        raise UsageError(
            f'NAME: no Python module can be named "{module}": begin with a letter, and use no word of Python.'
        )
    if module in sys.stdlib_module_names or module == "declctl":
        raise UsageError(
            f'NAME: "{module}.py" would hide the module {module} of Python: choose another name.'
        )
    return module


def _resource(text: str) -> ResourceChoice:
    """The kind that PLURAL, PLURAL.GROUP or APIVERSION/KIND names. Raises UsageError if there is none."""
    api_version, slash, kind = text.rpartition("/")
    if slash:
        option = f"--resource {text}"
        checked(check_api_version, api_version, option)
        choice = ResourceChoice(kind.lower(), api_version, checked(check_kind, kind, option), built_in=False)
        known = [one for one in BUILT_IN if (one.api_version, one.kind) == (api_version, kind)]
        return choice._replace(name=known[0].plural, built_in=True) if known else choice
    found = Registry(one for one in BUILT_IN if not one.is_review).find(text)
    if found is None:
        raise UsageError(
            f"--resource {text}: no built-in kind has this name. Write a plural and its group, such as pods "
            "or deployments.apps; for a custom resource, write apiVersion and kind, as example.dev/v1/WebApp."
        )
    return ResourceChoice(found.plural, found.api_version, found.kind, built_in=True)


def _manifest_here() -> ControllerSpec:
    """The Controller of the current folder. Raises UsageError if the folder has no YAML file."""
    try:
        has_yaml = any(file.suffix in _SUFFIXES for file in Path().iterdir())
    except OSError as error:
        raise UsageError(f"The current folder can't be read: {error}.") from error
    if not has_yaml:
        raise UsageError(
            "The current folder has no manifest: change to the folder of one, or make one with "
            "`declctl new manifest`."
        )
    return load_beside(".").controller


def _refuse_second_controller(folder: Path) -> None:
    """Raise UsageError if another file of the folder is a manifest: a folder holds one Controller."""
    try:
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        others = [file for file in files if file.suffix in _SUFFIXES and file.name != "manifest.yaml"]
        found = [file for file in others if file.is_file() and _CONTROLLER.search(_beginning(file))]
    except OSError as error:
        raise UsageError(f"{folder}: the folder can't be read: {error}.") from error
    if found:
        raise UsageError(
            f"{found[0]} holds a Controller already, and a folder holds one: name another folder."
        )


def _beginning(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MANIFEST_BYTES)


def _versions() -> str:
    """The versions of declctl that a plugin of today works with, such as `>=0.1,<1`."""
    now = Version(__version__)
    return f">={now.major}.{now.minor},<{now.major + 1}"


def _hookspec_range() -> str:
    """The versions of the hook specification that a plugin of today supports, such as `>=1.0,<2`."""
    return f">={HOOKSPEC_VERSION},<{Version(HOOKSPEC_VERSION).major + 1}"


def _yaml(text: str) -> str:
    """A name as a scalar of YAML; quoted if YAML would read a number or a truth value, as of `on`."""
    return text if isinstance(yaml.safe_load(text), str) else json.dumps(text)


def _rendered(template: str, values: Mapping[str, str]) -> str:
    path = resources.files("declctl.cli").joinpath("templates", *template.split("/"))
    return Template(path.read_text("utf-8")).substitute(values)


def _write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write all files, or none. Returns their paths. Raises UsageError, which names all files that exist."""
    paths = {folder / name: text for name, text in texts.items()}
    written: list[Path] = []
    try:
        if existing := [path for path in paths if path.exists() or path.is_symlink()]:
            raise UsageError(f"Nothing is written, because of what exists: {', '.join(map(str, existing))}.")
        for path, text in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            # "x": a file that appears meanwhile is not overwritten.
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UsageError(f"{folder}: the files can't be written: {error}.") from error
    return written
