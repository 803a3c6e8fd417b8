"""Where `declctl status` and `declctl reload` ask, and what happens when nobody answers."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from declctl.cli.admin_client import admin_address
from declctl.errors import UsageError
from tests.rooms.cli.answering import STATUS, Process

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: c}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "handlers:f"}]
"""
FAULT = {
    "file": "handlers/pods.py",
    "line": 14,
    "column": 3,
    "code": "DCL042",
    "severity": "error",
    "message": "invalid syntax",
    "suggestion": None,
}


@pytest.mark.parametrize(
    ("admin", "asked"),
    [
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("0.0.0.0:9000", "127.0.0.1:9000"),
        (":9000", "127.0.0.1:9000"),
        ("[::]:9000", "[::1]:9000"),
    ],
)
def test_the_manifest_of_the_folder_says_where(folder: Path, admin: str, asked: str):
    """In the folder of the manifest no address is needed; one for all interfaces is asked on loopback."""
    (folder / "manifest.yaml").write_text(f"{MANIFEST}  admin: {{bindAddress: '{admin}'}}\n")
    assert str(admin_address(None)) == asked


@pytest.mark.parametrize("before", ["", "# nothing yet\n---\n", "- 1\n---\n"])
def test_a_manifest_that_is_being_edited_still_says_where(folder: Path, before: str):
    """While the manifest has a fault, `declctl status` still finds the process that goes on."""
    (folder / "manifest.yaml").write_text(
        f"{before}{MANIFEST}  nonsense: 1\n  admin: {{bindAddress: '127.0.0.1:9000'}}\n"
    )
    assert str(admin_address(None)) == "127.0.0.1:9000"


@pytest.mark.parametrize("text", ["", "a: [", MANIFEST + "  nonsense: 1\n", "- 1\n---\nkind: Controller\n"])
def test_without_an_address_it_is_the_default(folder: Path, text: str):
    """Without a manifest that names one the address is 127.0.0.1:8081."""
    (folder / "manifest.yaml").write_text(text)
    assert str(admin_address(None)) == "127.0.0.1:8081"


def test_any_free_port_can_not_be_guessed(folder: Path):
    """With port 0 in the manifest the sentence says where to find the real one."""
    (folder / "manifest.yaml").write_text(f"{MANIFEST}  admin: {{bindAddress: '127.0.0.1:0'}}\n")
    with pytest.raises(UsageError, match="say with --admin"):
        admin_address(None)


def test_nobody_there_is_told_with_the_address(declctl: Callable, folder: Path):
    """When nothing runs, the exit status is 2 and the sentence names the address and how to say another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ended = declctl("status", "--admin", address)
    assert ended.status == 2
    assert address in ended.err
    assert "--admin" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("admin", ["8081", "http://127.0.0.1:8081", "host:99999"])
def test_a_mistyped_address_is_a_usage_error(declctl: Callable, folder: Path, admin: str):
    """A wrong --admin says how one is written."""
    ended = declctl("status", "--admin", admin)
    assert ended.status == 2
    assert ended.err.startswith("declctl: --admin: ")


def test_another_program_at_the_address_is_told(declctl: Callable, process: Process):
    """When something else listens there, that is what is said."""
    process.body = b"<html>hello</html>"
    ended = declctl("status", "--admin", process.address)
    assert ended.status == 2
    assert "is not declctl" in ended.err


def test_the_token_goes_along(declctl: Callable, process: Process, monkeypatch: pytest.MonkeyPatch):
    """With DECLCTL_ADMIN_TOKEN set, a guarded address can be asked."""
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "secret")
    assert declctl("status", "--admin", process.address).status == 0
    assert process.asked == [("GET", "/status", "Bearer secret")]


@pytest.fixture(name="elsewhere")
def _elsewhere(folder: Path, process: Process, monkeypatch: pytest.MonkeyPatch) -> Process:
    """The folder has a manifest of somebody else, which names an address that is not this machine's."""
    port = process.address.rpartition(":")[2]
    (folder / "manifest.yaml").write_text(
        f"{MANIFEST}  admin: {{bindAddress: 'declctl.evil.example:{port}'}}\n"
    )
    (folder / "handlers.py").write_text("def f(change):\n    pass\n")
    connect = socket.create_connection
    monkeypatch.setattr(
        "socket.create_connection",
        lambda where, *rest: connect(("127.0.0.1", where[1]), *rest),  # whoever has that name
    )
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "secret")
    process.address = f"declctl.evil.example:{port}"
    return process


