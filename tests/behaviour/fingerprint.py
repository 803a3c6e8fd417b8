"""What a process looks like from within: two that do the same have the same fingerprint."""

import asyncio
import re
import sys
import threading
from collections import Counter
from typing import Any

from declctl.sandbox import SandboxThread
from declctl.testing import ControllerUnderTest


def fingerprint(controller: ControllerUnderTest, sandbox: SandboxThread) -> dict[str, Any]:
    """Tasks, threads, modules, watches, informers, handlers and indexes; generations have no numbers here."""
    runtime = controller.runtime
    status = controller.status()
    return {
        "alive": status.generations_alive,
        "tasks": _tasks(runtime.machinery.loop) + _tasks(runtime.handler_loops.newest.loop),
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("declctl")),
        "modules": sorted(_unnumbered(name) for name in sys.modules if name.startswith("_declctl_gen")),
        "watches": sandbox.faults.document()["openWatches"],
        "informers": sorted(_informers(controller)),
        "handlers": [(handler.name, handler.zombies, handler.queued) for handler in status.handlers],
        "indexes": {r.name: sorted(controller.lister(r.name).index_names()) for r in status.resources},
    }


# The two tasks of a wait with a time limit (`set_within`), and the next sweep: they come and go.
_WAITS = {"Event.wait", "Retirement._sweep_after"}
_WAITS |= {f"{clock}.{wait}" for clock in ("SystemClock", "AdvancingClock") for wait in ("sleep", "pause")}


def _tasks(loop: asyncio.AbstractEventLoop) -> Counter[str]:
    async def count() -> Counter[str]:
        here = asyncio.current_task()
        names = (_name(task) for task in asyncio.all_tasks() if task is not here)
        return Counter(name for name in names if name not in _WAITS)

    return asyncio.run_coroutine_threadsafe(count(), loop).result(10)


def _name(task: asyncio.Task[Any]) -> str:
    name = task.get_name()
    return getattr(task.get_coro(), "__qualname__", "?") if re.fullmatch(r"Task-\d+", name) else name


def _informers(controller: ControllerUnderTest) -> list[tuple[str, int, tuple[str, ...]]]:
    """What is watched, for how many resources, and the indexes that are kept, whoever reads them."""
    return [
        (
            str(cached.identity.watch),
            cached.generation_count,
            tuple(sorted(cached.informer.indexer.get_indexers())),
        )
        for cached in controller.runtime.parts.caches.all()
    ]


def _unnumbered(module: str) -> str:
    return re.sub(r"\.g\w+", ".g", module)
