"""The shape against the data: JSON Schema judges, and its judgements are said as a person would.

Texts that are read further (durations, names, …) are left to `checks.values`, which knows more than
a pattern.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, cast

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.checks.fitting import fits
from declctl.manifest.checks.wrong_types import report_wrong_type
from declctl.manifest.document import Place, resolve
from declctl.manifest.json_values import Json, Path, dotted, mapping_at
from declctl.manifest.shape import Schema, notes_of
from declctl.manifest.suggestions import closest, listed

_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("add", "create", "created"), "Added"),
    **dict.fromkeys(("update", "updated", "modify", "change", "changed"), "Modified"),
    **dict.fromkeys(("delete", "remove", "removed"), "Deleted"),
    **dict.fromkeys(("true", "yes", "enabled"), "On"),
    **dict.fromkeys(("false", "no", "disabled", "never", "none"), "Off"),
}


class SchemaFault(Protocol):
    """What is used of jsonschema's ValidationError."""

    @property
    def validator(self) -> str:
        """The keyword that doesn't hold."""
        ...

    @property
    def absolute_path(self) -> Iterable[str | int]:
        """Where."""
        ...

    @property
    def instance(self) -> Json:
        """The value there."""
        ...

    @property
    def schema(self) -> Schema:
        """The piece of the schema."""
        ...


def check_structure(findings: Findings, shape: Schema) -> None:
    """Report unknown, missing and mistyped fields, values that are no choice, and sizes out of range."""
    if fits(findings.walk(shape)):
        return
    # Imported here because it costs as much as all the rest, and only a manifest with faults needs it.
    from jsonschema import Draft202012Validator

    faults = [cast("SchemaFault", error) for error in Draft202012Validator(shape).iter_errors(findings.data)]
    # Unknown fields first: what one of them was meant to be is then not missing. Types before everything else
    # that could be said about the value.
    order = ("additionalProperties", "type")
    faults.sort(key=lambda fault: order.index(fault.validator) if fault.validator in order else len(order))
    for fault in faults:
        path = tuple(fault.absolute_path)
        if fault.validator in _REPORTS:
            _REPORTS[fault.validator](findings, path, fault)


def _unknown_fields(findings: Findings, path: Path, fault: SchemaFault) -> None:
    fields = mapping_at(fault.schema, "properties")
    present = fault.instance if isinstance(fault.instance, dict) else {}
    absent = [name for name in fields if name not in present]
    hints = {name: field for name, field in _hints(fault.schema).items() if field in absent}
    for name in (name for name in present if name not in fields):
        meant = closest(name, absent, synonyms=hints)
        where = (*path, name)
        if meant is not None:
            findings.mean((*path, meant))
        if findings.is_blamed(where):
            _remember_trap(findings, where)
            continue
        advice = f'did you mean "{meant}"?' if meant else _other_advice(path, name, absent)
        message = f'unknown field "{name}" in {dotted(path)}'
        findings.add(codes.UNKNOWN_FIELD, Place(where, key=True), message, suggestion=advice)


def _hints(schema: Schema) -> dict[str, str]:
    """Field names of other systems, each with the field that is meant."""
    return {
        name: field for name, field in mapping_at(notes_of(schema), "hints").items() if isinstance(field, str)
    }


def _remember_trap(findings: Findings, path: Path) -> None:
    if isinstance(resolve(str(path[-1])), bool):
        findings.mean((*path[:-1], "events"))


def _other_advice(path: Path, name: str, absent: list[str]) -> str:
    if path[-1:] == ("labelSelector",):
        return f"put labels under matchLabels: {{matchLabels: {{{name}: …}}}}"
    return f"the fields that could stand here are {listed(absent)}" if absent else "remove it"


