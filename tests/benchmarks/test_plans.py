"""What is measured, and by whom."""

import pytest
from harness.catalogue import BEFORE, CANDIDATES, OURS
from harness.driver import run
from harness.faults import PeerUnavailable
from harness.plans import Plan, full, quick
from harness.session import STEPS


@pytest.mark.parametrize("plan", [quick(), full()], ids=lambda plan: plan.name)
def test_every_scenario_can_be_done(plan: Plan) -> None:
    """Its steps are known, begin with the sync, and somebody does them."""
    for scenario in plan.scenarios:
        assert set(scenario.steps) <= set(STEPS)
        assert scenario.steps[0] == "sync"
        assert any(scenario.takes(candidate) for candidate in CANDIDATES)


@pytest.mark.parametrize("plan", [quick(), full()], ids=lambda plan: plan.name)
def test_ours_and_what_it_is_held_against_are_in_every_plan(plan: Plan) -> None:
    """No plan leaves a bar without the figures of both sides."""
    cache = [scenario for scenario in plan.scenarios if scenario.name == "cache"]
    taking = {c.key for scenario in cache for c in CANDIDATES if scenario.takes(c)}
    assert {*OURS, "client-go", "client-go-dynamic", "kube-rs"} <= taking
    (coroutines,) = [scenario for scenario in plan.scenarios if scenario.name == "async"]
    assert {*OURS, BEFORE} <= set(coroutines.peers)


def test_no_peer_is_asked_for_what_it_cannot_do() -> None:
    """The official informer has no coroutines and no custom resources."""
    (official,) = [candidate for candidate in CANDIDATES if candidate.key == "official"]
    for scenario in full().scenarios:
        if scenario.listener == "async" or scenario.kind == "customs":
            assert not scenario.takes(official)


def test_without_a_server_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Go, no figures: it is said at once."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PeerUnavailable, match="go is not installed"):
        run(quick(), wanted=[], before=None, keep=lambda _: None, log=lambda _: None)
