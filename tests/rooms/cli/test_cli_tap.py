"""`declctl tap`: lines for people, JSON lines, and how it ends."""

import io
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from declctl.cli.tap import show_tap
from tests.rooms.cli.answering import Process

CALL = {
    "kind": "call",
    "time": "2026-01-02T03:04:05.678Z",
    "handler": "notify",
    "resource": "pods",
    "type": "Modified",
    "key": "shop/web",
    "reason": "Watch",
    "causes": [],
    "paths": ["spec.replicas", "status.phase"],
    "morePaths": 3,
    "outcome": "succeeded",
    "seconds": 0.0034,
    "generation": 6,
    "attempt": 1,
    "error": "",
    "errorType": "",
    "retryInSeconds": None,
}
RETRIED = {
    **CALL,
    "outcome": "retried",
    "error": "ValueError: no\nsuch \x1b[31mteam",
    "errorType": "ValueError",
    "retryInSeconds": 1.25,
    "seconds": 2.5,
}
RECONCILED = {**CALL, "type": "Reconcile", "paths": [], "morePaths": 0, "causes": ["Added pods a/b (Watch)"]}
BEGIN = {"kind": "begin", "name": "pod-guard", "generation": 6}
RELOAD = {"kind": "reload", "time": CALL["time"], "result": "Applied", "generation": 7, "reason": ""}
RELOAD["line"] = "generation 7: ~handler notify (code), 0 LIST, 3 ms"
DROPPED = {"kind": "dropped", "count": 1200}
END = {"kind": "end", "reason": "the process ends"}


def test_each_call_is_a_line(declctl: Callable, process: Process):
    """Time, type, key, handler, outcome, duration; then what changed, why, or what went wrong."""
    process.streams(BEGIN, CALL, RETRIED, RECONCILED, RELOAD, DROPPED, END)
    ended = declctl("tap", "--admin", process.address)
    assert ended.status == 0
    assert ended.err == "pod-guard generation 6; Ctrl-C ends\n"
    modified, retried, reconciled, reload, dropped, end = ended.out.splitlines()
    assert modified.split()[1:] == [
        *("Modified", "shop/web", "notify", "succeeded", "3.4ms"),
        *("spec.replicas,", "status.phase", "and", "3", "more"),
    ]
    assert retried.endswith("2.5s   ValueError: no\\nsuch �[31mteam; attempt 1, again in 1.25s")
    assert reconciled.endswith("3.4ms  Added pods a/b (Watch)")
    assert reload == "--- generation 7: ~handler notify (code), 0 LIST, 3 ms"
    assert dropped == "--- 1,200 calls are not shown: there are more than can be sent"
    assert end == "--- the process ends"


def test_json_is_a_document_in_each_line(declctl: Callable, process: Process):
    """A program reads line by line, while the stream goes on."""
    process.streams(BEGIN, CALL, RETRIED, RELOAD, END)
    ended = declctl("tap", "-o", "json", "--admin", process.address)
    assert [json.loads(line) for line in ended.out.splitlines()] == [BEGIN, CALL, RETRIED, RELOAD, END]
    assert ended.err == ""


def test_the_filters_are_asked_for(declctl: Callable, process: Process):
    """The process selects, so that a busy one sends little."""
    process.streams(BEGIN, END)
    options = ["-n", "shop", "--name", "web-*", "--handler", "notify", "--failed"]
    declctl("tap", "pods", *options, "--admin", process.address)
    declctl("tap", "--admin", process.address)
    first = "/events?of=pods&namespace=shop&name=web-%2A&handler=notify&failed=true"
    assert [path for _, path, _ in process.asked] == [first, "/events"]


def test_it_ends_after_so_many_calls(declctl: Callable, process: Process):
    """For scripts: reloads do not count."""
    process.streams(BEGIN, RELOAD, CALL, CALL, CALL, CALL)
    ended = declctl("tap", "--count", "2", "-o", "json", "--admin", process.address)
    assert ended.status == 0
    assert [json.loads(line)["kind"] for line in ended.out.splitlines()] == [
        "begin",
        "reload",
        "call",
        "call",
    ]


def test_a_refusal_is_the_sentence_of_the_process(declctl: Callable, process: Process):
    """Such as a handler that it does not have."""
    process.answers(404, {"error": "No handler is named notifi; did you mean notify?"})
    ended = declctl("tap", "notifi", "--admin", process.address)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == "declctl: No handler is named notifi; did you mean notify?\n"


def test_nobody_answers(declctl: Callable, folder: Path):
    """The sentence says what to do, as of `declctl status`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        ended = declctl("tap", "--admin", address)
    assert ended.status == 2
    assert "Is `declctl run` running?" in ended.err


def test_colour_appears_on_a_terminal_alone(process: Process, monkeypatch: pytest.MonkeyPatch):
    """A failed call is red there; the text of its error controls no terminal."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    process.streams({**RETRIED, "outcome": "failed"}, END)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert show_tap(None, process.address, chosen={}, count=None, as_json=False) == 0
    assert "\x1b[31mfailed\x1b[0m" in screen.getvalue()
    assert "\x1b[31mteam" not in screen.getvalue()


def test_ctrl_c_is_the_usual_end(process: Process, monkeypatch: pytest.MonkeyPatch):
    """It is no error, and leaves no traceback."""

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            raise KeyboardInterrupt

    process.streams(CALL)
    monkeypatch.setattr(sys, "stdout", Interrupted())
    assert show_tap(None, process.address, chosen={}, count=None, as_json=True) == 0


def test_another_controller_is_not_followed(declctl: Callable, hello: Path, process: Process):
    """Without --admin, the manifest of the folder says who has to answer."""
    manifest = (hello / "manifest.yaml").read_text()
    (hello / "manifest.yaml").write_text(f"{manifest}  admin: {{bindAddress: '{process.address}'}}\n")
    process.streams(BEGIN, END)
    ended = declctl("tap")
    assert (ended.status, ended.out) == (2, "")
    assert "Nothing was done: pod-guard answers at" in ended.err
