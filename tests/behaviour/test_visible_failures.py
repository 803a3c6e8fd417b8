"""A reload that fails can be read wherever somebody looks: status, metrics, log, history, exit status (G25).

Two processes have all failures in turn: each leaves the old code at work, and nothing behind (G6).
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec import structs

from declctl.admin import serve
from declctl.manifest.model import Address
from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.behaviour.failing.cases import CASES, Case
from tests.behaviour.failing.scene import HANDLERS, MANIFEST, Process, Scene, opened
from tests.rooms.cli.conftest import Ended, _declctl  # noqa: F401 - a fixture

_RESULTS = ("Applied", "Unchanged", "Refused", "RolledBack", "Superseded")
_PROBATION = MANIFEST.replace("settle: 20ms", "settle: 20ms, probationPeriod: 1h, minCalls: 5")
_DROPS = "transform: {dropFields: [metadata.managedFields, data.size]}"
_FAILING = HANDLERS.replace("    print(", "    raise ValueError('no good')\n    print(")
Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two processes over the same files, for all tests here."""
    with opened(tmp_path_factory.mktemp("failing")) as made:
        yield made


@pytest.fixture
def ask(scene: Scene, declctl: Run) -> Run:
    """Runs a command that asks a process, by default the one that logs text."""

    def run(*words: str, of: Process | None = None) -> Ended:
        return declctl(*words, "--admin", (of or scene.text).address)

    return run


