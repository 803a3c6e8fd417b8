"""`declctl tap`: lines for people, JSON lines, and how it ends."""

import io
import json
import sys

import yaml

from declctl.cli.tap import show_tap
from tests.rooms.cli.conftest import Terminal

CALL = yaml.safe_load("""
{kind: call, time: "2026-01-02T03:04:05.678Z", handler: notify, resource: pods, type: Modified, key: shop/web,
 reason: Watch, causes: [], paths: [spec.replicas, status.phase], morePaths: 3, outcome: succeeded,
 seconds: 0.0034, generation: 6, attempt: 1, error: "", errorType: "", retryInSeconds: null}
""")
FAILURE = {"error": "ValueError: no\nsuch \x1b[31mteam", "errorType": "ValueError", "seconds": 2.5}
RETRIED = {**CALL, **FAILURE, "outcome": "retried", "retryInSeconds": 1.25}


RECONCILED = {**CALL, "type": "Reconcile", "paths": [], "morePaths": 0, "causes": ["Added pods a/b (Watch)"]}
BEGIN = {"kind": "begin", "name": "pod-guard", "generation": 6}
RELOAD = {"kind": "reload", "time": CALL["time"], "result": "Applied", "generation": 7, "reason": ""}
RELOAD["line"] = "generation 7: ~handler notify (code), 0 LIST, 3 ms"
DROPPED = {"kind": "dropped", "count": 1200}
END = {"kind": "end", "reason": "the process ends"}


def test_each_call_is_a_line(ask, process):
    """Time, type, key, handler, outcome, duration; then what changed, why, or what went wrong."""
    process.streams(BEGIN, CALL, RETRIED, RECONCILED, RELOAD, DROPPED, END)
    ended = ask.done("tap")
    assert ended.err == "pod-guard generation 6; Ctrl-C ends\n"
    modified, retried, reconciled, *others = ended.lines
    words = "Modified shop/web notify succeeded 3.4ms spec.replicas, status.phase and 3 more"
    assert modified.split()[1:] == words.split()
    assert retried.endswith("2.5s   ValueError: no\\nsuch �[31mteam; attempt 1, again in 1.25s")
    assert reconciled.endswith("3.4ms  Added pods a/b (Watch)")
    assert others == [
        "--- generation 7: ~handler notify (code), 0 LIST, 3 ms",
        "--- 1,200 calls are not shown: there are more than can be sent",
        "--- the process ends",
    ]


def test_a_call_that_can_not_be_read_ends_in_one_line(ask, process):
    """Of another version, or of another program at that address."""
    for wrong in ({"time": "\x1b[2J"}, {"seconds": None}, {"paths": 1}):
        process.streams({**CALL, **wrong}, END)
        assert ask.refused("tap").count("has sent what is no call of declctl") == 1


def test_json_is_a_document_in_each_line(ask, process):
    """A program reads line by line, while the stream goes on; `--count` counts calls and no reloads."""
    process.streams(BEGIN, CALL, RETRIED, RELOAD, END)
    ended = ask("tap", "-o", "json")
    assert [json.loads(line) for line in ended.lines] == [BEGIN, CALL, RETRIED, RELOAD, END]
    assert ended.err == ""
    process.streams(BEGIN, RELOAD, CALL, CALL, CALL, CALL)
    ended = ask.done("tap", "--count", "2", "-o", "json")
    assert [json.loads(line)["kind"] for line in ended.lines] == ["begin", "reload", "call", "call"]


def test_the_filters_are_asked_for(ask, process):
    """The process selects, so that a busy one sends little."""
    process.streams(BEGIN, END)
    options = ["-n", "shop", "--name", "web-*", "--handler", "notify", "--failed"]
    ask("tap", "pods", *options)
    ask("tap")
    first = "/events?of=pods&namespace=shop&name=web-%2A&handler=notify&failed=true"
    assert [path for _, path, _ in process.asked] == [first, "/events"]


def test_colour_appears_on_a_terminal_alone(process, monkeypatch):
    """A failed call is red there; the text of its error controls no terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    process.streams({**RETRIED, "outcome": "failed"}, END)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert show_tap(None, process.address, chosen={}, count=None, as_json=False) == 0
    assert "\x1b[31mfailed\x1b[0m" in screen.getvalue()
    assert "\x1b[31mteam" not in screen.getvalue()


def test_ctrl_c_is_the_usual_end(process, monkeypatch):
    """It is no error, and leaves no traceback."""

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            raise KeyboardInterrupt

    process.streams(CALL)
    monkeypatch.setattr(sys, "stdout", Interrupted())
    assert show_tap(None, process.address, chosen={}, count=None, as_json=True) == 0
