"""Where `declctl status` and `declctl reload` ask, and what happens when nobody answers."""

import socket
from collections.abc import Callable

import pytest

from declctl.cli.admin_client import admin_address
from declctl.errors import UsageError
from tests.rooms.cli.answering import STATUS, Process
from tests.rooms.cli.conftest import MANIFEST

NAMED = f"{MANIFEST}  nonsense: 1\n  admin: {{bindAddress: '127.0.0.1:9000'}}\n"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        # One for all interfaces is asked on loopback.
        (f"{MANIFEST}  admin: {{bindAddress: '127.0.0.1:9000'}}\n", "127.0.0.1:9000"),
        (f"{MANIFEST}  admin: {{bindAddress: '0.0.0.0:9000'}}\n", "127.0.0.1:9000"),
        (f"{MANIFEST}  admin: {{bindAddress: ':9000'}}\n", "127.0.0.1:9000"),
        (f"{MANIFEST}  admin: {{bindAddress: '[::]:9000'}}\n", "[::1]:9000"),
        # While the manifest has a fault, the process goes on.
        (NAMED, "127.0.0.1:9000"),
        (f"# nothing yet\n---\n{NAMED}", "127.0.0.1:9000"),
        (f"- 1\n---\n{NAMED}", "127.0.0.1:9000"),
        # The default, without a manifest that names one.
        ("", "127.0.0.1:8081"),
        ("a: [", "127.0.0.1:8081"),
        (MANIFEST + "  nonsense: 1\n", "127.0.0.1:8081"),
        ("- 1\n---\nkind: Controller\n", "127.0.0.1:8081"),
    ],
)
def test_the_manifest_of_the_folder_says_where(folder, text, asked):
    """In the folder of the manifest no address is needed."""
    (folder / "manifest.yaml").write_text(text)
    assert str(admin_address(None)) == asked


def test_any_free_port_can_not_be_guessed(write):
    """With port 0 in the manifest the sentence says where to find the real one."""
    write("manifest.yaml", f"{MANIFEST}  admin: {{bindAddress: '127.0.0.1:0'}}\n")
    with pytest.raises(UsageError, match="say with --admin"):
        admin_address(None)


@pytest.mark.parametrize("command", ["status", "tap", "top"])
def test_nobody_there_is_told_with_the_address(declctl, folder, command):
    """When nothing runs, the exit status is 2 and the sentence names the address and how to say another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    said = declctl.refused(command, "--admin", address)
    assert [words in said for words in (address, "--admin", "Is `declctl run` running?")] == [True] * 3
    assert said.count("\n") == 1


@pytest.mark.parametrize("admin", ["8081", "http://127.0.0.1:8081", "host:99999"])
def test_a_mistyped_address_is_a_usage_error(declctl, folder, admin):
    """A wrong --admin says how one is written."""
    assert declctl.refused("status", "--admin", admin).startswith("declctl: --admin: ")


@pytest.fixture(name="elsewhere")
def _elsewhere(write, process: Process, monkeypatch: pytest.MonkeyPatch) -> Process:
    """The folder has a manifest of somebody else, which names an address that is not this machine's."""
    process.address = f"declctl.evil.example:{process.address.rpartition(':')[2]}"
    write("manifest.yaml", f"{MANIFEST}  admin: {{bindAddress: '{process.address}'}}\n")
    write("handlers.py", "def f(change):\n    pass\n")
    connect = socket.create_connection
    monkeypatch.setattr(
        "socket.create_connection",
        lambda where, *rest: connect(("127.0.0.1", where[1]), *rest),  # whoever has that name
    )
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "secret")
    return process


@pytest.mark.parametrize(
    "command", ["status", "history", "reload", "rollback", "plan .", "plan . --against running"]
)
def test_a_manifest_can_not_have_the_token_sent_to_it(declctl, elsewhere, command):
    """Who asks in the folder of a cloned repository gives the token to nobody but whom --admin names."""
    declctl(*command.split())
    assert {shown for _, _, shown in elsewhere.asked} == {None}
    declctl("status", "--admin", elsewhere.address)
    assert elsewhere.asked[-1] == ("GET", "/status", "Bearer secret")


@pytest.mark.parametrize("token", ["secret", "secret\n"])
def test_the_token_goes_along(ask, process, monkeypatch, token):
    """That of a file may end in a newline; one that no header can carry is the user's fault."""
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", token)
    ask.done("status")
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "a\nX-Other: b")
    assert "DECLCTL_ADMIN_TOKEN" in ask.refused("status")
    assert process.asked == [("GET", "/status", "Bearer secret")]


