"""What a plugin's config must look like: its own JSON Schema decides."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from declctl.errors import EntryPointError
from declctl.hooks import faults

_MOST_FAULTS = 50  # of one config
# These speak of names only. All others quote the value, and that may have come from a Secret.
_SAFE_MESSAGES = frozenset({"required", "dependentRequired", "additionalProperties", "unevaluatedProperties"})
_SENTENCES: Mapping[str, str] = {
    "type": "this is not of type {}",
    "enum": "this is none of {}",
    "const": "this is not {}",
    "pattern": "this doesn't match the pattern {}",
    "format": "this is not written as a {}",
    "minimum": "this is less than {}",
    "maximum": "this is more than {}",
}


class ConfigFault(NamedTuple):
    """One place where a config does not fit its schema.

    `path` leads there from the config; `at_key` says that the key is at fault, not its value.
    """

    path: tuple[str | int, ...]
    message: str
    suggestion: str | None = None
    at_key: bool = False


class PluginConfigError(Exception):
    """A plugin's config does not fit its schema; `faults` has every place, `_MOST_FAULTS` at most."""

    def __init__(self, found: Sequence[ConfigFault]) -> None:
        super().__init__("; ".join(fault.message for fault in found))
        self.faults = tuple(found)


def check_config(schema: Mapping[str, Any], config: Any) -> None:
    """Raise PluginConfigError with all places where a config doesn't fit the plugin's schema.

    The messages never show a value of the config. Raises EntryPointError for a schema that is
    itself wrong.
    """
    from jsonschema import exceptions, validators  # 140 ms that only a plugin with a schema is worth

    try:
        plain = dict(schema)
        kind = validators.validator_for(plain, default=validators.Draft202012Validator)
        kind.check_schema(plain)
        errors = itertools.islice(kind(plain).iter_errors(config), _MOST_FAULTS)
        # Of alternatives (anyOf, oneOf) the best match says more than that none fits.
        found = [fault for error in errors for fault in _faults(exceptions.best_match([error]))]
    except Exception as error:  # the schema is foreign: it may be of any shape, or refer to nothing
        reason = error.message if isinstance(error, exceptions.SchemaError) else faults.told(error)
        raise EntryPointError(
            f"what its declctl_config_schema returns is not a JSON Schema: {reason}",
            code=faults.PLUGIN_LOAD_FAILED,
            suggestion="this is a fault of the plugin: look for another version of it",
        ) from error
    if found:
        raise PluginConfigError(found[:_MOST_FAULTS])


def _faults(error: Any) -> Iterator[ConfigFault]:
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and error.validator_value is False:
        yield from _unknown_keys(error, path)
    else:
        yield ConfigFault(path, _sentence(error))


def _unknown_keys(error: Any, path: tuple[str | int, ...]) -> Iterator[ConfigFault]:
    """One fault for each key that the schema does not have, at that key."""
    known = [str(name) for name in error.schema.get("properties", {})]
    patterns = error.schema.get("patternProperties", {})
    for key in error.instance:
        if key not in known and not any(re.search(pattern, key) for pattern in patterns):
            near = faults.closest(key, known)
            listed = ", ".join(known) or "no keys"
            advice = f'did you mean "{near}"?' if near else f"the plugin's schema has {listed}"
            yield ConfigFault((*path, key), f"unknown key {key!r}", advice, at_key=True)


def _sentence(error: Any) -> str:
    keyword = str(error.validator)
    if keyword in _SAFE_MESSAGES:
        return str(error.message)
    wanted = json.dumps(error.validator_value, ensure_ascii=False, default=str)
    return _SENTENCES.get(keyword, f"this doesn't fit the plugin's schema, which has {keyword}: {{}}").format(
        wanted
    )
