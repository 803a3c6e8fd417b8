"""Writes of `ctx.client` and `ctx.sync_client` are those of their handler, as those of `ctx.apply` are."""

import pytest

from declctl.testing import until

HEAD = """
import asyncio
import declctl
from blackboard import tell as note
def body(name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
"""
ASYNC = (
    HEAD
    + """
async def tell(obj, ctx):
    from kubernetes.aio.client import CoreV1Api
    if obj.name == "a":
        await CoreV1Api(ctx.client).create_namespaced_config_map("default", body("made"))
"""
)
SYNC = (
    HEAD
    + """
def tell(obj, ctx):
    from kubernetes.client import CoreV1Api
    if obj.name == "a":
        CoreV1Api(ctx.sync_client).create_namespaced_config_map("default", body("made"))
"""
)
TASK_AND_THREAD = (
    HEAD
    + """
async def tell(obj, ctx):
    from kubernetes.client import CoreV1Api
    def write():
        CoreV1Api(ctx.sync_client).create_namespaced_config_map("default", body("made"))
    if obj.name == "a":
        await asyncio.create_task(asyncio.to_thread(write))
"""
)


@pytest.mark.thorough
@pytest.mark.parametrize("code", [ASYNC, SYNC, TASK_AND_THREAD], ids=["async", "sync", "task-and-thread"])
def test_a_write_by_an_official_client_is_counted_for_its_handler(rig, config_map, sandbox, code) -> None:
    """`declctl status` and the metrics show what a handler writes, whichever client it takes."""
    rig.handler("tell")
    controller = rig.run(code)
    sandbox.create(config_map("a"))
    until("it is counted", lambda: controller.status().writes)
    controller.wait_idle()
    (total,) = controller.status().writes
    assert (total.handler, total.verb, total.result, total.count) == ("tell", "create", "succeeded", 1)


def test_why_names_the_call_that_wrote_by_an_official_client(rig, config_map, sandbox) -> None:
    """The handler, its generation, and what the call was for."""
    rig.handler("tell")
    controller = rig.run(ASYNC)
    sandbox.create(config_map("a"))
    until("it is counted", lambda: controller.status().writes)
    found = controller.on_machinery(controller.runtime.why("configmaps", "default/made"), 10)
    (write,) = found.writes
    assert (write.verb, write.handler, write.generation, write.called_for) == (
        "create", "tell", 1, "default/a",
    )  # fmt: skip
    assert write.causes == ("Added maps default/a (Watch)",)
