"""Installed plugins that were upgraded beneath a running process: it goes on with what it has loaded."""

from collections.abc import Iterable

from declctl.errors import EntryPointError
from declctl.hooks.plugins import find
from declctl.runtime.checking.foreign import ForeignPlugin
from declctl.runtime.reloading.changes import Kind, Step


def outdated(plugins: Iterable[ForeignPlugin]) -> tuple[Step, ...]:
    """A step `RestartRequired` for each plugin of which another version is installed than is loaded.

    Looks at the disk.
    """
    return tuple(step for plugin in plugins if plugin.state == "Ready" for step in _outdated(plugin))


def _outdated(plugin: ForeignPlugin) -> Iterable[Step]:
    try:
        installed = find(plugin.name, None).version
    except EntryPointError:
        yield Step(Kind.RESTART, f"plugin {plugin.name}", f"{plugin.version} is loaded, none is installed")
        return
    if installed != plugin.version:
        detail = f"{plugin.version} is loaded, {installed} is installed"
        yield Step(Kind.RESTART, f"plugin {plugin.name}", detail)
