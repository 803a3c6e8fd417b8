"""Handlers in processes of their own: what one does hurts no other, and nothing is left of it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster
from processes import Declctl
from rest import pod
from waiting import until

from declctl.testing import BundleDir

_CODE = """
import ctypes, os, socket, sys, time
from pathlib import Path

socket.setdefaulttimeout(1)

# It can neither be pickled nor read.
Odd = type("Odd", (Exception,), {"__init__": lambda self: setattr(self, "f", iter), "__str__": sys.exit})
kept = []

def tell(change):
    print("quiet", change.key, flush=True)

def babble():
    for number in range(3, 64):
        try:
            os.write(number, b"junk" * 1000)
        except OSError:
            pass
    time.sleep(1000)

def leak():
    while True:
        kept.append(bytearray(os.urandom(4096)) * 4096)
        time.sleep(0.02)

def hostile(obj, ctx):
    ctx.memo["attempts"] = ctx.memo.get("attempts", 0) + 1
    print("begins", obj.name, flush=True)
    mark = Path(MARKS) / obj.name
    if mark.exists() and obj.name not in ("raises", "returns"):
        return  # a retry
    mark.touch()
    KINDS
"""
_KINDS = {
    "computes": "while True: pass",
    "hangs": "time.sleep(1000)",
    "segfaults": "ctypes.string_at(0)",
    "exits": "os._exit(7)",
    "detaches": "os.fork() or (os.setsid(), time.sleep(1000))",
    "babbles": "babble()",
    "leaks": "leak()",
    "grows": "kept.append(bytearray(os.urandom(4096)) * (100 * 256))",
    "raises": "raise Odd",
    "returns": "return object()",
}
# At least so many processes have ended for this cause.
_CAUSES = {"Timeout": 2, "Signal": 1, "Exit": 1, "Protocol": 1, "Memory": 2}


def _bundle(folder: Path, namespace: str, handlers: str, code: str) -> Path:
    made = BundleDir(folder)
    made.write("handlers.py", code)
    made.write(
        "manifest.yaml",
        "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: isolated}\nspec:\n"
        f"  namespaces: [{namespace}]\n"
        "  resources:\n    - {name: pods, apiVersion: v1, kind: Pod}\n  handlers:\n"
        + "".join(f"    - {line}\n" for line in handlers.strip().splitlines()),
    )
    return made.path


def _handler(declctl: Declctl, name: str) -> Any:
    return next(one for one in declctl.status()["handlers"] if one["name"] == name)


def _processes(pid: int) -> set[int]:
    """The process that has imported the code of isolated handlers, and all that were forked from it."""
    found: set[int] = set()
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            for child in map(int, task.read_text().split()):
                found |= {child, *_processes(child)}
    return {each for each in found if b"isolation" in _command(each)}


def _command(pid: int) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _said(declctl: Declctl, word: str) -> set[str]:
    return {line.split()[1].rpartition("/")[2] for line in declctl.out if line.startswith(word)}


@pytest.mark.thorough
def test_whatever_an_isolated_handler_does_the_others_lose_nothing(
    cluster: Cluster, tmp_path: Path, namespace: str
) -> None:
    """Loops, hangs, crashes, leaks, lies: each costs its own call, says why, and its key is retried."""
    (tmp_path / "marks").mkdir()
    kinds = "\n    ".join(f"if obj.name == {name!r}:\n        {code}" for name, code in _KINDS.items())
    code = _CODE.replace("MARKS", repr(str(tmp_path / "marks"))).replace("KINDS", kinds)
    handlers = """
{name: tell, resourceRef: {name: pods}, entryPoint: "handlers:tell"}
{name: hostile, resourceRef: {name: pods}, entryPoint: "handlers:hostile", events: [Added], timeout: 5s, \
queue: {concurrency: 3}, retry: {initialBackoff: 100ms, maxAttempts: 4}, \
isolation: {mode: Process, maxMemory: 128Mi}}
"""
    bundle = _bundle(tmp_path / "bundle", namespace, handlers, code)
    with Declctl(bundle, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        cluster.rest.create(pod("first", namespace))
        until("a process has begun", lambda: _said(declctl, "begins"))
        threads = _threads(declctl.pid)
        for kind in _KINDS:
            cluster.rest.create(pod(kind, namespace))
        everything = {"first", *_KINDS}
        until("the other handler has all", lambda: _said(declctl, "quiet") >= everything)

        def ended() -> Any:
            found = _handler(declctl, "hostile")
            is_idle = not found["queued"] and not found["running"]
            return found if is_idle and found["succeeded"] + found["failed"] == len(everything) else None

        found = until("each key came to its end", ended)
        assert found["failed"] == 1, "only what raises each time is given up"
        assert found["zombies"] == 0
        ends = found["isolation"]["ends"]
        assert {cause: min(times, ends.get(cause, 0)) for cause, times in _CAUSES.items()} == _CAUSES, ends
        shown = declctl.command("status").stdout
        assert "PROCESS OF" in shown
        assert "hostile" in shown
        log = "\n".join(declctl.err)
        for text in ("SIGSEGV, at /", "exit status 7", "its maxMemory is 128 MiB", "Odd"):
            assert text in log, text
        assert _threads(declctl.pid) <= threads + 3, "no thread waits for a call that was ended"
        # The process that has imported the code, and the children that are idle.
        until("nothing is left of the others", lambda: len(_processes(declctl.pid)) <= 1 + 3 + 1)
        left = _processes(declctl.pid)
        assert declctl.stop() == 0
    assert not [each for each in left if _command(each)]


_WRITES = """
import asyncio

