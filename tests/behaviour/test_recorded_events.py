"""`ctx.record_event`: what a handler gives to it that is no event is the fault of that handler alone."""

import pytest

from declctl.testing import until

CODE = """
from blackboard import tell as note
class Text(str): pass
def tell(change, ctx):
    note("told", change.obj.name)
    ctx.record_event(change.obj, {reason}, {message})
"""


@pytest.mark.parametrize(
    ("reason", "message", "fault"),
    [
        ('ValueError("x")', '"m"', "TypeError: the reason of an event is a text, not a ValueError"),
        ('"Failed"', 'ValueError("x")', "TypeError: the message of an event is a text, not a ValueError"),
        ('"Failed"', "None", "TypeError: the message of an event is a text, not a NoneType"),
        ('Text("Failed")', '"\\udcff"', None),
    ],
)
def test_what_is_no_event_ends_nothing_but_that_call(rig, config_map, reason, message, fault) -> None:
    """An exception in the place of its text: the call fails, and other objects are told."""
    rig.handler("tell", rest="retry: {maxAttempts: 1}")
    runs = rig.run(CODE.format(reason=reason, message=message))
    for name in ("a", "b"):
        runs.sandbox.create(config_map(name))
        until("it is told", lambda name=name: rig.told("told", name))
    runs.wait_idle()
    last = runs.handler("tell").last_error
    assert last == (None if fault is None else f"default/b: {fault}")
    if fault is None:
        until("both are answered", lambda: sum(_counts(runs)) == 2)


def _counts(runs) -> tuple[int, int]:
    figures = runs.status().recorded_events
    return figures.posted, figures.failed
