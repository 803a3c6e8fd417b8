"""What others have written does nothing to a terminal, and forges no line."""

import ast
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import declctl.cli
from declctl.cli import terminal
from declctl.cli.logging import JsonLines, TextLines
from declctl.errors import UsageError
from declctl.manifest import Diagnostic, render_github, render_text
from tests.rooms.cli.answering import STATUS

FORGED = "12:00:01 error all is lost"
EVIL = f"a\x1b[2J\x1b]0;title\x07\x9b31m\r\u202eb\u2066c\u2028d\u2029e\x85f\x7fg[red]h[/red]\n{FORGED}"
# What a terminal obeys, or what looks like another line: of a line only its end is allowed.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MOMENT = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAULT = Diagnostic(EVIL, 1, 1, "DCL001", EVIL, EVIL, source_line=EVIL)


def is_harmless(text: str) -> bool:
    """Whether nothing in it is obeyed, and no line of it is the forged one."""
    return not OBEYED.search(text) and not any(line.startswith(FORGED[:8]) for line in text.split("\n"))


def test_a_line_stays_a_line_and_a_table_has_its_rows(capsys):
    """It can still be read; an object that is named like a row, or like rich's markup, is shown as named."""
    terminal.line(EVIL)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert is_harmless(out)
    assert "[red]h[/red]" in out
    terminal.print_table(("NAME", "ERROR"), [(EVIL, "[bold]x[/bold] :smile:"), ("b", EVIL)])
    out = capsys.readouterr().out
    assert out.count("\n") == 3
    assert is_harmless(out)
    assert "[bold]x[/bold] :smile:" in out


def test_json_has_all_of_it_escaped(capsys):
    """A program reads what was written; whoever looks at it in a terminal is safe, and reads letters."""
    document = {"text": EVIL, "name": "größe", "tag": "\U000e0001", "half": "\ud800"}
    terminal.print_json(document)
    out = capsys.readouterr().out
    assert is_harmless(out)
    assert "größe" in out
    assert json.loads(out) == document


def test_letters_that_a_stream_does_not_have_are_escaped(monkeypatch):
    """In a locale without UTF-8 a name with an umlaut ends nothing."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    terminal.line("größe")
    stream.seek(0)
    assert stream.read() == "gr\\xf6\\xdfe\n"


@pytest.mark.parametrize("colour", [False, True])
def test_a_log_line_can_not_be_forged(colour):
    """Whatever an event, a field or a traceback says, only declctl begins a line of the log."""
    entry = {"level": "error", "event": EVIL, "timestamp": MOMENT, "handler": EVIL, EVIL: EVIL}
    entry |= {"traceback": f"Traceback (most recent call last):\n{EVIL}", "several": [EVIL, {"deep": EVIL}]}
    text = TextLines(colour=colour)(None, "error", {**entry, "diagnostics": [FAULT]})
    assert is_harmless(re.sub("\x1b\\[[0-9;]*m", "", text) if colour else text)
    assert "\x1b[2J" not in text
    further = text.split("\n")[1:]
    assert all(line.startswith((" ", "\x1b[36m  ", "\x1b[31m")) for line in further)
    assert not [line for line in further if line.startswith(FORGED)]


def test_a_message_of_several_lines_stays_readable():
    """The further lines of a text are indented; a JSON line is one, as collectors split at line ends."""
    entry = {"level": "info", "event": "first\nsecond", "timestamp": MOMENT}
    assert TextLines(colour=False)(None, "info", entry).split("\n")[1:] == ["  second"]
    text = JsonLines()(None, "info", {"level": "info", "event": EVIL, "timestamp": MOMENT, "x": [EVIL]})
    assert ("\n" in text, is_harmless(text)) == (False, True)
    assert json.loads(text)["event"] == EVIL


def test_a_fault_of_a_file_is_harmless():
    """A manifest that was downloaded does not write to the terminal of who validates it."""
    for text in (render_text([FAULT]), render_github([FAULT])):
        assert is_harmless(text)
        assert "::error" not in text.split("\n", 1)[1]


@pytest.mark.parametrize("command", ["status", "history", "reload", "rollback"])
def test_what_a_process_says_is_harmless(ask, process, command):
    """The messages of `status` and the others come from objects, servers and handlers."""

    def evil(*names: str, **more: object) -> dict[str, object]:
        return {**dict.fromkeys(names, EVIL), **more}

    condition = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    attempt = evil("time", "result", "bundleHash", "reason", "message", generation=1, changes=[EVIL])
    document = evil("name", "line", "suggestion", ready=False, kept=[], generation=1, result="Refused")
    document["conditions"] = [evil("reason", "message", **condition)]
    document["plugins"] = [evil("name", "version", "state", "reason")]
    document["attempts"] = [attempt]
    document["diagnostics"] = [evil("file", "code", "message", "suggestion", line=1, column=1)]
    process.answers(200, {**STATUS, **document})
    ended = ask(command)
    assert is_harmless(ended.out)
    assert is_harmless(ended.err)
    process.answers(500, {"error": EVIL})
    assert is_harmless(ask(command).err)


@pytest.mark.parametrize("error", [UsageError(EVIL), RuntimeError(EVIL)])
def test_an_error_is_harmless(error, declctl, monkeypatch, folder):
    """A refusal of a server, or a fault of declctl with a foreign text in it, is told in plain lines."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("declctl.cli.app.invoke", fail)
    assert is_harmless(declctl("status").err)


