"""Changes that come to nothing: they are counted, and somebody says how many, and why."""

import pytest

from declctl.admin.metrics import StatusCollector
from declctl.testing import until

CODE = """
from blackboard import tell as note, wait
def tell(change): note("tell", str(change.key))
def slow(change):
    note("slow", str(change.key))
    wait("slow")
def failing(change):
    note("failing", str(change.key))
    raise ValueError("no")
"""


def _dropped_metric(runs) -> dict[str, float]:
    families = {family.name: family for family in StatusCollector(runs.status, {}).collect()}
    return {s.labels["handler"]: s.value for s in families["declctl_handler_dropped"].samples}


def _warning(runs, words: str) -> str | None:
    return next((line for line in runs.log.events("warning") if words in line), None)


def _changes(runs, config_map, count: int) -> None:
    for number in range(count):
        runs.sandbox.create(config_map(f"m{number}"))


@pytest.mark.guarantee("G2", "G19")
def test_a_removed_handler_that_is_not_through_says_how_many_changes_are_dropped(rig, config_map) -> None:
    """After `drainTimeout` the rest is dropped: in the log, in the status and in a metric that goes on."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms"
    rig.handler("tell")
    rig.handler("slow")
    runs = rig.run(CODE)
    _changes(runs, config_map, 5)
    rest = {"tell": 0, "slow": 5}  # the change that is being worked on counts too
    until("only `slow` has changes left", lambda: runs.runtime.running().document()["waiting"] == rest)
    removed = rig.handlers.pop()
    rig.write()
    assert runs.reload().result == "Applied"
    until("they are dropped", lambda: runs.status().removed == {"slow": 4})
    removal = "slow was removed before all its changes were handled: 4 changes dropped after"
    line = until("the log says so", lambda: _warning(runs, removal))
    assert line.startswith(removal)
    assert "1 call still running, not waited for any longer" in line
    assert "drainTimeout" in line
    assert not [event for event in runs.log.events("warning") if "went to the new code" in event]
    assert runs.status().document()["removedHandlers"] == [{"name": "slow", "dropped": 4}]
    assert _dropped_metric(runs) == {"tell": 0, "slow": 4}
    rig.handlers.append(removed)
    rig.write()
    assert runs.reload().result == "Applied"
    until("it is back", lambda: runs.handler("slow").running == 1)
    assert _dropped_metric(runs) == {"tell": 0, "slow": 4}
    rig.board.open_gate("slow")
    runs.wait_idle()
    until("the old code is gone", lambda: runs.status().generations_alive == 1)


@pytest.mark.guarantee("G2", "G19")
def test_what_backs_off_when_its_handler_is_removed_is_dropped_and_told(rig, config_map) -> None:
    """It is not waited for: it may be due in hours."""
    rig.handler("tell")
    rig.handler("failing", rest="retry: {initialBackoff: 1h, maxBackoff: 1h}")
    runs = rig.run(CODE)
    _changes(runs, config_map, 3)
    until("all back off", lambda: runs.handler("failing").retried == 3)
    rig.handlers.pop()
    rig.write()
    assert runs.reload().result == "Applied"
    until("it is retired", lambda: runs.status().generations_alive == 1)
    assert runs.status().removed == {"failing": 3}
    assert any("3 changes dropped" in line for line in runs.log.events("warning"))


@pytest.mark.guarantee("G2", "G21")
def test_a_rollback_says_what_is_dropped_with_the_handlers_that_it_removes(rig, config_map) -> None:
    """A handler that only the new code has goes with it, and so does what waits for it."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms, probationPeriod: 1h"
    rig.handler("tell")
    runs = rig.run(CODE)
    rig.handler("slow")
    rig.write()
    assert runs.reload().result == "Applied"
    _changes(runs, config_map, 4)
    until("the rest waits", lambda: runs.handler("slow").queued == 3)
    assert runs.on_machinery(runs.runtime.rollback(), 30).result == "RolledBack"
    until("they are dropped", lambda: runs.status().removed == {"slow": 3})
    until("the log says so", lambda: _warning(runs, "3 changes dropped"))
    assert runs.handler("tell").dropped == 0
    rig.board.open_gate("slow")


def test_the_end_of_the_process_says_what_waited(rig, config_map) -> None:
    """SIGTERM: the call that runs finishes, what waits is dropped; the log says how much, of whom."""
    rig.handler("tell")
    rig.handler("slow")
    rig.handler("failing", rest="retry: {initialBackoff: 1h, maxBackoff: 1h}")
    runs = rig.run(CODE)
    _changes(runs, config_map, 4)
    until("the rest waits", lambda: runs.handler("slow").queued == 3 and runs.handler("failing").retried == 4)
    until("`tell` is through", lambda: runs.handler("tell").succeeded == 4)
    runs.runtime.stop()
    until("nothing is taken any more", lambda: runs.runtime.parts.slots.get("slow").workers.is_dismissed)
    rig.board.open_gate("slow")
    assert runs.stop() == 0
    assert len(rig.told("slow")) == 1
    (line,) = [line for line in runs.log.events("warning") if "dropped" in line]
    assert line.startswith("7 changes that waited are dropped: slow 3, failing 4; the next start tells every")


@pytest.mark.guarantee("G2")
def test_changes_that_no_hook_is_for_are_no_successes(rig, config_map) -> None:
    """A class that only hears of Added: other changes are kept from it, and no call is counted."""
    rig.handler("adds", entry="handlers:Adds")
    runs = rig.run(
        "import declctl\nclass Adds:\n    @declctl.hookimpl\n    def declctl_added(self, obj): ...\n",
        objects=[config_map("a"), config_map("b")],
    )
    runs.wait_idle()
    runs.sandbox.patch("ConfigMap", "a", {"data": {"x": "y"}})
    runs.sandbox.delete("ConfigMap", "b")
    runs.wait_idle()
    figures = runs.handler("adds")
    assert (figures.delivered, figures.succeeded, figures.filtered, figures.dropped) == (2, 2, 2, 0)