@pytest.mark.parametrize(
    "command",
    [["status"], ["history"], ["reload"], ["rollback"], ["plan", "."], ["plan", ".", "--against", "running"]],
)
def test_a_manifest_can_not_have_the_token_sent_to_it(
    declctl: Callable, elsewhere: Process, command: list[str]
):
    """Who clones a repository and asks in its folder gives the token to nobody whom it names."""
    declctl(*command)
    assert elsewhere.asked
    assert [shown for _, _, shown in elsewhere.asked] == [None] * len(elsewhere.asked)


def test_an_address_that_is_named_gets_the_token(declctl: Callable, elsewhere: Process):
    """With --admin the user has said whom to trust."""
    declctl("status", "--admin", elsewhere.address)
    assert elsewhere.asked == [("GET", "/status", "Bearer secret")]


@pytest.mark.parametrize("command", ["status", "history", "reload"])
def test_that_the_token_was_kept_back_is_told(declctl: Callable, elsewhere: Process, command: str):
    """Whoever meant that address learns how to say so."""
    elsewhere.answers(401, {"error": "/x needs the header."})
    ended = declctl(command)
    assert ended.status == 2
    assert f"--admin {elsewhere.address}" in ended.err


def test_a_proxy_never_hears_of_it(declctl: Callable, process: Process, monkeypatch: pytest.MonkeyPatch):
    """HTTP_PROXY is for the world outside: the token and the status do not pass through it."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert declctl("status", "--admin", process.address).status == 0


def test_a_token_of_a_file_may_end_in_a_newline(
    declctl: Callable, process: Process, monkeypatch: pytest.MonkeyPatch
):
    """`DECLCTL_ADMIN_TOKEN=$(<file)` or not: it is the same token."""
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "secret\n")
    declctl("status", "--admin", process.address)
    assert process.asked == [("GET", "/status", "Bearer secret")]


def test_a_token_that_no_header_can_carry_is_named(
    declctl: Callable, process: Process, monkeypatch: pytest.MonkeyPatch
):
    """It is the user's, and no fault of declctl."""
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "a\nX-Other: b")
    ended = declctl("status", "--admin", process.address)
    assert ended.status == 2
    assert "DECLCTL_ADMIN_TOKEN" in ended.err
    assert process.asked == []


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"name": "c"}', b"[" * 100_000, b"null", b"\xff", b'{"a":' * 100_000]
)
@pytest.mark.parametrize("command", ["status", "history"])
def test_an_odd_answer_is_no_fault_of_declctl(declctl: Callable, process: Process, command: str, body: bytes):
    """Another program at the address may answer with any JSON."""
    process.body = body
    ended = declctl(command, "--admin", process.address)
    assert ended.status == 2
    assert "is not declctl" in ended.err


@pytest.mark.parametrize("command", ["status", "history"])
def test_a_refused_question_is_told(declctl: Callable, process: Process, command: str):
    """A wrong token, or a name that the address does not answer to, is told in its words."""
    process.answers(403, {"error": "This address answers to others."})
    ended = declctl(command, "--admin", process.address)
    assert (ended.status, ended.err) == (2, "declctl: This address answers to others.\n")


def test_what_is_left_out_is_told(declctl: Callable, process: Process):
    """Who has no token sees that there is more."""
    process.answers(200, {**STATUS, "redacted": True})
    ended = declctl("status", "--admin", process.address)
    assert "DECLCTL_ADMIN_TOKEN" in ended.err
    assert ended.out.splitlines()[0] == "pod-guard generation 6"


def test_a_refusal_to_answer_is_told(declctl: Callable, process: Process):
    """A missing token is told in the words of the process."""
    process.answers(401, {"error": "/-/reload needs the header."})
    ended = declctl("reload", "--admin", process.address)
    assert (ended.status, ended.err) == (2, "declctl: /-/reload needs the header.\n")


def test_status_as_json_is_the_document(declctl: Callable, process: Process):
    """`declctl status -o json` prints the document of GET /status and nothing else."""
    ended = declctl("status", "--admin", process.address, "-o", "json")
    assert json.loads(ended.out) == STATUS
    assert ended.err == ""


def test_status_begins_with_name_and_generation(declctl: Callable, process: Process):
    """The first line of `declctl status` says which generation runs."""
    assert declctl("status", "--admin", process.address).out.splitlines()[0] == "pod-guard generation 6"


