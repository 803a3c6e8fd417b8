"""Checks a document against the schema: unknown, missing and mistyped fields, choices, ranges.

Most documents have no such fault, and the import of jsonschema takes longer than all other work on a
manifest. So `fits` decides first, without jsonschema. If `fits` is False, which also means "not sure",
jsonschema decides, and each of its errors becomes a message for people. For a value of the wrong type, the
message has the expected type, the value that YAML has read, and the correct way to write it.

Texts with a form of their own (durations, names, …) are checked in `checks.values`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from declctl import codes
from declctl.manifest.diagnostics import closest, did_you_mean, listed
from declctl.manifest.document import Findings, Location, resolve, trap
from declctl.manifest.fields import NOTES, Schema, notes_of
from declctl.manifest.values import Json, Path, dotted, items_at, mapping_at

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
# Keywords without a check in `fits`: descriptions, the keywords that `walk` follows, and those of other
# checks.
_SILENT = frozenset(
    {"description", "default", "examples", NOTES, "properties", "items", "pattern", "oneOf", "anyOf"}
)
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
    """Whether JSON Schema finds no fault in the values of a `walk`. False also means "not sure"."""
    return all(_holds(keyword, piece, value) for _, value, piece in values for keyword in piece)


def _holds(keyword: str, shape: Schema, value: Json) -> bool:
    if keyword in _SILENT:
        return True
    holds = _KEYWORDS.get(keyword)
    return holds is not None and holds(shape[keyword], value, shape)


def _has_type(names: Any, value: Json) -> bool:
    """Whether the value has one of the types. A float is no integer, although JSON Schema allows 1.0."""
    return any(type(value) in _TYPES[name] for name in (names if isinstance(names, list) else [names]))


def _is_same(value: Json, other: Json) -> bool:
    """Whether two values are equal and of the same type: `True == 1` in Python, but not in JSON."""
    return type(value) is type(other) and value == other


def _is_number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float)


# A keyword checks values of one type. It holds for values of all other types, as in JSON Schema.
_KEYWORDS: Mapping[str, Callable[[Any, Any, Schema], bool]] = {
    "type": lambda names, value, _: _has_type(names, value),
    # Only the names of the fields: their values are checked with their own pieces.
    "additionalProperties": lambda allowed, value, shape: (
        allowed is not False
        or not isinstance(value, dict)
        or value.keys() <= mapping_at(shape, "properties").keys()
    ),
    "required": lambda names, value, _: not isinstance(value, dict) or all(name in value for name in names),
    "enum": lambda choices, value, _: any(_is_same(value, choice) for choice in choices),
    "const": lambda wanted, value, _: _is_same(value, wanted),
    "minimum": lambda low, value, _: not _is_number(value) or value >= low,
    "maximum": lambda high, value, _: not _is_number(value) or value <= high,
    "minLength": lambda least, value, _: not isinstance(value, str) or len(value) >= least,
    "minItems": lambda least, value, _: not isinstance(value, list) or len(value) >= least,
    "uniqueItems": lambda _, value, __: not isinstance(value, list) or _all_differ(value),
}


def _all_differ(items: list[Json]) -> bool:
    """Whether texts, and mappings of texts, differ; False for other items, which jsonschema compares."""
    found: set[object] = set()
    for item in items:
        if isinstance(item, dict) and all(isinstance(value, str) for value in item.values()):
            found.add(frozenset(item.items()))
        elif isinstance(item, str):
            found.add(item)
    return len(found) == len(items)


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


def check_structure(findings: Findings, shape: Schema) -> None:
    """Report unknown, missing and mistyped fields, values that are no choice, and sizes out of range."""
    if fits(findings.pieces):
        return
    # Imported here, as the import takes as long as the whole check, and only a manifest with faults needs it.
    from jsonschema import Draft202012Validator

    faults: list[Any] = list(Draft202012Validator(shape).iter_errors(findings.data))
    # Unknown fields come first: a required field that one of them probably means is then not missing. Types
    # come next: a value of the wrong type is not reported for its range, too.
    order = ("additionalProperties", "type")
    faults.sort(key=lambda fault: order.index(fault.validator) if fault.validator in order else len(order))
    for fault in faults:
        path = tuple(fault.absolute_path)
        if fault.validator in REPORTS:
            REPORTS[fault.validator](findings, path, fault.instance, fault.schema)


def _unknown_fields(findings: Findings, path: Path, value: Json, schema: Schema) -> None:
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
    present = value if isinstance(value, dict) else {}
    for name in map(str, items_at(schema, "required")):
        if name not in present:
            report_missing(findings, path, name, schema)


def report_missing(findings: Findings, path: Path, name: str, schema: Schema) -> None:
    """Report that a mapping lacks a field, once, and not if an unknown field probably means it."""
    if findings.is_meant((*path, name)):
        return
    findings.mean((*path, name))  # jsonschema reports the mapping once for each field
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
    # A version that is like another one is no typo of it.
    similar = did_you_mean(str(value), [str(wanted)]) if path == ("kind",) else None
    advice = similar or f'write "{wanted}"'
    findings.add(codes.WRONG_VERSION_OR_KIND, Location(path), message, suggestion=advice)


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
