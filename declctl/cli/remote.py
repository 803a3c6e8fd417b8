"""`declctl status`, `reload`, `rollback` and `history`: talk to a running process."""

import sys
from typing import Annotated, Any

import typer

from declctl.cli.options import AdminOption, Output, OutputOption
from declctl.errors import UsageError

_RELOAD_SECONDS = 300.0  # warming new resources may take reload.warmTimeout, and imports take their time


def status(*, output: OutputOption = Output.TEXT, admin: AdminOption = None) -> None:
    """Say how a running process is doing."""
    from declctl.cli.asking import admin_address, ask  # late: the manifest room is loaded to find the address

    document = ask(admin_address(admin), "GET", "/status").document
    if output is Output.JSON:
        _print_json(document)
        return
    from datetime import UTC, datetime

    from declctl.cli.report import print_status

    print_status(document, now=datetime.now(UTC))


def reload(
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the outcome, or only ask for the reload.")
    ] = True,
    output: OutputOption = Output.TEXT,
    admin: AdminOption = None,
) -> None:
    """Make a running process read its files again; exits 1 if it refuses them."""
    from declctl.cli.asking import admin_address, ask

    query = "true" if wait else "false"
    answer = ask(admin_address(admin), "POST", f"/-/reload?wait={query}", timeout=_RELOAD_SECONDS)
    _end(answer.document, output)


def rollback(
    generation: Annotated[
        int | None, typer.Argument(metavar="[N]", help="Its number; by default the one before.", min=1)
    ] = None,
    *,
    output: OutputOption = Output.TEXT,
    admin: AdminOption = None,
) -> None:
    """Let an earlier generation run again; exits 1 if it is not in memory any more.

    One is kept for spec.reload.probationPeriod. The files are not tried again until they change.
    """
    from declctl.cli.asking import admin_address, ask

    query = "" if generation is None else f"?generation={generation}"
    answer = ask(admin_address(admin), "POST", f"/-/rollback{query}", timeout=_RELOAD_SECONDS)
    _end(answer.document, output)


def history(*, output: OutputOption = Output.TEXT, admin: AdminOption = None) -> None:
    """List what became of each attempt to reload a running process, the oldest first."""
    from declctl.cli.asking import admin_address, ask

    document = ask(admin_address(admin), "GET", "/history").document
    if output is Output.JSON:
        _print_json(document)
        return
    from declctl.cli.report import print_history

    print_history(document)


def _end(document: dict[str, Any], output: Output) -> None:
    """Print an outcome; 1 if it was refused."""
    if "error" in document:
        raise UsageError(str(document["error"]))
    if output is Output.JSON:
        _print_json(document)
    else:
        _print_outcome(document)
    if document.get("result") == "Refused":
        raise typer.Exit(1)


def _print_outcome(document: dict[str, Any]) -> None:
    if "result" not in document:
        typer.echo(str(document["message"]))
        return
    from declctl.cli.faults import show_faults
    from declctl.manifest import Diagnostic

    refused = document["result"] == "Refused"
    typer.echo(document["line"], err=refused)
    show_faults([Diagnostic(**fault) for fault in document["diagnostics"]])


def _print_json(document: object) -> None:
    import json

    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    typer.echo()
