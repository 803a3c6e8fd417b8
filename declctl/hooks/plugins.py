"""Installed plugins: found by the entry-point group `declctl`, loaded one by one.

A plugin that can't be loaded is told with its reason and takes nobody else down. Listing plugins
imports none of them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from declctl.errors import EntryPointError
from declctl.hooks import faults
from declctl.hooks.markers import PROJECT

HOOKSPEC_VERSION = "1.0"
"""The version of the plugin contract; a plugin may ask for a range with `declctl_hookspec_version`."""

_RESCUE = "DECLCTL_LOAD_PLUGINS"


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin that a distribution announces; nothing of it has been imported."""

    name: str
    distribution: str
    version: str
    value: str
    entry: metadata.EntryPoint


class PluginConfigError(Exception):
    """A plugin's config does not fit its schema. `path` leads into the config."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def installed(environ: Mapping[str, str] | None = None) -> tuple[InstalledPlugin, ...]:
    """Every installed plugin, by name.

    `DECLCTL_LOAD_PLUGINS` narrows them to a comma-separated list, empty for none: the way out when
    one breaks everything.
    """
    allowed = (os.environ if environ is None else environ).get(_RESCUE)
    names = None if allowed is None else {name.strip() for name in allowed.split(",")}
    found = [
        InstalledPlugin(
            entry.name,
            entry.dist.name if entry.dist is not None else "",
            entry.dist.version if entry.dist is not None else "0",
            entry.value,
            entry,
        )
        for entry in metadata.entry_points(group=PROJECT)
        if names is None or entry.name in names
    ]
    return tuple(sorted(found, key=lambda plugin: plugin.name))


def find(name: str, version: str | None) -> InstalledPlugin:
    """The installed plugin of that name, if its version is in the range; raises EntryPointError."""
    plugins = {plugin.name: plugin for plugin in installed()}
    plugin = plugins.get(name)
    if plugin is None:
        near = faults.closest(name, plugins)
        known = ", ".join(plugins) or "none"
        raise EntryPointError(
            f"no plugin named {name!r} is installed",
            code=faults.PLUGIN_NOT_INSTALLED,
            suggestion=f'did you mean "{near}"?' if near else f"install it with pip; installed are: {known}",
        )
    if version is not None and not SpecifierSet(version).contains(plugin.version, prereleases=True):
        raise EntryPointError(
            f"{name} is installed in version {plugin.version}, which is not in {version}",
            code=faults.PLUGIN_VERSION,
            suggestion=f"pip install '{plugin.distribution}{version}'",
        )
    return plugin


def load(plugin: InstalledPlugin) -> object:
    """Import a plugin.

    A module, or a class that is instantiated. Raises EntryPointError with the reason.
    """
    try:
        loaded: Any = plugin.entry.load()
        loaded = loaded() if isinstance(loaded, type) else loaded
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign code
        raise EntryPointError(
            f"the plugin {plugin.name} ({plugin.value}) can't be loaded: {type(error).__name__}: {error}",
            code=faults.PLUGIN_LOAD_FAILED,
            suggestion=f"pip install --force-reinstall {plugin.distribution}, or remove it from the manifest",
        ) from error
    _check_contract(plugin, loaded)
    return loaded


def check_config(schema: Mapping[str, Any], config: Any) -> None:
    """Raise PluginConfigError at the first place where a config doesn't fit the plugin's schema."""
    # 140 ms that only a plugin with a schema is worth.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for

    validator = validator_for(schema, default=Draft202012Validator)(schema)
    worst = best_match(validator.iter_errors(config))
    if worst is not None:
        raise PluginConfigError(tuple(worst.absolute_path), worst.message)


def _check_contract(plugin: InstalledPlugin, loaded: object) -> None:
    wanted = getattr(loaded, "declctl_hookspec_version", None)
    if not isinstance(wanted, str) or (isinstance(loaded, ModuleType) and callable(wanted)):
        return
    try:
        fits = SpecifierSet(wanted).contains(HOOKSPEC_VERSION)
    except InvalidSpecifier:
        fits = False
    if not fits:
        raise EntryPointError(
            f"{plugin.name} {plugin.version} is written for hooks {wanted}, and these are {HOOKSPEC_VERSION}",
            code=faults.PLUGIN_HOOKSPEC_VERSION,
            suggestion=f"look for another version of {plugin.distribution}",
        )
