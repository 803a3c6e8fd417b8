"""The shape against the data: does the document fit, and what is wrong where it doesn't.

A manifest that fits is the common case: every start and every reload has one, and jsonschema takes longer to
load than everything else that is done with it. So `fits` judges alone; what it does not know for sure does
not fit. Then jsonschema decides, and its judgements are said as a person would. For a value of the wrong type
the message says what was wanted, what YAML made of the text, and how to write what was meant.

Texts that are read further (durations, names, …) are left to `checks.values`, which knows more than a
pattern.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, cast

from declctl.manifest import codes
from declctl.manifest.diagnostics import closest, listed
from declctl.manifest.document import Findings, Location, resolve, trap
from declctl.manifest.fields import NOTES, Schema, notes_of
from declctl.manifest.values import Json, Path, dotted, mapping_at

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
# Descriptions; what `walk` goes into; and what is left to other checks, since a pattern has no words.
_SILENT = frozenset({"description", "default", "examples", NOTES, "properties", "items", "pattern", "oneOf"})
_WANTED = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_SCALAR_ADVICE = {"integer": "write a number, without quotes and unit", "boolean": "write true or false"}
_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("add", "create", "created"), "Added"),
    **dict.fromkeys(("update", "updated", "modify", "change", "changed"), "Modified"),
    **dict.fromkeys(("delete", "remove", "removed"), "Deleted"),
    **dict.fromkeys(("true", "yes", "enabled"), "On"),
    **dict.fromkeys(("false", "no", "disabled", "never", "none"), "Off"),
}


def fits(values: Iterable[tuple[Path, Json, Schema]]) -> bool:
    """Whether JSON Schema finds no fault in the values of a `walk`; False may also mean "I don't know"."""
    return all(_holds(keyword, piece, value) for _, value, piece in values for keyword in piece)


def _holds(keyword: str, shape: Schema, value: Json) -> bool:
    if keyword in _SILENT:
        return True
    holds = _KEYWORDS.get(keyword)
    return holds is not None and holds(shape, value)


def _type(shape: Schema, value: Json) -> bool:
    """A float is never taken for a whole number, although JSON Schema takes 1.0 for one."""
    names = shape["type"]
    return any(
        type(value) in _TYPES.get(str(name), ()) for name in (names if isinstance(names, list) else [names])
    )


def _additional(shape: Schema, value: Json) -> bool:
    """Those that have a shape of their own are looked at by themselves."""
    if shape["additionalProperties"] is not False or not isinstance(value, dict):
        return True
    return value.keys() <= mapping_at(shape, "properties").keys()


def _required(shape: Schema, value: Json) -> bool:
    names = shape["required"]
    return not isinstance(value, dict) or (isinstance(names, list) and all(name in value for name in names))


def _enum(shape: Schema, value: Json) -> bool:
    choices = shape["enum"]
    return isinstance(choices, list) and any(_is_same(value, choice) for choice in choices)


def _minimum(shape: Schema, value: Json) -> bool:
    low = shape["minimum"]
    return not isinstance(value, int | float) or (isinstance(low, int | float) and value >= low)


def _maximum(shape: Schema, value: Json) -> bool:
    high = shape["maximum"]
    return not isinstance(value, int | float) or (isinstance(high, int | float) and value <= high)


def _min_length(shape: Schema, value: Json) -> bool:
    least = shape["minLength"]
    return not isinstance(value, str) or (isinstance(least, int) and len(value) >= least)


def _min_items(shape: Schema, value: Json) -> bool:
    least = shape["minItems"]
    return not isinstance(value, list) or (isinstance(least, int) and len(value) >= least)


def _unique(_: Schema, value: Json) -> bool:
    """Known of texts only: when mappings are the same is for JSON Schema to say."""
    if not isinstance(value, list):
        return True
    texts = {item for item in value if isinstance(item, str)}
    return len(texts) == len(value)


def _is_same(value: Json, other: Json) -> bool:
    """Python takes True for 1; JSON does not."""
    return type(value) is type(other) and value == other


_KEYWORDS: Mapping[str, Callable[[Schema, Json], bool]] = {
    "type": _type,
    "additionalProperties": _additional,
    "required": _required,
    "enum": _enum,
    "const": lambda shape, value: _is_same(value, shape["const"]),
    "minimum": _minimum,
    "maximum": _maximum,
    "minLength": _min_length,
    "minItems": _min_items,
    "uniqueItems": _unique,
}


def report_wrong_type(findings: Findings, path: Path, value: Json, schema: Schema) -> None:
    """Report one value; a duration without a unit and the traps of YAML 1.1 have codes of their own."""
    types = _types(schema)
    written = findings.document.written(path)
    kind = notes_of(schema).get("value")
    if value is None:
        _report_empty(findings, path, types)
    elif "string" in types and written is not None and trap(written) is not None:
        _report_trap(findings, path, written, kind=kind)
    elif types == ["string"] and isinstance(value, int | float):
        _report_scalar(findings, path, value, kind=kind)
    else:
        wanted = " or ".join(_WANTED[name] for name in types)
        message = f"{dotted(path)} must be {wanted}, and is {findings.quoted(path, value)}"
        suggestion = _advice(findings, path, value, schema=schema)
        findings.add(codes.WRONG_TYPE, Location(path), message, suggestion=suggestion)


def _types(schema: Schema) -> list[str]:
    types = schema.get("type")
    if isinstance(types, list):
        return [name for name in types if isinstance(name, str)]
    return [types] if isinstance(types, str) else []


def _report_empty(findings: Findings, path: Path, types: list[str]) -> None:
    wanted = " or ".join(_WANTED[name] for name in types)
    message = f"{dotted(path)} is empty, and must be {wanted}"
    place = Location(path, key=path in findings.document.keys)
    findings.add(codes.WRONG_TYPE, place, message, suggestion="give it a value, or remove it")


def _report_trap(findings: Findings, path: Path, written: str, *, kind: Json) -> None:
    suggestion = f'put it in quotes: "{written}"'
    if kind == "duration":
        suggestion = 'write a duration with its unit, such as "10m" or "1h30m"'
    message = f"{dotted(path)} must be text, and YAML reads {written} as {trap(written)}"
    findings.add(codes.TRAP_VALUE, Location(path), message, suggestion=suggestion)


def _report_scalar(findings: Findings, path: Path, value: float, *, kind: Json) -> None:
    """A number or boolean where text is wanted: `1.20` is the number 1.2, and is not a version."""
    written = findings.document.written(path) or str(value)
    what = "boolean" if isinstance(value, bool) else "number"
    code = codes.TRAP_VALUE
    message = f"{dotted(path)} must be text, and YAML reads {written} as the {what} {str(value).lower()}"
    suggestion = f'put it in quotes: "{written}"'
    if kind == "versionRange":
        suggestion = f'put it in quotes, with a comparison: ">={written}"'
    elif kind == "duration" and what == "number":
        code = codes.BAD_DURATION
        message = f"{dotted(path)} is {written}, and a duration needs a unit"
        suggestion = f'did you mean "{written}s" or "{written}m"?'
    elif kind == "address" and what == "number":
        code = codes.BAD_ADDRESS
        message = f"{dotted(path)} is {written}, and an address needs a host"
        suggestion = f'did you mean "127.0.0.1:{written}"?'
    findings.add(code, Location(path), message, suggestion=suggestion)


def _advice(findings: Findings, path: Path, value: Json, *, schema: Schema) -> str | None:
    types = _types(schema)
    shown = findings.quoted(path, value)
    if "array" in types:
        return 'begin each item with "- "' if isinstance(value, dict) else f"write [{shown}]"
    if "object" in types and isinstance(value, str):
        names = list(mapping_at(schema, "properties"))
        return f"write {{name: {shown}}}" if names == ["name"] else None
    if "object" in types and isinstance(value, list):
        return 'write fields without "- " before them'
    return _SCALAR_ADVICE.get(types[0]) if types else None


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
    if fits(findings.pieces):
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
        if fault.validator in REPORTS:
            REPORTS[fault.validator](findings, path, fault)


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
        findings.add(codes.UNKNOWN_FIELD, Location(where, key=True), message, suggestion=advice)


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
        findings.add(codes.MISSING_FIELD, Location(path), message, suggestion=suggestion)


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
    findings.add(
        codes.NOT_A_CHOICE, Location(path), f"{dotted(path)} can't be {shown}", suggestion=suggestion
    )


def _out_of_range(findings: Findings, path: Path, fault: SchemaFault) -> None:
    if findings.is_blamed(path):
        return
    low, high = fault.schema.get("minimum"), fault.schema.get("maximum")
    shown = findings.quoted(path, fault.instance)
    advice = f"write {low} or more" if high is None else f"write a number from {low} to {high}"
    findings.add(codes.OUT_OF_RANGE, Location(path), f"{dotted(path)} can't be {shown}", suggestion=advice)


def _empty(findings: Findings, path: Path, _: SchemaFault) -> None:
    advice = 'write ["*"] for all namespaces' if path[-1:] == ("namespaces",) else "give it a value"
    message = f"{dotted(path)} is empty"
    findings.add(codes.OUT_OF_RANGE, Location(path), message, suggestion=f"{advice}, or remove it")


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
        findings.add(
            codes.DUPLICATE_VALUE, Location((*path, index)), message, suggestion="remove one of them"
        )


def _wrong_constant(findings: Findings, path: Path, fault: SchemaFault) -> None:
    wanted = fault.schema.get("const")
    shown = findings.quoted(path, fault.instance)
    message = f"{dotted(path)} is {shown}, which this version doesn't read"
    findings.add(codes.WRONG_VERSION_OR_KIND, Location(path), message, suggestion=f'write "{wanted}"')


def _wrong_type(findings: Findings, path: Path, fault: SchemaFault) -> None:
    if not findings.is_blamed(path):
        report_wrong_type(findings, path, fault.instance, fault.schema)


REPORTS: Mapping[str, Callable[[Findings, Path, SchemaFault], None]] = {
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
