"""A storm of changes and edits: eight handlers of every kind, and not one change lost, doubled or moved.

The ordinary test plays 6,000 changes and 10 reloads; with DECLCTL_SOAK ten times as many of both.
DECLCTL_SEED repeats the changes, the edits and the moments at which they meet.
"""

import os
from collections.abc import Mapping
from typing import Any

import pytest

from declctl.sandbox import SandboxThread
from declctl.testing import ControllerUnderTest
from tests.storm.generator import Generator
from tests.storm.playing import play
from tests.storm.verdict import Row, Verdict

pytestmark = pytest.mark.thorough

_TIMES = 10 if os.environ.get("DECLCTL_SOAK") else 1
_CHANGES = 6_000 * _TIMES
_RELOADS = 10 * _TIMES


class Here:
    """A controller in this process, over the sandbox: a storm's writer, world and controller."""

    def __init__(self, rig: Any, sandbox: SandboxThread) -> None:
        self.pieces = rig
        self.writer = self
        self._sandbox = sandbox
        self._controller: ControllerUnderTest

    def create(self, config_map: dict[str, Any]) -> dict[str, Any]:
        metadata = {**config_map["metadata"], "namespace": "default"}
        return self._sandbox.create({**config_map, "metadata": metadata})

    def patch(self, name: str, patch: dict[str, Any]) -> None:
        self._sandbox.patch("ConfigMap", name, patch)

    def delete(self, name: str) -> None:
        self._sandbox.delete("ConfigMap", name, "default")

    def start(self) -> "Here":
        self._controller = self.pieces.run()
        return self

    def asked(self) -> list[tuple[str, int]]:
        """Every LIST and WATCH, with its connection."""
        requests = self._sandbox.ledger.requests()
        return [(r.verb, r.connection) for r in requests if r.verb in ("list", "watch")]

    def told(self, what: str) -> list[tuple[Any, ...]]:
        return self.pieces.told(what)

    def reload(self) -> Any:
        return self._controller.reload()

    def generation(self) -> int:
        return self._controller.status().generation

    def order(self) -> list[str]:
        return [handler.name for handler in self._controller.status().handlers]

    def handler(self, name: str) -> Any:
        return self._controller.handler(name)

    def resource(self, name: str) -> Any:
        return self._controller.resource(name)

    def wait_idle(self, seconds: float) -> None:
        self._controller.wait_idle(seconds)


@pytest.mark.timeout(0 if _TIMES > 1 else 120)
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G8", "G18", "G19")
@pytest.mark.parametrize("policy", ["Fence", "Handover"])
def test_a_storm_over_eight_handlers_and_many_reloads_loses_nothing(
    rig, stormy, sandbox, seed, policy
) -> None:
    """Lost 0, twice 0, out of order 0, relists 0, and each change heard by one generation (G1-G4, G18, G19).

    `drainPolicy: Handover` moves the cut, and neither loses nor doubles a change. `stormy` is the installed
    plugin.
    """
    fenced = policy == "Fence"
    changes, reloads = (_CHANGES, _RELOADS) if fenced else (_CHANGES // 3, max(_RELOADS // 2, 6))
    storm = play(Here(rig, sandbox), seed, changes=changes, reloads=reloads, policy=policy)
    assert storm.faults(fenced=fenced) == []
    if fenced:
        assert _overlooked(storm.generator, storm.rows) == []


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
