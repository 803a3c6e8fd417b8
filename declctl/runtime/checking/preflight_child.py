"""The work of a pre-flight child: import the declared code, and report its faults.

Before that, the lint rules read the sources for effects of an import that no reload undoes. A child of
`declctl plugins list` does the same with installed plugins. The fork server loads this module, and with it
everything that a child needs.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from declctl.errors import EntryPointError, HandlerFailed
from declctl.hooks.bundle import Bundle
from declctl.hooks.calls import call
from declctl.hooks.lint import ImportAudit, lint, ordinary_modules
from declctl.hooks.plugin_config import check_schema
from declctl.hooks.plugins import RANGE_ATTRIBUTE, InstalledPlugin, installed, load, written_range
from declctl.hooks.registry import ARGUMENTS, PluginRegistry
from declctl.runtime.checking.declaration import Declaration, Fault, ListedPlugin
from declctl.runtime.checking.loaded_code import load_code


def answer(talk: socket.socket) -> None:
    """Read a time limit (seconds) and a declaration, import its code, and write reports, a line each.

    Without a declaration it returns at once. After the time limit, the process is killed.
    """
    with talk.makefile("rb") as asked:
        limit, declared = asked.readline(), asked.read()
    if not declared:
        return
    # The alarm ends the child also if the controller is gone, which otherwise would end it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(limit))
    declaration = msgspec.json.decode(declared, type=Declaration)
    # From this report on, a failure of the child is a failure of the imported code.
    talk.sendall(msgspec.json.encode({"pid": os.getpid()}) + b"\n")

    if declaration.examined:
        _examine(declaration.examined, talk.sendall)
        return

    def at(index: int) -> None:
        talk.sendall(msgspec.json.encode({"at": index}) + b"\n")

    def at_plugin(index: int) -> None:
        talk.sendall(msgspec.json.encode({"plugin": index}) + b"\n")

    findings = lint(declaration.bundle, declaration.entry_points, declaration.reconcilers)
    # Modules that are loaded now belong to declctl; later ones come from the import.
    known = set(sys.modules)
    audit = ImportAudit(declaration.bundle)
    began = monotonic()
    loaded_code, faults = load_code(declaration, number=0, at=at, at_plugin=at_plugin)
    seconds = monotonic() - began
    findings += audit.end(findings)
    findings += ordinary_modules(declaration.bundle, known)
    warnings = [Fault.of_finding(finding) for finding in findings]
    hooks = loaded_code.from_hooks if loaded_code is not None else None
    report = {"faults": [*warnings, *faults], "hooks": hooks, "seconds": seconds}
    talk.sendall(msgspec.json.encode(report) + b"\n")


def _examine(names: Sequence[tuple[str, str]], send: Callable[[bytes], object]) -> None:
    """Import the plugins of these names and distributions, and send a line about each."""
    plugins = {(plugin.name, plugin.distribution): plugin for plugin in installed()}
    for each in names:
        plugin = plugins.get(each)
        listed = (
            _examined(plugin)
            if plugin is not None
            else ListedPlugin(*each, "", (), "Quarantined", "it is not installed for child processes")
        )
        send(msgspec.json.encode({"plugin": listed}) + b"\n")


def _examined(plugin: InstalledPlugin) -> ListedPlugin:
    """Load a plugin as a generation does; a failure is reported as Quarantined."""
    registry = PluginRegistry(Bundle("", {}))
    listed = ListedPlugin(
        plugin.name, plugin.distribution, plugin.version, (), "Ready", None, written_range(plugin)
    )
    try:
        loaded = load(plugin)
        registry.add_plugin(plugin.name, loaded)
    except EntryPointError as error:
        return replace(listed, state="Quarantined", reason=error.message, traceback=error.traceback)
    hooks = tuple(hook for hook in ARGUMENTS if registry.of(hook, [plugin.name]))
    wanted = getattr(loaded, RANGE_ATTRIBUTE, None)
    listed = replace(listed, hooks=hooks, hookspec=None if wanted is None else str(wanted))
    try:
        return replace(listed, config_schema=_config_schema(registry, plugin.name))
    except (EntryPointError, HandlerFailed) as error:
        return replace(listed, state="Quarantined", reason=str(error))


def _config_schema(registry: PluginRegistry, plugin: str) -> dict[str, Any] | None:
    """The schema of a plugin's config; None if it has none. Raises HandlerFailed and EntryPointError."""
    for implementation in registry.of("declctl_config_schema", [plugin]):
        found = call(implementation, {})
        check_schema(found)
        return dict(found)
    return None
