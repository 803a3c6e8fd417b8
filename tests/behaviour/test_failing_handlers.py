"""The condition `HandlersHealthy`: a handler is named while all of its calls fail."""

from declctl.testing import until

CODE = """
import blackboard

def tell(change):
    if str(change.key) in blackboard.failing:
        raise ValueError(f"no {change.obj.name}")
"""
HOUR = "retry: {initialBackoff: 1h, maxBackoff: 1h}"


def test_a_handler_whose_calls_all_fail_is_named_until_one_succeeds(rig, config_map, monkeypatch) -> None:
    """Since when, how often, the last error, and what to do; the process stays ready."""
    keys = {f"default/m{number}" for number in range(5)}
    monkeypatch.setattr(rig.board, "failing", keys, raising=False)
    rig.handler("tell", rest=HOUR)
    objects = [config_map(f"m{number}") for number in range(5)]
    runs = rig.run(CODE, objects=objects)
    until("all have failed", lambda: runs.handler("tell").retried == 5)
    assert _healthy(runs) == ("True", "AsExpected", ""), "it has just begun"
    runs.advance(10)
    until("it is unhealthy", lambda: _healthy(runs)[:2] == ("False", "CallsFail"))
    message = _healthy(runs)[2]
    assert message.startswith("tell: the last 5 calls have failed, since 20")
    assert " UTC, the newest with generation 1 for default/m" in message
    assert ": ValueError: no m" in message
    assert "`declctl tap --failed`" in message
    assert runs.status().ready
    assert [each.reason for each in runs.handler("tell").problems] == ["CallsFail"]
    assert runs.condition("Degraded").status == "False"
    keys.discard("default/m3")
    runs.advance(4000)
    until("one has succeeded", lambda: runs.handler("tell").succeeded == 1)
    # The others fail on, and the handler works: their errors are about these objects.
    keys.clear()
    runs.advance(4000)
    runs.wait_idle()
    until("it is healthy", lambda: _healthy(runs) == ("True", "AsExpected", ""))


def _healthy(runs) -> tuple[str, str, str]:
    found = runs.condition("HandlersHealthy")
    return found.status, found.reason, found.message
