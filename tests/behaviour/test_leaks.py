"""Nothing of an old generation stays: no code, no thread, no task, no file, no module, no index.

The ordinary test reloads 40 times; with DECLCTL_SOAK 1,000 times.
"""

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from declctl.runtime.reloading import retirement
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.retirement import sweep_delay
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
    rig.only()
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


def _failed(controller) -> set[str]:
    """The handlers of which a call has failed."""
    return {handler.name for handler in controller.status().handlers if handler.failed}


def _generations() -> int:
    gc.collect()
    return sum(type(each) is Generation for each in gc.get_objects())


@pytest.mark.thorough
@pytest.mark.client_go(338)
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
        rig.retired()

    warm = 24  # reloads of every kind: the pools of threads that Python keeps are filled
    for version in range(1, warm + 1):
        reload(version)
    controller.sandbox.patch("ConfigMap", "m", {"data": {"version": "warm"}})
    controller.wait_idle()
    before, files, threads = fingerprint(controller, sandbox), _files(), _threads()
    generations = _generations()  # of other tests, too, if something still holds one
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
    until("no generation is left", lambda: _generations() <= generations)
    assert asked() == listed
    marks: list[weakref.ref] = [row[1] for row in rig.told("mark")]
    assert len(marks) > _RELOADS
    until("old modules are collected", lambda: (gc.collect(), _alive(marks) == 1)[1])
    assert marks[-1]() is not None


BALLAST = """
import blackboard, weakref
class Ballast: data = bytearray({size})
BALLAST = Ballast()
blackboard.tell("ballast", weakref.ref(BALLAST))
def tell(change): return BALLAST, {version}
"""


@pytest.fixture
def _no_collections_by_themselves() -> Iterator[None]:
    """Python makes its next full collection at some time, perhaps many reloads later."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.thorough
@pytest.mark.usefixtures("_no_collections_by_themselves")
@pytest.mark.parametrize("probation", ["0s", "20ms"])
@pytest.mark.guarantee("G22")
def test_one_generation_is_in_memory_once_the_old_one_has_drained(rig, config_map, probation: str) -> None:
    """What a module holds is given back after the drain and the probation, and not at some later reload."""
    rig.handler("tell")
    rig.reload_policy += f", probationPeriod: {probation}"
    controller = rig.run(BALLAST.format(size=1000, version=0), objects=[config_map("m")])
    controller.wait_idle()
    for version in range(1, 4):
        rig.apply(BALLAST.format(size=1000, version=version))
        held = [row[1] for row in rig.told("ballast")]
        assert len(held) == version + 1
        until("only the newest is held", lambda held=held: _alive(held) == 1)
        assert held[-1]() is not None


@pytest.mark.guarantee("G22")
def test_many_reloads_do_not_pause_a_process_with_decoded_objects_each_time() -> None:
    """To free old code stops all threads for half a second with 20,000 pods under `mode: Objects`."""
    assert sweep_delay(decoded=0, since_last=0.0) == sweep_delay(1000, 0.0) == 0.5
    assert sweep_delay(decoded=20_000, since_last=float("inf")) == 0.5
    assert sweep_delay(decoded=20_000, since_last=10.0) == 50.0
    assert sweep_delay(decoded=20_000, since_last=59.9) == 0.5
    assert sweep_delay(decoded=20_000, since_last=0.0, waiting=2) == 60.0


# What is larger than 32 MB glibc gives back when it is freed; of less it may keep a part for the next import.
LARGE = """
class Ballast: data = bytearray(b"x") * (40 << 20)
BALLAST = [Ballast()]
BALLAST.append(BALLAST)
def tell(change): return BALLAST, {version}
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("_no_collections_by_themselves")
@pytest.mark.guarantee("G22")
@pytest.mark.parametrize(("cache", "most"), [("", 2), (", cache: {mode: Objects}", 4)])
def test_edits_of_a_large_module_do_not_add_up(rig, config_map, monkeypatch, cache: str, most: int) -> None:
    """Ten edits of a module with 40 MB: two are in memory, with many decoded objects four for a while."""
    monkeypatch.setattr(retirement, "FEW_DECODED", 5)
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap{cache}}}"]
    rig.handler("tell")
    rig.reload_policy += ", probationPeriod: 0s"
    controller = rig.run(LARGE.format(version=0), objects=[config_map(f"m{number}") for number in range(10)])
    controller.wait_idle()
    one = _resident()
    for version in range(1, 11):
        rig.apply(LARGE.format(version=version))
        until("others are gone", lambda: _resident() < one + 40 * (most - 1) + 30, timeout=60)


