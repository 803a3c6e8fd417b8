"""`declctl plugins`: what is installed in the entry-point group `declctl`."""

import typer

from declctl.cli.options import Output, OutputOption

plugins = typer.Typer(help="Installed plugins.", no_args_is_help=True, rich_markup_mode=None)


@plugins.callback()
def _group() -> None:
    """Installed plugins."""


@plugins.command("list")
def list_plugins(*, output: OutputOption = Output.TEXT) -> None:
    """List installed plugins: name, version, hooks, and what is wrong with those that can't be loaded."""
