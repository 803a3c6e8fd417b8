"""New code hears the cache again if its manifest wants that, and only if its own code has changed."""

import pytest

from declctl.testing import until

CODE = """
from blackboard import tell as note, wait
import {helper}
def tell(change):
    note("{name}", str(change.type), str(change.reason), str(change.key))
    {more}
"""
OTHER = "def other(change): ...\nX = {}\n"
OBJECTS = [f"m{number}" for number in range(250)]


@pytest.fixture
def run(rig, config_map):
    """A controller with 250 objects and two handlers, each in a file of its own; the first has a helper."""

    def start(replay: str = "replay: OnCodeChange", rest: str = ""):
        rig.folder.write("helper.py", "Y = 1\n")
        rig.folder.write("other.py", OTHER.format(1))
        rig.handler("tell", rest=", ".join(filter(None, (replay, rest))))
        rig.handler("other", entry="other:other")
        runs = rig.run(_code("old"), objects=[config_map(name) for name in OBJECTS])
        runs.wait_idle()
        assert len(rig.told("old", "Added", "Initial")) == len(OBJECTS)
        return runs

    rig.folder.write("other.py", OTHER.format(1))
    return start


def _code(name: str, more: str = "") -> str:
    return CODE.format(helper="helper", name=name, more=more)


def _replayed(rig, name: str) -> list[str]:
    return sorted(row[3] for row in rig.told(name, "Resync", "Replay"))


ALL = sorted(f"default/{name}" for name in OBJECTS)


@pytest.mark.guarantee("G20")
def test_new_code_hears_the_cache_again_if_it_wants_to(rig, run, asked) -> None:
    """Each object once, as Resync with the reason Replay, counted, and nothing is asked of the server."""
    runs = run()
    lists = asked()
    rig.apply(_code("new"))
    until("everything has been replayed", lambda: len(rig.told("new")) == len(OBJECTS))
    runs.wait_idle()
    assert _replayed(rig, "new") == ALL
    assert (runs.handler("tell").replayed, runs.handler("other").replayed) == (len(OBJECTS), 0)
    assert asked() == lists
    for told in ("~handler tell (code), 250 objects again, 0 LIST", "250 objects replayed"):
        until(told, lambda told=told: any(told in x for x in runs.log.events("info")))


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("rest", [("replay: Never",), ("replay: OnCodeChange", "events: [Added]")], ids=str)
def test_new_code_hears_nothing_by_default_nor_without_resyncs(rest, rig, run, config_map) -> None:
    """Without `replay`, or without Resync in `events`, it hears what changes, and nothing else."""
    runs = run(*rest)
    rig.apply(_code("new"))
    runs.sandbox.create(config_map("late"))
    runs.wait_idle()
    assert rig.told("new") == [("new", "Added", "Watch", "default/late")]
    assert runs.handler("tell").replayed == 0


@pytest.mark.guarantee("G20")
def test_the_code_of_others_is_no_reason(rig, run, config_map) -> None:
    """Another handler's file, or a policy, replays nothing; what the handler imports does."""
    runs = run()
    rig.folder.write("other.py", OTHER.format(2))
    assert runs.reload().result == "Applied"
    rig.handlers[0] = rig.handlers[0].replace("replay: OnCodeChange", "replay: OnCodeChange, timeout: 5s")
    rig.apply()
    runs.sandbox.create(config_map("late"))
    runs.wait_idle()
    assert runs.handler("tell").replayed == 0
    rig.folder.write("helper.py", "Y = 2\n")
    assert runs.reload().result == "Applied"
    until("everything has been replayed", lambda: len(_replayed(rig, "old")) == len(OBJECTS) + 1)


@pytest.mark.guarantee("G20")
def test_what_happens_meanwhile_does_not_wait_for_the_replay(rig, run, config_map) -> None:
    """A change waits for one slice of it at most, and no older state comes after a newer one."""
    runs = run()
    rig.apply(_code("new", 'wait("go")'))
    until("the replay has begun", lambda: len(rig.told("new")) == 1)
    runs.sandbox.create(config_map("late"))
    runs.sandbox.delete("ConfigMap", "m249", "default")
    cache = runs.lister("maps")
    until("the cache has seen both", lambda: "default/late" in cache and "default/m249" not in cache)
    rig.board.open_gate("go")
    until("the replay is over", lambda: any("objects replayed" in line for line in runs.log.events("info")))
    runs.wait_idle()
    heard = rig.told("new")
    assert heard.index(("new", "Added", "Watch", "default/late")) <= 101
    deleted = heard.index(("new", "Deleted", "Watch", "default/m249"))
    assert "default/m249" not in [row[3] for row in heard[deleted + 1 :]]
    assert set(_replayed(rig, "new")) >= set(ALL) - {"default/m249"}


def test_the_line_of_a_generation_comes_before_those_of_its_code(rig) -> None:
    """A reader of the log learns of the edit first, and then what its code says of the objects."""
    rig.folder.write("helper.py", "Y = 1\n")
    rig.handler("tell", rest="replay: OnCodeChange")
    runs = rig.run(_code("old"))
    runs.wait_idle()
    rig.apply(_code("new"))
    until("nothing is replayed", lambda: any("0 objects replayed" in x for x in runs.log.events("info")))
    lines = [x for x in runs.log.events("info") if x.startswith("generation 2:") or "replayed" in x]
    assert [x.split(":")[0] for x in lines] == ["generation 2", "tell"]