@pytest.mark.parametrize(("result", "status"), [("Applied", 0), ("Unchanged", 0), ("Refused", 1)])
@pytest.mark.guarantee("G25")
def test_reload_says_what_became_of_it(declctl: Callable, process: Process, result: str, status: int):
    """`declctl reload` ends with 0 when the files are what runs, and with 1 when they were refused."""
    line = "generation 7: ~handler notify (code), 0 LIST, 3 ms"
    process.answers(200, {"result": result, "line": line, "diagnostics": []})
    ended = declctl("reload", "--admin", process.address)
    assert ended.status == status
    assert line in (ended.err if result == "Refused" else ended.out)
    assert process.asked == [("POST", "/-/reload?wait=true", None)]


@pytest.mark.parametrize(("arguments", "path"), [((), "/-/rollback"), (("5",), "/-/rollback?generation=5")])
@pytest.mark.parametrize(("result", "status"), [("RolledBack", 0), ("Refused", 1)])
@pytest.mark.guarantee("G21")
def test_rollback_says_what_became_of_it(
    declctl: Callable, process: Process, arguments: tuple[str, ...], path: str, result: str, status: int
):
    """`declctl rollback` ends with 1 and what is in memory if the generation is not."""
    process.answers(422, {"result": result, "line": "so it was", "diagnostics": []})
    ended = declctl("rollback", *arguments, "--admin", process.address)
    assert ended.status == status
    assert "so it was" in (ended.err if status else ended.out)
    assert process.asked == [("POST", path, None)]


@pytest.mark.guarantee("G21", "G25")
def test_history_lists_the_attempts(declctl: Callable, process: Process):
    """One line for each, and a star at what can come back; json is the document."""
    first = {
        "generation": 1,
        "time": "2026-01-01T12:00:00Z",
        "result": "Applied",
        "bundleHash": "4f2c" * 16,
        "reason": "Started",
        "message": "",
        "changes": [],
    }
    second = {**first, "generation": 2, "reason": "Applied", "changes": ["~handler notify (code)"]}
    refused = {**second, "result": "Refused", "reason": "SyntaxError", "message": "handlers.py:4: no"}
    process.answers(200, {"attempts": [first, second, refused], "inMemory": [2]})
    lines = declctl("history", "--admin", process.address).out.splitlines()
    assert [line.split()[0] for line in lines] == ["GENERATION", "1", "2*", "2"]
    assert "4f2c4f2c4f2c " in lines[1]
    assert lines[2].endswith("~handler notify (code)")
    assert lines[3].endswith("handlers.py:4: no")
    shown = declctl("history", "--admin", process.address, "-o", "json")
    assert json.loads(shown.out)["inMemory"] == [2]


@pytest.mark.guarantee("G25")
def test_a_refused_reload_shows_each_fault(declctl: Callable, process: Process):
    """Whoever reloads sees where the files are broken."""
    document = {
        "result": "Refused",
        "line": "reload refused, generation 6 goes on: 1 error",
        "diagnostics": [FAULT],
    }
    process.answers(422, document)
    ended = declctl("reload", "--admin", process.address)
    assert "handlers/pods.py:14:3: error DCL042: invalid syntax" in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("order", ["reload", "rollback"])
@pytest.mark.guarantee("G25")
def test_a_refusal_says_what_to_do(declctl: Callable, process: Process, order: str):
    """Where no located fault says it, the last line does."""
    line, advice = "reload refused, generation 6 goes on: v1 Secret: forbidden", "grant list and watch"
    process.answers(422, {"result": "Refused", "line": line, "suggestion": advice, "diagnostics": []})
    ended = declctl(order, "--admin", process.address)
    assert (ended.status, ended.out, ended.err) == (1, "", f"{line}\n  help: {advice}\n")


@pytest.mark.guarantee("G25")
def test_a_process_that_stops_has_not_reloaded(declctl: Callable, process: Process):
    """The files were not tried: that is no success."""
    document = {"result": "Unchanged", "reason": "Stopping", "line": "it is stopping", "diagnostics": []}
    process.answers(503, document)
    ended = declctl("reload", "--admin", process.address)
    assert (ended.status, ended.out, ended.err) == (1, "", "it is stopping\n")


@pytest.mark.parametrize("order", ["reload", "rollback"])
@pytest.mark.guarantee("G25")
def test_a_fault_of_the_process_is_no_fault_of_the_files(declctl: Callable, process: Process, order: str):
    """3, and what the process has said of it."""
    process.answers(500, {"error": "This is a fault in declctl itself: NameError: x"})
    ended = declctl(order, "--admin", process.address)
    assert (ended.status, ended.out) == (3, "")
    assert ended.err == "declctl: This is a fault in declctl itself: NameError: x\n"


