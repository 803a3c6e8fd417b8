"""Probation: code that fails gives way to the code before, by itself or by hand; nothing is lost by it."""

import asyncio
import json
import re

import pytest

from declctl.testing import until
from tests.behaviour.conftest import secret

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
        retry = "retry: {maxAttempts: 50, initialBackoff: 10ms, maxBackoff: 20ms}"
        rig.handler("tell", entry="handlers", rest=retry)
        rig.reload_policy += f", {policy}"
        runs = rig.run(GOOD.format(name="good"), objects=[config_map("m")], **how)
        runs.wait_idle()
        return runs

    return start


def _edit(rig, code: str, name: str):
    return rig.apply(code.format(name=name))


def _changes(runs, config_map, names) -> None:
    for name in names:
        runs.sandbox.create(config_map(name))


@pytest.mark.guarantee("G21")
def test_code_that_fails_gives_way_to_the_code_before(rig, run, config_map, asked) -> None:
    """It is taken back, and what failed on it succeeds on the old code; nothing is listed anew."""
    runs = run()
    lists = asked()
    before = runs.status().bundle_hash
    assert _edit(rig, BAD, "bad").generation == 2
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
    assert runs.runtime.history()["kept"] == [2, 3]
    assert rig.roll_back().generation == 5
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
    _edit(rig, GOOD, "second")
    _edit(rig, BAD, "third")  # within the probation of the second: the first stays the last good one
    until("what was on probation itself is gone", lambda: runs.status().generations_alive == 2)
    assert rig.told("torn down") == [("torn down", "second")]
    _changes(runs, config_map, "abcdefgh")
    until("the first is back", lambda: runs.status().generation == 4)
    rig.retired()
    _edit(rig, GOOD, "fifth")
    assert runs.stop() == 0
    names = ["second", "third", "good", "fifth"]
    assert rig.told("torn down") == [("torn down", name) for name in names]
    assert sorted(rig.told("prepared")) == sorted(("prepared", name) for name in names)


POISONED = f"{GOOD}    if change.obj.name == 'p': raise ValueError('poison')\n"


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize(
    ("code", "names"), [(BAD, "abcdefgh"), pytest.param(POISONED, "p", marks=pytest.mark.thorough)]
)
def test_what_fails_as_much_as_before_stays(rig, run, config_map, code, names) -> None:
    """Where both codes fail alike, going back would not help, be it on all objects or on a poisoned one."""
    runs = run()
    _edit(rig, code, "bad")
    runs.on_machinery(_pass(runs), 10)
    _changes(runs, config_map, names)
    until("it fails", lambda: runs.handler("tell").retried >= 1)
    assert _edit(rig, code, "worse").generation == 3
    until("the new code has failed often", lambda: len(rig.told("worse")) >= 30)
    assert runs.status().generation == 3
    _edit(rig, GOOD, "mended")
    runs.wait_idle()


async def _pass(runs) -> None:
    runs.runtime.parts.reloader.probation.passed()


HANGING = """
from blackboard import tell as note, wait
def tell(change):
    note("{name}", str(change.key), change.generation)
    {does}
def busy(change): ...
"""
_ALL_FAIL = r"tell (\d+) of \1 calls \(default/"


@pytest.mark.thorough
@pytest.mark.guarantee("G21")
@pytest.mark.parametrize(
    ("does", "timeout", "policy", "busy", "names", "back", "zombies", "message"),
    [
        ("wait('hang', 99)", "timeout: 50ms", "1h, minCalls: 20", 60, "abcdefgh", "abcdefgh", 4,
         f"{_ALL_FAIL}.*it ran longer than its timeout of 0.05 s"),
        ("wait('hang')", "", "4s", 0, "ab", "b", 1, "tell: 1 call hangs for more than 2 s"),
        ("raise ValueError('no')", "", "1h, minCalls: 20", 60, "abcde", "abcde", 0, _ALL_FAIL),
    ],
    ids=["all time out", "the only worker hangs", "all fail"],
)  # fmt: skip
def test_one_handler_that_hangs_or_fails_is_taken_back_beside_one_that_succeeds(
    rig, config_map, does, timeout, policy, busy, names, back, zombies, message
) -> None:
    """A call fails when its time is over, returned or not; 5 failures of 65 calls may be all of a handler."""
    rig.resources.append("- {name: secrets, apiVersion: v1, kind: Secret}")
    rig.handler("busy", resource="secrets")
    rig.handler("tell", rest=timeout)
    rig.reload_policy = f"settle: 20ms, preflight: 'Off', drainTimeout: 200ms, probationPeriod: {policy}"
    runs = rig.run(HANGING.format(name="good", does="..."), objects=[config_map("m"), config_map("n")])
    runs.wait_idle()
    assert rig.apply(HANGING.format(name="new", does=does)).generation == 2
    for number in range(busy):
        runs.sandbox.create(secret(f"s{number}"))
    until("busy has heard of all", lambda: runs.handler("busy").succeeded == busy)
    _changes(runs, config_map, names)
    until("the good code is back", lambda: runs.status().generation == 3)
    condition = runs.condition("Reloaded")
    assert condition.reason == "RolledBack"
    assert re.search(message, condition.message)
    until("the calls that hang are counted", lambda: runs.handler("tell").zombies >= zombies)
    runs.sandbox.create(config_map("later"))
    last = "b" if zombies == 1 else "later"  # a call that times out is told again when it returns
    until("the good code works", lambda: ("good", f"default/{last}", 3) in rig.told("good"))
    rig.board.open_gate("hang")
    runs.wait_idle()
    assert runs.handler("tell").zombies == 0
    assert {f"default/{name}" for name in ("later", *back)} <= {row[1] for row in rig.told("good")}


