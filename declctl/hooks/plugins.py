"""Installed plugins: found by the entry-point group `declctl`, and loaded one by one.

A plugin that can't be loaded is one fault with its reason, and does not affect the others. Listing plugins
imports none of them.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

import msgspec

from declctl.errors import EntryPointError
from declctl.hooks import PROJECT, faults
from declctl.hooks.calls import describe_with_place

HOOKSPEC_VERSION = "1.0"
"""The version of the plugin contract; a plugin may ask for a range with `declctl_hookspec_version`."""
_RESCUE = "DECLCTL_LOAD_PLUGINS"
# modules of plugins, with their versions at the time of loading
_loaded: dict[str, tuple[ModuleType, str]] = {}


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