@pytest.fixture(autouse=True)
def _well_again(scene: Scene, ask: Run) -> Iterator[None]:
    """Each test begins with good files that run, and without what others have arranged."""
    yield
    scene.mend()
    for process in (scene.text, scene.json):
        if process.runs(scene.good):
            continue
        assert ask("reload", of=process).status == 0
        until("one generation is left", lambda p=process: p.metrics()["declctl_generations_alive",] == 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.guarantee("G6", "G25")
def test_a_refusal_is_told_everywhere_and_changes_nothing_else(case: Case, scene: Scene, ask: Run) -> None:
    """Where it is, why, and what to do; the old code goes on, and once it is mended nothing is left of it."""
    world, counted, logged = _world(scene.text), scene.text.metrics(), len(scene.text.err)
    number = world["generation"]
    line = f"reload refused, generation {number} goes on: {case.message}"
    try:
        case.write(scene)
        _is_told_by_the_command(case, line, ask, scene)
        _is_told_by_the_status(case, number, ask, scene)
        _is_told_by_the_log(case, line, scene.text.logged_text("reload refused", after=logged), scene)
        _is_told_to_programs(case, line, ask, scene)
        row = _rows(ask("history").out, scene)[-1]
        assert (row[0].rstrip("*"), row[2], *row[-2:]) == (str(number), "Refused", case.reason, case.message)
        assert scene.text.attempts_since(counted) == {"Refused": 1}
        assert _world(scene.text) == world
        assert scene.text.is_ready()
        scene.heard_by("good", scene.new_object())
    finally:
        case.put_right(scene)
    scene.mend()
    mended = ask("reload")
    assert (mended.status, mended.out, mended.err) == (0, f"generation {number}: nothing changed\n", "")
    _is_well(scene, ask, number, reason="Unchanged")


def _is_told_by_the_command(case: Case, line: str, ask: Run, scene: Scene) -> None:
    """`declctl reload` ends with 1; stderr has the line, the place and the advice, stdout nothing."""
    ended = ask("reload", "--wait")
    told = scene.told(ended.err).splitlines()
    assert (ended.status, ended.out, told[0]) == (1, "", line)
    assert _advice(told) == ([case.advice] if case.advice else [])


def _is_told_by_the_status(case: Case, number: int, ask: Run, scene: Scene) -> None:
    """The first line, the condition, and the same as JSON."""
    status = ask("status")
    document = json.loads(ask("status", "-o", "json").out)
    conditions = {each["type"]: each for each in document["conditions"]}
    said = scene.told(conditions["Reloaded"]["message"])
    assert said.removeprefix("<digest>: ") == case.message
    told = [(kind, each["status"], each["reason"]) for kind, each in conditions.items()]
    assert told == [
        ("Ready", "True", "Synced"),
        ("Reloaded", "False", case.reason),
        ("Degraded", "False", "AsExpected"),
    ]
    first, *_ = scene.told(status.out).splitlines()
    assert first == f"guard generation {number} (STALE: reload failed 0s ago: {case.reason}: {said})"
    assert ["Reloaded", "False", case.reason, "0s", said] in _rows(status.out, scene)


def _is_told_by_the_log(case: Case, line: str, lines: Sequence[str], scene: Scene) -> None:
    """One line of the level error, and below it the source with the place."""
    told = [scene.told(each) for each in lines]
    assert re.fullmatch(rf"\d\d:\d\d:\d\d error {re.escape(line)}( .*)?", told[0])
    assert case.reason in told[0]
    place = re.match(r"[\w.]+:\d+", case.message)
    if place and ".py:" in place[0]:
        assert f"{place[0]}:" in told[1]
        assert "|" in told[2], "the source line"
    if case.advice:
        assert case.advice in "\n".join(told)


def _is_told_to_programs(case: Case, line: str, ask: Run, scene: Scene) -> None:
    """A process that logs JSON has the same in fields, and so has `declctl reload -o json`."""
    logged = len(scene.json.err)
    ended = ask("reload", "-o", "json", of=scene.json)
    document = json.loads(ended.out)
    assert (ended.status, ended.err) == (1, "")
    assert (document["result"], document["reason"]) == ("Refused", case.reason)
    assert scene.told(document["message"]) == case.message
    entry = scene.json.logged_json(lambda each: each.get("reason") == case.reason, after=logged)
    assert (entry["level"], scene.told(entry["event"])) == ("error", scene.told(document["line"]))
    for told in (document, entry):
        advised = [told.get("suggestion"), *(fault["suggestion"] for fault in told["diagnostics"])]
        assert [each for each in advised if each] == ([case.advice] if case.advice else [])
    assert line.partition(" goes on: ")[2] == scene.told(entry["event"]).partition(" goes on: ")[2]


@pytest.mark.guarantee("G6", "G25")
def test_an_object_that_cannot_be_decoded_anew_is_named(rig: Any, config_map: Run, declctl: Run) -> None:
    """Its bytes in memory are damaged, which no file and no server can do: refused, and all is as it was."""
    rig.handler("tell")
    code = "from blackboard import tell as note\ndef tell(change): note(str(change.key))\n"
    runs = rig.run(code, objects=[config_map("well"), config_map("odd")])
    runs.wait_idle()
    runs._on_machinery(_damaged(runs, "odd"), 10)
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMap, cache: {mode: Objects}}"]
    rig.write()

    async def ask(*words: str) -> Ended:
        async with serve(runs.runtime, Address("127.0.0.1", 0)) as bound:
            return await asyncio.to_thread(declctl, *words, "--admin", str(bound))

    ended = runs._on_machinery(ask("reload"), 30)
    why = "v1 ConfigMap in all namespaces: default/odd can't be made anew: "
    advice = "keep the cache as it was, or let the process start again, which lists it anew"
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"reload refused, generation 1 goes on: {why}")
    assert ended.err.endswith(f"\n  help: {advice}\n")
    first, *_ = runs._on_machinery(ask("status"), 30).out.splitlines()
    assert re.match(
        rf"behaviour generation 1 \(STALE: reload failed \ds ago: ReprojectFailed: \w+: {why}", first
    )
    assert runs.status().reloads == {"Refused": 1}
    line = runs.log.find(why)
    assert (line.level, line.fields["reason"], line.fields["suggestion"]) == (
        "error",
        "ReprojectFailed",
        advice,
    )
    assert runs.status().ready
    runs.sandbox.create(config_map("new"))
    runs.wait_idle()
    assert rig.told("default/new") == [("default/new",)]
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMap}"]
    rig.write()
    assert runs._on_machinery(ask("reload"), 30).status == 0
    assert runs.condition("Reloaded").status == "True"


async def _damaged(runs: Any, name: str) -> None:
    (cached,) = runs.runtime._caches.all()
    (record,) = (each for each in cached.informer.indexer.list() if each.key.endswith(name))
    cached.informer.indexer.update(structs.replace(record, frame=b"\x00broken"))


