"""Handlers that write: a reconciler applies a child and writes a status, as `def` and as `async def`."""

from declctl.testing import until

CODE = """
def child(name, owner):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"of": owner}}

async def writes(request, ctx):
    if request.obj is None or request.name.startswith("child"):
        return
    written = await ctx.apply(child(f"child-{request.name}", request.name))
    assert written.key == f"default/child-{request.name}", written

def blocks(request, ctx):
    if request.obj is None or request.name.startswith("child"):
        return
    written = ctx.sync.apply(child(f"child-too-{request.name}", request.name))
    assert written.resource_version, written

def events(change, ctx):
    if change.type == "Added" and not change.obj.name.startswith("child"):
        ctx.sync.apply(child(f"child-event-{change.obj.name}", change.obj.name))
"""


def test_handlers_of_both_modes_apply_objects(rig, config_map) -> None:
    """The objects are there, each under the field manager of its handler, and the status counts them."""
    rig.handler("writes", rest="mode: Reconcile")
    rig.handler("blocks", rest="mode: Reconcile")
    rig.handler("events")
    runs = rig.run(CODE)
    runs.sandbox.create(config_map("m1"))
    until("all have written", lambda: len(runs.status().document()["writes"]) == 3)
    runs.wait_idle()
    writes = runs.status().document()["writes"]
    assert {each["handler"] for each in writes} == {"writes", "blocks", "events"}
    assert {(each["verb"], each["result"]) for each in writes} == {("apply", "succeeded")}
    assert all(runs.handler(name).failed == 0 for name in ("writes", "blocks", "events"))
