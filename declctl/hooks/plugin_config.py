"""The check of a plugin's config by the JSON Schema that the plugin returns, and by its own hook.

All faults of a config are found at once, each with its path, a sentence and, if there is one, a suggestion.
No sentence shows a value of the config: it may come from a Secret.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from declctl import codes
from declctl.errors import EntryPointError
from declctl.hooks import faults
from declctl.hooks.calls import describe, describe_with_place

_MOST_FAULTS = 50  # of one config
_LONGEST_ADVICE = 300  # characters of a description that a suggestion shows
# Their messages have only names. All others quote the value, which may come from a Secret.
_SAFE_MESSAGES = frozenset({"required", "dependentRequired", "additionalProperties", "unevaluatedProperties"})
_ALTERNATIVES = frozenset({"anyOf", "oneOf"})
_SENTENCES: Mapping[str, str] = {
    "type": "this is not of type {}",
    "enum": "this is none of {}",
    "const": "this is not {}",
    "pattern": "this doesn't match the pattern {}",
    "format": "this is not written as a {}",
    "minimum": "this is less than {}",
    "maximum": "this is more than {}",
    "exclusiveMinimum": "this is not more than {}",
    "exclusiveMaximum": "this is not less than {}",
    "multipleOf": "this is no multiple of {}",
    "minLength": "this has fewer than {} characters",
    "maxLength": "this has more than {} characters",
    "minItems": "this has fewer than {} items",
    "maxItems": "this has more than {} items",
}
KNOWN_LATER: Final = "(known later)"
"""Stands in a checked config for a value that is read from a Secret when the plugin is loaded."""

UNQUOTE: Final = "remove the quotes"
"""The suggestion for a text in the place of a number or a boolean."""

_NUMBERS = frozenset({"integer", "number"})


class ConfigFault(NamedTuple):
    """One place at which a config does not match its schema.

    `path` is the place within the config. `at_key`: the key of this place is at fault, or the mapping there
    lacks one; else its value is at fault. `is_unknown`: the schema does not have the key.
    """

    path: tuple[str | int, ...]
    message: str
    suggestion: str | None = None
    at_key: bool = False
    is_unknown: bool = False
    severity: Literal["error", "warning"] = "error"

    @property
    def where(self) -> str:
        """The mapping or value that the message is about, such as `config.limits[1]`."""
        path = self.path[:-1] if self.is_unknown else self.path  # the message names the unknown key
        return "config" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


class PluginConfigError(Exception):
    """A plugin's config does not match its schema. `faults` has the places, `_MOST_FAULTS` at most."""

    def __init__(self, found: Sequence[ConfigFault]) -> None:
        super().__init__("; ".join(fault.message for fault in found))
        self.faults = tuple(found)


def check_config(
    schema: Mapping[str, Any], config: Mapping[str, Any], *, known_later: Collection[str] = ()
) -> None:
    """Raise PluginConfigError with all places at which a config does not match the plugin's schema.

    `known_later` are keys whose values are in a cluster. They count as present, and any value matches; a key
    that the schema does not have is a fault all the same. Raises EntryPointError for an invalid schema.
    """
    validator = _validator(schema)
    complete = with_known_later(config, known_later)
    try:
        errors = itertools.islice(validator.iter_errors(complete), _MOST_FAULTS)
        found = without_known_later((fault for error in errors for fault in _faults(error)), known_later)
    except Exception as error:  # a `$ref` or a pattern of the schema may be wrong
        raise _no_schema(describe(error)) from error
    if found:
        raise PluginConfigError(found[:_MOST_FAULTS])


def with_known_later(config: Mapping[str, Any], known_later: Collection[str]) -> Mapping[str, Any]:
    """The config with a text in the place of each value that is known later."""
    return {**config, **dict.fromkeys(known_later, KNOWN_LATER)} if known_later else config


def without_known_later(found: Iterable[ConfigFault], known_later: Collection[str]) -> list[ConfigFault]:
    """The faults, without those of values that are known later."""
    return [fault for fault in found if fault.is_unknown or not set(fault.path[:1]) & set(known_later)]


def faults_of_hook(returned: object) -> list[ConfigFault]:
    """The faults that a hook `declctl_check_config` has returned, `_MOST_FAULTS` at most.

    None counts as no fault. Raises EntryPointError for anything that is no list of faults.
    """
    try:
        # The hook is no generator, and may return one, whose code runs here.
        given = list(itertools.islice(cast("Iterable[object]", returned or ()), _MOST_FAULTS))
    except Exception as error:
        raise _no_faults(describe_with_place(error)) from error
    try:
        return [msgspec.convert(each, _HookFault).fault for each in given]
    except msgspec.ValidationError as error:
        raise _no_faults(str(error)) from error


def _no_faults(reason: str) -> EntryPointError:
    return EntryPointError(
        f"what its declctl_check_config returns is no list of faults: {reason}",
        code=codes.PLUGIN_LOAD_FAILED,
        suggestion='each fault is such as {"path": ["rules", 0, "title"], "message": "…"}',
    )


