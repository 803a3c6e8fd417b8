"""Installed plugins: found by the entry-point group `declctl`, and loaded one by one.

A plugin that can't be loaded is one fault with its reason, and does not affect the others. Listing plugins
imports none of them.
"""

import ast
import importlib
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from declctl import codes
from declctl.errors import EntryPointError
from declctl.hooks import PROJECT, faults
from declctl.hooks.calls import describe_with_place, end_of_traceback
from declctl.hooks.syntax import parsed

HOOKSPEC_VERSION: Final = "1.1"
"""The version of the hook specification. A new hook or argument raises its second number, a change that
breaks plugins its first. A plugin declares the range that it supports as `declctl_hookspec_version`."""

RANGE_ATTRIBUTE: Final = "declctl_hookspec_version"
"""The attribute of a plugin's module or class with a range of versions, such as `">=1.0,<2"`."""
LOAD_PLUGINS: Final = "DECLCTL_LOAD_PLUGINS"
"""The environment variable with the names of the plugins that may be loaded, separated by commas.

Without it, each plugin may be loaded that a manifest lists; if it is empty, none is. It is a variable, and
`--no-plugins` sets it, because the children that import plugins have to know it too.
"""
# modules of plugins, with their versions at the time of loading
_loaded: dict[str, tuple[ModuleType, str]] = {}


class InstalledPlugin(msgspec.Struct, frozen=True):
    """A plugin that an installed distribution declares; it is not imported."""

    name: str
    distribution: str
    version: str
    value: str
    entry: metadata.EntryPoint

    @property
    def described(self) -> str:
        """The plugin with the distribution that has it, for messages."""
        return f"the plugin {self.name} ({self.distribution} {self.version})"


def installed(environ: Mapping[str, str] | None = None) -> tuple[InstalledPlugin, ...]:
    """All installed plugins that may be loaded (`DECLCTL_LOAD_PLUGINS`), by name."""
    names = _loadable(os.environ if environ is None else environ)
    return tuple(plugin for plugin in _announced() if names is None or plugin.name in names)