@pytest.mark.parametrize(("reason", "status"), [("Invalid", 1), ("InternalError", 3)])
@pytest.mark.guarantee("G25")
def test_a_refusal_says_by_its_exit_status_whose_fault_it_is(
    declctl: Callable, process: Process, reason: str, status: int
):
    """1 if the files have to be mended, 3 if declctl has."""
    process.answers(
        422, {"result": "Refused", "reason": reason, "line": "reload refused: no", "diagnostics": []}
    )
    ended = declctl("reload", "--admin", process.address)
    assert (ended.status, ended.out) == (status, "")
    assert ended.err == "reload refused: no\n"


@pytest.mark.guarantee("G25")
def test_an_order_whose_end_is_not_told_is_no_success(
    declctl: Callable, monkeypatch: pytest.MonkeyPatch, folder: Path
):
    """A reload that takes longer than anybody waits: 2, and where its end can be read."""
    monkeypatch.setattr("declctl.cli.remote.RELOAD_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ended = declctl("reload", "--admin", f"127.0.0.1:{silent.getsockname()[1]}")
    assert ended.status == 2
    assert "`declctl history` will show it" in ended.err


def test_reload_need_not_wait(declctl: Callable, process: Process):
    """--no-wait asks and goes."""
    process.answers(202, {"message": "reloading"})
    ended = declctl("reload", "--no-wait", "--admin", process.address)
    assert (ended.status, ended.out) == (0, "reloading\n")
    assert process.asked[0][1] == "/-/reload?wait=false"


def test_reload_can_be_forced(declctl: Callable, process: Process):
    """--force asks for new code although no file has changed that the bundle reads."""
    process.answers(202, {"message": "reloading"})
    assert declctl("reload", "--force", "--no-wait", "--admin", process.address).status == 0
    assert process.asked[0][:2] == ("POST", "/-/reload?wait=false&force=true")


def test_a_level_can_be_changed_for_a_time(declctl: Callable, process: Process):
    """The level and the time are in the order, and the answer is shown; another level is refused here."""
    process.answers(200, {"message": "the log level is debug, and was info", "before": "info"})
    ended = declctl("loglevel", "debug", "--for", "10m", "--admin", process.address)
    assert (ended.status, ended.out) == (0, "the log level is debug, and was info\n")
    assert process.asked[0][:2] == ("POST", "/-/loglevel?level=debug&for=10m")
    assert declctl("loglevel", "loud", "--admin", process.address).status == 2
    assert len(process.asked) == 1


def test_a_queue_is_read_up_to_a_limit(declctl: Callable, process: Process):
    """The limit is that of the request; with -o json, the document is shown as it is."""
    document = {"handler": "notify", "waiting": 0, "leftOut": 0, "items": []}
    process.answers(200, document)
    ended = declctl("get", "queue", "notify", "--limit", "5", "-o", "json", "--admin", process.address)
    assert (ended.status, json.loads(ended.out)) == (0, document)
    assert process.asked[0][:2] == ("GET", "/queue/notify?limit=5")
    process.answers(404, {"error": "No handler is named nobody; the manifest declares notify."})
    ended = declctl("get", "queue", "nobody", "--admin", process.address)
    assert (ended.status, ended.out) == (2, "")
    assert "the manifest declares notify" in ended.err


def _manifest_of(folder: Path, process: Process, name: str) -> None:
    text = MANIFEST.replace("name: c}", f"name: {name}}}")
    admin = f'  admin: {{bindAddress: "{process.address}"}}\n'
    (folder / "manifest.yaml").write_text(text + admin)


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["history"],
        ["reload"],
        ["rollback"],
        ["why", "pods/a/b"],
        ["get", "deadletters"],
        ["get", "queue", "notify"],
        ["loglevel", "debug"],
    ],
)
def test_another_controller_than_that_of_the_folder_is_not_talked_to(
    declctl: Callable, process: Process, folder: Path, command: list[str]
):
    """Two controllers on one machine: what answers at the address may be the other one."""
    _manifest_of(folder, process, "node-guard")
    ended = declctl(*command)
    assert (ended.status, ended.out) == (2, "")
    for part in (f"pod-guard answers at {process.address}", "node-guard", f"--admin {process.address}"):
        assert part in ended.err


@pytest.mark.parametrize("order", ["reload", "rollback"])
def test_an_order_with_a_named_address_is_what_the_user_wants(
    declctl: Callable, process: Process, folder: Path, order: str
):
    """With --admin no name is compared; with the right manifest none is in the way."""
    _manifest_of(folder, process, "node-guard")
    process.answers(200, {"result": "Applied", "line": "done", "diagnostics": []})
    assert declctl(order, "--admin", process.address).out == "done\n"
    _manifest_of(folder, process, "pod-guard")
    assert declctl(order).out == "done\n"
