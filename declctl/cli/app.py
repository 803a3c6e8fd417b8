"""The commands and what is common to all of them."""

import os
from typing import Annotated

import typer

from declctl.cli import later
from declctl.cli.bench import bench
from declctl.cli.describe import explain, schema
from declctl.cli.plan import plan
from declctl.cli.plugins import plugins
from declctl.cli.remote import history, reload, rollback, status
from declctl.cli.run import run
from declctl.cli.sandbox import sandbox
from declctl.cli.validate import validate
from declctl.cli.version import version

app = typer.Typer(
    name="declctl",
    help="Kubernetes controllers that are declared, not programmed.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # plain help: rich would cost each command a third of its time
    pretty_exceptions_enable=False,  # errors become sentences in main
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _command in (run, validate, plan, status, reload, rollback, history, sandbox, explain, schema, version):
    app.command()(_command)
app.add_typer(plugins, name="plugins")
app.add_typer(bench, name="bench")
later.add_to(app, plugins)


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def declctl(
    *,
    no_plugins: Annotated[
        bool, typer.Option("--no-plugins", help="Load no installed plugin (as DECLCTL_LOAD_PLUGINS='').")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Say the version and end.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Kubernetes controllers that are declared, not programmed."""
    if no_plugins:
        # An environment variable, because the child process of the pre-flight has to know it too.
        os.environ["DECLCTL_LOAD_PLUGINS"] = ""
