"""The rules of a custom kind's schema (x-kubernetes-validations), which are expressions in CEL.

They are checked if cel-expr-python is installed (declctl's extra `cel`), and otherwise not. A definition is
refused if a rule reads what its schema has not. cel-expr has no functions of Kubernetes' own, such as isURL
or quantity: a rule that does not compile for such a reason is not checked. Nor is the cost of a rule
estimated.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from declctl.objects import KubeObject
from declctl.objects.differences import same_json
from declctl.objects.rule_checks import RuleFault, cel_name, schema_faults
from declctl.objects.schema_marks import VALIDATIONS
from declctl.sandbox import fields
from declctl.sandbox.status import StatusCause
from declctl.sandbox.structure import MISSING, Shape, shape_of_schema

if TYPE_CHECKING:
    from cel_expr_python import cel

_NO_KEY = re.compile(r'^NOT_FOUND: Key not found in map : "(.*)"$')
# The fields of a rule, as a server shows one that it does not compile.
_RULE = {
    "Rule": "",
    "Message": "",
    "MessageExpression": "",
    "Reason": None,
    "FieldPath": "",
    "OptionalOldSelf": None,
}
_REASONS = {"FieldValueForbidden": "Forbidden", "FieldValueRequired": "Required value"}


def uncompiled(versions: Iterable[KubeObject]) -> Iterator[StatusCause]:
    """The rules of a definition that can't be compiled against its schemas."""
    schemas = [(version.get("schema") or {}).get("openAPIV3Schema") or {} for version in versions]
    # A server keeps a schema that all versions have in common above them.
    if all(each == schemas[0] for each in schemas):
        places = {"spec.validation.openAPIV3Schema": schemas[0]} if schemas else {}
    else:
        places = {f"spec.versions[{at}].schema.openAPIV3Schema": each for at, each in enumerate(schemas)}
    for place, schema in places.items():
        for steps, faults in groupby(schema_faults(schema, is_root=True), key=lambda each: each.steps):
            yield _uncompiled(f"{place}{_path(steps)}", schema, list(faults))


