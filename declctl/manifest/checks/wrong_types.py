"""A value of the wrong type: what was wanted, what YAML made of it, and how to write what was meant."""

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place, trap
from declctl.manifest.json_values import Json, Path, dotted, mapping_at
from declctl.manifest.shape import Schema, notes_of

_WANTED = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}

_SCALAR_ADVICE = {"integer": "write a number, without quotes and unit", "boolean": "write true or false"}


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
        findings.add(codes.WRONG_TYPE, Place(path), message, suggestion=suggestion)


def _types(schema: Schema) -> list[str]:
    types = schema.get("type")
    if isinstance(types, list):
        return [name for name in types if isinstance(name, str)]
    return [types] if isinstance(types, str) else []


def _report_empty(findings: Findings, path: Path, types: list[str]) -> None:
    wanted = " or ".join(_WANTED[name] for name in types)
    message = f"{dotted(path)} is empty, and must be {wanted}"
    place = Place(path, key=path in findings.document.keys)
    findings.add(codes.WRONG_TYPE, place, message, suggestion="give it a value, or remove it")


def _report_trap(findings: Findings, path: Path, written: str, *, kind: Json) -> None:
    suggestion = f'put it in quotes: "{written}"'
    if kind == "duration":
        suggestion = 'write a duration with its unit, such as "10m" or "1h30m"'
    message = f"{dotted(path)} must be text, and YAML reads {written} as {trap(written)}"
    findings.add(codes.TRAP_VALUE, Place(path), message, suggestion=suggestion)


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
    findings.add(code, Place(path), message, suggestion=suggestion)


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
