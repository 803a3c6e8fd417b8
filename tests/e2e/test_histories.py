"""Random changes over real HTTP, on every kind of server: caches and handlers end up knowing the truth.

The seeds are fixed; what the server makes of them, and when, is not.
"""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import clusters
import pytest
import yaml
from clusters import Cluster
from followers import Followers
from proxy import Proxy, proxy
from rest import Rest
from waiting import until

from tests.properties.folding import State

_NAMES = [f"m{number}" for number in range(12)]
_TURNS, _CHANGES = 4, 30


class Changes:
    """Makes random changes to the ConfigMaps of a namespace."""

    def __init__(self, rest: Rest, namespace: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self._rest = rest
        self._namespace = namespace
        self._there: set[str] = set()
        self._turn = 0

    def make(self, number: int) -> None:
        """So many changes: an object is created, changed, deleted, or deleted and made again."""
        for _ in range(number):
            self._turn += 1
            name = self.chance.choice(_NAMES)
            kind = self.chance.choice(["put", "put", "put", "delete", "recreate"])
            if kind != "put" and name in self._there:
                self.delete(name)
            if kind != "delete":
                self.put(name)

    def put(self, name: str) -> None:
        """Create it, or change it."""
        data = {"turn": str(self._turn)}
        if name in self._there:
            self._rest.patch("configmaps", name, {"data": data}, self._namespace)
        else:
            metadata = {"name": name, "namespace": self._namespace}
            self._rest.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
            self._there.add(name)

    def delete(self, name: str) -> None:
        """Delete it."""
        self._rest.delete("configmaps", name, self._namespace)
        self._there.discard(name)

    def truth(self) -> dict[str, State]:
        """What the server has: uid and version by key."""
        return {
            f"{self._namespace}/{obj['metadata']['name']}": (
                obj["metadata"]["uid"],
                obj["metadata"]["resourceVersion"],
            )
            for obj in self._rest.list("configmaps", self._namespace)
        }


@contextmanager
def between(cluster: Cluster) -> Iterator[tuple[Proxy, dict[str, Any]]]:
    """A proxy in front of the API server, and a kubeconfig that leads through it."""
    document = yaml.safe_load(cluster.kubeconfig.read_text("utf-8"))
    server = document["clusters"][0]["cluster"]["server"]
    parts = urlsplit(server)
    if parts.hostname != "127.0.0.1" or parts.port is None:
        pytest.skip("a given cluster's certificate is not for a proxy on this machine")
    with proxy((parts.hostname, parts.port)) as it:
        through = copy.deepcopy(document)
        host, port = it.address
        through["clusters"][0]["cluster"]["server"] = f"{parts.scheme}://{host}:{port}"
        yield it, through


class Life:
    """What happens to a namespace, and who follows it through a line that can be cut."""

    def __init__(self, cluster: Cluster, changes: Changes, line: Proxy, followers: Followers) -> None:
        self.cluster = cluster
        self.changes = changes
        self.line = line
        self.followers = followers

    def goes_on(self) -> None:
        """Changes are made, while handlers come and go."""
        for _ in range(_TURNS):
            self.changes.make(_CHANGES)
            self.followers.come_and_go(self.changes.chance)

    def rests(self) -> None:
        """Nothing happens any more, and everybody learns of the last change."""
        self.changes.put("marker")
        self.followers.know(self.changes.truth)


@contextmanager
def living(cluster: Cluster, namespace: str, *, seed: int, **how: Any) -> Iterator[Life]:
    """A namespace with followers, after some changes and before others."""
    changes = Changes(cluster.rest, namespace, seed)
    changes.make(_CHANGES)
    with between(cluster) as (line, kubeconfig), Followers(kubeconfig, namespace, **how) as followers:
        life = Life(cluster, changes, line, followers)
        life.goes_on()
        yield life
        for _ in range(2):  # while the line comes back, and when it is there
            life.goes_on()
            life.rests()


@pytest.fixture(
    params=[
        "sandbox",
        pytest.param("", id="real", marks=pytest.mark.real),
        pytest.param("--watch-cache=false", id="real-without-watch-cache", marks=pytest.mark.real),
        pytest.param("--feature-gates=WatchList=false", id="real-without-streams", marks=pytest.mark.real),
    ]
)
def any_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """The sandbox, the real API server, and one with a flag."""
    if request.param in ("sandbox", ""):
        yield request.getfixturevalue("sandbox_cluster" if request.param else "_real_cluster")
        return
    with clusters.real(tmp_path, request.param) as cluster:
        yield cluster


@pytest.mark.scenario
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_caches_and_handlers_follow_whatever_happens(cluster: Cluster, namespace: str, seed: int) -> None:
    """Connections are cut and come again: nobody asks for everything, and nothing is missed or repeated."""
    lists = cluster.asked("list", "configmaps")
    with living(cluster, namespace, seed=seed) as life:
        life.line.cut()
        life.line.mend()
    assert all(watches > 1 for watches in life.followers.figures("watches"))
    assert life.followers.figures("lists") == [1, 1]
    assert life.followers.tombstones() == [0, 0, 0, 0]
    assert cluster.asked("list", "configmaps") == lists


def test_a_restart_of_the_server_is_followed(cluster: Cluster, namespace: str) -> None:
    """The API server is killed in the middle, and comes back."""
    with living(cluster, namespace, seed=3):
        cluster.outage()


@pytest.mark.client_go("A delete that is missed across 410")
def test_what_a_server_has_forgotten_is_learnt_from_what_it_has(
    any_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    """While nobody is connected objects go and are made anew, and the history is compacted."""
    lists = any_cluster.asked("list", "configmaps")
    with living(any_cluster, clusters.new_namespace(any_cluster), seed=4) as life:
        life.changes.put("goes")
        life.rests()
        life.line.cut()
        life.changes.delete("goes")
        life.changes.make(_CHANGES)
        any_cluster.forget()
        life.line.mend()
    assert all(relists > 0 for relists in life.followers.figures("relists"))
    assert all(tombstones > 0 for tombstones in life.followers.tombstones())
    streams = "without-streams" not in request.node.name
    assert (any_cluster.asked("list", "configmaps") == lists) is streams


@pytest.fixture(
    params=[
        "sandbox",
        pytest.param("", id="real", marks=pytest.mark.real),
        pytest.param("--watch-cache=false", id="real-without-watch-cache", marks=pytest.mark.real),
    ]
)
def forgetful_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A server that compacts its history once a second, with a watch cache and without one."""
    if request.param == "sandbox":
        yield request.getfixturevalue("sandbox_cluster")
        return
    flags = [flag for flag in (request.param, "--etcd-compaction-interval=1s") if flag]
    with clusters.real(tmp_path, *flags) as cluster:
        yield cluster


@pytest.mark.client_go("Normal watch close")
def test_short_watches_of_a_server_that_forgets_soon(forgetful_cluster: Cluster) -> None:
    """Watches end every other second while versions expire: that is no fault, and nothing is missed."""
    namespace = clusters.new_namespace(forgetful_cluster)
    with living(forgetful_cluster, namespace, seed=6, watch_seconds=2) as life:
        failures = life.followers.figures("failures")
        for watches in (3, 5):
            _wait_for_watches(life.followers, watches)
            life.goes_on()
            if forgetful_cluster.name == "sandbox":
                forgetful_cluster.forget()
    assert life.followers.figures("failures") == failures


def _wait_for_watches(followers: Followers, number: int) -> None:
    until(f"{number} watches", lambda: min(followers.figures("watches")) >= number, seconds=60)


@pytest.mark.client_go("A half-open watch")
def test_a_half_open_connection_is_noticed_and_the_watch_resumed(cluster: Cluster, namespace: str) -> None:
    """Nothing passes any more and nobody closes: the watch goes on from its version, without a list."""
    lists = cluster.asked("list", "configmaps")
    with living(cluster, namespace, seed=5, idle_timeout=2.0) as life:
        life.rests()
        assert life.line.freeze() >= 2
    assert all(closed > 0 for closed in life.followers.figures("idle_closes"))
    assert life.followers.figures("lists") == [1, 1]
    assert life.followers.tombstones() == [0, 0, 0, 0]
    assert cluster.asked("list", "configmaps") == lists
