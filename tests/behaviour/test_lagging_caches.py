"""A handler goes to a cache whose watch has been failing: it never hears of the past again."""

import threading
from functools import partial
from typing import Any

import pytest

from declctl import testing
from declctl.sandbox.faults import Match

CODE = """
from blackboard import tell as note
def tell(change): note("tell", str(change.type), change.obj.name, str(change.reason))
def other(change): note("other", str(change.type), change.obj.name, str(change.reason))
"""
until = partial(testing.until, timeout=60.0)  # a watch that failed waits for seconds before the next one

_MAPS = "- {name: maps, apiVersion: v1, kind: ConfigMap"
_NARROW = f"{_MAPS}, namespaces: [b]}}"


class Lagging:
    """`tell` hears of `maps`. `other` hears of ConfigMaps by another watch, which can fail."""

    def __init__(self, rig: Any, sandbox: Any, config_map: Any, *, policy: str = "warmTimeout: 60s") -> None:
        self.rig = rig
        self.sandbox = sandbox
        self.map = config_map
        rig.reload_policy += f", informerLinger: 60s, {policy}"
        rig.handler("tell")

    def run(self, other: str = _NARROW) -> Any:
        """Start with a few objects, and forget what was heard of them."""
        self.rig.resources = [f"{_MAPS}}}", other.replace("name: maps", "name: others")]
        if other:
            self.rig.handler("other", resource="others")
        objects = [self.map("stays", "b"), self.map("goes", "b"), self.map("outside", "a")]
        self.controller = self.rig.run(CODE, objects=objects)
        self.controller.wait_idle(60)
        self.rig.board.clear()
        return self.controller

    def fail(self, namespace: str = "b", resource: str = "others") -> None:
        """From now on what is in that namespace, or in all of them, can't be listed or watched by itself."""
        self.sandbox.faults.refuse(503, Match(resource="configmaps", namespace=namespace))
        self.sandbox.faults.cut_watches("configmaps")
        if resource:
            until("it fails", lambda: "503" in (self.controller.resource(resource).error or ""))

    def change_all(self, heard: int = 5) -> None:
        """Something of each kind happens in namespace b, and `tell` hears of it."""
        self.rig.board.clear()
        self.sandbox.patch("ConfigMap", "stays", {"data": {"new": "yes"}}, namespace="b")
        self.sandbox.delete("ConfigMap", "goes", "b")
        self.sandbox.create(self.map("comes", "b"))
        self.sandbox.create(self.map("short", "b"))
        self.sandbox.delete("ConfigMap", "short", "b")
        until("it is heard", lambda: len(self.rig.told("tell")) == heard)
        self.rig.board.clear()

    def edit(self, maps: str) -> "Reload":
        """Edit the resource, and begin a reload that waits."""
        self.rig.resources[0] = maps
        self.rig.write()
        return Reload(self.controller)


class Reload:
    """A reload in a thread of its own."""

    def __init__(self, controller: Any) -> None:
        self._outcomes: list[Any] = []
        self._thread = threading.Thread(
            target=lambda: self._outcomes.append(controller.reload(timeout=90)), daemon=True
        )
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has an outcome."""
        return bool(self._outcomes)

    def applied(self) -> Any:
        """The outcome, which is that the files run."""
        self._thread.join(90)
        assert self._outcomes[0].result == "Applied", self._outcomes[0].line
        return self._outcomes[0]


@pytest.fixture
def lagging(rig, sandbox, config_map) -> Lagging:
    """A bundle that is not running yet."""
    return Lagging(rig, sandbox, config_map)


@pytest.mark.thorough
@pytest.mark.guarantee("G6", "G15")
@pytest.mark.timeout(180)
def test_a_handler_does_not_go_to_a_cache_that_lags(rig, sandbox, config_map) -> None:
    """The new cache's watch gets 503: the reload is refused, says which cache lags, and tells nothing."""
    lagging = Lagging(rig, sandbox, config_map, policy="warmTimeout: 3s")
    controller = lagging.run()
    lagging.fail()
    lagging.change_all()
    rig.resources[0] = _NARROW
    rig.write()
    outcome = controller.reload(timeout=60)
    assert (outcome.result, outcome.reason) == ("Refused", "CacheLags"), outcome.line
    assert "manifest.yaml:6: maps: tell would go back in time" in outcome.message
    assert "v1 ConfigMap in b is at version" in outcome.message
    assert "503" in outcome.message
    assert rig.told("tell") == []
    assert controller.condition("Reloaded").reason == "CacheLags"
    assert controller.status().ready
    sandbox.create(config_map("later", "a"))
    until("the handler goes on", lambda: rig.told("tell"))
    assert rig.told("tell") == [("tell", "Added", "later", "Watch")]


