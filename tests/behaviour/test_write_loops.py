"""Handlers that feed themselves by their writes: recognised, found, named, and slowed down."""

import threading

import pytest

from declctl.testing import until

CODE = """
import itertools
from blackboard import tell as note
from declctl import Requeue

times = itertools.count()

async def stamps(request, ctx):
    if request.obj is not None:
        note("stamps", request.name)
        await ctx.patch_status(message=f"seen {next(times)}")

async def stamps_again(request, ctx):
    note("stamps-again", request.name)
    await ctx.patch_status(message=f"seen {next(times)}")
    return Requeue(after=3600)

async def stamps_too(request, ctx):
    if request.obj is not None:
        note("stamps-too", request.name)
        await ctx.patch_status(reason=f"Seen{next(times)}")

async def insists(request, ctx):
    if request.obj is not None:
        note("insists", request.name)
        await ctx.patch_status(reason="Mine")

async def follows(obj, ctx):
    note("follows", obj.name)
    await ctx.patch_status(nominatedNodeName=f"node-{next(times)}")

async def marks(obj, ctx):
    note("marks", obj.name)
    metadata = {"name": obj.name, "annotations": {"seen": str(next(times))}}
    await ctx.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})

def child(name):
    metadata = {"name": name, "labels": {"of": name}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"seen": str(next(times))}}

async def stamps_child(request, ctx):
    note("stamps-child", request.name)
    await ctx.apply(child(request.name))

async def stamps_set(request, ctx):
    note("stamps-set", request.name)
    await ctx.apply_set([child(request.name)])

async def settles(request, ctx):
    if request.obj is None:
        return
    note("settles", request.name)
    maps = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{request.name}-{n}"},
             "data": {"of": request.name}} for n in range(2)]
    done = await ctx.apply_set(maps)
    ready = {"type": "Ready", "status": "True", "reason": "Applied", "message": str(len(done.applied))}
    await ctx.patch_status(conditions=[ready])
"""
PODS = "- {name: pods, apiVersion: v1, kind: Pod}"
RECONCILES = "mode: Reconcile"
CHILDREN = "watches: [{resourceRef: {name: maps}, mapTo: {label: of}}]"


def pod(name: str = "a") -> dict:
    """A small pod."""
    metadata = {"name": name, "namespace": "default"}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture
def pods(rig):
    """A controller of pods, with these handlers."""

    def run(**handlers: str):
        rig.resources.append(PODS)
        for name, rest in handlers.items():
            rig.handler(name.replace("_", "-"), resource="pods", entry=f"handlers:{name}", rest=rest)
        return rig.run(CODE)

    return run


def loops(controller) -> str:
    """The message of the condition about loops; empty if there is none."""
    degraded = controller.condition("Degraded")
    return degraded.message if degraded.reason == "WriteLoop" else ""


def test_a_status_that_changes_in_each_call_is_written_once(rig, pods, sandbox) -> None:
    """Its own event does not lead to a call; a change of somebody else does."""
    controller = pods(stamps=RECONCILES)
    sandbox.create(pod())
    until("the own write is recognised", lambda: controller.handler("stamps").own_writes == 1)
    controller.wait_idle()
    assert len(rig.told("stamps")) == 1
    sandbox.patch("Pod", "a", {"metadata": {"labels": {"x": "1"}}})
    until("the change leads to a call", lambda: len(rig.told("stamps")) == 2)
    until("the own write is recognised", lambda: controller.handler("stamps").own_writes == 2)
    controller.wait_idle()
    assert len(rig.told("stamps")) == 2
    assert sandbox.ledger.count("patch") == 2  # the statuses; the label came from elsewhere
    assert controller.condition("Degraded").status == "False"


@pytest.mark.parametrize(
    ("handlers", "kind", "field"),
    [
        ({"stamps": RECONCILES, "stamps_too": RECONCILES}, "Pod", "status."),
        ({"stamps_child": f"{RECONCILES}, {CHILDREN}"}, "ConfigMap", "data.seen"),
        ({"stamps_set": f"{RECONCILES}, {CHILDREN}"}, "ConfigMap", "data.seen"),
        ({"follows": ""}, "Pod", "status.nominatedNodeName"),
        ({"marks": ""}, "Pod", "metadata.annotations.seen"),
        ({"marks": "", "follows": ""}, "Pod", "metadata.annotations.seen"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_handlers_that_feed_themselves_are_named_and_slowed_down(
    rig, pods, sandbox, handlers, kind, field
) -> None:
    """As fast as they can, by each way to write: a condition, a warning with the field, and delays."""
    controller = pods(**handlers)
    sandbox.create(pod())
    message = until("the loop is in the status", lambda: loops(controller), timeout=30)
    assert f"default/a: its writes to v1 {kind} default/a lead to its next call" in message
    assert field in message
    assert controller.log.find("it is called with growing delays from now on").level == "warning"
    if RECONCILES in "".join(handlers.values()):
        names = [name.replace("_", "-") for name in handlers]
        until("the key waits", lambda: any(controller.handler(name).queued for name in names))
        assert max(len(rig.told(name)) for name in names) < 20
        with pytest.raises(
            AssertionError, match=r"default/a is WriteLoop.*; write loop: .*lead to its next call"
        ):
            controller.wait_idle(0.5)
        resource = "pods" if kind == "Pod" else "configmaps"
        found = controller.on_machinery(controller.runtime.why(resource, "default/a"), 5)
        assert field in str(found.write_loops)


def test_a_fight_with_another_manager_is_named(rig, pods, sandbox) -> None:
    """Somebody sets the field back whenever the handler has set it."""
    controller = pods(insists=RECONCILES)
    sandbox.create(pod())
    ended = threading.Event()

    def revert() -> None:
        while not ended.is_set():
            (found,) = sandbox.objects("Pod")
            if (found.get("status") or {}).get("reason") == "Mine":
                sandbox.patch("Pod", "a", {"status": {"reason": "Theirs"}})
            ended.wait(0.005)

    other = threading.Thread(target=revert)
    other.start()
    try:
        message = until("the fight is in the status", lambda: loops(controller), timeout=30)
    finally:
        ended.set()
        other.join()
    assert "insists default/a: somebody reverts what it writes to v1 Pod default/a" in message
    assert "status.reason" in message
