"""Several whole controllers that share the objects of a sandbox: who handles what, and when."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from declctl.objects.shards import Sharding, ShardKey
from declctl.sandbox import SandboxThread
from declctl.testing import BundleDir, ControllerUnderTest, until
from tests.behaviour.conftest import config_map

SLOTS, LEASE, RENEWAL, RETRY = 4, 6.0, 4.0, 1.0  # the last three in seconds
SHARDING = Sharding(SLOTS)
SPEC = f"""
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: web}}
spec:
  resources:
    - {{name: maps, apiVersion: v1, kind: ConfigMap}}
    - {{name: secrets, apiVersion: v1, kind: Secret, sharded: false}}
  handlers:
    - {{name: seen, resourceRef: {{name: maps}}, entryPoint: "code:seen"}}
    - {{name: keys, resourceRef: {{name: maps}}, entryPoint: "code:keys", mode: Reconcile}}
    - {{name: whole, resourceRef: {{name: secrets}}, entryPoint: "code:whole", mode: Reconcile}}
  sharding:
    slots: {SLOTS}
    leaseDuration: {LEASE:g}s
    renewDeadline: {RENEWAL:g}s
    retryPeriod: {RETRY:g}s
    namespace: default
"""
CODE = """
from blackboard import tell, wait
from declctl.errors import NotLeader

def seen(change):
    tell("seen", NAME, str(change.type), change.obj.key, change.obj["data"]["v"], change.initial)

def keys(request, ctx):
    tell("key", NAME, str(request.key), None if request.obj is None else request.obj["data"]["v"])

def whole(request):
    tell("whole", NAME, str(request.key))