@pytest.mark.thorough
@pytest.mark.guarantee("G15")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "other",
    [_NARROW, f"{_MAPS}, namespaces: [b], transform: {{dropFields: [data.no]}}}}"],
    ids=["namespaces", "dropped fields"],
)
def test_a_handler_moves_when_the_cache_has_caught_up(lagging, sandbox, other) -> None:
    """The reload waits; when the watch works again, the handler hears what is out of scope, and no more."""
    told = lagging.rig.told
    controller = lagging.run(other)
    lagging.fail()
    lagging.change_all()
    reload = lagging.edit(other)
    sandbox.create(lagging.map("meanwhile", "b"))
    until("it is heard", lambda: told("tell"))
    assert not reload.is_over
    sandbox.faults.clear()
    reload.applied()
    controller.wait_idle(60)
    assert told("tell") == [
        ("tell", "Added", "meanwhile", "Watch"),
        ("tell", "Deleted", "outside", "OutOfScope"),
    ]
    sandbox.create(lagging.map("after", "b"))
    controller.wait_idle(60)
    assert told("tell")[2:] == [("tell", "Added", "after", "Watch")]


@pytest.mark.thorough
@pytest.mark.guarantee("G15", "G21")
@pytest.mark.timeout(180)
def test_a_rollback_waits_for_the_cache_of_the_generation_before(rig, sandbox, config_map) -> None:
    """It is refused while that lags, and the new code goes on; then it goes back, and tells no past."""
    lagging = Lagging(rig, sandbox, config_map, policy="probationPeriod: 10m, warmTimeout: 3s")
    controller = lagging.run(other="")
    lagging.edit(_NARROW).applied()
    lagging.fail(namespace="", resource="")
    lagging.change_all()
    refused = rig.roll_back(1)
    assert (refused.result, refused.reason) == ("Refused", "CacheLags"), refused.line
    assert rig.told("tell") == []
    sandbox.faults.clear()
    until("it goes back", lambda: rig.roll_back(1).result == "RolledBack")
    controller.wait_idle(60)
    assert rig.told("tell") == [("tell", "Added", "outside", "Initial")]


@pytest.mark.guarantee("G15")
def test_a_cache_that_is_quiet_is_listed_once_before_a_handler_goes_there(lagging, sandbox, asked) -> None:
    """It says nothing, as nothing happens in its scope: one LIST shows that it is as new, as was planned."""
    rig = lagging.rig
    controller = lagging.run()
    sandbox.create(lagging.map("elsewhere", "a"))
    until("it is heard", lambda: rig.told("tell"))
    before = asked()
    outcome = lagging.edit(_NARROW).applied()
    assert (outcome.lists, tuple(outcome.unplanned)) == (1, ())
    assert asked()[1] <= before[1] + 1
    controller.wait_idle(60)
    assert sorted(rig.told("tell")[1:]) == [
        ("tell", "Deleted", "elsewhere", "OutOfScope"),
        ("tell", "Deleted", "outside", "OutOfScope"),
    ]
    assert rig.told("other") == []


def test_a_cache_that_is_as_new_is_asked_for_nothing(lagging, sandbox, asked) -> None:
    """What it has seen last is what the handler has heard last: the handler goes there at once."""
    rig = lagging.rig
    controller = lagging.run()
    sandbox.create(lagging.map("both", "b"))
    until("it is heard", lambda: rig.told("tell") and rig.told("other"))
    before = asked()
    outcome = lagging.edit(_NARROW).applied()
    assert (outcome.lists, outcome.watches, asked()) == (0, 0, before)
    controller.wait_idle(60)
    assert rig.told("tell")[1:] == [("tell", "Deleted", "outside", "OutOfScope")]
