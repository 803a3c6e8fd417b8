"""The commands and what is common to all of them."""

import os
from collections.abc import Sequence
from typing import Annotated, Protocol, runtime_checkable

import typer

from declctl.cli import options
from declctl.cli.bench import bench
from declctl.cli.describe import explain, plugins, schema
from declctl.cli.plan import plan
from declctl.cli.remote import history, reload, rollback, status
from declctl.cli.run import run
from declctl.cli.sandbox import sandbox
from declctl.cli.terminal import block, line
from declctl.cli.validate import validate
from declctl.cli.version import version
from declctl.errors import UsageError

_COMPLETION = "_DECLCTL_COMPLETE"  # the variable by which a shell asks typer for completions

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
options.add_to(app, plugins)


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


def invoke(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name, and return its exit status.

    What is wrong with the arguments is printed here: typer would print the command line as it was given,
    escape sequences and line ends included. Raises what the command raises, and SystemExit.
    """
    if not os.environ.get(_COMPLETION, "").isprintable():
        raise UsageError(f"{_COMPLETION} asks for no completion: unset it, or install completion again.")
    try:
        status = app(args=list(arguments), prog_name="declctl", standalone_mode=False)
    except typer.Abort:
        line("Aborted!", err=True)
        return 1
    except Exception as error:
        if not isinstance(error, _WrongUsage):
            raise
        _show(error)
        return error.exit_code
    return status if isinstance(status, int) else 0


class _Context(Protocol):
    """What is used of the context of a command."""

    @property
    def command_path(self) -> str: ...

    def get_usage(self) -> str: ...

    def get_help(self) -> str: ...


@runtime_checkable
class _WrongUsage(Protocol):
    """What is used of typer's errors about a command line. Their classes are elsewhere in each version."""

    exit_code: int

    def format_message(self) -> str: ...


def _show(error: _WrongUsage) -> None:
    """Usage, a hint and the message, as typer prints them, with the foreign text on one line."""
    context: _Context | None = getattr(error, "ctx", None)
    message = error.format_message()
    if context is not None:
        if message == context.get_help():  # the answer to a command line without arguments
            block(f"{message}\n", err=True)
            return
        block(f"{context.get_usage()}\nTry '{context.command_path} -h' for help.\n\n", err=True)
    line(f"Error: {message}", err=True)
