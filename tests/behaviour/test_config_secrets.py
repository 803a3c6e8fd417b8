"""Configs of plugins with values of Secrets: read at the start and at each reload, and shown nowhere."""

import base64
import json

import pytest

from declctl.errors import ReloadRefused
from declctl.replay.replay import ReplayOptions, replay
from declctl.replay.tape import read_tape
from declctl.runtime.checking.check import check
from declctl.runtime.reloading import attempts
from declctl.sandbox.faults import Match
from declctl.testing import Logged, running, until
from declctl.testing.controller import CHILDREN

PLUGIN = """
import declctl
from blackboard import tell

@declctl.hookimpl
def declctl_config_schema():
    token = {"type": "string", "minLength": 8, "pattern": "^tok"}
    return {"properties": {"token": token, "level": {"type": "integer"}}, "required": ["token"]}

@declctl.hookimpl
def declctl_check_config(config): return [{"message": "no token of ours", "path": ["token"]}]

@declctl.hookimpl
def declctl_prepare(ctx): tell("prepare", ctx.config["token"])

@declctl.hookimpl
def declctl_event(change, ctx):
    tell("event", ctx.config["token"])
    raise ValueError("the pager refuses " + ctx.config["token"])
"""
FIRST, SECOND = "tok-5e6ea91c", "tok-77d0b2aa"
SOURCE = "{name: token, secretKeyRef: {name: pager, key: token}}"


@pytest.fixture(autouse=True)
def _plugin(install) -> None:
    """An installed plugin named `pager`."""
    install("pager", PLUGIN)


def secret(token: str, key: str = "token") -> dict:
    """The Secret of the manifest."""
    data = {key: base64.b64encode(token.encode()).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "pager", "namespace": "default"},
        "data": data,
    }


def _write(rig, source: str = SOURCE, *, code: str = ""):
    rig.more = f"  plugins:\n    - {{name: pager, config: {{level: 1}}, configFrom: [{source}]}}\n"
    retry = "retry: {maxAttempts: 1}"
    rig.handlers = [f"- {{name: it, resourceRef: {{name: maps}}, pluginRef: {{name: pager}}, {retry}}}"]
    rig.handler("tell")
    return rig.write(f"def tell(change): ...\n{code}")


def _place(rig, diagnostic) -> str:
    """The text of the manifest at which a diagnostic is shown."""
    lines = (rig.folder.path / "manifest.yaml").read_text().splitlines()
    return lines[diagnostic.line - 1][diagnostic.column - 1 :]


def test_the_value_arrives_and_is_shown_nowhere(rig, board, config_map, controller) -> None:
    """Without the line end of `kubectl create --from-file`. What the plugin raises has `(hidden)` for it."""
    _write(rig)
    runs = controller(rig.folder.path / "manifest.yaml", objects=[secret(f"{FIRST}\n"), config_map("m")])
    runs.wait_ready()
    until("it is called", lambda: rig.told("event"))
    runs.wait_idle()
    assert rig.told("prepare") == [("prepare", FIRST)]
    assert rig.told("event") == [("event", FIRST)]
    shown = json.dumps(runs.status().document()) + json.dumps(runs.runtime.running().document())
    shown += "\n".join(f"{line.event} {line.fields}" for line in runs.log.lines)
    assert "the pager refuses (hidden)" in shown
    assert FIRST not in shown
    assert base64.b64encode(f"{FIRST}\n".encode()).decode() not in shown


def test_a_recording_lacks_the_value_and_is_replayed(rig, board, config_map, tmp_path) -> None:
    """A replay gives `(hidden)` to the plugin. What quotes it is as it was."""
    recording = tmp_path / "night.rec"
    _write(rig)
    objects = [secret(FIRST), config_map("m")]
    with running(rig.folder.path / "manifest.yaml", objects=objects, record=recording) as controller:
        until("it is called", lambda: rig.told("event"))
        controller.wait_idle()
    tape, log = read_tape(recording), Logged()
    assert FIRST not in str([*tape.entries])
    found = replay(tape, ReplayOptions(), log=log, user_log=log.user_logger(), children=CHILDREN)
    assert (found.same, found.differences) == (2, [])
    assert rig.told("event") == [("event", FIRST), ("event", "(hidden)")]


