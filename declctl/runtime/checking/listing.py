"""Whether installed plugins can be used, found out in a child process: `declctl plugins list`.

A plugin that hangs, ends the process or crashes when it is imported is one line of the list, and takes
neither the others nor the command line down.
"""

from collections.abc import Callable, Sequence

import msgspec

from declctl.hooks.plugins import InstalledPlugin, installed
from declctl.runtime.checking.declared import Declaration, ListedPlugin
from declctl.runtime.checking.preflight import how_it_ended
from declctl.runtime.checking.preflight_process import Ending, PreflightProcess

_SECONDS = 10.0  # for all plugins, and a little for each besides
_SECONDS_EACH = 0.5


class _Report(msgspec.Struct):
    plugin: ListedPlugin | None = None


def list_plugins(
    begin: Callable[[], PreflightProcess], *, seconds: float = _SECONDS
) -> Sequence[ListedPlugin]:
    """Every installed plugin, examined in children that `begin` gives. Blocks.

    If a child does not come to its end, the plugin that it was importing is quarantined, and another child
    goes on with the plugins after it. A child has `seconds`, and half a second more for each plugin.
    Raises OSError if no process can be started.
    """
    waiting, found = list(installed()), list[ListedPlugin]()
    while waiting:
        limit = seconds + _SECONDS_EACH * len(waiting)
        names = tuple((plugin.name, plugin.distribution) for plugin in waiting)
        child = begin()
        asked = Declaration(root="", folder=b"", files={}, entries=(), plugins=(), examined=names)
        lines, ending = child.ask(msgspec.json.encode(asked), limit=limit)
        known = _told(lines)
        found += known
        if len(known) < len(waiting):
            found.append(_quarantined(waiting[len(known)], _why(ending, limit)))
        waiting = waiting[len(known) + 1 :]
    return found


def _quarantined(plugin: InstalledPlugin, reason: str) -> ListedPlugin:
    return ListedPlugin(plugin.name, plugin.distribution, plugin.version, (), "Quarantined", reason)


def _told(lines: Sequence[bytes]) -> list[ListedPlugin]:
    """What a child has said of plugins, in their order; a stack that a crash wrote is left out."""
    found: list[ListedPlugin] = []
    for line in lines:
        try:
            report = msgspec.json.decode(line, type=_Report)
        except msgspec.MsgspecError:
            continue
        if report.plugin is not None:
            found.append(report.plugin)
    return found


def _why(ending: Ending, limit: float) -> str:
    if ending.closed:
        return f"importing it took longer than {limit:g} s"
    return f"importing it ended the process ({how_it_ended(ending.status)})"
