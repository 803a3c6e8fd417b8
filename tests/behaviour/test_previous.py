"""`keepPrevious`: a reconciler is given the object as its last success had it, and knows what to clean up."""

import pytest

from declctl.testing import until

CODE = """
import declctl
class Settings(declctl.Object):
    data = declctl.field(dict[str, str])

def keys(request, ctx):
    seen = [each and each.data["host"] for each in (request.previous, request.obj)]
    ctx.log.info("called", told=[request.name, request.attempt, *seen])
    if request.obj is not None and request.obj.data["host"] == "bad" and request.attempt < 3:
        raise ValueError("not yet")
"""
TYPED = '- {name: maps, apiVersion: v1, kind: ConfigMap, type: "handlers:Settings"}'
REST = "mode: Reconcile, keepPrevious: true, retry: {initialBackoff: 10ms, maxBackoff: 20ms}"


def _told(runs) -> list[list]:
    return [line.fields["told"] for line in runs.log.lines if "told" in line.fields]


@pytest.mark.parametrize("more", ["", ", isolation: {mode: Process}"], ids=["thread", "process"])
@pytest.mark.parametrize("cache", ["Frames", "Objects"])
def test_the_last_success_is_given_until_the_object_is_gone(rig, config_map, sandbox, more, cache) -> None:
    """A failed attempt changes nothing of it; the call for an object that is gone has it, and drops it."""
    rig.resources = [TYPED[:-1] + f", cache: {{mode: {cache}}}}}"]
    rig.handler("keys", rest=REST + more)
    runs = rig.run(CODE, objects=[config_map("m", host="a")])
    until("it is reconciled", lambda: runs.handler("keys").succeeded == 1)
    for number, host in enumerate(("bad", "c")):
        sandbox.patch("ConfigMap", "m", {"data": {"host": host}}, namespace="default")
        until("it is reconciled again", lambda n=number: runs.handler("keys").succeeded == n + 2)
    assert runs.handler("keys").previous_bytes > 0
    sandbox.delete("ConfigMap", "m", "default")
    until("it is told to be gone", lambda: runs.handler("keys").succeeded == 4)
    assert _told(runs) == [
        ["m", 1, None, "a"],
        ["m", 1, "a", "bad"],
        ["m", 2, "a", "bad"],
        ["m", 3, "a", "bad"],
        ["m", 1, "bad", "c"],
        ["m", 1, "c", None],
    ]
    until("nothing is kept", lambda: runs.handler("keys").previous_bytes == 0)


def test_a_reload_keeps_it_in_the_class_of_the_new_code_and_an_edit_drops_it(rig, config_map) -> None:
    """As a memo; without `keepPrevious`, all of them go, and so does that of an object nobody is told of."""
    rig.resources = [TYPED]
    rig.handler("keys", rest=REST)
    runs = rig.run(CODE, objects=[config_map("m", host="a")])
    until("it is reconciled", lambda: runs.handler("keys").succeeded == 1)
    rig.apply(CODE.replace('data["host"] for', 'data["host"] + "!" for'))
    until("it is reconciled by the new code", lambda: ["m", 1, "a!", "a!"] in _told(runs))
    runs.wait_idle()
    rig.handlers = []
    rig.handler("keys", rest=REST.replace("keepPrevious: true", "keepPrevious: true, events: [Added]"))
    rig.apply()
    runs.sandbox.delete("ConfigMap", "m", "default")
    until("it is dropped", lambda: runs.handler("keys").previous_bytes == 0)
    runs.sandbox.create(config_map("n", host="b"))
    until("the other one is kept", lambda: runs.handler("keys").previous_bytes > 0)
    rig.handlers = []
    rig.handler("keys", rest="mode: Reconcile")
    rig.apply()
    until("nothing is kept", lambda: runs.handler("keys").previous_bytes == 0)