@pytest.mark.thorough
def test_a_rotated_value_comes_with_the_next_reload(rig, board, config_map, controller) -> None:
    """`declctl reload` of the same files reads it again; without another value, nothing happens."""
    rig.reload_policy = "settle: 20ms"  # with a pre-flight, whose child knows no cluster
    _write(rig)
    runs = controller(rig.folder.path / "manifest.yaml", objects=[secret(FIRST)])
    runs.wait_ready()
    assert runs.reload().result == "Unchanged"
    runs.sandbox.patch("Secret", "pager", {"data": secret(SECOND)["data"]})
    outcome = runs.reload()
    assert (outcome.result, outcome.lists) == ("Applied", 0)
    assert "~plugin pager (config changed)" in outcome.line
    assert SECOND not in json.dumps(outcome.document())
    assert rig.told("prepare") == [("prepare", FIRST), ("prepare", SECOND)]
    runs.sandbox.create(config_map("m"))
    until("it is called", lambda: rig.told("event"))
    assert rig.told("event") == [("event", SECOND)]
    assert runs.reload().result == "Unchanged"
    _write(rig, code="X = 1\n")
    assert "plugin" not in runs.reload().line


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("found", "words", "place"),
    [
        (None, "the Secret default/pager is not in the cluster", "pager, key: token}"),
        (secret(SECOND, "other"), "the Secret default/pager has no key token", "token}"),
    ],
    ids=["Secret", "key"],
)
def test_a_reload_without_the_value_is_refused_and_tried_again(
    rig, board, controller, monkeypatch, found, words, place
) -> None:
    """The generation before goes on; when the value is there, the retry has it, and nobody asked."""
    monkeypatch.setattr(attempts, "FIRST_RETRY_SECONDS", 0.05)
    rig.handler("tell")
    rig.write("def tell(change): ...\n")
    runs = controller(rig.folder.path / "manifest.yaml", objects=[found] if found else [])
    runs.wait_ready()
    _write(rig)
    outcome = runs.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "SecretUnavailable")
    assert words in outcome.line
    (fault,) = outcome.diagnostics
    assert fault.code == "DCL057"
    assert _place(rig, fault).startswith(place)
    assert runs.runtime.generation == 1
    if found is None:
        runs.sandbox.create(secret(FIRST))
    else:
        runs.sandbox.patch("Secret", "pager", {"data": secret(FIRST)["data"]})
    until("it is applied", lambda: runs.advance(1) or runs.runtime.generation == 2)
    assert rig.told("prepare") == [("prepare", FIRST)]


def test_a_value_that_is_wrong_late_or_gone_refuses_a_reload_of_the_same_files(
    rig, board, controller, monkeypatch
) -> None:
    """The plugin keeps the value that it has, and gets the new one when it is there: it is tried again."""
    monkeypatch.setattr(attempts, "FIRST_RETRY_SECONDS", 0.05)
    rig.reload_policy = "warmTimeout: 3s, preflight: Off"
    _write(rig)
    runs = controller(rig.folder.path / "manifest.yaml", objects=[secret(FIRST)])
    runs.wait_ready()
    # A value that does not match the schema: the fault has place, key and Secret, and not the value.
    runs.sandbox.patch("Secret", "pager", {"data": secret("wrong-5e6ea91c")["data"]})
    outcome = runs.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "Invalid")
    assert "(of the key token of the Secret pager)" in outcome.line
    assert _place(rig, outcome.diagnostics[0]).startswith("{name: pager")
    assert "wrong-5e6ea91c" not in json.dumps(outcome.document())
    # A server that is silent holds up neither the process nor a rollback.
    runs.sandbox.faults.delay(30, Match("get", "secrets"))
    outcome = runs.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "SecretUnavailable")
    assert "were not read within 3 s" in outcome.line
    runs.sandbox.faults.clear()
    runs.sandbox.delete("Secret", "pager", "default")
    assert runs.reload().reason == "SecretUnavailable"
    assert rig.told("prepare") == [("prepare", FIRST)]
    runs.sandbox.create(secret(SECOND))
    until("it is applied", lambda: runs.advance(1) or runs.runtime.generation == 2)
    assert rig.told("prepare")[1:] == [("prepare", SECOND)]


def test_an_edit_that_is_taken_back_reads_no_secret(rig, board, controller) -> None:
    """Nobody asks for a new value: a Secret that is gone by now is no fault of the files that run.

    Somebody has asked, but the answer was a value that is wrong: that question has its answer.
    """
    _write(rig)
    runs = controller(rig.folder.path / "manifest.yaml", objects=[secret(FIRST)], watch=True)
    runs.wait_ready()
    runs.sandbox.patch("Secret", "pager", {"data": secret("wrong-5e6ea91c")["data"]})
    assert runs.reload().reason == "Invalid"
    runs.sandbox.delete("Secret", "pager", "default")
    _write(rig, code="def broken(:\n")
    until("it is refused", lambda: runs.condition("Reloaded").reason == "SecretUnavailable")
    _write(rig)
    until("it is as it was", lambda: runs.condition("Reloaded").status == "True")
    assert rig.told("prepare") == [("prepare", FIRST)]


def test_a_start_without_the_value_ends(rig, board, controller) -> None:
    """With the fault at its place; an API server that does not answer is one, too."""
    _write(rig)
    with pytest.raises(ReloadRefused, match="the Secret default/pager is not in the cluster") as refused:
        controller(rig.folder.path / "manifest.yaml").wait_ready()
    assert refused.value.reason == "SecretUnavailable"
    assert rig.told("prepare") == []


@pytest.mark.thorough
def test_a_check_needs_no_cluster_for_it(rig, board) -> None:
    """The required key counts as present, any value of it matches, and the rest is checked."""
    rig.reload_policy = "settle: 20ms"
    _write(rig)
    assert check(str(rig.folder.path), checks_configs=True).diagnostics == ()
    rig.more = rig.more.replace("level: 1", "level: x")
    rig.write()
    (fault,) = check(str(rig.folder.path)).errors
    assert (fault.code, _place(rig, fault)[:1]) == ("DCL082", "x")
