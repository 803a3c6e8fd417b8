"""What gave way, what was taken back, what needs a new process: told as well, and as what it is (G25)."""

import re
import subprocess
import sys

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.behaviour.failing.fixtures import (  # noqa: F401 - some are fixtures
    Run,
    _ask,
    _scene,
    _well_again,
    is_well,
    rows_of,
    world_of,
)
from tests.behaviour.failing.scene import HANDLERS, MANIFEST, Scene
from tests.rooms.cli.conftest import _declctl  # noqa: F401 - a fixture

_PROBATION = MANIFEST.replace("settle: 20ms", "settle: 20ms, probationPeriod: 1h, minCalls: 5")
_DROPS = "transform: {dropFields: [metadata.managedFields, data.size]}"
_FAILING = HANDLERS.replace("    print(", "    raise ValueError('no good')\n    print(")


@pytest.mark.thorough
@pytest.mark.guarantee("G25")
def test_an_edit_that_gives_way_is_told_and_is_no_failure(scene: Scene, ask: Run) -> None:
    """Who waits for it gets the outcome of the newer one; the condition stays true."""
    number, counted, logged = world_of(scene.text)["generation"], scene.text.metrics(), len(scene.text.err)
    scene.sandbox.faults.delay(3600.0, Match(resource="secrets"))
    asked = scene.sandbox.ledger.requests
    before = len(asked())
    more = "    - {name: secrets, apiVersion: v1, kind: Secret}\n  handlers:\n"
    scene.bundle.write("manifest.yaml", MANIFEST.replace("  handlers:\n", more))
    command = [sys.executable, "-m", "declctl", "reload", "--admin", scene.text.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        until("it is staged", lambda: "secrets" in {r.resource for r in asked()[before:]}, timeout=30)
        scene.bundle.write("manifest.yaml", MANIFEST)
        scene.bundle.write("handlers.py", f"{HANDLERS}X = 1\n")
        second = ask("reload")
        out, err = first.communicate(timeout=30)
    scene.sandbox.faults.clear()
    assert (second.status, first.returncode, out, err) == (0, 0, second.out, "")
    assert out.startswith(f"generation {number + 1}: ~handler tell (code), 0 LIST, ")
    assert scene.text.attempts_since(counted) == {"Superseded": 1, "Applied": 1}
    (line,) = scene.text.logged_text("given up", after=logged)
    given_up = r"\S+Z reload of <digest> given up after \d+ ms: files have changed again"
    assert re.fullmatch(given_up, scene.told(line))
    rows = rows_of(ask("history").out, scene)
    assert [(row[2], row[4]) for row in rows[-2:]] == [("Superseded", "Superseded"), ("Applied", "Applied")]
    is_well(scene, ask, number + 1, reason="Applied")


@pytest.mark.guarantee("G25")
def test_what_needs_a_new_process_is_told_until_there_is_one(scene: Scene, ask: Run) -> None:
    """A reload that does all but that is a success; the status goes on saying what is left, while it is."""
    number = world_of(scene.text)["generation"]
    elsewhere = f"{MANIFEST}  admin: {{bindAddress: '127.0.0.1:1'}}\n"
    scene.bundle.write("manifest.yaml", elsewhere)
    ended = ask("reload")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"generation {number + 1}: !admin.bindAddress, 0 LIST, ")
    assert ended.out.endswith("; admin.bindAddress takes effect when the process starts again\n")
    scene.site.install("2.0")
    scene.bundle.write("handlers.py", f"{HANDLERS}X = 4\n")
    assert "!plugin tester (1.0 is loaded, 2.0 is installed)" in ask("reload").out
    what = "admin.bindAddress and plugin tester (1.0 is loaded, 2.0 is installed)"
    left = f"{what} take effect when the process starts again"
    assert ask("status").out.splitlines()[0] == f"guard generation {number + 2} (RESTART REQUIRED: {left})"
    condition = scene.text.condition("Reloaded")
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "True",
        "RestartRequired",
        left,
    )
    scene.site.install("1.0")
    scene.bundle.write("manifest.yaml", MANIFEST)
    assert ask("reload").status == 0
    is_well(scene, ask, number + 3, reason="Applied")


