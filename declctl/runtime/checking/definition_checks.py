"""Where definitions of files and of a cluster are not those of a manifest's classes, or have broken rules."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from msgspec.structs import replace

from declctl.codes import INCOMPATIBLE_DEFINITION, OTHER_DEFINITION, REFUSED_RULE
from declctl.errors import Forbidden, NotFound, UsageError
from declctl.kit.files import shown
from declctl.manifest import Diagnostic
from declctl.manifest.definition_files import (
    DefinitionInFile,
    field_of,
    kind_of,
    read_definitions,
    yaml_files,
)
from declctl.manifest.diagnostics import Position, SourceText
from declctl.objects.rule_checks import RuleFault, schema_faults
from declctl.objects.schema_changes import (
    Definition,
    SchemaChange,
    Steps,
    by_cause,
    compare_definitions,
)
from declctl.runtime.checking.declaration import FromHooks
from declctl.runtime.checking.inputs import Inputs

if TYPE_CHECKING:  # late: without --cluster no client is needed
    from declctl.transport import Client

_SERVED: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_Kind = tuple[str, str]  # group and kind


def differing_files(inputs: Inputs | None, hooks: FromHooks | None, files: Sequence[str]) -> list[Diagnostic]:
    """The faults of definitions of files, at their lines: differences from a manifest's classes, and rules.

    The files are those beside the manifest, and the given ones. A difference is an error if the file lets
    objects pass that the class does not read. A rule in CEL is an error if no server compiles it. Raises
    UsageError for a given file that can't be read.
    """
    if inputs is None:
        return []
    made = _made(hooks)
    folder = inputs.bundle.place
    named = {Path(each): each for each in files}
    found: list[Diagnostic] = []
    for path in dict.fromkeys([*yaml_files(folder), *named]):
        try:
            read = read_definitions(path, may_be_other=path not in named)
            definitions = [each for each in read if each.document["spec"].get("versions")]
        except UsageError:  # the folder may have files of others
            if path in named:
                raise
            continue
        name = named.get(path, shown(Path(inputs.bundle.display(path.name))))
        found += [fault for each in definitions for fault in _file_faults(each, name, made, inputs)]
    return found


def _file_faults(
    found: DefinitionInFile, name: str, made: Mapping[_Kind, Definition], inputs: Inputs
) -> Iterator[Diagnostic]:
    kind, source = kind_of(found.document), SourceText(name, found.text)
    for steps, fault in _rule_faults(found.document):
        where = _position(found.tree, steps)
        advice = fault.suggestion or "mend it: a server refuses the definition"
        yield source.fault(REFUSED_RULE, where, str(fault), suggestion=advice)
    if kind not in made:
        return
    for change in by_cause(compare_definitions(found.document, made[kind])):
        fault = source.fault(
            OTHER_DEFINITION,
            _position(found.tree, change.earlier),
            f"the definition is not that of the class {kind[1]}: {change}",
            suggestion=_advice(inputs, kind, name),
        )
        yield fault if not change.compatible else replace(fault, severity="warning")


def _rule_faults(definition: Definition) -> Iterator[tuple[Steps, RuleFault]]:
    for at, version in enumerate(definition["spec"]["versions"]):
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        for fault in schema_faults(schema, is_root=True):
            yield ("spec", "versions", at, "schema", "openAPIV3Schema", *fault.steps), fault


async def differing_served(inputs: Inputs, hooks: FromHooks | None, server: "Client") -> list[Diagnostic]:
    """What the definitions of a server lack, and which stored objects may not fit the classes: warnings."""
    found: list[Diagnostic] = []
    for kind, definition in _made(hooks).items():
        try:
            served = await server.request_json("GET", f"{_SERVED}/{definition['metadata']['name']}")
        except (NotFound, Forbidden):
            continue  # the kind is reported as not served; a definition may be hidden from this user
        changes = by_cause(compare_definitions(served, definition))
        found += [_served_fault(inputs, kind, each) for each in changes]
    return found


def _served_fault(inputs: Inputs, kind: _Kind, change: SchemaChange) -> Diagnostic:
    loaded = inputs.loaded
    spec = next(each for each in loaded.controller.resources if _is_of(each.api_version, each.kind, kind))
    code, message = OTHER_DEFINITION, f"the cluster has another definition of {kind[1]}: {change}"
    advice = f"{_advice(inputs, kind, 'crd.yaml')}, and apply it"
    if not change.compatible:
        code = INCOMPATIBLE_DEFINITION
        message = f"stored objects may not fit the class of {kind[1]}: {change}"
        advice = "keep what was valid, or add a version and convert the objects before it is stored"
    fault = loaded.fault(code, (*spec.path, "type"), message, suggestion=advice)
    return replace(fault, severity="warning")


def _made(hooks: FromHooks | None) -> dict[_Kind, Definition]:
    return {} if hooks is None else {kind_of(each): each for each in hooks.definitions}


def _is_of(api_version: str, name: str, kind: _Kind) -> bool:
    return (api_version.partition("/")[0], name) == kind


def _advice(inputs: Inputs, kind: _Kind, file: str) -> str:
    resources: Iterable[Any] = inputs.loaded.controller.resources
    spec = next(each for each in resources if _is_of(each.api_version, each.kind, kind))
    return f"write it again: declctl generate crd {spec.object_type} -o {file}"


def _position(tree: yaml.Node, steps: Steps) -> Position:
    """The place of the last step that a definition has."""
    for step in steps:
        below = field_of(tree, step)
        if below is None:
            break
        tree = below
    return Position(tree.start_mark.line + 1, tree.start_mark.column + 1)
