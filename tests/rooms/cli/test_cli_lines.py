"""Log lines as people and machines read them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from declctl.cli.logging import OWN_LOGGER, JsonLines, TextLines
from declctl.manifest import Diagnostic

MOMENT = datetime(2026, 1, 2, 12, 0, 1, 234000, UTC)
TRACE = """\
Traceback (most recent call last):
  File "handlers/pods.py", line 14, in on_pod
    x["y"]
KeyError: 'y'
"""


def text(*, colour: bool = False, **entry: Any) -> str:
    """An entry as a line, without its time, which depends on the machine's time zone."""
    line = TextLines(colour=colour)(None, "info", {"timestamp": MOMENT, "level": "info", **entry})
    return line.partition(" ")[2]


def as_json(lines: JsonLines, **entry: Any) -> dict[str, Any]:
    """An entry as a JSON line, read again."""
    return json.loads(lines(None, "info", {"timestamp": MOMENT, "level": "info", "event": "a", **entry}))


def test_a_line_is_time_sentence_and_the_rest():
    """At a terminal, the hour is enough; the log of a pod is read in another time zone, days later."""
    entry = {"timestamp": MOMENT, "level": "info", "event": "late", "pod": "a"}
    assert TextLines(colour=False)(None, "info", entry) == f"{MOMENT.astimezone():%H:%M:%S} late pod=a"
    line = TextLines(colour=False, local_time=False)(None, "info", entry)
    assert line == "2026-01-02T12:00:01.234Z late pod=a"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"event": "notify failed on Modified default/a", "handler": "notify", "key": "default/a"}, ""),
        ({"event": "generation 7: ~handler notify", "generation": 7}, ""),
        ({"event": "again in 7 s", "attempt": 7}, " attempt=7"),
        ({"event": "notify-2 is slow", "handler": "notify"}, " handler=notify"),
        ({"event": "x", "why": "two words", "reason": None}, ' why="two words"'),
        ({"event": "x", "names": ["a", "b"]}, ' names=["a", "b"]'),
    ],
)
def test_what_the_sentence_says_is_not_repeated(fields, shown):
    """A field of declctl's own is left out when its value stands in the sentence; numbers need their name."""
    assert text(logger=OWN_LOGGER, **fields) == fields["event"] + shown


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"status": "ok"}, "web is ok status=ok"),
        ({"owner": None}, "web is ok owner=null"),
        ({"name": "web", "replicas": 3}, "web is ok name=web replicas=3"),
        ({"tags": {"b"}}, 'web is ok tags=["b"]'),
        ({"by": {("a", 1): 2}}, """web is ok by="{('a', 1): 2}\""""),
        ({"reason": None}, "web is ok reason=null"),
        ({"reason": "ok", "key": "web"}, "web is ok reason=ok key=web"),
        ({"suggestion": None, "logger": "aiohttp"}, "web is ok suggestion=null logger=aiohttp"),
    ],
)
def test_no_field_of_a_handler_is_lost(fields, shown):
    """`ctx.log.info("web is ok", status="ok")` shows status, though the sentence has the word."""
    assert text(event="web is ok", **fields) == shown


def test_json_has_every_field_the_generation_and_the_controller():
    """Also those that the sentence has, or without a value; logs of two controllers can be told apart."""
    entry = {"event": "notify waits", "handler": "notify", "suggestion": None, "logger": OWN_LOGGER}
    line = as_json(JsonLines(), **entry)
    assert {name: line[name] for name in entry} == entry
    assert "generation" not in line
    names = [""]
    lines = JsonLines(lambda: names[0], generation=lambda: 7)
    first = as_json(lines)
    names[0] = "pod-guard"
    second = as_json(lines, generation=3)
    assert ("controller" in first, first["generation"]) == (False, 7)
    assert (second["controller"], second["generation"]) == ("pod-guard", 3)


def test_what_json_has_no_form_for_costs_only_itself():
    """nan, keys that are no texts, and objects whose text can't be made stand beside what can be written."""

    class Broken:
        def __str__(self) -> str:
            raise ValueError("no")

    entry = {"n": 3, "ratio": float("nan"), "by": {("a", 1): 2}, "odd": Broken(), "names": {"a"}}
    texts = {"ratio": "nan", "by": "{('a', 1): 2}", "odd": "<Broken: ValueError>", "names": ["a"]}
    line = as_json(JsonLines(), **entry)
    assert {name: line[name] for name in line if name not in ("ts", "level", "event")} == {"n": 3, **texts}


def test_only_what_is_wrong_has_a_mark():
    """Warnings and errors begin with their level; colours are only where they are wanted."""
    assert text(event="fine") == "fine"
    assert text(event="hm", level="warning") == "warning hm"
    entry = {"event": "no", "level": "error", "a": 1, "traceback": TRACE}
    assert text(**entry).startswith("error no")
    assert "\x1b" not in text(**entry)
    assert "\x1b[31merror\x1b[0m" in text(colour=True, **entry)
    # A label or a message with an escape sequence can't repaint the terminal.
    assert "\x1b" not in text(event="pod \x1b[2Jgone", note="\x1b]0;x", traceback="\x1b[31m")


def test_a_traceback_stands_below_with_handler_and_key():
    """Whoever reads a traceback sees whose it is, and where it happened."""
    entry = {"event": "failed", "level": "error", "handler": "notify", "key": "default/a"}
    lines = text(**entry, traceback=TRACE).split("\n")
    assert lines[1] == "  Traceback of notify on default/a (most recent call last):"
    assert lines[2] == '    File "handlers/pods.py", line 14, in on_pod'
    assert lines[-1] == "  KeyError: 'y'"


def test_faults_stand_below_with_their_place():
    """A refused reload shows each fault of the files with its place and help; a machine gets objects."""
    fault = Diagnostic("m.yaml", 3, 2, "DCL012", "unknown field", suggestion="remove it")
    assert text(event="reload refused", level="error", diagnostics=(fault,)).split("\n")[1:] == [
        "  m.yaml:3:2: error DCL012: unknown field",
        "    help: remove it",
    ]
    assert as_json(JsonLines(), diagnostics=(fault,))["diagnostics"][0]["line"] == 3


def test_json_has_the_head_first():
    """A machine gets ts, level and event, then the fields, one object a line."""
    entry = {"timestamp": MOMENT, "level": "info", "event": "late", "pod": "a", "when": MOMENT, "n": 1}
    line = JsonLines()(None, "info", entry)
    assert "\n" not in line
    assert line.startswith('{"ts": "2026-01-02T12:00:01.234Z", "level": "info", "event": "late"')
    assert (json.loads(line)["n"], json.loads(line)["when"]) == (1, str(MOMENT))
