"""`declctl plugins`: what is installed in the entry-point group `declctl`."""

import typer

from declctl.cli.options import Output, OutputOption
from declctl.errors import UsageError

plugins = typer.Typer(help="Installed plugins.", no_args_is_help=True, rich_markup_mode=None)


@plugins.callback()
def _group() -> None:
    """Installed plugins."""


@plugins.command("list")
def list_plugins(*, output: OutputOption = Output.TEXT) -> None:
    """List installed plugins, their hooks, and what is wrong with those that can't be used.

    Each is imported in a child process. A plugin that hangs, or ends the process, is a line of the list.
    """
    # Late: `declctl version` shall not load it. Nothing of a plugin is imported into this process.
    from contextlib import closing

    from declctl.runtime.checking.preflight import list_plugins as examined
    from declctl.runtime.checking.preflight_pool import PreflightPool

    with closing(PreflightPool()) as children:
        try:
            listed = examined(children.begin)
        except OSError as error:
            raise UsageError(
                f"Plugins are imported in a child process, and none can be started: {error}."
            ) from error
    if output is Output.JSON:
        import msgspec

        from declctl.cli.terminal import print_json

        print_json(msgspec.to_builtins(listed))
    elif listed:
        from declctl.cli.terminal import print_table

        headers = ("PLUGIN", "DISTRIBUTION", "VERSION", "STATE", "HOOKS", "REASON")
        rows = [(p.name, p.distribution, p.version, p.state, " ".join(p.hooks), p.reason) for p in listed]
        print_table(headers, rows)
    else:
        from declctl.cli.terminal import line

        line("No plugin is installed, or none may be loaded (--no-plugins, DECLCTL_LOAD_PLUGINS).", err=True)