@pytest.mark.guarantee("G21")
def test_after_its_probation_new_code_stays(rig, run, config_map) -> None:
    """When the period is over, only a user takes new code back: the files before are kept, not their code."""
    runs = run("probationPeriod: 1ms, minCalls: 5")
    _edit(rig, BAD, "bad")
    rig.retired()
    _changes(runs, config_map, "abcdefgh")
    until("the new code has failed often", lambda: len(rig.told("bad")) >= 30)
    assert runs.status().generation == 2
    assert rig.told("torn down") == [("torn down", "good")]
    assert rig.roll_back().generation == 3
    runs.wait_idle()
    assert rig.told("prepared", "good") == [("prepared", "good")] * 2
    assert runs.condition("Reloaded").reason == "RolledBack"


@pytest.mark.guarantee("G21", "G22")
@pytest.mark.parametrize(("policy", "loaded"), [("0s", []), ("1h", [1])])
def test_each_way_back_leads_to_what_was_live_before(rig, run, config_map, policy, loaded) -> None:
    """No generation is skipped, however many edits a probation had; three others are kept, as files."""
    runs = run(f"probationPeriod: {policy}")
    for name in ("second", "third", "fourth", "fifth"):
        _edit(rig, GOOD, name)
    assert runs.runtime.history()["kept"] == [*loaded, 2, 3, 4]
    ways = [(None, "fourth", [2, 3, 5]), (2, "second", [3, 5, 6]), (None, "fourth", [3, 5, 7])]
    for number, (back, name, kept) in enumerate(ways, 6):
        assert rig.roll_back(back).generation == number
        assert runs.runtime.history()["kept"] == kept
        _changes(runs, config_map, [f"m{number}"])
        runs.wait_idle()
        assert (name, f"default/m{number}", number) in rig.board.told
    rig.retired()
    for number, words in [(2, "is not kept; those that are: 3, 5, 7"), (8, "is the one that runs")]:
        refused = rig.roll_back(number)
        assert (refused.reason, refused.message) == ("NotKept", f"generation {number} {words}")


@pytest.mark.guarantee("G21", "G25")
def test_somebody_goes_back_by_hand(rig, run, config_map, asked) -> None:
    """To one named by number that is in memory, or to the one before: nothing is listed, all is told."""
    runs = run()
    _edit(rig, GOOD, "second")
    missing = rig.roll_back(7)
    assert (missing.result, missing.message) == ("Refused", "generation 7 is not kept; those that are: 1")
    assert runs.status().generation == 2
    back = rig.roll_back(1)
    assert (back.result, back.generation) == ("RolledBack", 3)
    _changes(runs, config_map, ["late"])
    runs.wait_idle()
    assert rig.told("good", "default/late") == [("good", "default/late", 3)]
    assert runs.condition("Reloaded").reason == "RolledBack"
    listed = runs.runtime.history()["attempts"]
    assert [(a["generation"], a["result"], a["reason"]) for a in listed] == [
        (1, "Applied", "Started"),
        (2, "Applied", "Applied"),
        (2, "Refused", "NotKept"),
        (3, "RolledBack", "RolledBack"),
    ]
    assert listed[0]["bundleHash"] == listed[3]["bundleHash"] != listed[1]["bundleHash"]
    json.dumps(listed)

    # A resource that the new manifest narrows is still filled.
    narrow = "- {name: maps, apiVersion: v1, kind: ConfigMap, labelSelector: {matchLabels: {a: b}}}"
    rig.apply(GOOD.format(name="narrow"), narrow)
    until("nothing matches any longer", lambda: not runs.lister("maps").list())
    lists = asked()
    assert rig.roll_back().lists == 0
    assert sorted(str(each.key) for each in runs.lister("maps").list()) == ["default/late", "default/m"]
    assert asked() == lists