@pytest.mark.guarantee("G12", "G25")
def test_an_index_function_that_raises_is_named_with_object_and_line(scene: Scene, ask: Run) -> None:
    """It keeps neither a reload away nor its object out of the cache; whoever looks is told where."""
    logged = len(scene.text.err)
    index = "kind: ConfigMap, indexers: [{name: byWeight, entryPoint: 'handlers:by_weight'}]}"
    scene.bundle.write("manifest.yaml", MANIFEST.replace("kind: ConfigMap}", index))
    scene.bundle.write("handlers.py", f"{HANDLERS}def by_weight(obj):\n    return [obj['data']['weight']]\n")
    assert ask("reload").status == 0
    (line,) = scene.text.logged_text("index byWeight failed", after=logged)
    fault = r"KeyError on default/<object> at handlers\.py:11: 'weight'"
    assert re.search(rf"warning maps: index byWeight failed \d+ times; the last: {fault}", scene.told(line))
    (maps,) = (r for r in _rows(ask("status").out, scene) if r[0] == "maps")
    assert re.fullmatch(rf"Watching, index byWeight failed \d+ times \(the last: {fault}\)", maps[-1])
    count = scene.text.metrics()["declctl_index_failures_total", "byWeight", "maps"]
    assert count == scene.text.resource("maps")["objects"]
    scene.heard_by("good", scene.new_object())


@pytest.mark.guarantee("G25")
def test_an_edit_that_gives_way_is_told_and_is_no_failure(scene: Scene, ask: Run) -> None:
    """Who waits for it gets the outcome of the newer one; the condition stays true."""
    number, counted, logged = _world(scene.text)["generation"], scene.text.metrics(), len(scene.text.err)
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
    given_up = r"\d\d:\d\d:\d\d reload of <digest> given up after \d+ ms: files have changed again"
    assert re.fullmatch(given_up, scene.told(line))
    rows = _rows(ask("history").out, scene)
    assert [(row[2], row[4]) for row in rows[-2:]] == [("Superseded", "Superseded"), ("Applied", "Applied")]
    _is_well(scene, ask, number + 1, reason="Applied")


@pytest.mark.guarantee("G25")
def test_what_needs_a_new_process_is_told_until_there_is_one(scene: Scene, ask: Run) -> None:
    """A reload that does all but that is a success; the status goes on saying what is left, while it is."""
    number = _world(scene.text)["generation"]
    elsewhere = f"{MANIFEST}  admin: {{bindAddress: '127.0.0.1:1'}}\n"
    scene.bundle.write("manifest.yaml", elsewhere)
    ended = ask("reload")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"generation {number + 1}: !admin.bindAddress, 0 LIST, ")
    scene.site.install("2.0")
    scene.bundle.write("handlers.py", f"{HANDLERS}X = 4\n")
    assert "!plugin tester (1.0 is loaded, 2.0 is installed)" in ask("reload").out
    left = "admin.bindAddress; plugin tester (1.0 is loaded, 2.0 is installed)"
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
    _is_well(scene, ask, number + 3, reason="Applied")


@pytest.mark.guarantee("G21", "G25")
def test_code_that_is_taken_back_is_told_everywhere(scene: Scene, ask: Run) -> None:
    """`reload` has said that it is live; then status, metrics, log and history say why it is not any more."""
    counted, logged = scene.text.metrics(), len(scene.text.err)
    scene.bundle.write("manifest.yaml", _PROBATION)
    scene.bundle.write("handlers.py", _FAILING)
    assert ask("reload").status == 0
    bad = _world(scene.text)["generation"]
    keys = [scene.new_object() for _ in range(6)]
    until("it is taken back", lambda: _world(scene.text)["generation"] == bad + 1, timeout=30)
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
    row = _rows(ask("history").out, scene)[-1]
    assert (row[0], row[2], row[4]) == (f"{bad + 1}*", "RolledBack", "RolledBack")
    assert scene.text.is_ready()
    scene.bundle.write("handlers.py", f"{HANDLERS}X = 2\n")
    assert ask("reload").status == 0
    _is_well(scene, ask, bad + 2, reason="Applied")


@pytest.mark.guarantee("G21", "G25")
def test_who_goes_back_by_hand_is_not_told_of_a_failure(scene: Scene, ask: Run) -> None:
    """The status says from where to where and that somebody wanted it; the log has it as information."""
    old = _world(scene.text)["generation"]
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
    assert re.match(r"\d\d:\d\d:\d\d generation ", line), "no warning"
    tried_again = ask("reload")
    assert (tried_again.status, tried_again.err) == (0, "")
    _is_well(scene, ask, old + 3, reason="Applied")