"""
NAMESPACES = tuple(f"ns-{number}" for number in range(20))
Replicas = Callable[..., ControllerUnderTest]


def of_shard(shard: int) -> list[str]:
    """The namespaces of a shard."""
    return [each for each in NAMESPACES if SHARDING.shard_of(each, "") == shard]


@pytest.fixture
def replica(
    tmp_path: Path, sandbox: SandboxThread, board: ModuleType, controller: Callable[..., ControllerUnderTest]
) -> Replicas:
    """Starts a replica by its name; all have the same manifest."""
    sandbox.load([config_map("a", each, v="1") for each in NAMESPACES])
    sandbox.load([{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}}])

    def start(name: str, spec: str = SPEC, code: str = CODE) -> ControllerUnderTest:
        files = {"manifest.yaml": spec, "code.py": f'NAME = "{name}"\n{code}'}
        process = controller(BundleDir(tmp_path / name, files).path)
        process.wait_ready()
        return process

    return start


def held(process: ControllerUnderTest) -> frozenset[int]:
    """The slots that a replica handles."""
    sharding = process.status().sharding
    assert sharding is not None
    return frozenset(each.slot for each in sharding.slots if each.state == "Handled")


def until_shared(*processes: ControllerUnderTest) -> list[frozenset[int]]:
    """Let time pass until all shards are handled, by each process its quota; returns these."""
    found: list[frozenset[int]] = []
    for _ in range(60):
        found = [held(each) for each in processes]
        sizes = sorted(map(len, found))
        if sum(sizes) == SLOTS and sizes[-1] - sizes[0] <= 1:
            return found
        processes[0].advance(RETRY / 2)
    raise AssertionError(f"not shared: {found}, {[each.log.events() for each in processes]}")


def rows(board: ModuleType, *first: Any) -> list[tuple[Any, ...]]:
    """The rows of the blackboard that begin like this."""
    return [row for row in tuple(board.told) if row[: len(first)] == first]


def test_a_lone_replica_handles_all(replica, sandbox, board) -> None:
    """As without a sharding: each object once, also those of resources that are not sharded."""
    one = replica("one")
    until_shared(one)
    one.wait_idle()
    keys = sorted(f"{each}/a" for each in NAMESPACES)
    assert sorted(row[2] for row in rows(board, "key")) == keys
    assert sorted(row[3] for row in rows(board, "seen")) == keys
    assert all(row[2] == "Added" and row[5] for row in rows(board, "seen"))
    assert rows(board, "whole") == [("whole", "one", "default/s")]
    sandbox.patch("ConfigMap", "a", {"data": {"v": "2"}}, namespace="ns-3")
    until("it is seen", lambda: ("key", "one", "ns-3/a", "2") in board.told)


def test_a_second_replica_takes_its_half_and_nothing_is_told_twice(replica, sandbox, board) -> None:
    """What moves is told to the new holder as at a start; the old one hears nothing more, and no Deleted."""
    one = replica("one")
    until_shared(one)
    one.wait_idle()
    board.clear()
    two = replica("two")
    of_one, of_two = until_shared(one, two)
    two.wait_idle()
    moved = sorted(f"{each}/a" for shard in of_two for each in of_shard(shard))
    assert sorted(row[3] for row in rows(board, "seen")) == moved
    assert sorted(row[2] for row in rows(board, "key")) == moved
    assert {row[1] for row in tuple(board.told) if row[0] != "whole"} == {"two"}
    board.clear()
    for each in NAMESPACES:
        sandbox.patch("ConfigMap", "a", {"data": {"v": "2"}}, namespace=each)
    until("all have handled it", lambda: len(rows(board, "key")) == len(NAMESPACES))
    assert Counter(row[2] for row in rows(board, "key")) == Counter(f"{each}/a" for each in NAMESPACES)
    for name, shards in (("one", of_one), ("two", of_two)):
        wanted = {f"{each}/a" for shard in shards for each in of_shard(shard)}
        assert {row[2] for row in rows(board, "key", name)} == wanted
        assert {row[3] for row in rows(board, "seen", name)} == wanted
    assert not [row for row in rows(board, "seen") if row[2] == "Deleted"]
    assert two.stop() == 0
    until_shared(one)
    one.wait_idle()
    assert not [row for row in rows(board, "seen") if row[2] == "Deleted"]


def test_what_is_not_sharded_is_handled_where_slot_0_is(replica, sandbox, board) -> None:
    """Each replica has all of it in its cache; handlers, schedules and life-cycle writes are one's alone."""
    spec = SPEC + '  schedules: [{name: tick, every: 10s, entryPoint: "code:tick"}]\n'
    code = (
        CODE
        + """
def tick(ctx):
    tell("tick", NAME)
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    ctx.sync.apply({**kind, "metadata": {"name": "ticked", "namespace": "default"}, "data": {"v": NAME}})
"""
    )
    running = {name: replica(name, spec, code) for name in ("one", "two")}
    of_one, _ = until_shared(*running.values())
    holder, other = ("one", "two") if 0 in of_one else ("two", "one")
    running[holder].advance(25)
    running[holder].wait_idle()
    assert {row[1] for row in rows(board, "tick")} == {holder}
    assert len(rows(board, "tick")) >= 2
    assert rows(board, "whole") == [("whole", holder, "default/s")]
    assert all(len(each.lister("secrets")) == 1 for each in running.values())
    board.clear()
    assert running[holder].stop() == 0
    until_shared(running[other])
    running[other].advance(25)
    running[other].wait_idle()
    assert {row[1] for row in rows(board, "tick")} == {other}
    assert rows(board, "whole") == [("whole", other, "default/s")]


