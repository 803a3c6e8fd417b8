"""A storm over real HTTP: a real process, eight handlers of every kind, and edits at random moments.

With DECLCTL_SOAK it has ten times as many changes and edits. DECLCTL_SEED repeats the changes, the edits and
the moments at which they meet.
"""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest
from clusters import Cluster
from processes import Declctl
from rest import SteadyRest
from waiting import until

from declctl.testing import BundleDir
from tests.pieces import Pieces
from tests.storm import plugin
from tests.storm.generator import Generator
from tests.storm.playing import play
from tests.storm.verdict import Row, Verdict

_TIMES = 10 if os.environ.get("DECLCTL_SOAK") else 1
_CHANGES = 2_000 * _TIMES
_RELOADS = 22 * _TIMES  # each kind of edit twice
_SUPPORT = Path(__file__).parent / "support"


class There:
    """`declctl run` on a cluster, for the length of a context: a storm's writer, world and controller."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.pieces = Pieces(BundleDir(folder / "bundle"))
        self.writer = self
        self._cluster = cluster
        self._rest = SteadyRest(cluster.rest)
        self._namespace = namespace
        self._rows = folder / "rows"
        site = folder / "site"
        plugin.install(site)
        self._env = {"PYTHONPATH": os.pathsep.join([str(_SUPPORT), str(site)]), "BLACKBOARD": str(self._rows)}
        self._stack = ExitStack()
        self.process: Declctl

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        self._rest.close()

    def create(self, config_map: dict[str, Any]) -> dict[str, Any]:
        metadata = {**config_map["metadata"], "namespace": self._namespace}
        return self._rest.create({**config_map, "metadata": metadata})

    def patch(self, name: str, patch: dict[str, Any]) -> None:
        self._rest.patch("configmaps", name, patch, self._namespace)

    def delete(self, name: str) -> None:
        self._rest.delete("configmaps", name, self._namespace)

    def start(self) -> Self:
        self.process = self._stack.enter_context(
            Declctl(self.pieces.folder.path, "--no-watch", kubeconfig=self._cluster.kubeconfig, env=self._env)
        )
        self.process.wait_until_synced()
        return self

    def asked(self) -> tuple[int, int]:
        """As the server counts them."""
        return self._cluster.asked("list", "configmaps"), self._cluster.asked("watch", "configmaps")

    def told(self, what: str) -> list[tuple[Any, ...]]:
        rows = [tuple(json.loads(line)) for line in self._rows.read_text("utf-8").splitlines()]
        return [row for row in rows if row[0] == what]

    def reload(self) -> Any:
        return SimpleNamespace(**self.process.reload())

    def generation(self) -> int:
        return self.process.status()["generation"]

    def order(self) -> list[str]:
        return [handler["name"] for handler in self.process.status()["handlers"]]

    def handler(self, name: str) -> Any:
        return SimpleNamespace(
            **next(each for each in self.process.status()["handlers"] if each["name"] == name)
        )

    def resource(self, name: str) -> Any:
        return SimpleNamespace(**self.process.resource(name))

    def wait_idle(self, seconds: float) -> None:
        objects = self._cluster.rest.list("configmaps", self._namespace)
        truth = {
            f"{self._namespace}/{obj['metadata']['name']}": obj["metadata"]["resourceVersion"]
            for obj in objects
            if "seq" in obj["data"]
        }
        until("the cache is true", lambda: self.process.cache("maps") == truth, seconds=seconds)
        until("all handlers are done", self._at_rest, seconds=seconds)

    def _at_rest(self) -> bool:
        return all(not each["queued"] and not each["running"] for each in self.process.status()["handlers"])


@pytest.mark.timeout(0 if _TIMES > 1 else 300)
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G8", "G18", "G19")
@pytest.mark.parametrize("policy", ["Fence", "Handover"])
def test_a_storm_on_a_server_loses_nothing(
    policy: str, cluster: Cluster, namespace: str, seed: int, tmp_path: Path
) -> None:
    """Lost 0, twice 0, out of order 0, no LIST or WATCH again, and each change heard by one generation.

    `drainPolicy: Handover` moves the cut, and neither loses nor doubles a change.
    """
    where, fenced = f", namespaces: [{namespace}], labelSelector: side", policy == "Fence"
    with There(cluster, namespace, tmp_path) as there:
        storm = play(there, seed, changes=_CHANGES, reloads=_RELOADS, policy=policy, where=where)
        assert storm.faults(fenced=fenced) == []
        if fenced:
            assert _overlooked(storm.generator, storm.rows) == []
        assert there.process.stop() == 0


def _two_of_one_object(rows: list[Row]) -> tuple[int, int]:
    seen: dict[str, int] = {}
    for position, row in enumerate(rows):
        if row.heard.uid in seen:
            return seen[row.heard.uid], position
        seen[row.heard.uid] = position
    raise AssertionError("every object was heard of once only")


def _overlooked(generator: Generator, rows: Mapping[str, list[Row]]) -> list[str]:
    """What the verdict would not see; so that a storm that passes says something."""
    overlooked: list[str] = []
    for who in ("asynchronous", "wide", "filtered"):
        of = rows[who]
        again, middle = _two_of_one_object(of)
        swapped = [*of[:again], of[middle], *of[again + 1 : middle], of[again], *of[middle + 1 :]]
        older = [*of[:-1], of[-1]._replace(generation=1)]
        tampered = {
            "a lost change": [*of[:middle], *of[middle + 1 :]],
            "a change that is heard twice": [*of[:middle], of[middle], *of[middle:]],
            "two changes of one object in another order": swapped,
            "a change that old code heard": older,
            "other code in a generation": [*of[:-1], of[-1]._replace(version=0)],
        }
        for what, instead in tampered.items():
            if not Verdict(generator, {**rows, who: instead}).faults():
                overlooked.append(f"{what} of {who}")
    return overlooked
