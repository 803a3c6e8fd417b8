"""Probation: code that fails gives way to the code before, by itself or by hand; nothing is lost by it."""

import asyncio
import gc
import json
import re
import sys
import weakref

import pytest

from declctl.testing import until

GOOD = """
import declctl
from blackboard import tell as note
@declctl.hookimpl
def declctl_prepare(): note("prepared", "{name}")
@declctl.hookimpl
def declctl_teardown(): note("torn down", "{name}")
@declctl.hookimpl
def declctl_reload(outcome): note("hook", "{name}", str(outcome.result), outcome.generation)
@declctl.hookimpl
def declctl_event(change):
    note("{name}", str(change.key), change.generation)
"""
BAD = GOOD + "    raise ValueError('no good')\n"


@pytest.fixture
def run(rig, config_map):
    """A controller whose handler file is `good` and has heard of one object."""

    def start(policy: str = "probationPeriod: 1h, minCalls: 5", **how):
        rig.handler(
            "tell", entry="handlers", rest="retry: {maxAttempts: 50, initialBackoff: 10ms, maxBackoff: 20ms}"
        )
        rig.reload_policy += f", {policy}"
        runs = rig.run(GOOD.format(name="good"), objects=[config_map("m")], **how)
        runs.wait_idle()
        return runs

    return start


def _edit(rig, runs, code: str, name: str):
    rig.folder.write("handlers.py", code.format(name=name))
    return runs.reload()


def _changes(runs, config_map, names) -> None:
    for name in names:
        runs.sandbox.create(config_map(name))


@pytest.mark.guarantee("G21")
def test_code_that_fails_gives_way_to_the_code_before(rig, run, config_map, asked) -> None:
    """It is taken back, and what failed on it succeeds on the old code; nothing is listed anew."""
    runs = run()
    lists = asked()
    before = runs.status().bundle_hash
    assert _edit(rig, runs, BAD, "bad").generation == 2
    _changes(runs, config_map, "abcdefgh")
    until("the good code is back", lambda: runs.status().generation == 3)
    runs.wait_idle()
    told = {row[1] for row in rig.told("good") if row[2] == 3}
    assert told == {f"default/{name}" for name in "abcdefgh"}
    assert runs.handler("tell").failed == 0
    assert asked() == lists
    status, condition = runs.status(), runs.condition("Reloaded")
    assert status.bundle_hash == before
    assert (condition.status, condition.reason) == ("False", "RolledBack")
    assert "ValueError: no good" in condition.message
    assert status.reloads["RolledBack"] == 1
    until("the hook of the good code is told", lambda: ("hook", "good", "RolledBack", 3) in rig.told("hook"))
    assert any("rolled back from generation 2 to 1" in line.event for line in runs.log.lines)


@pytest.mark.guarantee("G21")
def test_what_was_taken_back_is_not_tried_again_until_it_changes(rig, run, config_map) -> None:
    """The files still hold the bad bundle: only an edit, or somebody who asks, has it tried again."""
    runs = run(watch=True)
    rig.folder.write("handlers.py", BAD.format(name="bad"))
    until("the edit is live", lambda: runs.status().generation == 2)
    _changes(runs, config_map, "abcdefgh")
    until("the good code is back", lambda: runs.status().generation == 3)
    runs.wait_idle()
    unasked = runs.on_machinery(runs.runtime.reload(asked=False), 30)
    assert (unasked.result, unasked.reason, unasked.generation) == ("Unchanged", "AttemptedBefore", 3)
    assert runs.reload().generation == 4
    assert runs.runtime.history()["inMemory"][0] == 3
    assert runs.on_machinery(runs.runtime.rollback(), 30).generation == 5
    rig.folder.write("handlers.py", GOOD.format(name="mended"))
    until("the mended code is live", lambda: runs.status().generation == 6)
    assert runs.condition("Reloaded").status == "True"