@pytest.mark.thorough
def test_a_move_waits_for_calls_and_drops_what_waits(replica, sandbox, board) -> None:
    """The new holder begins with a key when the call of the old one has ended; a failing key moves."""
    code = (
        CODE
        + """
def keys(request, ctx):
    if request.obj["data"]["v"] == "bad":
        tell("fails", NAME, str(request.key))
        raise ValueError("bad")
    tell("begins", NAME, str(request.key))
    if request.obj["data"]["v"] == "slow":
        wait("go on")
    tell("ends", NAME, str(request.key))
"""
    )
    spec = SPEC.replace("mode: Reconcile}", "mode: Reconcile, queue: {concurrency: 4}}")
    one = replica("one", spec, code)
    until_shared(one)
    one.wait_idle()
    board.clear()
    for shard in range(SLOTS):  # one key of each slot is slow, and one fails
        slow, bad = of_shard(shard)[:2]
        sandbox.patch("ConfigMap", "a", {"data": {"v": "slow"}}, namespace=slow)
        sandbox.patch("ConfigMap", "a", {"data": {"v": "bad"}}, namespace=bad)
    until("all four run", lambda: len(rows(board, "begins")) == SLOTS)
    two = replica("two", spec, code)
    for _ in range(20):
        two.advance(RETRY / 2)
    assert held(two) == frozenset()
    assert len(held(one)) == SLOTS - SLOTS // 2
    assert rows(board, "begins", "two") == rows(board, "ends") == []
    board.open_gate("go on")
    _, of_two = until_shared(one, two)
    until(
        "they have failed there", lambda: len({row[2] for row in rows(board, "fails", "two")}) == len(of_two)
    )
    order = [row for row in tuple(board.told) if row[0] in ("begins", "ends")]
    for shard in of_two:
        key = f"{of_shard(shard)[0]}/a"
        assert [row[:2] for row in order if row[2] == key] == [
            ("begins", "one"),
            ("ends", "one"),
            ("begins", "two"),
            ("ends", "two"),
        ]
    board.clear()
    one.advance(120)
    failing = {row[1:] for row in rows(board, "fails")}
    moved = {f"{of_shard(shard)[1]}/a" for shard in of_two}
    assert {key for name, key in failing if name == "two"} == moved
    assert not {key for name, key in failing if name == "one"} & moved


@pytest.mark.thorough
def test_a_lost_slot_ends_its_calls_and_refuses_their_writes(replica, sandbox, board) -> None:
    """Also the writes of a call that goes on when the slot has come back; other slots notice nothing."""
    code = (
        CODE
        + """
def keys(request, ctx):
    if request.obj["data"]["v"] != "slow":
        return
    tell("begins", str(request.key))
    wait("go on " + request.key.namespace)
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    for write in (
        lambda: ctx.sync.apply({**kind, "metadata": {"name": "child"}, "data": {"v": "x"}}),
        lambda: official(ctx, request.key.namespace),
    ):
        try:
            write()
            tell("written", str(request.key))
        except NotLeader as refused:
            tell("refused", str(request.key), str(refused))

def official(ctx, namespace):
    from kubernetes.client import CoreV1Api
    body = {"metadata": {"name": "other"}}
    CoreV1Api(ctx.sync_client).create_namespaced_config_map(namespace, body)
"""
    )
    spec = SPEC.replace("mode: Reconcile}", "mode: Reconcile, queue: {concurrency: 4}}")
    one = replica("one", spec, code)
    until_shared(one)
    one.wait_idle()
    namespaces = {shard: of_shard(shard)[0] for shard in range(SLOTS)}
    for namespace in namespaces.values():
        sandbox.patch("ConfigMap", "a", {"data": {"v": "slow"}}, namespace=namespace)
    until("all calls run", lambda: len(rows(board, "begins")) == SLOTS)
    lost = namespaces[2]
    sandbox.patch("Lease", "web-shard-2", {"spec": {"holderIdentity": "other"}})
    for _ in range(20):
        one.advance(RETRY / 2)
        if 2 not in held(one):
            break
    assert held(one) == {0, 1, 3}
    assert one.status().sharding.lost == 1
    # The other process goes, and the slot comes back, while the old call still runs.
    sandbox.patch("Lease", "web-shard-2", {"spec": {"leaseDurationSeconds": 1}})
    until_shared(one)
    for namespace in namespaces.values():
        board.open_gate(f"go on {namespace}")
    # After the refused call, the key is handled by a call of the new term.
    until("all have written", lambda: len(rows(board, "written")) == 2 * SLOTS)
    assert [row[1] for row in rows(board, "refused")] == [f"{lost}/a"] * 2
    assert all("given back or lost while its call ran" in row[2] for row in rows(board, "refused"))
    assert len(rows(board, "begins", f"{lost}/a")) == 2
    assert one.status().sharding.refused_writes >= 2
    assert one.stop() == 0