class _HookFault(msgspec.Struct, forbid_unknown_fields=True):
    """A fault as a hook writes it."""

    message: str
    path: list[str | int] = []
    suggestion: str | None = None
    severity: Literal["error", "warning"] = "error"

    @property
    def fault(self) -> ConfigFault:
        return ConfigFault(tuple(self.path), self.message, self.suggestion, severity=self.severity)


def check_schema(schema: Any) -> None:
    """Raise EntryPointError if a plugin's schema is not a valid JSON Schema."""
    _validator(schema)


def _validator(schema: Any) -> Any:
    from jsonschema import exceptions, validators  # late: 140 ms, only for plugins with a schema

    try:
        plain = dict(schema)
        kind = validators.validator_for(plain, default=validators.Draft202012Validator)
        kind.check_schema(plain)
        return kind(plain)
    except Exception as error:  # the schema comes from the plugin: it may have any shape
        raise _no_schema(
            error.message if isinstance(error, exceptions.SchemaError) else describe(error)
        ) from error


def _no_schema(reason: str) -> EntryPointError:
    return EntryPointError(
        f"what its declctl_config_schema returns is not a JSON Schema: {reason}",
        code=codes.PLUGIN_LOAD_FAILED,
        suggestion="this is a fault of the plugin: look for another version of it",
    )


def _faults(error: Any) -> Iterator[ConfigFault]:
    path = tuple(error.absolute_path)
    if error.validator in _ALTERNATIVES and error.context:
        # That none of the alternatives matches helps less than what is wrong with the nearest one.
        for inner in _nearest(error.context):
            yield from _faults(inner)
    elif error.validator == "additionalProperties" and error.validator_value is False:
        yield from _unknown_keys(error, path)
    elif error.validator == "required":
        yield _missing_key(error, path)
    else:
        yield ConfigFault(path, _sentence(error), _advice(error))


def _nearest(context: Sequence[Any]) -> Sequence[Any]:
    """The errors of the alternative that the config was probably meant for.

    Its type fits, and the constants that tell alternatives apart; then the one with the fewest errors.
    """
    alternatives: dict[int, list[Any]] = {}
    for error in context:
        alternatives.setdefault(error.relative_schema_path[0], []).append(error)

    def distance(errors: Sequence[Any]) -> tuple[bool, bool, int]:
        other_type = any(error.validator == "type" and not error.relative_path for error in errors)
        other_kind = any(error.validator == "const" and len(error.relative_path) == 1 for error in errors)
        return other_type, other_kind, len(errors)

    return min(alternatives.values(), key=distance)


def _unknown_keys(error: Any, path: tuple[str | int, ...]) -> Iterator[ConfigFault]:
    """One fault at each key that the schema does not have."""
    known = [str(name) for name in error.schema.get("properties", {})]
    patterns = error.schema.get("patternProperties", {})
    for key in error.instance:
        if key not in known and not any(re.search(pattern, key) for pattern in patterns):
            near = faults.closest(key, known)
            listed = ", ".join(known) or "no keys"
            advice = f'did you mean "{near}"?' if near else f"the plugin's schema has {listed}"
            yield ConfigFault((*path, key), f"unknown key {key!r}", advice, at_key=True, is_unknown=True)


def _missing_key(error: Any, path: tuple[str | int, ...]) -> ConfigFault:
    # jsonschema yields one error for each missing key, and names it only in the message.
    named = (key for key in error.validator_value if str(error.message).startswith(repr(key)))
    key = next(named, "")
    about = _about(error.schema.get("properties", {}).get(key))
    advice = f"add {key}: {about}" if about else None
    return ConfigFault(path, str(error.message), advice, at_key=True)


def _sentence(error: Any) -> str:
    keyword = str(error.validator)
    if keyword in _SAFE_MESSAGES:
        return str(error.message)
    wanted = json.dumps(error.validator_value, ensure_ascii=False, default=str)
    return _SENTENCES.get(keyword, f"this doesn't fit the plugin's schema, which has {keyword}: {{}}").format(
        wanted
    )


def _advice(error: Any) -> str | None:
    """What to write instead. It has words of the schema only."""
    value, wanted = error.instance, error.validator_value
    if error.validator == "enum" and isinstance(value, str):
        choices = {str(each).lower(): str(each) for each in wanted if isinstance(each, str)}
        near = faults.closest(value.lower(), choices)
        if near is not None:
            return f'did you mean "{choices[near]}"?'
    if error.validator == "type":
        types = cast("set[str]", {wanted} if isinstance(wanted, str) else set(wanted))
        if "string" in types and isinstance(value, bool | int | float):
            return "put the value in quotes"
        if types & _NUMBERS and isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value):
            return UNQUOTE
        if "boolean" in types and value in ("true", "false"):
            return UNQUOTE
        if types == {"array"} and isinstance(value, str | int | float):
            return "write a list, such as [a, b]"
    about = _about(error.schema)
    return f"the plugin says of it: {about}" if about else None


def _about(schema: object) -> str:
    """The description of a schema, on one line; empty if it has none."""
    if not isinstance(schema, Mapping):
        return ""
    text = " ".join(str(cast("Mapping[str, Any]", schema).get("description", "")).split())
    return f"{text[:_LONGEST_ADVICE]}…" if len(text) > _LONGEST_ADVICE else text
