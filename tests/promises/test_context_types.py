"""`declctl.Context` as type checkers see it: what is right is clean, and a forgotten `await` is reported."""

from pathlib import Path

import pytest
from type_checkers import author_folder, mypy, pyright

from declctl import Context

# Each member of the class, as an author uses it.
HANDLERS = """\
import asyncio
from dataclasses import dataclass
from datetime import datetime

import msgspec

import declctl


class Status(msgspec.Struct, rename="camel"):
    ready_replicas: int = 0
    conditions: list[declctl.Condition] = []


@dataclass
class Settings:
    metadata: dict[str, str]
    data: dict[str, str]
    apiVersion: str = "v1"
    kind: str = "ConfigMap"


async def hook(obj: declctl.ObjectView, ctx: declctl.Context) -> None:
    now: datetime = ctx.now()
    count = ctx.memo.get("count")
    ctx.memo["count"] = count + 1 if isinstance(count, int) else 0
    ctx.log.info("called", handler=ctx.handler, generation=ctx.generation, at=now, dry_run=ctx.dry_run)
    names = [each.name for each in ctx.listers["pods"].list(namespace=obj.namespace, selector="app=web")]
    limits = ctx.snapshots["limits"].get("default/limits")
    settings = Settings({"name": obj.name}, {"first": names[0] if names else str(ctx.config["first"])})
    written = await ctx.apply(settings, force=False)
    done = await ctx.apply_set([settings, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}])
    ready = declctl.Condition(type="Ready", status="True" if done.applied else "False", reason="Applied")
    await ctx.patch_status(Status(3, [ready]))
    await ctx.patch_status([{"type": "Ready", "status": "True", "reason": "Applied"}], files=1)
    await ctx.patch_status(conditions=[ready], files=len(done.pruned))
    there = await ctx.get("apps/v1/Deployment", obj.name)
    if there is not None and limits is None:
        gone: bool = await ctx.delete(there, propagation="Foreground")
        await ctx.delete("v1/ConfigMap", "old", namespace="other", uid=written.uid)
        ctx.record_event(obj, "Deleted", f"{there.name} {gone}")
    both = await asyncio.gather(ctx.apply(settings), ctx.get("v1/Pod", "web-0"))
    later = asyncio.create_task(ctx.delete("v1/Pod", "web-1"))
    print(both[0].resource_version, both[1], await later, ctx.client)


def hook_in_a_thread(request: declctl.Request, ctx: declctl.Context) -> declctl.Requeue | None:
    found = ctx.sync.get("v1/Pod", request.name)
    if found is None or request.obj is None:
        return declctl.Requeue(after=60)
    if ctx.sync.delete(found) and ctx.sync.apply(found).changed:
        ctx.sync.patch_status(Status())
    ctx.sync.apply_set([])
    print(ctx.sync_client)
    return None
"""
WRONG = """\
import declctl


async def hook(obj: declctl.ObjectView, ctx: declctl.Context) -> None:
    ctx.apply({})
    ctx.patch_status(ready=1)
    found = await ctx.get("v1/Pod", "x")
    print(found["spec"], ctx.delete("v1/Pod", "x", propagation="Later"), ctx.aply)


def in_a_thread(ctx: declctl.Context) -> None:
    ctx.sync.delete("v1/Pod", "x", propagation="Later")
    print(ctx.sync.apply({}, forc=True))
    print(ctx.sync.apply({}).change)
"""
FAULTY_LINES = {5, 6, 8, 12, 13, 14}
_INTERNAL = {"for_other_process", "origin"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Handlers of an author."""
    return author_folder(tmp_path_factory.mktemp("author"), handlers=HANDLERS, wrong=WRONG)


@pytest.mark.thorough
@pytest.mark.parametrize("check", [pyright, mypy])
def test_a_handler_is_checked_strictly(folder: Path, check) -> None:
    """Every member has a type that needs no cast; a write that is not awaited is found before it runs."""
    assert check(folder, "handlers.py") == set()
    assert check(folder, "wrong.py") == {("wrong.py", line) for line in FAULTY_LINES}


def test_the_handler_uses_every_member() -> None:
    """What is added has to be checked, too."""
    members = {name for name in vars(Context) if not name.startswith("_")} - _INTERNAL
    assert {name for name in members if f"ctx.{name}" not in HANDLERS} == set()