CALLS = """
import asyncio

async def seen(change, ctx):
    if change.obj["data"]["v"] == "slow":
        tell("async begins", change.obj.key)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            tell("async is cancelled", change.obj.key)
            raise

def keys(request, ctx):
    if request.obj["data"]["v"] == "slow":
        ctx.record_event(request.obj, "Begins", "it has begun")
        import time
        time.sleep(3600)
"""


@pytest.mark.thorough
def test_a_lost_slot_cancels_what_can_be_cancelled(replica, sandbox, board) -> None:
    """Asynchronous calls, and calls in processes of their own; those of other slots go on."""
    spec = SPEC.replace(
        "mode: Reconcile}", "mode: Reconcile, queue: {concurrency: 4}, isolation: {mode: Process}}", 1
    ).replace('"code:seen"}', '"code:seen", queue: {concurrency: 4}}')
    spec += "  lifecycle: {gracePeriod: 2s}\n"
    one = replica("one", spec, CODE + CALLS)
    until_shared(one)
    one.wait_idle()
    keys = {shard: f"{of_shard(shard)[0]}/a" for shard in range(SLOTS)}
    for key in keys.values():
        sandbox.patch("ConfigMap", "a", {"data": {"v": "slow"}}, namespace=key.partition("/")[0])
    until("all calls run", lambda: len(rows(board, "async begins")) == SLOTS, timeout=60)
    until("all calls run", lambda: len(sandbox.objects("Event")) == SLOTS, timeout=60)
    sandbox.patch("Lease", "web-shard-2", {"spec": {"holderIdentity": "other"}})
    for _ in range(20):
        one.advance(RETRY / 2)
        if 2 not in held(one):
            break
    until("it is cancelled", lambda: rows(board, "async is cancelled") == [("async is cancelled", keys[2])])
    running = dict.fromkeys(("seen", "keys"), SLOTS - 1)
    until("others run", lambda: {name: one.handler(name).running for name in running} == running, timeout=30)
    assert [one.handler(name).zombies for name in running] == [0, 0]
    assert all(one.handler(name).failed == 1 for name in running)
    assert one.log.find("its slot has left this process: the next holder begins with all its objects")


def test_a_reload_while_slots_are_shared(replica, sandbox, board, tmp_path) -> None:
    """An edit of code, a new handler, and a new resource concern the slots of each replica alone."""
    one, two = replica("one"), replica("two")
    shares = until_shared(one, two)
    board.clear()
    more = SPEC.replace(
        "  sharding:", '    - {name: more, resourceRef: {name: extra}, entryPoint: "code:more"}\n  sharding:'
    ).replace(
        "  handlers:",
        "    - {name: extra, apiVersion: v1, kind: ConfigMap, cache: {mode: MetadataOnly}}\n  handlers:",
    )
    for name, process in (("one", one), ("two", two)):
        code = f'NAME = "{name}"\n{CODE}\ndef more(obj):\n    tell("more", NAME, obj.key)\n'
        (tmp_path / name / "manifest.yaml").write_text(more)
        (tmp_path / name / "code.py").write_text(code.replace('tell("key"', 'tell("new key"'))
        assert process.reload().result == "Applied"
        process.wait_idle()
    told = rows(board, "more")
    assert Counter(row[2] for row in told if row[2].startswith("ns-")) == Counter(
        f"{each}/a" for each in NAMESPACES
    )
    for name, shards in zip(("one", "two"), shares, strict=True):
        found = {row[2] for row in told if row[1] == name and row[2].startswith("ns-")}
        assert found == {f"{each}/a" for shard in shards for each in of_shard(shard)}
    for each in NAMESPACES:
        sandbox.patch("ConfigMap", "a", {"data": {"v": "2"}}, namespace=each)
    until("the new code has all", lambda: len(rows(board, "new key")) >= len(NAMESPACES))
    assert {row[1] for row in rows(board, "new key")} == {"one", "two"}


