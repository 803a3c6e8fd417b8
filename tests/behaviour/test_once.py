"""`run --once`: it ends when every object has been dealt with, and not before."""

import asyncio

import pytest

from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.runtime import RunOptions, Runtime
from declctl.transport import Client

CODE = """
from blackboard import tell as note
def tell(change): note("told", change.obj.name)
"""


@pytest.mark.parametrize("count", [2, 1200])
def test_a_cache_that_is_full_before_its_handler_comes_is_dealt_with(
    rig, sandbox, config_map, monkeypatch, count
) -> None:
    """On a busy machine the list is there before the first generation: its objects are told all the same."""
    names = [f"m{n}" for n in range(count)]
    sandbox.load([config_map(name) for name in names])
    rig.handler("tell")

    build_indexes = InformerPool.build_indexes

    async def slowly(pool: InformerPool, *arguments, **options) -> None:
        async with asyncio.timeout(10):
            while not all(cached.informer.has_synced for cached in runtime.parts.caches.all()):
                await asyncio.sleep(0.01)
        await build_indexes(pool, *arguments, **options)

    runtime = Runtime(
        RunOptions(str(rig.write(CODE)), once=True),
        connect=lambda: Client.from_kubeconfig_dict(sandbox.kubeconfig()),
    )
    monkeypatch.setattr(InformerPool, "build_indexes", slowly)
    assert runtime.run() == 0
    assert sorted(row[1] for row in rig.told("told")) == sorted(names)