@pytest.mark.thorough
@pytest.mark.usefixtures("_no_collections_by_themselves")
@pytest.mark.guarantee("G22")
def test_code_that_is_taken_back_leaves_memory(rig, config_map) -> None:
    """After a rollback only the code that came back is held."""
    rig.handler("tell")
    rig.reload_policy += ", probationPeriod: 1h"
    rig.run(BALLAST.format(size=1000, version=0), objects=[config_map("m")])
    rig.apply(BALLAST.format(size=1000, version=1))
    assert rig.roll_back().result == "RolledBack"
    held = [row[1] for row in rig.told("ballast")]
    until("the newer is gone", lambda: [each() is not None for each in held] == [True, False])


FAILING = """
import asyncio, declctl
def fails(change): raise ValueError(BALLAST)
async def later(change):
    await asyncio.sleep(0)
    raise ValueError(BALLAST)
def by_nothing(obj): raise ValueError(BALLAST)
class Classy:
    @declctl.hookimpl
    def declctl_event(self): raise ValueError(BALLAST)
    @declctl.hookimpl
    def declctl_teardown(self): raise ValueError(BALLAST)
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("_no_collections_by_themselves")
@pytest.mark.guarantee("G22")
def test_code_that_failed_is_not_held_by_its_failures(rig, config_map) -> None:
    """Tracebacks lead to modules: what is logged, counted or tried again of a failure keeps no old code."""
    index = "{name: nothing, entryPoint: 'handlers:by_nothing'}"
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap, indexers: [{index}]}}"]
    rig.only()
    rig.handler("classy", entry="handlers:Classy", rest="retry: {maxAttempts: 1}")
    for name in ("fails", "later"):
        rig.handler(name, rest="retry: {maxAttempts: 2, initialBackoff: 1ms}")
    rig.reload_policy += ", probationPeriod: 0s"
    code = BALLAST + FAILING.replace("{", "{{").replace("}", "}}")
    controller = rig.run(code.format(size=1000, version=0), objects=[config_map("m")])
    for version in range(1, 3):
        controller.sandbox.patch("ConfigMap", "m", {"data": {"version": str(version)}})
        until("calls have failed", lambda: _failed(controller) >= {"fails", "later", "classy"})
        controller.wait_idle()
        rig.apply(code.format(size=1000, version=version))
        held = [row[1] for row in rig.told("ballast")]
        until("only the newest is held", lambda held=held: _alive(held) == 1)


@pytest.mark.skipif(_RELOADS == 40, reason="set DECLCTL_SOAK for a module of 2 GB; 6 GB of memory are needed")
@pytest.mark.timeout(0)
@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("data", ["bytearray(b'x') * (2 << 30)", "[bytes(400) for _ in range(4_700_000)]"])
def test_a_module_of_two_gigabytes_is_in_memory_once(rig, config_map, data: str) -> None:
    """Three reloads: the memory of one while nothing is reloaded, of two while the old one drains."""
    rig.handler("tell")
    rig.reload_policy = "preflight: 'Off', probationPeriod: 0s, warmTimeout: 5m"
    code = f"DATA = {data}\ndef tell(change): return len(DATA), {{}}\n"
    controller = rig.run(code.format(0), objects=[config_map("m")])
    one = _resident()
    for version in range(1, 4):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        rig.folder.write("handlers.py", code.format(version))
        assert controller.reload(timeout=300).result == "Applied"
        until("one is left", lambda: _resident() < one + 200, timeout=60)
        assert _resident("VmHWM") < 2 * one + 200


@pytest.mark.skipif(_RELOADS == 40, reason="set DECLCTL_SOAK for 300 reloads of a large module")
@pytest.mark.timeout(0)
@pytest.mark.guarantee("G22")
def test_memory_does_not_grow_with_reloads_of_a_large_module(rig, config_map) -> None:
    """300 reloads of 5 MB each: from the 20th on, the resident memory stays within three times a module."""
    rig.handler("tell")
    table = "TABLE = {{f'key {{i}} {0}': 'value %d' % i * 4 for i in range(40_000)}}\n"
    rig.run(table.format(0) + BALLAST.format(size=1000, version=0), objects=[config_map("m")])
    seen: list[float] = []
    for version in range(1, 301):
        rig.apply(table.format(version) + BALLAST.format(size=1000, version=version))
        held = [row[1] for row in rig.told("ballast")]
        until("only the newest is held", lambda held=held: _alive(held) == 1)
        seen.append(_resident())
    assert max(seen[20:]) - min(seen[20:40]) < 30, seen


def _resident(field: str = "VmRSS") -> float:
    """In MB."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def _alive(marks: list[weakref.ref]) -> int:
    return sum(mark() is not None for mark in marks)