def _uncompiled(path: str, schema: Any, faults: Sequence[RuleFault]) -> StatusCause:
    """The cause of a refusal by the faults of one text."""
    first = faults[0]
    if first.steps[-1] == VALIDATIONS:
        return StatusCause("InternalError", f"Internal error: internal error: {first.message}", path)
    if first.steps[-1] == "message":
        return StatusCause.required(path, first.message)
    if first.steps[-1] == "fieldPath":
        return StatusCause.invalid(path, first.text, first.message)
    for step in first.steps[:-1]:
        schema = schema[step]
    rule = {name: schema.get(name[0].lower() + name[1:], empty) for name, empty in _RULE.items()}
    shown = json.dumps(rule, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&":  # as Go writes JSON
        shown = shown.replace(character, f"\\u{ord(character):04x}")
    why = "\n".join(map(_as_compiler, faults))
    if first.offset is not None:
        what = "" if first.steps[-1] == "rule" else f"{first.steps[-1]} "
        why = f"{what}compilation failed: {why}"
    return StatusCause("FieldValueInvalid", f"Invalid value: {shown}: {why}", path)


def _as_compiler(fault: RuleFault) -> str:
    """A fault with its line of the text, as cel-go shows it."""
    if fault.offset is None:
        return fault.message
    before = fault.text[: fault.offset]
    line, column = before.count("\n"), len(before) - before.rfind("\n")
    source = fault.text.split("\n")[line].replace("\t", " ")
    # A character of several bytes counts as a wide one.
    dots = "".join("." if each.isascii() else "\uff0e" for each in source[: column - 1])
    return f"ERROR: <input>:{line + 1}:{column}: {fault.message}\n | {source}\n | {dots}^"


def _path(steps: Iterable[str | int]) -> str:
    """The place of a fault in a schema, as a server writes it."""
    parts, is_name = list[str](), False
    for step in steps:
        parts.append(f"[{step}]" if is_name or isinstance(step, int) else f".{step}")
        is_name = step == "properties" and not is_name
    return "".join(parts)


def broken(schema: Mapping[str, Any], new: Any, old: Any) -> Iterator[tuple[StatusCause, bool]]:
    """The rules that an object breaks; with each whether it is as it was in `old`, which may be MISSING."""
    yield from _broken(schema, new, old, ("", shape_of_schema(schema)))


def _broken(schema: Any, new: Any, old: Any, at: tuple[str, Shape]) -> Iterator[tuple[StatusCause, bool]]:
    path, shape = at
    if new is None or not isinstance(schema, dict):
        return
    inner = cast("KubeObject", schema)
    for rule in inner.get("x-kubernetes-validations") or ():
        cause = _judged(rule, inner, (new, None if old is MISSING else old), path)
        if cause is not None:
            yield cause, old is not MISSING and "oldSelf" not in rule["rule"] and same_json(old, new)
    if isinstance(new, dict):
        before = cast("KubeObject", old) if isinstance(old, dict) else {}
        for name, child in cast("KubeObject", new).items():
            known = (inner.get("properties") or {}).get(name)
            where = f"{path}.{name}".lstrip(".") if known is not None else f"{path}[{name}]"
            below = inner.get("additionalProperties") if known is None else known
            yield from _broken(below, child, before.get(name, MISSING), (where, shape.field(name)))
    elif isinstance(new, list):
        # Elements are known again by their keys.
        before_by_keys = cast("list[Any]", old) if isinstance(old, list) and shape.keys else []
        known_as = {fields.step_of(each, shape): each for each in before_by_keys}
        for index, element in enumerate(cast("list[Any]", new)):
            was = known_as.get(fields.step_of(element, shape), MISSING) if known_as else MISSING
            yield from _broken(inner.get("items"), element, was, (f"{path}[{index}]", shape.element()))


def _judged(rule: KubeObject, schema: KubeObject, values: tuple[Any, Any], path: str) -> StatusCause | None:
    new, old = values
    program = _program(rule["rule"])
    if program is None or rule.get("optionalOldSelf") or ("oldSelf" in rule["rule"] and old is None):
        return None
    told = str(rule.get("message") or rule["rule"]).strip()
    where = path or "<nil>"
    if _reads_float(rule["rule"], schema, new):
        result: Any = "invalid data, expected int, got float64"
    else:
        result = program.eval(data=_variables(schema, values)).value()
    if result is True:
        return None
    if result is not False:
        why = _NO_KEY.sub(r"no such key: \1", str(result))
        message = f'Invalid value: "{schema.get("type", "")}": {why} evaluating rule: {told}'
        return StatusCause("FieldValueInvalid", message, where)
    if field := rule.get("fieldPath"):
        where = f"{path}{field}".lstrip(".")
    detail = _message(rule, schema, values) or (told if rule.get("message") else f"failed rule: {told}")
    reason = rule.get("reason") or "FieldValueInvalid"
    value = "Invalid value" if isinstance(new, (dict, list)) else f"Invalid value: {fields.told(new)}"
    return StatusCause(reason, f"{_REASONS.get(reason, value)}: {detail}", where)


def _reads_float(rule: str, schema: KubeObject, value: Any) -> bool:
    """Whether a rule reads an integer that is written as 1.0, at the value itself or at a field of it."""
    if schema.get("type") == "integer":
        return isinstance(value, float)
    properties: KubeObject = schema.get("properties") or {}
    floats = (
        [name for name, each in value.items() if isinstance(each, float)] if isinstance(value, dict) else []
    )
    return any(
        (properties.get(name) or {}).get("type") == "integer"
        and re.search(rf"\bself\.({re.escape(cel_name(name))}|{re.escape(name)})(?!\w)", rule)
        for name in floats
    )


def _variables(schema: KubeObject, values: tuple[Any, Any]) -> KubeObject:
    return {name: _spelled(schema, each) for name, each in zip(("self", "oldSelf"), values, strict=True)}


def _spelled(schema: Any, value: Any) -> Any:
    """A value with its fields as rules name them, too."""
    inner = cast("KubeObject", schema) if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [_spelled(inner.get("items"), each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields, rest = inner.get("properties") or {}, inner.get("additionalProperties")
    found = {name: _spelled(fields.get(name, rest), each) for name, each in cast("KubeObject", value).items()}
    return found | {cel_name(name): each for name, each in found.items() if name in fields}


def _message(rule: KubeObject, schema: KubeObject, values: tuple[Any, Any]) -> str:
    program = _program(rule.get("messageExpression") or "")
    if program is None:
        return ""
    found = program.eval(data=_variables(schema, values)).value()
    return found.strip() if isinstance(found, str) and "\n" not in found else ""


def _program(text: str) -> "cel.Expression | None":
    """A compiled expression; None without cel-expr, and for what it can't compile."""
    try:
        return _compiled(text) if text else None
    except ImportError:
        return None


@lru_cache(256)
def _compiled(text: str) -> "cel.Expression | None":
    environment = _environment()
    try:
        return environment.compile(text)
    except Exception:  # noqa: BLE001 - RuntimeError, and whatever else C++ raises
        return None


@lru_cache(1)
def _environment() -> "cel.Env":
    from cel_expr_python import cel  # late: few definitions have rules

    return cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
