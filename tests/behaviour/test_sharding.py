"""Several whole controllers that share the objects of a sandbox: who handles what, and when."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from declctl.objects.shards import Sharding
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
NAMESPACES = tuple(f"ns-{number}" for number in range(12))
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
    """The shards that a replica handles."""
    found = process.runtime.parts.writing.replica
    assert found is not None
    return frozenset(process.on_machinery(_open_of(found), 30))


async def _open_of(replica: Any) -> Sequence[int]:
    return replica.status().open


def until_shared(*processes: ControllerUnderTest) -> list[frozenset[int]]:
    """Let time pass until all shards are handled, by each process its quota; returns these."""
    for _ in range(60):
        found = [held(each) for each in processes]
        sizes = sorted(map(len, found))
        if sum(sizes) == SLOTS and sizes[-1] - sizes[0] <= 1:
            return found
        processes[0].advance(RETRY / 2)
    raise AssertionError(f"not shared: {found}, {[each.log.events() for each in processes]}")


def rows(board: ModuleType, *first: Any) -> list[tuple]:
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
    """What moves is told to the new holder as at a start; the old one hears no Deleted, and nothing any more."""
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
