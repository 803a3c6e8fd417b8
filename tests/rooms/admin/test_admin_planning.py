"""GET /plan."""

from collections.abc import Callable
from types import SimpleNamespace

from declctl.manifest.values import Address


def test_the_plan_that_runs_is_told(ask: Callable, runtime):
    """What `declctl plan --against running` compares a manifest with."""
    runtime.told_running = SimpleNamespace(document=lambda: {"generation": 6})
    answer = ask("/plan")
    assert (answer.status, answer.json) == (200, {"generation": 6})


def test_nothing_is_told_before_anything_runs(ask: Callable, runtime):
    """Who asks while the first generation is being made is told to wait a moment."""
    answer = ask("/plan")
    assert answer.status == 503
    assert "starting" in answer.json["error"]


def test_a_plan_is_for_those_who_may_read(ask: Callable, runtime):
    """It names what is watched and with which code: on other addresses it needs the token."""
    runtime.told_running = SimpleNamespace(document=lambda: {"generation": 6})
    everywhere = Address("0.0.0.0", 0)
    assert ask("/plan", address=everywhere, token="t").status == 401
    assert ask("/plan", address=everywhere, token="t", Authorization="Bearer t").status == 200
