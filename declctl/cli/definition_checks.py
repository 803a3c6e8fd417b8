"""`declctl validate`: where definitions of files, and of a cluster, are not those of a manifest's classes."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml
from msgspec.structs import replace

from declctl.cli.generate.kinds import Definition, definitions_of_text, read_definitions
from declctl.codes import INCOMPATIBLE_DEFINITION, OTHER_DEFINITION
from declctl.errors import Forbidden, NotFound, UsageError
from declctl.kit.files import shown
from declctl.manifest import Diagnostic
from declctl.manifest.diagnostics import Position, SourceText
from declctl.objects.schema_changes import SchemaChange, Steps, compare_definitions
from declctl.runtime.checking.check import CheckResult

if TYPE_CHECKING:  # late: without --cluster no client is needed
    from declctl.transport import Client

_SERVED: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_Kind = tuple[str, str]  # group and kind


class _FileDefinition(NamedTuple):
    """A definition in a file, with the tree that has the places of its fields."""

    source: SourceText
    document: Definition
    tree: yaml.Node


def differing_files(checked: CheckResult, files: Sequence[str]) -> list[Diagnostic]:
    """The differences between definitions of files and those of a manifest's classes, at their lines.

    The files are those beside the manifest, and the given ones. A difference is an error if the file lets
    objects pass that the class does not read. Raises UsageError for a given file that can't be read.
    """
    made = _made(checked)
    if not made or checked.inputs is None:
        return []
    folder = checked.inputs.bundle.place
    beside = [each for each in sorted(folder.iterdir()) if each.suffix in (".yaml", ".yml")]
    found: list[Diagnostic] = []
    for path in dict.fromkeys([*beside, *map(Path, files)]):
        with suppress(*([UsageError] if str(path) not in files else [])):
            found += [fault for each in _definitions(path) for fault in _file_faults(each, made, checked)]
    return found


def _definitions(path: Path) -> Iterator[_FileDefinition]:
    text = read_definitions(str(path))
    documents = definitions_of_text(str(path), text)
    trees = list(yaml.compose_all(text, yaml.SafeLoader))
    source = SourceText(shown(path), text.decode("utf-8", "replace"))
    for at, document in documents:
        tree: yaml.Node | None = trees[at[0]]
        for step in at[1:]:
            tree = _below(tree, step)
        if tree is not None:
            yield _FileDefinition(source, document, tree)


def _file_faults(
    found: _FileDefinition, made: Mapping[_Kind, Definition], checked: CheckResult
) -> Iterator[Diagnostic]:
    kind = _kind_of(found.document)
    if kind not in made:
        return
    for change in compare_definitions(found.document, made[kind]):
        fault = found.source.fault(
            OTHER_DEFINITION,
            _position(found.tree, change.earlier),
            f"the class of {kind[1]} says something else: {change}",
            suggestion=_advice(checked, kind, found.source.name),
        )
        yield fault if not change.compatible else replace(fault, severity="warning")


async def differing_served(checked: CheckResult, server: "Client") -> AsyncIterator[Diagnostic]:
    """What the definitions of a server lack, and which stored objects may not fit the classes: warnings."""
    for kind, definition in _made(checked).items():
        try:
            served = await server.request_json("GET", f"{_SERVED}/{definition['metadata']['name']}")
        except (NotFound, Forbidden):
            continue  # the kind is reported as not served; a definition may be hidden from this user
        for change in compare_definitions(served, definition):
            yield _served_fault(checked, kind, change)


def _served_fault(checked: CheckResult, kind: _Kind, change: SchemaChange) -> Diagnostic:
    assert checked.inputs is not None
    loaded = checked.inputs.loaded
    spec = next(each for each in loaded.controller.resources if _is_of(each.api_version, each.kind, kind))
    code, message = OTHER_DEFINITION, f"the cluster has another definition of {kind[1]}: {change}"
    advice = f"{_advice(checked, kind, 'crd.yaml')}, and apply it"
    if not change.compatible:
        code = INCOMPATIBLE_DEFINITION
        message = f"stored objects may not fit the class of {kind[1]}: {change}"
        advice = "keep what was valid, or add a version and convert the objects before it is stored"
    fault = loaded.fault(code, (*spec.path, "type"), message, suggestion=advice)
    return replace(fault, severity="warning")


def _made(checked: CheckResult) -> dict[_Kind, Definition]:
    hooks = checked.hooks
    return {} if hooks is None else {_kind_of(each): each for each in hooks.definitions}


def _kind_of(definition: Definition) -> _Kind:
    return str(definition["spec"].get("group")), str(definition["spec"]["names"].get("kind"))


def _is_of(api_version: str, name: str, kind: _Kind) -> bool:
    return (api_version.partition("/")[0], name) == kind


def _advice(checked: CheckResult, kind: _Kind, file: str) -> str:
    assert checked.inputs is not None
    resources: Iterable[Any] = checked.inputs.loaded.controller.resources
    spec = next(each for each in resources if _is_of(each.api_version, each.kind, kind))
    return f"write it again: declctl generate crd {spec.object_type} -o {file}"


def _position(tree: yaml.Node, steps: Steps) -> Position:
    """The place of the last step that a definition has."""
    for step in steps:
        below = _below(tree, step)
        if below is None:
            break
        tree = below
    return Position(tree.start_mark.line + 1, tree.start_mark.column + 1)


def _below(tree: Any, step: str | int) -> Any:
    if isinstance(tree, yaml.SequenceNode) and isinstance(step, int):
        return tree.value[step] if step < len(tree.value) else None
    if isinstance(tree, yaml.MappingNode):
        return next((value for key, value in tree.value if key.value == step), None)
    return None
