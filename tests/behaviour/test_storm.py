"""A storm of changes and edits: eight handlers of every kind, and not one change lost, doubled or moved.

The ordinary test plays 6,000 changes and 10 reloads; with DECLCTL_SOAK ten times as many of both.
DECLCTL_SEED repeats the changes, the edits and the moments at which they meet.
"""

import os
import random
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.behaviour.storm.edits import HANDLERS, Edits
from tests.behaviour.storm.generator import Generator
from tests.behaviour.storm.verdict import Row, Verdict, rows_of

_TIMES = 10 if os.environ.get("DECLCTL_SOAK") else 1
_CHANGES = 6_000 * _TIMES
_RELOADS = 10 * _TIMES


@pytest.fixture
def seed() -> int:
    """From DECLCTL_SEED, and by chance for a person."""
    by_default = 0 if os.environ.get("CI") else random.SystemRandom().randrange(10**9)
    return int(os.environ.get("DECLCTL_SEED") or by_default)


class Storm(NamedTuple):
    """What a storm leaves: what was made, what was written down, and what handlers counted."""

    generator: Generator
    rows: Mapping[str, list[Row]]
    statistics: Mapping[str, Any]


def _asked(sandbox: Any) -> list[tuple[str, int]]:
    """Every LIST and WATCH, with its connection."""
    return [(r.verb, r.connection) for r in sandbox.ledger.requests() if r.verb in ("list", "watch")]


def _play(rig: Any, sandbox: Any, seed: int, *, changes: int, reloads: int, policy: str) -> Storm:
    """A storm with edits at random moments; every reload ends as it has to, and nothing is listed again."""
    print(f"DECLCTL_SEED={seed}")
    chance = random.Random(seed)
    edits = Edits(rig, chance, policy=policy)
    edits.write()
    controller = rig.run(edits.code)
    before = _asked(sandbox)
    moments = sorted(chance.randrange(100, changes) for _ in range(reloads))
    generator = Generator(sandbox, random.Random(seed + 1), moments)
    storm = threading.Thread(target=generator.play, args=(changes,), name="storm", daemon=True)
    storm.start()
    applied = 1
    for _ in range(reloads):
        generator.wait_for_moment()
        what, result = edits.make_one()
        generator.go_on()
        outcome = controller.reload()
        assert (outcome.result, outcome.lists) == (result, 0), f"{what}: {outcome.line}"
        if result == "Refused":
            edits.mend()
            assert controller.reload().result == "Unchanged"
        applied += result == "Applied"
        assert outcome.generation == applied
        assert [handler.name for handler in controller.status().handlers] == edits.order
    storm.join()
    controller.wait_idle(120)
    assert _asked(sandbox) == before
    assert controller.resource("maps").relists == 0
    assert controller.status().generation == applied > 1
    rows = rows_of(rig.told("storm"))
    assert set(rows) == {*HANDLERS, *edits.extras}
    assert len({row.generation for row in rows["plain"]}) > 2  # the edits did meet the changes
    assert len(generator.wrote) == changes
    assert controller.handler("faulty").retried == len(rig.told("failed")) > 0
    return Storm(generator, rows, {name: controller.handler(name) for name in HANDLERS})


@pytest.mark.timeout(0 if _TIMES > 1 else 120)
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G8", "G18", "G19")
def test_a_storm_over_eight_handlers_and_many_reloads_loses_nothing(rig, stormy, sandbox, seed) -> None:
    """Lost 0, twice 0, out of order 0, relists 0, and each change heard by one generation (G1-G4, G18, G19).

    `stormy` is the installed plugin.
    """
    storm = _play(rig, sandbox, seed, changes=_CHANGES, reloads=_RELOADS, policy="Fence")
    verdict = Verdict(storm.generator, storm.rows)
    assert verdict.faults() == []
    assert verdict.figures(storm.statistics) == []
    assert _overlooked(storm.generator, storm.rows) == []


@pytest.mark.timeout(0 if _TIMES > 1 else 120)
@pytest.mark.guarantee("G2", "G3")
def test_a_storm_in_which_new_code_gets_what_waits_loses_nothing_either(rig, stormy, sandbox, seed) -> None:
    """`drainPolicy: Handover` moves the cut, and neither loses nor doubles a change (G2, G3)."""
    changes, reloads = _CHANGES // 3, max(_RELOADS // 2, 6)
    storm = _play(rig, sandbox, seed, changes=changes, reloads=reloads, policy="Handover")
    verdict = Verdict(storm.generator, storm.rows, fenced=False)
    assert verdict.faults() == []
    assert verdict.figures(storm.statistics) == []


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