def _loadable(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names of the plugins that may be loaded; None if all may."""
    allowed = environ.get(LOAD_PLUGINS)
    return None if allowed is None else tuple(filter(None, (name.strip() for name in allowed.split(","))))


def mentions(plugin: InstalledPlugin, hook: str) -> bool:
    """Whether the source of a plugin has the name of a hook, or can't be read. Imports nothing.

    A plugin that inherits the hook from a class of another module does not mention it.
    """
    source = _source_of(plugin.entry.module)
    return source is None or hook.encode() in source


def find(name: str, version: str | None) -> InstalledPlugin:
    """The installed plugin of a name.

    Raises EntryPointError if none has the name and the version range, and if the plugin may not be loaded.
    """
    names = _loadable(os.environ)
    if names is not None and name not in names:
        raise _left_out(name, names)
    found = [plugin for plugin in installed() if plugin.name == name]
    if not found:
        raise _not_installed(name)
    plugin = found[0]
    if len(found) > 1:
        owners = " and ".join(f"{plugin.distribution} {plugin.version}" for plugin in found)
        raise EntryPointError(
            f"{owners} both have a plugin named {name}",
            code=codes.PLUGIN_LOAD_FAILED,
            suggestion="uninstall one of them",
        )
    if version is not None and not _is_in(plugin.version, version):
        raise EntryPointError(
            f"{name} is installed in version {plugin.version}, which is not in {version}",
            code=codes.PLUGIN_VERSION,
            suggestion=f"pip install '{plugin.distribution}{version}'",
        )
    return plugin


def load(plugin: InstalledPlugin) -> object:
    """Import a plugin: a module, or a class that is instantiated.

    A plugin for another version of the hook specification is not imported if its source shows that. Raises
    EntryPointError with the reason.
    """
    # A module that is loaded may be older than the source on disk: then its own attribute counts.
    if plugin.entry.module not in sys.modules:
        importlib.invalidate_caches()  # it may have been installed since the start of the process
        require_hookspec(plugin, written_range(plugin))
    try:
        loaded: Any = plugin.entry.load()
        _remember(plugin)
        loaded = loaded() if isinstance(loaded, type) else loaded
        wanted: Any = getattr(loaded, RANGE_ATTRIBUTE, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code
        raise EntryPointError(
            f"{plugin.described} can't be loaded: {describe_with_place(error)}",
            code=codes.PLUGIN_LOAD_FAILED,
            suggestion=f"pip install --force-reinstall {plugin.distribution}, or remove it from the manifest",
            traceback=end_of_traceback(error),
        ) from error
    require_hookspec(plugin, wanted)
    return loaded


def require_hookspec(plugin: InstalledPlugin, wanted: object) -> None:
    """Raise EntryPointError if the range that a plugin declares does not have this hook specification.

    None stands for a plugin that declares none: it supports every version.
    """
    if wanted is None or (_is_range(str(wanted)) and _is_in(HOOKSPEC_VERSION, str(wanted))):
        return
    if not _is_range(str(wanted)):
        message = f"{plugin.described} declares {RANGE_ATTRIBUTE} = {wanted!r}, which is no range of versions"
        advice = 'this is a fault of the plugin, which should declare a range such as ">=1.0,<2"'
    else:
        message = (
            f"{plugin.described} supports the hook specification {wanted}, and this declctl "
            f"{metadata.version(PROJECT)} has {HOOKSPEC_VERSION}"
        )
        newer, older = f"pip install --upgrade {plugin.distribution}", f"an older {plugin.distribution}"
        if _needs_newer(str(wanted)):
            advice = f"upgrade declctl (pip install --upgrade declctl), or install {older}"
        else:
            advice = f"install a version of the plugin for {HOOKSPEC_VERSION}: {newer}"
    raise EntryPointError(message, code=codes.PLUGIN_HOOKSPEC_VERSION, suggestion=advice)


def written_range(plugin: InstalledPlugin) -> str | None:
    """The range that the source of a plugin assigns to `declctl_hookspec_version`; None if it shows none.

    Nothing is imported: an import of a plugin for another version may fail, or do harm. Only a text that is
    assigned in the module, or in the class that is the plugin, is found.
    """
    source = _source_of(plugin.entry.module)
    if source is None or RANGE_ATTRIBUTE.encode() not in source:
        return None
    body = parsed(source).body
    if plugin.entry.attr:
        classes = (node for node in body if isinstance(node, ast.ClassDef) and node.name == plugin.entry.attr)
        body = next((node.body for node in classes), [])
    for node in body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        named = any(isinstance(target, ast.Name) and target.id == RANGE_ATTRIBUTE for target in targets)
        value = getattr(node, "value", None)
        if named and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def _source_of(module: str) -> bytes | None:
    """The source of a module that is not imported for that; None if no plain file has it."""
    path: list[str] | None = None
    spec = None
    for name in accumulate(module.split("."), "{}.{}".format):  # a, a.b and a.b.c
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    try:
        return Path(spec.origin).read_bytes()
    except OSError:
        return None


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
            code=codes.PLUGIN_NEEDS_RESTART,
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


def _left_out(name: str, names: tuple[str, ...]) -> EntryPointError:
    """The fault of a plugin that the environment keeps from being loaded, whether it is installed or not."""
    if names:
        why, advice = f"{LOAD_PLUGINS} has only {', '.join(names)}", f"add it to {LOAD_PLUGINS}"
    else:
        why, advice = f"no plugin may be loaded (--no-plugins, or an empty {LOAD_PLUGINS})", "remove that"
    near = faults.closest(name, names)
    if near is not None:
        advice = f"write {name} instead of {near} in {LOAD_PLUGINS}"
    return EntryPointError(
        f"the plugin {name} is left out: {why}",
        code=codes.PLUGIN_LEFT_OUT,
        suggestion=f"to load it, {advice}, and start the process again",
    )


def _not_installed(name: str) -> EntryPointError:
    known = [plugin.name for plugin in installed()]
    near = faults.closest(name, known)
    return EntryPointError(
        f"no plugin named {name!r} is installed",
        code=codes.PLUGIN_NOT_INSTALLED,
        suggestion=f'did you mean "{near}"?'
        if near
        else f"install it with pip; installed are: {', '.join(known) or 'none'}",
    )


def _is_range(text: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return bool(list(SpecifierSet(text)))
    except InvalidSpecifier:
        return False


def _needs_newer(wanted: str) -> bool:
    """Whether a range lies above this hook specification."""
    from packaging.specifiers import SpecifierSet

    # What asks for more than this version has a bound that this version does not reach.
    lower = [spec for spec in SpecifierSet(wanted) if spec.operator in (">", ">=", "~=", "==")]
    bounds = [f"<{'=' * (spec.operator == '>')}{spec.version.removesuffix('.*')}" for spec in lower]
    return any(_is_in(HOOKSPEC_VERSION, bound) for bound in bounds)


def _is_in(version: str, allowed: str) -> bool:
    """Whether a version is in a range; False for an invalid version."""
    # Late: 10 ms, only for plugins with a range.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(allowed).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False
