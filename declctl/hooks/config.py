"""What a plugin's config must look like: its own JSON Schema decides."""

import json
from collections.abc import Mapping
from typing import Any

from declctl.errors import EntryPointError
from declctl.hooks import faults

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


class PluginConfigError(Exception):
    """A plugin's config does not fit its schema. `path` leads into the config."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def check_config(schema: Mapping[str, Any], config: Any) -> None:
    """Raise PluginConfigError at the place where a config doesn't fit the plugin's schema.

    The message never shows a value of the config. Raises EntryPointError for a schema that is
    itself wrong.
    """
    from jsonschema import exceptions, validators  # 140 ms that only a plugin with a schema is worth

    try:
        plain = dict(schema)
        kind = validators.validator_for(plain, default=validators.Draft202012Validator)
        kind.check_schema(plain)
        worst = exceptions.best_match(kind(plain).iter_errors(config))
    except Exception as error:  # the schema is foreign: it may be of any shape, or refer to nothing
        reason = error.message if isinstance(error, exceptions.SchemaError) else faults.told(error)
        raise EntryPointError(
            f"what its declctl_config_schema returns is not a JSON Schema: {reason}",
            code=faults.PLUGIN_LOAD_FAILED,
            suggestion="this is a fault of the plugin: look for another version of it",
        ) from error
    if worst is not None:
        raise PluginConfigError(tuple(worst.absolute_path), _sentence(worst))


def _sentence(error: Any) -> str:
    keyword = str(error.validator)
    if keyword in _SAFE_MESSAGES:
        return str(error.message)
    wanted = json.dumps(error.validator_value, ensure_ascii=False, default=str)
    return _SENTENCES.get(keyword, f"this doesn't fit the plugin's schema, which has {keyword}: {{}}").format(
        wanted
    )