@pytest.mark.thorough
@pytest.mark.guarantee("G21", "G25")
def test_code_that_is_taken_back_is_told_everywhere(scene: Scene, ask: Run) -> None:
    """`reload` has said that it is live; then status, metrics, log and history say why it is not any more."""
    counted, logged = scene.text.metrics(), len(scene.text.err)
    scene.bundle.write("manifest.yaml", _PROBATION)
    scene.bundle.write("handlers.py", _FAILING)
    assert ask("reload").status == 0
    bad = world_of(scene.text)["generation"]
    keys = [scene.new_object() for _ in range(6)]
    until("it is taken back", lambda: world_of(scene.text)["generation"] == bad + 1, timeout=30)
    for key in keys:
        scene.heard_by("good", key)
    why = (
        rf"from generation {bad} to {bad - 1}: \d+ of \d+ calls failed, of generation {bad - 1} 0 of \d+ "
        r"calls: tell \d+ of \d+ calls \(default/<object>: ValueError: no good\)"
    )
    again = "the files are tried again when they change"
    first, *_ = scene.told(ask("status").out).splitlines()
    assert re.fullmatch(rf"guard generation {bad + 1} \(ROLLED BACK 0s ago {why}; {again}\)", first)
    condition = scene.text.condition("Reloaded")
    assert (condition["status"], condition["reason"]) == ("False", "RolledBack")
    assert re.fullmatch(f"rolled back {why}", scene.told(condition["message"]))
    assert scene.text.attempts_since(counted) == {"Applied": 1, "RolledBack": 1}
    line = next(each for each in scene.text.logged_text("rolled back", after=logged) if "rolled back" in each)
    assert re.search(rf" error generation {bad + 1}: rolled back {why}, 0 LIST, \d+ ms ", scene.told(line))
    assert "mend the files: they are tried again when they change" in line
    row = rows_of(ask("history").out, scene)[-1]
    assert (row[0], row[2], row[4]) == (f"{bad + 1} (runs)", "RolledBack", "RolledBack")
    assert scene.text.is_ready()
    scene.bundle.write("handlers.py", f"{HANDLERS}X = 2\n")
    assert ask("reload").status == 0
    is_well(scene, ask, bad + 2, reason="Applied")


@pytest.mark.thorough
@pytest.mark.guarantee("G21", "G25")
def test_who_goes_back_by_hand_is_not_told_of_a_failure(scene: Scene, ask: Run) -> None:
    """The status says from where to where and that somebody wanted it; the log has it as information."""
    old = world_of(scene.text)["generation"]
    scene.bundle.write("manifest.yaml", _PROBATION)
    scene.bundle.write("handlers.py", f"{HANDLERS}X = 3\n")
    assert ask("reload").status == 0
    logged = len(scene.text.err)
    ended = ask("rollback")
    why = f"from generation {old + 1} to {old}: somebody asked for it"
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"generation {old + 2}: rolled back {why}, 0 LIST, ")
    first, *_ = scene.told(ask("status").out).splitlines()
    again = "the files are tried again when they change"
    assert first == f"guard generation {old + 2} (ROLLED BACK 0s ago {why}; {again})"
    line = scene.text.logged_text("rolled back", after=logged)[0]
    assert re.match(r"\S+Z generation ", line), "no warning"
    tried_again = ask("reload")
    assert (tried_again.status, tried_again.err) == (0, "")
    is_well(scene, ask, old + 3, reason="Applied")


@pytest.mark.thorough
@pytest.mark.guarantee("G6", "G21", "G25")
def test_a_way_back_that_is_closed_is_told(scene: Scene, ask: Run) -> None:
    """What was dropped has to be listed for it, and may not be: the new code goes on, and nothing is lost."""
    scene.bundle.write(
        "manifest.yaml", _PROBATION.replace("kind: ConfigMap}", f"kind: ConfigMap, {_DROPS}}}")
    )
    assert ask("reload").status == 0
    world, counted, logged = world_of(scene.text), scene.text.metrics(), len(scene.text.err)
    scene.sandbox.faults.refuse(403, Match(resource="configmaps"))
    ended = ask("rollback")
    scene.sandbox.faults.clear()
    why = "v1 ConfigMap in all namespaces: configmaps: 403 Forbidden: the sandbox was told to answer 403"
    line = f"rollback refused, generation {world['generation']} goes on: {why}"
    assert (ended.status, ended.out, ended.err.splitlines()[0]) == (1, "", line)
    assert ended.err.endswith("; `declctl rollback` tries it again\n")
    first, *_ = ask("status").out.splitlines()
    assert first == f"guard generation {world['generation']} (ROLLBACK REFUSED: Forbidden: {why})"
    condition = scene.text.condition("Reloaded")
    assert (condition["status"], condition["reason"]) == ("True", "RollbackRefused")
    assert f" error {line} " in scene.text.logged_text("rollback refused", after=logged)[0]
    row = rows_of(ask("history").out, scene)[-1]
    assert (row[2], *row[-2:]) == ("Refused", "Forbidden", f"rollback: {why}")
    assert scene.text.attempts_since(counted) == {"Refused": 1}
    assert world_of(scene.text) == world
    scene.heard_by("good", scene.new_object())
