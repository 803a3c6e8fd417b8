"""Installed plugins that are not what they were: upgraded, mended or broken beneath a running process."""

from collections.abc import Iterable, Iterator

from declctl.errors import EntryPointError
from declctl.hooks.plugins import find
from declctl.runtime.checking.loaded_code import READY, LoadedPlugin
from declctl.runtime.reloading.changes import Kind, Step


def outdated(plugins: Iterable[LoadedPlugin]) -> tuple[Step, ...]:
    """A step `RestartRequired` for each plugin of which another version is installed than is loaded.

    Looks at the disk.
    """
    return tuple(step for plugin in plugins if plugin.state == READY for step in _outdated(plugin))


def changed_states(before: Iterable[LoadedPlugin], after: Iterable[LoadedPlugin]) -> Iterator[Step]:
    """A step `Swap` for each plugin that can be loaded now and could not be before, or the reverse."""
    was = {plugin.name: plugin.state for plugin in before}
    for plugin in after:
        if plugin.name in was and was[plugin.name] != plugin.state:
            detail = "can be loaded now" if plugin.state == READY else f"disabled: {plugin.reason}"
            yield Step(Kind.SWAP, f"plugin {plugin.name}", detail)


def _outdated(plugin: LoadedPlugin) -> Iterable[Step]:
    try:
        installed = find(plugin.name, None).version
    except EntryPointError:
        yield Step(Kind.RESTART, f"plugin {plugin.name}", f"{plugin.version} is loaded, none is installed")
        return
    if installed != plugin.version:
        detail = f"{plugin.version} is loaded, {installed} is installed"
        yield Step(Kind.RESTART, f"plugin {plugin.name}", detail)