def _missing_fields(findings: Findings, path: Path, fault: SchemaFault) -> None:
    present = fault.instance if isinstance(fault.instance, dict) else {}
    required = fault.schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name in names:
        if name in present or findings.is_meant((*path, name)):
            continue
        findings.mean((*path, name))  # jsonschema reports the mapping once for each field: say each once
        message = f'{dotted(path)} needs the field "{name}"'
        example = _example(mapping_at(fault.schema, "properties", name))
        suggestion = f"add {name}: {example}" if example else f'add "{name}"'
        findings.add(codes.MISSING_FIELD, Place(path), message, suggestion=suggestion)


def _example(schema: Schema) -> str | None:
    if "const" in schema:
        return str(schema["const"])
    examples = schema.get("examples")
    if isinstance(examples, list) and examples and isinstance(examples[0], str):
        return examples[0]
    return "{name: …}" if schema.get("required") == ["name"] else None


def _no_choice(findings: Findings, path: Path, fault: SchemaFault) -> None:
    if findings.is_blamed(path):
        return
    choices = fault.schema.get("enum")
    words = [word for word in choices if isinstance(word, str)] if isinstance(choices, list) else []
    shown = findings.quoted(path, fault.instance)
    written = findings.document.written(path)
    meant = closest(written if written is not None else str(fault.instance), words, synonyms=_SYNONYMS)
    advice = f"the choices are {listed(words)}"
    suggestion = f'did you mean "{meant}"? {advice[0].upper()}{advice[1:]}' if meant else advice
    findings.add(codes.NOT_A_CHOICE, Place(path), f"{dotted(path)} can't be {shown}", suggestion=suggestion)


def _out_of_range(findings: Findings, path: Path, fault: SchemaFault) -> None:
    if findings.is_blamed(path):
        return
    low, high = fault.schema.get("minimum"), fault.schema.get("maximum")
    shown = findings.quoted(path, fault.instance)
    advice = f"write {low} or more" if high is None else f"write a number from {low} to {high}"
    findings.add(codes.OUT_OF_RANGE, Place(path), f"{dotted(path)} can't be {shown}", suggestion=advice)


def _empty(findings: Findings, path: Path, _: SchemaFault) -> None:
    advice = 'write ["*"] for all namespaces' if path[-1:] == ("namespaces",) else "give it a value"
    message = f"{dotted(path)} is empty"
    findings.add(codes.OUT_OF_RANGE, Place(path), message, suggestion=f"{advice}, or remove it")


def _repeated(findings: Findings, path: Path, fault: SchemaFault) -> None:
    items = fault.instance if isinstance(fault.instance, list) else []
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        earlier = seen.setdefault(repr(item), index)
        if earlier == index:
            continue
        first = findings.document.locate((*path, earlier))
        shown = findings.quoted((*path, index), item)
        message = f"{dotted(path)} holds {shown} twice: first at line {first.line}, column {first.column}"
        findings.add(codes.DUPLICATE_VALUE, Place((*path, index)), message, suggestion="remove one of them")


def _wrong_constant(findings: Findings, path: Path, fault: SchemaFault) -> None:
    wanted = fault.schema.get("const")
    shown = findings.quoted(path, fault.instance)
    message = f"{dotted(path)} is {shown}, which this version doesn't read"
    findings.add(codes.WRONG_VERSION_OR_KIND, Place(path), message, suggestion=f'write "{wanted}"')


def _wrong_type(findings: Findings, path: Path, fault: SchemaFault) -> None:
    if not findings.is_blamed(path):
        report_wrong_type(findings, path, fault.instance, fault.schema)


_REPORTS: Mapping[str, Callable[[Findings, Path, SchemaFault], None]] = {
    "additionalProperties": _unknown_fields,
    "type": _wrong_type,
    "required": _missing_fields,
    "enum": _no_choice,
    "minimum": _out_of_range,
    "maximum": _out_of_range,
    "minItems": _empty,
    "minLength": _empty,
    "uniqueItems": _repeated,
    "const": _wrong_constant,
}
