"""`declctl status`, `reload`, `rollback`, `history` and others: talk to a running process."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import typer

from declctl.cli.admin_client import AdminAnswer, admin_address, ask, expect, why_redacted
from declctl.cli.report import print_dead_letters, print_history, print_queue, print_status, show_faults
from declctl.cli.terminal import line, print_json
from declctl.errors import UsageError
from declctl.manifest import Diagnostic

RELOAD_SECONDS = 300.0  # warming new resources may take reload.warmTimeout, and imports take their time

_DONE = ("Applied", "Unchanged", "RolledBack")
_STOPPING, _OWN_FAULT = "Stopping", "InternalError"
_FAULT, _INTERNAL = 500, 3


def show_status(admin: str | None, *, as_json: bool) -> None:
    """Print how a running process is doing. Raises UsageError."""
    fields = ("name", "generation", "ready", "conditions", "resources", "handlers", "plugins")
    answer = ask(admin_address(admin), "GET", "/status")
    document = expect(answer, *fields)
    if as_json:
        print_json(document)
    else:
        print_status(document, now=datetime.now(UTC))
    _say_if_redacted(answer, as_json=as_json)


def show_history(admin: str | None, *, as_json: bool) -> None:
    """Print what became of each attempt to reload, the oldest first. Raises UsageError."""
    answer = ask(admin_address(admin), "GET", "/history")
    document = expect(answer, "attempts", "generation", "kept")
    if as_json:
        print_json(document)
    else:
        print_history(document)
    _say_if_redacted(answer, as_json=as_json)


def show_dead_letters(admin: str | None, *, as_json: bool) -> None:
    """Print what handlers have given up with `onFailure: DeadLetter`. Raises UsageError."""
    document = expect(ask(admin_address(admin), "GET", "/deadletters"), "count", "deadLetters")
    if as_json:
        print_json(document)
    else:
        print_dead_letters(document, now=datetime.now(UTC))


def show_queue(handler: str, admin: str | None, *, limit: int, as_json: bool) -> None:
    """Print what waits for a handler, `limit` items at most. Raises UsageError."""
    path = f"/queue/{quote(handler, safe='')}?limit={limit}"
    document = expect(ask(admin_address(admin), "GET", path), "handler", "waiting", "leftOut", "items")
    if as_json:
        print_json(document)
    else:
        print_queue(document, now=datetime.now(UTC))


def give_order(path: str, admin: str | None, *, as_json: bool) -> int:
    """Have a running process reload or roll back, and print the outcome.

    Returns 0 if what was asked for is what runs, 1 if not, 3 where declctl itself is at fault. Raises
    UsageError where no process answers.
    """
    document = _order(admin, path)
    if "error" in document:
        raise UsageError(str(document["error"]))
    done = "result" not in document or _is_done(document)
    if as_json:
        print_json(document)
    else:
        _print_outcome(document, done=done)
    if done:
        return 0
    return _INTERNAL if document.get("reason") == _OWN_FAULT else 1


def _say_if_redacted(answer: AdminAnswer, *, as_json: bool) -> None:
    """Say on stderr that texts are left out. JSON says it by itself, but not why the token was not sent."""
    why = why_redacted(answer)
    if why is not None and (answer.token_fault is not None or not as_json):
        line(why, err=True)


def _order(admin: str | None, path: str) -> dict[str, Any]:
    """The answer to an order; raises UsageError if there is none, exits 3 if the process failed on it."""
    target = admin_address(admin)
    try:
        answer = ask(target, "POST", path, timeout=RELOAD_SECONDS)
    except UsageError as fault:
        if not isinstance(fault.__cause__, TimeoutError):
            raise
        raise UsageError(
            f"The order was given, but its outcome did not arrive within {RELOAD_SECONDS:g} s; "
            "`declctl history` will show it."
        ) from fault
    if answer.status == _FAULT:
        line(f"declctl: {answer.document['error']}", err=True)
        raise typer.Exit(_INTERNAL)
    return answer.document


def _is_done(document: dict[str, Any]) -> bool:
    """Whether what was asked for is what runs; a process that is stopping has not tried."""
    return document["result"] in _DONE and document.get("reason") != _STOPPING


def _print_outcome(document: dict[str, Any], *, done: bool) -> None:
    if "result" not in document:
        line(str(document["message"]))
        return
    line(str(document["line"]), err=not done)
    show_faults([Diagnostic(**fault) for fault in document["diagnostics"]])
    if not done and document.get("suggestion"):
        line(f"  help: {document['suggestion']}", err=True)