def test_a_proxy_never_hears_of_it(ask, monkeypatch):
    """HTTP_PROXY is for the world outside: the token and the status do not pass through it."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    ask.done("status")


@pytest.mark.parametrize(
    "body",
    [
        *(b"<html>hello</html>", b"[]", b"{}", b'{"name": "c"}', b"null", b"\xff"),
        *(b"[" * 100_000, b'{"a":' * 100_000),
    ],
)
@pytest.mark.parametrize("command", ["status", "history"])
def test_an_odd_answer_is_no_fault_of_declctl(ask, process, command, body):
    """Another program at the address may answer with anything."""
    process.body = body
    assert "is not declctl" in ask.refused(command)


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        (("status",), 403, "This address answers to others."),
        (("history",), 403, "This address answers to others."),
        (("reload",), 401, "/-/reload needs the header."),
        (("tap", "notifi"), 404, "No handler is named notifi; did you mean notify?"),
        (("why", "configmaps/a/b"), 404, "The cluster has no v1 ConfigMap a/b"),
        (("get", "queue", "nobody"), 404, "No handler is named nobody; the manifest declares notify."),
    ],
)
def test_a_refusal_is_the_sentence_of_the_process(ask, process, command, status, error):
    """A wrong token, a name that the address does not answer to, or what it does not have."""
    process.answers(status, {"error": error})
    assert ask.refused(*command) == f"declctl: {error}\n"


def test_status_is_the_document_or_begins_with_name_and_generation(ask, process):
    """`-o json` prints that of GET /status and nothing else; who has no token sees that there is more."""
    ended = ask("status", "-o", "json")
    assert (ended.document, ended.err) == (STATUS, "")
    assert ask("status").lines[0] == "pod-guard generation 6"
    process.answers(200, {**STATUS, "redacted": True})
    ended = ask("status")
    assert ended.lines[0] == "pod-guard generation 6"
    assert "DECLCTL_ADMIN_TOKEN" in ended.err


def outcome(result: str, line: str, **more: object) -> dict[str, object]:
    """What a process answers to an order."""
    return {"result": result, "line": line, "diagnostics": [], **more}


@pytest.mark.parametrize(
    ("order", "path", "result", "status"),
    [
        *(("reload", "reload?wait=true", result, 0) for result in ("Applied", "Unchanged")),
        ("reload", "reload?wait=true", "Refused", 1),
        *(("rollback", "rollback", result, status) for result, status in (("RolledBack", 0), ("Refused", 1))),
        ("rollback 5", "rollback?generation=5", "RolledBack", 0),
    ],
)
@pytest.mark.guarantee("G21", "G25")
def test_an_order_says_what_became_of_it(ask, process, order, path, result, status):
    """It ends with 0 when the files, or the generation, are what runs, and with 1 when that was refused."""
    process.answers(422 if status else 200, outcome(result, "so it was"))
    ended = ask(*order.split())
    assert ended.status == status
    assert "so it was" in (ended.err if status else ended.out)
    assert process.asked == [("POST", f"/-/{path}", None)]


@pytest.mark.guarantee("G21", "G25")
def test_history_lists_the_attempts(ask, process):
    """One line for each, with what runs and what is kept; json is the document."""
    first = {"generation": 1, "time": "2026-01-01T12:00:00Z", "result": "Applied", "reason": "Started"}
    first |= {"bundleHash": "4f2c" * 16, "message": "", "changes": []}
    second = {**first, "generation": 2, "reason": "Applied", "changes": ["~handler notify (code)"]}
    refused = {**second, "result": "Refused", "reason": "SyntaxError", "message": "handlers.py:4: no"}
    process.answers(200, {"attempts": [first, second, refused], "generation": 2, "kept": [1]})
    lines = ask("history").lines
    assert [line.split("  ")[0] for line in lines] == ["GENERATION", "1 (kept)", "2 (runs)", "2"]
    assert "4f2c4f2c4f2c " in lines[1]
    assert lines[2].endswith("~handler notify (code)")
    assert lines[3].endswith("handlers.py:4: no")
    assert ask("history", "-o", "json").document["kept"] == [1]


@pytest.mark.guarantee("G25")
def test_a_refused_reload_shows_each_fault(ask, process):
    """Whoever reloads sees where the files are broken."""
    fault = {"file": "handlers/pods.py", "line": 14, "column": 3, "code": "DCL042", "severity": "error"}
    fault |= {"message": "invalid syntax", "suggestion": None}
    process.answers(422, outcome("Refused", "reload refused, generation 6 goes on", diagnostics=[fault]))
    assert "handlers/pods.py:14:3: error DCL042: invalid syntax" in ask.refused("reload", status=1)


@pytest.mark.parametrize("order", ["reload", "rollback"])
@pytest.mark.guarantee("G25")
def test_a_refusal_says_what_to_do(ask, process, order):
    """Where no located fault says it, the last line does."""
    line, advice = "reload refused, generation 6 goes on: v1 Secret: forbidden", "grant list and watch"
    process.answers(422, outcome("Refused", line, suggestion=advice))
    assert ask.refused(order, status=1) == f"{line}\n  help: {advice}\n"


FAULT = "This is a fault in declctl itself: NameError: x"


@pytest.mark.parametrize(
    ("order", "http", "document", "status", "said"),
    [
        # The files were not tried: that is no success.
        ("reload", 503, outcome("Unchanged", "it is stopping", reason="Stopping"), 1, "it is stopping\n"),
        # 1 if the files have to be mended, 3 if declctl has.
        ("reload", 422, outcome("Refused", "refused: no", reason="Invalid"), 1, "refused: no\n"),
        ("reload", 422, outcome("Refused", "refused: no", reason="InternalError"), 3, "refused: no\n"),
        ("reload", 500, {"error": FAULT}, 3, f"declctl: {FAULT}\n"),
        ("rollback", 500, {"error": FAULT}, 3, f"declctl: {FAULT}\n"),
    ],
)
@pytest.mark.guarantee("G25")
def test_a_refusal_says_by_its_status_whose_fault_it_is(ask, process, order, http, document, status, said):
    process.answers(http, document)
    assert ask.refused(order, status=status) == said


@pytest.mark.guarantee("G25")
def test_an_order_whose_end_is_not_told_is_no_success(declctl, monkeypatch, folder):
    """A reload that takes longer than anybody waits: 2, and where its end can be read."""
    monkeypatch.setattr("declctl.cli.remote.RELOAD_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = declctl.refused("reload", "--admin", f"127.0.0.1:{silent.getsockname()[1]}")
    assert "`declctl history` will show it" in said


def test_reload_need_not_wait_and_can_be_forced(ask, process):
    """--no-wait asks and goes; --force asks for new code although no file of the bundle has changed."""
    process.answers(202, {"message": "reloading"})
    assert ask.done("reload", "--no-wait").out == "reloading\n"
    ask.done("reload", "--force", "--no-wait")
    paths = ["/-/reload?wait=false", "/-/reload?wait=false&force=true"]
    assert process.asked == [("POST", path, None) for path in paths]


def test_a_level_can_be_changed_for_a_time(ask, process):
    """The level and the time are in the order, and the answer is shown; another level is refused here."""
    process.answers(200, {"message": "the log level is debug, and was info", "before": "info"})
    assert ask.done("loglevel", "debug", "--for", "10m").out == "the log level is debug, and was info\n"
    assert ask("loglevel", "loud").status == 2
    assert process.asked == [("POST", "/-/loglevel?level=debug&for=10m", None)]


def test_a_queue_is_read_up_to_a_limit(ask, process):
    """The limit is that of the request; with -o json, the document is shown as it is."""
    document = {"handler": "notify", "waiting": 0, "leftOut": 0, "items": []}
    process.answers(200, document)
    assert ask.done("get", "queue", "notify", "--limit", "5", "-o", "json").document == document
    assert process.asked[0][:2] == ("GET", "/queue/notify?limit=5")


@pytest.fixture(name="manifest_of")
def _manifest_of(write, process: Process) -> Callable[[str], None]:
    """Writes a manifest of a controller with this name at the address of the process."""

    def manifest_of(name: str) -> None:
        text = MANIFEST.replace("name: c}", f"name: {name}}}")
        write("manifest.yaml", f'{text}  admin: {{bindAddress: "{process.address}"}}\n')

    return manifest_of


@pytest.mark.parametrize(
    "command",
    [
        *("status", "history", "reload", "rollback", "why pods/a/b", "get deadletters", "get queue notify"),
        *("loglevel debug", "tap"),
    ],
)
def test_another_controller_than_that_of_the_folder_is_not_talked_to(declctl, process, manifest_of, command):
    """Two controllers on one machine: what answers at the address may be the other one."""
    manifest_of("node-guard")
    said = declctl.refused(*command.split())
    assert f"Nothing was done: pod-guard answers at {process.address}" in said
    assert ("node-guard" in said, f"--admin {process.address}" in said) == (True, True)


@pytest.mark.parametrize("order", ["reload", "rollback"])
def test_an_order_with_a_named_address_is_what_the_user_wants(declctl, ask, process, manifest_of, order):
    """With --admin no name is compared; with the right manifest none is in the way."""
    process.answers(200, outcome("Applied", "done"))
    for name, by in (("node-guard", ask), ("pod-guard", declctl)):
        manifest_of(name)
        assert by(order).out == "done\n"