def test_a_file_with_an_evil_name_is_harmless(declctl, folder):
    """An archive may hold files of any name."""
    name = EVIL.replace("/", "").replace("\x00", "")
    (folder / name).write_text("a: [")
    assert is_harmless(declctl.refused("validate", name, status=1))


WRONG_USAGE = {
    "an argument too many": ["run", "x", EVIL],
    "a path": ["run", EVIL],
    "a command": [EVIL],
    "a command of a group": ["plugins", EVIL],
    "an option": [f"--{EVIL}"],
    "an option of a command": ["run", "x", f"--{EVIL}"],
    "a short option": ["run", "x", f"-{EVIL}"],
    "a choice": ["run", "x", "--log-level", EVIL],
    "a number": ["bench", "reload", "--handlers", EVIL],
    "a value for a flag": ["reload", f"--wait={EVIL}"],
    "a duration": ["run", "x", "--once", "--sandbox", "--timeout", EVIL],
    "an address": ["status", "--admin", EVIL],
    "a code": ["explain", EVIL],
    "objects": ["run", "x", "--sandbox", "--once", "--objects", EVIL],
}


@pytest.mark.parametrize("what", WRONG_USAGE)
def test_a_command_line_is_not_obeyed(what, declctl, folder):
    """A script passes on a name that somebody else chose: it is shown, and neither obeyed nor a line."""
    ended = declctl(*WRONG_USAGE[what])
    assert ended.status in (1, 2)
    assert is_harmless(ended.out + ended.err)
    assert ended.err


def test_an_answer_to_wrong_usage_is_what_typer_says(declctl, folder):
    """Usage, a hint and the fault; a group without a command shows its help. Both exit with 2."""
    assert re.fullmatch(
        r"Usage: declctl run \[OPTIONS\] .*MANIFEST.*\nTry 'declctl run -h' for help\.\n\nError: .*\(b\)\n",
        declctl.refused("run", "a", "b"),
    )
    said = declctl.refused("plugins")
    assert "Usage: declctl plugins" in said
    assert "Error" not in said


def test_a_request_for_completion_is_not_obeyed(declctl, folder, monkeypatch):
    """Shells ask for completions in the environment: no text of it is printed as it is."""
    monkeypatch.setenv("COMP_WORDS", f"declctl run {EVIL}")
    monkeypatch.setenv("COMP_CWORD", "2")
    for instruction in ("complete_bash", f"complete_{EVIL}", f"{EVIL}_bash", EVIL):
        monkeypatch.setenv("_DECLCTL_COMPLETE", instruction)
        ended = declctl()
        assert is_harmless(ended.out + ended.err), instruction


def test_commands_write_by_one_way():
    """Nobody prints past the place that makes texts harmless."""
    folder = Path(declctl.cli.__file__).parent
    ways = {"terminal.py", "screen.py", "version.py"}  # the last one prints nothing but versions
    found = [
        f"{file.name}:{node.lineno}"
        for file in folder.glob("*.py")
        if file.name not in ways
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func)
        in {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write", "json.dump"}
    ]
    assert found == []