@pytest.mark.guarantee("G21", "G25")
def test_no_status_has_a_generation_without_its_condition(rig, run, config_map) -> None:
    """Whoever sees the new generation sees what became of it, whatever is told to others after that."""
    runs = run()

    async def seen_from(number: int) -> tuple[str, str, int]:
        while (status := runs.runtime.status()).generation < number:
            await asyncio.sleep(0)
        (condition,) = (c for c in status.conditions if c.type == "Reloaded")
        last = runs.runtime.history()["attempts"][-1]
        return condition.status, condition.reason, last["generation"]

    async def seen_in(attempt, number: int) -> tuple[str, str, int]:
        seen, _ = await asyncio.gather(seen_from(number), attempt)
        return seen

    rig.folder.write("handlers.py", BAD.format(name="second"))
    assert runs.on_machinery(seen_in(runs.runtime.reload(), 2), 30) == ("True", "Applied", 2)
    assert runs.on_machinery(seen_in(runs.runtime.rollback(), 3), 30) == ("False", "RolledBack", 3)
    rig.folder.write("handlers.py", BAD.format(name="fourth"))
    assert runs.on_machinery(seen_in(runs.runtime.reload(), 4), 30) == ("True", "Applied", 4)
    _changes(runs, config_map, "abcdefgh")
    assert runs.on_machinery(seen_from(5), 30) == ("False", "RolledBack", 5)


@pytest.mark.guarantee("G21")
def test_a_generation_before_is_torn_down_once_whatever_happens(rig, run, config_map) -> None:
    """After rollbacks, edits within a probation and the end each code has been torn down once."""
    runs = run()
    _edit(rig, runs, GOOD, "second")
    _edit(rig, runs, BAD, "third")  # within the probation of the second: the first stays the last good one
    until("what was on trial itself is gone", lambda: runs.status().generations_alive == 2)
    assert rig.told("torn down") == [("torn down", "second")]
    _changes(runs, config_map, "abcdefgh")
    until("the first is back", lambda: runs.status().generation == 4)
    until("the third is gone", lambda: runs.status().generations_alive == 1)
    _edit(rig, runs, GOOD, "fifth")
    assert runs.stop() == 0
    names = ["second", "third", "good", "fifth"]
    assert rig.told("torn down") == [("torn down", name) for name in names]
    assert sorted(rig.told("prepared")) == sorted(("prepared", name) for name in names)


@pytest.mark.guarantee("G21", "G22")
def test_generations_in_memory_stay_few(rig, run) -> None:
    """However often files change within a probation, one generation is kept besides the one that runs."""
    runs = run()
    for number in range(20):
        assert _edit(rig, runs, GOOD, f"edit {number}").result == "Applied"
        until("the one in between is gone", lambda: runs.status().generations_alive == 2)
    assert runs.runtime.history()["inMemory"] == [1, 21]
    runs.on_machinery(runs.runtime.rollback(), 30)
    until("all others are gone", lambda: runs.status().generations_alive == 1)
    gc.collect()
    assert [row[1] for row in rig.told("torn down")].count("good") == 0


@pytest.mark.guarantee("G21")
def test_what_fails_as_much_as_before_stays(rig, run, config_map) -> None:
    """Where both fail alike, going back would not help."""
    runs = run()
    _edit(rig, runs, BAD, "bad")
    runs.on_machinery(_pass(runs), 10)
    _changes(runs, config_map, "abcdefgh")
    assert _edit(rig, runs, BAD, "worse").generation == 3
    until("the new code has failed often", lambda: len(rig.told("worse")) >= 30)
    assert runs.status().generation == 3
    _edit(rig, runs, GOOD, "mended")
    runs.wait_idle()


HANGING = """
from blackboard import tell as note, wait
def tell(change):
    note("{name}", str(change.key), change.generation)
    {does}
def busy(change): ...
"""


