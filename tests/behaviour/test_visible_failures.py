"""A reload that fails can be read wherever somebody looks: status, metrics, log, history, exit status (G25).

Two processes have all failures in turn: each leaves the old code at work, and nothing behind (G6).
"""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from declctl.admin import serve
from declctl.manifest.values import Address
from declctl.runtime.reasons import RETRIED
from declctl.testing import until
from tests.behaviour.failing.cases import CASES, Case
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
from tests.rooms.cli.conftest import Ended, _declctl  # noqa: F401 - a fixture


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.guarantee("G6", "G25")
def test_a_refusal_is_told_everywhere_and_changes_nothing_else(case: Case, scene: Scene, ask: Run) -> None:
    """Where it is, why, and what to do; the old code goes on, and once it is mended nothing is left of it."""
    world, counted, logged = world_of(scene.text), scene.text.metrics(), len(scene.text.err)
    number = world["generation"]
    line = f"reload refused, generation {number} goes on: {case.message}"
    try:
        case.write(scene)
        _is_told_by_the_command(case, line, ask, scene)
        _is_told_by_the_status(case, number, ask, scene)
        _is_told_by_the_log(case, line, scene.text.logged_text("reload refused", after=logged), scene)
        _is_told_to_programs(case, line, ask, scene)
        row = rows_of(ask("history").out, scene)[-1]
        assert (row[0], row[2], *row[-2:]) == (str(number), "Refused", case.reason, case.message)
        assert scene.text.attempts_since(counted) == {"Refused": 1}
        # A generation counts as alive for as long as its code runs: some cases hang for five seconds.
        until("nothing else has changed", lambda: world_of(scene.text) == world, timeout=60)
        assert scene.text.is_ready()
        scene.heard_by("good", scene.new_object())
    finally:
        case.put_right(scene)
    scene.mend()
    mended = ask("reload")
    assert (mended.status, mended.out, mended.err) == (0, f"generation {number}: nothing changed\n", "")
    is_well(scene, ask, number, reason="Unchanged")


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
        ("HandlersHealthy", "True", "AsExpected"),
    ]
    first, *_ = scene.told(status.out).splitlines()
    once = re.sub(r"; it is tried again in \d+s(, \d+ so far)?\)$", ")", first)
    assert once == f"guard generation {number} (STALE: reload failed 0s ago: {case.reason}: {said})"
    assert (once != first) == (document["reloadRetry"] is not None) == (case.reason in RETRIED)
    assert ["Reloaded", "False", case.reason, "0s", said] in rows_of(status.out, scene)


def _is_told_by_the_log(case: Case, line: str, lines: Sequence[str], scene: Scene) -> None:
    """One line of the level error, and below it the source with the place."""
    told = [scene.told(each) for each in lines]
    assert re.fullmatch(rf"\S+Z error {re.escape(line)}( .*)?", told[0])
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
    runs.on_machinery(_damaged(runs, "odd"), 10)
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMap, cache: {mode: Objects}}"]
    rig.write()

    async def ask(*words: str) -> Ended:
        async with serve(runs.runtime, Address("127.0.0.1", 0)) as bound:
            return await asyncio.to_thread(declctl, *words, "--admin", str(bound))

    ended = runs.on_machinery(ask("reload"), 30)
    why = "v1 ConfigMap in all namespaces: default/odd can't be made anew: "
    advice = "keep the cache as it was, or let the process start again, which lists it anew"
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"reload refused, generation 1 goes on: {why}")
    assert ended.err.endswith(f"\n  help: {advice}\n")
    first, *_ = runs.on_machinery(ask("status"), 30).out.splitlines()
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
    assert runs.on_machinery(ask("reload"), 30).status == 0
    assert runs.condition("Reloaded").status == "True"


async def _damaged(runs: Any, name: str) -> None:
    (cached,) = runs.runtime.parts.caches.all()
    (record,) = (each for each in cached.informer.indexer.list() if each.key.endswith(name))
    cached.informer.indexer.update(structs.replace(record, frame=b"\x00broken"))


@pytest.mark.thorough
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
    (maps,) = (r for r in rows_of(ask("status").out, scene) if r[0] == "maps")
    assert re.fullmatch(rf"Watching, index byWeight failed \d+ times \(the last: {fault}\)", maps[-1])
    count = scene.text.metrics()["declctl_index_failures_total", "byWeight", "maps"]
    assert count == scene.text.resource("maps")["objects"]
    scene.heard_by("good", scene.new_object())


def _advice(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("  help: ") for line in lines if line.startswith("  help: ")]