@pytest.mark.guarantee("G6", "G21", "G25")
def test_a_way_back_that_is_closed_is_told(scene: Scene, ask: Run) -> None:
    """What was dropped has to be listed for it, and may not be: the new code goes on, and nothing is lost."""
    scene.bundle.write(
        "manifest.yaml", _PROBATION.replace("kind: ConfigMap}", f"kind: ConfigMap, {_DROPS}}}")
    )
    assert ask("reload").status == 0
    world, counted, logged = _world(scene.text), scene.text.metrics(), len(scene.text.err)
    scene.sandbox.faults.refuse(403, Match(resource="configmaps"))
    ended = ask("rollback")
    scene.sandbox.faults.clear()
    why = "v1 ConfigMap in all namespaces: configmaps: 403 Forbidden: the sandbox was told to answer 403"
    line = f"rollback refused, generation {world['generation']} goes on: {why}"
    assert (ended.status, ended.out, ended.err.splitlines()[0]) == (1, "", line)
    assert ended.err.endswith("then `declctl rollback` tries it again\n")
    first, *_ = ask("status").out.splitlines()
    assert first == f"guard generation {world['generation']} (ROLLBACK REFUSED: Forbidden: {why})"
    condition = scene.text.condition("Reloaded")
    assert (condition["status"], condition["reason"]) == ("True", "RollbackRefused")
    assert f" error {line} " in scene.text.logged_text("rollback refused", after=logged)[0]
    row = _rows(ask("history").out, scene)[-1]
    assert (row[2], *row[-2:]) == ("Refused", "Forbidden", f"rollback: {why}")
    assert scene.text.attempts_since(counted) == {"Refused": 1}
    assert _world(scene.text) == world
    scene.heard_by("good", scene.new_object())


@pytest.mark.guarantee("G21", "G25")
def test_nothing_to_go_back_to_is_told_to_who_asks(scene: Scene, ask: Run) -> None:
    """Exit status 1 and why; in history and log as well. It says nothing of the files: they are what runs."""
    number, counted, logged = _world(scene.text)["generation"], scene.text.metrics(), len(scene.text.err)
    ended = ask("rollback")
    why = (
        "no earlier generation is in memory: one is kept for spec.reload.probationPeriod, and that is not set"
    )
    line = f"rollback refused, generation {number} goes on: {why}"
    advice = "write the earlier files again: that is a reload"
    assert (ended.status, ended.out, ended.err) == (1, "", f"{line}\n  help: {advice}\n")
    (logged_line,) = scene.text.logged_text("rollback refused", after=logged)
    assert logged_line.partition(" ")[2] == f'warning {line} reason=NotInMemory suggestion="{advice}"'
    row = _rows(ask("history").out, scene)[-1]
    assert (row[2], *row[-2:]) == ("Refused", "NotInMemory", f"rollback: {why}")
    assert scene.text.attempts_since(counted) == {}
    assert scene.text.condition("Reloaded")["status"] == "True"


def _world(process: Process) -> dict[str, Any]:
    """What a failure must not change."""
    status = process.status()
    return {
        "generation": status["generation"],
        "bundle": status["bundleHash"],
        "alive": process.metrics()["declctl_generations_alive",],
        "resources": [(r["name"], r["synced"], r["lists"], r["watches"]) for r in status["resources"]],
        "handlers": [(h["name"], h["generation"], h["failed"], h["retried"]) for h in status["handlers"]],
        "plugins": status["plugins"],
    }


def _is_well(scene: Scene, ask: Run, number: int, *, reason: str) -> None:
    """Nothing is told of any failure."""
    condition = scene.text.condition("Reloaded")
    assert (condition["status"], condition["reason"], condition["message"]) == ("True", reason, "")
    first, *_ = ask("status").out.splitlines()
    assert first == f"guard generation {number}"


def _rows(printed: str, scene: Scene) -> list[list[str]]:
    """The rows of all tables on stdout."""
    return [re.split(r"\s{2,}", line) for line in scene.told(printed).splitlines() if line]


def _advice(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("  help: ") for line in lines if line.startswith("  help: ")]
