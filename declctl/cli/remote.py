"""`declctl status`, `reload`, `rollback` and `history`: talk to a running process."""

from typing import Annotated, Any

import typer

from declctl.cli.options import AdminOption, Output, OutputOption
from declctl.cli.terminal import line, print_json
from declctl.errors import UsageError

_RELOAD_SECONDS = 300.0  # warming new resources may take reload.warmTimeout, and imports take their time

_DONE = ("Applied", "Unchanged", "RolledBack")
_STOPPING, _OWN_FAULT = "Stopping", "InternalError"
_FAULT, _INTERNAL = 500, 3


def status(*, output: OutputOption = Output.TEXT, admin: AdminOption = None) -> None:
    """Say how a running process is doing."""
    # Late: the manifest room is loaded to find the address.
    from declctl.cli.admin_client import admin_address, another_answers, ask, told

    target = admin_address(admin)
    fields = ("name", "generation", "ready", "conditions", "resources", "handlers", "plugins")
    document = told(ask(target, "GET", "/status"), *fields)
    other = another_answers(target, document["name"])
    if other is not None:
        line(f"warning: {other}", err=True)
    if output is Output.JSON:
        print_json(document)
        return
    from datetime import UTC, datetime

    from declctl.cli.report import print_status

    print_status(document, now=datetime.now(UTC))
    _tell_redacted(document)


def reload(
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the outcome, or only ask for the reload.")
    ] = True,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Make all code anew although no file has changed that the bundle reads."
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
    admin: AdminOption = None,
) -> None:
    """Make a running process read its files again.

    It exits 0 if they are what runs then, 1 if they were refused, 2 if nobody answers, 3 for a fault in
    declctl. If they change meanwhile, the newer ones count. With --no-wait, 0 says no more than that the
    order was given. Data files that handlers read by themselves are not noticed: use --force after an edit
    of one. Code that fails in its probation is taken back later: `declctl status` and `history`
    say so.
    """
    query = f"wait={'true' if wait else 'false'}{'&force=true' if force else ''}"
    _end(_order(admin, f"/-/reload?{query}"), output)


def rollback(
    generation: Annotated[
        int | None, typer.Argument(metavar="[N]", help="Its number; by default the one before.", min=1)
    ] = None,
    *,
    output: OutputOption = Output.TEXT,
    admin: AdminOption = None,
) -> None:
    """Let an earlier generation run again.

    It exits 0 if it does, 1 if it is not in memory any more or can't take over, 2 if nobody answers. One is
    kept for spec.reload.probationPeriod. The files are not tried again until they change.
    """
    query = "" if generation is None else f"?generation={generation}"
    _end(_order(admin, f"/-/rollback{query}"), output)


def history(*, output: OutputOption = Output.TEXT, admin: AdminOption = None) -> None:
    """List what became of each attempt to reload a running process, the oldest first."""
    from declctl.cli.admin_client import admin_address, ask, told

    document = told(ask(admin_address(admin), "GET", "/history"), "attempts", "inMemory")
    if output is Output.JSON:
        print_json(document)
        return
    from declctl.cli.report import print_history

    print_history(document)
    _tell_redacted(document)


def _tell_redacted(document: dict[str, Any]) -> None:
    if document.get("redacted"):
        line("messages are left out: they are for those with the token (set DECLCTL_ADMIN_TOKEN)", err=True)


def _order(admin: str | None, path: str) -> dict[str, Any]:
    """The answer to an order; raises UsageError if there is none, exits 3 if the process failed on it."""
    from declctl.cli.admin_client import admin_address, another_answers, ask

    target = admin_address(admin)
    # The order changes something: a process of another name must not get it by accident.
    if not target.named:
        other = another_answers(target, ask(target, "GET", "/status").document.get("name"))
        if other is not None:
            raise UsageError(f"Nothing was done: {other}")
    try:
        answer = ask(target, "POST", path, timeout=_RELOAD_SECONDS)
    except UsageError as fault:
        if not isinstance(fault.__cause__, TimeoutError):
            raise
        raise UsageError(
            f"The order was given, but what became of it was not told within {_RELOAD_SECONDS:g} s; "
            "`declctl history` will say it."
        ) from fault
    if answer.status == _FAULT:
        line(f"declctl: {answer.document['error']}", err=True)
        raise typer.Exit(_INTERNAL)
    return answer.document


def _end(document: dict[str, Any], output: Output) -> None:
    """Print an outcome; exits 1 unless it is what was wanted, 3 where declctl itself is at fault."""
    if "error" in document:
        raise UsageError(str(document["error"]))
    done = "result" not in document or _is_done(document)
    if output is Output.JSON:
        print_json(document)
    else:
        _print_outcome(document, done=done)
    if not done:
        raise typer.Exit(_INTERNAL if document.get("reason") == _OWN_FAULT else 1)


def _is_done(document: dict[str, Any]) -> bool:
    """Whether what was asked for is what runs; a process that is stopping has not tried."""
    return document["result"] in _DONE and document.get("reason") != _STOPPING


def _print_outcome(document: dict[str, Any], *, done: bool) -> None:
    if "result" not in document:
        line(str(document["message"]))
        return
    from declctl.cli.report import show_faults
    from declctl.manifest import Diagnostic

    line(str(document["line"]), err=not done)
    show_faults([Diagnostic(**fault) for fault in document["diagnostics"]])
    if not done and document.get("suggestion"):
        line(f"  help: {document['suggestion']}", err=True)
