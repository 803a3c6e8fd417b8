"""`declctl-webhook` at the command line."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from declctl_webhook.commands import main
from declctl_webhook.dead_letters import FILE, DeadLetters

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def _bury(folder: Path, *ids: str) -> None:
    letters = DeadLetters(folder, max_bytes=2**20)
    for each in ids:
        event = json.dumps({"id": each, "type": "t.added", "subject": f"v1/Pod/a/{each}"}).encode()
        letters.write(event, reason="Status400", status=400, text="no", attempts=1, at=NOW)


@pytest.mark.parametrize(("state", "code"), [("Closed", 0), ("Open", 1), ("HalfOpen", 1)])
def test_status_prints_the_counts(tmp_path: Path, state: str, code: int) -> None:
    """For people, for programs, and as an exit status for a probe."""
    document: dict[str, Any] = {"circuit": {"state": state}, "waiting": 3, "lastError": "a\x1b[31mb"}
    (tmp_path / "status.json").write_text(json.dumps(document))
    text = _run("status", tmp_path)
    assert text[0] == code
    assert f"circuit          state {state}" in text[1]
    assert "\x1b" not in text[1]
    status, output = _run("status", tmp_path, "-o", "json")
    assert (status, json.loads(output)) == (code, document)


def test_status_of_a_folder_without_one(tmp_path: Path) -> None:
    """The folder is not a spool, or no process has used it."""
    code, output = _run("status", tmp_path)
    assert (code, "Has a process used this spool?" in output) == (1, True)


def test_dead_letters_are_listed(tmp_path: Path) -> None:
    """A line for each, or the whole event."""
    _bury(tmp_path, "a", "b")
    with (tmp_path / FILE).open("a") as file:
        file.write("half a li")
    assert _run("dead-letters", tmp_path)[1].splitlines() == [
        "2026-01-01T00:00:00.000Z  Status400  t.added  v1/Pod/a/a",
        "2026-01-01T00:00:00.000Z  Status400  t.added  v1/Pod/a/b",
    ]
    (line,) = _run("dead-letters", tmp_path, "-o", "json", "--limit", 1)[1].splitlines()
    assert json.loads(line)["event"]["id"] == "a"


def test_requeue_leaves_new_dead_letters_alone(tmp_path: Path) -> None:
    """The file is renamed in one step: the process may write to a new one at once."""
    assert _run("requeue", tmp_path) == (0, "there are no dead letters\n")
    _bury(tmp_path, "a")
    code, output = _run("requeue", tmp_path)
    _bury(tmp_path, "b")
    assert (code, output.endswith(" is sent again\n")) == (0, True)
    (requeued,) = tmp_path.glob("requeue-*.jsonl")
    assert json.loads(requeued.read_text())["event"]["id"] == "a"
    assert json.loads((tmp_path / FILE).read_text())["event"]["id"] == "b"
