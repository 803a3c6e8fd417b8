"""Nothing of an old generation stays: no code, no thread, no task, no file, no module, no index.

The ordinary test reloads 40 times; with DECLCTL_SOAK 1,000 times.
"""

import gc
import os
import threading
import weakref
from pathlib import Path

import pytest

from declctl.runtime.reloading.generation import Generation
from declctl.testing import until
from tests.behaviour.fingerprint import fingerprint

_RELOADS = 1000 if os.environ.get("DECLCTL_SOAK") else 40
_MOST_IN_POOL = min(32, (os.cpu_count() or 1) + 4)  # Python's own default
CODE = """
import blackboard, weakref
import declctl

class Mark: pass
MARK = Mark()
blackboard.tell("mark", weakref.ref(MARK))
{broken}
def tell(change): blackboard.tell("tell", {version})
async def other(change): blackboard.tell("other", MARK is not None)

class Classy:
    mark = MARK

    @declctl.hookimpl
    def declctl_event(self, change, ctx): ctx.memo["seen"] = ctx.memo.get("seen", 0) + 1

def by_a(obj): return [obj.name, str(MARK is None)]
def passes(obj): return MARK is not None
{hooks}
"""
_PREPARE = "@declctl.hookimpl\ndef declctl_prepare(): raise OSError('not today')\n"
_INDEXES = ("{name: b, fieldPath: data.version}", "{name: a, entryPoint: 'handlers:by_a'}", "")


def _write(rig, version: int, *, broken: str = "") -> None:
    index = f", indexers: [{_INDEXES[version % 3]}]" if _INDEXES[version % 3] else ""
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap{index}}}"]
    rig.handlers = []
    rig.handler("tell")
    rig.handler("other", rest="filter: {entryPoint: 'handlers:passes'}")
    rig.handler("classy", entry="handlers:Classy")
    if version % 2:
        rig.handler("second", entry="handlers:tell")
    # A child process every now and then: its pipes and its threads are ours.
    rig.reload_policy = "drainTimeout: 5s" if version % 8 == 1 else "preflight: 'Off', drainTimeout: 5s"
    fault = "raise OSError('no disk')" if broken == "import" else ""
    if broken == "prepare":
        rig.handler("wrong", entry="handlers")
    rig.write(CODE.format(version=version, broken=fault, hooks=_PREPARE if broken == "prepare" else ""))


def _files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


def _threads() -> list[str]:
    """All but those of asyncio's own pool, which grows to its size and no further."""
    return sorted(thread.name for thread in threading.enumerate() if thread not in _pool())


def _pool() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")]


def _generations() -> int:
    gc.collect()
    return sum(type(each) is Generation for each in gc.get_objects())


@pytest.mark.timeout(0 if _RELOADS > 40 else 120)
@pytest.mark.guarantee("G1", "G22")
def test_reloads_leave_nothing_behind(rig, sandbox, asked, config_map) -> None:
    """Applied and refused ones: old code is collected, nothing is listed again (G1, G22)."""
    _write(rig, 0)
    controller = rig.run(objects=[config_map("m", version="0")])
    listed = asked()

    def reload(version: int, broken: str = "") -> None:
        _write(rig, version, broken=broken)
        assert controller.reload().result == ("Refused" if broken else "Applied")
        if version % 10 == 0:
            controller.sandbox.patch("ConfigMap", "m", {"data": {"version": str(version)}})
            controller.wait_idle()
        until("it is retired", lambda: controller.status().generations_alive == 1)

    warm = 24  # reloads of every kind: the pools of threads that Python keeps are filled
    for version in range(1, warm + 1):
        reload(version)
    controller.sandbox.patch("ConfigMap", "m", {"data": {"version": "warm"}})
    controller.wait_idle()
    before, files, threads = fingerprint(controller, sandbox), _files(), _threads()
    generations = _generations()
    for version in range(warm + 1, warm + _RELOADS + 1):
        if version % 5 == 0:
            reload(version, broken=("import", "prepare")[version % 2])
        reload(version)
    while version % 24:
        version += 1
        reload(version)
    controller.sandbox.patch("ConfigMap", "m", {"data": {"version": "end"}})
    controller.wait_idle()
    until("it is as before", lambda: fingerprint(controller, sandbox) == before)
    until("no file is left open", lambda: _files() <= files)
    until("no thread is left", lambda: _threads() == threads)
    assert len(_pool()) <= _MOST_IN_POOL
    until("no generation is left", lambda: _generations() == generations == 1)
    assert asked() == listed
    marks: list[weakref.ref] = [row[1] for row in rig.told("mark")]
    assert len(marks) > _RELOADS
    until("old modules are collected", lambda: (gc.collect(), _alive(marks) == 1)[1])
    assert marks[-1]() is not None


def _alive(marks: list[weakref.ref]) -> int:
    return sum(mark() is not None for mark in marks)
