"""Installed plugins: found by the entry-point group `declctl`, loaded one by one, and their configs checked.

A plugin that can't be loaded is one fault with its reason, and does not affect the others. Listing plugins
imports none of them. Each plugin's own JSON Schema describes its config.
"""

import importlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from declctl.errors import EntryPointError
from declctl.hooks import PROJECT, faults
from declctl.hooks.calls import describe, describe_with_place

_MOST_FAULTS = 50  # of one config
# Their messages have only names. All others quote the value, which may come from a Secret.
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
HOOKSPEC_VERSION = "1.0"
_RESCUE = "DECLCTL_LOAD_PLUGINS"
# modules of plugins, with their versions at the time of loading
_loaded: dict[str, tuple[ModuleType, str]] = {}


class ConfigFault(NamedTuple):
    """One place at which a config does not match its schema.

    `path` is the place within the config. `at_key`: the key is at fault, not its value.
    """

    path: tuple[str | int, ...]
    message: str
    suggestion: str | None = None
    at_key: bool = False


class PluginConfigError(Exception):
    """A plugin's config does not match its schema. `faults` has the places, `_MOST_FAULTS` at most."""

    def __init__(self, found: Sequence[ConfigFault]) -> None:
        super().__init__("; ".join(fault.message for fault in found))
        self.faults = tuple(found)


def check_config(schema: Mapping[str, Any], config: Any) -> None:
    """Raise PluginConfigError with all places at which a config does not match the plugin's schema.

    Messages never show values of the config. Raises EntryPointError for an invalid schema.
    """
    from jsonschema import exceptions, validators  # late: 140 ms, only for plugins with a schema

    try:
        plain = dict(schema)
        kind = validators.validator_for(plain, default=validators.Draft202012Validator)
        kind.check_schema(plain)
        errors = itertools.islice(kind(plain).iter_errors(config), _MOST_FAULTS)
        # For alternatives (anyOf, oneOf) the best match is a better message than that none matches.
        found = [fault for error in errors for fault in _faults(exceptions.best_match([error]))]
    except Exception as error:  # the schema comes from the plugin: it may have any shape, or refer to nothing
        reason = error.message if isinstance(error, exceptions.SchemaError) else describe(error)
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
    """One fault at each key that the schema does not have."""
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


"""The version of the plugin contract; a plugin may ask for a range with `declctl_hookspec_version`."""


class InstalledPlugin(msgspec.Struct, frozen=True):
    """A plugin that an installed distribution declares; it is not imported."""

    name: str
    distribution: str
    version: str
    value: str
    entry: metadata.EntryPoint


def installed(environ: Mapping[str, str] | None = None) -> tuple[InstalledPlugin, ...]:
    """All installed plugins, by name.

    `DECLCTL_LOAD_PLUGINS` limits them to a comma-separated list, empty for none: a remedy if one plugin
    breaks every command.
    """
    allowed = (os.environ if environ is None else environ).get(_RESCUE)
    names = None if allowed is None else {name.strip() for name in allowed.split(",")}
    return tuple(plugin for plugin in _announced() if names is None or plugin.name in names)


def find(name: str, version: str | None) -> InstalledPlugin:
    """The installed plugin of a name. Raises EntryPointError if none has the name and the version range."""
    found = [plugin for plugin in installed() if plugin.name == name]
    if not found:
        raise _not_installed(name)
    plugin = found[0]
    if len(found) > 1:
        owners = " and ".join(f"{plugin.distribution} {plugin.version}" for plugin in found)
        raise EntryPointError(
            f"{owners} both have a plugin named {name}",
            code=faults.PLUGIN_LOAD_FAILED,
            suggestion="uninstall one of them",
        )
    if version is not None and not _is_in(plugin.version, version):
        raise EntryPointError(
            f"{name} is installed in version {plugin.version}, which is not in {version}",
            code=faults.PLUGIN_VERSION,
            suggestion=f"pip install '{plugin.distribution}{version}'",
        )
    return plugin


def load(plugin: InstalledPlugin) -> object:
    """Import a plugin: a module, or a class that is instantiated.

    Raises EntryPointError with the reason.
    """
    try:
        if plugin.entry.module not in sys.modules:
            importlib.invalidate_caches()  # it may have been installed since the start of the process
        loaded: Any = plugin.entry.load()
        _remember(plugin)
        loaded = loaded() if isinstance(loaded, type) else loaded
        wanted: Any = getattr(loaded, "declctl_hookspec_version", None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code
        raise EntryPointError(
            f"the plugin {plugin.name} ({plugin.value}) can't be loaded: {describe_with_place(error)}",
            code=faults.PLUGIN_LOAD_FAILED,
            suggestion=f"pip install --force-reinstall {plugin.distribution}, or remove it from the manifest",
        ) from error
    if wanted is not None and not _is_in(HOOKSPEC_VERSION, str(wanted)):
        raise EntryPointError(
            f"{plugin.name} {plugin.version} is written for hooks {wanted}, and these are {HOOKSPEC_VERSION}",
            code=faults.PLUGIN_HOOKSPEC_VERSION,
            suggestion=f"look for another version of {plugin.distribution}",
        )
    return loaded


def loaded_version(plugin: InstalledPlugin) -> str:
    """The version of the code that this process has loaded; an upgrade on disk does not change it."""
    module, version = _loaded.get(plugin.entry.module, (None, plugin.version))
    return version if module is sys.modules.get(plugin.entry.module) else plugin.version


def require_loaded(plugin: InstalledPlugin, version: str | None) -> None:
    """Raise EntryPointError if the loaded code is older than the range `version`."""
    loaded = loaded_version(plugin)
    if version is not None and loaded != plugin.version and not _is_in(loaded, version):
        raise EntryPointError(
            f"{plugin.name} {plugin.version} is installed, but this process has loaded {loaded}, "
            f"which is not in {version}",
            code=faults.PLUGIN_NEEDS_RESTART,
            suggestion="restart the process: it goes on with the code that it has loaded",
        )


def _remember(plugin: InstalledPlugin) -> None:
    name = plugin.entry.module
    module, version = sys.modules.get(name), loaded_version(plugin)
    if module is not None:
        _loaded[name] = (module, version)


def _announced() -> list[InstalledPlugin]:
    found = [
        InstalledPlugin(
            entry.name,
            entry.dist.name if entry.dist is not None else "",
            entry.dist.version if entry.dist is not None else "0",
            entry.value,
            entry,
        )
        for entry in metadata.entry_points(group=PROJECT)
    ]
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution))


def _not_installed(name: str) -> EntryPointError:
    if any(plugin.name == name for plugin in _announced()):
        return EntryPointError(
            f"the plugin {name} is installed, and {_RESCUE} keeps it from being loaded",
            code=faults.PLUGIN_NOT_INSTALLED,
            suggestion=f"add it to {_RESCUE}, or unset that variable",
        )
    known = [plugin.name for plugin in installed()]
    near = faults.closest(name, known)
    return EntryPointError(
        f"no plugin named {name!r} is installed",
        code=faults.PLUGIN_NOT_INSTALLED,
        suggestion=f'did you mean "{near}"?'
        if near
        else f"install it with pip; installed are: {', '.join(known) or 'none'}",
    )


def _is_in(version: str, allowed: str) -> bool:
    """Whether a version is in a range; False for an invalid version."""
    # Late: 10 ms, only for plugins with a range.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(allowed).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False