def _hanging(rig, config_map, does: str, *, rest: str, policy: str, busy: int = 60):
    """New code of `tell` after good code, beside `busy`, which succeeds on ten times as much."""
    rig.resources.append("- {name: secrets, apiVersion: v1, kind: Secret}")
    rig.handler("busy", resource="secrets")
    rig.handler("tell", rest=rest)
    rig.reload_policy = f"settle: 20ms, preflight: 'Off', drainTimeout: 200ms, {policy}"
    runs = rig.run(HANGING.format(name="good", does="..."), objects=[config_map("m"), config_map("n")])
    runs.wait_idle()
    assert _edit_hanging(rig, runs, does).generation == 2
    for number in range(busy):
        runs.sandbox.create(config_map(f"s{number}") | {"kind": "Secret", "data": {}})
    until("busy has heard of all", lambda: runs.handler("busy").succeeded == busy)
    return runs


def _edit_hanging(rig, runs, does: str):
    rig.folder.write("handlers.py", HANGING.format(name="new", does=does))
    return runs.reload()


@pytest.mark.guarantee("G21")
def test_new_code_whose_calls_time_out_is_taken_back_while_they_hang(rig, config_map) -> None:
    """A call fails at the moment at which its time is over; whether it ever returns is not waited for."""
    runs = _hanging(
        rig, config_map, "wait('hang')", rest="timeout: 50ms", policy="probationPeriod: 1h, minCalls: 20"
    )
    _changes(runs, config_map, "abcdefgh")
    until("the good code is back", lambda: runs.status().generation == 3)
    condition = runs.condition("Reloaded")
    assert condition.reason == "RolledBack"
    assert re.search(r"tell (\d+) of \1 calls \(default/", condition.message)
    assert "it ran longer than its timeout of 0.05 s" in condition.message
    until("the calls that hang are counted", lambda: runs.handler("tell").zombies >= 5)
    runs.sandbox.create(config_map("later"))
    until("the good code works", lambda: ("good", "default/later", 3) in rig.told("good"))
    rig.board.open_gate("hang")
    runs.wait_idle()
    assert runs.handler("tell").zombies == 0
    assert {f"default/{name}" for name in "abcdefgh"} <= {row[1] for row in rig.told("good")}


@pytest.mark.guarantee("G21")
def test_new_code_that_hangs_without_a_timeout_is_taken_back(rig, config_map) -> None:
    """Its one worker hangs: it makes a single call, and no share of calls would ever tell."""
    runs = _hanging(rig, config_map, "wait('hang')", rest="", policy="probationPeriod: 4s", busy=0)
    _changes(runs, config_map, "ab")
    until("the good code is back", lambda: runs.status().generation == 3)
    assert "tell: 1 call hangs for more than 2 s" in runs.condition("Reloaded").message
    until("what waited goes to the good code", lambda: ("good", "default/b", 3) in rig.told("good"))
    rig.board.open_gate("hang")
    runs.wait_idle()


@pytest.mark.guarantee("G21")
def test_one_handler_that_always_fails_is_not_hidden_by_another(rig, config_map) -> None:
    """5 of 65 calls fail, and they are all that this handler made."""
    runs = _hanging(
        rig, config_map, "raise ValueError('no')", rest="", policy="probationPeriod: 1h, minCalls: 20"
    )
    _changes(runs, config_map, "abcde")
    until("the good code is back", lambda: runs.status().generation == 3)
    runs.wait_idle()
    assert {f"default/{name}" for name in "abcde"} <= {row[1] for row in rig.told("good")}
    assert re.search(r"tell (\d+) of \1 calls \(default/", runs.condition("Reloaded").message)


@pytest.mark.guarantee("G21")
def test_what_failed_on_the_code_before_takes_no_new_code_back(rig, run, config_map) -> None:
    """A poisoned object that is tried again and again is no fault of an edit."""
    poisoned = GOOD + "    if change.obj.name == 'p': raise ValueError('poison')\n"
    runs = run()
    assert _edit(rig, runs, poisoned, "second").result == "Applied"
    runs.on_machinery(_pass(runs), 10)
    runs.sandbox.create(config_map("p"))
    until("it fails", lambda: runs.handler("tell").retried >= 1)
    assert _edit(rig, runs, poisoned, "third").generation == 3
    until("it goes on failing", lambda: len(rig.told("third")) >= 20)
    assert runs.status().generation == 3
    _edit(rig, runs, GOOD, "mended")
    runs.wait_idle()


