"""Reloads while objects change, and while an API server takes its time. Storms are in tests/e2e."""

import threading

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import until


@pytest.mark.guarantee("G13")
def test_a_slow_new_kind_delays_nobody(rig, sandbox, config_map) -> None:
    """The API server takes its time to list a new kind: changes of the others are told meanwhile (G13)."""
    rig.handler("tell")
    controller = rig.run("from blackboard import tell as note\ndef tell(change): note('tell')\n")
    sandbox.faults.delay(1.0, Match(resource="secrets"), times=1)
    rig.resources.append("- {name: secrets, apiVersion: v1, kind: Secret}")
    rig.handler("secrets", resource="secrets", entry="handlers:tell")
    rig.write()
    outcomes: list = []
    reload = threading.Thread(target=lambda: outcomes.append(controller.reload()))
    reload.start()
    until("the list is under way", lambda: sandbox.ledger.count(resource="secrets"))
    sandbox.create(config_map("m"))
    until("it is told", lambda: rig.told("tell"))
    assert outcomes == []
    reload.join()
    assert outcomes[0].result == "Applied"


@pytest.mark.guarantee("G9")
def test_handover_gives_what_waits_to_the_new_code_and_lets_what_runs_finish(
    rig, sandbox, config_map
) -> None:
    """`drainPolicy: Handover`: the new code tells the backlog at once; what runs isn't cancelled."""
    code = (
        "from blackboard import tell as note, gates\nimport asyncio\n"
        "async def tell(change):\n"
        "    note('began', {0}, change.obj.name)\n"
        "    while change.obj.name == 'm0' and 'go' not in gates: await asyncio.sleep(0.01)\n"
        "    note('ended', {0}, change.obj.name)\n"
    )
    rig.reload_policy += ", drainPolicy: Handover"
    rig.handler("tell")
    controller = rig.run(code.format(1))
    for number in range(3):
        sandbox.create(config_map(f"m{number}"))
    until("the rest waits", lambda: controller.handler("tell").queued == 2)
    rig.apply(code.format(2))
    rig.board.open_gate("go")
    controller.wait_idle()
    assert rig.told("ended") == [("ended", 1, "m0"), ("ended", 2, "m1"), ("ended", 2, "m2")]
    assert controller.handler("tell").retried == 0
