"""Checks a document against the schema: unknown, missing and mistyped fields, choices, ranges.

The keywords of JSON Schema that the declarations of fields use are judged here: the import of jsonschema
takes longer than all other work on a manifest. For a value of the wrong type, the message has the expected
type, the value that YAML has read, and the correct way to write it.

Texts with a form of their own (durations, names, …) are checked in `checks.values`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from declctl.manifest import codes
from declctl.manifest.diagnostics import closest, listed
from declctl.manifest.document import Findings, Location, resolve, trap
from declctl.manifest.fields import Schema, notes_of
from declctl.manifest.values import Json, Path, dotted, items_at, mapping_at

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
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


def _has_type(names: Any, value: Json) -> bool:
    """Whether the value has one of the types. A float without a fraction is an integer, as in JSON Schema."""
    types = {type(value)} | ({int} if isinstance(value, float) and value.is_integer() else set())
    return any(types.intersection(_TYPES[name]) for name in (names if isinstance(names, list) else [names]))


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float)


# Whether a value keeps to a keyword, which is about values of one type: all others keep to it. Keywords of
# `REPORTS` that are not here are judged by their reports.
_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "type": _has_type,
    "enum": lambda choices, value: value in choices,
    "const": lambda wanted, value: value == wanted,
    "minimum": lambda low, value: not _is_number(value) or value >= low,
    "maximum": lambda high, value: not _is_number(value) or value <= high,
    "minLength": lambda least, value: not isinstance(value, str) or len(value) >= least,
    "minItems": lambda least, value: not isinstance(value, list) or len(value) >= least,
}


def _wrong_type(findings: Findings, path: Path, value: Json, schema: Schema) -> None:
    """Report a value of the wrong type. Traps of YAML 1.1, and durations without a unit, have other codes."""
    if findings.is_blamed(path):
        return
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
    """Report a number or boolean in the place of a text: `version: 1.20` is the number 1.2."""
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


def check_structure(findings: Findings) -> None:
    """Report unknown, missing and mistyped fields, values that are no choice, and sizes out of range."""
    broken = [
        (keyword, path, value, piece)
        for path, value, piece in findings.pieces
        for keyword, wanted in piece.items()
        if keyword in REPORTS and not (keyword in _HOLDS and _HOLDS[keyword](wanted, value))
    ]
    # Unknown fields come first: a required field that one of them probably means is then not missing. Types
    # come next: a value of the wrong type is not reported for its range, too.
    order = ("additionalProperties", "type")
    broken.sort(key=lambda each: order.index(each[0]) if each[0] in order else len(order))
    for keyword, path, value, piece in broken:
        REPORTS[keyword](findings, path, value, piece)


def _unknown_fields(findings: Findings, path: Path, value: Json, schema: Schema) -> None:
    if schema["additionalProperties"] is not False:
        return
    fields = mapping_at(schema, "properties")
    present = value if isinstance(value, dict) else {}
    absent = [name for name in fields if name not in present]
    hints = {name: field for name, field in _hints(schema).items() if field in absent}
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
    """Field names of other systems, each with the name of the field here."""
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


def _missing_fields(findings: Findings, path: Path, value: Json, schema: Schema) -> None:
    present = value if isinstance(value, dict) else None
    for name in map(str, items_at(schema, "required")):
        if present is None or name in present or findings.is_meant((*path, name)):
            continue
        message = f'{dotted(path)} needs the field "{name}"'
        example = _example(mapping_at(schema, "properties", name))
        suggestion = f"add {name}: {example}" if example else f'add "{name}"'
        findings.add(codes.MISSING_FIELD, Location(path), message, suggestion=suggestion)


def _example(schema: Schema) -> str | None:
    if "const" in schema:
        return str(schema["const"])
    examples = schema.get("examples")
    if isinstance(examples, list) and examples and isinstance(examples[0], str):
        return examples[0]
    return "{name: …}" if schema.get("required") == ["name"] else None


def _no_choice(findings: Findings, path: Path, value: Json, schema: Schema) -> None:
    if findings.is_blamed(path):
        return
    words = [word for word in items_at(schema, "enum") if isinstance(word, str)]
    shown = findings.quoted(path, value)
    written = findings.document.written(path)
    meant = closest(written if written is not None else str(value), words, synonyms=_SYNONYMS)
    advice = f"the choices are {listed(words)}"
    suggestion = f'did you mean "{meant}"? {advice[0].upper()}{advice[1:]}' if meant else advice
    findings.add(
        codes.NOT_A_CHOICE, Location(path), f"{dotted(path)} can't be {shown}", suggestion=suggestion
    )


def _out_of_range(findings: Findings, path: Path, value: Json, schema: Schema) -> None:
    if findings.is_blamed(path):
        return
    low, high = schema.get("minimum"), schema.get("maximum")
    shown = findings.quoted(path, value)
    advice = f"write {low} or more" if high is None else f"write a number from {low} to {high}"
    findings.add(codes.OUT_OF_RANGE, Location(path), f"{dotted(path)} can't be {shown}", suggestion=advice)


def _empty(findings: Findings, path: Path, _: Json, __: Schema) -> None:
    advice = 'write ["*"] for all namespaces' if path[-1:] == ("namespaces",) else "give it a value"
    message = f"{dotted(path)} is empty"
    findings.add(codes.OUT_OF_RANGE, Location(path), message, suggestion=f"{advice}, or remove it")


def _repeated(findings: Findings, path: Path, value: Json, _: Schema) -> None:
    seen: dict[str, int] = {}
    for index, item in enumerate(items_at(value)):
        earlier = seen.setdefault(repr(item), index)
        if earlier == index:
            continue
        first = findings.document.locate((*path, earlier))
        shown = findings.quoted((*path, index), item)
        message = f"{dotted(path)} holds {shown} twice: first at line {first.line}, column {first.column}"
        findings.add(
            codes.DUPLICATE_VALUE, Location((*path, index)), message, suggestion="remove one of them"
        )


def _wrong_constant(findings: Findings, path: Path, value: Json, schema: Schema) -> None:
    wanted = schema.get("const")
    shown = findings.quoted(path, value)
    message = f"{dotted(path)} is {shown}, which this version doesn't read"
    findings.add(codes.WRONG_VERSION_OR_KIND, Location(path), message, suggestion=f'write "{wanted}"')


REPORTS: Mapping[str, Callable[[Findings, Path, Json, Schema], None]] = {
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
