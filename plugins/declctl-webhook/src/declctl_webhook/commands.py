"""`declctl webhook …`: reads the files in a spool folder, while a process uses it or not.

`declctl-webhook` is the same, where declctl is not installed for the shell.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from declctl_webhook.dead_letters import FILE, OLD_FILE, letters
from declctl_webhook.dead_letters import requeue as requeue_files
from declctl_webhook.pipeline import STATUS_FILE

Folder = Annotated[Path, typer.Argument(help="The folder of spool.path.", exists=True, file_okay=False)]


class OutputForm(StrEnum):
    """How an answer is printed."""

    TEXT = "text"
    JSON = "json"


Output = Annotated[OutputForm, typer.Option("-o", "--output", help="text, or json for programs.")]


def status(folder: Folder, output: Output = OutputForm.TEXT) -> None:
    """Print the counts and the state of the circuit.

    The process writes them when they change, and every ten seconds: an old `writtenAt` means that it has
    ended, or hangs. Exits with 1 if there are none, or the circuit is not closed.

    Example: declctl webhook status /var/spool/declctl-webhook
    """
    try:
        document: dict[str, Any] = json.loads((folder / STATUS_FILE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        typer.echo(f"there is no status in {folder}: {error}. Has a process used this spool?", err=True)
        raise typer.Exit(1) from error
    if output is OutputForm.JSON:
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        for name, value in document.items():
            typer.echo(f"{name:16} {_shown(value)}")
    if document["circuit"]["state"] != "Closed":
        raise typer.Exit(1)


def dead_letters(
    folder: Folder,
    output: Output = OutputForm.TEXT,
    limit: Annotated[int, typer.Option(min=1, help="How many are printed, the oldest first.")] = 100,
) -> None:
    """Print the events that were refused or too old; as JSON, one a line, with the whole event.

    Example: declctl webhook dead-letters /var/spool/declctl-webhook -o json
    """
    found = (
        letter
        for name in (OLD_FILE, FILE)
        if (folder / name).exists()
        for letter in letters(folder / name)
        if letter is not None
    )
    for letter in islice(found, limit):
        if output is OutputForm.JSON:
            typer.echo(json.dumps(letter, ensure_ascii=False))
        else:
            event = letter["event"]
            typer.echo(f"{letter['time']}  {letter['reason']:10} {event['type']}  {event['subject']}")


def requeue(folder: Folder) -> None:
    """Send all dead letters again.

    The process that uses the spool takes them within seconds; without one, the next process takes them.

    Example: declctl webhook requeue /var/spool/declctl-webhook
    """
    try:
        renamed = requeue_files(folder, at=datetime.now(UTC))
    except OSError as error:
        typer.echo(f"the dead letters can't be renamed: {error}", err=True)
        raise typer.Exit(1) from error
    if not renamed:
        typer.echo("there are no dead letters")
    for path in renamed:
        typer.echo(f"{path.name} is sent again")


def _shown(value: Any) -> str:
    """A value of the status on one line; control characters are left out."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items()) or "none"
    text = "-" if value is None else str(value)
    return "".join(character for character in text if character.isprintable())


def add_commands(app: typer.Typer) -> None:
    """Add the commands to an application."""

    @app.callback()
    def webhook() -> None:  # pyright: ignore[reportUnusedFunction] - typer calls it
        """Look into the spool of declctl-webhook, and send dead letters again."""

    app.command()(status)
    app.command("dead-letters")(dead_letters)
    app.command()(requeue)


main = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_commands(main)

if __name__ == "__main__":
    main()