def test_objects_cut_by_uid_end_where_they_were_handled(replica, sandbox, board) -> None:
    """A gone object has no uid any more: its last call is made by the process that has heard of its end."""
    spec = SPEC.replace("  sharding:\n", "  sharding:\n    by: UID\n")
    sandbox.load([config_map(f"b-{number}", v="1") for number in range(20)])
    one, two = replica("one", spec), replica("two", spec)
    until_shared(one, two)
    one.wait_idle()
    two.wait_idle()
    sharding = Sharding(SLOTS, ShardKey.UID)
    of_one = held(one)
    owners = {
        f"{each['metadata']['namespace']}/{each['metadata']['name']}": "one"
        if sharding.shard_of(None, each["metadata"]["uid"]) in of_one
        else "two"
        for each in sandbox.objects("ConfigMap")
    }
    assert set(owners.values()) == {"one", "two"}
    board.clear()
    for key in owners:
        namespace, _, name = key.partition("/")
        sandbox.delete("ConfigMap", name, namespace)
    until("all ends are told", lambda: len(rows(board, "key")) >= len(owners))
    one.wait_idle()
    two.wait_idle()
    assert sorted(row[1:] for row in rows(board, "key")) == sorted(
        (name, key, None) for key, name in owners.items()
    )
    assert sorted(row[1:4] for row in rows(board, "seen")) == sorted(
        (name, "Deleted", key) for key, name in owners.items()
    )


FINALIZES = """
import declctl

class Finalizing:
    @declctl.hookimpl
    def declctl_reconcile(self, request):
        tell("key", NAME, str(request.key))

    @declctl.hookimpl
    def declctl_finalize(self, request):
        tell("finalized", NAME, str(request.key))

finalizing = Finalizing()
"""


@pytest.mark.thorough
def test_each_replica_finalizes_what_it_holds(replica, sandbox, board) -> None:
    """Also what has left the scope by its labels, before its slot has moved; nothing is finalized twice."""
    spec = (
        SPEC.replace("kind: ConfigMap}", 'kind: ConfigMap, labelSelector: "on=yes"}')
        .replace('entryPoint: "code:keys"', 'entryPoint: "code:finalizing", finalizer: example.dev/keys')
        .replace("    - {name: seen,", "    # {")
    )
    for each in NAMESPACES:
        sandbox.load([labelled("in", each), labelled("out", each)])
    one = replica("one", spec, CODE + FINALIZES)
    until_shared(one)
    one.wait_idle()
    for each in NAMESPACES:
        sandbox.patch("ConfigMap", "out", {"metadata": {"labels": {"on": "no"}}}, namespace=each)
    one.advance(5)
    two = replica("two", spec, CODE + FINALIZES)
    shares = until_shared(one, two)
    one.advance(5)
    for each in NAMESPACES:
        for name in ("in", "out"):
            sandbox.delete("ConfigMap", name, each)
    keys = [f"{each}/{name}" for each in NAMESPACES for name in ("in", "out")]
    until("all are finalized", lambda: len(rows(board, "finalized")) >= len(keys), timeout=30)
    one.wait_idle()
    two.wait_idle()
    assert Counter(row[2] for row in rows(board, "finalized")) == Counter(keys)
    for name, shards in zip(("one", "two"), shares, strict=True):
        wanted = {
            f"{each}/{which}" for shard in shards for each in of_shard(shard) for which in ("in", "out")
        }
        assert {row[2] for row in rows(board, "finalized", name)} == wanted
    until("all are gone", lambda: len(sandbox.objects("ConfigMap")) == len(NAMESPACES))  # those named a


def labelled(name: str, namespace: str) -> dict[str, Any]:
    """A ConfigMap in the scope of the handler with a finalizer."""
    found = config_map(name, namespace, v="1")
    found["metadata"]["labels"] = {"on": "yes"}
    return found
