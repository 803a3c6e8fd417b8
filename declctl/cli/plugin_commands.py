"""The commands of installed plugins (`declctl_commands`), below the name of each: `declctl PLUGIN …`.

Plugins are imported as late as possible: one alone if the command line names it, and those with commands for
the help and for completion. A command of declctl imports none. A plugin that fails is a line on stderr.
"""

import os
import sys
import traceback
from contextlib import redirect_stdout
from textwrap import indent
from typing import TYPE_CHECKING, Any

import typer
import typer.main
from typer.core import TyperGroup

from declctl.cli.terminal import block, line
from declctl.errors import DeclctlError, EntryPointError, HandlerFailed

if TYPE_CHECKING:
    from declctl.hooks.plugins import InstalledPlugin

COMPLETION = "_DECLCTL_COMPLETE"
"""The environment variable by which a shell asks typer for completions."""
_HOOK = "declctl_commands"
_WIDEST_NAME = 30  # columns that `write_dl` gives to names


class CommandGroup(TyperGroup):
    """The commands of declctl, and behind them those of plugins, which can't take a name of declctl's."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._loaded: dict[str, Any] = {}  # by plugin; None for one without commands

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none. Imports the plugin of that name, if it is one."""
        return super().get_command(ctx, cmd_name) or self._of_plugin(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, first those of declctl. Imports the plugins that have commands."""
        return [*super().list_commands(ctx), *self._plugins(ctx)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands for the help: those of plugins in a section of their own."""
        own = {name: super(CommandGroup, self).get_command(ctx, name) for name in super().list_commands(ctx)}
        plugins = {name: self._of_plugin(name) for name in self._plugins(ctx)}
        # In one column, as one table. A longer name has its text on the next line.
        width = formatter.width - 6 - min(_WIDEST_NAME, max(map(len, (*own, *plugins))))
        for title, commands in (("Commands", own), ("Commands of plugins", plugins)):
            rows = [
                (name, command.get_short_help_str(width))
                for name, command in commands.items()
                if command is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _plugins(self, ctx: Any) -> list[str]:
        """The plugins with commands, by name."""
        from declctl.hooks.plugins import installed, mentions

        names = sorted({plugin.name for plugin in installed() if mentions(plugin, _HOOK)})
        taken = {name for name in names if super(CommandGroup, self).get_command(ctx, name) is not None}
        for name in sorted(taken - self._loaded.keys()):
            self._loaded[name] = None  # so that it is said once
            _warn(f"the commands of the plugin {name} are left out: declctl has a command of this name")
        return [name for name in names if name not in taken and self._of_plugin(name) is not None]

    def _of_plugin(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]


class _PluginGroup(TyperGroup):
    """The commands of one plugin, whose exceptions are faults of the plugin and not of declctl."""

    described = "a plugin"  # the plugin, for messages

    def invoke(self, ctx: Any) -> None:
        """Run a command. What it returns is no exit status, as in any typer application."""
        try:
            super().invoke(ctx)
        except (DeclctlError, typer.Abort, typer.Exit, BrokenPipeError):
            raise
        except Exception as error:
            if hasattr(error, "exit_code"):  # wrong usage, which typer reports
                raise
            block(indent("".join(traceback.format_exception(error)), "  "), err=True)
            line(err=True)
            line(
                f"declctl: a command of {self.described} has failed. Please report it to its authors.",
                err=True,
            )
            raise typer.Exit(1) from error


def _load(name: str) -> Any:
    """The commands of a plugin; None if it has none, is not installed, or fails, which is said on stderr."""
    from declctl.hooks.plugins import find, installed

    if not name.isprintable() or not any(plugin.name == name for plugin in installed({})):
        return None
    try:
        plugin = find(name, None)
        # What an import prints is no answer of the command.
        with redirect_stdout(sys.stderr):
            return _commands_of(plugin)
    except (EntryPointError, HandlerFailed) as error:
        _warn(f"the commands of the plugin {name} are left out: {error}")
        return None


def _commands_of(plugin: "InstalledPlugin") -> Any:
    """The commands of a plugin; None if it has none. Raises EntryPointError and HandlerFailed."""
    from declctl.codes import PLUGIN_LOAD_FAILED
    from declctl.hooks.bundle import Bundle
    from declctl.hooks.calls import call, describe_with_place
    from declctl.hooks.plugins import load
    from declctl.hooks.registry import PluginRegistry

    registry = PluginRegistry(Bundle("", {}))
    registry.add_plugin(plugin.name, load(plugin))
    found = registry.of(_HOOK, [plugin.name])
    if not found:
        return None
    group = type("PluginGroup", (_PluginGroup,), {"described": plugin.described})
    app = typer.Typer(
        name=plugin.name,
        cls=group,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # With a callback, one command alone stays a command: typer would put it in the place of the group. A
    # callback of the plugin replaces this one, and its help.
    app.callback(help=f"Commands of {plugin.described}.")(_nothing)
    for implementation in found:
        call(implementation, {"app": app})
    try:
        made = typer.main.get_group(app)
    except Exception as error:  # typer reads the functions of the plugin here
        raise EntryPointError(
            f"typer can't read them: {describe_with_place(error)}", code=PLUGIN_LOAD_FAILED
        ) from error
    if not made.commands:
        raise EntryPointError(f"{_HOOK} adds none", code=PLUGIN_LOAD_FAILED)
    return made


def _nothing() -> None:
    """The callback of a group whose plugin has none of its own."""


def _warn(message: str) -> None:
    # While a shell completes a word, a message would stand in the middle of the user's line.
    if not os.environ.get(COMPLETION):
        line(f"warning: {message}", err=True)
