"""An edit changes who works for a handler, or how many do: it hears no more at once than it allows."""

import pytest

from declctl.testing import until

CODE = """
from blackboard import gates, tell as note, wait
import asyncio

{kind} tell(change):
    note("began", change.obj.name, {version})
    if change.obj.name == "m0" and {version} == 1:
        {waiting}
    note("ended", change.obj.name, {version})

def other(change):
    note("other", change.obj.name)
"""
_BLOCKS = "wait('held')"
_WAITS = "while not gates.get('held', asyncio.Event()).is_set(): await asyncio.sleep(0.001)"


def _code(version: int, kind: str) -> str:
    return CODE.format(version=version, kind=kind, waiting=_WAITS if kind == "async def" else _BLOCKS)


def _held(rig, config_map, *, before: tuple[str, int], after: tuple[str, int], policy: str):
    """A handler is in its call for `m0`, is edited, and `m1` comes; `other` has heard it."""
    rig.reload_policy = f"settle: 20ms, preflight: 'Off', {policy}"
    rig.handler("tell", rest=f"queue: {{concurrency: {before[1]}}}")
    rig.handler("other")
    controller = rig.run(_code(1, before[0]))
    controller.sandbox.create(config_map("m0"))
    until("the call has begun", lambda: rig.told("began"))
    rig.handlers = []
    rig.handler("tell", rest=f"queue: {{concurrency: {after[1]}}}")
    rig.handler("other")
    rig.apply(_code(2, after[0]))
    for number in (1, 2):
        controller.sandbox.create(config_map(f"m{number}"))
        until("it was told to another handler", lambda: rig.told("other", f"m{number}"))  # noqa: B023
    return controller


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("policy", ["drainPolicy: Fence", "drainPolicy: Handover"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("async def", 1), ("def", 1)),
        (("def", 1), ("async def", 1)),
        (("def", 2), ("def", 1)),
        (("async def", 2), ("async def", 1)),
    ],
)
def test_new_workers_begin_when_the_old_ones_have_ended(rig, config_map, before, after, policy) -> None:
    """`concurrency: 1` holds over an edit: the call that began before it ends before the next begins (G3)."""
    controller = _held(rig, config_map, before=before, after=after, policy=policy)
    assert rig.told("began") == [("began", "m0", 1)]
    rig.board.open_gate("held")
    controller.wait_idle()
    assert [row for row in rig.board.told if row[0] != "other"] == [
        ("began", "m0", 1),
        ("ended", "m0", 1),
        ("began", "m1", 2),
        ("ended", "m1", 2),
        ("began", "m2", 2),
        ("ended", "m2", 2),
    ]


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("before", "after"), [(("def", 1), ("async def", 1)), (("def", 2), ("def", 1)), (("def", 1), ("def", 2))]
)
def test_new_workers_wait_for_a_stuck_one_no_longer_than_for_the_drain(
    rig, config_map, before, after
) -> None:
    """The old call never returns: after `drainTimeout` the new workers begin all the same (G9)."""
    controller = _held(rig, config_map, before=before, after=after, policy="drainTimeout: 100ms")
    until("the new code has heard them", lambda: len(rig.told("ended")) == 2)
    assert sorted(rig.told("ended")) == [("ended", "m1", 2), ("ended", "m2", 2)]
    until("it is not waited for", lambda: controller.handler("tell").zombies == 1)
    rig.board.open_gate("held")
    controller.wait_idle()
    assert rig.told("ended")[2:] == [("ended", "m0", 1)]
    assert controller.handler("tell").zombies == 0


def test_more_workers_begin_at_once(rig, config_map) -> None:
    """`concurrency` is raised while a call is under way: its change is not waited for."""
    controller = _held(rig, config_map, before=("def", 1), after=("def", 2), policy="drainTimeout: 20s")
    until("the new code has heard them", lambda: len(rig.told("ended")) == 2)
    assert controller.handler("tell").zombies == 0
    rig.board.open_gate("held")
    controller.wait_idle()
    assert rig.told("ended")[2:] == [("ended", "m0", 1)]