def _map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}

async def poly(obj, ctx):
    if not obj.name.startswith("web"):
        return
    first, second = await asyncio.gather(ctx.apply(_map("a")), ctx.apply(_map("b", of=obj.name)))
    assert second.obj["data"] == {"of": obj.name}
    from kubernetes.aio.client import CoreV1Api
    read = await CoreV1Api(ctx.client).read_namespaced_config_map("b", obj.namespace)
    assert read.data == {"of": obj.name}
    try:
        await CoreV1Api(ctx.client).read_namespaced_config_map("nothing", obj.namespace)
    except Exception as error:
        assert error.status == 404
    try:
        await CoreV1Api(ctx.client).read_namespaced_config_map("b", obj.namespace, _request_timeout=1e-6)
        raise AssertionError("it has its own limit")
    except Exception as error:
        assert "Timeout" in type(error).__name__
    assert [str(each.key) for each in ctx.listers["pods"].list(namespace=obj.namespace)]
    assert ctx.listers["pods"].get(str(obj.key)).uid == obj.uid
    assert obj["spec"]["containers"] and len(ctx.snapshots["pods"]) == len(ctx.snapshots["pods"].list())
    print("poly", obj.key, ctx.now().year > 2000, flush=True)
    ctx.apply(_map("forgotten"))

def reconcile(request, ctx):
    from declctl import Requeue
    if request.obj is None:
        return None
    calls = ctx.memo["calls"] = ctx.memo.get("calls", 0) + 1
    from kubernetes.client import CoreV1Api
    CoreV1Api(ctx.sync_client).list_namespaced_pod(request.namespace)
    ctx.record_event(request.obj, "Seen", "by a process of its own")
    ctx.log.info("reconciled", calls=calls)
    ctx.sync.apply(_map("c", calls=str(calls)))
    return Requeue(after=0.2) if calls < 3 else None
"""


@pytest.mark.thorough
def test_ctx_is_the_same_in_a_process_of_its_own(cluster: Cluster, tmp_path: Path, namespace: str) -> None:
    """Writes, caches, memo, clients, Events and the log, of `def` and `async def`, over a reload."""
    handlers = """
{name: poly, resourceRef: {name: pods}, entryPoint: "handlers:poly", includeSnapshotsFrom: [pods], \
isolation: {mode: Process}}
{name: again, mode: Reconcile, resourceRef: {name: pods}, entryPoint: "handlers:reconcile", \
isolation: {mode: Process, maxCalls: 2}}
"""
    bundle = _bundle(tmp_path / "bundle", namespace, handlers, _WRITES)
    cluster.rest.create(pod("web", namespace))
    with Declctl(bundle, kubeconfig=cluster.kubeconfig) as declctl:
        until("a hook with `async def` was called", lambda: f"poly {namespace}/web True" in declctl.out)

        until("a write is made, though", lambda: cluster.rest.is_there("configmaps", "forgotten", namespace))
        until(
            "the log says so",
            lambda: any("ctx.apply (" in line and "not awaited" in line for line in declctl.err),
        )

        def counted() -> bool:
            if not cluster.rest.is_there("configmaps", "c", namespace):
                return False
            return cluster.rest.get("configmaps", "c", namespace)["data"]["calls"] == "3"

        until("its memo lasts over calls and processes", counted)
        until("an Event was posted", lambda: cluster.rest.list("events", namespace))
        until("two calls are enough for a process", lambda: _handler(declctl, "again")["isolation"]["ends"])
        assert _handler(declctl, "again")["isolation"]["ends"] == {"Calls": 1}
        assert any("reconciled" in line and f"key={namespace}/web" in line for line in declctl.err)
        writes = {(each["handler"], each["verb"]) for each in declctl.status()["writes"]}
        assert writes >= {("poly", "apply"), ("again", "apply")}
        before = _processes(declctl.pid)
        code = (bundle / "handlers.py").read_text().replace('print("poly"', 'print("new"')
        (bundle / "handlers.py").write_text(code)
        declctl.wait_for_generation(2)
        cluster.rest.create(pod("web-2", namespace))
        until("the new code is called", lambda: f"new {namespace}/web-2 True" in declctl.out)
        until("the old processes have ended", lambda: not before & _processes(declctl.pid))
        assert declctl.stop() == 0
