"""`declctl plugins`: what is installed in the entry-point group `declctl`."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import typer

from declctl.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from declctl.hooks.plugins import InstalledPlugin

plugins = typer.Typer(help="Installed plugins.", no_args_is_help=True, rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class Listed:
    """One installed plugin. `state` is Ready, or Quarantined with the reason."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...]
    state: str
    reason: str | None


@plugins.callback()
def _group() -> None:
    """Installed plugins."""


@plugins.command("list")
def list_plugins(*, output: OutputOption = Output.TEXT) -> None:
    """List installed plugins, their hooks, and what is wrong with those that can't be used."""
    from declctl.hooks.plugins import (
        installed,  # late: nothing of a plugin is imported before the arguments are read
    )

    listed = [_examined(plugin) for plugin in installed()]
    if output is Output.JSON:
        import json

        typer.echo(json.dumps([asdict(plugin) for plugin in listed], indent=2, ensure_ascii=False))
    elif listed:
        from declctl.cli.terminal import print_table

        headers = ("PLUGIN", "DISTRIBUTION", "VERSION", "STATE", "HOOKS", "REASON")
        rows = [(p.name, p.distribution, p.version, p.state, " ".join(p.hooks), p.reason) for p in listed]
        print_table(headers, rows)
    else:
        typer.echo(
            "No plugin is installed, or none may be loaded (--no-plugins, DECLCTL_LOAD_PLUGINS).", err=True
        )


def _examined(plugin: "InstalledPlugin") -> Listed:
    """What a generation would say to it; one that is broken breaks nothing but its own line."""
    from declctl.errors import EntryPointError
    from declctl.hooks.bundle import Bundle
    from declctl.hooks.plugins import load
    from declctl.hooks.registry import GenerationPlugins
    from declctl.hooks.signatures import ARGUMENTS

    table = GenerationPlugins(Bundle("", {}))
    try:
        table.add_plugin(plugin.name, load(plugin))
    except EntryPointError as error:
        return Listed(plugin.name, plugin.distribution, plugin.version, (), "Quarantined", error.message)
    hooks = tuple(hook for hook in ARGUMENTS if table.of(hook, [plugin.name]))
    return Listed(plugin.name, plugin.distribution, plugin.version, hooks, "Ready", None)