async def _pass(runs) -> None:
    runs.runtime.parts.reloader.probation.passed()


@pytest.mark.guarantee("G21")
def test_after_its_probation_new_code_stays(rig, run, config_map) -> None:
    """When the period is over the generation before is retired, and can't come back."""
    runs = run("probationPeriod: 1ms, minCalls: 5")
    _edit(rig, runs, BAD, "bad")
    until("the one before is gone", lambda: runs.status().generations_alive == 1)
    _changes(runs, config_map, "abcdefgh")
    until("the new code has failed often", lambda: len(rig.told("bad")) >= 30)
    assert runs.status().generation == 2
    refused = runs.on_machinery(runs.runtime.rollback(), 30)
    assert (refused.result, refused.reason) == ("Refused", "NotInMemory")
    assert runs.condition("Reloaded").status == "True"
    _edit(rig, runs, GOOD, "mended")
    runs.wait_idle()


@pytest.mark.guarantee("G21", "G25")
def test_somebody_goes_back_by_hand(rig, run, config_map) -> None:
    """To the one before, or to one named by number that is in memory; state and condition say so."""
    runs = run()
    _edit(rig, runs, GOOD, "second")
    missing = runs.on_machinery(runs.runtime.rollback(7), 30)
    assert (missing.result, missing.message) == ("Refused", "generation 7 is not in memory: generation 1 is")
    assert runs.status().generation == 2
    back = runs.on_machinery(runs.runtime.rollback(1), 30)
    assert (back.result, back.generation) == ("RolledBack", 3)
    _changes(runs, config_map, ["late"])
    runs.wait_idle()
    assert rig.told("good", "default/late") == [("good", "default/late", 3)]
    assert runs.condition("Reloaded").reason == "RolledBack"
    listed = runs.runtime.history()["attempts"]
    assert [(a["generation"], a["result"], a["reason"]) for a in listed] == [
        (1, "Applied", "Started"),
        (2, "Applied", "Applied"),
        (2, "Refused", "NotInMemory"),
        (3, "RolledBack", "RolledBack"),
    ]
    assert listed[0]["bundleHash"] == listed[3]["bundleHash"] != listed[1]["bundleHash"]
    json.dumps(listed)


@pytest.mark.guarantee("G21")
def test_going_back_undoes_resources_and_indexes(rig, run, config_map, asked) -> None:
    """A resource that the new manifest dropped or narrowed is still filled: going back lists nothing."""
    runs = run()
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMap, labelSelector: {matchLabels: {a: b}}}"]
    rig.write(GOOD.format(name="narrow"))
    assert runs.reload().result == "Applied"
    until("nothing matches any longer", lambda: not runs.lister("maps").list())
    lists = asked()
    assert runs.on_machinery(runs.runtime.rollback(), 30).lists == 0
    assert [str(each.key) for each in runs.lister("maps").list()] == ["default/m"]
    assert asked() == lists


@pytest.mark.guarantee("G21", "G22")
def test_going_there_and_back_leaves_nothing_behind(rig, run) -> None:
    """After ten edits and ten ways back there is the code of the first generation, and no other."""
    runs = run()
    first = {name for name in sys.modules if name.startswith("_declctl_gen.")}
    gone = []
    for number in range(10):
        gone.append(weakref.ref(runs.runtime.parts.reloader.active))
        assert _edit(rig, runs, GOOD, f"edit {number}").result == "Applied"
        gone.append(weakref.ref(runs.runtime.parts.reloader.active))
        assert runs.on_machinery(runs.runtime.rollback(), 30).result == "RolledBack"
        until("the edit is gone", lambda: runs.status().generations_alive == 1)

    def left() -> int:
        gc.collect()
        return sum(ref() is not None for ref in gone)

    until("all of them are collected", lambda: not left())
    assert {name for name in sys.modules if name.startswith("_declctl_gen.")} == first
    assert runs.runtime.history()["inMemory"] == [21]
